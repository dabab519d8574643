"""Decodes `contents` to entries. Raises a `BadRequest` that names the field.

    [{"role":"user","parts":[{"text":"Go."}]},
     {"role":"model","parts":[{"functionCall":{"name":"look","args":{},"id":"c1"},"thoughtSignature":"…"}]},
     {"role":"user","parts":[{"functionResponse":{"name":"look","response":{"output":"a.txt"},"id":"c1"}}]}]

Clients return each chunk of a stream as a content of its own, so neighbours of one role are one message. Some return
calls and results without ids: a call then gets one from its position, which is the same in every later request, and a
result answers a call by its id, else by its name, else by its position.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.core.raw import arguments_text, fields_of, text_of, to_raw, unwrap_arguments
from toolwire.core.request import (
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    Part,
    ReasoningEntry,
    ResultEntry,
    TextPart,
)
from toolwire.core.signatures import PackedSignature, normalise_base64, wrap_thought_signature
from toolwire.dialects import reading
from toolwire.dialects.gemini import wire
from toolwire.dialects.gemini.carried import Carried, read_thought_signature
from toolwire.dialects.reading import read_at

_decode_content = msgspec.json.Decoder(wire.Content).decode
_decode_part = msgspec.json.Decoder(wire.Part).decode
_decode_call = msgspec.json.Decoder(wire.FunctionCall).decode
_decode_response = msgspec.json.Decoder(wire.FunctionResponse).decode
_decode_blob = msgspec.json.Decoder(wire.Blob).decode
_decode_reference = msgspec.json.Decoder(wire.FileReference).decode

ORIGIN = "gemini"
"""The origin of signatures that a client sends as they are."""

_ROLES = {None: "user", "": "user", "user": "user", "model": "model", "function": "user", "tool": "user"}
_OUTPUTS = ("output", "result", "content")
"""The keys under which clients put the whole result."""
_AUDIO = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}
_BESIDE = frozenset(("thought", "thoughtSignature", "videoMetadata", "partMetadata", "mediaResolution"))
"""Fields beside the one that says what a part is."""

Located: TypeAlias = tuple[str, msgspec.Raw]
"""A part with its path."""


class Joined(msgspec.Struct, frozen=True):
    """Neighbouring contents of one role."""

    role: str
    answers: bool
    """Whether they hold results."""
    parts: list[Located]


def join_contents(raw: msgspec.Raw) -> tuple[list[Joined], msgspec.Raw]:
    """The contents with neighbours of one role joined, and their JSON: as it came, if there are none.

    Results and what the user says stay apart, because the service takes them in contents of their own.
    """
    contents, joined = wire.listed(raw), list[Joined]()
    for index, content in enumerate(contents):
        path = f"contents[{index}]"
        read = read_at(_decode_content, content, path)
        role = _ROLES.get(read.role)
        if role is None:
            raise BadRequest(f"{path}.role must be user or model; received {read.role!r}.", f"{path}.role")
        parts = list_parts(read.parts, path)
        answers = role == "user" and any(_is_result(part) for _, part in parts)
        if not joined or (joined[-1].role, joined[-1].answers) != (role, answers):
            joined.append(Joined(role, answers, []))
        joined[-1].parts.extend(parts)
    if len(joined) == len(contents) and reading.begins_with(raw, b"["):
        return joined, raw
    return joined, to_raw([{"role": each.role, "parts": [part for _, part in each.parts]} for each in joined])


def decode_contents(contents: Sequence[Joined]) -> Iterator[tuple[Entry, bool]]:
    """The entries of joined contents, and whether the server may get the part of each as the client wrote it."""
    history = History()
    for index, content in enumerate(contents):
        yield from history.read(index, content)


def list_parts(raw: msgspec.Raw | msgspec.UnsetType, path: str) -> list[Located]:
    """The parts of a content."""
    given = reading.value_of(raw)
    if given is None:
        return []
    if not reading.begins_with(given, b"[") and not reading.begins_with(given, b"{"):
        raise BadRequest(f"{path}.parts must be a list.", f"{path}.parts", "invalid_type")
    return [(f"{path}.parts[{number}]", part) for number, part in enumerate(wire.listed(given))]


class OpenCall(msgspec.Struct, frozen=True):
    """A call that waits for its result, with the id that the client knows."""

    wire_id: str
    id: str
    name: str


class History:
    """Reads the messages of a conversation, in order."""

    def __init__(self) -> None:
        self._calls = 0
        self._ids: dict[str, str] = {}  # by those that the client knows
        self._taken: set[str] = set()  # the ids of all calls
        self._open: list[OpenCall] = []  # the calls of the last step
        self._rebuilds = False  # a call of the last step is not as the client wrote it, so neither are the results
        self._out: list[tuple[Entry, bool]] = []
        self._texts: list[TextPart] = []  # of the open message
        self._raws: list[msgspec.Raw] = []
        self._signed: list[Entry] = []  # the signatures on these texts
        self._message = -1  # the index of the content
        self._thought: list[str] = []

    def read(self, index: int, content: Joined) -> list[tuple[Entry, bool]]:
        """The entries of the content at this index."""
        self._out, self._message = [], index
        if content.role == "model":
            self._open, self._rebuilds = [], False
            for part in content.parts:
                self._read_model_part(*part)
            self._end_thought()
            self._end_text()
        else:
            self._read_user_parts(content.parts)
        return self._out

    # The model

    def _read_model_part(self, path: str, raw: msgspec.Raw) -> None:
        part = read_at(_decode_part, wire.camel(raw), path)
        signature = read_thought_signature(part.thought_signature) if part.thought_signature else ""
        if isinstance(signature, Carried):
            fields = fields_of(raw)
            bare = to_raw({key: fields[key] for key in fields if wire.camel_name(key) != "thoughtSignature"})
            self._restore_reasoning(signature.reasoning)
        else:
            bare = raw
        call = reading.value_of(part.function_call)
        if part.thought:
            self._end_text()
            self._thought.append(part.text or "")
            if isinstance(signature, str) and signature:
                self._end_thought(signature)
            return
        self._end_thought()
        if call is not None:
            self._end_text()
            self._read_call(path, call, bare, signature)
        elif part.text is not None or (part.thought_signature and not _kind_of(raw)):
            if part.text:
                self._texts.append(TextPart(part.text))
                self._raws.append(bare)
            if isinstance(signature, str) and signature:
                entry = ReasoningEntry("", (), (), signature, ORIGIN, redacted=True, message=self._message)
                self._signed.append(entry)
        elif kind := _kind_of(raw):
            self._end_text()
            self._put(OtherEntry(kind, raw, self._message))

    def _put(self, entry: Entry, *, as_written: bool = True) -> None:
        self._out.append((entry, as_written))

    def _end_text(self) -> None:
        """Join the texts of the chunks of one answer. Signatures on them follow, so that none divides it."""
        if self._texts:
            text = "".join(part.text for part in self._texts)
            self._put(Message("assistant", (TextPart(text),), raw=to_raw(self._raws), message=self._message))
        self._out += [(entry, True) for entry in self._signed]
        self._texts, self._raws, self._signed = [], [], []

    def _end_thought(self, signature: str = "") -> None:
        """Join the chunks of one thought."""
        if not self._thought and not signature:
            return
        text, self._thought = "".join(self._thought), []
        if text or signature:
            summary = (text,) if text else ()
            self._put(ReasoningEntry("", summary, (), signature, ORIGIN, message=self._message))

    def _restore_reasoning(self, reasoning: Sequence[PackedSignature]) -> None:
        """Put the reasoning that a part carries before it, in place of the thoughts that the client was shown."""
        if not reasoning:
            return
        self._thought = []
        self._end_text()
        for each in reasoning:
            entry = ReasoningEntry(
                each.id, each.text, (), each.signature, each.origin, each.redacted, message=self._message
            )
            self._put(entry, as_written=False)

    def _read_call(self, path: str, raw: msgspec.Raw, part: msgspec.Raw, signature: Carried | str) -> None:
        call = read_at(_decode_call, wire.camel(raw), f"{path}.functionCall")
        if not call.name:
            raise reading.missing_field(f"{path}.functionCall.name")
        wire_id = call.id or ""
        given_ids = (signature.call if isinstance(signature, Carried) else "", wire_id)
        id = next((each for each in given_ids if each and each not in self._taken), "")
        id = id or _make_id(self._calls, call.name)
        self._taken.add(id)
        self._calls += 1
        self._open.append(OpenCall(wire_id, id, call.name))
        if wire_id:
            self._ids.setdefault(wire_id, id)
        given = reading.value_of(call.args)
        if given is None:
            arguments = "{}"
        elif reading.begins_with(given, b"{"):
            arguments = unwrap_arguments(given)
        else:
            arguments = arguments_text(given)
        if isinstance(signature, Carried):
            kept = signature.signature
        else:
            kept = wrap_thought_signature(signature) if signature else ""
        self._rebuilds = self._rebuilds or isinstance(signature, Carried)
        entry = CallEntry(id, call.name, arguments, raw=part, signature=kept, message=self._message)
        self._put(entry, as_written=not isinstance(signature, Carried))

    # The user

    def _read_user_parts(self, parts: Sequence[Located]) -> None:
        said: list[Part] = []
        raws: list[msgspec.Raw] = []
        for path, raw in parts:
            part = read_at(_decode_part, wire.camel(raw), path)
            response = reading.value_of(part.function_response)
            if response is not None:
                if said:
                    self._put(Message("user", tuple(said), raw=to_raw(raws), message=self._message))
                    said, raws = [], []
                self._put(self._read_result(path, response, raw), as_written=not self._rebuilds)
                continue
            media = _read_media(part, path)
            last = self._out[-1][0] if self._out else None
            if isinstance(media, ImagePart | AudioPart | FilePart) and isinstance(last, ResultEntry) and not said:
                # Some clients put the image of a result beside it.
                self._out[-1] = (
                    msgspec.structs.replace(last, parts=(*last.parts, media), raw=None),
                    not self._rebuilds,
                )
                continue
            said.append(media if media is not None else _read_other(part, raw))
            raws.append(raw)
        if said:
            self._put(Message("user", tuple(said), raw=to_raw(raws), message=self._message))

    def _read_result(self, path: str, raw: msgspec.Raw, part: msgspec.Raw) -> ResultEntry:
        read = read_at(_decode_response, wire.camel(raw), f"{path}.functionResponse")
        response = reading.value_of(read.response)
        if response is not None and not reading.begins_with(response, b"{"):
            where = f"{path}.functionResponse.response"
            raise BadRequest(f"{where}: An object is required.", where, "invalid_type")
        text, failed = _read_response(response, read.name or "")
        parts: list[Part] = [TextPart(text)] if text else []
        for where, each in list_parts(read.parts, f"{path}.functionResponse"):
            media = _read_media(read_at(_decode_part, wire.camel(each), where), where)
            parts.append(media or OtherPart(_kind_of(each)))
        id = self._answer(read.id or "", read.name or "")
        return ResultEntry(id, tuple(parts), raw=part, failed=failed, message=self._message)

    def _answer(self, wire_id: str, name: str) -> str:
        """The id of the call that a result answers."""
        matches = [call for call in self._open if wire_id and call.wire_id == wire_id]
        if not matches and wire_id in self._ids:
            return self._ids[wire_id]
        matches = matches or [call for call in self._open if call.name == name] or self._open
        if not matches or (wire_id and matches is self._open):
            return wire_id or _make_id(self._calls, f"{name} without a call")
        self._open.remove(matches[0])
        return matches[0].id


def _make_id(position: int, name: str) -> str:
    """An id for a call that has none, equal in all requests of a conversation, which `is_minted_item_id` recognizes."""
    return f"call_{hashlib.sha256(f'{position}:{name}'.encode()).hexdigest()[:24]}{position % 10_000:02}"


def _is_result(raw: msgspec.Raw) -> bool:
    return reading.begins_with(raw, b"{") and _kind_of(raw) == "functionResponse"


def _kind_of(raw: msgspec.Raw) -> str:
    """What a part is: the name of its main field."""
    names = map(wire.camel_name, fields_of(raw))
    return next((name for name in names if name not in _BESIDE), "")


def _read_response(raw: msgspec.Raw | None, name: str) -> tuple[str, bool]:
    """The text of a result, and whether the tool failed. Each client has its own form."""
    if raw is None:
        return "", False
    fields = fields_of(raw)
    keys = [*fields]
    if len(keys) == 1 and keys[0] in (*_OUTPUTS, "error"):
        return _text_of(fields[keys[0]]), keys[0] == "error"
    if sorted(keys) == ["content", "name"] and _text_of(fields["name"]) == name:
        return _text_of(fields["content"]), False
    return _text_of(raw), False


def _text_of(raw: msgspec.Raw) -> str:
    """A value as text: a string as it is, anything else as compact JSON."""
    return text_of(raw) if reading.begins_with(raw, b'"') else msgspec.json.format(bytes(raw), indent=-1).decode()


def _read_other(part: wire.Part, raw: msgspec.Raw) -> Part:
    return TextPart(part.text or "") if part.text is not None or not _kind_of(raw) else OtherPart(_kind_of(raw))


def _read_media(part: wire.Part, path: str) -> Part | None:
    """The image, audio or file of a part; None if it is something else."""
    if (raw := reading.value_of(part.inline_data)) is not None:
        blob = read_at(_decode_blob, wire.camel(raw), f"{path}.inlineData")
        kind, _, form = (blob.mime_type or "").partition("/")
        data = normalise_base64(blob.data)
        if kind == "audio":
            return AudioPart(data, _AUDIO.get(form, form))
        url = f"data:{blob.mime_type or 'application/octet-stream'};base64,{data}"
        return ImagePart(url) if kind == "image" else FilePart(url, name=blob.display_name or "")
    if (raw := reading.value_of(part.file_data)) is not None:
        file = read_at(_decode_reference, wire.camel(raw), f"{path}.fileData")
        is_public = file.file_uri.startswith(("http://", "https://")) and "googleapis.com/v1" not in file.file_uri
        url, id = (file.file_uri, "") if is_public else ("", file.file_uri)
        if (file.mime_type or "").startswith("image/"):
            return ImagePart(url, id=id)
        return FilePart(id=id, name=file.display_name or "", url=url)
    return None
