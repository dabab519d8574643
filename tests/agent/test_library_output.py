"""Typed output: whatever type is asked for, the result has a value of it, or the run fails."""

import dataclasses
import enum
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from tests.agent.stage import Far, play, turn
from tests.support import scripts
from toolwire.agent import Agent, MaxTurnsExceeded, OutputInvalid, events, tool
from toolwire.agent.output import OutputType
from toolwire.testing import Calls, ModelRequest, ScriptedModel


class Struct(msgspec.Struct):
    city: str
    degrees: int = 20


@dataclasses.dataclass
class Data:
    city: str
    degrees: int = 20


class Model(pydantic.BaseModel):
    city: str
    degrees: int = pydantic.Field(default=20, lt=60)


class Dict(TypedDict):
    city: str
    degrees: int


class Unit(enum.Enum):
    C = "C"
    F = "F"


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


PARIS = {"city": "Paris", "degrees": 18}


def given(kind: Any, *calls: Calls, **options: Any) -> Any:
    return play(Agent(ScriptedModel(*calls), output_type=kind, **options).run("go")).output


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Struct, Struct("Paris", 18)),
        (Data, Data("Paris", 18)),
        (Model, Model(city="Paris", degrees=18)),
        (Dict, PARIS),
    ],
    ids=["Struct", "dataclass", "pydantic", "TypedDict"],
)
def test_an_object_is_the_arguments_themselves(kind: Any, value: Any) -> None:
    output = given(kind, Calls("final_result", **PARIS))
    assert output == value
    assert type(output) is type(value)
    schema = msgspec.json.decode(OutputType(kind).parameters)
    assert set(schema["properties"]) == {"city", "degrees"}


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (int, 3, 3),
        (bool, True, True),
        (float, 3, 3.0),
        (list[str], ["a"], ["a"]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Literal["yes", "no"], "no", "no"),
        (Unit, "F", Unit.F),
        (list[Struct], [PARIS], [Struct("Paris", 18)]),
        (list[Model], [PARIS], [Model(city="Paris", degrees=18)]),
        (int | None, None, None),
    ],
    ids=str,
)
def test_anything_else_is_one_argument(kind: Any, raw: Any, value: Any) -> None:
    assert given(kind, Calls("final_result", result=raw)) == value
    assert list(msgspec.json.decode(OutputType(kind).parameters)["properties"]) == ["result"]


def test_a_type_that_holds_itself() -> None:
    output = given(Node, Calls("final_result", name="a", children=[{"name": "b"}]))
    assert output == Node("a", [Node("b")])
    assert "$defs" in msgspec.json.decode(OutputType(Node).parameters)


def test_text_is_the_output_where_no_type_or_str_is_asked_for() -> None:
    for kind in (None, str):
        model = ScriptedModel("Hello.")
        assert play(Agent(model, output_type=kind).run("go")).output == "Hello."
        assert model.requests[0].tools == ()


def test_an_output_that_does_not_fit_goes_back_to_the_model() -> None:
    model = ScriptedModel(Calls("final_result", city=1), Calls("final_result", **PARIS))
    result = play(Agent(model, output_type=Struct).run("go"))
    assert result.output == Struct("Paris", 18)
    assert "Expected `str`, got `int`" in model.requests[1].results[0]
    assert result.turns == 2


def test_the_rules_of_a_pydantic_model_hold() -> None:
    model = ScriptedModel(Calls("final_result", city="Paris", degrees=99), Calls("final_result", **PARIS))
    assert play(Agent(model, output_type=Model).run("go")).output == Model(city="Paris", degrees=18)
    assert "less than 60" in model.requests[1].results[0]


def test_a_model_that_answers_in_words_is_told_to_give_the_output() -> None:
    model = ScriptedModel("It is 18 degrees in Paris.", Calls("final_result", **PARIS))
    result = play(Agent(model, output_type=Struct).run("go"))
    assert result.output == Struct("Paris", 18)
    assert "final_result" in model.requests[1].prompt
    assert result.text == "It is 18 degrees in Paris."


def test_an_answer_that_is_json_of_the_type_counts() -> None:
    assert play(Agent(ScriptedModel('{"city": "Rome"}'), output_type=Struct).run("go")).output == Struct("Rome")


@pytest.mark.parametrize(
    "wrong", [Calls("final_result", city=1), "I would rather not say."], ids=["it does not fit", "in words"]
)
@pytest.mark.parametrize("retries", [0, 2])
def test_a_model_that_never_gives_it_fails_the_run(wrong: Any, retries: int) -> None:
    model = ScriptedModel(otherwise=wrong)
    with pytest.raises(OutputInvalid) as caught:
        play(Agent(model, output_type=Struct, output_retries=retries).run("go"))
    assert f"after {retries + 1} attempts" in str(caught.value)
    assert len(model.requests) == retries + 1
    assert caught.value.session is not None
    assert caught.value.usage.input > 0


def test_every_attempt_counts_as_a_turn() -> None:
    with pytest.raises(MaxTurnsExceeded):
        play(Agent(ScriptedModel(otherwise="no"), output_type=int, output_retries=9, max_turns=3).run("go"))


def test_tools_of_the_last_turn_run_too_and_the_first_output_counts() -> None:
    ran: list[str] = []

    @tool
    def save() -> None:
        """Save."""
        ran.append("save")

    model = ScriptedModel([Calls("final_result", result=1), Calls("save"), Calls("final_result", result=2)])
    assert play(Agent(model, tools=[save], output_type=int).run("go")).output == 1
    assert ran == ["save"]


def test_a_session_with_an_output_goes_on() -> None:
    def answer(request: ModelRequest) -> Calls:
        return Calls("final_result", result=len(request.messages))

    agent = Agent(ScriptedModel(otherwise=answer), output_type=int)

    async def main() -> None:
        first = await agent.run("one")
        second = await agent.run("two", session=first.session)
        assert (first.output, second.output) == (1, 2)

    play(main())


def test_the_name_of_the_output_is_taken() -> None:
    @tool
    def final_result() -> None:
        """Mine."""

    with pytest.raises(ValueError, match="two tools named 'final_result'"):
        play(Agent(ScriptedModel(), tools=[final_result], output_type=int).run("go"))


def test_a_type_that_json_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        Agent(ScriptedModel(), output_type=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", scripts.NAMES)
def test_every_kind_of_backend_gives_typed_output(kind: scripts.Name) -> None:
    async def main() -> None:
        reply = turn(scripts.Calls("c1", "final_result", '{"city":"Paris","degrees":18}'), kind=kind)
        async with Far(reply, kind=kind) as far:
            agent = Agent("m", backend=f"{kind}:{far.url}", output_type=Data)
            async with agent.stream("go") as run:
                seen = [event async for event in run]
            assert run.result.output == Data("Paris", 18)
            assert isinstance(seen[-1], events.TaskEnded)

    play(main())
