"""Notes and figures: what a turn delivered, and what was changed on the way.

`TurnStats` is the one source of these figures; the telemetry comment, the response headers, the log line and the
metrics all read it.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec

from toolwire.core.events import CallStarted, Event, Note, TurnEnded, TurnFailed, Usage

StopMode: TypeAlias = Literal["burst", "first"]

CODES: dict[str, str] = {
    "annotations_dropped": "citations of the text have no place in the client's dialect",
    "arguments_differ": "the backend's final arguments differ from those it had streamed",
    "arguments_gap": "a frame was lost inside a call's arguments, and nothing that came later says what it held",
    "arguments_invalid": "the arguments of a call do not fit the tool's schema, and were passed on as they are",
    "arguments_repaired": "the arguments of a call were put right without changing what they say",
    "arguments_unclaimed": "argument text came for an item that the backend never announced, and was dropped",
    "arguments_unchecked": "the schema of a tool cannot be used to check arguments",
    "arguments_wrapped": "arguments in the history are no JSON object and travel inside one",
    "arguments_late": "argument text came after its call had ended and was dropped",
    "backend_warning": "the backend warned about something",
    "call_capped": "a call beyond the allowed number was withheld",
    "call_cut": "a call was withheld because the turn was stopped after its first call",
    "call_dropped": "a call in the history that was never finished was left out",
    "call_duplicate": "a call equal to an earlier one was withheld",
    "call_missing": "the tool choice demands a call, and the model made none",
    "call_not_allowed": "a call of a tool that the tool choice does not allow was withheld",
    "call_refused": "the backend refused a call of the model by itself: no such tool, or arguments that are no JSON",
    "call_incomplete": "a call ended before its arguments did",
    "end_missing": "the backend gave its finish reason and never ended its stream, or its worker was found idle",
    "failed_over": "a backend failed before its turn began, and the next one that serves the model was asked",
    "failure_after_calls": "the backend failed after complete calls, and the turn was finished instead",
    "field_dropped": "a request field has no counterpart in the backend's protocol",
    "frame_skipped": "a frame of the backend could not be read",
    "id_missing": "a shell call came without an id and was given one",
    "id_reused": "the backend gave one id to two calls; the second has a new one",
    "item_dropped": "an item of the backend has no place in the client's dialect",
    "letter_replaced": "the backend cut a character in half and never sent the other half",
    "message_added": "a message was put in because the backend insists on one",
    "message_dropped": "an empty message in the history was left out",
    "message_repeated": "the final answer repeats the commentary before it and was left out",
    "model_changed": "the backend had another model answer",
    "name_changed": "the backend gave a call another name after it had been announced; the first one counts",
    "name_cleaned": "control tokens were removed from a tool name",
    "name_inferred": "the backend sent no tool name; it was inferred",
    "name_suspect": "a tool name holds control tokens and is not a declared tool",
    "not_stored": "the response was to be stored and could not be",
    "output_dropped": "the backend sent a result that answers no call of this turn",
    "gateway_tools_left_out": "tools of the gateway were not added: part of the request would be lost beside them",
    "part_dropped": "a content part has no counterpart in the backend's protocol",
    "reason_missing": "the backend never said why the turn ended",
    "reason_unfounded": "the backend says that it calls a tool, and calls none",
    "reason_unknown": "the backend ended the turn for a reason that has no name here",
    "reasoning_dropped": "reasoning in the history that this backend could not read was left out",
    "repeated_calls": "the model made the same failing call of the gateway's own tools again and again and was stopped",
    "request_declined": "the backend asked for something that is not served here",
    "result_as_message": "results that answer no call were all there was, and the user says them",
    "result_dropped": "a result in the history answers no call of it and was left out",
    "result_moved": "a result in the history stood before its call or behind other messages and was moved to its call",
    "result_retyped": "a result in the history had the form of another kind of call and was given its own",
    "result_missing": "a call in the history had no result and got a placeholder",
    "retried": "the backend was asked again",
    "retry_withheld": "the backend failed and was not asked again, because too many requests had been of late",
    "max_turns_reached": "the model wanted more rounds of the gateway's own tools than are allowed",
    "schema_changed": "a tool's schema has something that the backend refuses, and was written without it",
    "signature_late": "the signature of a thought came after the thought had been delivered and was dropped",
    "tail_withheld": "text after a call was withheld",
    "text_block_kept": "a block that looks like a call could not be read and stayed text",
    "text_call_recovered": "a textual call without its closing tag was complete and was kept",
    "text_call_repaired": "a textual call was mended: control characters escaped, or a stray bracket removed",
    "text_call_twin": "a call came in text and in structure, and the later of the two was dropped",
    "tokens_estimated": "the backend does not count tokens; the number is an estimate",
    "tools_declared": "the history holds calls and the request declares no tools, so theirs were declared",
    "tool_dropped": "the backend has no tool of this type",
    "tool_replaced": "a tool was declared twice, and the later declaration counts",
    "tool_undeclared": "the model called a tool that the request does not declare",
    "turn_paused": "the backend paused a long turn, which ends here",
    "value_changed": "a request field was brought into the range that the backend takes",
    "use_tool_changed": "a value or a parameter's name cannot survive as <use_tool> text and was changed",
}
"""Every note code and its explanation for people."""

ADVICE: dict[str, str] = {
    "annotations_dropped": "Nothing; the text itself is whole.",
    "arguments_differ": (
        "Do not execute an incomplete call. Tell the backend's makers. If every delta holds all of the arguments "
        'so far, set `profile = { arguments = "snapshot" }`.'
    ),
    "arguments_gap": "Do not execute it; ask again.",
    "arguments_invalid": "Answer the call with an error result that says what is wrong; the model mostly recovers.",
    "arguments_late": "Tell the backend's makers; record the turn to show it.",
    "arguments_repaired": "Nothing; no value is another than before.",
    "arguments_unchecked": "Correct the schema.",
    "arguments_unclaimed": "Tell the backend's makers; record the turn to show it.",
    "arguments_wrapped": "Nothing; the model wrote them so.",
    "backend_warning": "Read it; a codex backend tells of settings that it did not take.",
    "call_capped": "Raise `PROXY_TOOL_BLOCK_MAX`, or allow parallel calls.",
    "call_cut": "Use the mode `burst` if you want the others.",
    "call_dropped": "Nothing; such a call cannot be answered.",
    "call_duplicate": "Nothing; unset `PROXY_TOOL_BLOCK_DEDUP` if you want both.",
    "call_incomplete": "Do not execute it. Ask again with more output tokens.",
    "call_missing": "Ask again, or use a backend that heeds the tool choice.",
    "call_not_allowed": "Nothing; allow the tool if you want its calls.",
    "end_missing": "Nothing; tell the backend's makers. If a worker does it often, renew Codex.",
    "failed_over": "Look at the first backend; for half a minute the others come first.",
    "failure_after_calls": "Nothing; you asked for it with `PROXY_FINISH_AFTER_CALLS`.",
    "field_dropped": "Leave the field out, or use a backend that has it.",
    "frame_skipped": "Record the turn and look at the frame.",
    "gateway_tools_left_out": "Leave these out, if the request should have the gateway's tools.",
    "id_missing": "Nothing; answer with the id you received.",
    "id_reused": "Nothing; answer with the id you received.",
    "item_dropped": "Nothing, unless you asked for a hosted tool and need its output.",
    "letter_replaced": "Tell the backend's makers.",
    "max_turns_reached": "Raise `gateway_tools.max_turns`.",
    "message_dropped": "Nothing; servers refuse empty messages.",
    "message_repeated": "Nothing; the text is there once.",
    "model_changed": "Nothing; its server decided so.",
    "name_changed": "Tell the backend's makers; record the turn to show it.",
    "name_cleaned": "Nothing; the name is a declared one again.",
    "name_inferred": "Check the call if you have set `PROXY_TOOL_NAME_FALLBACK=position`, which guesses.",
    "name_suspect": "Answer the call with an error result; the model mostly recovers.",
    "not_stored": "Send the whole history in the next request. Tell the operator of the gateway.",
    "part_dropped": "Send text, images, files or audio that the backend takes.",
    "reason_unknown": "Tell us the reason.",
    "reasoning_dropped": (
        'To a Responses server, send `"include": ["reasoning.encrypted_content"]` and return reasoning as it '
        "came. After a change of the model nothing."
    ),
    "repeated_calls": "Look at what the tool says when it fails.",
    "request_declined": "Nothing; look at the `overrides` of the backend if you changed any.",
    "result_as_message": (
        'Keep the assistant message with the call when you trim a history. `history = "strict"` makes it a 400.'
    ),
    "result_dropped": (
        'Keep the assistant message with the call when you trim a history. `history = "strict"` makes it a 400.'
    ),
    "result_missing": 'Send a result for every call, also for one that failed. `history = "strict"` makes it a 400.',
    "result_moved": "Send results right after the message with their calls.",
    "result_retyped": "Nothing; some clients know one form only.",
    "retried": "Nothing; many of them mean that the backend is overloaded.",
    "retry_withheld": "Look at the backend: most of its requests fail.",
    "schema_changed": (
        "Move alternatives into a property. If the server takes such schemas, set `profile = { schema = [] }`."
    ),
    "signature_late": "Tell the backend's makers; record the turn to show it.",
    "tail_withheld": "Nothing; unset the stop and tail flags if you want the text.",
    "text_block_kept": "Look at the model's text. `x-proxy-strict-tools: true` makes it a failure.",
    "text_call_twin": "Nothing; the model said it twice.",
    "tokens_estimated": "Nothing; set `profile = { counts_tokens = true }` if the backend can count.",
    "tool_dropped": (
        'Declare a tool you run yourself. `unsupported = "reject"` makes it a 400, and so does a `tool_choice` '
        "that forces it. If a chat server has the tool, name its type in `profile = { hosts = [...] }`."
    ),
    "tool_replaced": "Declare it once.",
    "tool_undeclared": "Answer the call with an error result that says so.",
    "tools_declared": "Declare your tools in every request of a conversation.",
    "turn_paused": "Send the history again to let it go on.",
    "use_tool_changed": "Use the structured call, which is unchanged.",
}
"""What to do about a note, in the words of `docs/notes.md`; the other notes need no action."""

_TRUNCATING = frozenset(("call_capped", "call_cut"))
MAX_STORED_NOTES = 32
"""Maximum notes that a turn stores; more are only counted."""
MAX_HEADER_NOTES = 16


class Figures(msgspec.Struct, frozen=True):
    """The figures about a turn that clients get beside its content."""

    tool_call_count: int = 0
    tool_call_truncated: bool = False
    stop_after_tools_mode: StopMode = "burst"
    notes: tuple[dict[str, str], ...] = ()
    """Each with its `code` and, if it has one, its `subject`."""

    def comment(self) -> bytes:
        """As JSON, for the comment that closes a stream."""
        return msgspec.json.encode(self)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As headers, for an answer that is not streamed."""
        headers = [
            (b"x-codex-tool-call-count", b"%d" % self.tool_call_count),
            (b"x-codex-tool-call-truncated", b"true" if self.tool_call_truncated else b"false"),
            (b"x-codex-stop-after-tools-mode", self.stop_after_tools_mode.encode()),
        ]
        if self.notes:
            headers.append((b"x-toolwire-notes", msgspec.json.encode(self.notes[:MAX_HEADER_NOTES])))
        return headers


