"""Simple values for JSON Schemas: one way to satisfy a schema, formats, numbers.

Constraints are not solved. A JSON Schema validator checks the value, and what does not fit is reported.
"""

import re
from math import ceil, floor, inf
from typing import Any, cast

from toolwire.adapt.schemas_walk import Schema, find_target, list_under, mapping_under
from toolwire.core.regex import Budget, matches, parse

MAX_MERGED_SCHEMAS = 64
"""Maximum schemas that are merged into one; a reference may lead back to itself."""

MAX_TEXT_CHARS = 64 * 1024
"""Maximum characters that a schema can require of one text."""

_COMBINATIONS = ("$ref", "allOf", "anyOf", "oneOf")


def resolve(root: Schema, schema: object, option: int, budget: Budget) -> Schema:
    """One way to satisfy a schema, without references and combinations.

    Of `anyOf` and `oneOf` the alternative at the index `option` is taken, with null sorted last. Raises
    `BudgetExceeded`.
    """
    merged: Schema = {}
    waiting: list[object] = [schema]
    for _ in range(MAX_MERGED_SCHEMAS):
        if not waiting:
            break
        part = waiting.pop(0)
        if not isinstance(part, dict):
            continue
        part = cast("Schema", part)
        budget.spend(1 + len(part) + len(merged.get("properties", ())) + len(mapping_under(part, "properties")))
        waiting += [find_target(root, part.get("$ref")), *list_under(part, "allOf")]
        for key in ("anyOf", "oneOf"):
            options = sorted(list_under(part, key), key={"type": "null"}.__eq__)
            waiting += options[option % len(options) :][:1] if options else []
        for key, value in part.items():
            if key == "properties":
                merged[key] = {**mapping_under(part, key), **merged.get(key, {})}
            elif key == "required":
                budget.spend(len(merged.get(key, ())))
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


_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_EMAIL = (rf"[\w.+-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{1,8}}", "demo@example.com")
_HOSTNAME = (rf"{_LABEL}(?:\.{_LABEL}){{1,8}}", "example.com")
_URI = (r"[A-Za-z][A-Za-z0-9+.-]{1,20}:[^\s\"<>\\^`{|}]+", "https://example.com/")
_NOTHING = r"(?!)"
_FORMATS = {
    "date": (_DATE, "2026-01-31"),
    "date-time": (f"{_DATE}T{_TIME}", "2026-01-31T12:00:00Z"),
    "time": (_TIME, "12:00:00Z"),
    "duration": (_NOTHING, "P1D"),
    **dict.fromkeys(("email", "idn-email"), _EMAIL),
    **dict.fromkeys(("hostname", "idn-hostname"), _HOSTNAME),
    "ipv4": (rf"{_OCTET}(?:\.{_OCTET}){{3}}", "192.0.2.1"),
    "ipv6": (_NOTHING, "2001:db8::1"),
    **dict.fromkeys(("uri", "url", "iri", "uri-reference", "iri-reference"), _URI),
    "uuid": (r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "6f1c0f0e-3f0b-4d6c-9a57-1f1f3c2b7a10"),
}  # fmt: skip
"""By format: the pattern of a word in that format, and a sample."""


_PATTERN_SAMPLES = ("demo", "DEMO", "a", "A", "AB", "ABC", "1", "123", "1234", "2026-01-31", "12:00", "1.0.0", "a1", "")
"""Texts that are tried for a pattern when no text from the prompt or the schema matches it."""


def pick_text(shape: Schema, texts: list[str], prompt: str, budget: Budget) -> tuple[str, bool]:
    """The first text that fits, cut or padded if its length requires that; and whether it matches the pattern.

    With a format, the prompt's words and a sample are tried instead of the texts. Raises `BudgetExceeded`.
    """
    if shape.get("format") in _FORMATS:
        pattern, sample = _FORMATS[shape["format"]]
        words = (word.strip(".,;:!?()\"'`<>") for word in prompt.split())
        texts = [*(word for word in words if re.fullmatch(pattern, word, re.ASCII)), sample]
    matching = texts
    if "pattern" in shape:
        budget.spend(len(shape["pattern"]))
        node = parse(shape["pattern"])  # None if it has something that is not supported
        tried = [text for text in (*texts, *_PATTERN_SAMPLES) if len(text) < 1000]
        matching = [text for text in tried if matches(node, text, budget)] if node is not None else []
    low, high = min(shape.get("minLength", 0), MAX_TEXT_CHARS), shape.get("maxLength", MAX_TEXT_CHARS)
    padded = (matching or texts)[0].ljust(low, ".")[:high]
    return next((text for text in matching if low <= len(text) <= high), padded), bool(matching)


def pick_number(shape: Schema, suggested: list[Any], *, whole: bool) -> float:
    """The first suggested number within the bounds, or a simple one."""
    above, below = shape.get("exclusiveMinimum", -inf), shape.get("exclusiveMaximum", inf)
    low, high = max(shape.get("minimum", -inf), above), min(shape.get("maximum", inf), below)
    step = shape.get("multipleOf", 1)
    first = ceil(low / step) if low > -inf else floor(high / step) if high < inf else 0
    simple: list[float] = [1, *((first + number) * step for number in (0, 1, -1)), (low + high) / 2]
    for number in cast("list[float]", [*suggested, *simple]):
        is_multiple = "multipleOf" not in shape or number % step == 0
        if low <= number <= high and number not in (above, below) and is_multiple and (not whole or number % 1 == 0):
            return int(number) if whole else number
    return first * step
