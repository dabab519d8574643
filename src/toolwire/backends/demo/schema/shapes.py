"""The ways to satisfy a schema, each as a plain schema without references, `allOf`, `anyOf`, `oneOf` and `if`.

    {"$ref": "#/$defs/a", "anyOf": [{"minimum": 3}, {"type": "null"}]}, where a is {"type": ["integer", "null"]}
    →   {"type": ["integer"], "minimum": 3}   and   {"type": ["null"]}

A shape is where to look for a value, not a proof: `not`, the other options of `oneOf` and what else is not plain are
left to the check of the value. A schema that is not an object, such as `true`, or that makes no sense, allows anything.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import lcm
from typing import Any, cast
from urllib.parse import unquote

from toolwire.adapt.schemas_walk import Schema, listed, named
from toolwire.backends.demo.schema.budget import Budget

_COMBINED = frozenset(("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else"))
_INDEXED = 20_000
"""Most parts of a schema that are searched for anchors."""


class Shapes:
    """The shapes of a schema and of its parts."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self._root = root
        self._budget = budget
        self._anchors: dict[str, Any] | None = None

    def of(self, schema: Any, trail: tuple[str, ...] = ()) -> Iterator[Schema]:
        """The shapes of a schema, in the order of its options; none if nothing can satisfy it."""
        self._budget.spend(1)
        if schema is False:
            return
        if not isinstance(schema, dict):
            yield {}
            return
        read = cast("Schema", schema)
        self._budget.spend(len(read))
        plain = {key: value for key, value in read.items() if key not in _COMBINED}
        yield from self._combined(_modern(plain), self._choices(read, trail))

    def _combined(self, shape: Schema, choices: list[tuple[list[Any], tuple[str, ...]]]) -> Iterator[Schema]:
        """The shape together with one option of every choice."""
        if not choices:
            yield shape
            return
        (options, trail), *rest = choices
        for option in options:
            for other in self.of(option, trail):
                self._budget.spend(len(shape) + len(other))
                merged = merge(shape, other)
                if merged is not None:
                    yield from self._combined(merged, rest)

    def _choices(self, schema: Schema, trail: tuple[str, ...]) -> list[tuple[list[Any], tuple[str, ...]]]:
        choices: list[tuple[list[Any], tuple[str, ...]]] = []
        for key in ("$ref", "$dynamicRef"):
            ref = schema.get(key)
            if isinstance(ref, str):
                # A reference that leads back to itself without a step inside says nothing.
                options = [True] if ref in trail else [self.target(ref)]
                choices.append((options, (*trail, ref)))
        choices.extend(([option], trail) for option in listed(schema, "allOf"))
        choices.extend((_null_last(options), trail) for key in ("anyOf", "oneOf") if (options := listed(schema, key)))
        if "if" in schema:
            met = {"allOf": [schema["if"], schema.get("then", True)]}
            choices.append(([met, schema.get("else", True)], trail))
        return choices

    def target(self, ref: str) -> Any:
        """What a reference refers to: a place or an anchor in this schema. Anything else allows anything."""
        if ref == "#":
            return self._root
        if ref.startswith("#/"):
            return self._pointed(ref[2:].split("/"))
        if self._anchors is None:
            self._anchors = {}
            self._index(self._root)
        return self._anchors.get(ref.removeprefix("#"), True)

    def _pointed(self, steps: list[str]) -> Any:
        found: Any = self._root
        for step in steps:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = cast("Schema", found).get(name, True)
            elif isinstance(found, list) and name.isdecimal() and len(name) < 6:
                found = cast("list[Any]", found)[int(name) :][:1] or [True]
                found = found[0]
            else:
                return True
        return found

    def _index(self, root: Any) -> None:
        assert self._anchors is not None
        waiting: list[Any] = [root]
        for _ in range(_INDEXED):
            if not waiting:
                return
            part = waiting.pop()
            if isinstance(part, dict):
                read = cast("Schema", part)
                for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
                    name = read.get(key)
                    if isinstance(name, str):
                        self._anchors.setdefault(name.removeprefix("#"), read)
                waiting.extend(read.values())
            elif isinstance(part, list):
                waiting.extend(cast("list[Any]", part))


def _modern(schema: Schema) -> Schema:
    """The schema with the older form of tuples, `items` with a list, in the newer one."""
    if not isinstance(schema.get("items"), list):
        return schema
    changed = {key: value for key, value in schema.items() if key not in ("items", "additionalItems")}
    changed["prefixItems"] = schema["items"]
    if "additionalItems" in schema:
        changed["items"] = schema["additionalItems"]
    return changed


def _null_last(options: list[Any]) -> list[Any]:
    return sorted(options, key=lambda option: option == {"type": "null"})


