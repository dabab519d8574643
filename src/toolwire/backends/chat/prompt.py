"""Tools for a model without native support: declared in the prompt, with calls and results as text of the history.

    system     … # Tools … <tools>{"type":"function","function":{"name":"search",…}}</tools> … write: <tool_call>…
    user       What is new?
    assistant  I will look.
               <tool_call>
               {"name": "search", "arguments": {"q": "news"}}
               </tool_call>
    user       <tool_response>
               Nothing.
               </tool_response>

Markers in the client's texts are escaped, so that none of them can pass for a call or a result. The server gets no
tools.
"""

from collections.abc import Iterable

import msgspec

from toolwire.backends.encoding import encode_arguments
from toolwire.core.events import Note
from toolwire.core.request import (
    NO_PARAMETERS,
    CallEntry,
    Entry,
    Message,
    Part,
    ReasoningEntry,
    Request,
    ResultEntry,
    TextPart,
    ToolChoice,
)
from toolwire.notations.registry import PromptNotation
from toolwire.notations.write import escape_markers, escape_markers_in_json

RESULT = ("<tool_response>", "</tool_response>")

_TOOLS = ("<tools>", "</tools>")
_EXAMPLE = '{"parameter": "value"}'
_FIELDS = frozenset(("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"))


def move_tools_to_prompt(request: Request, prompt_notation: PromptNotation) -> tuple[Request, list[Note]]:
    """The request with its tools, calls and results as text, and notes about the changes."""
    notes = [Note("tool_dropped", tool.type) for tool in request.hosted_tools]
    if request.choices > 1:
        notes.append(Note("field_dropped", "n"))  # the text of one answer is read for calls
    entries, instructions = request.entries, request.instructions
    if request.tools or any(isinstance(entry, CallEntry | ResultEntry) for entry in entries):
        entries = _HistoryAsText(prompt_notation, notes).rewrite(entries)
    if request.tools:
        # The prompt goes to the end of the instructions or of an opening system message.
        text, first = write_tool_prompt(request, prompt_notation), entries[0] if entries else None
        if instructions or not isinstance(first, Message) or first.role not in ("system", "developer"):
            instructions = f"{instructions}\n\n{text}" if instructions else text
        else:
            parts = _join_texts([*first.parts, TextPart(f"\n\n{text}")])
            entries = (msgspec.structs.replace(first, parts=parts, raw=None), *entries[1:])
    rewritten = msgspec.structs.replace(
        request,
        entries=entries,
        instructions=instructions,
        tools=(),
        hosted_tools=(),
        tool_choice=None,
        parallel_calls=None,
        choices=1,
        extra={name: value for name, value in request.extra.items() if name not in _FIELDS},
        fields={name: value for name, value in request.fields.items() if name not in _FIELDS},
        body=b"",
        original_entries=None,
    )
    if request.marks_cache and not rewritten.marks_cache:
        notes.append(Note("field_dropped", "cache_control"))
    return rewritten, notes


def write_tool_prompt(request: Request, prompt_notation: PromptNotation) -> str:
    """The prompt that declares the tools. The wording is that of Hermes and Qwen, on which many models were trained."""
    choice = request.tool_choice or ToolChoice()
    markers = (*prompt_notation.markers, *RESULT, *_TOOLS)
    declared: list[str] = []
    for tool in request.allowed_tools:
        described = {"description": tool.description} if tool.description else {}
        function = {"name": tool.name, **described, "parameters": tool.parameters or NO_PARAMETERS}
        json = msgspec.json.encode({"type": "function", "function": function}).decode()
        declared.append(escape_markers_in_json(json, markers))
    tools = "\n".join(declared)
    example = prompt_notation.write("function_name", _EXAMPLE).text
    paragraphs = [
        "# Tools",
        "You may call one or more functions to assist with the user query.",
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>",
        f"For each function call, write its name and arguments exactly like this:\n{example}",
        "Write nothing after your calls. Their results come in the next message, in the order of the calls, each "
        f"between {RESULT[0]} and {RESULT[1]}. Never write these yourself.",
    ]
    if choice.limited:
        paragraphs.append(f"Of all functions, call only these: {', '.join(request.tool_names)}.")
    if choice.mode == "none":
        paragraphs.append("Do not call any function in this answer.")
    elif choice.name:
        paragraphs.append(f"Call the function {choice.name} in this answer.")
    elif choice.mode == "required":
        paragraphs.append("Call at least one function in this answer.")
    if request.parallel_calls is False and choice.mode != "none":
        paragraphs.append("Call at most one function in this answer.")
    return "\n\n".join(paragraphs)


