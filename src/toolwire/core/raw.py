"""JSON that is only passed on: the values of objects and lists stay `Raw`, in the bytes in which they were written."""

from typing import Any, TypeAlias

import msgspec

Fields: TypeAlias = dict[str, msgspec.Raw]
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
