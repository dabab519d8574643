"""Simple values for JSON Schemas: one way to satisfy a schema, a text, a number.

Constraints are not solved. A JSON Schema validator checks the value, and what does not fit is reported.
"""

import re
from math import ceil, floor, inf
from typing import Any, cast

from toolwire.adapt.schemas_walk import Schema, find_target, list_under, mapping_under
from toolwire.core.regex import Budget, matches, parse

MAX_TEXT_CHARS = 64 * 1024
"""Maximum characters that a schema can require of one text."""

_COMBINATIONS = ("$ref", "allOf", "anyOf", "oneOf")


def resolve(root: Schema, schema: object, budget: Budget, *, takes_last: bool = False) -> Schema:
    """One way to satisfy a schema, without references and combinations. Raises `BudgetExceeded`.

    Of `anyOf` and `oneOf` the first or the last alternative is taken, with null sorted last.
    """
    merged: Schema = {}
    waiting, seen = [schema], set[int]()  # a reference may lead back to itself
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, dict) or id(cast("Schema", part)) in seen:
            continue
        part = cast("Schema", part)
        seen.add(id(part))
        budget.spend(1 + len(part) + len(merged.get("properties", ())) + len(mapping_under(part, "properties")))
        waiting += [find_target(root, part.get("$ref")), *list_under(part, "allOf")]
        for key in ("anyOf", "oneOf"):
            options = sorted(list_under(part, key), key={"type": "null"}.__eq__)
            waiting += options[-1:] if takes_last else options[:1]
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**mapping_under(part, key), **merged.get(key, {})}
            elif key == "required":
                merged[key] = [*merged.get(key, []), *list_under(part, key)]
            elif key not in _COMBINATIONS:
                merged.setdefault(key, value)
    return merged


_TYPE_KEYWORDS = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def types_of(shape: Schema) -> list[str]:
    """The types of a resolved schema, best first: the declared ones, null last, or those that its keywords imply."""
    declared = shape.get("type")
    if declared is not None:
        return sorted(cast("list[str]", declared) if isinstance(declared, list) else [declared], key="null".__eq__)
    return [*(each for each, keys in _TYPE_KEYWORDS.items() if any(key in shape for key in keys)), "string"]


_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    **dict.fromkeys(("email", "idn-email"), "demo@example.com"),
    **dict.fromkeys(("hostname", "idn-hostname"), "example.com"),
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    **dict.fromkeys(("uri", "url", "iri", "uri-reference", "iri-reference"), "https://example.com/"),
    "uuid": "6f1c0f0e-3f0b-4d6c-9a57-1f1f3c2b7a10",
}
"""A sample of each format. A word of the prompt with the same punctuation is taken instead."""

_PATTERN_SAMPLES = ("demo", "DEMO", "a", "A", "AB", "ABC", "1", "123", "1234", "2026-01-31", "12:00", "1.0.0", "a1", "")
"""Texts that are tried for a pattern when no text from the prompt or the schema matches it."""


def pick_text(shape: Schema, texts: list[str], prompt: str, budget: Budget) -> tuple[str, bool]:
    """The first text with the format and the pattern, or any text, and whether it matches the pattern.

    Raises `BudgetExceeded`.
    """
    sample = _FORMATS.get(shape.get("format", ""), "")
    if sample:
        form = re.sub(r"\w+", lambda found: r"\d+" if found[0].isdigit() else r"\w+", sample.replace(".", r"\."))
        form += r"\S*" if sample.endswith("/") else ""
        words = [word.strip(".,;:!?()\"'`<>") for word in prompt.split()] if not sample.isalnum() else []
        texts = [*(word for word in words if re.fullmatch(form, word, re.ASCII)), sample]
    if "pattern" in shape:
        budget.spend(len(shape["pattern"]))
        node = parse(shape["pattern"])  # None if it has something that is not supported
        tried = [text for text in (*texts, *_PATTERN_SAMPLES) if len(text) < 1000] if node is not None else []
        found = next((text for text in tried if node is not None and matches(node, text, budget)), None)
        return texts[0] if found is None else found, found is not None
    padded = texts[0].ljust(min(shape.get("minLength", 0), MAX_TEXT_CHARS), ".")
    return padded[: shape.get("maxLength", MAX_TEXT_CHARS)], True


def pick_number(shape: Schema, suggested: list[Any], *, whole: bool) -> float:
    """The first suggested number within the bounds, or a simple one."""
    above, below = shape.get("exclusiveMinimum", -inf), shape.get("exclusiveMaximum", inf)
    low, high = max(shape.get("minimum", -inf), above), min(shape.get("maximum", inf), below)
    step = shape.get("multipleOf", 1)
    first = ceil(low / step) if low > -inf else floor(high / step) if high < inf else 0
    for number in [*suggested, 1, first * step, (first + 1) * step, (first - 1) * step, (low + high) / 2]:
        is_multiple = number % step == 0 if "multipleOf" in shape else not whole or number % 1 == 0
        if low <= number <= high and number not in (above, below) and is_multiple:
            return int(number) if whole else number
    return first * step
