"""One reply of a server, read as the events of one turn: frames, the backend's decoder, policies, the order of events.

It is the road that the gateway takes too, without its network: a fault of the reply is the failure of its turn, never
an exception. Only bytes of another dialect are refused, because whoever reads them has named the wrong one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from toolwire.assembly import Assembly, Reader, ToolRules, policies_for
from toolwire.backends.lowered import LoweredConversation
from toolwire.config.decode import convert_table
from toolwire.core.errors import MAX_CALLS, BackendFault, FedAfterEnd, TooManyCalls, WrongDialect
from toolwire.core.events import CallStarted, Dialect, Event, Note, Origin, TurnFailed
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, Tool
from toolwire.core.sse import Frame
from toolwire.core.text import check_names
from toolwire.library.options import DecodeOptions, rules_of
from toolwire.protocols import PROTOCOLS, HttpBackend, dialect_of, dialects, http_backends
from toolwire.reader import EVENT_STREAM, TurnReader
from toolwire.turns.validate import validate

LOOKED_AT = 20
"""Frames in which the dialect of a stream is looked for."""


def checked_dialect(dialect: str) -> Dialect:
    """The dialect of this name. Raises `ValueError` if there is none."""
    if dialect not in dialects():
        raise ValueError(f"{dialect!r} is no dialect; there are {', '.join(dialects())}")
    return dialect


def server_of(kind: Dialect) -> HttpBackend:
    """How a server of this dialect is asked. Raises `ValueError` if no backend speaks it."""
    if kind not in http_backends():
        raise ValueError(f"{kind!r} is no dialect of servers; there are {', '.join(http_backends())}")
    return http_backends()[kind]


def profile_of(kind: Dialect, given: Any) -> Any:
    """The profile of a server. Raises `SettingsError`, which names the field."""
    if not isinstance(given, Mapping):
        raise ValueError(f"profile: a mapping is needed, not {type(given).__name__}")  # noqa: TRY004 - as for any value
    side = PROTOCOLS[kind].backend
    assert side is not None
    assert side.profile is not None
    return convert_table(dict(cast("Mapping[str, Any]", given)), side.profile, "", "profile")


class ReplyPlan(msgspec.Struct, frozen=True):
    """What is known of a reply before it comes."""

    kind: Dialect
    """The dialect that it is written in."""
    request: Request
    """The request that it answers, as far as that is known."""
    profile: Any
    """The type is that of the backend."""
    rules: ToolRules
    text_calls: bool | None = None
    model: str = ""
    """The model's name at the server."""
    notes: tuple[Note, ...] = ()
    """What the request has lost on its way to the server."""

    def conversation(self, seed: str) -> LoweredConversation:
        """A conversation that can read one reply."""
        request = msgspec.structs.replace(self.request, model=self.model)
        return server_of(self.kind).converse(request, seed, self.profile)

    def shown_to(self, dialect: Origin) -> "ReplyPlan":
        """The same for a reader of this dialect; for one of events, which needs no original frames, that is none."""
        return msgspec.structs.replace(self, request=msgspec.structs.replace(self.request, dialect=dialect))


def plan_of(kind: Dialect, options: DecodeOptions) -> ReplyPlan:
    """The plan that these options state: that of the request which is answered, or one without a request."""
    answered = options.get("answers")
    rules, text_calls = rules_of(options), options.get("text_calls")
    if answered is None:
        tools = tuple(Tool(name) for name in check_names("tools", options.get("tools", ())))
        request = Request("", (), stream=True, tools=tools, parallel_calls=options.get("parallel"))
        return ReplyPlan(kind, request, profile_of(kind, options.get("profile", {})), rules, text_calls)
    plan = getattr(answered, "plan", None)
    if not isinstance(plan, ReplyPlan):
        raise ValueError(f"answers: what `convert_request` returned is needed, not {type(answered).__name__}")  # noqa: TRY004 - as for any value
    if plan.kind != kind:
        raise ValueError(f"answers: the request was converted for {plan.kind!r}, and this reply is {kind!r}")
    for name in ("tools", "profile"):
        if name in options:
            raise ValueError(f"{name}: the request that is answered has said it")
    given = {name: getattr(rules, name) for name in rules.__struct_fields__ if name in options}
    return msgspec.structs.replace(
        plan,
        rules=msgspec.structs.replace(plan.rules, **given),
        text_calls=plan.text_calls if text_calls is None else text_calls,
    )


