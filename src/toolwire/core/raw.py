"""JSON that is passed on unchanged: values stay `Raw`, the bytes that were received."""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.text import is_blank, replace_lone_surrogates

Json: TypeAlias = dict[str, Any]
"""A JSON object that is being written."""
Fields: TypeAlias = dict[str, msgspec.Raw]
"""A JSON object whose values stay undecoded."""
Maybe: TypeAlias = msgspec.Raw | msgspec.UnsetType
"""Undecoded JSON of an optional field."""
NULL = msgspec.Raw(b"null")

to_json = msgspec.json.Encoder().encode
fields_of = msgspec.json.Decoder(Fields).decode
"""The fields of an object."""
list_of = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""The values of a list."""
objects_of = msgspec.json.Decoder(list[Fields]).decode
"""The fields of each object in a list."""
text_of = msgspec.json.Decoder(str).decode
"""The text of a string."""


def to_raw(value: Any) -> msgspec.Raw:
    """A value as raw JSON."""
    return msgspec.Raw(to_json(value))


def without_nulls(fields: Fields) -> Fields:
    """The fields that are not null."""
    return {name: value for name, value in fields.items() if value != NULL}


def object_in(fields: Fields, name: str) -> Fields:
    """The fields of the object in a field; none if that is null or absent."""
    value = fields.get(name, NULL)
    return fields_of(value) if value != NULL else {}


NOT_AN_OBJECT = "__arguments"
"""The key that holds arguments which are not a JSON object, where a protocol accepts objects only."""


def as_object(arguments: str) -> msgspec.Raw | None:
    """Arguments as a JSON object in its original text, even if quoted as a string; None if they are not an object."""
    if is_blank(arguments):
        return msgspec.Raw(b"{}")
    try:
        text = text_of(arguments) if arguments.lstrip().startswith('"') else arguments
        try:
            fields_of(text)
        except msgspec.DecodeError:
            fields_of(replace_lone_surrogates(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return msgspec.Raw(text.encode())


def wrap_arguments(arguments: str) -> msgspec.Raw:
    """An object that holds arguments which are not an object; `unwrap_arguments` undoes it."""
    return to_raw({NOT_AN_OBJECT: arguments})


def unwrap_arguments(raw: msgspec.Raw) -> str:
    """The arguments in a JSON value: its text, or the text that `wrap_arguments` put into it."""
    text = bytes(raw).decode()
    if NOT_AN_OBJECT not in text:
        return text
    try:
        fields = fields_of(raw)
        return text_of(fields[NOT_AN_OBJECT]) if list(fields) == [NOT_AN_OBJECT] else text
    except msgspec.DecodeError:
        return text


def arguments_text(raw: msgspec.Raw | msgspec.UnsetType) -> str:
    """Arguments as text: the value of a string, compact JSON of an object, nothing for null."""
    if raw is msgspec.UNSET:
        return ""
    data = bytes(raw)
    if data.startswith(b'"'):
        return text_of(data)
    return "" if data == b"null" else msgspec.json.format(data, indent=-1).decode()
