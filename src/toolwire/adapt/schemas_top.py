"""Changes to the top of a tool's schema, and to references, which nearly every server restricts."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import msgspec

from toolwire.adapt.schemas_walk import (
    Schema,
    change_inner,
    find_target,
    list_under,
    mapping_under,
    schemas_under,
    without,
)

ALTERNATIVES = ("allOf", "anyOf", "oneOf")
REFUSED = (*ALTERNATIVES, "const", "enum", "not")
MAX_TOP_DEPTH = 8
"""Maximum depth of references and alternatives at the top."""
MAX_BRANCHES = 500
"""Maximum alternatives that are merged."""
MAX_INLINED_SCHEMAS = 5000
"""Maximum schemas that inlining may produce."""

_NULLABLE_OBJECTS = (None, ["object"], ["object", "null"], ["null", "object"])


def inline_refs(schema: Schema, lost: list[str]) -> Schema:
    """Replace every reference by its target. A recursive one becomes any object."""
    has_refs = "$defs" in schema or "definitions" in schema
    left = MAX_INLINED_SCHEMAS

    def look(part: Schema) -> Schema:
        nonlocal has_refs
        has_refs = has_refs or isinstance(part.get("$ref"), str)
        return part if has_refs else change_inner(part, look)

    def inline(part: Schema, inside: tuple[str, ...]) -> Schema:
        nonlocal left
        left -= 1
        ref, rest = part.get("$ref"), without(part, "$ref", "$defs", "definitions")
        if not isinstance(ref, str):
            return change_inner(rest, lambda inner: inline(inner, inside))
        found = find_target(schema, ref)
        if found is None or ref in inside or left < 0:
            lost.append("$ref")
            return {"type": "object", **rest} if found is not None else rest
        return inline({**found, **rest}, (*inside, ref))

    look(schema)
    return inline(schema, ()) if has_refs else schema


def make_top_object(schema: Schema, lost: list[str]) -> Schema:
    """An object at the top, without alternatives: their properties are merged into it."""
    top = _resolve(schema, schema, 0)
    if any(key in top for key in REFUSED):
        lost += [key for key in REFUSED if key in top and key != "allOf"]
        top = _Merging(schema).merge(top, 0)
    if top.get("type") == "object":
        return top
    if top.get("type") not in _NULLABLE_OBJECTS:
        lost.append("type")
    return {"type": "object", **without(top, "type")}


def _resolve(root: Schema, part: Schema, depth: int) -> Schema:
    """The schema with the target of its reference merged into it."""
    found = find_target(root, part.get("$ref")) if depth < MAX_TOP_DEPTH else None
    if found is None:
        return part
    return _resolve(root, {**found, **without(part, "$ref")}, depth + 1)


class _Merging:
    """Merges the alternatives of a schema into it, innermost first."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_BRANCHES

    def merge(self, part: Schema, depth: int) -> Schema:
        branches: dict[str, list[Schema]] = {}
        for key in ALTERNATIVES:
            found = (
                [_resolve(self._root, each, 0) for each in schemas_under(part, key)] if depth < MAX_TOP_DEPTH else []
            )
            objects = [each for each in found if each.get("type", "object") == "object"][: max(0, self._left)]
            self._left -= len(objects)
            branches[key] = [self.merge(each, depth + 1) for each in objects]
        return merge_branches(without(part, *REFUSED), branches)


def merge_branches(top: Schema, branches: Mapping[str, list[Schema]]) -> Schema:
    """One object with all properties. It requires what all alternatives require, and what any part of `allOf` does."""
    properties = {**mapping_under(top, "properties")}
    required = _required_names(top)
    for key, each in branches.items():
        for name, schema in chain.from_iterable(mapping_under(branch, "properties").items() for branch in each):
            first: Any = properties.setdefault(name, schema)
            if first is schema or (first == schema and not isinstance(first, _Choices)):
                continue
            if not isinstance(first, _Choices):
                first = properties[name] = _Choices(first)
            first.add(schema)
        names = [_required_names(branch) for branch in each] or [[]]
        shared = set(names[0]).intersection(*names[1:])
        required += [name for one in names for name in one if key == "allOf" or name in shared]
    out = without(top, *ALTERNATIVES)
    if properties:
        out["properties"] = properties
    if required:
        out["required"] = list(dict.fromkeys(required))
    return out


def _required_names(schema: Schema) -> list[str]:
    return [name for name in list_under(schema, "required") if isinstance(name, str)]


class _Choices(dict[str, list[Any]]):
    """A property that several alternatives describe differently, as `anyOf`."""

    def __init__(self, first: Any) -> None:
        super().__init__(anyOf=[])
        self._seen: set[bytes] = set()
        self.add(first)

    def add(self, schema: Any) -> None:
        written = msgspec.json.encode(schema, order="deterministic")
        if written not in self._seen:
            self._seen.add(written)
            self["anyOf"].append(schema)


def add_properties(schema: Schema, lost: list[str]) -> Schema:
    """The schema with `properties`, empty if there were none."""
    return schema if isinstance(schema.get("properties"), dict) else {**schema, "properties": {}}
