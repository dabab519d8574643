"""Calls that a model makes again and again although they fail each time in the same way."""

import json

import pytest

from tests.agent.stage import Far, agent_on, assert_whole, call, end_of, ended, only, outputs_of, play, turn, worked
from tests.support.scripts import NAMES, Calls, Name, Says
from toolwire.agent import AgentConfig, ToolError, tool
from toolwire.agent.events import CallEnded
from toolwire.agent.tools.shell import bash
from toolwire.core.request import TextPart
from toolwire.turns.tools.call import ToolCall
from toolwire.turns.tools.calls import failure
from toolwire.turns.tools.registry import Registry, Result, Tool
from toolwire.turns.tools.repeats import WARNING, Repeats


@tool
async def fails(path: str = "") -> str:
    """Fail."""
    raise ToolError(f"there is no {path}")


@tool
async def looks(path: str = "") -> str:
    """Look."""
    return "well"


@tool(writes=True)
async def writes(path: str = "") -> str:
    """Change something."""
    return "written"


@pytest.mark.parametrize("kind", NAMES)
def test_a_model_that_calls_a_tool_that_is_not_there_again_and_again_is_stopped(kind: Name) -> None:
    async def main() -> None:
        replies = [turn(Calls(f"c{n}", "nope", '{"a": 1}'), kind=kind) for n in range(100)]
        async with Far(*replies, kind=kind) as far:
            agent = agent_on(far, config=AgentConfig(retries=3))
            events = await worked(agent)
            done = ended(events)
            assert (done.reason, len(far.asked)) == ("repeated_calls", 4)
            assert done.error == "nope was called with the same arguments again and again, and failed each time"
            first = "unsupported call: nope"
            assert [event.result for event in only(events, CallEnded)] == [first, first, f"{first}\n{WARNING}", first]
            assert WARNING in far.posted[3].decode(), "the model reads it"
            assert_whole(agent.session.history)

    play(main())


def test_the_model_may_do_something_else_after_the_warning() -> None:
    async def main() -> None:
        same = [turn(Calls(f"c{n}", "fails", '{"path":"a"}')) for n in range(3)]
        async with Far(*same, turn(Calls("c9", "looks")), turn(Says("done"))) as far:
            events = await worked(agent_on(far, fails, looks))
            assert (ended(events).reason, ended(events).text) == ("done", "done")
            assert outputs_of(far.inputs[3])["c2"] == f"there is no a\n{WARNING}"

    play(main())


def test_the_next_prompt_begins_anew() -> None:
    async def main() -> None:
        same = [turn(Calls(f"c{n}", "nope")) for n in range(4)]
        async with Far(*same) as far:
            async with agent_on(far) as agent:
                assert (await end_of(agent, "go")).reason == "repeated_calls"
                far.next(turn(Calls("c8", "nope")), turn(Says("done")))
                assert (await end_of(agent, "go on")).reason == "done"

    play(main())


def test_a_command_that_fails_alike_counts_whatever_time_it_takes() -> None:
    async def main() -> None:
        lines = json.dumps({"command": "sleep 0.$((RANDOM % 3)); echo no; exit 3"})
        async with Far(*(turn(Calls(f"c{n}", "Bash", lines)) for n in range(9))) as far:
            assert ended(await worked(agent_on(far, bash))).reason == "repeated_calls"
            assert len(far.asked) == 4

    play(main())


# What counts

FAILS = failure("no")
A, B = call("fails", arguments='{"path":"a"}'), call("fails", arguments='{"path":"b"}')
WELL = Result((TextPart("well"),))
Step = tuple[ToolCall, Result]


def stops_after(*turns: list[Step], tools: tuple[Tool, ...] = (fails, looks, writes)) -> int:
    """The number of the turn after which it is given up; 0 if it is not."""
    repeats = Repeats(Registry(tools))
    for number, steps in enumerate(turns, 1):
        repeats.next_turn()
        for each, result in steps:
            repeats.judge(each, result)
        if repeats.given_up is not None:
            return number
    return 0


COUNTED: dict[str, tuple[list[list[Step]], int]] = {
    "equal calls": ([[(A, FAILS)]] * 9, 4),
    "with other calls between them": ([[(A, FAILS)], [(B, FAILS)]] * 9, 7),
    "with looks between them": ([[(A, FAILS)], [(call("looks"), WELL)]] * 9, 7),
    "equal JSON": ([[(A, FAILS)], [(call("fails", arguments='{ "path" : "a" }'), FAILS)]] * 9, 4),
    "several in a turn": ([[(A, FAILS)] * 9], 0),
    "several in each turn": ([[(A, FAILS)] * 9] * 4, 4),
    "other arguments": ([[(A, FAILS)], [(B, FAILS)], [(call("fails"), FAILS)]], 0),
    "other failures": ([[(A, failure(f"no {number}"))] for number in range(9)], 0),
    "with changes between them": ([[(A, FAILS)], [(call("writes"), WELL)]] * 9, 0),
    "with changes that fail": ([[(A, FAILS), (call("writes"), failure("no room"))]] * 9, 4),
    "calls that succeed": ([[(call("looks"), WELL)]] * 9, 0),
    "other times": (
        [[(A, failure(f"Exit code: 1\nWall time: {number}.5 seconds\nOutput:\nno"))] for number in range(9)],
        4,
    ),
    "no text that can be encoded": ([[(call("\ud800", arguments="\ud800"), failure("\ud800"))]] * 9, 4),
}


@pytest.mark.parametrize(("turns", "after"), COUNTED.values(), ids=COUNTED)
def test_what_counts_as_the_same_again(turns: list[list[Step]], after: int) -> None:
    assert stops_after(*turns) == after


def test_the_model_is_warned_once() -> None:
    repeats = Repeats(Registry([fails]))
    texts: list[str] = []
    for _ in range(6):
        repeats.next_turn()
        texts += [repeats.judge(A, FAILS).text for _ in range(2)]
    assert texts == ["no"] * 4 + [f"no\n{WARNING}"] + ["no"] * 7
