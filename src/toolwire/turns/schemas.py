"""Checks arguments against JSON Schemas with the jsonschema library, within limits.

The schema comes from a client and the arguments from a model, so neither is trusted: nothing is fetched, every step is
counted, and only simple forms of `pattern` are checked. For an unusable schema the answer is None.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Any, TypeAlias, cast

import msgspec
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from toolwire.adapt.repair import Problem
from toolwire.core.cache import Cache
from toolwire.core.text import replace_lone_surrogates

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SUBSCHEMAS = 512
"""Maximum objects in a schema: the first use of a schema, which validates it, takes up to 0.2 ms for each."""

MAX_STEPS = 20_000
"""Maximum steps of one validation."""
MAX_WORK = 30_000_000
"""Maximum steps times characters of one validation: each step may look at all characters."""

MAX_PROBLEMS = 8
"""Maximum problems reported for one call."""

MAX_MATCHED_CHARS = 1000
"""Longer texts are not matched against a pattern."""

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[Any] | None]

_library = cast("Any", validators)  # it is not typed


class StepsExceeded(Exception):
    """The steps are used up."""


class _Budget:
    """The remaining steps of the current validation; there is never more than one."""

    left = 0


_validating = Lock()


def find_problems(schema: bytes, arguments: str) -> Sequence[Problem] | None:
    """The problems of arguments under a schema; None if the schema cannot be used."""
    with _validating:
        return _find_problems(schema, arguments)


def _find_problems(schema: bytes, arguments: str) -> Sequence[Problem] | None:
    validator = _validators[schema]
    if validator is None:
        return None
    _Budget.left = min(MAX_STEPS, MAX_WORK // (len(arguments) + 1) + 500)
    whole = replace_lone_surrogates(arguments)
    problems: list[Problem] = []
    try:
        value = msgspec.json.decode(whole)
        for error in islice(validator.iter_errors(value), MAX_PROBLEMS):
            wanted = set(_list_types(error))
            if error.validator in ("anyOf", "oneOf"):
                wanted.update(type for each in error.context if not each.relative_path for type in _list_types(each))
            problems.append(Problem(tuple(error.absolute_path), error.validator or "false", tuple(sorted(wanted))))
    except (StepsExceeded, RecursionError, OverflowError, UnknownType, Unresolvable, msgspec.DecodeError):
        return None
    except (ValueError, TypeError, AttributeError, LookupError):  # the library trusts its schema; this is a client's
        return None
    return problems


def _list_types(error: Any) -> Sequence[str]:
    if error.validator != "type":
        return ()
    given = error.validator_value
    return [given] if isinstance(given, str) else [each for each in given if isinstance(each, str)]


def _make_validator(schema: bytes) -> Any:
    """The validator of a schema; None if the schema is invalid or too large."""
    if len(schema) > MAX_SCHEMA_BYTES or schema.count(b"{") > MAX_SUBSCHEMAS:
        return None
    try:
        decoded: Any = msgspec.json.decode(schema)
        name: Any = cast("dict[str, Any]", decoded).get("$schema") if isinstance(decoded, dict) else None
        draft: Any = Draft202012Validator
        if isinstance(name, str):
            draft = _library.validator_for({"$schema": name}, default=Draft202012Validator)
        draft.check_schema(decoded, format_checker=None)
        return _limit(draft)(_drop_drafts(decoded), registry=EMPTY_REGISTRY)  # so that nothing is fetched
    except (SchemaError, RecursionError, msgspec.DecodeError):
        return None


_validators = Cache(_make_validator)


def _drop_drafts(schema: Any) -> Any:
    """The schema without `$schema`, which would select an unlimited validator for a part of it."""
    if isinstance(schema, list):
        return [_drop_drafts(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    parts = cast("dict[str, Any]", schema).items()
    return {key: _drop_drafts(part) for key, part in parts if key != "$schema" or not isinstance(part, str)}


@lru_cache(maxsize=16)
def _limit(draft: Any) -> Any:
    """The validator of a draft with counted steps and without patterns that could take forever."""

    def count(keyword: Keyword) -> Keyword:
        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
            _Budget.left -= 1 + _measure(value) + _measure(instance)
            if _Budget.left < 0:
                raise StepsExceeded
            return keyword(validator, value, instance, schema)

        return check

    additional: Keyword = draft.VALIDATORS["additionalProperties"]
    own: dict[str, Keyword] = {
        **draft.VALIDATORS,
        "pattern": _check_pattern,
        "uniqueItems": _check_unique_items,
        # Without patterns, it is unknown which properties are additional.
        "additionalProperties": lambda validator, value, instance, schema: (
            None if "patternProperties" in schema else additional(validator, value, instance, schema)
        ),
        # These run patterns, so they are not checked.
        **dict.fromkeys(("patternProperties", "unevaluatedProperties", "unevaluatedItems"), _skip),
    }
    return _library.extend(draft, {name: count(keyword) for name, keyword in own.items()})


def _skip(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """The check of a keyword that is skipped."""


def _measure(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0


def _check_unique_items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """As the library does it, but in linear time."""
    if value and isinstance(instance, list):
        items = cast("list[Any]", instance)
        if len({msgspec.json.encode(each, order="deterministic") for each in items}) < len(items):
            yield ValidationError("has non-unique elements")


def _check_pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and len(instance) <= MAX_MATCHED_CHARS:
        simple = _patterns[value]
        if simple is not None and not simple.search(instance):
            yield ValidationError("does not match the pattern")


_PIECE = re.compile(
    r"""
    (?: \[\^?(?:[^\]\[\\&|~]|\\.)+\] | \\[dw./\-+@:] | [^\\^$|?*+()\[\]{}] )
    (?: \{[0-9]{1,3}\} | (?P<loose>[?*+]|\{[0-9]{1,3},[0-9]{0,3}\}) )?
    """,
    re.VERBOSE | re.DOTALL,
)
"""A character or a class, and how often it occurs."""


def compile_simple_pattern(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern that is cheap and the same in JavaScript: `^`, pieces (two may vary), `$`; else None."""
    if len(pattern) > 200 or not (pattern.startswith("^") and pattern.endswith("$")):
        return None
    inside = pattern[1:-1]
    pieces = list(_PIECE.finditer(inside))
    if "".join(piece[0] for piece in pieces) != inside or sum(piece["loose"] is not None for piece in pieces) > 2:
        return None
    try:
        return re.compile(rf"^{inside}\Z", re.ASCII)
    except (re.error, OverflowError):
        return None


_patterns = Cache(compile_simple_pattern)
