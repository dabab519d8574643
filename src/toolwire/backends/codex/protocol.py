"""The requests that we send to app-server, and whom its lines are for.

    initialize → initialized                                     a process
    thread/start → thread/inject_items → turn/start              a thread, its history, its one turn
    turn/steer, thread/read, turn/interrupt, thread/unsubscribe  while the turn runs, and when its client has left

All threads of a process share one pipe. Whoever reads from it asks here which thread a line is about; what the line
says about the turn is read by the decoder.
"""

import re
from typing import Any

import msgspec

from toolwire.backends.codex.wire import UNASSIGNED
from toolwire.backends.decoder import UNREADABLE
from toolwire.core import jsonrpc
from toolwire.core.backend import Ask
from toolwire.core.jsonrpc import Id

CALL = "item/tool/call"
TURN_COMPLETED = "turn/completed"

# The names of requests whose answers matter.
THREAD, TURN, STEER, INTERRUPT, PROBE = "thread", "turn", "steer", "interrupt", "probe"

_LIMITS = "account/rateLimits/updated"
_UNWANTED = ("thread/started", "thread/settings/updated", "thread/status/changed", "remoteControl/status/changed")
"""Notifications that workers need not send."""

OLDEST = (0, 166, 0)
"""The first version that is known to work: earlier ones run a turn's calls one after the other."""

INITIALIZED = jsonrpc.notification("initialized")
"""The line that ends the greeting."""


# Our requests. An answer has the id of its request, which ends in the request's name.


def initialize(version: str) -> Ask:
    client = {"name": "toolwire", "title": "Toolwire", "version": version}
    capabilities = {"experimentalApi": True, "optOutNotificationMethods": _UNWANTED}
    return Ask("hello", "initialize", {"clientInfo": client, "capabilities": capabilities})


def start_thread(params: dict[str, Any]) -> Ask:
    return Ask(THREAD, "thread/start", params)


def inject(thread: str, items: list[Any]) -> Ask:
    return Ask("inject", "thread/inject_items", {"threadId": thread, "items": items})


def start_turn(thread: str, params: dict[str, Any]) -> Ask:
    return Ask(TURN, "turn/start", {"threadId": thread, **params})


def steer(thread: str, turn: str, input: list[Any]) -> Ask:
    """More input of the user for a turn that runs."""
    return Ask(STEER, "turn/steer", {"threadId": thread, "expectedTurnId": turn, "input": input})


def name_of(id: Id | None) -> str:
    """The name of the request that an answer with this id belongs to."""
    return str(id).rpartition(".")[2]


# Requests of app-server that nobody here serves: each is declined in its own way, so that the turn continues at once.

_ANSWERS: dict[str, Any] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
}


def declined(method: str, id: Id, why: str = "This conversation is over.") -> bytes:
    """The answer to a request of app-server's. A call is answered with a text that its model can read."""
    if method == CALL:
        return jsonrpc.answer(id, failed_call(why))
    if method in _ANSWERS:
        return jsonrpc.answer(id, _ANSWERS[method])
    return jsonrpc.refusal(id, jsonrpc.NO_SUCH_METHOD, f"Toolwire does not serve {method}.")


def failed_call(why: str) -> Any:
    return {"contentItems": [{"type": "inputText", "text": why}], "success": False}


# What a line is about


class _Named(msgspec.Struct):
    id: str = ""


class _Params(msgspec.Struct, rename="camel"):
    thread_id: str | None = None
    turn: _Named | None = None


class _Result(msgspec.Struct, rename="camel"):
    thread: _Named | None = None
    user_agent: str = ""


class Envelope(msgspec.Struct):
    """As much of a line as it takes to know which thread or request it is about."""

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
        """It says how much of its rate limits the account has used; `limit_headers` reads it."""
        return self.method == _LIMITS

    @property
    def thread(self) -> str:
        """The thread that a request or a notification is about, if it is about one."""
        return (self.params.thread_id or "") if self.params is not None else ""

    @property
    def refusal(self) -> bytes:
        """The line that declines this request of app-server's; nothing if it is none."""
        return declined(self.method, self.id) if self.method and self.id is not None else b""

    @property
    def unassigned(self) -> bytes:
        """The line that every thread gets because this one may have been about it; nothing if that is not needed."""
        return _unassigned(self.method) if self.method and self.id is not None and not self.thread else b""


