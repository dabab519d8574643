"""Schemas in one form, whatever their draft, and the ways to satisfy them.

    {"const": 1, "type": "integer"}             →   {"enum": [1], "type": ["integer"]}
    {"minimum": 3, "exclusiveMinimum": true}    →   {"exclusiveMinimum": 3}                     Draft 4
    {"items": [A], "additionalItems": B}        →   {"prefixItems": [A], "items": B}            Draft 7
    false                                       →   {"enum": []}

A keyword whose value makes no sense is left out, so that nobody has to ask again whether a list is one.

A shape is one way to satisfy a schema, without references, `allOf`, `anyOf`, `oneOf` and `if`. It is where to look for
a value, not a proof: `not` and the other options of `oneOf` are left to the check of the value.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import lcm
from typing import Any, cast
from urllib.parse import unquote

from toolwire.adapt.schemas_walk import Schema
from toolwire.core.regex import Budget

TYPES = ("string", "object", "integer", "number", "boolean", "array", "null")
NUMBERS = (int, float)
"""The classes of JSON numbers, and not that of booleans."""

_CLASSES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("not", "if", "then", "else"), (dict, bool)),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames", "contains"), (dict, bool)),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf", "prefixItems", "required", "examples"), (list,)),
    **dict.fromkeys(("type", "pattern", "format"), (str, list)),
    **dict.fromkeys(("properties", "patternProperties", "dependentRequired", "dependentSchemas"), (dict,)),
    **dict.fromkeys(("$ref", "description"), (str,)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), NUMBERS),
    **dict.fromkeys(("minLength", "minItems", "minProperties", "minContains"), NUMBERS),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties", "maxContains"), NUMBERS),
    "uniqueItems": (bool,),
    "default": (object,),
}  # fmt: skip
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "if", "then", "else")
_INDEXED = 20_000
"""Most parts of a schema that are searched for anchors."""


def _plain(schema: Any) -> Schema:
    """A schema in the one form; what is none allows anything."""
    if not isinstance(schema, dict):
        return {"enum": []} if schema is False else {}
    modern = _modern(dict(cast("Schema", schema)))
    found = {
        key: value
        for key, value in modern.items()
        if key in _CLASSES and (key == "default" or value.__class__ in _CLASSES[key])
    }
    for key in ("type", "pattern", "format", "required"):
        if key in found:
            several = found[key] if isinstance(found[key], list) else [found[key]]
            found[key] = [each for each in several if isinstance(each, str) and (key != "type" or each in TYPES)]
    return {key: value for key, value in found.items() if value != [] or key in ("enum", "default")}


def _modern(schema: Schema) -> Schema:
    """The schema without keywords of older drafts, and without `const` and `$dynamicRef`, which others can say."""
    if "const" in schema:
        given = schema.get("enum")
        is_among = not isinstance(given, list) or _has(given, schema["const"])
        schema["enum"] = [schema["const"]] if is_among else []
    if "$dynamicRef" in schema:
        schema.setdefault("$ref", schema["$dynamicRef"])
    for bound in ("Minimum", "Maximum"):
        if schema.get(f"exclusive{bound}") is True:
            schema[f"exclusive{bound}"] = schema.pop(bound.lower(), None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"], schema["items"] = schema["items"], schema.get("additionalItems", True)
    old = schema.get("dependencies")
    for name, needed in cast("Schema", old).items() if isinstance(old, dict) else ():
        key = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
        schema[key] = {**cast("Schema", schema.get(key, {})), name: needed}
    needs = schema.get("dependentRequired")
    if isinstance(needs, dict):
        lists: Schema = {name: each for name, each in cast("Schema", needs).items() if isinstance(each, list)}
        schema["dependentRequired"] = lists
    return schema


class Schemas:
    """A schema, its parts, and what they refer to."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self._root = root
        self.budget = budget
        self._known: dict[int, tuple[Any, Schema]] = {}
        self._anchors: dict[str, Any] | None = None

    def plain(self, schema: Any) -> Schema:
        """A schema in the one form."""
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = (schema, _plain(schema))
        self.budget.spend(1 + len(known[1]))
        return known[1]

    def shapes(self, schema: Any, trail: frozenset[str] = frozenset()) -> Iterator[Schema]:
        """The ways to satisfy a schema, in the order of its options; none if nothing can satisfy it."""
        read = self.plain(schema)
        choices: list[list[Any]] = [[each] for each in read.get("allOf", ())]
        choices += [_null_last(read[key]) for key in ("anyOf", "oneOf") if key in read]
        if "if" in read:
            choices.append([{"allOf": [read["if"], read.get("then", True)]}, read.get("else", True)])
        if "$ref" in read and read["$ref"] not in trail:  # else it leads back to itself without a step inside
            choices.insert(0, [self.target(read["$ref"])])
            trail |= {read["$ref"]}
        own = {key: value for key, value in read.items() if key not in _COMBINED}
        return self._combined(own, choices, trail)

    def _combined(self, shape: Schema, choices: list[list[Any]], trail: frozenset[str]) -> Iterator[Schema]:
        """The shape together with one option of every choice."""
        if shape.get("type") == [] or shape.get("enum") == []:
            return
        if not choices:
            yield shape
            return
        for option in choices[0]:
            for other in self.shapes(option, trail):
                self.budget.spend(len(shape) + len(other))
                yield from self._combined(_merged(shape, other), choices[1:], trail)

    def target(self, ref: str) -> Any:
        """What a reference refers to: a place or an anchor in this schema. Anything else allows anything."""
        if not ref.startswith(("#/", "##")) and ref != "#":
            return self._anchored(ref.removeprefix("#"))
        found = self._root
        for step in ref.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and len(name) < 6:
                found = dict(enumerate(cast("list[Any]", found))).get(int(name), True)
            else:
                found = cast("Schema", found).get(name, True) if isinstance(found, dict) else True
        return found

    def _anchored(self, name: str) -> Any:
        if self._anchors is None:
            self._anchors = {}
            waiting: list[Any] = [self._root]
            for _ in range(_INDEXED):
                part = waiting.pop() if waiting else None
                if isinstance(part, dict):
                    read = cast("Schema", part)
                    ids = (read.get(key) for key in ("$anchor", "$dynamicAnchor", "$id", "id"))
                    self._anchors.update({id.removeprefix("#"): read for id in ids if isinstance(id, str)})
                    waiting.extend(read.values())
                elif isinstance(part, list):
                    waiting.extend(cast("list[Any]", part))
        return self._anchors.get(name, True)