class TurnStream:
    """One reply, read and passed through the policies. `for_dialect` is that of the writer behind it, if any."""

    def __init__(self, plan: ReplyPlan, seed: str, for_dialect: Origin = "") -> None:
        if plan.request.dialect != for_dialect:
            plan = plan.shown_to(for_dialect)
        self._kind = plan.kind
        self._conversation = plan.conversation(seed)
        self._conversation.begin(plan.notes)
        is_same = for_dialect == plan.kind
        reader = Reader(is_same, plan.text_calls, keeps_notes=not for_dialect)
        self.assembly: Assembly = policies_for(
            plan.request, plan.rules, seed, self._conversation.stand_in, (), validate, reader
        )
        # In events a batch of frames would show how much was read at once; a writer takes it apart again.
        batches = bool(for_dialect)
        self._reader = TurnReader(self._conversation, EVENT_STREAM, batches=batches, on_frames=self._recognise_frames)
        self._order = TurnOrder()
        self._unrecognised = LOOKED_AT
        self._opening: list[Event] = [*plan.request.notes] if not for_dialect else []

    @property
    def ended(self) -> bool:
        """Whether the turn is over. What comes after that is not part of it."""
        return self.assembly.policies.closed

    def feed(self, data: bytes) -> Sequence[Event]:
        """The events of the next bytes of a stream."""
        return self._read(self._reader.feed, data)

    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""
        return self._read(self._reader.end)

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        """The events of a reply that is not streamed."""
        self._recognise(body)
        return self._read(self._conversation.feed_plain, body)

    def _read(self, read: Callable[..., Sequence[Event]], *data: bytes) -> Sequence[Event]:
        if self.assembly.policies.closed:
            return ()
        try:
            events = self._bounded(read(*data))
        except BackendFault as fault:
            events = (TurnFailed(fault.failure),)
        if self._opening and events:
            events = [*self._opening, *events]
            self._opening = []
        out = self.assembly.policies.feed_all(events)
        self._order.see(out)
        return out

    def _bounded(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events up to a call that is one more than any model would make, wherever bytes are cut."""
        left = MAX_CALLS - len(self.assembly.stats.call_ids)
        if len(events) <= left:
            return events
        calls = [index for index, event in enumerate(events) if isinstance(event, CallStarted)]
        return events if len(calls) <= left else [*events[: calls[left]], TurnFailed(TooManyCalls().failure)]

    def _recognise_frames(self, frames: Sequence[Frame]) -> None:
        for frame in frames[: self._unrecognised]:
            self._recognise(frame.data)
        if not self._unrecognised:
            self._reader.on_frames = None

    def _recognise(self, data: bytes) -> None:
        """Look whether this is the dialect that it is said to be, until it is certain."""
        self._unrecognised = max(0, self._unrecognised - 1)
        try:
            fields = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        found = dialect_of(fields) if isinstance(fields, dict) else None  # pyright: ignore[reportUnknownArgumentType]
        if found is None:
            return
        self._unrecognised = 0
        if found != self._kind:
            expected, other = PROTOCOLS[self._kind].title, PROTOCOLS[found].title
            message = f"This is {other} ({found!r}), not {expected} ({self._kind!r})."
            raise WrongDialect(self._kind, found, message)


def checked_chunk(data: Any) -> bytes:
    """A chunk as bytes. Raises `TypeError` for anything else, such as a text or a number."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a chunk must be bytes, not {type(data).__name__}")
    return bytes(cast("bytes", data))


def checked_chunks(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """An iterable of chunks. Raises `TypeError` for one chunk alone, of which each byte would be a chunk."""
    if isinstance(cast("object", chunks), bytes | bytearray | memoryview | str):
        raise TypeError(f"chunks must be an iterable of bytes, such as [data], not {type(chunks).__name__}")
    return chunks


class Once:
    """What `feed` and `end` of a push object share: bytes are bytes, and nothing comes after the end."""

    _is_over = False

    def _check_open(self) -> None:
        if self._is_over:
            raise FedAfterEnd(type(self).__name__)

    def _take(self, data: bytes) -> bytes:
        self._check_open()
        return checked_chunk(data)

    def _finish(self) -> None:
        self._check_open()
        self._is_over = True
