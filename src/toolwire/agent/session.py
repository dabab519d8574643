"""Sessions, each in a JSON Lines file, so that it can be resumed.

{"toolwire_session":1,"id":"…","model":"…","cwd":"…"}
{"items":[…]}              added to the history
{"history":[…]}            replaces the history, after a compaction
{"usage":{…},"last":{…}}   the tokens so far, and those of the last turn
{"model":"…"}              another model from here on
"""

import re
import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from toolwire.agent.events import Tokens
from toolwire.agent.history import AnyItem, History, MessageItem, given_item, read_items
from toolwire.core.display import clean
from toolwire.core.errors import ToolwireError
from toolwire.memory.private_files import find_state_folder, make_folders, open_file, open_private, read_file

UNKNOWN_USAGE = Tokens()
"""The token counts of a history that no model has received yet."""

SESSION_FORMAT = 1
"""The version of the format."""
SESSION_SUFFIX = ".jsonl"

MAX_SUMMARY_BYTES = 1024 * 1024
"""Bytes of a session that are read to find its first prompt."""
MAX_PROMPT_CHARS = 60
"""Characters of a prompt in a list."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SessionError(ToolwireError):
    """A session that cannot be read, written or used; the message is one line for the user."""

    failure_code = "session_unusable"
    failure_status = 409


class SessionHead(msgspec.Struct):
    """The first line."""

    toolwire_session: int
    id: str
    model: str = ""
    cwd: str = ""


class SessionLine(msgspec.Struct, omit_defaults=True):
    """Any other line."""

    items: list[msgspec.Raw] | None = None
    history: list[msgspec.Raw] | None = None
    usage: Tokens | None = None
    last: Tokens | None = None
    model: str | None = None


def folder() -> Path:
    """The directory of session files."""
    return find_state_folder() / "sessions"


def new_id() -> str:
    """A new id, which starts with the time."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


class Session:
    """A conversation and its file; without a path it stays in memory. One run at a time may use it."""

    def __init__(self, id: str = "", model: str = "", path: Path | None = None, cwd: str = "") -> None:
        self.id = id or new_id()
        self.model = model
        self.cwd = cwd
        """The working directory in which it began."""
        self.history = History()
        self.usage = Tokens()
        self.last = UNKNOWN_USAGE
        """The token counts of the last turn, which show how full the context window is."""
        self._path = path
        self._size: int | None = None  # bytes of the file that this session has written or read; None: no file yet
        self._lock: BinaryIO | None = None
        self._is_busy = False

    @classmethod
    def begin(cls, model: str, cwd: str | Path, directory: str | Path | None) -> "Session":
        """Begin a new session, with a file in this directory; without a directory it stays in memory."""
        id = new_id()
        path = Path(directory) / f"{id}{SESSION_SUFFIX}" if directory is not None else None
        session = cls(id, model, path, str(cwd))
        session._write(SessionHead(SESSION_FORMAT, id, model, str(cwd)))
        return session

    @classmethod
    def resume(cls, id: str, directory: str | Path) -> "Session":
        """Load a session; calls without a result count as aborted. Raises `SessionError`."""
        path = Path(directory) / f"{id}{SESSION_SUFFIX}"
        if not _ID.fullmatch(id):
            raise SessionError(f"{id!r} is not the id of a session")
        session = cls(id, "", path)
        try:
            session.hold()
            data = read_file(path)
            first, *rest = data.splitlines()
            head = msgspec.json.decode(first, type=SessionHead)
        except (OSError, ValueError) as error:
            raise SessionError(f"there is no session {id!r} in {directory}") from error
        if head.toolwire_session != SESSION_FORMAT:
            raise SessionError(
                f"the session {id!r} has the format {head.toolwire_session}, and this version of Toolwire reads only "
                f"format {SESSION_FORMAT}"
            )
        session.id, session.model, session.cwd = head.id, head.model, head.cwd
        for line in rest:
            with suppress(msgspec.DecodeError):  # a line that was cut when the process ended
                read = msgspec.json.decode(line, type=SessionLine)
                if read.history is not None:
                    session.history.items = read_items(read.history)
                session.history.items += read_items(read.items or ())
                session.usage = read.usage or session.usage
                session.last = read.last or session.last
                session.model = read.model or session.model
        session._size = len(data)
        if not data.endswith(b"\n"):
            session._append(b"\n")  # separates a line that was cut when the process ended from the next one
        if session.history.close_calls():
            session.replace(session.history.items, session.last)
        return session

    @classmethod
    def from_list(cls, items: Iterable[Mapping[str, Any]]) -> "Session":
        """A session in memory with this conversation: messages with a `role`, and any other items of the Responses API.

        Calls without a result count as aborted. Raises `ValueError`, which names the invalid item.
        """
        session = cls()
        session.history.items = [given_item(item, index) for index, item in enumerate(items)]
        session.history.close_calls()
        return session

    def to_list(self) -> list[dict[str, Any]]:
        """The conversation as items of the Responses API, for `from_list` and for JSON."""
        return [msgspec.json.decode(item.raw) for item in self.history]

    def close(self) -> None:
        """Release the lock on the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything is pickled except the lock, which belongs to this process."""
        return {**self.__dict__, "_lock": None, "_is_busy": False}

    def hold(self) -> None:
        """Lock the file until `close`, so that two processes do not overwrite each other.

        Raises `SessionError` if it is held elsewhere, or was continued elsewhere since it was read.
        """
        if self._path is None or self._lock is not None:
            return
        if fcntl is not None:
            self._lock = open_file(self._path)  # stays open while the lock is held
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise SessionError(f"the session {self.id!r} is in use") from None
        if self._size is not None and self._path.stat().st_size != self._size:
            self.close()
            raise SessionError(f"the session was continued elsewhere: {self._path} has changed; resume it again")

    @property
    def is_held(self) -> bool:
        """Whether this session holds the lock on its file."""
        return self._lock is not None

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Use the session exclusively. Raises `SessionError` if another run uses it."""
        if self._is_busy:
            raise SessionError(f"the session {self.id!r} is in use by another run; begin another, or use a copy")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    def copy(self) -> "Session":
        """A copy in memory, which continues independently."""
        copied = Session("", self.model, None, self.cwd)
        copied.history.items = list(self.history.items)
        copied.usage, copied.last = self.usage, self.last
        return copied

    def add(self, items: Sequence[AnyItem]) -> None:
        """Add items to the history and the file."""
        if items:
            self.history.items += items
            self._write(SessionLine(items=[item.raw for item in items]))

    def replace(self, items: Sequence[AnyItem], last: Tokens = UNKNOWN_USAGE) -> None:
        """Replace the history."""
        self.history.items = list(items)
        self.last = last
        self._write(SessionLine(history=self.history.raw, last=last))

    def spend(self, tokens: Tokens) -> None:
        """Add the tokens of a turn."""
        self.usage = self.usage.plus(tokens)
        self.last = tokens
        self._write(SessionLine(usage=self.usage, last=tokens))

    def spend_elsewhere(self, tokens: Tokens) -> None:
        """Add tokens that a tool has used in another conversation."""
        self.usage = self.usage.plus(tokens)
        self._write(SessionLine(usage=self.usage))

    def use_model(self, name: str) -> None:
        """Continue with another model."""
        if name != self.model:
            self.model = name
            self._write(SessionLine(model=name))

    def _write(self, line: SessionHead | SessionLine) -> None:
        self._append(msgspec.json.encode(line) + b"\n")

    def _append(self, data: bytes) -> None:
        if self._path is None:
            return
        try:
            make_folders(self._path.parent)
            with open_private(self._path, "a") as file:
                file.write(data)
            self._size = (self._size or 0) + len(data)
        except OSError as error:
            raise SessionError(f"the session cannot be stored in {self._path}: {error.strerror}") from error


# The list of sessions


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a list."""

    id: str
    model: str
    cwd: str
    used: float
    """When it was last written, in seconds since 1970."""
    prompt: str
    """The first prompt; empty if it could not be read."""


