"""Encodes a request for the Gemini API. The JSON of a client of the same dialect is kept where possible.

The flat history is folded into contents of the roles `user` and `model`. All results of a step are in one content, in
the order of their calls; what the user says after them is in a content of its own.

Gemini 3 refuses a step whose first call has no signature. If the signature is unknown, because another model made the
call, the literal that Google has for this stands in for it.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from toolwire.adapt.history import OPENING
from toolwire.adapt.schemas import adjust
from toolwire.backends.encoding import encode_arguments, note_dropped_part, split_opening, without_none, wrap_system
from toolwire.backends.gemini.decode import DIALECT
from toolwire.backends.gemini.profile import Profile
from toolwire.backends.originals import Originals
from toolwire.core.events import Note
from toolwire.core.raw import Json, fields_of, objects_of, text_of
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    Role,
    TextPart,
    Tool,
    ToolsEntry,
)
from toolwire.core.signatures import UNKNOWN_THOUGHT_SIGNATURE, unwrap_thought_signature

_COLLECTIONS = ("models", "tunedModels", "endpoints")
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
_RENAMED = {
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
"""Fields of other dialects that stand in `generationConfig`."""
_MADE_ID = re.compile(r"call_[0-9a-f]{24}[0-9]{0,4}")
"""An id that was made here for a call without one."""
_EMPTY = frozenset(("type", "properties", "required", "additionalProperties", "$schema", "title", "description"))
"""The fields of a schema without parameters."""
_MEDIA_TYPES = {"mp3": "audio/mp3", "wav": "audio/wav"}


def make_path(model: str, method: str) -> str:
    """The path of a method of a model, whose name may have the prefix `models/`."""
    collection, _, name = model.partition("/")
    if collection not in _COLLECTIONS or not name:
        collection, name = "models", model
    return f"/{collection}/{quote(name, safe='@')}:{method}"


def encode_request(request: Request, profile: Profile, declared: tuple[Tool, ...]) -> tuple[Json, list[Note]]:
    """The body to post, and notes about what it lacks. `declared`: the tools before they were lowered."""
    notes: list[Note] = []
    if request.dialect == DIALECT:
        body = _encode_original(request, profile, declared, notes)
    else:
        body = _encode_foreign(request, profile, notes)
    notes += [Note("field_dropped", name) for name in profile.refuses if _remove_field(body, name)]
    return body, notes


def _encode_original(request: Request, profile: Profile, declared: tuple[Tool, ...], notes: list[Note]) -> Json:
    """The body of a client of the same dialect: its fields, with only the necessary changes."""
    body: Json = {**request.fields}
    if request.tools_changed or [tool.name for tool in declared] != [tool.name for tool in request.tools]:
        body["tools"] = _encode_tools(request.tools, request, profile)
    has_unsigned = profile.generation_of(request.model) >= 3 and any(map(is_unsigned, request.entries))
    if not request.history_unchanged or "reasoning" in request.without or has_unsigned:
        originals = Originals(request, request.fields["contents"])
        body["contents"] = Fold(request, profile, notes, originals).fold(request.entries)
    return body


def is_unsigned(entry: Entry) -> bool:
    """Whether an entry is a call to which the client has added neither a signature nor a word in its place."""
    return isinstance(entry, CallEntry) and not entry.signature and b"ignature" not in bytes(entry.raw or b"")


def _encode_foreign(request: Request, profile: Profile, notes: list[Note]) -> Json:
    opening, rest = split_opening(request.entries, "system", "developer")
    fold = Fold(request, profile, notes)
    system = [text for text in (request.instructions, *(fold.join_texts(entry.parts) for entry in opening)) if text]
    sampling, generation = request.sampling, profile.generation_of(request.model)
    config = without_none(
        temperature=sampling.temperature,
        topP=sampling.top_p,
        maxOutputTokens=sampling.max_tokens,
        stopSequences=list(sampling.stop) or None,
        thinkingConfig=_encode_thinking(sampling.effort, request.model, generation, notes),
        **{_RENAMED[name]: value for name, value in request.extra.items() if name in _RENAMED},
    )
    choice = _encode_tool_choice(request, profile) if request.tools else {}
    if request.output_format is not None:
        if request.tools and (generation < 3 or choice.get("mode") == "ANY"):
            notes.append(Note("field_dropped", "response_format"))  # refused beside tools
        else:
            config |= _encode_output_format(request.output_format.schema, profile)
    body: Json = {"contents": fold.fold(rest)}
    if system:
        body["systemInstruction"] = {"parts": [{"text": "\n\n".join(system)}]}
    if request.tools or request.hosted_tools:
        body["tools"] = _encode_tools(request.tools, request, profile)
    if choice:
        body["toolConfig"] = {"functionCallingConfig": choice}
    if config:
        body["generationConfig"] = config
    lost = {
        "verbosity": sampling.verbosity,
        "service_tier": sampling.service_tier,
        "metadata": request.caller.metadata,
        "parallel_tool_calls": None if request.parallel_calls or not request.tools else request.parallel_calls,
        "cache_control": request.marks_cache or None,
    }
    dropped = [name for name, value in lost.items() if value not in (None, "auto", "default")]
    notes += [Note("field_dropped", name) for name in (*dropped, *request.extra) if name not in _RENAMED]
    return body


def _remove_field(body: Json, name: str) -> bool:
    """Remove a field, or, as `field.name`, one of the object in it. Returns whether it was there."""
    field, _, inner = name.partition(".")
    if not inner:
        return body.pop(field, None) is not None
    value = body.get(field)
    fields: Json = fields_of(value) if isinstance(value, msgspec.Raw) else value or {}
    if inner not in fields:
        return False
    body[field] = {key: value for key, value in fields.items() if key != inner}
    return True


def _encode_thinking(effort: str | None, model: str, generation: int, notes: list[Note]) -> Json | None:
    if not effort:
        return None
    if generation < 2 or effort not in _BUDGETS:
        notes.append(Note("field_dropped", "reasoning_effort"))
        return None
    if generation < 3:
        budget = _BUDGETS[effort]
        return {"includeThoughts": True, "thinkingBudget": budget} if budget else {"thinkingBudget": 0}
    level = {"none": "minimal", "xhigh": "high", "max": "high"}.get(effort, effort)
    if level == "minimal" and "flash" not in model:
        level = "low"  # the other models refuse it
    if level != effort:
        notes.append(Note("value_changed", "reasoning_effort"))
    return {"includeThoughts": True, "thinkingLevel": level.upper()}


def _encode_output_format(schema: msgspec.Raw | None, profile: Profile) -> Json:
    config: Json = {"responseMimeType": "application/json"}
    if schema is None:
        return config
    if profile.schema_field == "parametersJsonSchema":
        return {**config, "responseJsonSchema": schema}
    change = adjust(schema, profile.schema_needs)
    return {**config, "responseSchema": schema if change is None else change.parameters}


def _encode_tools(tools: tuple[Tool, ...], request: Request, profile: Profile) -> list[Any]:
    declarations = [_encode_tool(tool, profile) for tool in tools]
    hosted = [tool.raw for tool in request.hosted_tools]
    return [*hosted, {"functionDeclarations": declarations}] if declarations else hosted


def _encode_tool(tool: Tool, profile: Profile) -> Json:
    parameters = None if tool.parameters is None or _is_empty(tool.parameters) else tool.parameters
    named = {"name": tool.name, "description": tool.description or None, profile.schema_field: parameters}
    return without_none(**named)


def _is_empty(schema: msgspec.Raw) -> bool:
    """Whether a schema is that of an object without properties, which servers refuse."""
    fields = fields_of(schema) if bytes(schema).startswith(b"{") else {}
    return fields.keys() <= _EMPTY and not fields_of(fields.get("properties", b"{}"))


def _encode_tool_choice(request: Request, profile: Profile) -> Json:
    """The tool choice. All tools stay declared, so that the prompt does not change with it."""
    choice, config = request.tool_choice, Json()
    if choice is not None:
        names = [choice.name] if choice.name else [*choice.allowed] if choice.limited else []
        if choice.mode == "none" or (choice.limited and not names):
            config["mode"] = "NONE"
        elif names:
            is_forced = choice.name or choice.mode == "required"
            config |= {"mode": "ANY" if is_forced else "VALIDATED", "allowedFunctionNames": names}
        else:
            config["mode"] = "ANY" if choice.mode == "required" else "AUTO"
    if profile.streams_arguments and request.stream:
        config["streamFunctionCallArguments"] = True
    return config


class Fold:
    """Folds a flat history into contents; those of a client of the same dialect stay as they are."""

    def __init__(
        self, request: Request, profile: Profile, notes: list[Note], originals: Originals | None = None
    ) -> None:
        self._profile = profile
        self._notes = notes
        self._originals = originals
        self._generation = profile.generation_of(request.model)
        self._is_unsigned = "reasoning" in request.without
        self._names = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
        self._order = {id: index for index, id in enumerate(self._names)}
        self._out: list[Json] = []
        self._called: Json | None = None  # the last content with a call
        self._answered: list[str] = []  # the calls whose results the last content holds
        self._media: list[Json] = []  # parts of results that stand behind them

    def fold(self, entries: Sequence[Entry]) -> list[Json]:
        """The contents of these entries."""
        for index, group in groupby(entries, lambda entry: entry.message):
            if self._originals is not None and index >= 0:
                self._add_content([*group], self._originals, index)
            else:
                for entry in group:
                    self._add(entry)
        self._end_results()
        if self._originals is not None:
            self._out += self._originals.take_unread()
        elif not self._out or self._out[0]["role"] == "model":
            self._out.insert(0, {"role": "user", "parts": [{"text": OPENING}]})
            self._notes.append(Note("message_added", "user"))
        return self._out

    def _add_content(self, entries: list[Entry], originals: Originals, index: int) -> None:
        """Add the entries of one content of the client: the original, or a changed one."""
        self._end_results()
        self._out += originals.take_unread(index)
        original = originals.messages[index]
        first = next((entry for entry in entries if isinstance(entry, CallEntry)), None)
        is_refused = self._is_unsigned or (first is not None and self._generation >= 3 and is_unsigned(first))
        if originals.are_whole(entries) and not is_refused:
            self._out.append(original)
            return
        role = text_of(original["role"]) if "role" in original else "user"
        before, self._out = self._out, []
        for entry in entries:
            keeps = originals.is_unchanged(entry) and not (self._is_unsigned or (is_refused and entry is first))
            if isinstance(entry, OtherEntry) or (keeps and entry.raw is not None):
                assert entry.raw is not None
                parts = objects_of(entry.raw) if bytes(entry.raw).startswith(b"[") else [fields_of(entry.raw)]
                for part in parts:
                    self._add_part(role, part)
                self._called = self._out[-1] if isinstance(entry, CallEntry) else self._called
            else:
                self._add(entry)
        self._end_results()
        self._out = [*before, *self._out]

    def _add(self, entry: Entry) -> None:
        match entry:
            case Message(role, parts):
                self._add_message(role, parts)
            case CallEntry():
                self._add_call(entry)
            case ResultEntry():
                self._add_result(entry)
            case ReasoningEntry():
                self._add_reasoning(entry)
            case OtherEntry():
                self._notes.append(Note("item_dropped", entry.type))
            case ToolsEntry():
                pass  # declared with the others

    def _add_message(self, role: Role, parts: tuple[Part, ...]) -> None:
        self._end_results()
        if role == "user":
            for part in parts:
                if written := self._encode_part(part):
                    self._add_part("user", written)
        elif text := self.join_texts(parts):
            is_own = role == "assistant"
            self._add_part("model" if is_own else "user", {"text": text if is_own else wrap_system(text)})

    def _add_part(self, role: str, part: Any) -> None:
        self._end_results()
        last = self._out[-1] if self._out else {}
        if last.get("role") == role and type(last["parts"]) is list:
            last["parts"] += [part]
        else:
            self._out.append({"role": role, "parts": [part]})

    def _add_call(self, entry: CallEntry) -> None:
        call: Json = {"name": entry.name, "args": encode_arguments(entry, self._notes)}
        signature = "" if self._is_unsigned else unwrap_thought_signature(entry.signature)
        part: Json = {"functionCall": {**self._encode_id(entry.id), **call}}
        self._add_part("model", part)
        is_first, self._called = self._out[-1] is not self._called, self._out[-1]
        if is_first and not signature and self._generation >= 3:
            self._notes.append(Note("signature_missing", entry.id))
            signature = UNKNOWN_THOUGHT_SIGNATURE
        if signature:
            part["thoughtSignature"] = signature

    def _encode_id(self, id: str) -> Json:
        """The id of a call, unless it was made here because the server gave none."""
        ids = self._profile.ids
        return {"id": id} if ids == "always" or (ids == "own" and id and not _MADE_ID.fullmatch(id)) else {}

    def _add_reasoning(self, entry: ReasoningEntry) -> None:
        if entry.origin != DIALECT or not entry.signature or self._is_unsigned:
            self._notes += [Note("reasoning_dropped", entry.id)] if entry.signature else []
            return
        if not entry.redacted:
            self._add_part("model", {"text": entry.text, "thought": True, "thoughtSignature": entry.signature})
            return
        last: Json = self._out[-1]["parts"][-1] if self._out and self._out[-1].get("role") == "model" else {}
        if last.keys() == {"text"}:
            last["thoughtSignature"] = entry.signature
        else:
            self._add_part("model", {"text": "", "thoughtSignature": entry.signature})

    def _add_result(self, entry: ResultEntry) -> None:
        texts = "\n".join(part.text for part in entry.parts if isinstance(part, TextPart | RefusalPart))
        others = [part for part in entry.parts if not isinstance(part, TextPart | RefusalPart)]
        media = [written for part in others if (written := self._encode_part(part))]
        response: Json = {"error" if entry.failed else "output": texts}
        name = self._names.get(entry.call_id, entry.call_id)
        result: Json = {**self._encode_id(entry.call_id), "name": name, "response": response}
        if media and self._generation >= 3:
            result["parts"] = media
        else:
            self._media += media
        if not self._answered:
            self._out.append({"role": "user", "parts": []})
        self._answered.append(entry.call_id)
        self._out[-1]["parts"].append({"functionResponse": result})

    def _end_results(self) -> None:
        """End the content with the results of a step: in the order of their calls, with nothing else but media."""
        answered, media, self._answered, self._media = self._answered, self._media, [], []
        if answered:
            parts = sorted(
                zip(answered, self._out[-1]["parts"], strict=True), key=lambda pair: self._order.get(pair[0], 0)
            )
            # The list becomes a tuple so that nothing is added to it.
            self._out[-1]["parts"] = (*(part for _, part in parts), *media)

    def join_texts(self, parts: tuple[Part, ...]) -> str:
        """The texts of these parts as one; other parts are dropped with a note."""
        self._notes += [note_dropped_part(part) for part in parts if not isinstance(part, TextPart | RefusalPart)]
        return "".join(part.text for part in parts if isinstance(part, TextPart | RefusalPart))

    def _encode_part(self, part: Part) -> Json | None:
        match part:
            case TextPart(text) | RefusalPart(text):
                return {"text": text} if text else None
            case ImagePart(url) if url:
                return _encode_media(url, "image/jpeg")
            case FilePart(data, _, name, url) if data or url:
                written = _encode_media(data or url, "application/pdf")
                if name and "inlineData" in written:
                    written["inlineData"]["displayName"] = name
                return written
            case AudioPart(data, format):
                return {"inlineData": {"mimeType": _MEDIA_TYPES.get(format, f"audio/{format}"), "data": data}}
            case _:
                self._notes.append(note_dropped_part(part))
                return None


def _encode_media(url: str, default: str) -> Json:
    """The bytes of a data URL, or a reference to a file."""
    if not url.startswith("data:"):
        return {"fileData": {"mimeType": default, "fileUri": url}}
    kind, comma, data = url.removeprefix("data:").partition(",")
    kind, coded, _ = kind.partition(";base64")
    if comma and not coded:
        data = b64encode(unquote_to_bytes(data)).decode()
    return {"inlineData": {"mimeType": kind.partition(";")[0] or default, "data": data}}
