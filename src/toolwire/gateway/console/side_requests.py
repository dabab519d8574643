"""Recognises side requests: turns that a client makes by itself beside a conversation.

    {"system": "Generate a concise, sentence-case title (3-7 words) …", "messages": […]}             title
    {…, "input": […, {"role": "user", "content": "You are performing a CONTEXT CHECKPOINT …"}]}      summary
    {"max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}                            probe
    {"type": "response.create", "generate": false, …}                                                warm-up

A user may ask for a title or a summary too. So a template is searched for only where clients put it: in the system
text of a request without tools, and in a long user message.
"""

import re
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.own_words import join_own_words
from toolwire.core.request import Message, Request, TextPart

Side: TypeAlias = Literal["", "title", "summary", "suggestion", "probe", "warm-up"]
"""What a side request is for; empty for a turn of a conversation."""

MAX_SEARCHED = 1000
"""Maximum characters of a text that are searched for a template."""
MIN_TEMPLATE_LENGTH = 100
"""Minimum characters of a user message that may be a template."""
TITLE_FIELDS = frozenset(("title", "isNewTopic", "branch", "emoji"))
WARM_UPS = ("Warmup", "warmup")
"""What Claude Code's subagents are asked to fill their prompt caches."""
_TEMPLATES: tuple[tuple[Side, re.Pattern[str]], ...] = (
    ("suggestion", re.compile(r"\[SUGGESTION MODE|\bsuggest\b[^.\n]{0,60}\bfollow-?ups?\b", re.IGNORECASE)),
    (
        "title",
        re.compile(
            r"\btitle generator\b|\bnaming an? (?:\w+ )?(?:session|conversation|chat)\b"
            r"|\b(?:generat|writ|creat|extract|provid|suggest|come up|coming up|respond)\w*\b[^.\n]{0,100}\btitles?\b",
            re.IGNORECASE,
        ),
    ),
    (
        "summary",
        re.compile(
            r"CONTEXT CHECKPOINT COMPACTION"
            r"|\b(?:summari[sz]\w+|(?:generat|writ|creat|provid)\w*\b[^.\n]{0,60}\bsummary)\b[^.\n]{0,100}"
            r"\b(?:conversation|session|chat|thread|so far)\b",
            re.IGNORECASE,
        ),
    ),
)


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}


def classify(request: Request) -> Side:
    """What a request is for, if it is a side request."""
    if request.sampling.max_tokens == 1:
        return "probe"
    asked = _find_last_words(request)
    if asked in WARM_UPS:
        return "warm-up"
    if _wants_title(request):
        return "title"
    texts = [asked[:MAX_SEARCHED]] if len(asked) >= MIN_TEMPLATE_LENGTH else []
    if not request.tools and not request.hosted_tools:
        texts += _list_system_texts(request)
    for side, template in _TEMPLATES:
        if any(map(template.search, texts)):
            return side
    return ""


def _find_last_words(request: Request) -> str:
    last = request.entries[-1] if request.entries else None
    return join_own_words(last.parts) if isinstance(last, Message) and last.role == "user" else ""


def _wants_title(request: Request) -> bool:
    """Whether the answer must be an object with a title and nothing that a conversation needs."""
    schema = request.output_format.schema if request.output_format is not None else None
    try:
        fields = msgspec.json.decode(schema, type=_Schema).properties if schema is not None else {}
    except msgspec.DecodeError:
        return False
    return "title" in fields and TITLE_FIELDS.issuperset(fields)


def _list_system_texts(request: Request) -> list[str]:
    texts = [request.instructions[:MAX_SEARCHED]]
    for entry in request.entries:
        if isinstance(entry, Message) and entry.role in ("system", "developer"):
            texts += [part.text[:MAX_SEARCHED] for part in entry.parts if isinstance(part, TextPart)]
    return texts
