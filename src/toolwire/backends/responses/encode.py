"""Encodes a request for the Responses API."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from toolwire.adapt.history import BEGINNING
from toolwire.adapt.names import is_minted_item_id
from toolwire.backends.encoding import split_opening, without_none
from toolwire.backends.responses.profile import Profile
from toolwire.backends.responses.wire import DIALECT
from toolwire.core.cache import BoundedDict, size_of
from toolwire.core.events import CallKind, Note
from toolwire.core.raw import NULL, Json, fields_of, to_json, to_raw
from toolwire.core.request import (
    NO_PARAMETERS,
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    OutputFormat,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    Tool,
    ToolChoice,
    ToolPart,
    ToolsEntry,
)
from toolwire.core.text import hash_long_user_id, is_blank

OUTPUTS: dict[CallKind, str] = {
    "function": "function_call_output",
    "custom": "custom_tool_call_output",
    "search": "tool_search_output",
}
_OUR_ID = re.compile(rb'"id": ?"[a-z]+_[0-9a-f]{24}')

ENCRYPTED = "reasoning.encrypted_content"

MIN_OUTPUT_TOKENS = 16
"""The smallest `max_output_tokens` that the API accepts."""


def encode_request(request: Request, profile: Profile, *, stream: bool) -> tuple[bytes, list[Note]]:
    """The body to post, and notes about what it lacks. The backend stores nothing: `store` is false."""
    if request.dialect == DIALECT:
        return _encode_original(request, profile, stream=stream)
    entries, instructions = request.entries, None
    if profile.system == "instructions":  # it has no system role, so later instructions are developer messages
        opening, rest = split_opening(entries, "system", "developer")
        texts = [part.text for entry in opening for part in entry.parts if isinstance(part, TextPart)]
        entries, instructions = tuple(map(as_developer, rest)), "\n\n".join(texts) or profile.instructions
    if request.instructions:
        instructions = "\n\n".join(text for text in (request.instructions, instructions) if text)
    lost: list[Note] = []
    sampling, caller = request.sampling, request.caller
    known = [kept for entry in drop_unusable_reasoning(entries, lost) if (kept := drop_foreign_parts(entry, lost))]
    if entries and not known:
        known = [BEGINNING]
        lost.append(Note("message_added", "user"))
    # A server that stores nothing needs its encrypted reasoning back.
    include = list(dict.fromkeys((*profile.include, ENCRYPTED)))
    if "include" in request.without or "include" in profile.refuses:
        include = []
    body = without_none(
        model=request.model,
        input=[*map(encode_entry, known)],
        store=False,
        instructions=instructions,
        stream=stream or None,
        tools=_encode_tools(request) or None,
        tool_choice=_encode_tool_choice(request.tool_choice, request.tools) if request.tool_choice else None,
        parallel_tool_calls=request.parallel_calls,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_output_tokens=sampling.max_tokens,
        reasoning=without_none(effort=sampling.effort or None, summary=profile.summary or None) or None,
        text=without_none(format=_encode_format(request.output_format), verbosity=sampling.verbosity) or None,
        service_tier=sampling.service_tier,
        metadata=caller.metadata,
        user=hash_long_user_id(caller.user),
        safety_identifier=caller.safety_identifier,
        prompt_cache_key=caller.prompt_cache_key,
        include=include or None,
    )
    dropped = [name for name in profile.refuses if body.pop(name, None) is not None]
    dropped += request.extra
    if sampling.stop:
        dropped.append("stop")
    if any(isinstance(entry, Message) and entry.name for entry in entries):
        dropped.append("messages.name")
    if request.marks_cache:
        dropped.append("cache_control")
    if body.get("max_output_tokens", MIN_OUTPUT_TOKENS) < MIN_OUTPUT_TOKENS:
        body["max_output_tokens"] = MIN_OUTPUT_TOKENS
        lost.append(Note("value_changed", "max_output_tokens"))
    if body.get("user") != caller.user:
        lost.append(Note("value_changed", "user"))
    return to_json(body), [*lost, *(Note("field_dropped", name) for name in dropped)]


# Fields of a request about state, which is stored in the gateway and not at the backend.
_STATE = frozenset(("previous_response_id", "conversation", "background"))


def _encode_original(request: Request, profile: Profile, *, stream: bool) -> tuple[bytes, list[Note]]:
    """The body of a client of the same dialect, with all fields that we do not set."""
    notes: list[Note] = []
    idle = () if request.tools or request.hosted_tools else ("tools", "tool_choice")  # some servers refuse them empty
    fields = {name: value for name, value in request.fields.items() if name not in _STATE and name not in idle}
    entries = drop_unusable_reasoning(request.entries, notes)
    body: Json = {
        **fields,
        "model": request.model,
        "input": _encode_items(request, entries, profile),
        "store": False,
        "stream": stream,
    }
    if request.tools_changed and not idle:
        body["tools"] = _encode_tools(request)
    if any(isinstance(entry, ToolsEntry) for entry in entries):
        if request.tools_changed or not profile.additional_tools:
            shown = [entry for entry in entries if not isinstance(entry, ToolsEntry)]
            body |= {"tools": _encode_tools(request), "input": _encode_items(request, shown, profile)}
        elif fields.get("tools") in _NO_TOOLS:
            del body["tools"]
    if request.parallel_calls is not None:
        body["parallel_tool_calls"] = request.parallel_calls
    if profile.system == "instructions" and not request.instructions:
        body["instructions"] = profile.instructions
    if profile.include:
        included: list[str] = msgspec.json.decode(fields.get("include", b"null")) or []
        body["include"] = [*included, *(name for name in profile.include if name not in included)]
    refused = [name for name in profile.refuses if body.pop(name, None) not in (None, NULL)]
    return to_json(body), [*notes, *(Note("field_dropped", name) for name in refused)]


_NO_TOOLS = [msgspec.Raw(b"[]"), NULL]


def _encode_items(request: Request, entries: Sequence[Entry], profile: Profile) -> list[Any]:
    read = {id(entry) for entry in request.original_entries or ()}
    return [_encode_original_item(entry, profile, is_changed=id(entry) not in read) for entry in entries]


def drop_unusable_reasoning(entries: Sequence[Entry], notes: list[Note]) -> list[Entry]:
    """Drop reasoning that the server refuses: it is unusable, or no model output follows it."""
    out: list[Entry] = []
    leads_on = False  # the next entry is output of the model
    for entry in reversed(entries):
        if isinstance(entry, ToolsEntry):
            pass  # from neither the model nor the user
        elif not isinstance(entry, ReasoningEntry):
            leads_on = not isinstance(entry, ResultEntry) and not (
                isinstance(entry, Message) and entry.role != "assistant"
            )
        elif not (leads_on and _can_use(entry)):
            notes += [Note("reasoning_dropped", entry.id)] if entry.signature or entry.summary or entry.content else ()
            continue
        out.append(entry)
    return out[::-1]


def _can_use(entry: ReasoningEntry) -> bool:
    """Whether the server can use this reasoning: a summary alone is not enough."""
    if entry.signature:
        return entry.origin == DIALECT
    return bool(entry.content) and entry.raw is not None and not entry.origin  # open models read plain reasoning


def drop_foreign_parts(entry: Entry, notes: list[Note]) -> Entry | None:
    """An entry without parts that only another dialect has; None if nothing remains."""
    if isinstance(entry, Message | ResultEntry):
        dropped = [part for part in entry.parts if isinstance(part, OtherPart)]
        if dropped:
            notes += [Note("part_dropped", part.type) for part in dropped]
            kept = tuple(part for part in entry.parts if not isinstance(part, OtherPart))
            entry = msgspec.structs.replace(entry, parts=kept)
        return entry if entry.parts or isinstance(entry, ResultEntry) else None
    if isinstance(entry, OtherEntry | ToolsEntry):  # tools are declared with the others
        notes += [Note("item_dropped", entry.type)] if isinstance(entry, OtherEntry) else ()
        return None
    return entry


def _encode_original_item(entry: Entry, profile: Profile, *, is_changed: bool) -> Any:
    """An entry as the client wrote it, except for what has changed in it."""
    raw = entry.raw
    if profile.system == "instructions" and isinstance(entry, Message) and entry.role == "system":
        return encode_entry(as_developer(entry)) if raw is None else {**fields_of(raw), "role": "developer"}
    if raw is None:
        return encode_entry(entry)
    data = bytes(raw)
    dropped = [name for name in profile.item_fields_dropped if _compile_key(name).search(data)]
    dropped += ["namespace"] if is_changed and isinstance(entry, CallEntry) and not entry.namespace else []
    changed: dict[str, str] = {}
    if is_changed and isinstance(entry, CallEntry):
        changed = {"call_id": entry.id, "name": entry.name}
    elif is_changed and isinstance(entry, ResultEntry):
        changed = {"call_id": entry.call_id, "type": OUTPUTS[entry.kind]}
    # Messages and reasoning keep an id that we made, because servers require one.
    may_be_ours = isinstance(entry, CallEntry | ResultEntry) and _OUR_ID.search(data) is not None
    if not dropped and not changed and not may_be_ours:
        return raw
    fields = fields_of(raw)
    if may_be_ours and is_minted_item_id(msgspec.json.decode(fields.get("id", b'""'))):
        dropped.append("id")
    return {name: value for name, value in {**fields, **changed}.items() if name not in dropped}


@lru_cache(maxsize=64)
def _compile_key(name: str) -> re.Pattern[bytes]:
    """Compile a search for a field's name; in items of a few kilobytes it is several times faster than `in`."""
    return re.compile(b'"%b"' % re.escape(name.encode()))


