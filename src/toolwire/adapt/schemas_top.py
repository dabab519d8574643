"""Changes to the top of a tool's schema, and to references, which nearly every server restricts."""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolwire.adapt.schemas_walk import Schema, each_inside, listed, named, schemas, target, without

ALTERNATIVES = ("allOf", "anyOf", "oneOf")
REFUSED = (*ALTERNATIVES, "const", "enum", "not")
MAX_DEPTH = 8
"""How deep references and alternatives are followed at the top."""
MAX_BRANCHES = 500
"""Most alternatives that are merged."""
MAX_NODES = 5000
"""Most schemas that inlining may produce."""

_NULLABLE_OBJECTS = (None, ["object"], ["object", "null"], ["null", "object"])


def inline_refs(schema: Schema, lost: list[str]) -> Schema:
    """Replace every reference by its target. A recursive one becomes any object."""
    if not _refers(schema):
        return schema
    left = MAX_NODES

    def inlined(part: Schema, inside: tuple[str, ...]) -> Schema:
        nonlocal left
        left -= 1
        ref, rest = part.get("$ref"), without(part, "$ref", "$defs", "definitions")
        if not isinstance(ref, str):
            return each_inside(rest, lambda inner: inlined(inner, inside))
        found = target(schema, ref)
        if found is None or ref in inside or left < 0:
            lost.append("$ref")
            return {"type": "object", **rest} if found is not None else rest
        return inlined({**found, **rest}, (*inside, ref))

    return inlined(schema, ())


def _refers(schema: Schema) -> bool:
    found = "$defs" in schema or "definitions" in schema

    def look(part: Schema) -> Schema:
        nonlocal found
        found = found or isinstance(part.get("$ref"), str)
        return part if found else each_inside(part, look)

    look(schema)
    return found


def object_top(schema: Schema, lost: list[str]) -> Schema:
    """An object at the top, without alternatives: their properties are merged into it."""
    top = _without_ref(schema, schema, 0)
    if any(key in top for key in REFUSED):
        lost += [key for key in REFUSED if key in top and key != "allOf"]
        top = _Merging(schema).merged(top, 0)
    if top.get("type") == "object":
        return top
    if top.get("type") not in _NULLABLE_OBJECTS:
        lost.append("type")
    return {"type": "object", **without(top, "type")}


def _without_ref(root: Schema, part: Schema, depth: int) -> Schema:
    found = target(root, part.get("$ref")) if depth < MAX_DEPTH else None
    if found is None:
        return part
    return _without_ref(root, {**found, **without(part, "$ref")}, depth + 1)


class _Merging:
    """Merges the alternatives of a schema into it, innermost first."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_BRANCHES

    def merged(self, part: Schema, depth: int) -> Schema:
        return merged(without(part, *REFUSED), {key: self._branches(part, key, depth) for key in ALTERNATIVES})

    def _branches(self, part: Schema, key: str, depth: int) -> list[Schema]:
        """The alternatives that are objects."""
        found = [_without_ref(self._root, each, 0) for each in schemas(part, key)] if depth < MAX_DEPTH else []
        objects = [each for each in found if each.get("type", "object") == "object"][: max(0, self._left)]
        self._left -= len(objects)
        return [self.merged(each, depth + 1) for each in objects]


def merged(top: Schema, branches: Mapping[str, list[Schema]]) -> Schema:
    """One object with all properties. It requires what all alternatives require, and what any part of `allOf` does."""
    properties = {**named(top, "properties")}
    required = _names(top)
    for key, each in branches.items():
        for branch in each:
            _add_properties(properties, named(branch, "properties"))
        required += _required(each) if key != "allOf" else [name for one in each for name in _names(one)]
    out = without(top, *ALTERNATIVES)
    if properties:
        out["properties"] = properties
    if required:
        out["required"] = list(dict.fromkeys(required))
    return out


def _names(schema: Schema) -> list[str]:
    return [name for name in listed(schema, "required") if isinstance(name, str)]


def _required(branches: list[Schema]) -> list[str]:
    first, *others = map(_names, branches) if branches else ([],)
    shared = set(first).intersection(*others)
    return [name for name in first if name in shared]


def _add_properties(properties: Schema, more: Schema) -> None:
    for name, schema in more.items():
        first: Any = properties.setdefault(name, schema)
        if first is schema:
            continue
        if not isinstance(first, _Choices):
            if first == schema:
                continue
            first = properties[name] = _Choices(first)
        first.add(schema)


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


def with_properties(schema: Schema, lost: list[str]) -> Schema:
    """The schema with `properties`, empty if there were none."""
    return schema if isinstance(schema.get("properties"), dict) else {**schema, "properties": {}}
