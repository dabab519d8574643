"""Turns errors of the `mcp` package into short messages."""

from typing import cast

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from pydantic import ValidationError

from toolwire.agent.mcp.settings import Server

_CLOSED = ("Connection closed", "SSE stream ended")
"""Messages for a closed connection; servers use the same error code for other errors too."""


def describe_error(error: BaseException, server: Server) -> str:
    """An error as a message for the user or the model."""
    match _first(error):
        case MCPError() as error:
            return "it ended" if is_connection_closed(error) else error.message
        case ValidationError() as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"its answer is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        case FileNotFoundError() as error if server.command:
            return f"there is no {str(error.filename or server.command)!r}"
        case OSError() as error:
            return error.strerror or str(error)
        case error:
            return str(error) or type(error).__name__


def is_connection_closed(error: BaseException | None) -> bool:
    """Whether the connection was closed before the answer."""
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message.startswith(_CLOSED)


def needs_newer_protocol(error: BaseException) -> bool:
    """Whether a server refuses the handshake of older protocol versions, but may support newer ones."""
    match _first(error):
        case MCPError() as error:
            return error.code in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND)
        case error:
            return isinstance(error, RuntimeError) and str(error).startswith("Unsupported protocol version")


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
