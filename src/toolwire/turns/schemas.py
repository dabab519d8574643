"""Arguments against JSON Schemas, by the jsonschema library, within bounds.

The schema is the client's and the arguments are a model's, so neither may cost what it likes: nothing is fetched, every
step is counted, and `pattern` is read only where it is plain. A schema that cannot be used is said to be so.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias, cast

import msgspec
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from toolwire.adapt.retype import Problem
from toolwire.core.cache import Cache

LONGEST = 64 * 1024
"""Most bytes of a schema that is used."""

STEPS = 20_000
WORK = 30_000_000
"""Most steps of one validation, and most steps times characters: each may look at all of them."""

MOST = 8
"""Problems that are reported of one call."""

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[Any] | None]

_library = cast("Any", validators)  # it does not tell its types


class TooMuch(Exception):
    """The steps are used up."""


class _Budget:
    """The steps that are left of the validation under way; there is never more than one."""

    left = 0


def problems(schema: bytes, arguments: str) -> Sequence[Problem] | None:
    """What is wrong with these arguments, by this schema; None if the schema cannot be used."""
    validator = _ready[schema]
    if validator is None:
        return None
    _Budget.left = min(STEPS, WORK // (len(arguments) + 1) + 500)
    try:
        return [_problem(error) for error in islice(validator.iter_errors(msgspec.json.decode(arguments)), MOST)]
    except (TooMuch, RecursionError, OverflowError, UnknownType, Unresolvable, msgspec.DecodeError):
        return None
    except (ValueError, TypeError, AttributeError, LookupError):  # the library trusts its schema; this is a client's
        return None


def _problem(error: Any) -> Problem:
    wanted = set(_types(error))
    if error.validator in ("anyOf", "oneOf"):
        wanted.update(type for each in error.context if not each.relative_path for type in _types(each))
    return Problem(tuple(error.absolute_path), error.validator or "false", tuple(sorted(wanted)))


def _types(error: Any) -> Sequence[str]:
    if error.validator != "type":
        return ()
    given = error.validator_value
    return [given] if isinstance(given, str) else [each for each in given if isinstance(each, str)]


def _prepare(schema: bytes) -> Any:
    """A validator for this schema, or None if it is none, or too large."""
    if len(schema) > LONGEST:
        return None
    try:
        read = msgspec.json.decode(schema)
        draft = _draft(read)
        draft.check_schema(read, format_checker=None)
        return _bounded(draft)(_of_one_draft(read), registry=EMPTY_REGISTRY)  # nothing outside of it is there
    except (SchemaError, RecursionError, msgspec.DecodeError):
        return None


_ready = Cache(_prepare)


def _draft(schema: Any) -> Any:
    said: Any = cast("dict[str, Any]", schema).get("$schema") if isinstance(schema, dict) else None
    if not isinstance(said, str):
        return Draft202012Validator
    return _library.validator_for({"$schema": said}, default=Draft202012Validator)


def _of_one_draft(schema: Any) -> Any:
    """The schema without `$schema`, which would bring a validator without bounds for a part of it."""
    if isinstance(schema, list):
        return [_of_one_draft(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    parts = cast("dict[str, Any]", schema).items()
    return {key: _of_one_draft(part) for key, part in parts if key != "$schema" or not isinstance(part, str)}


@lru_cache(maxsize=16)
def _bounded(draft: Any) -> Any:
    """A draft's validator that counts its steps and meets no pattern that could take forever."""
    own: dict[str, Keyword] = {**draft.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique_items}
    own["additionalProperties"] = _without_patterns(draft.VALIDATORS["additionalProperties"])
    own |= dict.fromkeys(("patternProperties", "unevaluatedProperties", "unevaluatedItems"), _unsaid)
    return _library.extend(draft, {name: _counted(keyword) for name, keyword in own.items()})


def _counted(keyword: Keyword) -> Keyword:
    def step(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        _Budget.left -= 1 + _weight(value) + _weight(instance)
        if _Budget.left < 0:
            raise TooMuch
        return keyword(validator, value, instance, schema)

    return step


def _weight(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0


def _unsaid(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """Keywords that are not looked at, because they run patterns."""


def _without_patterns(keyword: Keyword) -> Keyword:
    """`patternProperties` would decide which properties are additional."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        return None if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return check


def _unique_items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """In linear time, which the library's own is not."""
    if value and isinstance(instance, list):
        items = cast("list[Any]", instance)
        if len({msgspec.json.encode(each, order="deterministic") for each in items}) < len(items):
            yield ValidationError("has non-unique elements")


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, str) or len(instance) > 1000:
        return
    plain = _patterns[value]
    if plain is not None and not plain.search(instance):
        yield ValidationError("does not match the pattern")


_PIECE = re.compile(
    r"""
    (?: \[\^?(?:[^\]\[\\&|~]|\\.)+\] | \\[dw./\-+@:] | [^\\^$|?*+()\[\]{}] )
    (?: \{[0-9]{1,3}\} | (?P<loose>[?*+]|\{[0-9]{1,3},[0-9]{0,3}\}) )?
    """,
    re.VERBOSE | re.DOTALL,
)


def plain_pattern(pattern: str) -> re.Pattern[str] | None:
    """A pattern that means the same in JavaScript and here and costs little: `^`, a row of chars, two counts, `$`."""
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


_patterns = Cache(plain_pattern)