def as_developer(entry: Entry) -> Entry:
    """The entry, with the role developer in place of system."""
    if isinstance(entry, Message) and entry.role == "system":
        return msgspec.structs.replace(entry, role="developer")
    return entry


def encode_entry(entry: Entry) -> Any:
    """The input item of an entry."""
    if isinstance(entry, Message):
        return {
            "type": "message",
            "role": entry.role,
            "content": [_encode_part(part, entry.role) for part in entry.parts],
        }
    match entry:
        case CallEntry(id, name, arguments, kind, namespace):
            called = {"call_id": id, "name": name, **({"namespace": namespace} if namespace else {})}
            if kind == "custom":
                return {"type": "custom_tool_call", **called, "input": arguments}
            return {"type": "function_call", **called, "arguments": "{}" if is_blank(arguments) else arguments}
        case ResultEntry(call_id, _, kind):
            parts = entry.parts_with_error
            texts = [part.text for part in parts if isinstance(part, TextPart)]
            is_text = len(texts) == len(parts)
            output = "\n".join(texts) if is_text else [_encode_part(part, "user") for part in parts]
            return {"type": OUTPUTS[kind], "call_id": call_id, "output": output}
        case ReasoningEntry(id, summary, _, signature):
            shown = [{"type": "summary_text", "text": text} for text in summary]
            return {"type": "reasoning", "id": id, "summary": shown, "encrypted_content": signature}
        case OtherEntry() | ToolsEntry():
            return entry.raw  # always of this dialect: others were dropped


