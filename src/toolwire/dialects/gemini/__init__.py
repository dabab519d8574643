"""Google's Gemini API, `generateContent`, as a dialect."""

import re
from collections.abc import Mapping
from typing import Any

from toolwire.dialects.gemini.answer import encode_error, encode_turn
from toolwire.dialects.gemini.decode import decode_request, decode_steps
from toolwire.dialects.gemini.encode import StreamEncoder
from toolwire.dialects.gemini.models import encode_count, encode_model, encode_models

PATH = "/v1beta/models"
"""The path of the models. A request goes to a method of one of them; one to this path has the model in its body."""
PATTERN = re.compile(r"(?P<resource>/.+):(?P<method>generateContent|streamGenerateContent)|" + PATH)
"""Matches the paths of AI Studio and of Vertex AI in any version, with any prefix. A model's name may have colons."""
COUNT_PATH = "/{resource:path}:countTokens"


def new_id(seed: str) -> str:
    """The id of an answer."""
    return seed


_FIELDS = frozenset(("candidates", "promptFeedback"))
_OTHER_FIELDS = frozenset(("choices", "object", "type"))


def recognises(fields: Mapping[str, Any]) -> bool:
    """Whether the data of a frame, or a plain answer, can only be of this dialect."""
    return not _FIELDS.isdisjoint(fields) and _OTHER_FIELDS.isdisjoint(fields)


__all__ = [
    "COUNT_PATH",
    "PATH",
    "PATTERN",
    "StreamEncoder",
    "decode_request",
    "decode_steps",
    "encode_count",
    "encode_error",
    "encode_model",
    "encode_models",
    "encode_turn",
    "new_id",
    "recognises",
]
