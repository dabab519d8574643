"""What may be a tool: functions with pydantic fields, partial functions, objects; and what is refused, and how."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import Field

from toolwire.agent import Agent, Context, tool
from toolwire.testing import Calls, ScriptedModel


def results(made: Any, *calls: Calls) -> list[str]:
    """What the model reads about these calls."""
    run = Agent(ScriptedModel([*calls], "done"), tools=[made]).run_sync("go")
    return [call.result for call in run.calls]


def look(
    count: Annotated[int, Field(ge=1, description="How often.")],
    name: str = Field("x", max_length=3),
    sizes: list[Annotated[int, Field(gt=0)]] = [],  # noqa: B006 - each call has its own
) -> str:
    """Look."""
    return repr((count, name, sizes))


# Fields of pydantic


def test_a_field_of_pydantic_describes_its_parameter() -> None:
    schema = json.loads(bytes(tool(look).parameters or b""))
    assert schema["properties"] == {
        "count": {"type": "integer", "minimum": 1, "description": "How often."},
        "name": {"type": "string", "maxLength": 3, "default": "x"},
        "sizes": {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 0}},
    }
    assert schema["required"] == ["count"]


def test_a_field_of_pydantic_is_checked() -> None:
    right = results(look, Calls("look", count=1), Calls("look", count=2, name="abc", sizes=[4]))
    assert right == ["(1, 'x', [])", "(2, 'abc', [4])"]
    for wrong in ({"count": 0}, {"count": 1, "name": "long"}, {"count": 1, "sizes": [0]}, {}):
        [read] = results(look, Calls("look", **wrong))
        assert read.startswith("invalid arguments for look: ")


def test_pydantic_is_not_loaded_for_anybody_else() -> None:
    program = (
        "import sys; from toolwire.agent import tool\n@tool\ndef f(a: int): 'F.'\nprint('pydantic' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )


# What may be a tool


class Adder:
    def __call__(self, number: int) -> int:
        """Add one."""
        return number + 1


def test_partial_functions_and_objects_are_tools_if_they_are_given_a_name() -> None:
    assert results(tool(name="look")(partial(look, count=3)), Calls("look")) == ["(3, 'x', [])"]
    made = tool(name="add")(Adder())
    assert (results(made, Calls("add", number=1)), made.description) == (["2"], "Add one.")


@pytest.mark.parametrize("nameless", [partial(look, count=3), Adder()])
def test_a_tool_needs_a_name(nameless: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"needs a name: tool\(name="):
        tool(nameless)


def test_a_context_may_be_optional() -> None:
    def where(context: Context | None = None) -> str:
        """Say where."""
        return type(context).__name__

    assert results(where, Calls("where")) == ["Context"]


def number(value: complex) -> str:
    """Take a number."""
    return str(value)


def later(value: "Nothing") -> str:  # noqa: F821 # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
    """Take what is not there."""
    return ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (number, "number: the parameter value cannot be read from JSON: "),
        (later, "later: an annotation cannot be resolved: name 'Nothing' is not defined"),
        (Agent("demo"), r"an agent is not a tool: pass `agent\.as_tool\(name, description\)`"),
        ({"name": "look"}, "tools: a tool or a function is needed, not dict"),
        ("look", "tools: a tool or a function is needed, not str"),
    ],
)
def test_what_is_no_tool_is_refused_when_the_agent_is_made(wrong: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Agent("demo", tools=[wrong])
