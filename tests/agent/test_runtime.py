"""The gate and the runtime: what runs side by side, what waits, and what is left when a turn is stopped."""

import asyncio
import random
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.agent.stage import Held, call, play, settle, which
from toolwire.agent import Context, FatalToolError, ToolError, tool
from toolwire.core.collect import Call
from toolwire.core.request import TextPart
from toolwire.turns.tools.call import (
    CustomPayload,
    FunctionPayload,
    LocalShellPayload,
    ToolCall,
)
from toolwire.turns.tools.calls import MAX_RESULT_CHARS, CallHooks, Finished, Gate, TurnCalls, abort_message
from toolwire.turns.tools.registry import FunctionTool, Registry, Result, Tool, declare, tool_call_from

# The gate


class Visits:
    """People at a gate, and a log of who came, went in and left. It checks the rules at every step."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.log: list[str] = []
        self.inside: dict[str, bool] = {}
        self.queue: list[str] = []
        self._gave_up: set[str] = set()
        self._may_leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def comes(self, who: str) -> None:
        """A reader, if the name begins with `r`, or a writer."""
        self._may_leave[who] = asyncio.Event()
        self._tasks[who] = asyncio.create_task(self._visit(who, who.startswith("r")))

    async def _visit(self, who: str, shared: bool) -> None:
        self.queue.append(who)
        try:
            async with self.gate.pass_through(shared=shared):
                self._enters(who, shared)
                try:
                    await self._may_leave[who].wait()
                finally:
                    del self.inside[who]
                    self.log.append(f"-{who}")
        finally:
            if who in self.queue:
                self.queue.remove(who)

    def _enters(self, who: str, shared: bool) -> None:
        ahead = [other for other in self.queue[: self.queue.index(who)] if other not in self._gave_up]
        assert all(other.startswith("r") for other in ahead if shared), f"{who} went past {ahead}"
        assert shared or not ahead, f"{who} went past {ahead}"
        self.queue.remove(who)
        self.inside[who] = shared
        self.log.append(f"+{who}")
        writers = [other for other, reads in self.inside.items() if not reads]
        assert len(writers) <= 1, "two writers"
        assert not writers or len(self.inside) == 1, "a writer with others"

    @property
    def names(self) -> list[str]:
        return list(self._tasks)

    def leaves(self, who: str) -> None:
        self._may_leave[who].set()

    def gives_up(self, who: str) -> None:
        self._gave_up.add(who)
        self._tasks[who].cancel()

    async def all_leave(self) -> None:
        for event in self._may_leave.values():
            event.set()
        await settle(6 * len(self._tasks))
        stuck = [who for who, task in self._tasks.items() if not task.done()]
        for task in self._tasks.values():
            task.cancel()
        results = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        assert not stuck, f"{stuck} never got in"
        wrong = [each for each in results if each is not None and not isinstance(each, asyncio.CancelledError)]
        assert not wrong, wrong


async def visits(*steps: str) -> list[str]:
    """`r1` comes, `r1-` leaves, `r1!` gives up; `.` lets everything happen that can."""
    people = Visits()
    for step in steps:
        if step == ".":
            await settle()
        elif step.endswith("-"):
            people.leaves(step[:-1])
        elif step.endswith("!"):
            people.gives_up(step[:-1])
        else:
            people.comes(step)
    await settle()
    seen = list(people.log)
    await people.all_leave()
    return seen


GATE = {
    "readers are inside together": ("r1 r2 r3", "+r1 +r2 +r3"),
    "a second writer waits for the first": ("w1 w2", "+w1"),
    "a second writer follows the first": ("w1 w2 . w1-", "+w1 -w1 +w2"),
    "a writer waits for readers": ("r1 r2 w1 . r1-", "+r1 +r2 -r1"),
    "a writer follows the last reader": ("r1 r2 w1 . r1- r2-", "+r1 +r2 -r1 -r2 +w1"),
    "readers wait for a writer": ("w1 r1 r2", "+w1"),
    "all readers in a row follow a writer": ("w1 r1 r2 w2 r3 . w1-", "+w1 -w1 +r1 +r2"),
    "a writer who waits holds up later readers": ("r1 w1 r2", "+r1"),
    "everybody comes in the order of arrival": ("r1 w1 r2 w2 . r1- . w1- . r2-", "+r1 -r1 +w1 -w1 +r2 -r2 +w2"),
    "readers behind a writer who gave up go in": ("r1 w1 r2 . w1!", "+r1 +r2"),
    "a writer behind a writer who gave up goes in": ("w1 w2 w3 . w2! . w1-", "+w1 -w1 +w3"),
    "a writer inside who gives up lets the next in": ("w1 w2 . w1!", "+w1 -w1 +w2"),
    "a reader inside who gives up lets a writer in": ("r1 w1 . r1!", "+r1 -r1 +w1"),
}


@pytest.mark.parametrize(("steps", "expected"), GATE.values(), ids=GATE)
def test_the_gate(steps: str, expected: str) -> None:
    assert play(visits(*steps.split())) == expected.split()


EXIT_SECONDS = {
    "one inside and one who waits": ("w1 w2 r1 . w1! w2!", "+w1 -w1 +r1", ()),
    "a reader inside and a writer who waits": ("r1 w1 r2 . r1! w1!", "+r1 -r1 +r2", ()),
    "the one inside leaves as the next gives up": ("w1 w2 r1 . w1- w2!", "+w1 -w1 +r1", ()),
    "the next two as the one inside leaves": ("w1 w2 w3 r1 . w1- w2! w3!", "+w1 -w1 +r1", ()),
    "all who wait": ("w1 w2 r1 r2 w3 . w2! r1! r2! . w1-", "+w1 -w1 +w3", ()),
    "all": ("r1 r2 w1 r3 . r1! r2! w1! r3! . w4", "+r1 +r2 -r1 -r2 +w4", ()),
}


@pytest.mark.parametrize(
    ("steps", "expected"), [pytest.param(a, b, marks=marks, id=id) for id, (a, b, marks) in EXIT_SECONDS.items()]
)
def test_several_give_up_at_the_gate_at_once(steps: str, expected: str) -> None:
    assert play(visits(*steps.split())) == expected.split()


def test_somebody_who_was_let_in_just_now_and_gives_up_lets_the_next_in() -> None:
    async def main() -> list[str]:
        people = Visits()
        for who in ("w1", "w2", "w3"):
            people.comes(who)
        await settle()
        people.gives_up("w1")
        await asyncio.sleep(0)  # w1 is out, and w2 is told that it may come in
        people.gives_up("w2")
        await settle()
        seen = list(people.log)
        await people.all_leave()
        return seen

    assert play(main()) == ["+w1", "-w1", "+w3"]


@st.composite
def arrivals(draw: st.DrawFn) -> list[str]:
    """People who come, leave and give up in any order, and how far things get in between."""
    steps: list[str] = []
    known: list[str] = []
    for number in range(draw(st.integers(1, 12))):
        known.append(f"{draw(st.sampled_from('rw'))}{number}")
        steps.append(known[-1])
        steps += [draw(st.sampled_from(known)) + draw(st.sampled_from("-!")) for _ in range(draw(st.integers(0, 2)))]
        steps += ["."] * draw(st.integers(0, 1))
    return steps


@given(arrivals())
@example(["r0", "r1", "w2", "r3", ".", "r4", "r0-", "r5", "w2!"])  # whoever has given up is passed before it knows
def test_the_gate_holds_its_rules_whoever_comes_leaves_and_gives_up(steps: list[str]) -> None:
    play(visits(*steps))


@given(arrivals())
def test_the_gate_holds_its_rules_when_people_give_up_one_at_a_time(steps: list[str]) -> None:
    apart = [each for step in steps for each in ((".", step, ".") if step[-1] in "-!" else (step,))]
    play(visits(*apart))


def test_the_gate_is_free_in_the_end() -> None:
    """However long it is used, a writer who comes at last gets in: nobody was counted twice or forgotten."""
    rnd = random.Random(7)

    async def main() -> None:
        people = Visits()
        for number in range(600):
            people.comes(f"{rnd.choice('rrw')}{number}")
            for earlier in rnd.sample(range(number + 1), min(number + 1, 3)):
                rnd.choice((people.leaves, people.gives_up))(people.names[earlier])
            await settle(rnd.choice((0, 0, 1, 2, 3)))
        await people.all_leave()
        people.comes("w-last")
        await people.all_leave()
        assert people.log[-2:] == ["+w-last", "-w-last"]

    play(main())


# The runtime


class Bench:
    """A runtime with these tools, and what it tells."""

    def __init__(self, *tools: Tool, why_not: str = "", cwd: Path = Path(".")) -> None:
        self.told: list[str] = []
        self.finished: list[Finished] = []
        self.pieces: list[str] = []
        self._why_not = why_not
        hooks = CallHooks(
            lambda _: Context(cwd, self.pieces.append),
            lambda call: self.told.append(f"start {call.call_id}"),
            self._end,
            self._approve,
        )
        self.runtime = TurnCalls(Registry(tools), hooks)

    def _end(self, done: Finished) -> None:
        self.finished.append(done)
        self.told.append(f"end {done.call.call_id}")

    async def _approve(self, tool: Tool, call: ToolCall) -> str:
        return self._why_not

    def start(self, *calls: ToolCall) -> None:
        for each in calls:
            self.runtime.start(each)

    async def results(self) -> list[tuple[str, str, bool]]:
        return [(each.call.call_id, each.result.text, each.result.failed) for each in await self.runtime.results()]


def ran(*calls: ToolCall, tools: tuple[Tool, ...], **more: Any) -> tuple[list[tuple[str, str, bool]], Bench]:
    """The results of these calls."""

    async def main() -> tuple[list[tuple[str, str, bool]], Bench]:
        bench = Bench(*tools, **more)
        bench.start(*calls)
        return await bench.results(), bench

    return play(main())


def test_a_call_runs_without_anybody_waiting_for_its_result() -> None:
    async def main() -> None:
        held = Held()
        bench = Bench(held.tool)
        bench.start(call("work", arguments=which("a")))
        await held.began("a").wait()
        assert bench.told == ["start c1"]
        held.may_end("a").set()
        await settle()
        assert bench.told == ["start c1", "end c1"]
        assert await bench.results() == [("c1", "done a", False)]

    play(main())


def test_tools_that_may_run_side_by_side_do() -> None:
    async def main() -> None:
        held = Held(parallel=True)
        bench = Bench(held.tool)
        bench.start(*(call("work", name, which(name)) for name in "abc"))
        await settle()
        assert held.log == ["begin a", "begin b", "begin c"]
        for name in "abc":
            held.may_end(name).set()
        await bench.results()

    play(main())


def test_tools_that_must_not_run_side_by_side_do_not() -> None:
    async def main() -> None:
        held = Held()
        bench = Bench(held.tool)
        bench.start(*(call("work", name, which(name)) for name in "abc"))
        for name in "cba":
            held.may_end(name).set()
            await settle()
        await bench.results()
        assert held.log == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]

    play(main())


def test_an_exclusive_call_waits_for_shared_ones_and_holds_up_those_behind_it() -> None:
    async def main() -> None:
        held = Held()
        bench = Bench(held.named("read", parallel=True), held.named("write"))
        bench.start(call("read", "a", which("a")), call("write", "b", which("b")), call("read", "c", which("c")))
        await settle()
        assert held.log == ["begin a"]
        held.may_end("a").set()
        await settle()
        assert held.log == ["begin a", "end a", "begin b"]
        held.may_end("b").set()
        await settle()
        assert held.log[-1] == "begin c"
        held.may_end("c").set()
        await bench.results()

    play(main())


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_results_come_in_the_order_of_the_calls(order: str) -> None:
    async def main() -> None:
        held = Held(parallel=True)
        bench = Bench(held.tool)
        bench.start(*(call("work", name, which(name)) for name in "abc"))
        for name in order:
            await settle()
            held.may_end(name).set()
        results = await bench.results()
        assert [id for id, _, _ in results] == ["a", "b", "c"]
        assert [each.removeprefix("end ") for each in bench.told if each.startswith("end")] == list(order)

    play(main())


@tool(parallel=True)
async def raises(what: str = "ValueError") -> str:
    """Fail."""
    raise {"ValueError": ValueError, "ToolError": ToolError, "FatalToolError": FatalToolError, "OSError": OSError}[
        what
    ]("no such luck")


@tool(parallel=True)
async def fine(number: int = 0, more: Any = None) -> str:
    """Work."""
    return f"fine {number}"


ANSWERS: dict[str, tuple[ToolCall, str]] = {
    "an unknown tool": (call("nothing"), "unsupported call: nothing"),
    "a tool without a name": (call(""), "unsupported call: "),
    "a tool that raises": (call("raises"), "ValueError: no such luck"),
    "a tool that says what is wrong": (call("raises", arguments='{"what":"ToolError"}'), "no such luck"),
    "arguments of another type": (
        call("fine", arguments='{"number":"x"}'),
        "invalid arguments for fine: Expected `int`, got `str` - at `$.number`",
    ),
    "arguments it does not know": (
        call("fine", arguments='{"nummer":1}'),
        "invalid arguments for fine: Object contains unknown field `nummer`",
    ),
    "arguments that are no object": (
        call("fine", arguments="[1]"),
        "invalid arguments for fine: Expected `object`, got `array`",
    ),
    "free text for a function": (
        ToolCall("fine", "c1", CustomPayload("1")),
        "fine takes arguments, not free text",
    ),
}


@pytest.mark.parametrize(("asked", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_what_goes_wrong_is_an_answer_to_the_model(asked: ToolCall, answer: str) -> None:
    results, bench = ran(asked, call("fine", "c2"), tools=(raises, fine))
    assert results == [("c1", answer, True), ("c2", "fine 0", False)]
    assert bench.runtime.fatal is None


BAD_JSON = [
    "{",
    '{"number":1',
    '{"number":1}}',
    "number=1",
    "{'number': 1}",
    '"',
    "\ud800",
    '{"more":' + "[" * 100_000,
]


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_arguments_that_are_not_json_are_answered_as_such(text: str) -> None:
    [(_, answer, failed)], _ = ran(call("fine", arguments=text), tools=(fine,))
    assert answer.startswith("failed to parse function arguments: ")
    assert failed


@pytest.mark.parametrize("text", ["", "{}", " {} ", '{"number":0}'])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    results, _ = ran(call("fine", arguments=text), tools=(fine,))
    assert results == [("c1", "fine 0", False)]


def test_a_fatal_error_is_kept_with_the_results_of_the_others() -> None:
    results, bench = ran(
        call("fine", "a"), call("raises", "b", '{"what":"FatalToolError"}'), call("fine", "c"), tools=(raises, fine)
    )
    assert results == [("a", "fine 0", False), ("b", "no such luck", True), ("c", "fine 0", False)]
    assert str(bench.runtime.fatal) == "no such luck"


def test_the_first_of_two_fatal_errors_counts() -> None:
    @tool(parallel=True)
    async def dies(number: int) -> str:
        raise FatalToolError(f"fatal {number}")

    _, bench = ran(call("dies", "a", '{"number":1}'), call("dies", "b", '{"number":2}'), tools=(dies,))
    assert str(bench.runtime.fatal) == "fatal 1"


def test_a_call_that_may_not_run_is_not_run() -> None:
    held = Held()
    results, _ = ran(call("work"), tools=(held.tool,), why_not="no")
    assert results == [("c1", "no", True)]
    assert held.log == []


def test_a_call_that_may_not_run_does_not_say_that_it_runs() -> None:
    _, bench = ran(call("work"), tools=(Held().tool,), why_not="no")
    assert bench.told == ["end c1"]


@pytest.mark.parametrize("leaves", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in a thread"])
def test_a_tool_that_wants_to_leave_has_failed(leaves: BaseException, is_async: bool) -> None:
    def beside() -> None:
        raise leaves

    async def inside() -> None:
        raise leaves

    [(_, text, failed)], _ = ran(call("work"), tools=(tool(name="work")(inside if is_async else beside),))
    assert failed
    assert text.startswith(type(leaves).__name__)


def test_a_result_that_is_far_too_long_keeps_its_ends() -> None:
    text = "a" * MAX_RESULT_CHARS + "b" * MAX_RESULT_CHARS
    [(_, kept, _)], _ = ran(call("work"), tools=(tool(name="work")(lambda: text),))
    assert len(kept) < MAX_RESULT_CHARS + 100
    assert (kept[0], kept[-1]) == ("a", "b")
    assert f"{MAX_RESULT_CHARS} characters left out" in kept


def test_whoever_cannot_be_asked_has_not_agreed() -> None:
    async def main() -> None:
        held = Held()

        async def approve(tool: Tool, call: ToolCall) -> str:
            raise OSError("nobody there")

        registry = Registry([held.tool])
        runtime = TurnCalls(registry, CallHooks(lambda _: Context(Path("."), print), approve=approve))
        runtime.start(call("work"))
        [done] = await runtime.results()
        assert done.result == Result((TextPart("OSError: nobody there"),), failed=True)
        assert held.log == []

    play(main())


# What is stopped

ABORTED = re.compile(r"aborted by user after (\d+\.\d)s")
NEVER_STARTED = "aborted by user before it started"


async def stopped(bench: Bench, *calls: ToolCall) -> list[str]:
    """The results of calls that are stopped as soon as they run."""
    bench.start(*calls)
    await settle()
    bench.runtime.cancel()
    return [text for _, text, _ in await bench.results()]


def test_a_call_that_is_stopped_says_so_with_the_time_it_took() -> None:
    async def main() -> None:
        held = Held()
        [text] = await stopped(Bench(held.tool), call("work"))
        found = ABORTED.fullmatch(text)
        assert found is not None
        assert float(found[1]) >= 0.1
        assert held.log == ["begin ", "stop "]

    play(main())


TIMES = {
    "a function": (call("look"), 1.26, "aborted by user after 1.3s"),
    "at least a tenth of a second": (call("look"), 0.0, "aborted by user after 0.1s"),
    "a command": (call("exec_command"), 1.2, "Wall time: 1.2 seconds\naborted by user"),
    "a shell": (call("Bash"), 61.0, "Wall time: 61.0 seconds\naborted by user"),
    "the shell of the Responses API": (
        ToolCall("local_shell", "c1", LocalShellPayload(("ls",))),
        0.01,
        "Wall time: 0.1 seconds\naborted by user",
    ),
    "a shell that never ran": (call("Bash"), None, NEVER_STARTED),
    "a custom tool": (ToolCall("apply_patch", "c1", CustomPayload("x")), 2.0, "aborted by user after 2.0s"),
}


@pytest.mark.parametrize(("asked", "seconds", "text"), TIMES.values(), ids=TIMES)
def test_the_words_about_a_call_that_was_stopped(asked: ToolCall, seconds: float | None, text: str) -> None:
    assert abort_message(asked, seconds) == text


@pytest.mark.parametrize(
    "parallel",
    [pytest.param(True, id="side by side"), pytest.param(False, id="one after the other")],
)
def test_everything_is_stopped_whether_it_runs_or_waits(parallel: bool) -> None:
    async def main() -> None:
        held = Held(parallel=parallel)
        bench = Bench(held.tool)
        texts = await stopped(bench, *(call("work", name, which(name)) for name in "abc"))
        begun = "abc" if parallel else "a"
        assert all(ABORTED.fullmatch(text) for text in texts[: len(begun)]), texts
        assert texts[len(begun) :] == [NEVER_STARTED] * (3 - len(begun))
        assert [each.seconds is None for each in bench.finished] == [text == NEVER_STARTED for text in texts]
        assert held.log == [*(f"begin {name}" for name in begun), *(f"stop {name}" for name in begun)]

    play(main())


def test_a_call_that_was_done_in_time_keeps_its_result() -> None:
    async def main() -> None:
        held = Held(parallel=True)
        bench = Bench(held.tool)
        held.may_end("a").set()
        done, cut = await stopped(bench, call("work", "a", which("a")), call("work", "b", which("b")))
        assert done == "done a"
        assert ABORTED.fullmatch(cut)

    play(main())


def test_a_tool_that_ends_well_although_it_is_stopped_keeps_its_result() -> None:
    @tool
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return ""

    async def main() -> None:
        assert await stopped(Bench(stubborn), call("stubborn")) == ["finished anyway"]

    play(main())


def test_a_tool_that_fails_while_it_is_stopped_says_how() -> None:
    @tool
    async def breaks() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("could not clean up")

    async def main() -> None:
        assert await stopped(Bench(breaks), call("breaks")) == ["OSError: could not clean up"]

    play(main())


def test_stopping_before_anything_runs_leaves_an_aborted_result() -> None:
    async def main() -> None:
        held = Held()
        bench = Bench(held.tool)
        bench.start(call("work"))
        bench.runtime.cancel()
        assert await bench.results() == [("c1", NEVER_STARTED, True)]
        assert held.log == []

    play(main())


def test_stopping_whoever_waits_for_results_leaves_nothing_running() -> None:
    async def main() -> None:
        held = Held()
        bench = Bench(held.tool)
        bench.start(call("work"))
        waiting = asyncio.create_task(bench.results())
        await held.began().wait()
        waiting.cancel()
        await settle()
        bench.runtime.cancel()
        await settle()
        assert held.log == ["begin ", "stop "]

    play(main())


def test_a_runtime_is_used_again_after_its_results() -> None:
    async def main() -> None:
        bench = Bench(fine)
        for number in range(2):
            bench.start(call("fine", f"c{number}"))
            assert await bench.results() == [(f"c{number}", "fine 0", False)]

    play(main())


def test_no_calls_have_no_results() -> None:
    results, _ = ran(tools=())
    assert results == []


# From a model's name to a tool


class Mcp:
    """A tool of an MCP server, as the registry knows it."""

    description = ""
    kind = "function"
    parallel = False
    writes = False
    parameters = format = None

    def __init__(self, server: str, tool: str) -> None:
        self.server, self.tool, self.name = server, tool, f"{server}__{tool}"

    async def run(self, call: ToolCall, context: Context) -> Result:
        return Result(())


def named(name: str) -> FunctionTool:
    return tool(name=name)(lambda: None)


REGISTRY = Registry(
    [named("look"), named("exec_command"), named("write_stdin"), Mcp("docs", "search"), named("crm__find")]
)
SEARCH = ("docs", "search")
ROUTES: dict[str, tuple[str, str, str, object]] = {
    "a tool by its name": ("", "look", "look", None),
    "a session": ("", "exec_command", "exec_command", None),
    "input for a session": ("", "write_stdin", "write_stdin", None),
    "a server's tool by its flat name": ("", "docs__search", "docs__search", SEARCH),
    "a server's tool in its namespace": ("docs", "search", "docs__search", SEARCH),
    "a server's tool as Codex writes it": ("mcp__docs", "search", "docs__search", SEARCH),
    "the same flat": ("", "mcp__docs__search", "docs__search", SEARCH),
    "a namespace that is no server": ("crm", "find", "crm__find", None),
    "the namespace of all functions": ("functions", "look", "look", None),
    "a name that nobody has": ("", "nothing", "nothing", None),
}


def routed(namespace: str, name: str) -> ToolCall:
    return tool_call_from(Call("c1", name, "{}", namespace=namespace), REGISTRY)


@pytest.mark.parametrize(("namespace", "name", "expected", "of_server"), ROUTES.values(), ids=ROUTES)
def test_a_call_finds_its_tool(namespace: str, name: str, expected: str, of_server: object) -> None:
    found = routed(namespace, name)
    assert (found.name, found.payload, found.call_id) == (expected, FunctionPayload("{}"), "c1")
    tool = REGISTRY.get(found.name)
    assert of_server == ((tool.server, tool.tool) if isinstance(tool, Mcp) else None)


def test_a_custom_call_keeps_its_text() -> None:
    asked = tool_call_from(Call("c1", "look", "as it is", "custom"), REGISTRY)
    assert asked == ToolCall("look", "c1", CustomPayload("as it is"))


@pytest.mark.parametrize(("namespace", "name"), [("", "gone__look"), ("gone", "look"), ("", "mcp__gone__look")])
def test_a_tool_of_a_server_that_is_not_there_is_no_tool_of_ours(namespace: str, name: str) -> None:
    assert REGISTRY.get(routed(namespace, name).name) is None


def test_a_function_is_declared_with_its_schema() -> None:
    assert declare(fine) == {
        "type": "function",
        "name": "fine",
        "description": "Work.",
        "parameters": fine.parameters,
        "strict": False,
    }


def test_the_shell_of_the_responses_api_is_declared_by_its_type() -> None:
    assert declare(named("local_shell")) == {"type": "local_shell"}


def test_a_tool_without_a_schema_is_declared_with_an_empty_one() -> None:
    assert msgspec.json.decode(declare(Mcp("a", "b"))["parameters"])["type"] == "object"


# Sync functions


def test_a_sync_tool_runs_beside_the_loop() -> None:
    inside, outside = threading.Event(), threading.Event()

    @tool
    def slow() -> str:
        inside.set()
        assert outside.wait(60)
        return "waited"

    async def main() -> None:
        bench = Bench(slow)
        bench.start(call("slow"))
        while not inside.is_set():  # noqa: ASYNC110 - it is set in a thread
            await asyncio.sleep(0.001)
        outside.set()  # only a loop that is not blocked comes here
        assert await bench.results() == [("c1", "waited", False)]

    play(main())


def test_a_sync_tool_that_is_stopped_is_not_waited_for() -> None:
    outside = threading.Event()

    @tool
    def slow() -> str:
        outside.wait(60)
        return "waited"

    async def main() -> None:
        try:
            [text] = await stopped(Bench(slow), call("slow"))
            assert ABORTED.fullmatch(text)
        finally:
            outside.set()

    play(main())
