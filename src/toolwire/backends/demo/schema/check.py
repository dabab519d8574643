"""Whether a value fits a JSON Schema, for the values that the demo model makes itself.

The pure packages have no JSON Schema library, and the schema is a client's, so every step is counted. It is stricter
than a library where that costs nothing. It does not look at `format`, `unevaluatedProperties`, `unevaluatedItems` and
patterns that cannot be read here, nor at keywords whose value makes no sense.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from toolwire.adapt.schemas_walk import Schema, listed, named
from toolwire.backends.demo.schema import matching, regex
from toolwire.backends.demo.schema.budget import Budget
from toolwire.backends.demo.schema.shapes import Shapes, fraction, is_number, same, types_of

Keyword: TypeAlias = Callable[["Check", Any, Schema, Any], bool]
"""Whether a value satisfies a keyword of a schema; its argument comes last."""


class Check:
    """Checks values against a schema and its parts."""

    def __init__(self, shapes: Shapes, budget: Budget) -> None:
        self._shapes = shapes
        self._budget = budget

    def fits(self, value: Any, schema: Any) -> bool:
        """Whether the value fits the schema."""
        self._budget.spend(1)
        if not isinstance(schema, dict):
            return schema is not False
        read = cast("Schema", schema)
        self._budget.spend(len(read))
        return all(_KEYWORDS[key](self, value, read, read[key]) for key in read if key in _KEYWORDS)

    def fits_reference(self, value: Any, ref: Any) -> bool:
        """Whether the value fits what a reference refers to."""
        return not isinstance(ref, str) or self.fits(value, self._shapes.target(ref))

    def matches(self, pattern: Any, text: str) -> bool:
        """Whether a pattern is found in a text; one that cannot be read counts as found."""
        node = regex.read(pattern) if isinstance(pattern, str) else None
        return node is None or len(text) > regex.LONGEST or matching.matches(node, text, self._budget)

    def parts(self, schema: Schema, name: str) -> list[Any]:
        """The schemas that an object's schema has for a property."""
        patterns = named(schema, "patternProperties")
        self._budget.spend(len(patterns))
        parts = [part for pattern, part in patterns.items() if self.matches(pattern, name)]
        properties = named(schema, "properties")
        if name in properties:
            parts.append(properties[name])
        return parts or [schema.get("additionalProperties", True)]

    def contains(self, value: Any, values: list[Any]) -> bool:
        """Whether the value is among others."""
        self._budget.spend(len(values))
        return any(same(value, each) for each in values)


_IS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": is_number,
    "integer": lambda value: is_number(value) and value == value // 1,
}


