"""How every dialect reads what a client sent, and says what is wrong with it."""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from toolwire.core.errors import BadRequest, complaint

T = TypeVar("T")
Maybe = msgspec.Raw | msgspec.UnsetType
"""JSON that is passed on as it is. Whether it was null is for `given` to say."""
_NULL = msgspec.Raw(b"null")


def given(raw: Maybe) -> msgspec.Raw | None:
    return None if raw is msgspec.UNSET or raw == _NULL else raw


def begins(raw: msgspec.Raw, letter: bytes) -> bool:
    """Whether JSON begins with this letter. Nothing of it is copied, however large it is."""
    return memoryview(raw)[:1].tobytes() == letter


def read(decode: Callable[[bytes], T], data: bytes, what: str = "The body") -> T:
    """What the client sent, or a `BadRequest` that says what is wrong with it."""
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise explained(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what} is not valid JSON: {error}", code="invalid_json") from None


def required(path: str) -> BadRequest:
    """What is wrong when there is nothing in a field that must have something."""
    return BadRequest(f"{path}: This field is required.", path, "missing_required_parameter")


def explained(error: msgspec.ValidationError, path: str = "") -> BadRequest:
    """What msgspec finds wrong with a value at this path, with the field it is about."""
    text, param = complaint(error)
    param = f"{path}.{param}" if path and param and not param.startswith("[") else path + param
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return required(f"{param}.{missing[1]}" if param else missing[1])
    code = "invalid_type" if text.startswith("Expected") else "invalid_value"
    return BadRequest(f"{param}: {text}." if param else f"The body: {text}.", param or None, code)