def merge(one: Schema, other: Schema) -> Schema | None:
    """A schema for what satisfies both; None if that is clearly nothing."""
    one, other = _spelled_out(one, other), _spelled_out(other, one)
    merged = {**one, **other}
    for key in one.keys() & other.keys():
        found = _MERGERS.get(key, _second)(one[key], other[key])
        if found is _NOTHING:
            return None
        merged[key] = found
    return merged


def _spelled_out(schema: Schema, other: Schema) -> Schema:
    """The schema, with what it says of additional properties and items said of those that the other one names."""
    rest = schema.get("additionalProperties", True)
    if rest is not True and "patternProperties" not in schema:
        own = named(schema, "properties")
        schema = {**schema, "properties": {**dict.fromkeys(named(other, "properties"), rest), **own}}
    items, prefix = schema.get("items", True), listed(schema, "prefixItems")
    missing = len(listed(other, "prefixItems")) - len(prefix)
    if items is not True and missing > 0:
        schema = {**schema, "prefixItems": [*prefix, *[items] * missing]}
    return schema


def types_of(schema: Schema) -> list[str]:
    """The declared types, without what is none."""
    declared = schema.get("type")
    several = cast("list[Any]", declared) if isinstance(declared, list) else [declared]
    return [type for type in several if isinstance(type, str)]


def is_number(value: Any) -> bool:
    """Whether this is a JSON number: in Python True is one too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def fraction(value: Any) -> Fraction | None:
    """A finite number exactly, as it is written."""
    try:
        return Fraction(str(value)) if is_number(value) else None
    except (ValueError, OverflowError):
        return None


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(cast("list[Any]", one), cast("list[Any]", other), strict=False)
        return len(cast("list[Any]", one)) == len(cast("list[Any]", other)) and all(same(a, b) for a, b in pairs)
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("Schema", one), cast("Schema", other)
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(one == other)


_NOTHING = object()


def _second(one: Any, other: Any) -> Any:
    return other


def _types(one: Any, other: Any) -> Any:
    left, right = types_of({"type": one}), types_of({"type": other})
    if not left or not right:
        return left or right
    both = [type for type in left if type in right or (type == "integer" and "number" in right)]
    if "number" in left and "integer" in right and "integer" not in both:
        both.append("integer")
    return both or _NOTHING


def _enums(one: Any, other: Any) -> Any:
    left, right = listed({"": one}, ""), listed({"": other}, "")
    return [value for value in left if any(same(value, each) for each in right)] or _NOTHING


def _constants(one: Any, other: Any) -> Any:
    return one if same(one, other) else _NOTHING


def _both(one: Any, other: Any) -> Any:
    if one is True or other is True:
        return other if one is True else one
    return {"allOf": [one, other]}


def _by_name(one: Any, other: Any) -> Schema:
    left, right = named({"": one}, ""), named({"": other}, "")
    return {name: _both(left.get(name, True), right.get(name, True)) for name in (left | right)}


def _lists(one: Any, other: Any) -> list[Any]:
    left, right = listed({"": one}, ""), listed({"": other}, "")
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    return [_both(each, shorter[at]) if at < len(shorter) else each for at, each in enumerate(longer)]


def _names(one: Any, other: Any) -> list[Any]:
    left, right = listed({"": one}, ""), listed({"": other}, "")
    known = {name for name in left if isinstance(name, str)}
    return [*left, *(name for name in right if isinstance(name, str) and name not in known)]


def _collected(one: Any, other: Any) -> list[Any]:
    """Both of two patterns or formats."""
    return [*(listed({"": one}, "") or [one]), *(listed({"": other}, "") or [other])]


def _larger(one: Any, other: Any) -> Any:
    return max(one, other) if is_number(one) and is_number(other) else one if is_number(one) else _second(one, other)


def _smaller(one: Any, other: Any) -> Any:
    return min(one, other) if is_number(one) and is_number(other) else one if is_number(one) else _second(one, other)


def _multiple(one: Any, other: Any) -> Any:
    """The least common multiple."""
    left, right = fraction(one), fraction(other)
    if not left or not right:
        return _second(one, other)
    shared = left.denominator * right.denominator
    least = Fraction(lcm(int(left * shared), int(right * shared)), shared)
    return int(least) if least.denominator == 1 else float(least)


_MERGERS: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _enums,
    "const": _constants,
    **dict.fromkeys(("properties", "patternProperties"), _by_name),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames", "contains"), _both),
    "prefixItems": _lists,
    "required": _names,
    **dict.fromkeys(("pattern", "format"), _collected),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"), _larger),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"), _smaller),
    "multipleOf": _multiple,
    "uniqueItems": lambda one, other: one is True or other is True,
}
