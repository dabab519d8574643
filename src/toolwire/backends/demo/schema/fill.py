"""A value that fits a JSON Schema, made from its keywords and from what the prompt suggests.

    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
    →   {"city":"Paris"}

Optional properties are left out, unless the prompt gives their value. Every value is checked, and the first that fits
is taken, of those with the least nesting, so that recursive schemas come to an end.

What cannot be satisfied gets `{}`: a schema that nothing satisfies, such as `false` or a recursion without an end, and
one that takes more than the bounds below. A pattern that is not read here (`regex`) gets a text that may not match, and
`unevaluatedProperties` is trusted to allow what is declared. Two `contains` of one array get one item for both.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, cast

import msgspec

from toolwire.adapt.schemas_walk import Schema
from toolwire.backends.demo.schema.check import Check
from toolwire.backends.demo.schema.numbers import numbers
from toolwire.backends.demo.schema.plain import TYPES, Schemas
from toolwire.backends.demo.schema.texts import LONGEST, strings
from toolwire.core.regex import Budget, TooMuch

LARGEST = 256 * 1024
"""Most bytes of a schema that is read."""

STEPS = 60_000
"""Most steps that are spent on one schema."""

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""How deep objects and arrays may be nested, tried one after the other."""

MOST_ITEMS = 256
"""Most items of an array, and most properties of an object, that a schema can ask for."""

TRIED = 80
"""Most values of one type that are tried for one part of a schema."""


class Place(msgspec.Struct, frozen=True):
    """A property, or an item of it, that gets a value."""

    name: str = ""
    description: str = ""
    depth: int = 0
    """1 for the properties of the arguments themselves."""


class Suggestions(Protocol):
    """What the prompt suggests."""

    def texts(self, place: Place, schema: Schema) -> Sequence[str]:
        """The texts that the prompt has for a place, best first."""
        ...

    def fallback(self, place: Place) -> str:
        """A text for a place that the prompt has none for."""
        ...

    def numbers(self, place: Place) -> Sequence[Any]:
        """Numbers for a place, best first."""
        ...

    def items(self, place: Place) -> Sequence[Any]:
        """The items of an array, if they are known."""
        ...

    def mentions(self, value: str) -> bool:
        """Whether the prompt has this value of an enum, or this name of a switch."""
        ...

    def gives(self, place: Place, schema: Schema) -> bool:
        """Whether the prompt gives the value of an optional property."""
        ...


def fill(schema: bytes, suggestions: Suggestions) -> bytes:
    """A JSON text that fits the schema; an object if one can."""
    if len(schema) > LARGEST:
        return b"{}"
    try:
        root = msgspec.json.decode(schema)
        return msgspec.json.encode(_Filler(root, suggestions).value())
    except (TooMuch, RecursionError, OverflowError, msgspec.DecodeError):
        return b"{}"


