"""`codex app-server` as a backend: a worker process with its own login, of which only the client's tools are seen.

thread/start, thread/inject_items, turn/start  →  notifications, item/tool/call  →  turn/completed

A turn that waits on tools stays open at the worker while the client runs them, and goes on with their results.
"""

from collections.abc import Mapping, Sequence

import msgspec

from toolwire.backends.codex.config import arguments, catalogue, configuration, key_variables, limit_headers, version_of
from toolwire.backends.codex.declined import declined
from toolwire.backends.codex.decode import Decoder
from toolwire.backends.codex.encode import PROVIDER, opening
from toolwire.backends.codex.failures import request_failure
from toolwire.backends.codex.profile import LIMITS, OLDEST, Profile
from toolwire.backends.codex.resume import Continuation, Held, continuation, digest, without_thoughts
from toolwire.backends.codex.wire import Line, Result
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Ask, Dialogue, Waiting
from toolwire.core.events import Event
from toolwire.core.request import Request, ResultEntry
from toolwire.core.sse import Frame

__all__ = [
    "OLDEST",
    "PROVIDER",
    "Conversation",
    "Profile",
    "arguments",
    "awaited",
    "catalogue",
    "configuration",
    "declined",
    "key_variables",
    "limit_headers",
    "profile_from",
    "version_of",
]

_USUAL = Profile()


class Conversation(LoweredConversation):
    """One request to a worker and its answer: in a new thread, or in one that is `waiting` for its results."""

    def __init__(
        self,
        request: Request,
        seed: str,
        profile: Profile = _USUAL,
        owner: str = "",
        waiting: Sequence[Waiting] = (),
        *,
        provider: str = PROVIDER,
    ) -> None:
        super().__init__(request, LIMITS)
        self._opened = opening(self._request, profile, provider)
        found, goes_on = self._continued(waiting)
        self._goes_on = goes_on
        self._dialogue = Dialogue(request.model, owner, found)
        self._thread = found.thread if found is not None else ""
        self._stand_ins: dict[str, str] = {}
        shown = [tool["name"] for tool in self._opened.start["dynamicTools"]]
        send = self._dialogue.outbox.append
        self._decoder = self._turn = Decoder(seed, shown, send, self._answered, goes_on)

    def _continued(self, waiting: Sequence[Waiting]) -> tuple[Waiting | None, Continuation | None]:
        """The first of these threads that the request brings the results for, and what to tell it."""
        for each in waiting:
            goes_on = continuation(each.facts, self._request.entries, self._opened.setting)
            if goes_on is not None:
                return each, goes_on
        return None, None

    def start(self) -> Dialogue:
        self._turn.begin(self._opened.notes)
        outbox, goes_on = self._dialogue.outbox, self._goes_on
        if goes_on is None:
            outbox.append(Ask("thread", "thread/start", self._opened.start))
        elif goes_on.words:
            steering = {"threadId": self._thread, "expectedTurnId": goes_on.turn, "input": goes_on.words}
            outbox.append(Ask("steer", "turn/steer", steering))
        else:
            outbox += goes_on.answers
        return self._dialogue

    def feed(self, frame: Frame) -> Sequence[Event]:
        events = super().feed(frame)
        decoder = self._turn
        calls = decoder.waiting
        self._dialogue.is_over = decoder.ended
        if decoder.ended and calls.are_all_here and not calls.are_mixed_up and self._dialogue.waiting is None:
            self._dialogue.waiting = self._waiting()
        return events

    def stand_in(self, call: str, delivered: str) -> None:
        self._stand_ins[delivered] = call
        if self._dialogue.waiting is not None:
            self._dialogue.waiting = self._waiting()

    def _answered(self, line: Line) -> Sequence[Event]:
        """An answer of app-server's to a request of ours."""
        name = str(line.id).rpartition(".")[2]
        if line.error is not None:
            return () if name == "probe" else self._turn.refused(request_failure(line.error))
        return self._go_on(name, line.result or Result())

    def _go_on(self, name: str, result: Result) -> Sequence[Event]:
        outbox = self._dialogue.outbox
        if name == "thread" and result.thread is not None:
            self._thread = result.thread.id
            if self._opened.items:
                injected = {"threadId": self._thread, "items": self._opened.items}
                outbox.append(Ask("inject", "thread/inject_items", injected))
            outbox.append(Ask("turn", "turn/start", {"threadId": self._thread, **self._opened.turn}))
        elif name == "steer" and self._goes_on is not None:
            outbox += self._goes_on.answers
        elif name == "probe" and result.thread is not None and result.thread.status is not None:
            return self._turn.looked_at(result.thread.status.type)
        return ()

    def _waiting(self) -> Waiting:
        decoder = self._turn
        entries = without_thoughts(self._request.entries)
        held = Held(
            decoder.turn,
            self._opened.setting,
            len(entries),
            digest(entries),
            decoder.said,
            decoder.waiting.calls,
            decoder.waiting.asked,
            decoder.reported,
            self._stand_ins,
        )
        known = {call: delivered for delivered, call in self._stand_ins.items()}
        return Waiting(self._thread, tuple(known.get(call, call) for call in held.asked), held)


def awaited(request: Request) -> tuple[str, ...]:
    """The calls of which a request brings results, the last first."""
    return tuple(entry.call_id for entry in reversed(request.entries) if isinstance(entry, ResultEntry))


def profile_from(settings: Mapping[str, object]) -> Profile:
    return msgspec.convert(dict(settings), Profile)
