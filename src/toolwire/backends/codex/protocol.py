"""App-server's protocol: the parts of its messages that we read, our requests, and which thread a line belongs to.

    initialize → initialized                                     a process
    thread/start → thread/inject_items → turn/start              a thread, its history, its one turn
    turn/steer, thread/read, turn/interrupt, thread/unsubscribe  while the turn runs, and when its client has left

All threads of a process share one pipe. `read` finds the thread of a line; the decoder reads what the line says about
the turn.
"""

import re
from typing import Any

import msgspec

from toolwire.backends.decoder import UNREADABLE
from toolwire.core import jsonrpc
from toolwire.core.backend import Ask
from toolwire.core.events import Usage
from toolwire.core.jsonrpc import Id
from toolwire.core.raw import Json

CALL = "item/tool/call"
TURN_COMPLETED = "turn/completed"

# The names of requests whose answers matter.
THREAD, TURN, STEER, INTERRUPT, PROBE = "thread", "turn", "steer", "interrupt", "probe"

_LIMITS = "account/rateLimits/updated"
_UNWANTED = ("thread/started", "thread/settings/updated", "thread/status/changed", "remoteControl/status/changed")
"""Notifications that workers need not send."""

MIN_VERSION = (0, 166, 0)
"""The first version that works: earlier ones run the calls of a turn one after the other."""

INITIALIZED = jsonrpc.write_notification("initialized")
"""The line that completes the handshake."""

# What we read of its messages

UNASSIGNED = "toolwire/unassigned"
"""Toolwire's own notification about a line that names no thread. `message` is the line's method, if readable."""


class TokenCounts(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Token counts, in the order of `Usage`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    reasoning_output_tokens: int = 0

    @property
    def usage(self) -> Usage:
        return Usage(*msgspec.structs.astuple(self))


class TokenUsage(msgspec.Struct, rename="camel", gc=False):
    total: TokenCounts = TokenCounts()
    model_context_window: int | None = None


class ThreadItem(msgspec.Struct, gc=False):
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
    codex_error_info: str | dict[str, Any] | None = None


class TurnInfo(msgspec.Struct, gc=False):
    id: str = ""
    status: str = ""
    error: TurnError | None = None


class Status(msgspec.Struct, gc=False):
    type: str = ""


class ThreadInfo(msgspec.Struct, gc=False):
    id: str = ""
    status: Status | None = None


class Params(msgspec.Struct, rename="camel", gc=False):
    """The parameters of every method that we read. Which fields are present depends on the method."""

    item_id: str | None = None
    delta: str | None = None
    summary_index: int | None = None
    content_index: int | None = None
    item: ThreadItem | None = None
    turn: TurnInfo | None = None
    error: TurnError | None = None
    will_retry: bool = False
    call_id: str | None = None
    namespace: str | None = None
    tool: str | None = None
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    usage: TokenCounts | None = None
    token_usage: TokenUsage | None = None
    message: str | None = None
    to_model: str | None = None


class RequestResult(msgspec.Struct, gc=False):
    thread: ThreadInfo | None = None


class RpcError(msgspec.Struct, gc=False):
    code: int = 0
    message: str = ""
    data: Any = None


class AppServerLine(msgspec.Struct, gc=False):
    id: Id | None = None
    method: str = ""
    params: Params | None = None
    result: RequestResult | None = None
    error: RpcError | None = None


# Our requests. An answer has the id of its request, which ends in the request's name.


def initialize(version: str) -> Ask:
    client = {"name": "toolwire", "title": "Toolwire", "version": version}
    capabilities = {"experimentalApi": True, "optOutNotificationMethods": _UNWANTED}
    return Ask("hello", "initialize", {"clientInfo": client, "capabilities": capabilities})


def start_thread(params: Json) -> Ask:
    return Ask(THREAD, "thread/start", params)


def inject(thread: str, items: list[Any]) -> Ask:
    return Ask("inject", "thread/inject_items", {"threadId": thread, "items": items})


def start_turn(thread: str, params: Json) -> Ask:
    return Ask(TURN, "turn/start", {"threadId": thread, **params})


def steer(thread: str, turn: str, input: list[Any]) -> Ask:
    """More user input for a running turn."""
    return Ask(STEER, "turn/steer", {"threadId": thread, "expectedTurnId": turn, "input": input})


def name_of(id: Id | None) -> str:
    """The name of the request that an answer with this id belongs to."""
    return str(id).rpartition(".")[2]


# Requests of app-server that are not served here: each is declined in its own way, so that the turn continues at once.

_ANSWERS: Json = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
}


def decline(method: str, id: Id, why: str = "This conversation is over.") -> bytes:
    """The answer that declines a request of app-server. A call gets a text that the model can read."""
    if method == CALL:
        return jsonrpc.write_answer(id, encode_failed_call(why))
    if method in _ANSWERS:
        return jsonrpc.write_answer(id, _ANSWERS[method])
    return jsonrpc.write_refusal(id, jsonrpc.NO_SUCH_METHOD, f"Toolwire does not serve {method}.")


def encode_failed_call(why: str) -> Any:
    return {"contentItems": [{"type": "inputText", "text": why}], "success": False}


# Which thread a line belongs to


class _Named(msgspec.Struct):
    id: str = ""


class _Params(msgspec.Struct, rename="camel"):
    thread_id: str | None = None
    turn: _Named | None = None


class _Result(msgspec.Struct, rename="camel"):
    thread: _Named | None = None
    user_agent: str = ""


