"""The parts of app-server's messages that we read, and nothing else."""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.events import Usage
from toolwire.core.jsonrpc import Id

ErrorInfo: TypeAlias = str | dict[str, Any] | None

UNASSIGNED = "toolwire/unassigned"
"""A notification of our own: a line of the process names no thread. `message` is its method, if that can be read."""


class Tokens(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Token counts, in the order of our own."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    reasoning_output_tokens: int = 0

    @property
    def usage(self) -> Usage:
        return Usage(*msgspec.structs.astuple(self))


class TokenUsage(msgspec.Struct, rename="camel", gc=False):
    total: Tokens = Tokens()
    model_context_window: int | None = None


class Item(msgspec.Struct, gc=False):
    """An item as app-server shows it to people, or, in raw events, as the model's server sent it."""

    type: str = ""
    id: str | None = None
    text: str | None = None
    role: str | None = None
    content: list[Any] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None
    name: str | None = None
    namespace: str | None = None
    call_id: str | None = None
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    phase: str | None = None


class TurnError(msgspec.Struct, rename="camel", gc=False):
    message: str = ""
    codex_error_info: ErrorInfo = None


class Turn(msgspec.Struct, gc=False):
    id: str = ""
    status: str = ""
    error: TurnError | None = None


class Status(msgspec.Struct, gc=False):
    type: str = ""


class Thread(msgspec.Struct, gc=False):
    id: str = ""
    status: Status | None = None


class Params(msgspec.Struct, rename="camel", gc=False):
    """Of every method that we know. Which fields are there depends on it."""

    item_id: str | None = None
    delta: str | None = None
    summary_index: int | None = None
    content_index: int | None = None
    item: Item | None = None
    turn: Turn | None = None
    error: TurnError | None = None
    will_retry: bool = False
    call_id: str | None = None
    namespace: str | None = None
    tool: str | None = None
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    usage: Tokens | None = None
    token_usage: TokenUsage | None = None
    message: str | None = None
    to_model: str | None = None


class Result(msgspec.Struct, gc=False):
    thread: Thread | None = None


class RpcError(msgspec.Struct, gc=False):
    code: int = 0
    message: str = ""
    data: Any = None


class Line(msgspec.Struct, gc=False):
    id: Id | None = None
    method: str = ""
    params: Params | None = None
    result: Result | None = None
    error: RpcError | None = None