class _HistoryAsText:
    """Rewrites a history: calls become text of the assistant, results become user messages."""

    def __init__(self, prompt_notation: PromptNotation, notes: list[Note]) -> None:
        self._notation = prompt_notation
        self._notes = notes
        self._markers = (*prompt_notation.markers, *RESULT)
        self._out: list[Entry] = []
        self._message: list[Part] = []  # the open message of the assistant
        self._unguarded: list[Part] = []  # its last parts, in which markers are not yet escaped
        self._results: list[ResultEntry] = []
        self._order: dict[str, int] = {}  # of the calls

    def rewrite(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        for entry in entries:
            match entry:
                case ResultEntry():
                    self._close()
                    self._results.append(entry)
                case CallEntry():
                    self._write_user_message(())
                    self._add_call(entry)
                case ReasoningEntry():
                    self._write_user_message(())
                    self._out.append(entry)
                case Message(role="assistant", parts=parts):
                    self._write_user_message(())
                    self._unguarded += parts
                case Message(role="user", parts=parts, name=name):
                    self._close()
                    user_parts = self._guard(parts, "message")
                    if name:
                        self._write_user_message(())
                        self._out.append(msgspec.structs.replace(entry, parts=user_parts, raw=None))
                    else:
                        self._write_user_message(user_parts)
                case _:
                    self._write_user_message(())
                    self._close()
                    self._out.append(entry)
        self._write_user_message(())
        self._close()
        return tuple(self._out)

    def _add_call(self, entry: CallEntry) -> None:
        written = self._notation.write(entry.name, bytes(encode_arguments(entry, self._notes)).decode())
        if written.changed:
            self._notes.append(Note("value_changed", entry.id))
        self._order[entry.id] = len(self._order)
        self._escape_open_texts()
        last = self._message[-1] if self._message else None
        gap = "\n" if isinstance(last, TextPart) and not last.text.endswith("\n") else ""
        self._message.append(TextPart(gap + written.text))

    def _escape_open_texts(self) -> None:
        """Escape the text of the open message as a whole, because a marker may span its parts."""
        unguarded, self._unguarded = self._unguarded, []
        if unguarded:
            self._message += self._guard(sorted(unguarded, key=lambda part: not isinstance(part, TextPart)), "message")

    def _close(self) -> None:
        """End the assistant's message."""
        self._escape_open_texts()
        message, self._message = self._message, []
        if message:
            self._out.append(Message("assistant", _join_texts(message)))

    def _write_user_message(self, user_parts: tuple[Part, ...]) -> None:
        """Write a user message: the results so far, in the order of their calls, followed by the user's parts."""
        results, self._results = self._results, []
        results.sort(key=lambda result: self._order.get(result.call_id, len(self._order)))
        parts: list[Part] = []
        for result in results:
            opening = ("\n" if parts else "") + f"{RESULT[0]}\n"
            lines: list[Part] = []  # each text is on a line of its own
            for part in result.parts_with_error:
                is_next_text = bool(lines) and isinstance(lines[-1], TextPart) and isinstance(part, TextPart)
                lines += [TextPart("\n"), part] if is_next_text else [part]
            parts += (TextPart(opening), *self._guard(lines, result.call_id), TextPart(f"\n{RESULT[1]}"))
        if parts and user_parts:
            parts.append(TextPart("\n\n"))
        if parts or user_parts:
            self._out.append(Message("user", _join_texts([*parts, *user_parts])))

    def _guard(self, parts: Iterable[Part], subject: str) -> tuple[Part, ...]:
        """The parts with markers escaped. They are joined first, because a marker may span two parts."""
        whole = _join_texts(parts)
        safe = tuple(
            msgspec.structs.replace(part, text=escape_markers(part.text, self._markers))
            if isinstance(part, TextPart)
            else part
            for part in whole
        )
        if safe != whole:
            self._notes.append(Note("value_changed", subject))
        return safe


def _join_texts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts, with adjacent texts joined."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, TextPart) and out and isinstance(out[-1], TextPart):
            out[-1] = TextPart(out[-1].text + part.text, part.cache or out[-1].cache)
        else:
            out.append(part)
    return tuple(out)
