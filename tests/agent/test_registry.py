"""Tools of typed functions: the schema from the signature, arguments in, results out; and where tools are kept."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict
from uuid import UUID

import msgspec
import pytest

from tests.agent.stage import call, play
from toolwire.agent import Context, Registry, Result, ToolCall, ToolError, tool
from toolwire.core.request import ImagePart, TextPart
from toolwire.turns.tools.call import CustomPayload, LocalShellPayload
from toolwire.turns.tools.registry import FunctionTool, as_result


class Unit(Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


@dataclass
class Place:
    """Where something is."""

    city: str
    zip: int | None = None
    tags: list[str] = field(default_factory=list)


class Window(TypedDict, total=False):
    begin: int
    end: int


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    made = tool(function)
    assert made.parameters is not None
    return msgspec.json.decode(made.parameters)


def answered(made: FunctionTool | Callable[..., Any], arguments: str = "{}", context: Context | None = None) -> Result:
    """What a tool gives back for these arguments."""
    of = made if isinstance(made, FunctionTool) else tool(made)
    return play(of.run(call(of.name, arguments=arguments), context or Context(Path("."), lambda _: None)))


# The schema


def test_a_schema_has_every_parameter_and_says_which_are_needed() -> None:
    def weather(city: str, days: int = 3, unit: Literal["C", "F"] = "C") -> str: ...

    assert schema_of(weather) == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "default": 3},
            "unit": {"enum": ["C", "F"], "default": "C"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


TYPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "str": (str, {"type": "string"}),
    "int": (int, {"type": "integer"}),
    "float": (float, {"type": "number"}),
    "bool": (bool, {"type": "boolean"}),
    "list": (list[str], {"type": "array", "items": {"type": "string"}}),
    "set": (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
    "dict": (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    "any": (Any, {}),
    "optional": (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - this too
    "union": (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    "literal": (Literal["a", "b"], {"enum": ["a", "b"]}),
    "nested list": (list[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
    "date": (date, {"type": "string", "format": "date"}),
    "bounded": (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
    "described": (Annotated[str, msgspec.Meta(description="A city.")], {"type": "string", "description": "A city."}),
}


@pytest.mark.parametrize(("kind", "expected"), TYPES.values(), ids=TYPES)
def test_a_type_has_its_schema(kind: Any, expected: dict[str, Any]) -> None:
    def look(value) -> None: ...

    look.__annotations__["value"] = kind
    assert schema_of(look)["properties"] == {"value": expected}


NESTED = {"dataclass": Place, "struct": Point, "typed dict": Window, "enum": Unit}


@pytest.mark.parametrize("kind", NESTED.values(), ids=NESTED)
def test_a_nested_type_is_a_definition_that_the_schema_brings_along(kind: Any) -> None:
    def look(value: list[kind]) -> None: ...

    look.__annotations__["value"] = list[kind]
    schema = schema_of(look)
    reference = schema["properties"]["value"]["items"]["$ref"]
    assert reference == f"#/$defs/{kind.__name__}"
    assert list(schema["$defs"]) == [kind.__name__]


def test_a_nested_type_with_the_name_of_another_does_not_take_its_place() -> None:
    class look_arguments(msgspec.Struct):  # noqa: N801 - as the engine calls its own
        path: str

    def look(value: look_arguments) -> None: ...

    look.__annotations__["value"] = look_arguments
    schema = schema_of(look)
    assert schema["properties"] != {"path": {"type": "string"}}
    assert answered(tool(look), '{"value":{"path":"a"}}').text == ""


def test_a_function_without_parameters_has_an_empty_object() -> None:
    def now() -> str: ...

    assert schema_of(now) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_parameter_without_a_type_takes_anything() -> None:
    def look(value): ...

    assert schema_of(look)["properties"] == {"value": {}}


def test_annotations_may_be_strings() -> None:
    def look(value: "int", other: "Place") -> "str": ...

    assert schema_of(look)["properties"]["value"] == {"type": "integer"}


def test_parameters_with_defaults_may_stand_before_those_without() -> None:
    def look(first: int = 1, *, second: int) -> None: ...

    assert schema_of(look)["required"] == ["second"]


def test_what_the_engine_gives_is_no_part_of_the_schema() -> None:
    def look(path: str, context: Context, call: ToolCall) -> None: ...

    assert list(schema_of(look)["properties"]) == ["path"]


@pytest.mark.parametrize("default", [[], {}, [1], {"a": 1}], ids=repr)
def test_a_default_may_be_a_list_or_an_object(default: Any) -> None:
    def look(value: Any = default) -> Any:
        return value

    assert "required" not in schema_of(look)
    assert msgspec.json.decode(answered(look).text) == default


def test_parameters_that_have_no_name_are_refused() -> None:
    def rest(*values: str) -> None: ...

    def named(**values: str) -> None: ...

    def by_place(value: str, /) -> None: ...

    for function in (rest, named, by_place):
        with pytest.raises(TypeError, match="cannot be given by name"):
            tool(function)


# What a docstring says


def test_a_docstring_is_the_description() -> None:
    @tool
    def look(path: str) -> None:
        """Look at a file.

        It may be large.
        """

    assert look.description == "Look at a file.\n\nIt may be large."


def test_args_of_a_docstring_describe_parameters() -> None:
    def look(path: str, depth: int = 1, other: str = "") -> None:
        """Look.

        Args:
            path: Where to look. It goes
                on here: with a colon.
            depth (int): How deep.

        Returns:
            nothing: at all
        """

    properties = schema_of(look)["properties"]
    assert properties["path"]["description"] == "Where to look. It goes on here: with a colon."
    assert properties["depth"] == {"type": "integer", "default": 1, "description": "How deep."}
    assert "description" not in properties["other"]
    assert tool(look).description == "Look."


def test_what_a_docstring_says_of_no_parameter_does_no_harm() -> None:
    def look(path: str) -> None:
        """Look.

        Args:
            nothing: There is none.
            context: The engine's.
        """

    assert list(schema_of(look)["properties"]) == ["path"]


def test_an_annotation_that_describes_is_kept_beside_a_docstring() -> None:
    def look(path: Annotated[str, msgspec.Meta(description="From the type.", max_length=9)]) -> None:
        """Look."""

    assert schema_of(look)["properties"]["path"] == {"type": "string", "description": "From the type.", "maxLength": 9}


def test_a_text_in_an_annotation_describes_too() -> None:
    def look(path: Annotated[str, "From the type."]) -> None:
        """Look."""

    assert schema_of(look)["properties"]["path"] == {"type": "string", "description": "From the type."}


def test_no_docstring_is_no_description() -> None:
    assert tool(name="x")(lambda: None).description == ""


# Arguments


def test_arguments_come_as_their_types() -> None:
    seen: list[Any] = []

    def look(place: Place, point: Point, window: Window, unit: Unit, when: date, id: UUID, ids: set[int]) -> None:
        seen.extend((place, point, window, unit, when, id, ids))

    answered(
        look,
        """{"place":{"city":"Bonn"},"point":{"x":1},"window":{"begin":3},"unit":"metric","when":"2026-01-02",
        "id":"00000000-0000-0000-0000-000000000001","ids":[1,1,2]}""",
    )
    assert seen == [Place("Bonn"), Point(1.0), {"begin": 3}, Unit.METRIC, date(2026, 1, 2), UUID(int=1), {1, 2}]


def test_defaults_fill_what_is_missing() -> None:
    def look(path: str = ".", depth: int = 2, tags: list[str] = []) -> str:  # noqa: B006 - msgspec copies it
        tags.append("x")
        return f"{path} {depth} {tags}"

    made = tool(look)
    assert answered(made, '{"depth":3}').text == ". 3 ['x']"
    assert answered(made).text == ". 2 ['x']"


REFUSED = {
    "a missing one": ("{}", "invalid arguments for look: Object missing required field `path`"),
    "another type": ('{"path":1}', "invalid arguments for look: Expected `str`, got `int` - at `$.path`"),
    "out of bounds": ('{"path":"a","depth":9}', "invalid arguments for look: Expected `int` <= 3 - at `$.depth`"),
    "an unknown one": ('{"path":"a","x":1}', "invalid arguments for look: Object contains unknown field `x`"),
    "cut": ('{"path":"a', "failed to parse function arguments: Input data was truncated"),
    "null": ("null", "invalid arguments for look: Expected `object`, got `null`"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong(arguments: str, message: str) -> None:
    ran: list[int] = []

    def look(path: str, depth: Annotated[int, msgspec.Meta(le=3)] = 1) -> None:
        ran.append(1)

    with pytest.raises(ToolError) as raised:
        answered(look, arguments)
    assert str(raised.value) == message
    assert not ran


def test_free_text_is_not_for_a_function() -> None:
    made = tool(name="look")(lambda: None)
    with pytest.raises(ToolError, match="look takes arguments, not free text"):
        play(made.run(ToolCall("look", "c", CustomPayload("hi")), Context(Path("."), print)))


def test_a_command_for_the_shell_is_arguments_too() -> None:
    def local_shell(
        command: list[str],
        working_directory: str = "",
        timeout_ms: int | None = None,
        env: dict[str, str] = {},  # noqa: B006
        with_escalated_permissions: bool = False,
        justification: str = "",
    ) -> str:
        return " ".join(command)

    payload = LocalShellPayload(("ls", "-l"), timeout_ms=5)
    made = tool(local_shell)
    assert play(made.run(ToolCall("local_shell", "c", payload), Context(Path("."), print))).text == "ls -l"


def test_numbers_keep_their_digits() -> None:
    def look(big: int, exact: Decimal) -> str:
        return f"{big} {exact}"

    assert answered(look, '{"big":12345678901234567890,"exact":"1.10"}').text == "12345678901234567890 1.10"


# How it runs


def test_context_and_call_are_given() -> None:
    async def look(path: str, context: Context, call: ToolCall) -> str:
        context.emit("piece")
        return f"{context.cwd} {context.writable} {call.call_id} {path}"

    pieces: list[str] = []
    result = answered(look, '{"path":"a"}', Context(Path("/w"), pieces.append, writable=False))
    assert result.text == "/w False c1 a"
    assert pieces == ["piece"]


def test_an_async_function_runs_in_the_loop_and_a_sync_one_in_a_thread() -> None:
    threads: dict[str, int] = {}

    async def inside() -> None:
        threads["inside"] = threading.get_ident()

    def beside() -> None:
        threads["beside"] = threading.get_ident()

    answered(inside)
    answered(beside)
    assert threads["inside"] == threading.get_ident()
    assert threads["beside"] != threading.get_ident()


def test_a_sync_function_sees_the_context_variables_of_the_turn() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def look() -> str:
        return variable.get()

    async def main() -> Result:
        variable.set("set")
        return await tool(look).run(call("look"), Context(Path("."), print))

    assert play(main()).text == "set"


def test_a_method_is_a_tool_too() -> None:
    class Box:
        def __init__(self) -> None:
            self.there = "a box"

        async def look(self, inside: bool = False) -> str:
            """Look at the box."""
            return self.there

    made = tool(Box().look)
    assert made.name == "look"
    assert list(msgspec.json.decode(made.parameters or b"")["properties"]) == ["inside"]
    assert answered(made).text == "a box"


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_decorated_async_function_is_awaited() -> None:
    async def look() -> str:
        return "seen"

    @functools.wraps(look)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return look(*args, **kwargs)

    assert answered(wrapper).text == "seen"


def test_the_function_itself_still_works() -> None:
    @tool(parallel=True)
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add(1) == 2
    assert add(1, b=4) == 5


def test_a_decorator_with_and_without_parentheses() -> None:
    @tool
    def plain() -> None: ...

    @tool(name="other", parallel=True, writes=True)
    def chosen() -> None: ...

    assert (plain.name, plain.parallel, plain.writes) == ("plain", False, False)
    assert (chosen.name, chosen.parallel, chosen.writes) == ("other", True, True)


def test_what_a_function_raises_comes_out() -> None:
    def look() -> None:
        raise ToolError("no")

    with pytest.raises(ToolError, match="no"):
        answered(look)


# Results

IMAGE = ImagePart("data:image/png;base64,AA==")
RESULTS: dict[str, tuple[Any, str]] = {
    "text": ("hi", "hi"),
    "nothing": (None, ""),
    "empty text": ("", ""),
    "number": (3, "3"),
    "truth": (True, "true"),
    "list": ([1, "a", None], '[1,"a",null]'),
    "dict": ({"a": [1]}, '{"a":[1]}'),
    "tuple": ((1, 2), "[1,2]"),
    "dataclass": (Place("Bonn", 53111), '{"city":"Bonn","zip":53111,"tags":[]}'),
    "struct": (Point(1), '{"x":1,"y":0.0}'),
    "enum": (Unit.METRIC, '"metric"'),
    "date": (date(2026, 1, 2), '"2026-01-02"'),
    "path": (Path("/a/b"), '"/a/b"'),
    "bytes": (b"hi", '"aGk="'),
    "something else": ({"a": 1j}, '{"a":"1j"}'),
    "text part": (TextPart("hi"), "hi"),
}


@pytest.mark.parametrize(("value", "text"), RESULTS.values(), ids=RESULTS)
def test_a_result_of_any_type_is_text(value: Any, text: str) -> None:
    result = as_result(value)
    assert result.text == text
    assert not result.failed
    assert answered(tool(name="x")(lambda: value)) == result


def test_a_result_may_be_an_image() -> None:
    assert as_result(IMAGE) == Result((IMAGE,))


def test_a_result_passes_as_it_is() -> None:
    result = Result((TextPart("no"), IMAGE), failed=True)
    assert as_result(result) is result
    assert result.text == "no"


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_parts_is_a_result_of_these_parts(kind: type) -> None:
    assert as_result(kind((TextPart("a"), IMAGE))) == Result((TextPart("a"), IMAGE))


# Where tools are kept


def made(name: str) -> FunctionTool:
    return tool(name=name)(lambda: name)


def test_a_registry_keeps_tools_in_their_order() -> None:
    registry = Registry([made("b"), made("a")])
    registry.add(made("c"))
    assert [each.name for each in registry] == ["b", "a", "c"]
    assert len(registry) == 3
    assert registry.get("a") is not None
    assert registry.get("x") is None


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="there are two tools named 'a'"):
        Registry([made("a"), made("a")])


def test_a_tool_that_is_removed_makes_room_for_another() -> None:
    registry = Registry([made("a")])
    registry.remove("a")
    registry.remove("never there")
    registry.add(made("a"))
    assert len(registry) == 1


def test_a_source_puts_its_tools_right_at_every_refresh() -> None:
    registry = Registry([made("own")])
    offered = ["x"]

    def source(into: Registry) -> None:
        for name in ("x", "y"):
            into.remove(name)
        for name in offered:
            into.add(made(name))

    registry.follow(source)
    registry.refresh()
    assert [each.name for each in registry] == ["own", "x"]
    offered[:] = ["y"]
    registry.refresh()
    assert [each.name for each in registry] == ["own", "y"]


def test_tools_do_not_share_what_they_are_given() -> None:
    """Two calls at once have their own arguments and contexts."""

    async def look(which: str, context: Context) -> str:
        await asyncio.sleep(0)
        context.emit(which)
        return which

    async def main() -> list[str]:
        pieces: list[tuple[int, str]] = []
        shared = tool(look)
        contexts = [
            Context(Path("."), functools.partial(lambda n, text: pieces.append((n, text)), n)) for n in range(3)
        ]
        results = await asyncio.gather(
            *(shared.run(call("look", arguments=f'{{"which":"{n}"}}'), contexts[n]) for n in range(3))
        )
        assert pieces == [(0, "0"), (1, "1"), (2, "2")]
        return [each.text for each in results]

    assert play(main()) == ["0", "1", "2"]


def test_a_function_that_hangs_does_not_keep_the_process() -> None:
    assert answered(lambda: threading.current_thread().daemon).text == "true"


def test_a_function_may_raise_what_no_future_takes() -> None:
    def look() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        answered(look)
