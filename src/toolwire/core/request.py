"""A client's request in our own form: what every dialect decodes to and every backend encodes from.

The history is a flat list of entries (messages, calls, results, reasoning), from which every protocol's form can be
built. JSON that is only passed on (schemas, formats) stays `Raw`.
"""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.events import CallKind, Note, Origin

Role: TypeAlias = Literal["system", "developer", "user", "assistant"]
ToolMode: TypeAlias = Literal["auto", "none", "required"]
Omission: TypeAlias = Literal["reasoning", "include", "tool_search"]
"""A part of a request that a server may refuse: reasoning in the history, the `include` of encrypted reasoning, or the
search for tools."""

# On large bodies these are several times faster than `in`, and nothing is copied.
_cache_named = re.compile(b"cache_control").search
_cache_marked = re.compile(b'"cache_control":').search


class TextPart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """A text."""

    text: str
    cache: msgspec.Raw | None = None
    """The client's `cache_control` marker, in Anthropic's form. Never added by us."""


class RefusalPart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """A text in which the model declined."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """An image by URL (a data URL holds the bytes) or by an id of the backend."""

    url: str
    detail: str = ""
    id: str = ""


class FilePart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """A file by its bytes (as a data URL), by an id of the backend, or by URL."""

    data: str = ""
    id: str = ""
    name: str = ""
    url: str = ""


class AudioPart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """Audio as Base64."""

    data: str
    format: str


class ToolPart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """A tool that a search has found: the model may call it from here on."""

    name: str
    namespace: str = ""


class OtherPart(msgspec.Struct, frozen=True, tag=True, tag_field="part"):
    """A part that has no counterpart here; it survives in the raw form of its entry."""

    type: str


Part: TypeAlias = TextPart | RefusalPart | ImagePart | FilePart | AudioPart | ToolPart | OtherPart


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="entry"):
    """One message of the history, without its calls."""

    role: Role
    parts: tuple[Part, ...]
    name: str = ""
    raw: msgspec.Raw | None = None
    """The entry as the client wrote it, for a backend that speaks the client's dialect."""
    message: int = -1
    """Index of the client's message that holds the entry, where one may hold several; -1 elsewhere."""


class CallEntry(msgspec.Struct, frozen=True, tag=True, tag_field="entry"):
    """A call the model made earlier; `arguments` is the input text of a custom call."""

    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    namespace: str = ""
    raw: msgspec.Raw | None = None
    signature: str = ""
    """Opaque data that must return with the call to the server that made it."""
    message: int = -1


FAILED = "Error: "
"""The prefix of a failed result in a protocol without a field for failures."""


class ResultEntry(msgspec.Struct, frozen=True, tag=True, tag_field="entry"):
    """The result of a call; `failed` if the tool reported an error."""

    call_id: str
    parts: tuple[Part, ...]
    kind: CallKind = "function"
    raw: msgspec.Raw | None = None
    failed: bool = False
    message: int = -1

    @property
    def parts_with_error(self) -> tuple[Part, ...]:
        """The parts, with a failure stated in the text, for protocols that have no field for it."""
        first = self.parts[0] if self.parts else TextPart("")
        if not self.failed or (isinstance(first, TextPart) and first.text.lower().startswith("error")):
            return self.parts
        if isinstance(first, TextPart):
            return (TextPart(FAILED + first.text), *self.parts[1:])
        return (TextPart(FAILED), *self.parts)


class ReasoningEntry(msgspec.Struct, frozen=True, tag=True, tag_field="entry"):
    """Reasoning of an earlier turn. The `signature` is opaque and only its origin can read it.

    The signature of a chat server is the reasoning fields of its message, as JSON, to be returned as they were.
    """

    id: str = ""
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    signature: str = ""
    origin: Origin = ""
    redacted: bool = False
    raw: msgspec.Raw | None = None
    message: int = -1
    from_this_backend: bool = False
    """Made by the backend that the request goes to, though it has no signature."""

    @property
    def text(self) -> str:
        """All visible reasoning."""
        return "".join(self.summary + self.content)


class OtherEntry(msgspec.Struct, frozen=True, tag=True, tag_field="entry"):
    """An entry that has no counterpart here, carried unchanged to a backend of the client's dialect."""

    type: str
    raw: msgspec.Raw
    message: int = -1
    means: CallEntry | ResultEntry | None = None
    """Its meaning for other backends: one half of a search for tools, used if the history has both halves."""


class ToolsEntry(msgspec.Struct, frozen=True, tag=True, tag_field="entry"):
    """Tools that are declared at this point of the history, as JSON; they are among the request's tools too."""

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
    deferred: bool = False
    """The model sees it only after a search has found it."""

    @property
    def shown(self) -> "Tool":
        """The same tool for a model that sees it."""
        return msgspec.structs.replace(self, deferred=False) if self.deferred else self


SEARCH = "tool_search"
"""The name of the tool that searches for others, and the prefix of all types of such tools."""
SearchOutcome: TypeAlias = Literal["found", "failed", "timed_out"]

NO_PARAMETERS = msgspec.Raw(b'{"type":"object","properties":{}}')
"""The schema of a tool without parameters, or without a schema."""


class HostedTool(msgspec.Struct, frozen=True):
    """A tool that the backend runs itself, carried unchanged."""

    type: str
    raw: msgspec.Raw

    @property
    def searches(self) -> bool:
        """Whether it searches for other tools."""
        return self.type.startswith(SEARCH)


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether to call a tool, and which: a mode, one `name`, or, if `limited`, only the `allowed` names."""

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
    """How to generate. A field that is None was absent from the request."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None


