"""Encodes models and token counts as Google does.

{"models":[{"name":"models/demo","displayName":"demo","supportedGenerationMethods":["generateContent",…]}]}
"""

import re
from collections.abc import Mapping, Sequence

from toolwire.core.errors import BadRequest
from toolwire.core.raw import Json

MAX_PAGE_SIZE, DEFAULT_PAGE_SIZE = 1000, 50
"""Models per page, as at Google."""
_METHODS = ("generateContent", "streamGenerateContent", "countTokens")


def encode_model(name: str, owner: str = "") -> Json:
    """Encode a model. The format has no field for the name of its backend."""
    known = {"name": f"models/{name}", "version": "", "displayName": name, "description": ""}
    return {**known, "supportedGenerationMethods": _METHODS}


def encode_models(found: Sequence[tuple[str, str]], query: Mapping[str, str]) -> Json:
    """Encode the page that the query asks for; its token is the index of the first model. Raises `BadRequest`."""
    size, start = (_read_number(query, name) for name in ("pageSize", "pageToken"))
    start, end = start or 0, (start or 0) + min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    page: Json = {"models": [encode_model(name) for name, _ in found[start:end]]}
    return {**page, "nextPageToken": str(end)} if end < len(found) else page


def encode_count(tokens: int) -> Json:
    """Encode the number of tokens of a request."""
    return {"totalTokens": tokens}


def _read_number(query: Mapping[str, str], field: str) -> int | None:
    text = query.get(field) or "0"
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise BadRequest(f"{field} must be a number; received {text!r}.", field)
    return int(text)
