"""How every dialect reads what a client sent, and reports what is wrong with it."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from toolwire.core.errors import BadRequest, validation_message
from toolwire.core.raw import NULL

T = TypeVar("T")
Maybe = msgspec.Raw | msgspec.UnsetType
"""JSON that is passed on as it is; `given` distinguishes a value from null or absence."""


def given(raw: Maybe) -> msgspec.Raw | None:
    """The value of a field, or None if it is null or absent."""
    return None if raw is msgspec.UNSET or raw == NULL else raw


def begins_with(raw: msgspec.Raw, char: bytes) -> bool:
    """Whether JSON begins with this character. Nothing is copied, however large it is."""
    return memoryview(raw)[:1].tobytes() == char


def read(decode: Callable[[bytes], T], data: bytes, what: str = "The body") -> T:
    """The decoded data, or a `BadRequest` that says what is wrong with it."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise as_bad_request(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what} is not valid JSON: {error}", code="invalid_json") from None


def required(path: str) -> BadRequest:
    """The error for a missing required field."""
    return BadRequest(f"{path}: This field is required.", path, "missing_required_parameter")


def as_bad_request(error: msgspec.ValidationError, path: str = "") -> BadRequest:
    """A msgspec error about the value at this path, as the error for the client, which names the field."""
    text, param = validation_message(error)
    param = f"{path}.{param}" if path and param and not param.startswith("[") else path + param
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return required(f"{param}.{missing[1]}" if param else missing[1])
    code = "invalid_type" if text.startswith("Expected") else "invalid_value"
    return BadRequest(f"{param}: {text}." if param else f"The body: {text}.", param or None, code)
