"""Whether a value fits a JSON Schema, for the values that the demo model makes itself.

The pure packages have no JSON Schema library, and the schema is a client's, so every step is counted. It does not look
at `format`, `unevaluatedProperties`, `unevaluatedItems` and patterns that cannot be read here.
"""

from collections.abc import Callable
from typing import Any

from toolwire.adapt.schemas_walk import Schema
from toolwire.backends.demo.schema.plain import NUMBERS, Schemas, fraction, same
from toolwire.core import regex

_CLASSES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": NUMBERS,
}


class Check:
    """Checks values against a schema and its parts."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas

    def fits(self, value: Any, schema: Any) -> bool:
        """Whether the value fits the schema."""
        read = self._schemas.plain(schema)
        about: Callable[[str, Any, Any, Schema], bool] = {
            str: self._string,
            list: self._array,
            dict: self._object,
            **dict.fromkeys(NUMBERS, self._number),
        }.get(value.__class__, self._any)
        return all(self._any(key, value, read[key], read) and about(key, value, read[key], read) for key in read)

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern is found in a text; one that cannot be read counts as found."""
        node = regex.read(pattern)
        return node is None or len(text) > regex.LONGEST or regex.matches(node, text, self._schemas.budget)

    def parts(self, schema: Schema, name: str) -> list[Any]:
        """The schemas that an object's schema has for a property."""
        patterns, properties = schema.get("patternProperties", {}), schema.get("properties", {})
        self._schemas.budget.spend(len(patterns))
        parts = [part for pattern, part in patterns.items() if self.matches(pattern, name)]
        parts += [properties[name]] if name in properties else []
        return parts or [schema.get("additionalProperties", True)]

    def contains(self, values: list[Any], value: Any) -> bool:
        """Whether the value is one of these."""
        self._schemas.budget.spend(len(values))
        return any(same(value, each) for each in values)

    # Whether a value satisfies one keyword

    def _any(self, key: str, value: Any, given: Any, schema: Schema) -> bool:
        match key:
            case "type":
                return any(_has_type(value, type) for type in given)
            case "enum":
                return self.contains(given, value)
            case "$ref":
                return self.fits(value, self._schemas.target(given))
            case "allOf":
                return all(self.fits(value, each) for each in given)
            case "anyOf":
                return any(self.fits(value, each) for each in given)
            case "oneOf":
                return sum(self.fits(value, each) for each in given) == 1
            case "not":
                return not self.fits(value, given)
            case "if":
                return self.fits(value, schema.get("then" if self.fits(value, given) else "else", True))
            case _:
                return True

    def _number(self, key: str, value: Any, given: Any, schema: Schema) -> bool:
        match key:
            case "minimum":
                return value >= given
            case "maximum":
                return value <= given
            case "exclusiveMinimum":
                return value > given
            case "exclusiveMaximum":
                return value < given
            case "multipleOf":
                return _is_multiple(value, given)
            case _:
                return True

    def _string(self, key: str, value: str, given: Any, schema: Schema) -> bool:
        match key:
            case "minLength":
                return len(value) >= given
            case "maxLength":
                return len(value) <= given
            case "pattern":
                return all(self.matches(each, value) for each in given)
            case _:
                return True

    def _array(self, key: str, value: list[Any], given: Any, schema: Schema) -> bool:
        match key:
            case "minItems":
                return len(value) >= given
            case "maxItems":
                return len(value) <= given
            case "items":
                return all(self.fits(each, given) for each in value[len(schema.get("prefixItems", ())) :])
            case "prefixItems":
                return all(map(self.fits, value, given))
            case "uniqueItems":
                return not given or not any(self.contains(value[:at], each) for at, each in enumerate(value))
            case "contains":
                found = sum(self.fits(each, given) for each in value)
                return schema.get("minContains", 1) <= found <= schema.get("maxContains", found)
            case _:
                return True

    def _object(self, key: str, value: Schema, given: Any, schema: Schema) -> bool:
        match key:
            case "minProperties":
                return len(value) >= given
            case "maxProperties":
                return len(value) <= given
            case "required":
                return all(name in value for name in given)
            case "properties" | "patternProperties" | "additionalProperties":
                return all(self.fits(each, part) for name, each in value.items() for part in self.parts(schema, name))
            case "propertyNames":
                return all(self.fits(name, given) for name in value)
            case "dependentRequired":
                return all(each in value for name in value for each in given.get(name, ()))
            case "dependentSchemas":
                return all(self.fits(value, given.get(name, True)) for name in value)
            case _:
                return True


def _has_type(value: Any, type: str) -> bool:
    if type == "integer":
        return value.__class__ in NUMBERS and value == value // 1
    return value.__class__ in _CLASSES[type]


def _is_multiple(value: Any, given: Any) -> bool:
    """Exactly, and as libraries see it that divide floating-point numbers."""
    exact, step = fraction(value), fraction(given)
    if not exact or not step:
        return exact == 0
    try:
        quotient = value / given
    except OverflowError:
        return False
    is_exact = (exact / step).denominator == 1 and quotient == quotient // 1
    return is_exact and (value % given == 0 or isinstance(given, float))
