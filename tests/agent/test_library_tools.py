"""Tools of a user's agent: contexts, errors, sets of tools, MCP servers, approval, hooks, agents as tools."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pydantic
import pytest

from tests.agent.stage import assert_whole, play
from tests.agent.test_mcp import run as run_with_processes
from toolwire.agent import (
    Agent,
    AgentConfig,
    Context,
    FatalToolError,
    Result,
    RunResult,
    Server,
    ServerFailed,
    Session,
    Tool,
    ToolCall,
    ToolError,
    Toolset,
    as_line,
    events,
    tool,
)
from toolwire.agent.tools import builtin
from toolwire.testing import Calls, Fails, ScriptedModel

SERVER = Path(__file__).with_name("mcp_server.py")


def called(function: Any, *calls: Calls, **options: Any) -> RunResult[Any]:
    """The result of a run in which the model makes these calls and then says `done`."""
    deps = options.pop("deps", None)
    model = ScriptedModel([*calls], "done")
    return play(Agent(model, tools=[function] if function else (), **options).run("go", deps=deps))


# Contexts


class Bank(msgspec.Struct):
    name: str
    balance: int = 100


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_a_tool_gets_the_dependencies_by_the_type_of_a_parameter(is_async: bool) -> None:
    async def pay_async(amount: int, account: Context[Bank]) -> str:
        """Pay."""
        account.deps.balance -= amount
        return account.deps.name

    def pay_plain(amount: int, account: Context[Bank]) -> str:
        """Pay."""
        account.deps.balance -= amount
        return account.deps.name

    bank = Bank("mine")
    pay = tool(name="pay")(pay_async if is_async else pay_plain)
    result = called(pay, Calls("pay", amount=30), deps_type=Bank, deps=bank)
    assert [call.result for call in result.calls] == ["mine"]
    assert bank.balance == 70
    schema = msgspec.json.decode(pay.parameters or b"")
    assert list(schema["properties"]) == ["amount"]


def test_a_parameter_of_any_other_type_is_the_models() -> None:
    def look(context: str, call: int) -> str:
        """Look."""
        return f"{context} {call}"

    assert called(look, Calls("look", context="here", call=3)).calls[0].result == "here 3"


def test_runs_have_their_own_dependencies() -> None:
    async def who(context: Context[str]) -> str:
        """Who."""
        await asyncio.sleep(0)
        return context.deps

    agent = Agent(
        ScriptedModel(otherwise=lambda asked: asked.results[0] if asked.results else Calls("who")), tools=[who]
    )

    async def main() -> list[str]:
        names = [f"user {number}" for number in range(20)]
        results = await asyncio.gather(*(agent.clone(deps_type=str).run("go", deps=name) for name in names))
        assert [each.output for each in results] == names
        return names

    play(main())


def test_progress_of_a_tool_is_seen_while_it_runs() -> None:
    async def main() -> None:
        may_end = asyncio.Event()

        async def work(context: Context) -> str:
            """Work."""
            context.emit("half")
            await may_end.wait()
            return "whole"

        async with Agent(ScriptedModel(Calls("work"), "done"), tools=[work]).stream("go") as run:
            async for event in run:
                if isinstance(event, events.ToolOutput):
                    assert event.text == "half"
                    may_end.set()
        assert run.result.output == "done"

    play(main())


def test_a_plain_function_hears_of_its_cancellation() -> None:
    began, heard = threading.Event(), threading.Event()

    def work(context: Context) -> None:
        """Work."""
        began.set()
        assert context.stop.wait(60)
        assert context.is_cancelled
        heard.set()

    async def main() -> None:
        running = asyncio.create_task(Agent(ScriptedModel(Calls("work")), tools=[work]).run("go"))
        assert await asyncio.to_thread(began.wait, 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.to_thread(heard.wait, 60)

    play(main())


def test_a_plain_function_does_not_hold_up_the_loop() -> None:
    """Two that wait for each other come to an end, as each has a thread."""
    barrier = threading.Barrier(2, timeout=60)

    @tool(parallel=True)
    def meet() -> str:
        """Meet."""
        barrier.wait()
        return "met"

    assert [call.result for call in called(meet, Calls("meet"), Calls("meet")).calls] == ["met", "met"]


def test_a_pydantic_model_is_a_parameter_and_a_result() -> None:
    class Inner(pydantic.BaseModel):
        size: int = pydantic.Field(gt=0)

    class Order(pydantic.BaseModel):
        what: str
        inner: Inner

    def order(given: Order) -> Order:
        """Order."""
        return given.model_copy(update={"what": given.what.upper()})

    made = tool(order)
    schema = msgspec.json.decode(made.parameters or b"")
    assert set(schema["$defs"]) >= {"Inner"}
    result = called(
        made,
        Calls("order", given={"what": "tea", "inner": {"size": 2}}),
        Calls("order", given={"what": "tea", "inner": {"size": 0}}),
    )
    good, bad = result.calls
    assert msgspec.json.decode(good.result) == {"what": "TEA", "inner": {"size": 2}}
    assert bad.failed
    assert "greater than 0" in bad.result


# Errors


def test_a_tool_error_is_read_by_the_model() -> None:
    def look() -> str:
        """Look."""
        raise ToolError("it is dark")

    model = ScriptedModel(Calls("look"), "done")
    result = play(Agent(model, tools=[look]).run("go"))
    assert model.requests[1].results == ("it is dark",)
    assert result.calls[0].failed


def test_any_other_exception_is_read_with_its_name() -> None:
    def look() -> str:
        """Look."""
        raise KeyError("lamp")

    assert called(look, Calls("look")).calls[0].result == "KeyError: 'lamp'"


def test_the_errors_of_a_group_are_read_one_by_one() -> None:
    async def look() -> str:
        """Look."""
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(ToolError("it is dark")))
            group.create_task(fails(ExceptionGroup("both", [ToolError(), KeyError("lamp")])))
        return ""

    read = called(look, Calls("look")).calls[0].result
    assert read == "it is dark\nthe tool failed without a reason\nKeyError: 'lamp'"


@pytest.mark.parametrize("hook", ["", "before_call", "after_call"])
def test_a_fatal_error_in_a_group_ends_the_run(hook: str) -> None:
    def group(*_: Any) -> None:
        raise ExceptionGroup("one", [ValueError("no"), ExceptionGroup("two", [FatalToolError("over")])])

    def look() -> str:
        """Look."""
        return "" if hook else group() or ""

    with pytest.raises(FatalToolError, match="over"):
        called(look, Calls("look"), **({hook: group} if hook else {}))


async def fails(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("is_async", [True, False])
def test_a_tool_that_raises_a_cancellation_is_not_aborted_by_anybody(is_async: bool) -> None:
    async def looks() -> str:
        """Look."""
        raise asyncio.CancelledError

    def look() -> str:
        """Look."""
        raise asyncio.CancelledError

    made = tool(name="look")(looks if is_async else look)
    result = called(made, Calls("look"))
    assert (result.calls[0].result, result.output) == ("CancelledError: the tool cancelled itself", "done")


def test_half_a_character_is_replaced_wherever_text_enters_the_history() -> None:
    half = "\ud83d"

    def look(context: Context) -> str:
        """Look."""
        context.emit(half)
        return f"a {half}"

    def fail() -> str:
        """Fail."""
        raise ToolError(f"b {half}")

    model = ScriptedModel([Calls("look"), Calls("fail")], "done")
    agent = Agent(model, tools=[look, fail], instructions=f"c {half}", after_call=lambda *_: None)

    async def lines() -> bytes:
        async with agent.stream(f"d {half}") as run:
            return b"".join([as_line(event) async for event in run])

    written = play(lines())
    assert model.requests[1].results == ("a \ufffd", "b \ufffd")
    assert (model.requests[0].instructions, model.requests[0].prompt) == ("c \ufffd", "d \ufffd")
    assert written.count("\ufffd".encode()) >= 4


def test_a_character_in_two_halves_is_joined() -> None:
    assert called(tool(name="look")(lambda: "\ud83d\ude00"), Calls("look")).calls[0].result == "\U0001f600"


def sync_parts() -> Iterator[str]:
    """Parts."""
    yield "a"


async def async_parts() -> AsyncIterator[str]:
    """Parts."""
    yield "a"


@pytest.mark.parametrize("function", [sync_parts, async_parts])
def test_a_generator_is_no_tool(function: Any) -> None:
    with pytest.raises(TypeError, match="_parts: a generator cannot be a tool"):
        tool(function)


def test_a_call_of_no_tool_is_answered() -> None:
    assert called(None, Calls("nothing")).calls[0].result == "unsupported call: nothing"


def test_arguments_that_are_no_json_are_answered() -> None:
    def look(city: str) -> str:
        """Look."""
        return city

    assert "parse" in called(look, Calls.with_text("look", "{broken")).calls[0].result


# Sets of tools


class Database(Toolset):
    """A set that says what happens to it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__([self.query])
        self.log = log
        self.is_open = False

    async def __aenter__(self) -> Self:
        assert not self.is_open
        self.log.append("open")
        self.is_open = True
        self.owner = asyncio.current_task()
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert asyncio.current_task() is self.owner
        await asyncio.sleep(0)
        self.is_open = False
        self.log.append("close")

    async def query(self, text: str) -> str:
        """Query the database."""
        assert self.is_open
        return f"answer to {text}"