class _Filler:
    def __init__(self, root: Any, suggestions: Suggestions) -> None:
        self._root = root
        self._suggested = suggestions
        self._budget = Budget(STEPS)
        self._schemas = Schemas(root, self._budget)
        self._check = Check(self._schemas)
        self._deepest = 0

    def value(self) -> Any:
        for schema in ({"allOf": [self._root, {"type": "object"}]}, self._root):
            for self._deepest in DEPTHS:
                for value in self._values(schema, Place()):
                    return value
        return {}

    def _values(self, schema: Any, place: Place) -> Iterator[Any]:
        """Values that fit, best first."""
        place = _described(schema, place)
        for shape in self._schemas.shapes(schema):
            shaped = _described(shape, place)
            for value in self._candidates(shape, shaped):
                if self._check.fits(value, schema):
                    yield value

    def _first(self, schema: Any, place: Place) -> list[Any]:
        """The best value, or nothing."""
        return list(islice(self._values(schema, place), 1))

    def _candidates(self, shape: Schema, place: Place) -> Iterator[Any]:
        self._budget.spend(1)
        if "enum" in shape:
            self._budget.spend(len(shape["enum"]))
            yield from sorted(shape["enum"], key=lambda value: not self._is_mentioned(value))
        else:
            for type in _types(shape):
                yield from islice(self._of_type(type, shape, place), TRIED)

    def _is_mentioned(self, value: Any) -> bool:
        return isinstance(value, str) and self._suggested.mentions(value)

    def _of_type(self, type: str, shape: Schema, place: Place) -> Iterator[Any]:
        match type:
            case "object":
                return self._objects(shape, place)
            case "array":
                return self._arrays(shape, place)
            case "string":
                return self._strings(shape, place)
            case "integer" | "number":
                suggested = [*self._suggested.numbers(place), *_prepared(shape)]
                return numbers(shape, suggested, whole=type == "integer")
            case "boolean":
                is_set = self._suggested.mentions(place.name)
                return iter((*_prepared(shape), is_set, not is_set))
            case _:
                return iter((None,))

    def _strings(self, shape: Schema, place: Place) -> Iterator[str]:
        prepared = (value for value in _prepared(shape) if isinstance(value, str))
        texts = [*self._suggested.texts(place, shape), *prepared, self._suggested.fallback(place)]
        return strings(shape, texts, _size(shape, "minLength", 0), _size(shape, "maxLength", LONGEST), self._budget)

    # Objects

    def _objects(self, shape: Schema, place: Place) -> Iterator[Schema]:
        if place.depth >= self._deepest:
            return
        properties, required = shape.get("properties", {}), _required(shape)
        self._budget.spend(len(properties))
        made: Schema = {}
        if not self._add(shape, place, required, made):
            return
        given = [name for name in properties if name not in made and self._gives(shape, place, name)]
        full = dict(made)
        self._add(shape, place, given, full)
        yield self._padded(shape, place, full)
        yield self._padded(shape, place, made)
        optional = [name for name in islice(properties, 16) if name not in made]
        for name in optional:
            more = dict(made)
            self._add(shape, place, [name], more)
            yield more
        self._add(shape, place, optional, full)
        yield full
        for name in made:
            for value in islice(self._property(shape, place, name), 1, 4):
                yield {**made, name: value}

    def _gives(self, shape: Schema, place: Place, name: str) -> bool:
        schema = shape.get("properties", {})[name]
        plain = next(self._schemas.shapes(schema), Schema())
        return self._suggested.gives(_described(plain, _inside(schema, place, name)), plain)

    def _add(self, shape: Schema, place: Place, names: Sequence[str], made: Schema) -> bool:
        """Add these properties, and those that they depend on; false if there is no value for one of them."""
        waiting = list(names)
        while waiting:
            name = waiting.pop(0)
            if name in made:
                continue
            found = list(islice(self._property(shape, place, name), 1))
            if not found or len(made) >= MOST_ITEMS:
                return False
            made[name] = found[0]
            waiting.extend(_dependents(shape, name))
        return True

    def _property(self, shape: Schema, place: Place, name: str) -> Iterator[Any]:
        parts = self._check.parts(shape, name)
        schema = parts[0] if len(parts) == 1 else {"allOf": parts}
        return self._values(schema, _inside(schema, place, name))

    def _padded(self, shape: Schema, place: Place, made: Schema) -> Schema:
        """The object with as many properties as there must be: declared ones first."""
        wanted = _size(shape, "minProperties", 0)
        if len(made) >= wanted:
            return made
        padded = dict(made)
        for name in (*shape.get("properties", {}), *self._names(shape, place, wanted)):
            if len(padded) >= min(wanted, MOST_ITEMS):
                break
            self._add(shape, place, [name], padded)
        return padded

    def _names(self, shape: Schema, place: Place, count: int) -> Iterator[str]:
        """Names that properties may have that are not declared."""
        for pattern in shape.get("patternProperties", {}):
            schema = {"type": "string", "pattern": pattern}
            yield from islice(self._values(schema, Place()), count)
        rule = {"allOf": [{"type": "string"}, shape.get("propertyNames", True)]}
        yield from islice(self._values(rule, Place()), 2 * count)

    # Arrays

    def _arrays(self, shape: Schema, place: Place) -> Iterator[list[Any]]:
        if place.depth >= self._deepest:
            return
        known = self._suggested.items(place)
        if known:
            yield list(known)
        least, most = _size(shape, "minItems", 0), _size(shape, "maxItems", MOST_ITEMS)
        usual = min(max(least, len(shape.get("prefixItems", [])), 1), most)
        for count in dict.fromkeys((usual, least, least + 1, least + 2)):
            for parts in _items(shape, count) if count <= MOST_ITEMS else ():
                made: list[Any] = []
                if all(self._append(part, place, made, shape) for part in parts):
                    yield made

    def _append(self, schema: Any, place: Place, made: list[Any], shape: Schema) -> bool:
        """Append a value, one that is not there yet if all must differ; false if there is none."""
        if len(made) >= MOST_ITEMS:
            return False
        item = msgspec.structs.replace(place, depth=place.depth + 1)
        for value in self._values(schema, item):
            if not shape.get("uniqueItems") or not self._check.contains(made, value):
                made.append(value)
                return True
        return False


def _items(shape: Schema, count: int) -> Iterator[list[Any]]:
    """The schemas of the items of an array: those with a place of their own, the others, and those that must be there.

    An item that the array must contain may be a further one, or take any place.
    """
    prefix, rest = shape.get("prefixItems", []), shape.get("items", True)
    parts = [*prefix[:count], *[rest] * (count - len(prefix))]
    if "contains" not in shape:
        yield parts
        return
    least = min(_size(shape, "minContains", 1), MOST_ITEMS)
    inside = [{"allOf": [part, shape["contains"]]} for part in parts]
    for start in reversed(range(len(parts) - least + 1)):
        yield [*parts[:start], *inside[start : start + least], *parts[start + least :]]
    yield [*parts, *[{"allOf": [rest, shape["contains"]]}] * least]


def _described(schema: Any, place: Place) -> Place:
    """The place with the schema's description, if it has one."""
    description: Any = cast("Schema", schema).get("description") if isinstance(schema, dict) else None
    return msgspec.structs.replace(place, description=description) if isinstance(description, str) else place


def _inside(schema: Any, place: Place, name: str) -> Place:
    return _described(schema, Place(name, depth=place.depth + 1))


def _required(shape: Schema) -> list[str]:
    """The names of the required properties, in the order in which they are declared."""
    names: list[str] = shape.get("required", [])
    return [*(name for name in shape.get("properties", {}) if name in names), *names]


def _dependents(shape: Schema, name: str) -> list[str]:
    return [each for each in shape.get("dependentRequired", {}).get(name, ()) if isinstance(each, str)]


def _prepared(shape: Schema) -> list[Any]:
    """The default and the examples that a schema gives."""
    return [*([shape["default"]] if "default" in shape else []), *shape.get("examples", [])[:3]]


def _size(shape: Schema, key: str, default: int) -> int:
    """A size that the schema gives."""
    return int(min(max(shape.get(key, default), 0), 1 << 40))


_TELLING: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "contains", "uniqueItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def _types(shape: Schema) -> list[str]:
    """The types to try: the declared ones, null last, or all, the one first that the keywords are about."""
    if "type" in shape:
        return sorted(shape["type"], key="null".__eq__)
    return sorted(TYPES, key=lambda each: not any(key in shape for key in _TELLING.get(each, ())))
