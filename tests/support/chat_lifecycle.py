"""A strict reader of one finished Chat stream: it says which rules of the protocol the stream broke.

Every complaint reads `rule: sentence`, as those of `lifecycle` for Responses do. Frames are what `gateway.read_sse`
gives: (`data`, value) and (`comment`, text).
"""

from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
Frames = list[tuple[str, Any]]

FINISHES = ("stop", "length", "tool_calls", "content_filter", "function_call")


def violations(frames: Frames, *, usage: bool) -> list[str]:
    """Every rule that one finished stream broke. `usage` says whether the client asked for the tokens."""
    data = [value for kind, value in frames if kind == "data"]
    chunks: list[Json] = [value for value in data if isinstance(value, dict) and "error" not in value]
    failed = any(isinstance(value, dict) and "error" in value for value in data)
    return [
        *_ending(data),
        *_identity(chunks),
        *_role(chunks),
        *_finish(chunks, failed=failed),
        *_usage(chunks, asked=usage),
        *_calls(chunks),
        *_fragments(chunks),
    ]


def _ending(data: list[Any]) -> Iterator[str]:
    if data[-1:] != ["[DONE]"] or data.count("[DONE]") != 1:
        yield "done-marker: [DONE] is not once and last in the stream."
    errors = [place for place, value in enumerate(data) if isinstance(value, dict) and "error" in value]
    if errors and errors != [len(data) - 2]:
        yield "error-frame: an error is not the one thing before [DONE]."


def _identity(chunks: list[Json]) -> Iterator[str]:
    if len({(chunk.get("id"), chunk.get("created"), chunk.get("model")) for chunk in chunks}) > 1:
        yield "identity: id, created and model are not the same in all chunks."
    if any(chunk.get("object") != "chat.completion.chunk" for chunk in chunks):
        yield "identity: an object is no chat.completion.chunk."


def _choices(chunks: Iterable[Json]) -> list[Json]:
    return [choice for chunk in chunks for choice in chunk.get("choices", ())]


def _role(chunks: list[Json]) -> Iterator[str]:
    roles = [place for place, choice in enumerate(_choices(chunks)) if "role" in choice["delta"]]
    if roles != [0] and chunks:
        yield "role: the role is not said once, in the first chunk."


def _finish(chunks: list[Json], *, failed: bool) -> Iterator[str]:
    choices = _choices(chunks)
    finishes = [place for place, choice in enumerate(choices) if choice["finish_reason"] is not None]
    if failed and finishes:
        yield "finish: a turn that failed has a finish reason."
    if not failed and finishes != [len(choices) - 1]:
        yield "finish: the last choice, and no other, has a finish reason."
    if any(choices[place]["finish_reason"] not in FINISHES for place in finishes):
        yield "finish: a finish reason is unknown."


def _usage(chunks: list[Json], *, asked: bool) -> Iterator[str]:
    told = [place for place, chunk in enumerate(chunks) if chunk.get("usage")]
    if told and (not asked or told != [len(chunks) - 1] or chunks[-1]["choices"]):
        yield "usage: it is told once, on request, in a last chunk without choices."
    if asked and any("usage" not in chunk for chunk in chunks):
        yield "usage: a chunk lacks the field although it was asked for."
    if not asked and any("usage" in chunk for chunk in chunks):
        yield "usage: a chunk has the field although nobody asked for it."
    if any(not chunk["choices"] for place, chunk in enumerate(chunks) if place not in told):
        yield "usage: a chunk has neither choices nor usage."


def _calls(chunks: list[Json]) -> Iterator[str]:
    """Indexes are dense; id, type and name come once, first; nothing interleaves."""
    ids: list[str] = []
    for choice in _choices(chunks):
        for part in choice["delta"].get("tool_calls", ()):
            yield from _call_part(part, ids)


def _call_part(part: Json, ids: list[str]) -> Iterator[str]:
    index = part.get("index")
    if type(index) is not int or index not in (len(ids), len(ids) - 1):
        yield f"call-index: the index {index!r} is not the open call's and not the next."
    elif index == len(ids):
        yield from _call_opening(part, ids)
        ids.append(part.get("id", ""))
    elif {"id", "type"} & set(part) or "name" in part.get("function", part.get("custom", {})):
        yield f"call-once: id, type or name of call {index} is repeated."


def _call_opening(part: Json, ids: list[str]) -> Iterator[str]:
    kind = part.get("type")
    inner: Any = part.get(kind) if isinstance(kind, str) else None
    if not part.get("id") or not (inner and inner.get("name")):
        yield f"call-opening: call {len(ids)} begins without its id, type or name."
    if part.get("id") in ids:
        yield f"call-id: the id {part.get('id')!r} is another call's."


def _fragments(chunks: list[Json]) -> Iterator[str]:
    for choice in _choices(chunks):
        for part in choice["delta"].get("tool_calls", ()):
            inner = part.get("function", part.get("custom", {}))
            if not isinstance(inner.get("arguments", inner.get("input")), str):
                yield "call-fragment: arguments are no string."