def query(request: Any) -> Any:
    return request.results[0] if request.results else Calls("query", text=request.prompt)


def test_a_set_of_tools_is_entered_and_left_by_each_run() -> None:
    log: list[str] = []
    agent = Agent(ScriptedModel(otherwise=query), tools=[Database(log)])

    async def main() -> None:
        assert (await agent.run("one")).output == "answer to one"
        assert (await agent.run("two")).output == "answer to two"

    play(main())
    assert log == ["open", "close", "open", "close"]


def test_an_agent_that_is_entered_keeps_its_sets_open() -> None:
    log: list[str] = []

    async def main() -> None:
        async with Agent(ScriptedModel(otherwise=query), tools=[Database(log)]) as agent:
            await agent.run("one")
            await agent.run("two")
            assert log == ["open"]
        await agent.run("three")

    play(main())
    assert log == ["open", "close", "open", "close"]


def test_runs_at_once_share_a_set() -> None:
    log: list[str] = []
    agent = Agent(ScriptedModel(otherwise=query), tools=[Database(log)])

    async def main() -> None:
        results = await asyncio.gather(*(agent.run(str(number)) for number in range(20)))
        assert [each.output for each in results] == [f"answer to {number}" for number in range(20)]

    play(main())
    assert log == ["open", "close"]


