"""Encodes a finished turn as one answer, a failure as Google's error object, and what a stream shares with both.

    {"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"},"finishReason":"STOP","index":0}],
     "usageMetadata":{…},"modelVersion":"demo","responseId":"…"}

If the backend is Gemini, unknown fields of its answer are kept, and parts without events are forwarded.
"""

import re
from hashlib import sha256
from typing import Any

import msgspec

from toolwire.adapt.names import is_minted_item_id
from toolwire.adapt.unwrap import wrap
from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn
from toolwire.core.errors import Failure
from toolwire.core.events import CallKind, RawFrame, Reason, ReasoningEnded, Usage
from toolwire.core.raw import NULL, Json, as_object, fields_of, object_in, objects_of, to_json, wrap_arguments
from toolwire.core.request import Request
from toolwire.core.signatures import PackedSignature, decode_base64, normalise_base64, unwrap_thought_signature
from toolwire.core.sse import on_one_line
from toolwire.dialects.gemini.carried import Carried, pack_carried
from toolwire.dialects.gemini.decode import shows_thoughts
from toolwire.dialects.gemini.history import ORIGIN

_FINISH: dict[Reason, str] = {"stop": "STOP", "calls": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
_REASONS: dict[str, Reason] = {"STOP": "stop", "MAX_TOKENS": "length"}
"""Google's finish reasons with one meaning. All others but these mean `filter`, or nothing that we know."""
_CHUNK_FIELDS = frozenset(("candidates", "usageMetadata", "modelVersion", "responseId"))
_CANDIDATE_FIELDS = frozenset(("content", "finishReason", "index"))
_COUNTS = frozenset(
    ("promptTokenCount", "candidatesTokenCount", "totalTokenCount", "thoughtsTokenCount", "cachedContentTokenCount")
)
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    504: "DEADLINE_EXCEEDED",
}
_TYPE = "type.googleapis.com/google.rpc."
_fits = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


class Parts:
    """Makes the parts of an answer. Signatures of reasoning wait for the next part, which carries them."""

    def __init__(self, request: Request) -> None:
        self.shows_thoughts = shows_thoughts(request)
        self.is_native = False
        """The answer is Gemini's, so its calls need not carry their ids."""
        self._held: tuple[PackedSignature, ...] = ()

    def make_text(self, text: str) -> Json:
        return {"text": text, **self._take_signature()}

    def make_ending(self) -> Json:
        """The last part: an empty text."""
        return self.make_text("")

    @property
    def holds(self) -> bool:
        """Whether the next part has to carry something."""
        return bool(self._held)

    def end_reasoning(self, end: ReasoningEnded, texts: tuple[str, ...]) -> Json | None:
        """The part that carries a signature of Gemini's; any other is held."""
        if not end.signature:
            return None
        if end.origin == ORIGIN:
            of_thought = {"thought": True} if self.shows_thoughts and not end.redacted else {}
            return {"text": "", **of_thought, "thoughtSignature": end.signature}
        self._held = (*self._held, PackedSignature(end.origin, end.id, texts, end.signature, end.redacted))
        return None

    def make_call(self, call: Call) -> Json:
        """The part of a call, whose signature carries what clients lose."""
        id = call.id
        # gemini-cli takes the name of a tool before `__` for a prefix of its own, and removes it.
        if not _fits(id) or id.startswith(f"{call.name}__"):
            id = "call_" + sha256(id.encode()).hexdigest()[:24]
        native = unwrap_thought_signature(call.signature)
        if decode_base64(native) and not self._held:  # clients refuse an answer with any other signature
            signed = {"thoughtSignature": native}
        elif self.is_native and id == call.id and not native and not self._held:
            signed = {}
        else:
            signed = self._take_signature(call.id, call.signature)
        named: Json = {"name": call.name, "args": encode_arguments(call.arguments, call.kind)}
        if not (self.is_native and is_minted_item_id(id)):  # which the server did not give
            named["id"] = id
        return {"functionCall": named, **signed}

    def _take_signature(self, call: str = "", signature: str = "") -> Json:
        held, self._held = self._held, ()
        return {"thoughtSignature": pack_carried(Carried(call, signature, held))} if held or call else {}


def encode_arguments(arguments: str, kind: CallKind) -> msgspec.Raw:
    """Arguments as an object on one line."""
    if kind == "custom":
        return msgspec.Raw(wrap(arguments).encode())
    return msgspec.Raw(on_one_line(bytes(as_object(arguments) or wrap_arguments(arguments))))


