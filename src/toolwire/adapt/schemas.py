"""Adjusts a tool's JSON Schema to a server that supports only part of JSON Schema.

Each need of a server is the name of one small change in `CHANGES`. A schema that needs no change is not rewritten.
A change that loses a keyword is noted, because the model then sees less than the client declared; an equivalent change
is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.adapt.schemas_walk import (
    Change,
    Schema,
    apply_everywhere,
    change_inner,
    find_target,
    list_under,
    mapping_under,
    schemas_under,
    without,
)
from toolwire.core.cache import Cache
from toolwire.core.raw import to_raw

Need: TypeAlias = Literal[
    "inline_refs", "object_top", "no_const", "no_type_arrays", "nullable", "plain", "properties", "items", "codex"
]

MAX_REMARK_CHARS = 1000


class AdjustedSchema(msgspec.Struct, frozen=True):
    """A schema as the server accepts it. `lost` names the removed keywords, `remark` describes them to the model."""

    parameters: msgspec.Raw
    lost: tuple[str, ...] = ()
    remark: str = ""


def adjust(parameters: msgspec.Raw, needs: Sequence[Need]) -> AdjustedSchema | None:
    """The schema as the server needs it; None if it needs no change."""
    return _adjusted_schemas[bytes(parameters), tuple(needs)] if needs else None


@Cache  # an agent sends the same schemas with every request
def _adjusted_schemas(key: tuple[bytes, tuple[Need, ...]]) -> AdjustedSchema | None:
    data, needs = key
    lost: list[str] = []
    try:
        read = msgspec.json.decode(data)
        schema: Schema = cast("Schema", read) if isinstance(read, dict) else {}
        changed = schema
        for need, change in CHANGES.items():
            changed = change(changed, lost) if need in needs else changed
        if changed is read and not lost:
            return None
        alternatives = {key: schema[key] for key in ("anyOf", "oneOf") if key in lost and key in schema}
        constraints = dict(_find_constraints(schema, "")) if "codex" in needs else {}
        remarks = (
            _describe("The input must also match this JSON Schema", alternatives),
            _describe("Constraints on the input, by field", constraints),
        )
        text = "\n\n".join(remark for remark in remarks if remark)
        return AdjustedSchema(to_raw(changed), tuple(dict.fromkeys(lost)), text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _describe(words: str, lost: Schema) -> str:
    """A sentence that describes the lost keywords to the model, unless it is too long."""
    text = msgspec.json.encode(lost).decode()
    return f"{words}: {text}" if lost and len(text) <= MAX_REMARK_CHARS else ""


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
    """Replace every reference with its target. A recursive one becomes any object."""
    has_refs = "$defs" in schema or "definitions" in schema
    left = MAX_INLINED_SCHEMAS

    def find_refs(part: Schema) -> Schema:
        nonlocal has_refs
        has_refs = has_refs or isinstance(part.get("$ref"), str)
        return part if has_refs else change_inner(part, find_refs)

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

    find_refs(schema)
    return inline(schema, ()) if has_refs else schema


def make_top_object(schema: Schema, lost: list[str]) -> Schema:
    """An object at the top, without alternatives: their properties are merged into it."""
    top = _resolve(schema, schema, 0)
    if any(key in top for key in REFUSED):
        lost += [key for key in REFUSED if key in top and key != "allOf"]
        top = _Merger(schema).merge(top, 0)
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


class _Merger:
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
    required = _find_required(top)
    for key, each in branches.items():
        for name, schema in chain.from_iterable(mapping_under(branch, "properties").items() for branch in each):
            first: Any = properties.setdefault(name, schema)
            if first is schema or (first == schema and not isinstance(first, _Choices)):
                continue
            if not isinstance(first, _Choices):
                first = properties[name] = _Choices(first)
            first.add(schema)
        names = [_find_required(branch) for branch in each] or [[]]
        shared = set(names[0]).intersection(*names[1:])
        required += [name for one in names for name in one if key == "allOf" or name in shared]
    out = without(top, *ALTERNATIVES)
    if properties:
        out["properties"] = properties
    if required:
        out["required"] = list(dict.fromkeys(required))
    return out


def _find_required(schema: Schema) -> list[str]:
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


def add_items(schema: Schema, lost: list[str]) -> Schema:
    """Add empty `items` to an array that declares none."""
    if schema.get("type") != "array" or "items" in schema or "prefixItems" in schema:
        return schema
    return {**schema, "items": {}}


def replace_const(schema: Schema, lost: list[str]) -> Schema:
    """`const` becomes an `enum` of one value."""
    return without(schema, "const", enum=[schema["const"]]) if "const" in schema else schema


def split_type_arrays(schema: Schema, lost: list[str]) -> Schema:
    """A list of types becomes alternatives of one type each."""
    types = list_under(schema, "type")
    if not types:
        return schema
    if len(types) == 1:
        return {**schema, "type": types[0]}
    choices = [{"type": each} for each in types]
    if "anyOf" in schema:
        both = [*list_under(schema, "allOf"), {"anyOf": schema["anyOf"]}, {"anyOf": choices}]
        return without(schema, "type", "anyOf", allOf=both)
    return without(schema, "type", anyOf=choices)


def flag_nullable(schema: Schema, lost: list[str]) -> Schema:
    """Null becomes a flag, as in OpenAPI 3.0."""
    types = list_under(schema, "type")
    others = [each for each in types if each != "null"]
    if types:
        flagged = schema if len(others) == len(types) or not others else {**schema, "type": others, "nullable": True}
        return split_type_arrays(flagged, lost)
    choices = list_under(schema, "anyOf")
    others = [each for each in choices if each != {"type": "null"}]
    if len(others) == len(choices) or not others:
        return schema
    if len(others) == 1 and isinstance(others[0], dict):
        return {**cast("Schema", others[0]), **without(schema, "anyOf"), "nullable": True}
    return {**schema, "anyOf": others, "nullable": True}


_PLAIN = frozenset(
    ("anyOf", "default", "description", "enum", "format", "items", "maxItems", "maxLength", "maximum", "minItems",
     "minLength", "minimum", "nullable", "properties", "required", "title", "type")
)  # fmt: skip
_ANNOTATIONS = frozenset(
    ("$comment", "$defs", "$id", "$schema", "definitions", "deprecated", "examples", "readOnly", "writeOnly")
)
_FORMATS: tuple[Any, ...] = (None, "date-time", "double", "enum", "float", "int32", "int64")


def keep_plain_keywords(schema: Schema, lost: list[str]) -> Schema:
    """Only the keywords that Gemini supports stay."""
    if "oneOf" in schema and "anyOf" not in schema:
        schema = without(schema, "oneOf", anyOf=schema["oneOf"])
    if "allOf" in schema:
        choices = {key: schema[key] for key in ("anyOf",) if key in schema}
        schema = {**merge_branches(schema, {"allOf": schemas_under(schema, "allOf")}), **choices}
    gone = [key for key in schema if key not in _PLAIN]
    if schema.get("format") not in _FORMATS:
        gone.append("format")
    lost += [key for key in gone if key not in _ANNOTATIONS]
    return without(schema, *gone) if gone else schema


_DROPPED_BY_CODEX = frozenset(
    ("const", "contains", "default", "dependentRequired", "dependentSchemas", "else", "exclusiveMaximum",
     "exclusiveMinimum", "format", "if", "maxItems", "maxLength", "maxProperties", "maximum", "minLength",
     "minProperties", "minimum", "multipleOf", "not", "pattern", "patternProperties", "prefixItems", "propertyNames",
     "then", "unevaluatedProperties", "contentEncoding", "nullable", "uniqueItems")
)  # fmt: skip
"""Keywords that Codex drops or changes on the way to the model."""

_DESCRIBABLE = frozenset(
    ("$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "format", "items", "minimum", "oneOf",
     "prefixItems", "properties", "required", "type")
)  # fmt: skip
"""A schema with one of these keywords keeps its description in Codex."""


_TYPES: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def prepare_for_codex(schema: Schema, lost: list[str]) -> Schema:
    """Codex rewrites every schema: what it would refuse or misread is changed, and what it drops is recorded."""
    lost += _find_dropped(schema)
    changed = schema
    if isinstance(schema.get("items"), list):
        changed = without(changed, "items", items={})
    if isinstance(schema.get("minItems"), float):
        changed = {**changed, "minItems": int(schema["minItems"])}
    values = [schema["const"]] if "const" in schema else list_under(schema, "enum")
    types = list(dict.fromkeys(_TYPES[type(value)] for value in values if type(value) in _TYPES))
    if "type" not in schema and types and types != ["string"]:
        changed = {**changed, "type": types[0] if len(types) == 1 else types}
    # Codex takes `true` for a string, so `{}` replaces it.
    properties = mapping_under(schema, "properties")
    if any(inner is True for inner in properties.values()):
        changed = {**changed, "properties": {name: _replace_true(inner) for name, inner in properties.items()}}
    for key in ("anyOf", "oneOf", "allOf"):
        if any(inner is True for inner in list_under(schema, key)):
            changed = {**changed, key: [_replace_true(inner) for inner in list_under(schema, key)]}
    return without(changed, "items", items={}) if schema.get("items") is True else changed


def _replace_true(inner: Any) -> Any:
    return cast("Schema", {}) if inner is True else inner


def _find_dropped(schema: Schema) -> Schema:
    """The keywords of a schema that Codex drops, without those of its subschemas."""
    dropped = {key: value for key, value in schema.items() if key in _DROPPED_BY_CODEX}
    if "description" in schema and not schema.keys() & _DESCRIBABLE:
        dropped["description"] = schema["description"]
    if isinstance(schema.get("items"), list):
        dropped["items"] = schema["items"]
    return dropped


def _find_constraints(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """The keywords that Codex drops from a schema and its subschemas, by path."""
    if dropped := _find_dropped(schema):
        yield path or ".", dropped
    prefix = f"{path}." if path else ""
    for key in ("$defs", "definitions", "properties"):
        for name, inner in mapping_under(schema, key).items():
            if isinstance(inner, dict):
                yield from _find_constraints(cast("Schema", inner), prefix + name)
    for key, step in (("items", "[]"), ("additionalProperties", ".*")):
        inner: Any = schema.get(key)
        if isinstance(inner, dict):
            yield from _find_constraints(cast("Schema", inner), path + step)
    for key in ("anyOf", "oneOf", "allOf"):
        for number, inner in enumerate(schemas_under(schema, key)):
            yield from _find_constraints(inner, f"{prefix}{key}[{number}]")


CHANGES: dict[Need, Change] = {
    "inline_refs": inline_refs,
    "object_top": make_top_object,
    "no_const": apply_everywhere(replace_const),
    "no_type_arrays": apply_everywhere(split_type_arrays),
    "nullable": apply_everywhere(flag_nullable),
    "plain": apply_everywhere(keep_plain_keywords),
    "properties": add_properties,
    "items": apply_everywhere(add_items),
    "codex": apply_everywhere(prepare_for_codex),
}
"""The change for each need, in the order in which they are made."""
