"""A client's request in our own form: what every dialect decodes to and every backend encodes from.

The history is a flat list of entries (messages, calls, results, reasoning), because that is the form all protocols can
be folded from. JSON that nobody here needs to understand (schemas, formats) stays `Raw`.
"""

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.events import CallKind, Dialect, Note

Role: TypeAlias = Literal["system", "developer", "user", "assistant"]
ToolMode: TypeAlias = Literal["auto", "none", "required"]
Omission: TypeAlias = Literal["reasoning", "include"]
"""A part of a request that a server may refuse: reasoning in the history, or the question for encrypted reasoning."""

# In much text these are several times faster than `in`, and nothing is copied.
_cache_named = re.compile(b"cache_control").search
_cache_marked = re.compile(b'"cache_control":').search


class TextPart(msgspec.Struct, frozen=True):
    text: str
    cache: msgspec.Raw | None = None
    """The client's mark that the prompt up to here is worth caching, in Anthropic's words. Never added here."""


class RefusalPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """An image by address (a data URL holds the bytes) or by an id of the backend's own."""

    url: str
    detail: str = ""
    id: str = ""


class FilePart(msgspec.Struct, frozen=True):
    """A file by its bytes (as a data URL), by an id of the backend's own, or by address."""

    data: str = ""
    id: str = ""
    name: str = ""
    url: str = ""


class AudioPart(msgspec.Struct, frozen=True):
    data: str
    format: str


class OtherPart(msgspec.Struct, frozen=True):
    """A part this form has no word for; it survives in the raw form of its entry."""

    type: str


Part: TypeAlias = TextPart | RefusalPart | ImagePart | FilePart | AudioPart | OtherPart


class Message(msgspec.Struct, frozen=True):
    role: Role
    parts: tuple[Part, ...]
    name: str = ""
    raw: msgspec.Raw | None = None
    """This and every other entry as the client wrote it, for a backend that speaks the client's dialect."""
    message: int = -1
    """Which of the client's messages holds this and every other entry, where one may hold several; -1: none does."""


class CallEntry(msgspec.Struct, frozen=True):
    """A call the model made earlier; `arguments` is the input text of a custom call."""

    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    namespace: str = ""
    raw: msgspec.Raw | None = None
    seal: str = ""
    """What the server that made the call wants back with it, which only that server can read."""
    message: int = -1


FAILED = "Error: "
"""How a result begins that says it failed, where a protocol has no other word for it."""


class ResultEntry(msgspec.Struct, frozen=True):
    call_id: str
    parts: tuple[Part, ...]
    kind: CallKind = "function"
    raw: msgspec.Raw | None = None
    failed: bool = False
    """The tool said that it failed."""
    message: int = -1

    @property
    def told(self) -> tuple[Part, ...]:
        """The parts, for a server that has no word for failure but those of the text."""
        first = self.parts[0] if self.parts else TextPart("")
        if not self.failed or (isinstance(first, TextPart) and first.text.lower().startswith("error")):
            return self.parts
        if isinstance(first, TextPart):
            return (TextPart(FAILED + first.text), *self.parts[1:])
        return (TextPart(FAILED), *self.parts)


class ReasoningEntry(msgspec.Struct, frozen=True):
    """What the model thought earlier. The `seal` is opaque and only its issuer can read it.

    The seal of a chat server is the fields of its message, as JSON: it wants them back as it wrote them.
    """

    id: str = ""
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    seal: str = ""
    issuer: Dialect = ""
    redacted: bool = False
    raw: msgspec.Raw | None = None
    message: int = -1
    own: bool = False
    """The backend that it goes to has made it, though no seal says so."""

    @property
    def text(self) -> str:
        """All that is shown of it."""
        return "".join(self.summary + self.content)


class OtherEntry(msgspec.Struct, frozen=True):
    """An entry this form has no word for, carried as it came to a backend that has one."""

    type: str
    raw: msgspec.Raw
    message: int = -1


class ToolsEntry(msgspec.Struct, frozen=True):
    """Tools that are declared at this place of the history, as JSON; they are among the request's tools too."""

    tools: msgspec.Raw
    raw: msgspec.Raw
    message: int = -1


Entry: TypeAlias = Message | CallEntry | ResultEntry | ReasoningEntry | OtherEntry | ToolsEntry


class Tool(msgspec.Struct, frozen=True):
    """A tool the client will run. `parameters` is its JSON Schema, `format` a custom tool's grammar."""

    name: str
    description: str = ""
    parameters: msgspec.Raw | None = None
    strict: bool | None = None
    kind: CallKind = "function"
    format: msgspec.Raw | None = None
    namespace: str = ""
    cache: msgspec.Raw | None = None


NO_PARAMETERS = msgspec.Raw(b'{"type":"object","properties":{}}')
"""The schema of a tool that takes nothing, or does not say what."""


