r"""JSON-RPC as `codex app-server` speaks it: one message per line, without the member `jsonrpc`.

    {"method":"turn/start","id":"3.turn","params":{…}}\n       a request, by either side
    {"id":"3.turn","result":{…}}\n                             its answer, or an `error`
    {"method":"item/agentMessage/delta","params":{…}}\n        a notification

A line may be of any length up to a limit, and may come in any number of pieces.
"""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.errors import BackendFault, Failure
from toolwire.core.sse import Frame

LIMIT = 64 * 1024 * 1024
"""Most bytes one line may have, until told otherwise."""

NO_SUCH_METHOD = -32601

UNASSIGNED = "toolwire/unassigned"
"""A notification of our own: a line of the process names no thread. `message` is its method, if that can be read."""

JSON_LINES = "application/jsonl"
"""The type of a reply that is made of such lines."""

Id: TypeAlias = int | str

_encode = msgspec.json.Encoder().encode


class LineReader:
    """A stage from bytes to frames, one for each line that holds something."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[Frame]:
        whole = data.split(b"\n")
        rest = whole.pop()
        looks = self._held + len(data) > self._limit  # else no line can be too long
        if whole and self._pending:
            whole[0] = b"".join((*self._pending, whole[0]))
            self._pending, self._held = [], 0
        if rest:
            self._pending.append(rest)
            self._held += len(rest)
        if looks and (self._held > self._limit or any(len(line) > self._limit for line in whole)):
            raise BackendFault(Failure(502, "line_too_long", f"A line has more than {self._limit} bytes."))
        return [Frame(b"", line) for line in whole if line and not line.isspace()]

    def end(self) -> list[Frame]:
        """A last line without its end is cut, and says nothing."""
        self._pending = []
        return []


class Asked(msgspec.Struct):
    """The least that must be readable of a request."""

    id: Id
    method: str


_decode_asked = msgspec.json.Decoder(Asked).decode


def request_in(line: bytes) -> Asked | None:
    """The request in a line, whatever its parameters are; None if it is none."""
    try:
        return _decode_asked(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def request(id: Id, method: str, params: Any) -> bytes:
    return _encode({"method": method, "id": id, "params": params}) + b"\n"


def notification(method: str, **params: Any) -> bytes:
    return _encode({"method": method, "params": params} if params else {"method": method}) + b"\n"


def answer(id: Id, result: Any) -> bytes:
    return _encode({"id": id, "result": result}) + b"\n"


def refusal(id: Id, code: int, message: str) -> bytes:
    return _encode({"id": id, "error": {"code": code, "message": message}}) + b"\n"
