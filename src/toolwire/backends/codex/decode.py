"""Decodes app-server's messages into turn events, and answers its requests.

The model's own items come as raw events: they determine the order of calls, their exact arguments, and the end of a
response. A call is delivered when app-server has requested it too, because it answers some by itself (a tool that does
not exist, arguments that are not JSON). When a response is over and calls wait, the turn is over for the client:
app-server sends nothing more before they are answered.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from toolwire.backends.codex import protocol
from toolwire.backends.codex.calls import TurnCalls
from toolwire.backends.codex.failures import find_incomplete_reason, make_turn_failure
from toolwire.backends.codex.protocol import (
    CALL,
    TURN_COMPLETED,
    AppServerLine,
    Params,
    ThreadItem,
    TurnError,
    decline,
)
from toolwire.backends.codex.resume import Continuation
from toolwire.backends.decoder import UNREADABLE, TurnDecoder
from toolwire.backends.phases import PhasedMessages
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import (
    Event,
    MessageEnded,
    Note,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningKind,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.jsonrpc import Id, read_peer_request
from toolwire.core.sse import Frame

_decode = msgspec.json.Decoder(AppServerLine).decode

NOTHING = Usage()
UNREAD = Frame(b"", b"")
"""Stands for a line that was not forwarded."""

MAX_PROBES = 4
"""Probes of a silent thread before its calls count as complete."""

# Items whose content comes in raw events or requests, or from the client.
_SHOWN_ELSEWHERE = frozenset(("userMessage", "dynamicToolCall", "agentMessage", "reasoning", "functionCallOutput"))
_HISTORY = frozenset(("message", "reasoning", "function_call", "function_call_output"))


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn.

    `send` takes lines for app-server; `answer` takes its answers to our requests. `resume` continues a turn.
    """

    def __init__(
        self,
        seed: str,
        names: Sequence[str],
        send: Callable[[bytes], None],
        answer: Callable[[AppServerLine], Sequence[Event]],
        resume: Continuation | None = None,
    ) -> None:
        super().__init__(seed, names)
        self._send = send
        self._answer = answer
        self._answered = resume.answered if resume is not None else frozenset[str]()  # calls whose results we sent
        self._reported = resume.reported if resume is not None else NOTHING  # tokens that were reported to the client
        self._used = NOTHING  # in the responses of this turn
        self._total = self._reported  # in the thread, as app-server counts
        self.calls = TurnCalls(self._table, names)
        self._running = resume is not None
        self._texts: dict[str, list[str]] = {}  # the delivered pieces of each message
        self._message: str | None = None  # the message of the latest text
        self._phases = PhasedMessages()
        self._probes = 0  # since the last line
        self._reasoning = ""  # the open reasoning item
        self._last_error: TurnError | None = None  # with which app-server gave up
        self.turn = resume.turn if resume is not None else ""

    def feed(self, frame: Frame) -> Sequence[Event]:
        try:
            line = _decode(frame.data)
        except UNREADABLE:
            bare = read_peer_request(frame.data)
            if bare is not None:  # even a malformed request needs an answer
                self._send(decline(bare.method, bare.id, "Error: the call cannot be read."))
            return self._skip_unreadable(frame)
        if self.ended:
            if line.method and line.id is not None:
                self._send(decline(line.method, line.id))
            return ()
        if not line.method:
            return self._answer(line)
        self._probes = 0
        params = line.params or Params()
        if line.id is not None:
            return self._read_request(line.id, line.method, params)
        if params.delta:
            return self._read_delta(line.method, params)
        handler = self._HANDLERS.get(line.method)
        return handler(self, params) if handler is not None else self._read_notice(line.method, params)

    def _skip_unreadable(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        self._skip_frame(frame)
        return self._take_opening() if self._started else ()

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self.fail(Failure(502, "bad_reply", "Codex answered with something that is not a message."))

    def end(self) -> Sequence[Event]:
        return () if self.ended else self._fail_cut()

    @property
    def text(self) -> str:
        return "".join(piece for pieces in self._texts.values() for piece in pieces)

    @property
    def reported(self) -> Usage:
        """The tokens reported to clients, including those of this turn."""
        return self._reported.plus(self._spent)

    def read_probe(self, status: str) -> Sequence[Event]:
        """The events that follow when a probe finds a silent thread in this status."""
        if self.ended or not self._running:
            return ()
        if status not in ("idle", "notLoaded", "systemError"):
            self._probes += 1
            return self._end_with_calls(self.calls.give_up(long=self._probes >= MAX_PROBES))
        if status == "systemError" or not (self._texts or self.calls.has_delivered):
            return self.fail(Failure(502, "stream_cut", "Codex never said how the turn ended.", retryable=True))
        return [Note("end_missing"), *self._end("stop")]

    def _read_request(self, id: Id, method: str, params: Params) -> Sequence[Event]:
        if method != CALL:
            self._send(decline(method, id))
            return self._after_start([Note("request_declined", method)])
        if not params.call_id or not params.tool:
            self._send(decline(CALL, id, "Error: the call has no id or no name."))
            return self._after_start([Note("call_refused", params.call_id or "")])
        return self._end_with_calls(self.calls.add_request(id, params))

    def _end_with_calls(self, events: Sequence[Event]) -> Sequence[Event]:
        events = self._after_start(events)
        return [*events, *self._end("calls")] if self.calls.has_all_calls else events

    # Notifications

    def _read_delta(self, method: str, params: Params) -> Sequence[Event]:
        delta, item = params.delta or "", params.item_id
        match method:
            case "item/agentMessage/delta":
                return self._send_text(item or "", delta)
            case "item/reasoning/summaryTextDelta":
                event = ReasoningDelta(delta, "summary", params.summary_index or 0)
            case "item/reasoning/textDelta":
                event = ReasoningDelta(delta, "content", params.content_index or 0)
            case _:
                return ()
        earlier, self._reasoning = self._reasoning, item or "?"
        return self._after_start((event,) if earlier in ("", self._reasoning) else (ReasoningEnded(), event))

    def _read_notice(self, method: str, params: Params) -> Sequence[Event]:
        match method:
            case "turn/started":
                self._running = True
                self.turn = params.turn.id if params.turn is not None else ""
                return self._after_start(())
            case "item/started" if params.item is not None:
                self._phases.begin(params.item.id or "", params.item.phase)
            case "rawResponse/completed":
                self._used = self._used.plus(params.usage.usage if params.usage is not None else NOTHING)
                return self._end_with_calls(self.calls.complete())
            case "thread/tokenUsage/updated" if params.token_usage is not None:
                self._total = params.token_usage.total.usage
                self.context_window = ContextWindow(params.token_usage.model_context_window or 0)
            case "warning":
                self.opening.append(Note("backend_warning", params.message or ""))
                return self._take_opening() if self._started else ()
            case "model/rerouted":
                return self._after_start([Note("model_changed", params.to_model or "")])
            case protocol.UNASSIGNED if params.message:  # the request has been declined
                return self._after_start([Note("request_declined", params.message)])
            case protocol.UNASSIGNED:
                return self._skip_unreadable(UNREAD)
            case _:
                pass
        return ()

    def _after_start(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events, preceded by the start of the turn if it has not been delivered."""
        if self._started:
            return events
        self._started = True
        return [TurnStarted(self.turn), *self._take_opening(), *events]

    def _send_text(self, item: str, text: str) -> Sequence[Event]:
        self._texts.setdefault(item, []).append(text)
        return self._show_text(item, self._phases.feed(item, text))

    def _show_text(self, item: str, text: str) -> Sequence[Event]:
        if not text:
            return self._after_start(())
        earlier, self._message = self._message, item
        delta = TextDelta(text)
        return self._after_start((delta,) if earlier in (None, item) else (MessageEnded(""), delta))

    def _complete_text(self, item: str, text: str) -> Sequence[Event]:
        """Deliver the rest of a whole message. If the delivered text differs, it stands."""
        known = 0
        for piece in self._texts.get(item, ()):
            if not text.startswith(piece, known):
                return self._end_text(item)
            known += len(piece)
        rest = self._send_text(item, text[known:]) if known < len(text) else ()
        return [*rest, *self._end_text(item)]

    def _end_text(self, item: str) -> Sequence[Event]:
        """Deliver the held-back text of a message, unless it repeats another."""
        held = self._phases.end(item)
        if isinstance(held, Note):
            return self._after_start([held])
        return self._show_text(item, held) if held else ()

    def _complete_item(self, params: Params) -> Sequence[Event]:
        item = params.item
        if item is None:
            return ()
        if item.type == "agentMessage":
            self._phases.begin(item.id or "", item.phase)
            return self._complete_text(item.id or "", item.text or "")
        return () if item.type in _SHOWN_ELSEWHERE else self._after_start([Note("item_dropped", item.type)])

    def _read_raw_item(self, params: Params) -> Sequence[Event]:
        """An item of the model, or of the history, which comes before the turn starts."""
        item = params.item
        if item is None or not self._running:
            return ()
        self.calls.is_raw = True
        match item.type:
            case "message" if item.role == "assistant":
                self._phases.begin(item.id or "", item.phase)
                return self._complete_text(item.id or "", "".join(_list_texts(item.content)))
            case "reasoning":
                return self._end_reasoning(item)
            case "function_call":
                return self._end_with_calls(self.calls.add_item(item))
            case "function_call_output" if (call := item.call_id or "") not in self._answered:
                events = self.calls.add_result(call)  # None: it was delivered, and app-server has another result
                dropped = [Note("output_dropped", call)]
                return self._after_start(dropped) if events is None else self._end_with_calls(events)
            case _:
                return self._after_start([Note("item_dropped", item.type)]) if item.type not in _HISTORY else ()

    def _end_reasoning(self, item: ThreadItem) -> Sequence[Event]:
        """A whole reasoning item, delivered here if no delta of it came."""
        is_sent, self._reasoning = bool(self._reasoning), ""
        signature = item.encrypted_content or ""
        out: list[Event] = []
        if not is_sent:
            kind: ReasoningKind = "summary" if item.summary else "content"
            texts = _list_texts(item.summary or item.content)
            out += [ReasoningDelta(text, kind, number) for number, text in enumerate(texts) if text]
        if is_sent or out or signature:
            out.append(ReasoningEnded(item.id or "", signature, "responses" if signature else ""))
        return self._after_start(out) if out else ()

    def _read_error(self, params: Params) -> Sequence[Event]:
        """App-server retries, or has given up, which ends the turn later."""
        if not params.will_retry:
            self._last_error = params.error
            return ()
        if self._texts or self.calls.has_delivered:
            return self.fail(make_turn_failure(params.error))  # what was delivered would come again
        return self._after_start([Note("retried", make_turn_failure(params.error).code)])

    def _complete_turn(self, params: Params) -> Sequence[Event]:
        turn = params.turn
        if turn is None or (self.turn and turn.id != self.turn):
            return ()
        if turn.status == "completed":
            return self._end("stop")
        error = turn.error or self._last_error
        reason = find_incomplete_reason(error)
        if reason is not None:
            return self._end(reason)
        if turn.status == "interrupted":
            return self.fail(Failure(502, "turn_interrupted", "The turn was interrupted.", retryable=True))
        return self.fail(make_turn_failure(error))

    def _end(self, reason: Reason) -> Sequence[Event]:
        spent = self._spent
        self.ended = True
        out: list[Event] = [*self._end_text(self._phases.held or "")]
        out += () if reason == "calls" else self._table.finish(cut=reason != "stop")
        if spent.total:
            out.append(spent)
        return self._after_start([*out, TurnEnded("stop" if reason == "calls" else reason)])

    @property
    def _spent(self) -> Usage:
        """The tokens of this turn. A response that was cut off counts in the thread's total only."""
        counted = self._total.minus(self._reported)
        return counted if counted.total > self._used.total else self._used

    _HANDLERS: ClassVar[dict[str, Callable[[Any, Params], Sequence[Event]]]] = {
        TURN_COMPLETED: _complete_turn,
        "item/completed": _complete_item,
        "rawResponseItem/completed": _read_raw_item,
        "error": _read_error,
    }


def _list_texts(parts: Sequence[Any] | None) -> list[str]:
    """The texts of parts, which in raw items are objects."""
    found: list[str] = []
    for part in parts or ():
        text: Any = part.get("text") if isinstance(part, dict) else part  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        found.append(text if isinstance(text, str) else "")
    return found
