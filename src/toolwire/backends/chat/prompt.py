"""Tools for a model that has none: they stand in the prompt, and calls and results in the text of the history.

    system     … # Tools … <tools>{"type":"function","function":{"name":"search",…}}</tools> … write: <tool_call>…
    user       What is new?
    assistant  I will look.
               <tool_call>
               {"name": "search", "arguments": {"q": "news"}}
               </tool_call>
    user       <tool_response>
               Nothing.
               </tool_response>

Of all text that is not the operator's or ours, none can pass for a call or a result: its markers are guarded. What the
server is sent knows nothing of tools.
"""

from collections.abc import Iterable

import msgspec

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
    Tool,
    ToolChoice,
)
from toolwire.core.text import as_object, wrapped
from toolwire.notations.known import Taught
from toolwire.notations.write import guarded, guarded_json

RESULT = ("<tool_response>", "</tool_response>")

_TOOLS = ("<tools>", "</tools>")
_EXAMPLE = '{"parameter": "value"}'
_FIELDS = frozenset(("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"))


def prompted(request: Request, taught: Taught) -> tuple[Request, list[Note]]:
    """The same request without tools, calls and results; and notes of what that took."""
    notes = [Note("tool_dropped", tool.type) for tool in request.hosted_tools]
    if request.choices > 1:
        notes.append(Note("field_dropped", "n"))  # the text of one answer is read for calls
    entries, instructions = request.entries, request.instructions
    if request.tools or any(isinstance(entry, CallEntry | ResultEntry) for entry in entries):
        entries = _Retold(taught, notes).entries(entries)
    if request.tools:
        entries, instructions = _told(entries, instructions, lesson(request, taught))
    asked = msgspec.structs.replace(
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
        written=None,
    )
    if request.marks_cache and not asked.marks_cache:
        notes.append(Note("field_dropped", "cache_control"))
    return asked, notes


def lesson(request: Request, taught: Taught) -> str:
    """What the model is told about its tools. The wording is that of Hermes and Qwen, on which many were trained."""
    choice = request.tool_choice or ToolChoice()
    shown = request.allowed_tools
    tools = "\n".join(guarded_json(_tool(tool), (*taught.markers, *RESULT, *_TOOLS)) for tool in shown)
    example = taught.write("function_name", _EXAMPLE).text
    paragraphs = [
        "# Tools",
        "You may call one or more functions to assist with the user query.",
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>",
        f"For each function call, write its name and arguments exactly like this:\n{example}",
        "Write nothing after your calls. Their results come in the next message, in the order of the calls, each "
        f"between {RESULT[0]} and {RESULT[1]}. Never write these yourself.",
        *_rules(request, choice),
    ]
    return "\n\n".join(paragraphs)


def _rules(request: Request, choice: ToolChoice) -> Iterable[str]:
    if choice.limited:
        yield f"Of all functions, call only these: {', '.join(request.tool_names)}."
    if choice.mode == "none":
        yield "Do not call any function in this answer."
    elif choice.name:
        yield f"Call the function {choice.name} in this answer."
    elif choice.mode == "required":
        yield "Call at least one function in this answer."
    if request.parallel_calls is False and choice.mode != "none":
        yield "Call at most one function in this answer."


def _tool(tool: Tool) -> str:
    described = {"description": tool.description} if tool.description else {}
    function = {"name": tool.name, **described, "parameters": tool.parameters or NO_PARAMETERS}
    return msgspec.json.encode({"type": "function", "function": function}).decode()


def _told(entries: tuple[Entry, ...], instructions: str, text: str) -> tuple[tuple[Entry, ...], str]:
    """The lesson at the end of what the model is told first: the instructions, or an opening system message."""
    first = entries[0] if entries else None
    if instructions or not isinstance(first, Message) or first.role not in ("system", "developer"):
        return entries, f"{instructions}\n\n{text}" if instructions else text
    parts = _joined([*first.parts, TextPart(f"\n\n{text}")])
    return (msgspec.structs.replace(first, parts=parts, raw=None), *entries[1:]), instructions


