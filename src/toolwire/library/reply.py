"""Reads one reply of a server as the events of one turn: frames, the backend's decoder, policies, the order of events.

The gateway reads replies the same way. A fault of the reply becomes the failure of its turn, never an exception; only
bytes of another dialect raise one, because they are a mistake of the caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from toolwire.assembly import Assembly, ReaderFacts, ToolRules, assemble_policies
from toolwire.backends.lowered import LoweredConversation
from toolwire.config.decode import convert_table
from toolwire.core.errors import MAX_CALLS, BackendFault, TooManyCalls, WrongDialect
from toolwire.core.events import CallStarted, Dialect, Event, Note, Origin, TurnFailed
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, Tool
from toolwire.core.sse import Frame
from toolwire.core.text import check_names
from toolwire.library.options import DecodeOptions, make_rules
from toolwire.protocols import PROTOCOLS, HttpBackend, backend_kinds, detect_dialect, dialects, http_backends
from toolwire.reader import EVENT_STREAM, TurnReader
from toolwire.turns.validate import validate

MAX_EXAMINED_FRAMES = 20
"""Frames that are examined to detect the dialect of a stream."""


def check_dialect(dialect: str) -> Dialect:
    """The name of a dialect, unchanged. Raises `ValueError` if there is no such dialect."""
    if dialect not in [*dialects()]:  # which need not be hashable
        raise ValueError(f"{dialect!r} is no dialect; there are {', '.join(dialects())}")
    return dialect


def check_chunk(data: Any) -> bytes:
    """A chunk as bytes. Raises `TypeError` for anything else, such as text or a number."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a chunk must be bytes, not {type(data).__name__}")
    return bytes(cast("bytes", data))