class HostedTool(msgspec.Struct, frozen=True):
    """A tool the backend runs itself, carried as it came."""

    type: str
    raw: msgspec.Raw


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether and which tool to call: a mode, one `name`, or, if `limited`, only the `allowed` names."""

    mode: ToolMode = "auto"
    name: str = ""
    kind: CallKind = "function"
    allowed: tuple[str, ...] = ()
    hosted: msgspec.Raw | None = None
    limited: bool = False


class OutputFormat(msgspec.Struct, frozen=True):
    """Structured output: a JSON Schema, or any JSON object when there is none."""

    schema: msgspec.Raw | None = None
    name: str = ""
    description: str = ""
    strict: bool | None = None


class Sampling(msgspec.Struct, frozen=True):
    """How to generate. A field that is None was not asked for."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None


class Caller(msgspec.Struct, frozen=True):
    """What the client says about itself and its cache."""

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: msgspec.Raw | None = None


class Request(msgspec.Struct, frozen=True):
    model: str
    entries: tuple[Entry, ...]
    dialect: Dialect = ""
    """The client's dialect, for a backend that speaks it too."""
    history_field: str = "messages"
    """What the client's dialect calls the conversation."""
    results_anywhere: bool = False
    """The client's dialect lets a result stand anywhere behind its call."""
    carries_seals: bool = True
    """The client can hold sealed thoughts and bring them back."""
    instructions: str = ""
    """What the model is told apart from the conversation, where the dialect has a place for it."""
    stream: bool = False
    tools: tuple[Tool, ...] = ()
    hosted_tools: tuple[HostedTool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_calls: bool | None = None
    output_format: OutputFormat | None = None
    sampling: Sampling = Sampling()
    caller: Caller = Caller()
    legacy_functions: bool = False
    include_usage: bool = False
    betas: str = ""
    """What a client has asked for in its `anthropic-beta` header."""
    choices: int = 1
    """How many answers are wanted. More than one only where client and backend both speak Chat Completions."""
    extra: dict[str, msgspec.Raw] = {}
    """Fields of the client's dialect that this form has no place for."""
    fields: dict[str, msgspec.Raw] = {}
    """The fields of the body as they came, for a backend that speaks the client's dialect."""
    body: bytes = b""
    """The same as it came, where its fields were not taken apart."""
    written: tuple[Entry | None, ...] | None = None
    """The entries as they were decoded: while they are the same, the client's own messages say the same.

    None stands for an entry that is written as servers do not take it."""
    without: tuple[Omission, ...] = ()
    """What must not be asked for or sent, because the server refuses it."""
    continues: bool = False
    """The history begins with turns that are kept here, so a result without its call is the client's mistake."""
    notes: tuple[Note, ...] = ()

    @property
    def is_as_written(self) -> bool:
        """Whether the history is still what the client wrote."""
        written = self.written
        if written is None or len(written) != len(self.entries):
            return False
        return all(entry is other for entry, other in zip(self.entries, written, strict=True))

    @property
    def marks_cache(self) -> bool:
        """Whether the client has marked something for the prompt cache."""
        if self.body and not _cache_named(self.body):
            return False
        told = (entry.parts for entry in self.entries if isinstance(entry, Message | ResultEntry))
        if any(tool.cache for tool in self.tools) or any(
            isinstance(part, TextPart) and part.cache for parts in told for part in parts
        ):
            return True
        # There are other places for a mark; the quotes of one that is only talked about are escaped.
        written = (self.body, *(self.fields.get(name, b"") for name in ("messages", "system", "tools")))
        return any(map(_cache_marked, written))

    @property
    def allowed_tools(self) -> tuple[Tool, ...]:
        """The tools the model may call: the declared ones, within what the tool choice allows."""
        choice = self.tool_choice
        if choice is None or not choice.limited:
            return self.tools
        return tuple(tool for tool in self.tools if tool.name in choice.allowed)

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.allowed_tools)

    @property
    def forced_tool(self) -> str:
        return self.tool_choice.name if self.tool_choice is not None else ""

    @property
    def wants_calls(self) -> bool:
        """Tools are declared and not forbidden."""
        return bool(self.tools) and not (self.tool_choice is not None and self.tool_choice.mode == "none")

    def teaches(self, words: str) -> bool:
        """Whether these words stand in what the model is told beforehand.

        That is system and developer text, and an assistant message before the first user message: some clients
        send their system prompt so.
        """
        return words in self.instructions or any(
            words in part.text for message in self._beforehand() for part in message.parts if isinstance(part, TextPart)
        )

    def _beforehand(self) -> Iterator[Message]:
        asked = False
        for entry in self.entries:
            if isinstance(entry, Message):
                asked = asked or entry.role == "user"
                if entry.role in ("system", "developer") or (entry.role == "assistant" and not asked):
                    yield entry