class _Retold:
    """Rewrites a history: calls into the model's own text, results into messages of the user."""

    def __init__(self, taught: Taught, notes: list[Note]) -> None:
        self._taught = taught
        self._notes = notes
        self._markers = (*taught.markers, *RESULT)
        self._out: list[Entry] = []
        self._said: list[Part] = []  # by the model, in the message that is open
        self._spoken: list[Part] = []  # the last of it, as the client has it
        self._results: list[ResultEntry] = []
        self._order: dict[str, int] = {}  # of the calls

    def entries(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        for entry in entries:
            self._add(entry)
        self._answer(())
        self._close()
        return tuple(self._out)

    def _add(self, entry: Entry) -> None:
        match entry:
            case ResultEntry():
                self._close()
                self._results.append(entry)
            case CallEntry():
                self._answer(())
                self._call(entry)
            case ReasoningEntry():
                self._answer(())
                self._out.append(entry)
            case Message(role="assistant", parts=parts):
                self._answer(())
                self._spoken += parts
            case Message(role="user", parts=parts, name=name):
                self._close()
                own = self._guarded(parts, "message")
                if name:
                    self._answer(())
                    self._out.append(msgspec.structs.replace(entry, parts=own, raw=None))
                else:
                    self._answer(own)
            case _:
                self._answer(())
                self._close()
                self._out.append(entry)

    def _call(self, entry: CallEntry) -> None:
        arguments = as_object(entry.arguments)
        if arguments is None:
            self._notes.append(Note("arguments_wrapped", entry.id))
            arguments = wrapped(entry.arguments)
        written = self._taught.write(entry.name, bytes(arguments).decode())
        if written.changed:
            self._notes.append(Note("value_changed", entry.id))
        self._order[entry.id] = len(self._order)
        self._settle()
        last = self._said[-1] if self._said else None
        gap = "\n" if isinstance(last, TextPart) and not last.text.endswith("\n") else ""
        self._said.append(TextPart(gap + written.text))

    def _settle(self) -> None:
        """What the model said is text as a whole, however many parts it came in."""
        spoken, self._spoken = self._spoken, []
        if spoken:
            self._said += self._guarded(sorted(spoken, key=lambda part: not isinstance(part, TextPart)), "message")

    def _close(self) -> None:
        """The model's message is over."""
        self._settle()
        said, self._said = self._said, []
        if said:
            self._out.append(Message("assistant", _joined(said)))

    def _answer(self, own: tuple[Part, ...]) -> None:
        """The user's message: the results so far, in the order of their calls, and then what the user said."""
        results, self._results = self._results, []
        results.sort(key=lambda result: self._order.get(result.call_id, len(self._order)))
        parts: list[Part] = []
        for result in results:
            opening = ("\n" if parts else "") + f"{RESULT[0]}\n"
            parts += (TextPart(opening), *self._guarded(result.told, result.call_id), TextPart(f"\n{RESULT[1]}"))
        if parts and own:
            parts.append(TextPart("\n\n"))
        if parts or own:
            self._out.append(Message("user", _joined([*parts, *own])))

    def _guarded(self, parts: Iterable[Part], subject: str) -> tuple[Part, ...]:
        """Joined first: a marker may lie across two parts."""
        whole = _joined(parts)
        safe = tuple(self._safe(part) for part in whole)
        if safe != whole:
            self._notes.append(Note("value_changed", subject))
        return safe

    def _safe(self, part: Part) -> Part:
        if not isinstance(part, TextPart):
            return part
        return msgspec.structs.replace(part, text=guarded(part.text, self._markers))


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts, with texts that stand side by side made one."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, TextPart) and out and isinstance(out[-1], TextPart):
            out[-1] = TextPart(out[-1].text + part.text, part.cache or out[-1].cache)
        else:
            out.append(part)
    return tuple(out)