def _encode_part(part: Part, role: str) -> Json:
    if isinstance(part, TextPart):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}
    match part:
        case RefusalPart(text):
            return {"type": "refusal", "refusal": text}
        case ImagePart(url, detail, id):
            image = {"image_url": url} if url else {"file_id": id}
            return {"type": "input_image", **image, "detail": detail or "auto"}
        case FilePart(data, id, name, url):
            named = {"file_id": id, "file_data": data, "filename": name, "file_url": url}
            return {"type": "input_file", **{key: value for key, value in named.items() if value}}
        case AudioPart(data, format):
            return {"type": "input_audio", "input_audio": {"data": data, "format": format}}
        case ToolPart(name):
            return {"type": "tool_reference", "tool_name": name}  # never reached: lowering replaces it with text
        case OtherPart(type):
            return {"type": type}


def _encode_tools(request: Request) -> list[msgspec.Raw]:
    """All tools; tools that a search found come last, so that the list only grows.

    All requests of an agent share one tuple, so it is encoded once.
    """
    tools, hosted = request.tools, [tool.raw for tool in request.hosted_tools]
    cached = _encoded.find(id(tools))
    if cached is None or cached[0] is not tools:
        namespaces = dict.fromkeys(tool.namespace for tool in tools)
        declared: list[Any] = []
        for namespace in namespaces:
            inner = [_encode_tool(tool) for tool in tools if tool.namespace == namespace]
            whole = {"type": "namespace", "name": namespace, "description": "", "tools": inner}
            declared += [whole] if namespace else inner
        cached = tools, tuple(map(to_raw, declared))
        _encoded.keep(id(tools), cached)
    return [*hosted, *cached[1]] if request.tools_changed else [*cached[1], *hosted]


_encoded: BoundedDict[int, tuple[tuple[Tool, ...], Sequence[msgspec.Raw]]] = BoundedDict(lambda _, made: size_of(made))


def _encode_tool(tool: Tool) -> Json:
    if tool.kind == "custom":
        described = without_none(
            description=tool.description or None, format=tool.format, defer_loading=tool.deferred or None
        )
        return {"type": "custom", "name": tool.name, **described}
    if tool.kind == "search":
        described = without_none(description=tool.description or None, parameters=tool.parameters)
        return {"type": "tool_search", "execution": "client", **described}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": tool.parameters or NO_PARAMETERS,
        # An omitted strict means false on chat and true here: always send it.
        "strict": bool(tool.strict),
        **({"defer_loading": True} if tool.deferred else {}),
    }


def _encode_tool_choice(choice: ToolChoice, tools: tuple[Tool, ...]) -> Any:
    if choice.hosted is not None:
        return choice.hosted
    if choice.name:
        return {"type": choice.kind, "name": choice.name}
    if choice.limited:
        allowed = [{"type": tool.kind, "name": tool.name} for tool in tools if tool.name in choice.allowed]
        return {"type": "allowed_tools", "mode": choice.mode, "tools": allowed}
    return choice.mode


def _encode_format(format: OutputFormat | None) -> Json | None:
    if format is None:
        return None
    if format.schema is None:
        return {"type": "json_object"}
    shown = {"type": "json_schema", "name": format.name, "schema": format.schema, "strict": bool(format.strict)}
    return {**shown, "description": format.description} if format.description else shown
