"""`codex app-server` as a backend: a worker process with its own login, whose only tools are the client's.

thread/start, thread/inject_items, turn/start  →  notifications, item/tool/call  →  turn/completed

A turn that calls tools stays open at the worker while the client runs them, and continues with their results.
"""

from collections.abc import Mapping, Sequence

import msgspec

from toolwire.backends.codex import protocol
from toolwire.backends.codex.config import LIMITS, PROVIDER, Profile
from toolwire.backends.codex.decode import Decoder
from toolwire.backends.codex.encode import encode_thread
from toolwire.backends.codex.failures import make_request_failure
from toolwire.backends.codex.protocol import AppServerLine, RequestResult
from toolwire.backends.codex.resume import ThreadState, digest, drop_reasoning, find_continuation, read_turn, write_turn
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Dialogue, PendingTurn
from toolwire.core.events import Event
from toolwire.core.request import CallEntry, Request, ResultEntry
from toolwire.core.sse import Frame
from toolwire.memory.call_keys import CallKey, CallKeys

__all__ = ["PROVIDER", "Conversation", "Profile", "find_awaited_calls", "profile_from", "read_turn", "write_turn"]

_USUAL = Profile()


class Conversation(LoweredConversation):
    """One request to a worker and its answer: in a new thread, or in one of those that are `waiting` for results."""

    def __init__(
        self,
        request: Request,
        seed: str,
        profile: Profile = _USUAL,
        owner: str = "",
        waiting: Sequence[PendingTurn] = (),
        *,
        provider: str = PROVIDER,
    ) -> None:
        super().__init__(request, LIMITS)
        self._entries = request.entries
        self._opening = encode_thread(self.lowered, profile, provider)
        entries, setting = self.lowered.entries, self._opening.setting
        fitting = ((each, resume) for each in waiting if (resume := find_continuation(each.state, entries, setting)))
        found, self._resume = next(fitting, (None, None))
        self._dialogue = Dialogue(request.model, owner, found, self._make_pending_turn)
        self._thread = found.thread if found is not None else ""
        self._stand_ins: dict[str, str] = {}
        shown = [tool["name"] for tool in self._opening.start["dynamicTools"]]
        send = self._dialogue.outbox.append
        self.decoder = self._turn = Decoder(seed, shown, send, self._read_answer, self._resume)

    def start(self) -> Dialogue:
        self._turn.opening += self._opening.notes
        outbox, resume = self._dialogue.outbox, self._resume
        if resume is None:
            outbox.append(protocol.start_thread(self._opening.start))
        elif resume.input:
            outbox.append(protocol.steer(self._thread, resume.turn, resume.input))
        else:
            outbox += resume.answers
        return self._dialogue

    def feed(self, frame: Frame) -> Sequence[Event]:
        events = super().feed(frame)
        self._dialogue.is_over = self._turn.ended
        return events

    def stand_in(self, call: str, delivered: str) -> None:
        self._stand_ins[delivered] = call

    def _read_answer(self, line: AppServerLine) -> Sequence[Event]:
        """The events of app-server's answer to one of our requests."""
        name, result, outbox = protocol.name_of(line.id), line.result or RequestResult(), self._dialogue.outbox
        if line.error is not None:
            return () if name == protocol.PROBE else self._turn.fail(make_request_failure(line.error))
        if name == protocol.THREAD and result.thread is not None:
            self._thread = result.thread.id
            if self._opening.items:
                outbox.append(protocol.inject(self._thread, self._opening.items))
            outbox.append(protocol.start_turn(self._thread, self._opening.turn))
        elif name == protocol.STEER and self._resume is not None:
            outbox += self._resume.answers
        elif name == protocol.PROBE and result.thread is not None and result.thread.status is not None:
            return self._turn.read_probe(result.thread.status.type)
        return ()

    def _make_pending_turn(self) -> PendingTurn | None:
        decoder, calls = self._turn, self._turn.calls
        if not decoder.ended or not calls.has_all_calls or calls.share_an_id:
            return None
        entries = drop_reasoning(self.lowered.entries)
        state = ThreadState(
            decoder.turn,
            self._opening.setting,
            len(entries),
            digest(entries),
            decoder.text,
            calls.calls,
            calls.requests,
            decoder.reported,
            self._stand_ins,
        )
        delivered = {call: delivered for delivered, call in self._stand_ins.items()}
        keys, name = CallKeys(self._dialogue.owner, self._entries), self.restore.restore_name
        found = [keys.key(delivered.get(call.id, call.id), name(call.namespace, call.name)) for call in state.calls]
        return PendingTurn(self._thread, tuple(found), state)


def find_awaited_calls(request: Request, owner: str) -> list[CallKey]:
    """The calls whose results a request brings, the last first."""
    keys, calls, found = CallKeys(owner), dict[str, CallKey](), list[CallKey]()
    for entry in request.entries:
        key = keys.see(entry)
        if isinstance(entry, CallEntry) and key is not None:
            calls[entry.id] = key
        elif isinstance(entry, ResultEntry) and entry.call_id in calls:
            found.append(calls[entry.call_id])
    return found[::-1]


def profile_from(settings: Mapping[str, object]) -> Profile:
    """The default profile with the operator's settings."""
    return msgspec.convert(dict(settings), Profile)