def _type(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    types = [type for type in types_of(schema) if type in _IS]
    return not types or any(_IS[type](value) for type in types)


def _enum(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return not isinstance(given, list) or check.contains(value, cast("list[Any]", given))


def _const(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return same(value, given)


# Combinations


def _ref(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return check.fits_reference(value, given)


def _all_of(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return all(check.fits(value, each) for each in listed({"": given}, ""))


def _any_of(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    options = listed({"": given}, "")
    return not options or any(check.fits(value, each) for each in options)


def _one_of(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    options = listed({"": given}, "")
    return not options or sum(check.fits(value, each) for each in options) == 1


def _not(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return not isinstance(given, dict | bool) or not check.fits(value, given)


def _if(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return check.fits(value, schema.get("then" if check.fits(value, given) else "else", True))


# Numbers


def _number(holds: Callable[[Any, Any], bool]) -> Keyword:
    def keyword(check: Check, value: Any, schema: Schema, given: Any) -> bool:
        return not is_number(value) or not is_number(given) or holds(value, given)

    return keyword


def _minimum(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    """In Draft 4 `exclusiveMinimum` was a boolean beside it."""
    if not is_number(value) or not is_number(given):
        return True
    return value > given if schema.get("exclusiveMinimum") is True else value >= given


def _maximum(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    if not is_number(value) or not is_number(given):
        return True
    return value < given if schema.get("exclusiveMaximum") is True else value <= given


def _multiple_of(value: Any, given: Any) -> bool:
    """Exactly, and as libraries do it that divide floating-point numbers."""
    exact, step = fraction(value), fraction(given)
    if not exact or not step:
        return exact == 0
    try:
        quotient = value / given
    except OverflowError:
        return False
    return (
        (exact / step).denominator == 1
        and quotient == quotient // 1
        and (value % given == 0 or isinstance(given, float))
    )


# Lengths


def _length(type: type[Any], holds: Callable[[int, Any], bool]) -> Keyword:
    def keyword(check: Check, value: Any, schema: Schema, given: Any) -> bool:
        return not isinstance(value, type) or not is_number(given) or holds(len(value), given)

    return keyword


def _at_least(size: int, given: Any) -> bool:
    return size >= given


def _at_most(size: int, given: Any) -> bool:
    return size <= given


def _pattern(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return not isinstance(value, str) or check.matches(given, value)


# Arrays


def _items(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    if not isinstance(value, list):
        return True
    values = cast("list[Any]", value)
    if isinstance(given, list):  # the older form of prefixItems
        parts = cast("list[Any]", given)
        rest = schema.get("additionalItems", True)
        return _prefix_items(check, value, schema, given) and all(
            check.fits(each, rest) for each in values[len(parts) :]
        )
    return all(check.fits(each, given) for each in values[len(listed(schema, "prefixItems")) :])


def _prefix_items(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    if not isinstance(value, list):
        return True
    pairs = zip(cast("list[Any]", value), listed({"": given}, ""), strict=False)
    return all(check.fits(each, part) for each, part in pairs)


def _unique_items(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    if given is not True or not isinstance(value, list):
        return True
    values = cast("list[Any]", value)
    return not any(check.contains(each, values[:at]) for at, each in enumerate(values))


def _contains(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    if not isinstance(value, list):
        return True
    found = sum(check.fits(each, given) for each in cast("list[Any]", value))
    least: Any = schema.get("minContains", 1)
    most: Any = schema.get("maxContains")
    return (not is_number(least) or found >= least) and (not is_number(most) or found <= most)


# Objects


def _required(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return not isinstance(value, dict) or all(
        name in cast("Schema", value) for name in listed({"": given}, "") if isinstance(name, str)
    )


def _properties(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    """All of `properties`, `patternProperties` and `additionalProperties`."""
    return not isinstance(value, dict) or all(
        check.fits(each, part) for name, each in cast("Schema", value).items() for part in check.parts(schema, name)
    )


def _property_names(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    return not isinstance(value, dict) or all(check.fits(name, given) for name in cast("Schema", value))


def _dependent(check: Check, value: Any, schema: Schema, given: Any) -> bool:
    """`dependentRequired`, `dependentSchemas`, and `dependencies`, which was both."""
    if not isinstance(value, dict):
        return True
    present = [part for name, part in named({"": given}, "").items() if name in cast("Schema", value)]
    return all(
        _required(check, value, schema, part) if isinstance(part, list) else check.fits(value, part) for part in present
    )


_KEYWORDS: dict[str, Keyword] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "$ref": _ref,
    "$dynamicRef": _ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _number(lambda value, given: value > given),
    "exclusiveMaximum": _number(lambda value, given: value < given),
    "multipleOf": _number(_multiple_of),
    "minLength": _length(str, _at_least),
    "maxLength": _length(str, _at_most),
    "pattern": _pattern,
    "minItems": _length(list, _at_least),
    "maxItems": _length(list, _at_most),
    "items": _items,
    "prefixItems": _prefix_items,
    "uniqueItems": _unique_items,
    "contains": _contains,
    "minProperties": _length(dict, _at_least),
    "maxProperties": _length(dict, _at_most),
    "required": _required,
    "properties": _properties,
    "patternProperties": _properties,
    "additionalProperties": _properties,
    "propertyNames": _property_names,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
}
