r"""JSON-RPC as `codex app-server` speaks it: one message per line, without the member `jsonrpc`.

    {"method":"turn/start","id":"3.turn","params":{…}}\n       a request, by either side
    {"id":"3.turn","result":{…}}\n                             its answer, or an `error`
    {"method":"item/agentMessage/delta","params":{…}}\n        a notification

A line may be of any length up to a limit, and may arrive in any number of reads.
"""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.errors import BackendFault, Failure
from toolwire.core.raw import to_json
from toolwire.core.sse import Frame

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of one line, unless configured."""

NO_SUCH_METHOD = -32601

JSON_LINES = "application/jsonl"
"""The content type of a reply that is made of such lines."""

Id: TypeAlias = int | str


class LineReader:
    """A stage from bytes to frames, one for each line that is not blank."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._held = 0
        self.skipped = 0
        """Number of blank lines so far."""

    def feed(self, data: bytes) -> list[Frame]:
        whole = data.split(b"\n")
        rest = whole.pop()
        may_exceed = self._held + len(data) > self._limit  # else no line can be too long
        if whole and self._pending:
            whole[0] = b"".join((*self._pending, whole[0]))
            self._pending, self._held = [], 0
        if rest:
            self._pending.append(rest)
            self._held += len(rest)
        if may_exceed and (self._held > self._limit or any(len(line) > self._limit for line in whole)):
            raise BackendFault(Failure(502, "line_too_long", f"A line has more than {self._limit} bytes."))
        frames = [Frame(b"", line) for line in whole if line and not line.isspace()]
        self.skipped += len(whole) - len(frames)
        return frames

    def end(self) -> list[Frame]:
        """Discard an unterminated last line: it was cut."""
        self._pending, self._held = [], 0
        return []


class PeerRequest(msgspec.Struct):
    """The fields of a request that are needed to answer or decline it."""

    id: Id
    method: str


_decode_request = msgspec.json.Decoder(PeerRequest).decode


def read_peer_request(line: bytes) -> PeerRequest | None:
    """The request in a line, whatever its parameters are; None if the line is not a request."""
    try:
        return _decode_request(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_request(id: Id, method: str, params: Any) -> bytes:
    """The line of a request."""
    return to_json({"method": method, "id": id, "params": params}) + b"\n"


def write_notification(method: str, **params: Any) -> bytes:
    """The line of a notification, which has no answer."""
    return to_json({"method": method, "params": params} if params else {"method": method}) + b"\n"


def write_answer(id: Id, result: Any) -> bytes:
    """The line of a response with a result."""
    return to_json({"id": id, "result": result}) + b"\n"


def write_refusal(id: Id, code: int, message: str) -> bytes:
    """The line of a response with an error."""
    return to_json({"id": id, "error": {"code": code, "message": message}}) + b"\n"