class TurnStats:
    """A policy that counts what passes. Notes end here: no dialect has an event for them."""

    handles: ClassVar[tuple[type[Event], ...]] = (CallStarted, Note, Usage, TurnEnded, TurnFailed)

    def __init__(self, mode: StopMode = "burst") -> None:
        self.mode: StopMode = mode
        self.call_ids: list[str] = []
        self.call_names: list[str] = []
        self.truncated = False
        self.notes: list[Note] = []
        self.counts: dict[str, int] = {}
        self.usage: Usage | None = None
        self.ending: TurnEnded | TurnFailed | None = None

    def feed(self, event: Event) -> Sequence[Event] | None:
        if isinstance(event, CallStarted):
            self.call_ids.append(event.id)
            self.call_names.append(event.name)
        elif isinstance(event, Note):
            self.note(event)
            return ()
        elif isinstance(event, Usage):
            self.usage = event
        elif isinstance(event, TurnEnded | TurnFailed):
            self.ending = event
        return None

    def note(self, note: Note) -> None:
        """Count a note, and store it below the limit."""
        self.counts[note.code] = self.counts.get(note.code, 0) + 1
        self.truncated = self.truncated or note.code in _TRUNCATING
        if len(self.notes) < MAX_STORED_NOTES:
            self.notes.append(note)

    @property
    def call_count(self) -> int:
        """How many calls were delivered."""
        return len(self.call_ids)

    @property
    def figures(self) -> Figures:
        """The figures that clients get. Notes are short and ASCII, on one line."""
        notes: list[dict[str, str]] = []
        for note in self.notes:
            subject = note.subject[:80].encode("ascii", "replace").decode()
            subject = "".join(char if char.isprintable() else "?" for char in subject)
            notes.append({"code": note.code, "subject": subject} if subject else {"code": note.code})
        return Figures(self.call_count, self.truncated, self.mode, tuple(notes))

    def comment(self) -> bytes:
        """The figures as JSON, for the comment that closes a stream."""
        return self.figures.comment()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The same figures as headers, for an answer that is not streamed."""
        return self.figures.headers()


class PassingStats(TurnStats):
    """The same, but notes pass, for readers of events rather than of a dialect."""

    def feed(self, event: Event) -> None:
        super().feed(event)
