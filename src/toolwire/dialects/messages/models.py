"""Encodes the list of models as Anthropic does.

{"data":[{"type":"model","id":"demo","display_name":"demo",…}],"has_more":false,"first_id":"demo","last_id":"demo"}
"""

import re
from collections.abc import Mapping, Sequence

from toolwire.core.errors import BadRequest
from toolwire.core.raw import Json

MAX_PAGE_SIZE, DEFAULT_PAGE_SIZE = 1000, 20
"""Models per page, as at Anthropic."""

# Fields of a model that we do not know. Anthropic uses the epoch for an unknown release date.
_UNKNOWN: Json = {
    "created_at": "1970-01-01T00:00:00Z",
    "lifecycle": "active",
    "capabilities": None,
    "line": None,
    "max_input_tokens": None,
    "max_tokens": None,
    "deprecated_at": None,
    "retires_at": None,
}


def encode_model(name: str, owner: str = "") -> Json:
    """Encode a model. The format has no field for the name of its backend."""
    return {"type": "model", "id": name, "display_name": name, **_UNKNOWN}


def encode_models(found: Sequence[tuple[str, str]], query: Mapping[str, str]) -> Json:
    """Encode the page that the query asks for: the first, or the one after or before a model. Raises `BadRequest`."""
    names = [name for name, _ in found]
    limit = query.get("limit", str(DEFAULT_PAGE_SIZE))
    if not re.fullmatch(r"-?[0-9]{1,18}", limit) or int(limit) < 1:
        raise BadRequest(f"limit must be a positive number; received {limit!r}.", "limit")
    size = int(limit)
    if size > MAX_PAGE_SIZE:
        raise BadRequest(f"limit must be at most {MAX_PAGE_SIZE}; received {size}.", "limit")
    after, before = (_find_cursor(query, field, names) for field in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise BadRequest("after_id and before_id cannot both be sent.", "before_id")
    if before is not None:
        start, end = max(0, before - size), before
        has_more = start > 0
    else:
        start = 0 if after is None else after + 1
        end = start + size
        has_more = end < len(names)
    shown = names[start:end]
    return {
        "data": [encode_model(name) for name in shown],
        "has_more": has_more,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _find_cursor(query: Mapping[str, str], field: str, names: Sequence[str]) -> int | None:
    """The index of the model that the query names in this field, or None."""
    name = query.get(field)
    if not name:
        return None
    if name not in names:
        raise BadRequest(f"{field}: There is no model {name!r} here.", field)
    return names.index(name)