def _null_last(options: list[Any]) -> list[Any]:
    return sorted(options, key=lambda option: option == {"type": "null"})


def fraction(value: Any) -> Fraction | None:
    """A finite number exactly, as it is written."""
    try:
        return Fraction(str(value)) if value.__class__ in NUMBERS else None
    except (ValueError, OverflowError):
        return None


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0, but not true."""
    if one.__class__ is not other.__class__:
        return one.__class__ in NUMBERS and other.__class__ in NUMBERS and one == other
    if isinstance(one, list):
        items = cast("list[Any]", one)
        return len(items) == len(other) and all(map(same, items, other))
    if isinstance(one, dict):
        left = cast("Schema", one)
        return left.keys() == other.keys() and all(same(left[key], other[key]) for key in left)
    return one == other


def _has(values: Any, value: Any) -> bool:
    return any(same(value, each) for each in values)


# What satisfies two shapes


def _merged(one: Schema, other: Schema) -> Schema:
    one, other = _spelled_out(one, other), _spelled_out(other, one)
    both = {key: _MERGERS[key](one[key], other[key]) for key in one.keys() & other.keys() if key in _MERGERS}
    return {**one, **other, **both}


def _spelled_out(schema: Schema, other: Schema) -> Schema:
    """The schema, with what it says of additional properties and items said of those that the other one names."""
    if "additionalProperties" in schema and "patternProperties" not in schema:
        named = dict.fromkeys(other.get("properties", {}), schema["additionalProperties"])
        schema = {**schema, "properties": {**named, **schema.get("properties", {})}}
    prefix = schema.get("prefixItems", [])
    missing = len(other.get("prefixItems", [])) - len(prefix)
    if "items" in schema and missing > 0:
        schema = {**schema, "prefixItems": [*prefix, *[schema["items"]] * missing]}
    return schema


def _types(one: list[str], other: list[str]) -> list[str]:
    wider = [{*types, "integer"} if "number" in types else {*types} for types in (one, other)]
    return [type for type in dict.fromkeys((*one, *other)) if all(type in types for types in wider)]


def _both(one: Any, other: Any) -> Any:
    return {"allOf": [one, other]}


def _by_name(one: Schema, other: Schema) -> Schema:
    return {**one, **{name: _both(one[name], each) if name in one else each for name, each in other.items()}}


def _by_place(one: list[Any], other: list[Any]) -> list[Any]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return [*map(_both, longer, shorter), *longer[len(shorter) :]]


def _multiple(one: Any, other: Any) -> Any:
    """The least common multiple."""
    left, right = fraction(one), fraction(other)
    if not left or not right:
        return other
    shared = left.denominator * right.denominator
    least = Fraction(lcm(int(left * shared), int(right * shared)), shared)
    return int(least) if least.denominator == 1 else float(least)


_MERGERS: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": lambda one, other: [value for value in one if _has(other, value)],
    "required": lambda one, other: list(dict.fromkeys((*one, *other))),
    "prefixItems": _by_place,
    "multipleOf": _multiple,
    "uniqueItems": lambda one, other: one or other,
    **dict.fromkeys(("properties", "patternProperties"), _by_name),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames", "contains"), _both),
    **dict.fromkeys(("pattern", "format"), lambda one, other: [*one, *other]),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"), min),
}
