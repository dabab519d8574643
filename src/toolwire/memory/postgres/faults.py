"""What errors of asyncpg and PostgreSQL mean for the store, by SQLSTATE."""

from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from toolwire.memory.store import Reason, StoreFailed

LOST: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""The connection is lost. asyncpg reports an internal error if that happens between two messages."""
FAULTS: Final = (asyncpg.PostgresError, *LOST, TimeoutError, StoreFailed)
"""The exceptions that using the database may raise."""


class NotUsable(StoreFailed):
    """The database cannot be used until its configuration, or ours, is changed."""

    @property
    def is_lasting(self) -> bool:
        return True


_CLASSES: dict[str, Reason] = {
    "08": "unreachable",  # connection exceptions
    "40": "busy",  # deadlock, serialization failure
    "53": "busy",  # too many connections, out of memory
    "57": "unreachable",  # the server is being shut down, or is starting
    "58": "io",
    "XX": "corrupt",
}
_STATES: dict[str, Reason] = {
    "25006": "readonly",
    "25P03": "unreachable",  # the server has ended an idle transaction
    "3D000": "missing",
    "3F000": "missing",
    "42501": "readonly",
    "42P01": "missing",
    "53100": "full",
    "55P03": "busy",
    "57014": "busy",
    "XX000": "io",
}
_NOT_USABLE = ("28000", "28P01", "3D000", "42501")
"""Authentication, the name of the database and permissions: waiting does not help."""
_PASSING_CLASSES = ("08", "40")
_PASSING = ("25P03", "53300", "57P01", "57P02", "57P03", "57P05")


def may_pass(error: Exception) -> bool:
    """Whether the same operation may succeed a moment later."""
    if isinstance(error, asyncpg.PostgresError):
        state = _state(error)
        return state[:2] in _PASSING_CLASSES or state in _PASSING
    return isinstance(error, LOST) and not isinstance(error, TimeoutError)


def ends_connection(error: asyncpg.PostgresError) -> bool:
    """Whether the server closes the connection with this error, or has closed it."""
    return _state(error)[:2] in ("08", "57")


def store_failure_of(error: Exception) -> StoreFailed:
    """An error as a failure of the store."""
    if isinstance(error, StoreFailed):
        return error
    if isinstance(error, TimeoutError):
        return StoreFailed("unreachable", "the database did not answer in time")
    if isinstance(error, asyncpg.PostgresError):
        state = _state(error)
        reason = _STATES.get(state) or _CLASSES.get(state[:2], "io")
        if state in _NOT_USABLE:
            return NotUsable("unreachable" if state.startswith("28") else reason, str(error))
        return StoreFailed(reason, str(error))
    if isinstance(error, OSError):
        return StoreFailed("unreachable", error.strerror or str(error) or type(error).__name__)
    return StoreFailed("unreachable", "the connection was lost")


def _state(error: asyncpg.PostgresError) -> str:
    return getattr(error, "sqlstate", None) or ""