def check_chunks(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """An iterable of chunks, unchanged. Raises `TypeError` for a single chunk, whose bytes would be iterated over."""
    if isinstance(cast("object", chunks), bytes | bytearray | memoryview | str):
        raise TypeError(f"chunks must be an iterable of bytes, such as [data], not {type(chunks).__name__}")
    return chunks


def find_server(kind: Dialect) -> HttpBackend:
    """The HTTP backend that speaks this dialect. Raises `ValueError` if no backend speaks it."""
    if kind not in http_backends():
        raise ValueError(f"{kind!r} is no dialect of servers; there are {', '.join(http_backends())}")
    return http_backends()[kind]


def make_profile(kind: Dialect, given: Any) -> Any:
    """The profile of a server. Raises `SettingsError`, which names the field."""
    if not isinstance(given, Mapping):
        raise ValueError(f"profile: a mapping is needed, not {type(given).__name__}")  # noqa: TRY004 - as for any value
    profile = backend_kinds()[kind].profile
    assert profile is not None
    return convert_table(dict(cast("Mapping[str, Any]", given)), profile, "", "profile")


class ReplyPlan(msgspec.Struct, frozen=True):
    """What is known about a reply before it arrives."""

    kind: Dialect
    """The dialect of the reply."""
    request: Request
    """The request that it answers, as far as it is known."""
    profile: Any
    """The profile of the server; its type depends on the backend."""
    rules: ToolRules
    text_calls: bool | None = None
    model: str = ""
    """The name of the model on the server."""
    notes: tuple[Note, ...] = ()
    """What was lost when the request was converted."""

    def make_conversation(self, seed: str) -> LoweredConversation:
        """A conversation that reads one reply."""
        request = msgspec.structs.replace(self.request, model=self.model)
        return find_server(self.kind).converse(request, seed, self.profile)


def plan_reply(dialect: Dialect, options: DecodeOptions) -> ReplyPlan:
    """The plan of a reply: that of the request that it answers, or else one made from the options."""
    kind = check_dialect(dialect)
    answered = options.get("answers")
    rules, text_calls = make_rules(options), options.get("text_calls")
    if answered is None:
        tools = tuple(Tool(name) for name in check_names("tools", options.get("tools", ())))
        request = Request("", (), stream=True, tools=tools, parallel_calls=options.get("parallel"))
        return ReplyPlan(kind, request, make_profile(kind, options.get("profile", {})), rules, text_calls)
    plan = getattr(answered, "plan", None)
    if not isinstance(plan, ReplyPlan):
        raise ValueError(f"answers: the result of `convert_request` is needed, not {type(answered).__name__}")  # noqa: TRY004 - as for any value
    if plan.kind != kind:
        raise ValueError(f"answers: the request was converted for {plan.kind!r}, but this reply is {kind!r}")
    for name in ("tools", "profile"):
        if name in options:
            raise ValueError(f"{name}: it is set by the request that is answered")
    given = {name: getattr(rules, name) for name in rules.__struct_fields__ if name in options}
    return msgspec.structs.replace(
        plan,
        rules=msgspec.structs.replace(plan.rules, **given),
        text_calls=plan.text_calls if text_calls is None else text_calls,
    )


class TurnStream:
    """Reads one reply and applies the policies. `target` is the dialect that the events are written in, if any."""

    def __init__(self, plan: ReplyPlan, seed: str, target: Origin = "") -> None:
        # Original frames are kept only for a writer of the same dialect, so the request must name the target.
        plan = msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, dialect=target))
        self._kind = plan.kind
        self._conversation = plan.make_conversation(seed)
        self._conversation.set_notes(plan.notes)
        reader = ReaderFacts(target == plan.kind, plan.text_calls, keeps_notes=not target)
        self.assembly: Assembly = assemble_policies(
            plan.request, plan.rules, seed, self._conversation.stand_in, (), validate, reader
        )
        # Batched events would reveal the chunk boundaries; a writer splits them again.
        self._reader = TurnReader(
            self._conversation, EVENT_STREAM, batches=bool(target), on_frames=self._examine_frames
        )
        self._order = TurnOrder()
        self._unexamined = MAX_EXAMINED_FRAMES
        self._opening: list[Event] = [*plan.request.notes] if not target else []

    @property
    def ended(self) -> bool:
        """Whether the turn is over. Later bytes are ignored."""
        return self.assembly.policies.closed

    def feed(self, data: bytes) -> Sequence[Event]:
        """The events of the next bytes of a stream."""
        return self._read(self._reader.feed, data)

    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""
        return self._read(self._reader.end)

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        """The events of a reply without streaming."""
        self._examine(body)
        return self._read(self._conversation.feed_plain, body)

    def _read(self, read: Callable[..., Sequence[Event]], *data: bytes) -> Sequence[Event]:
        if self.assembly.policies.closed:
            return ()
        try:
            events = read(*data)
        except BackendFault as fault:
            events = (TurnFailed(fault.failure),)
        left = MAX_CALLS - len(self.assembly.stats.call_ids)
        if len(events) > left:  # fail at the first call beyond the limit, however the bytes were cut
            calls = [index for index, event in enumerate(events) if isinstance(event, CallStarted)]
            events = events if len(calls) <= left else [*events[: calls[left]], TurnFailed(TooManyCalls().failure)]
        if self._opening and events:
            events = [*self._opening, *events]
            self._opening = []
        out = self.assembly.policies.feed_all(events)
        self._order.check(out)
        return out

    def _examine_frames(self, frames: Sequence[Frame]) -> None:
        for frame in frames[: self._unexamined]:
            self._examine(frame.data)
        if not self._unexamined:
            self._reader.on_frames = None

    def _examine(self, data: bytes) -> None:
        """Raise `WrongDialect` if a frame or a body is of another dialect; stop once the dialect is certain."""
        self._unexamined = max(0, self._unexamined - 1)
        try:
            fields = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        found = detect_dialect(fields) if isinstance(fields, dict) else None  # pyright: ignore[reportUnknownArgumentType]
        if found is None:
            return
        self._unexamined = 0
        if found != self._kind:
            expected, other = PROTOCOLS[self._kind].title, PROTOCOLS[found].title
            message = f"This is {other} ({found!r}), not {expected} ({self._kind!r})."
            raise WrongDialect(self._kind, found, message)