@pytest.mark.parametrize("steps", range(0, 30, 2))
def test_a_cancelled_run_leaves_its_set_at_any_moment(steps: int) -> None:
    log: list[str] = []
    agent = Agent(ScriptedModel(otherwise=query), tools=[Database(log)])

    async def main() -> None:
        running = asyncio.create_task(agent.run("one"))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert (await agent.run("two")).output == "answer to two"

    play(main())
    assert log == ["open", "close"] * (len(log) // 2)


def test_a_set_that_cannot_be_opened_fails_the_run_and_closes_the_others() -> None:
    class Broken(Toolset):
        async def __aenter__(self) -> Self:
            raise ConnectionError("no database")

    log: list[str] = []
    agent = Agent(ScriptedModel("never"), tools=[Database(log), Broken()])

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(ConnectionError, match="no database"):
                await agent.run("go")

    play(main())
    assert log == ["open", "close", "open", "close"]


def test_a_set_that_fails_to_close_is_heard_of_although_the_run_is_cancelled() -> None:
    class Stuck(Toolset):
        def __init__(self) -> None:
            super().__init__()
            self.may_close = asyncio.Event()
            self.is_closing = asyncio.Event()

        async def __aexit__(self, *_: object) -> None:
            self.is_closing.set()
            await self.may_close.wait()
            raise ConnectionError("lost")

    async def main() -> None:
        stuck = Stuck()
        running = asyncio.create_task(Agent(ScriptedModel("done"), tools=[stuck]).run("go"))
        await stuck.is_closing.wait()
        for _ in range(3):  # as often as somebody likes
            running.cancel()
            await asyncio.sleep(0)
        assert not running.done()
        stuck.may_close.set()
        with pytest.raises(ConnectionError, match="lost"):
            await running

    play(main())


def test_the_built_in_tools_are_a_set(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("remember the milk")
    model = ScriptedModel(Calls("Read", path="note.txt"), "done")
    result = Agent(model, tools=[builtin(["read", "exec"])], cwd=tmp_path).run_sync("go")
    assert "remember the milk" in result.calls[0].result
    assert set(model.requests[0].tools) == {"Read", "exec_command", "write_stdin", "kill_session"}


# MCP servers


def mcp(*args: str, **fields: Any) -> Server:
    command = {"command": sys.executable, "args": (str(SERVER), *args), "start_timeout": 120}
    return Server(name="s", **{**command, **fields})


def test_tools_of_an_mcp_server_need_approval() -> None:
    model = ScriptedModel([Calls("s__echo", text="yes"), Calls("s__echo", text="no")], "done")

    def approver(tool: Tool, call: ToolCall) -> bool:
        return call.arguments["text"] == "yes"

    result = run_with_processes(Agent(model, mcp_servers=[mcp()], approver=approver).run("go"))
    allowed, refused = result.calls
    assert (allowed.result, allowed.failed) == ("yes", False)
    assert refused.failed
    assert "did not allow" in refused.result


def test_an_mcp_server_is_started_once_for_an_agent_that_is_entered() -> None:
    model = ScriptedModel(otherwise=lambda asked: asked.results[0] if asked.results else Calls("s__pid"))
    agent = Agent(model, mcp_servers=[mcp()], config=AgentConfig(approve="never"))

    async def main() -> None:
        async with agent:
            together = await asyncio.gather(*(agent.run("go") for _ in range(3)))
            alone = await agent.run("go")
        assert len({each.output for each in (*together, alone)}) == 1
        assert alone.output.isdecimal()

    run_with_processes(main())


def test_an_mcp_server_that_does_not_start_fails_the_run() -> None:
    broken = Server(name="s", command=sys.executable, args=("-c", "raise SystemExit('no licence')"))

    async def main() -> None:
        with pytest.raises(ServerFailed, match="no licence"):
            await Agent(ScriptedModel("never"), mcp_servers=[broken]).run("go")

    run_with_processes(main())


# Approval


@tool(writes=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@tool
def look(path: str = "") -> str:
    """Look at a file."""
    return f"saw {path}"


def outcome(approver: Any, approve: Any = "on-write") -> list[str]:
    config = AgentConfig(approve=approve)
    calls = (Calls("look", path="a"), Calls("delete", path="b"))
    model = ScriptedModel([*calls], "done")
    result = play(Agent(model, tools=[look, delete], approver=approver, config=config).run("go"))
    return [call.result for call in result.calls]


def test_what_changes_something_is_refused_where_nobody_is_asked() -> None:
    seen, refused = outcome(None)
    assert seen == "saw a"
    assert "no user is present" in refused


def test_a_plain_approver_may_block() -> None:
    asked: list[tuple[str, dict[str, Any], bool]] = []

    def approver(tool: Tool, call: ToolCall) -> bool:
        asked.append((call.name, call.arguments, threading.current_thread() is threading.main_thread()))
        return True

    assert outcome(approver) == ["saw a", "deleted b"]
    assert asked == [("delete", {"path": "b"}, False)]


@pytest.mark.parametrize(
    ("tools", "arguments"),
    [
        ([], {"path": ["a"]}),
        ([builtin(["patch"])], {"input": "*** Begin Patch\n*** Delete File: none.txt\n*** End Patch"}),
        ([builtin(["bash"])], {"cmd": "pwd"}),
    ],
    ids=["function", "patch", "Bash"],
)
def test_an_approver_is_not_asked_about_arguments_that_are_not_valid(
    tools: list[Toolset], arguments: dict[str, Any]
) -> None:
    @tool(writes=True)
    def delete(path: str) -> str:
        return f"deleted {path}"

    asked: list[ToolCall] = []

    def approver(_: Tool, call: ToolCall) -> bool:
        asked.append(call)
        return True

    name = next((each.name for all in tools for each in all.tools), "delete")
    model = ScriptedModel(Calls(name, **arguments), "done")
    result = play(Agent(model, tools=[*tools, delete], approver=approver).run("go"))
    assert result.calls[0].failed
    assert ("invalid arguments" in result.calls[0].result) is (name != "apply_patch")
    assert "did not allow" not in result.calls[0].result
    assert not asked


def test_an_async_approver_refuses_with_a_reason() -> None:
    async def approver(tool: Tool, call: ToolCall) -> bool | str:
        await asyncio.sleep(0)
        return "not on a Friday"

    assert outcome(approver)[1].endswith("not on a Friday")


def test_an_approver_may_be_asked_always_or_never() -> None:
    asked: list[str] = []

    async def approver(tool: Tool, call: ToolCall) -> bool:
        asked.append(call.name)
        return False

    assert all("did not allow" in each for each in outcome(approver, "always"))
    assert sorted(asked) == ["delete", "look"]
    assert outcome(approver, "never") == ["saw a", "deleted b"]


def test_the_final_result_needs_no_approval_and_meets_no_hook() -> None:
    seen: list[str] = []

    def hook(call: ToolCall, *_: object) -> None:
        seen.append(call.name)

    result = play(
        Agent(
            ScriptedModel(Calls("look"), Calls("final_result", result=1)),
            tools=[look],
            output_type=int,
            approver=lambda tool, call: call.name == "look",
            config=AgentConfig(approve="always"),
            before_call=hook,
            after_call=hook,
        ).run("go")
    )
    assert result.output == 1
    assert seen == ["look", "look"]


# Hooks


def hooked(**hooks: Any) -> RunResult[str]:
    return called(look, Calls("look", path="a"), **hooks)


async def async_upper(call: ToolCall, result: Result, context: Context) -> str:
    return result.text.upper()


def plain_upper(call: ToolCall, result: Result, context: Context) -> str:
    return result.text.upper()


@pytest.mark.parametrize("after", [async_upper, plain_upper], ids=["async", "plain"])
def test_a_hook_replaces_a_result(after: Callable[..., Any]) -> None:
    assert hooked(after_call=after).calls[0].result == "SAW A"


def test_a_hook_changes_arguments_and_the_approver_sees_the_change() -> None:
    asked: list[dict[str, Any]] = []

    def approver(tool: Tool, call: ToolCall) -> bool:
        asked.append(call.arguments)
        return True

    result = called(
        delete,
        Calls("delete", path="b"),
        before_call=lambda call, context: call.with_arguments(path="c"),
        approver=approver,
    )
    assert result.calls[0].result == "deleted c"
    assert asked == [{"path": "c"}]


def check_that_a_hook_cannot_make_a_call_one_of_another_tool() -> None:
    """Otherwise the approver would be shown one tool while another one runs."""

    def rename(call: ToolCall, context: Context) -> ToolCall:
        return msgspec.structs.replace(call, name="look")

    shown: list[str] = []

    def approver(tool: Tool, call: ToolCall) -> bool:
        shown.append(call.name)
        return False

    result = called(delete, Calls("delete", path="b"), before_call=rename, approver=approver)
    assert shown == ["delete"]
    assert result.calls[0].failed


def test_a_hook_cannot_make_a_call_one_of_another_tool() -> None:
    check_that_a_hook_cannot_make_a_call_one_of_another_tool()


def check_that_nothing_is_changed_without_approval() -> None:
    ran: list[str] = []

    @tool(writes=True)
    def wipe() -> None:
        """Wipe the disk."""
        ran.append("wipe")

    assert called(wipe, Calls("wipe")).calls[0].failed
    assert called(wipe, Calls("wipe"), approver=lambda tool, call: "").calls[0].failed
    assert called(wipe, Calls("wipe"), approver=lambda tool, call: False).calls[0].failed
    allowing = {"approver": lambda tool, call: True, "config": AgentConfig(read_only=True)}
    assert called(wipe, Calls("wipe"), **allowing).calls[0].failed
    assert not ran


def test_nothing_is_changed_without_approval() -> None:
    check_that_nothing_is_changed_without_approval()


async def allow(*_: object) -> str:
    return ""


@pytest.mark.parametrize(
    ("guard", "without", "check"),
    [
        (
            "toolwire.turns.tools.calls.same_tool",
            lambda call, changed: changed,
            check_that_a_hook_cannot_make_a_call_one_of_another_tool,
        ),
        ("toolwire.agent.task.refusal_of", allow, check_that_nothing_is_changed_without_approval),
    ],
    ids=["same tool", "approval"],
)
def test_a_guard_that_is_gone_is_noticed(
    guard: str, without: Any, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, without)
    with pytest.raises(AssertionError):
        check()


def test_a_hook_answers_in_place_of_the_tool() -> None:
    result = hooked(before_call=lambda call, context: "from the cache")
    assert (result.calls[0].result, result.calls[0].seconds) == ("from the cache", None)


def test_hooks_see_failures_too() -> None:
    def broken() -> str:
        """Fail."""
        raise ToolError("dark")

    seen: list[tuple[str, bool]] = []

    def after(call: ToolCall, result: Result, context: Context) -> None:
        seen.append((result.text, result.failed))

    assert called(broken, Calls("broken"), after_call=after).calls[0].failed
    assert seen == [("dark", True)]


def test_a_hook_that_raises_keeps_the_tool_from_running() -> None:
    ran: list[str] = []

    def work() -> None:
        """Work."""
        ran.append("work")

    def guard(call: ToolCall, context: Context) -> None:
        raise ToolError("not now")

    assert called(work, Calls("work"), before_call=guard).calls[0].result == "not now"
    assert not ran

    async def end(call: ToolCall, context: Context) -> None:
        raise FatalToolError("enough")

    with pytest.raises(FatalToolError, match="enough"):
        called(work, Calls("work"), before_call=end)
    assert not ran


# Agents as tools


def test_an_agent_is_a_tool_of_another() -> None:
    inner = ScriptedModel(otherwise=lambda asked: f"researched {asked.prompt}")
    outer = ScriptedModel([Calls("research", prompt="tea"), Calls("research", prompt="cake")], "done")
    researcher = Agent(inner, instructions="Research.")
    agent = Agent(outer, tools=[researcher.as_tool("research", "Researches something.")])
    result = play(agent.run("go"))
    assert outer.requests[1].results == ("researched tea", "researched cake")
    assert [each.messages for each in inner.requests] == [(("user", "tea"),), (("user", "cake"),)]
    alone = play(Agent(ScriptedModel("done")).run("go"))
    assert result.usage.input > alone.usage.input
    assert result.usage == result.session.usage
    assert_whole(result.session.history)


def test_an_agent_as_a_tool_has_the_dependencies_and_the_typed_output() -> None:
    class Answer(msgspec.Struct):
        who: str

    def who(context: Context[str]) -> str:
        """Who."""
        return context.deps

    inner = ScriptedModel(
        otherwise=lambda asked: Calls("final_result", who=asked.results[0]) if asked.results else Calls("who")
    )
    helper = Agent(inner, tools=[who], output_type=Answer, deps_type=str)
    outer = Agent(
        ScriptedModel(Calls("ask", prompt="who?"), "done"), tools=[helper.as_tool("ask", "Asks.")], deps_type=str
    )
    result = play(outer.run("go", deps="Ada"))
    assert result.calls[0].result == '{"who":"Ada"}'


def test_an_agent_as_a_tool_that_fails_is_read_about() -> None:
    helper = Agent(ScriptedModel(Fails("No model today.")))
    model = ScriptedModel(Calls("ask", prompt="?"), "done")
    result = play(Agent(model, tools=[helper.as_tool("ask", "Asks.")]).run("go"))
    assert result.output == "done"
    assert model.requests[1].results == ("ask failed: No model today.",)


def test_a_fatal_error_ends_both_runs() -> None:
    def burn() -> None:
        """Burn."""
        raise FatalToolError("fire")

    helper = Agent(ScriptedModel(Calls("burn")), tools=[burn])
    with pytest.raises(FatalToolError, match="fire"):
        play(Agent(ScriptedModel(Calls("ask", prompt="?")), tools=[helper.as_tool("ask", "Asks.")]).run("go"))


@pytest.mark.parametrize("ending", ["fatal", "cancelled"])
def test_the_tokens_of_an_agent_as_a_tool_count_however_it_ends(ending: str) -> None:
    async def spent(*, by_helper: bool) -> int:
        """The tokens of a run that ends in its tool, which is an agent or not."""
        began, session = asyncio.Event(), Session()

        async def burn() -> None:
            """Burn."""
            if ending == "fatal":
                raise FatalToolError("fire")
            began.set()
            await asyncio.Event().wait()

        async def ask(prompt: str) -> None:
            """Ask."""
            await burn()

        helper = Agent(ScriptedModel(Calls("burn")), tools=[burn]).as_tool("ask", "Asks.")
        agent = Agent(ScriptedModel(Calls("ask", prompt="?")), tools=[helper if by_helper else ask])
        running = asyncio.create_task(agent.run("go", session=session))
        if ending == "cancelled":
            await began.wait()
            running.cancel()
        with pytest.raises((FatalToolError, asyncio.CancelledError)):
            await running
        return session.usage.output

    assert play(spent(by_helper=True)) > play(spent(by_helper=False)) > 0


def test_cancelling_a_run_stops_the_agents_that_are_its_tools() -> None:
    async def main() -> None:
        began = asyncio.Event()
        stopped: list[str] = []

        async def work() -> None:
            """Work."""
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append("work")
                raise

        helper = Agent(ScriptedModel(Calls("work")), tools=[work])
        agent = Agent(ScriptedModel(Calls("ask", prompt="?")), tools=[helper.as_tool("ask", "Asks.")])
        running = asyncio.create_task(agent.run("go"))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert stopped == ["work"]

    play(main())
