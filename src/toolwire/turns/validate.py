"""The validator of arguments. The library behind it is loaded with the first call: most gateways never need it."""

from collections.abc import Sequence

from toolwire.adapt.repair import Problem


def validate(schema: bytes, arguments: str) -> Sequence[Problem] | None:
    """The problems of arguments under a schema; None if the schema cannot be used."""
    from toolwire.turns.schemas import find_problems  # noqa: PLC0415

    return find_problems(schema, arguments)