def list_sessions(directory: Path, cwd: Path | None = None) -> Iterator[SessionSummary]:
    """The sessions that are not empty, newest first; with `cwd` only those of that working directory."""
    files: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in directory.glob(f"*{SESSION_SUFFIX}"):
            with suppress(OSError):
                files.append((path.stat().st_mtime, path))
    for used, path in sorted(files, reverse=True):
        try:
            with path.open("rb") as file:
                first, *rest = file.read(MAX_SUMMARY_BYTES).splitlines()
            head = msgspec.json.decode(first, type=SessionHead)
        except (OSError, ValueError):
            continue
        if rest and (cwd is None or head.cwd == str(cwd)):
            yield SessionSummary(path.stem, head.model, head.cwd, used, _first_prompt(rest))


def _first_prompt(lines: list[bytes]) -> str:
    for line in lines:
        with suppress(msgspec.DecodeError):
            for item in read_items(msgspec.json.decode(line, type=SessionLine).items or ()):
                if isinstance(item, MessageItem) and item.role == "user":
                    return item.text
    return ""


def session_rows(found: Iterable[SessionSummary], now: float) -> list[tuple[str, ...]]:
    """Sessions as the cells of a table: the id, when it was used, the model, the directory and the first prompt."""
    rows: list[tuple[str, ...]] = []
    for each in found:
        prompt = " ".join(each.prompt[: 10 * MAX_PROMPT_CHARS].split())
        prompt = prompt if len(prompt) <= MAX_PROMPT_CHARS else f"{prompt[: MAX_PROMPT_CHARS - 1]}…"
        seconds = max(0.0, now - each.used)
        units = (("d", 86400), ("h", 3600), ("min", 60))
        age = next((f"{seconds / size:.0f} {unit} ago" for unit, size in units if seconds >= size), "just now")
        rows.append(tuple(map(clean, (each.id, age, each.model, each.cwd, prompt))))
    return rows