class Envelope(msgspec.Struct):
    """The fields of a line that identify its thread or request."""

    id: Id | None = None
    method: str = ""
    params: _Params | None = None
    result: _Result | None = None
    error: Any = None

    @property
    def is_answer(self) -> bool:
        """It answers our request `id`."""
        return not self.method

    @property
    def is_call(self) -> bool:
        """It asks for the result of a tool call."""
        return self.method == CALL

    @property
    def holds_limits(self) -> bool:
        """It has the usage of the account's rate limits; `make_limit_headers` reads it."""
        return self.method == _LIMITS

    @property
    def thread(self) -> str:
        """The thread that a request or a notification is about, if it is about one."""
        return (self.params.thread_id or "") if self.params is not None else ""

    @property
    def refusal(self) -> bytes:
        """The line that declines this request of app-server; empty if it is not a request."""
        return decline(self.method, self.id) if self.method and self.id is not None else b""

    @property
    def unassigned(self) -> bytes:
        """The notification for all threads if this request may belong to any of them; else empty."""
        return _encode_unassigned(self.method) if self.method and self.id is not None and not self.thread else b""


class _Unreadable(Envelope):
    """A malformed line. Even a malformed request gets an answer."""

    @property
    def unassigned(self) -> bytes:
        return _encode_unassigned("")


def _encode_unassigned(method: str) -> bytes:
    return jsonrpc.write_notification(UNASSIGNED, message=method)


_decode = msgspec.json.Decoder(Envelope).decode


def read(line: bytes) -> Envelope:
    try:
        return _decode(line)
    except UNREADABLE:
        bare = jsonrpc.read_peer_request(line)
        return _Unreadable(bare.id, bare.method) if bare is not None else _Unreadable()


_VERSION = re.compile(r"/(\d+)\.(\d+)\.(\d+)")


def version_of(agent: str) -> tuple[int, int, int] | None:
    """The version in a worker's user agent: `toolwire/0.166.0 (…)`."""
    found = _VERSION.search(agent)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def find_fault(answer: Envelope) -> str:
    """The reason why a worker with this answer to `initialize` cannot be used; empty if it can."""
    agent = answer.result.user_agent if answer.result is not None else ""
    version = version_of(agent)
    if version is None:
        return f"it calls itself {agent!r}, which names no version"
    if version < MIN_VERSION:
        found, needed = (".".join(map(str, each)) for each in (version, MIN_VERSION))
        return f"version {found} is too old, at least {needed} is needed"
    return ""


class ThreadTracker:
    """Tracks the state of one thread from the lines in both directions, and makes the requests that end it."""

    def __init__(self) -> None:
        self.thread = ""
        self.is_running = False
        """A turn was started and has not ended."""
        self._turn = ""
        self._is_interrupted = False

    def note_sent(self, ask: Ask) -> None:
        self.is_running = self.is_running or ask.name == TURN

    def feed(self, line: Envelope) -> None:
        result, params = line.result, line.params
        if result is not None and result.thread is not None:
            self.thread = self.thread or result.thread.id
        if line.error is not None and name_of(line.id) in (TURN, INTERRUPT):
            self.is_running = False  # it was refused, or has ended
        if params is not None and params.turn is not None:
            self._turn = params.turn.id
            self.is_running = line.method != TURN_COMPLETED

    def interrupt(self) -> Ask | None:
        """The request to end the turn, once; None while the id of the turn is unknown."""
        if not self._turn or self._is_interrupted:
            return None
        self._is_interrupted = True
        return Ask(INTERRUPT, "turn/interrupt", {"threadId": self.thread, "turnId": self._turn})

    def probe(self) -> Ask:
        """The request for the status of the thread."""
        return Ask(PROBE, "thread/read", {"threadId": self.thread})

    def unsubscribe(self) -> Ask:
        """The request to send no more lines of the thread."""
        return Ask("done", "thread/unsubscribe", {"threadId": self.thread})


# Rate limits


class _Window(msgspec.Struct):
    used_percent: float | None = msgspec.field(default=None, name="usedPercent")
    window_minutes: float | None = msgspec.field(default=None, name="windowDurationMins")
    reset_at: float | None = msgspec.field(default=None, name="resetsAt")


class _Credits(msgspec.Struct, rename="camel"):
    has_credits: bool | None = None
    unlimited: bool | None = None
    balance: str | None = None


class _Limits(msgspec.Struct, frozen=True, rename="camel"):
    """The parts that become headers. Their fields are named as in the headers, with underscores for hyphens."""

    limit_id: str | None = None
    primary: _Window | None = None
    secondary: _Window | None = None
    credits: _Credits | None = None


class _LimitParams(msgspec.Struct, frozen=True, rename="camel"):
    rate_limits: _Limits = _Limits()


class _LimitLine(msgspec.Struct):
    params: _LimitParams = _LimitParams()


_TOKEN = re.compile(r"[0-9A-Za-z_.-]+")
"""An id that may be part of a header's name."""


def make_limit_headers(line: bytes) -> dict[str, str]:
    """A notification of rate limits as the headers in which the model's server sends them."""
    try:
        limits = msgspec.json.decode(line, type=_LimitLine).params.rate_limits
    except UNREADABLE:
        return {}
    headers: dict[str, str] = {}
    id = limits.limit_id if limits.limit_id and _TOKEN.fullmatch(limits.limit_id) else "codex"
    for part in ("primary", "secondary", "credits"):
        found: msgspec.Struct | None = getattr(limits, part)
        for field, value in msgspec.structs.asdict(found).items() if found is not None else ():
            if value is not None:
                is_whole = isinstance(value, float) and value.is_integer()
                text = str(int(value) if is_whole else value)
                name = f"x-{id}-{part}-{field.replace('_', '-')}"
                headers[name] = text.lower() if isinstance(value, bool) else text
    return headers