class Original:
    """The parts of Gemini's chunk, or of its whole answer, that are passed on."""

    def __init__(self, data: bytes = b"{}") -> None:
        fields = fields_of(data)
        given = fields.get("candidates", NULL)
        candidates = objects_of(given) if given != NULL else []
        first = candidates[0] if candidates else {}
        self.extra = {name: value for name, value in fields.items() if name not in _CHUNK_FIELDS}
        self.candidate = {name: value for name, value in first.items() if name not in _CANDIDATE_FIELDS}
        self.others = candidates[1:]
        self.usage = {name: each for name, each in object_in(fields, "usageMetadata").items() if name not in _COUNTS}
        self.finish: Any = first.get("finishReason", NULL)
        listed = object_in(first, "content").get("parts", NULL)
        self._signed = [part for part in objects_of(listed) if "thoughtSignature" in part] if listed != NULL else []

    def take_signature(self, text: str) -> Json:
        """The signature on the part with this text."""
        written = to_json(text)
        for index, part in enumerate(self._signed):
            if msgspec.json.format(bytes(part.get("text", b'""')), indent=-1) == written:
                return {"thoughtSignature": self._signed.pop(index)["thoughtSignature"]}
        return {}

    def update(self, other: "Original") -> None:
        """Add what a later chunk has; its parts replace those of this one."""
        self.extra |= other.extra
        self.candidate |= other.candidate
        self.others += other.others
        self.usage |= other.usage
        self.finish = other.finish if other.finish != NULL else self.finish
        self._signed = other._signed


def encode_finish(reason: Reason, original: Original, *, refused: bool = False) -> Any:
    """The finish reason: the server's own, if it means the same."""
    written = "SAFETY" if refused and reason == "stop" else _FINISH[reason]
    if original.finish == NULL:
        return written
    given = msgspec.json.decode(original.finish)
    is_same = _FINISH.get(_REASONS.get(given, "filter")) == written or (given not in _REASONS and reason == "stop")
    return given if is_same else written


def encode_usage(usage: Usage, original: Original) -> Json:
    """Token counts. Google's count of the answer has no thoughts in it."""
    return {
        **original.usage,
        "promptTokenCount": usage.input,
        **({"cachedContentTokenCount": usage.cached} if usage.cached else {}),
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        **({"thoughtsTokenCount": usage.reasoning} if usage.reasoning else {}),
        "totalTokenCount": usage.total,
    }


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """Encode a finished turn as one answer."""
    parts, made, original = Parts(request), list[Json](), Original()
    for item in turn.items:
        match item:
            case RawFrame(type="chunk", data=data):
                parts.is_native = True
                original.update(Original(data))
            case RawFrame(type="part", data=data):
                made.append({**fields_of(data)})
            case Text(text) | Refusal(text):
                signed = original.take_signature(text)
                if made and [*made[-1]] == ["text"] and not signed and not parts.holds:
                    made[-1]["text"] += text
                else:
                    made.append({**parts.make_text(text), **signed})
            case Reasoning():
                _add_reasoning(made, parts, original, item)
            case Call(complete=True):
                made.append(parts.make_call(item))
            case _:
                pass
    if parts.holds or not made:
        made.append(parts.make_ending())
    refused = any(isinstance(item, Refusal) for item in turn.items)
    candidate: Json = {
        "content": {"parts": made, "role": "model"},
        "finishReason": encode_finish(turn.reason, original, refused=refused),
        "index": 0,
        **original.candidate,
    }
    return to_json(
        {
            "candidates": [candidate, *original.others],
            **({"usageMetadata": encode_usage(turn.usage, original)} if turn.usage is not None else {}),
            **original.extra,
            "modelVersion": request.model,
            "responseId": id,
        }
    )


def _add_reasoning(made: list[Json], parts: Parts, original: Original, item: Reasoning) -> None:
    text = "\n\n".join(item.parts)
    if text and parts.shows_thoughts:
        made.append({"text": text, "thought": True, **original.take_signature(text)})
    last: Json = made[-1] if made else {}
    if is_signed_with(last, item.signature):
        return
    signed = parts.end_reasoning(ReasoningEnded(item.id, item.signature, item.origin, item.redacted), item.parts)
    if signed is not None and "text" in last and "thoughtSignature" not in last:
        last["thoughtSignature"] = item.signature
    elif signed is not None:
        made.append(signed)


def is_signed_with(part: Json, signature: str) -> bool:
    """Whether a part has this signature of Gemini's, in any alphabet."""
    given = part.get("thoughtSignature")
    if isinstance(given, msgspec.Raw):
        given = msgspec.json.decode(given)
    return bool(signature) and isinstance(given, str) and normalise_base64(given) == normalise_base64(signature)


def encode_error(failure: Failure) -> bytes:
    """Encode a failure as Google's error object."""
    default = "INTERNAL" if failure.status >= 500 else "INVALID_ARGUMENT"
    if failure.status in (502, 503, 529):
        default = "UNAVAILABLE"
    details: list[Json] = []
    if failure.code:
        details.append({"@type": f"{_TYPE}ErrorInfo", "reason": failure.code.upper(), "domain": "toolwire"})
    if failure.param:
        violation = {"field": failure.param, "description": failure.message}
        details.append({"@type": f"{_TYPE}BadRequest", "fieldViolations": [violation]})
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", failure.retry_after):  # clients ignore the header
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{failure.retry_after}s"})
    error: Json = {
        "code": failure.status,
        "message": failure.message,
        "status": _STATUSES.get(failure.status, default),
        **({"details": details} if details else {}),
    }
    return to_json({"error": error})