class _Unreadable(Envelope):
    """A line that is not as it should be. Even such a request gets an answer."""

    @property
    def unassigned(self) -> bytes:
        return _unassigned("")


def _unassigned(method: str) -> bytes:
    return jsonrpc.notification(UNASSIGNED, message=method)


_decode = msgspec.json.Decoder(Envelope).decode


def read(line: bytes) -> Envelope:
    try:
        return _decode(line)
    except UNREADABLE:
        bare = jsonrpc.request_in(line)
        return _Unreadable(bare.id, bare.method) if bare is not None else _Unreadable()


_VERSION = re.compile(r"/(\d+)\.(\d+)\.(\d+)")


def version_of(agent: str) -> tuple[int, int, int] | None:
    """The version in what a worker calls itself: `toolwire/0.166.0 (…)`."""
    found = _VERSION.search(agent)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def why_unusable(answer: Envelope) -> str:
    """Why a worker that answers `initialize` so cannot be used; nothing if it can."""
    agent = answer.result.user_agent if answer.result is not None else ""
    version = version_of(agent)
    if version is None:
        return f"it calls itself {agent!r}, which names no version"
    if version < OLDEST:
        found, needed = (".".join(map(str, each)) for each in (version, OLDEST))
        return f"version {found} is too old, at least {needed} is needed"
    return ""


class ThreadTracker:
    """Follows one thread by what is sent to it and what comes from it, and makes the requests with which it is left."""

    def __init__(self) -> None:
        self.thread = ""
        self.is_running = False
        """A turn was started, and nothing says that it is over."""
        self._turn = ""
        self._is_interrupted = False

    def sent(self, ask: Ask) -> None:
        self.is_running = self.is_running or ask.name == TURN

    def feed(self, line: Envelope) -> None:
        result, params = line.result, line.params
        if result is not None and result.thread is not None:
            self.thread = self.thread or result.thread.id
        if line.error is not None and name_of(line.id) in (TURN, INTERRUPT):
            self.is_running = False  # it never began, or has ended
        if params is not None and params.turn is not None:
            self._turn = params.turn.id
            self.is_running = line.method != TURN_COMPLETED

    def interrupt(self) -> Ask | None:
        """Asks for the end of the turn, once; None while app-server has not said which turn it is."""
        if not self._turn or self._is_interrupted:
            return None
        self._is_interrupted = True
        return Ask(INTERRUPT, "turn/interrupt", {"threadId": self.thread, "turnId": self._turn})

    def probe(self) -> Ask:
        """Asks for the status of the thread."""
        return Ask(PROBE, "thread/read", {"threadId": self.thread})

    def unsubscribe(self) -> Ask:
        """Says that nobody reads its lines any more."""
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
    """The parts that give headers. Their fields are named as in the headers, but for hyphens."""

    limit_id: str | None = None
    primary: _Window | None = None
    secondary: _Window | None = None
    credits: _Credits | None = None


class _LimitParams(msgspec.Struct, frozen=True, rename="camel"):
    rate_limits: _Limits = _Limits()


class _LimitLine(msgspec.Struct):
    params: _LimitParams = _LimitParams()


_TOKEN = re.compile(r"[0-9A-Za-z_.-]+")
"""An id that can stand in the name of a header."""


def limit_headers(line: bytes) -> dict[str, str]:
    """A notification of rate limits as the headers that the model's server had sent them in."""
    try:
        limits = msgspec.json.decode(line, type=_LimitLine).params.rate_limits
    except msgspec.DecodeError:
        return {}
    headers: dict[str, str] = {}
    id = limits.limit_id if limits.limit_id and _TOKEN.fullmatch(limits.limit_id) else "codex"
    for part in ("primary", "secondary", "credits"):
        found: msgspec.Struct | None = getattr(limits, part)
        for field, value in msgspec.structs.asdict(found).items() if found is not None else ():
            if value is not None:
                headers[f"x-{id}-{part}-{field.replace('_', '-')}"] = _header(value)
    return headers


def _header(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