class Caller(msgspec.Struct, frozen=True):
    """The client's statements about its user and its prompt cache."""

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: msgspec.Raw | None = None


class RequestHead(msgspec.Struct, frozen=True):
    """A client's request without its body."""

    headers: Mapping[bytes, bytes] = {}
    parameters: Mapping[str, str] = {}
    """Named parts of the path."""
    query: bytes = b""


NO_HEAD = RequestHead()


class Request(msgspec.Struct, frozen=True):
    """One request of a client, in the form that all dialects and backends share."""

    model: str
    entries: tuple[Entry, ...]
    dialect: Origin = ""
    """The client's dialect, for a backend that speaks it too."""
    history_field: str = "messages"
    """The name of the field that holds the conversation in the client's dialect."""
    results_anywhere: bool = False
    """The client's dialect lets a result stand anywhere after its call."""
    carries_signatures: bool = True
    """The client can store signed reasoning and send it back."""
    reasoning_in_messages: bool = False
    """Reasoning is in fields of the message that it led to, so each message of the model is a turn of its own."""
    several_messages: bool = False
    """A turn may hold several messages in the client's dialect; in others their texts are joined."""
    instructions: str = ""
    """Instructions beside the conversation, where the dialect has a field for them."""
    stream: bool = False
    stream_form: str = ""
    """How the client's dialect frames the stream, where it has several forms."""
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
    """The client's `anthropic-beta` header."""
    choices: int = 1
    """Number of answers. More than one only if client and backend speak the same dialect."""
    needs_own_dialect: str = ""
    """A field that only a backend of the client's dialect can honour, so that no other may answer."""
    extra: dict[str, msgspec.Raw] = {}
    """Fields of the client's dialect that have no counterpart here."""
    fields: dict[str, msgspec.Raw] = {}
    """The fields of the body as they came, for a backend that speaks the client's dialect."""
    body: bytes = b""
    """The body as it came, where it was not split into fields."""
    original_entries: tuple[Entry | None, ...] | None = None
    """The entries as they were decoded. While `entries` is the same, the client's JSON can be sent as it is.

    None stands for an entry whose JSON would be refused."""
    without: tuple[Omission, ...] = ()
    """Parts to leave out, because the server refuses them."""
    tools_changed: bool = False
    """The tools differ from the client's JSON, so they must be encoded."""
    continues: bool = False
    """The history begins with stored turns, so a result without its call is the client's mistake."""
    notes: tuple[Note, ...] = ()

    @property
    def history_unchanged(self) -> bool:
        """Whether the history is still exactly what the client sent."""
        original = self.original_entries
        if original is None or len(original) != len(self.entries):
            return False
        return all(entry is other for entry, other in zip(self.entries, original, strict=True))

    @property
    def marks_cache(self) -> bool:
        """Whether the client has marked something for the prompt cache."""
        if self.body and not _cache_named(self.body):
            return False
        parts_of_entries = (entry.parts for entry in self.entries if isinstance(entry, Message | ResultEntry))
        if any(tool.cache for tool in self.tools) or any(
            isinstance(part, TextPart) and part.cache for parts in parts_of_entries for part in parts
        ):
            return True
        # A marker may stand elsewhere too. In prose its quotes would be escaped.
        written = (self.body, *(self.fields.get(name, b"") for name in ("messages", "system", "tools")))
        return any(map(_cache_marked, written))

    @property
    def named_tools(self) -> dict[tuple[str, str], None]:
        """The namespaces and names of tools that were found or called in the history, in order."""
        named: dict[tuple[str, str], None] = {}
        for entry in self.entries:
            meant = entry.means if isinstance(entry, OtherEntry) else entry
            if isinstance(meant, CallEntry):
                named[meant.namespace, meant.name] = None
            elif isinstance(meant, ResultEntry):
                named |= {(part.namespace, part.name): None for part in meant.parts if isinstance(part, ToolPart)}
        return named

    @property
    def allowed_tools(self) -> tuple[Tool, ...]:
        """The tools the model may call: the declared ones, within what the tool choice allows."""
        choice = self.tool_choice
        if choice is None or not choice.limited:
            return self.tools
        return tuple(tool for tool in self.tools if tool.name in choice.allowed)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools the model may call."""
        return tuple(tool.name for tool in self.allowed_tools)

    @property
    def forced_tool(self) -> str:
        """The tool that the tool choice names, if any."""
        return self.tool_choice.name if self.tool_choice is not None else ""

    @property
    def wants_calls(self) -> bool:
        """Whether tools are declared and not forbidden."""
        return bool(self.tools) and not (self.tool_choice is not None and self.tool_choice.mode == "none")

    def prompt_mentions(self, words: str) -> bool:
        """Whether these words occur in the prompt before the conversation.

        That is system and developer text, and an assistant message before the first user message: some clients
        send their system prompt as one.
        """
        if words in self.instructions:
            return True
        user_seen = False
        for entry in self.entries:
            if not isinstance(entry, Message):
                continue
            user_seen = user_seen or entry.role == "user"
            is_prompt = entry.role in ("system", "developer") or (entry.role == "assistant" and not user_seen)
            if is_prompt and any(words in part.text for part in entry.parts if isinstance(part, TextPart)):
                return True
        return False
