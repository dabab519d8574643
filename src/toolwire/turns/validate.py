"""The validator of arguments, loaded when the first call is looked at: most gateways never need it."""

from collections.abc import Sequence

from toolwire.adapt.retype import Problem


def validate(schema: bytes, arguments: str) -> Sequence[Problem] | None:
    """What is wrong with these arguments, by this schema; None if the schema cannot be used."""
    from toolwire.turns.schemas import problems  # noqa: PLC0415

    return problems(schema, arguments)
