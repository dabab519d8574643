"""`toolwire.agent` as a user's program has it: runs, sessions, streams, failures, and what is left after each."""

# pyright: reportArgumentType=false

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import toolwire
from tests.agent.stage import Far, assert_whole, item_done, play, refuses, streams, turn
from tests.support import scripts
from tests.support.frames import created
from tests.support.gateway import Gateway
from tests.support.upstream import Hold
from toolwire.agent import (
    Agent,
    AgentConfig,
    AgentError,
    AnswerCut,
    FatalToolError,
    LimitReached,
    Limits,
    MaxTurnsExceeded,
    ModelFailed,
    RepeatedCalls,
    Session,
    SessionError,
    ToolError,
    events,
    tool,
)
from toolwire.config.settings import DEMO, Settings, SettingsError
from toolwire.core.errors import ToolwireError
from toolwire.testing import Calls, Fails, ModelRequest, Says, ScriptedModel, Thinks, Waits


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"


def forever(request: ModelRequest) -> Calls:
    return Calls("get_weather", city="Paris")


# Results


def test_a_run_has_a_result() -> None:
    model = ScriptedModel([Thinks("Hm."), Says("I look."), Calls("get_weather", city="Paris")], "It is warm.")
    result = play(Agent(model, tools=[get_weather], instructions="Be brief.").run("The weather?"))
    assert result.output == result.text == "It is warm."
    assert result.turns == 2
    assert [(call.name, call.arguments, call.result, call.failed) for call in result.calls] == [
        ("get_weather", '{"city":"Paris"}', "18 degrees in Paris", False)
    ]
    assert [type(item).__name__ for item in result.items] == [
        "MessageItem", "ReasoningItem", "MessageItem", "ToolCallItem", "OutputItem", "MessageItem",
    ]  # fmt: skip
    assert result.usage == result.session.usage
    assert result.usage.input > 0
    assert [*result.items] == result.session.history.items
    assert model.unused == 0


def test_a_model_is_asked_with_instructions_tools_and_results() -> None:
    model = ScriptedModel(Calls("get_weather", city="Paris"), "Warm.")
    play(Agent(model, tools=[get_weather], instructions="Be brief.").run("The weather?"))
    first, second = model.requests
    assert (first.instructions, first.prompt, first.tools, first.results) == (
        "Be brief.", "The weather?", ("get_weather",), (),
    )  # fmt: skip
    assert second.results == ("18 degrees in Paris",)
    assert first.messages == second.messages == (("user", "The weather?"),)


def test_the_demo_model_needs_nothing() -> None:
    result = Agent("demo", tools=[get_weather]).run_sync("What is the weather in Paris?")
    assert result.output == "According to get_weather: 18 degrees in Paris"


def test_instructions_may_depend_on_what_the_run_is_given() -> None:
    model = ScriptedModel(otherwise="Hello.")
    agent = Agent(model, instructions=lambda name: f"The user is {name}.", deps_type=str)

    async def main() -> None:
        await agent.run("Hi", deps="Ada")
        await agent.run("Hi", deps="Grace")

    play(main())
    assert [each.instructions for each in model.requests] == ["The user is Ada.", "The user is Grace."]


def test_a_run_without_the_dependencies_that_it_needs_is_refused() -> None:
    with pytest.raises(TypeError, match="needs `deps`"):
        Agent(ScriptedModel(), deps_type=str).run_sync("Hi")


# Conversations


def test_an_agent_holds_no_conversation() -> None:
    model = ScriptedModel(otherwise="Hello.")
    agent = Agent(model)

    async def main() -> None:
        first, second = await agent.run("one"), await agent.run("two")
        assert first.session is not second.session

    play(main())
    assert [each.messages for each in model.requests] == [(("user", "one"),), (("user", "two"),)]


def test_a_run_goes_on_with_a_session() -> None:
    model = ScriptedModel("A.", "B.")
    agent = Agent(model)

    async def main() -> None:
        first = await agent.run("one")
        second = await agent.run("two", session=first.session)
        assert second.session is first.session
        assert [item.text for item in second.items] == ["two", "B."]  # type: ignore[attr-defined]
        assert second.session.usage.input > second.usage.input

    play(main())
    assert model.requests[1].messages == (("user", "one"), ("assistant", "A."), ("user", "two"))


def test_a_copy_of_a_session_goes_its_own_way() -> None:
    model = ScriptedModel("A.", "B.", "C.")

    async def main() -> None:
        agent = Agent(model)
        first = await agent.run("one")
        branch = first.session.copy()
        await agent.run("two", session=first.session)
        await agent.run("three", session=branch)

    play(main())
    assert [role for role, _ in model.requests[2].messages] == ["user", "assistant", "user"]
    assert model.requests[2].prompt == "three"


def test_one_session_has_one_run_at_a_time() -> None:
    async def main() -> None:
        session = Session()
        agent = Agent(ScriptedModel(Waits(3600)))
        async with agent.stream("one", session=session) as run:
            async for event in run:
                if isinstance(event, events.TurnStarted):
                    with pytest.raises(SessionError, match="in use"):
                        await agent.run("two", session=session)
                    break
        second = await Agent(ScriptedModel("Now.")).run("three", session=session)
        assert second.output == "Now."

    play(main())


def test_a_kept_session_is_resumed(tmp_path: Path) -> None:
    model = ScriptedModel("A.", "B.")
    begun = Session.begin("scripted", Path.cwd(), tmp_path)
    Agent(model).run_sync("one", session=begun)
    resumed = Session.resume(begun.id, tmp_path)
    try:
        Agent(model).run_sync("two", session=resumed)
        with pytest.raises(SessionError, match="in use"):
            Session.resume(begun.id, tmp_path)
    finally:
        resumed.close()
    assert model.requests[1].messages == (("user", "one"), ("assistant", "A."), ("user", "two"))


def test_a_session_that_went_on_elsewhere_is_stale(tmp_path: Path) -> None:
    begun = Session.begin("scripted", Path.cwd(), tmp_path)
    Agent(ScriptedModel("A.")).run_sync("one", session=begun)
    resumed = Session.resume(begun.id, tmp_path)
    Agent(ScriptedModel("B.")).run_sync("two", session=resumed)
    resumed.close()
    with pytest.raises(SessionError, match=rf"continued elsewhere: .*{begun.id}\.jsonl has changed"):
        Agent(ScriptedModel("C.")).run_sync("three", session=begun)
    Agent(ScriptedModel("C.")).run_sync("three", session=resumed)
    assert not begun.is_held


def test_a_session_with_a_line_that_was_cut_goes_on(tmp_path: Path) -> None:
    begun = Session.begin("scripted", Path.cwd(), tmp_path)
    Agent(ScriptedModel("A.")).run_sync("one", session=begun)
    with (tmp_path / f"{begun.id}.jsonl").open("ab") as file:
        file.write(b'{"items":[{"type":"mess')
    resumed = Session.resume(begun.id, tmp_path)
    resumed.close()
    model = ScriptedModel("B.")
    Agent(model).run_sync("two", session=resumed)
    assert model.requests[0].messages == (("user", "one"), ("assistant", "A."), ("user", "two"))


def test_a_conversation_goes_out_and_in_as_a_list() -> None:
    first = Agent(ScriptedModel(Calls("get_weather", city="Rome"), "Warm."), tools=[get_weather]).run_sync("one")
    listed = json.loads(json.dumps(first.session.to_list()))
    assert [item["type"] for item in listed] == ["message", "function_call", "function_call_output", "message"]
    assert [type(item) for item in first.session.history] == [type(item) for item in first.items]
    model = ScriptedModel("Yes.")
    session = Session.from_list([*listed, {"role": "user", "content": "two"}, {"role": "assistant", "content": "B."}])
    assert Agent(model, tools=[get_weather]).run_sync("three", session=session).output == "Yes."
    said = [text for _, text in model.requests[0].messages]
    assert said == ["one", "Warm.", "two", "B.", "three"]
    assert_whole(session.history)


def test_half_a_character_in_a_list_is_replaced() -> None:
    [item] = Session.from_list([{"role": "user", "content": "a \ud83d"}]).to_list()
    assert item["content"] == "a \ufffd"


def test_a_call_without_a_result_in_a_list_is_closed() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    assert [item["type"] for item in Session.from_list([call]).to_list()] == ["function_call", "function_call_output"]


@pytest.mark.parametrize("wrong", ["Hello", {"content": "Hello"}, 5])
def test_what_is_no_item_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"items\[1\]: a message with a role"):
        Session.from_list([{"role": "user", "content": "Hello"}, wrong])


def test_fifty_runs_at_once_do_not_mix() -> None:
    """Each asks for a city of its own twice, and hears of no other; they share one model."""
    started: list[str] = []
    all_started = asyncio.Event()

    async def look(city: str) -> str:
        """Look at a city."""
        started.append(city)
        if len(started) == 50:
            all_started.set()
        await all_started.wait()  # all of them are in the middle of their work at once
        return f"seen {city}"

    def answer(request: ModelRequest) -> Any:
        if not request.results:
            return Calls("look", city=request.prompt)
        assert request.results == (f"seen {request.prompt}",)
        return f"{request.prompt} it is"

    model = ScriptedModel(otherwise=answer)
    agent = Agent(model, tools=[look])

    async def main() -> None:
        results = await asyncio.gather(*(agent.run(f"city {number}") for number in range(50)))
        assert [each.output for each in results] == [f"city {number} it is" for number in range(50)]
        assert len({each.session.id for each in results}) == 50
        for number, each in enumerate(results):
            assert [call.result for call in each.calls] == [f"seen city {number}"]
            assert_whole(each.session.history)

    play(main())
    assert len(model.requests) == 100


# Streams


def test_a_stream_shows_what_happens_and_has_the_result() -> None:
    agent = Agent(ScriptedModel(Calls("get_weather", city="Rome"), "Warm."), tools=[get_weather])

    async def main() -> None:
        async with agent.stream("go") as run:
            with pytest.raises(RuntimeError, match="not over"):
                _ = run.result
            seen = [event async for event in run]
        assert run.result.output == "Warm."
        assert run.session is run.result.session
        kinds = [type(event) for event in seen]
        assert kinds[0] is events.TaskStarted
        assert kinds[-1] is events.TaskEnded
        assert kinds.index(events.CallStarted) < kinds.index(events.ToolStarted) < kinds.index(events.CallEnded)
        assert "".join(event.text for event in seen if isinstance(event, events.TextDelta)) == "Warm."

    play(main())


def test_a_stream_can_be_watched_in_part_and_waited_for() -> None:
    async def main() -> str:
        async with Agent(ScriptedModel("Hello there.")).stream("go") as run:
            async for event in run:
                if isinstance(event, events.TextDelta):
                    break
            return (await run.wait()).output

    assert play(main()) == "Hello there."


def test_leaving_a_stream_stops_the_tool_and_the_model() -> None:
    stopped: list[str] = []

    async def work() -> None:
        """Work."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("tool")
            raise

    async def main() -> None:
        async with Far(streams(created(), *_call("work"), Hold())) as far:
            agent = Agent("up/m", tools=[work], settings=far.settings)
            async with agent.stream("go") as run:
                async for event in run:
                    if isinstance(event, events.ToolStarted):
                        break
            await far.gone.wait()
            assert_whole(run.session.history)
            assert run.session.history.items[-1].text.startswith("aborted")  # type: ignore[union-attr]

    play(main())
    assert stopped == ["tool"]


def _call(name: str) -> list[bytes]:
    item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": name, "arguments": "{}"}
    return [item_done({**item, "status": "completed"})]


def test_cancelling_a_run_stops_the_tool_and_the_model() -> None:
    began = asyncio.Event()
    stopped: list[str] = []

    async def work() -> None:
        """Work."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("tool")
            raise

    async def main() -> None:
        async with Far(streams(created(), *_call("work"), Hold())) as far:
            running = asyncio.create_task(Agent("up/m", tools=[work], settings=far.settings).run("go"))
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await far.gone.wait()

    play(main())
    assert stopped == ["tool"]


def test_a_run_that_is_too_slow_for_its_caller_is_stopped() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Agent(ScriptedModel(Waits(3600))).run("go")

    play(main())


def test_a_stream_is_entered_once_and_watched_inside() -> None:
    async def main() -> None:
        run = Agent(ScriptedModel("Hi.")).stream("go")
        with pytest.raises(RuntimeError, match="not open"):
            await run.wait()
        async with run:
            await run.wait()
        with pytest.raises(RuntimeError, match="already begun"):
            await run.__aenter__()

    play(main())


def test_run_sync_in_a_running_loop_says_what_to_do() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await agent\.run"):
            Agent(ScriptedModel("Hi.")).run_sync("go")

    play(main())


def test_run_sync_works_in_many_threads_at_once() -> None:
    agent = Agent(ScriptedModel(otherwise=lambda request: f"{request.prompt}!"))
    said: dict[int, str] = {}

    def work(number: int) -> None:
        said[number] = agent.run_sync(str(number)).output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {number: f"{number}!" for number in range(8)}


# Failures


def failure(agent: Agent[Any, Any], kind: type[AgentError]) -> Any:
    """What a run failed with, after which its session is whole."""
    with pytest.raises(kind) as caught:
        play(agent.run("go"))
    error = caught.value
    assert isinstance(error, ToolwireError)
    assert error.session is not None
    assert_whole(error.session.history)
    return error


def test_a_refused_request_fails_the_run() -> None:
    error = failure(Agent(ScriptedModel(Fails("Too many cooks."))), ModelFailed)
    assert (error.failure.status, error.failure.code) == (400, "scripted_failure")
    assert "Too many cooks." in str(error)


def test_a_model_that_fails_again_and_again_fails_the_run() -> None:
    agent = Agent(ScriptedModel(otherwise=Fails(status=503)), config=AgentConfig(retries=0))
    assert failure(agent, ModelFailed).failure.status == 503


def test_a_script_that_is_too_short_says_so() -> None:
    error = failure(Agent(ScriptedModel(Calls("get_weather", city="Rome")), tools=[get_weather]), ModelFailed)
    assert "has 1 turns, and it was asked 2 times" in str(error)


def test_a_model_that_nobody_serves_fails_before_anything_is_asked() -> None:
    with pytest.raises(ToolwireError, match="no model 'nothing'"):
        play(Agent("nothing", settings=Far().settings).run("go"))


def test_too_many_turns_fail_the_run() -> None:
    error = failure(Agent(ScriptedModel(otherwise=forever), tools=[get_weather], max_turns=3), MaxTurnsExceeded)
    assert isinstance(error, LimitReached)
    assert "3 turns" in str(error)
    assert error.usage.input > 0


def test_a_failed_session_can_go_on() -> None:
    agent = Agent(ScriptedModel(otherwise=forever), tools=[get_weather], max_turns=1)
    session = failure(agent, MaxTurnsExceeded).session
    model = ScriptedModel("Enough.")
    assert Agent(model, tools=[get_weather]).run_sync("Stop.", session=session).output == "Enough."
    assert [role for role, _ in model.requests[0].messages] == ["user", "user"]


def test_any_other_limit_fails_the_run_with_its_name() -> None:
    config = AgentConfig(limits=Limits(tokens=1))
    error = failure(Agent(ScriptedModel(otherwise=forever), tools=[get_weather], config=config), LimitReached)
    assert (type(error), error.limit) == (LimitReached, "tokens")


def test_an_answer_that_is_cut_fails_the_run() -> None:
    error = failure(Agent("demo-short"), AnswerCut)
    assert error.reason == "length"
    assert error.text.startswith("This is")


def test_the_same_failing_call_again_and_again_fails_the_run() -> None:
    @tool
    def broken() -> str:
        """Fail."""
        raise ToolError("no")

    error = failure(Agent(ScriptedModel(otherwise=Calls("broken")), tools=[broken]), RepeatedCalls)
    assert "broken" in str(error)


def test_a_failed_stream_shows_its_end_and_then_raises() -> None:
    async def main() -> None:
        seen: list[Any] = []
        async with Agent(ScriptedModel(Fails("No."))).stream("go") as run:
            with pytest.raises(ModelFailed, match=r"No\."):  # noqa: PT012 - what was seen before the error counts
                async for event in run:
                    seen.append(event)  # noqa: PERF401
            assert seen[-1].reason == "failed"
            with pytest.raises(ModelFailed):
                _ = run.result

    play(main())


def test_a_fatal_tool_error_is_raised_as_it_is() -> None:
    class OutOfMoney(FatalToolError):
        pass

    @tool
    async def pay() -> str:
        """Pay."""
        raise OutOfMoney("empty")

    with pytest.raises(OutOfMoney, match="empty") as caught:
        play(Agent(ScriptedModel(Calls("pay"), "Never said."), tools=[pay]).run("go"))
    assert isinstance(caught.value, ToolwireError)


def test_a_stream_that_breaks_is_asked_for_again() -> None:
    async def main() -> None:
        config = AgentConfig(retries=1, longest_wait=1.0)
        async with Far(refuses(503, "Busy.", retry_after="0"), turn(scripts.Says("Here."))) as far:
            result = await Agent("up/m", settings=far.settings, config=config).run("go")
            assert result.output == "Here."
            assert len(far.asked) == 2

    play(main())


# Where the model is


def test_a_model_behind_a_gateway(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    try:
        agent = Agent("demo", tools=[get_weather], base_url=gateway.base_url)
        result = agent.run_sync("What is the weather in Paris?")
        again = agent.run_sync("What is the weather in Rome?", session=result.session)
    finally:
        gateway.stop()
    assert result.output == "According to get_weather: 18 degrees in Paris"
    assert [call.result for call in again.calls] == ["18 degrees in Rome"]


def test_a_base_url_is_that_of_any_openai_compatible_server() -> None:
    async def main() -> None:
        async with Far(turn(scripts.Says("Hi."), kind="chat"), kind="chat") as far:
            assert (await Agent("m", base_url=far.url).run("go")).output == "Hi."
            assert (far.asked[0].path, far.asked[0].body["model"]) == ("/v1/chat/completions", "m")

    play(main())


def test_a_rate_limit_is_the_same_error_for_an_agent_and_for_a_completion() -> None:
    with pytest.raises(toolwire.RateLimited, match="The demo model is busy") as limited:
        Agent("demo-rate-limit", config=AgentConfig(retries=0)).run_sync("go")
    assert isinstance(limited.value, ModelFailed)
    assert limited.value.session is not None
    with pytest.raises(toolwire.BackendFault):
        Agent("demo-error", config=AgentConfig(retries=0)).run_sync("go")


def test_the_model_reads_that_a_completion_in_a_tool_failed() -> None:
    @tool
    async def ask() -> str:
        """Ask another model."""
        await toolwire.acompletion(
            "demo-rate-limit", [{"role": "user", "content": "x"}], settings=Settings(backends=(DEMO,))
        )
        return "never"

    result = Agent(ScriptedModel(Calls("ask"), "Too bad."), tools=[ask]).run_sync("go")
    assert result.output == "Too bad."
    assert "The demo model is busy" in result.calls[0].result


def test_the_key_of_a_gateway_is_sent(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, '[[keys]]\nname = "me"\nkey = "tw-secret-of-mine-1234567890"\n')
    try:
        with pytest.raises(ModelFailed) as refused:
            Agent("demo", base_url=gateway.base_url, config=AgentConfig(retries=0)).run_sync("Hello")
        assert refused.value.failure.status == 401
        agent = Agent("demo", base_url=gateway.base_url, api_key="tw-secret-of-mine-1234567890")
        assert agent.run_sync("Hello").output.startswith("This is the demo model.")
        assert "tw-secret" not in repr(agent)
    finally:
        gateway.stop()


@pytest.mark.parametrize("kind", scripts.NAMES)
def test_every_kind_of_backend_by_its_address(kind: scripts.Name) -> None:
    async def main() -> str:
        async with Far(
            turn(scripts.Calls("c1", "get_weather", '{"city":"Rome"}'), kind=kind),
            turn(scripts.Says("Warm."), kind=kind),
            kind=kind,
        ) as far:
            agent = Agent("m", tools=[get_weather], backend=f"{kind}:{far.url}")
            return (await agent.run("go")).output

    assert play(main()) == "Warm."


def test_a_model_has_one_place() -> None:
    with pytest.raises(ValueError, match="give only one"):
        Agent("m", backend="chat:http://127.0.0.1:1/v1", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(SettingsError, match="not an address"):
        Agent("m", base_url="nowhere").run_sync("go")


# Another model for tests


def test_a_clone_differs_in_what_was_changed() -> None:
    agent = Agent("demo", tools=[get_weather], instructions="Be brief.")
    model = ScriptedModel("Hi.")
    assert agent.clone(model=model).run_sync("go").output == "Hi."
    assert (model.requests[0].instructions, model.requests[0].tools) == ("Be brief.", ("get_weather",))


def test_an_agent_elsewhere_can_be_given_another_model() -> None:
    agent = Agent("nothing/at-all")

    async def users_program() -> str:
        return (await agent.run("go")).output

    async def main() -> None:
        with agent.override(model=ScriptedModel("Hi.")):
            assert await users_program() == "Hi."
        with pytest.raises(ToolwireError, match="no model"):
            await users_program()

    play(main())


def test_an_override_holds_in_other_threads_and_in_tasks_that_were_there_before() -> None:
    agent = Agent("nothing/at-all")
    said: list[str] = []

    def in_a_thread() -> None:
        thread = threading.Thread(target=lambda: said.append(agent.run_sync("go").output))
        thread.start()
        thread.join()

    async def waits(begin: asyncio.Event) -> str:
        await begin.wait()
        return (await agent.run("go")).output

    async def main() -> str:
        begin = asyncio.Event()
        before = asyncio.create_task(waits(begin))
        await asyncio.sleep(0)
        with agent.override(model=ScriptedModel("Hi.")):
            begin.set()
            return await before

    with agent.override(model=ScriptedModel(otherwise="One.")):
        in_a_thread()
        with agent.override(model=ScriptedModel(otherwise="Two.")):
            in_a_thread()
        in_a_thread()
    assert said == ["One.", "Two.", "One."]
    assert play(main()) == "Hi."


def test_overrides_at_the_same_time_do_not_mix_and_end_for_good() -> None:
    agent = Agent("nothing/at-all")

    async def overriding(text: str, other: asyncio.Barrier) -> str:
        with agent.override(model=ScriptedModel(otherwise=text)):
            await other.wait()
            output = (await agent.run("go")).output
            await other.wait()
            return output

    async def later(begin: asyncio.Event) -> str:
        await begin.wait()
        return (await agent.run("go")).output

    async def main() -> list[str]:
        other, begin = asyncio.Barrier(2), asyncio.Event()
        outputs = await asyncio.gather(*(overriding(text, other) for text in "ab"))
        with agent.override(model=ScriptedModel("x")):
            task = asyncio.create_task(later(begin))
            await asyncio.sleep(0)
        begin.set()
        with pytest.raises(ToolwireError, match="no model 'nothing/at-all'"):
            await task
        return outputs

    assert play(main()) == ["a", "b"]


# Arguments that cannot be


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Agent(5), "model: a name or a model such as a ScriptedModel is needed, not int"),
        (lambda: Agent(instructions=5), "instructions: a text or a function is needed, not int"),
        (lambda: Agent(tools="find"), "tools: a list is needed, not str"),
        (lambda: Agent(tools=get_weather), "tools: a list is needed, not FunctionTool"),
        (lambda: Agent(mcp_servers="npx"), "mcp_servers: a list is needed, not str"),
        (lambda: Agent(max_turns=-1), "max_turns: -1 is less than 0; 0 means no limit"),
        (lambda: Agent(output_retries=-1), "output_retries: -1 is less than 0"),
        (lambda: Limits(tokens=-1), "tokens: -1 is less than 0"),
        (lambda: AgentConfig(approve="sometimes"), "approve: 'sometimes' is not one of never, on-write, always"),
        (lambda: AgentConfig(retries=-1), "retries: -1 is less than 0"),
        (lambda: ScriptedModel("a", 5), "turn 2: a text, a part or a list of parts is needed, not int"),
        (lambda: ScriptedModel(["a", 5]), "turn 1: a text, a part or a list of parts is needed, not int"),
        (lambda: ScriptedModel(otherwise=5), "otherwise: a text, a part or a list of parts is needed, not int"),
        (lambda: Agent().run_sync(None), "prompt: a text is needed, not NoneType"),
        (lambda: Agent().run_sync("x", session="id"), r"not its id; `Session\.resume\(id, directory\)` gives one"),
        (lambda: Agent().run_sync("x", session=[]), "session: a Session is needed, not list"),
    ],
)
def test_an_argument_that_cannot_be_is_named(made: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        made()


def test_a_backend_and_a_model_that_there_are_not_are_named_as_a_program_has_them() -> None:
    with pytest.raises(SettingsError, match=r"^backend: there is no backend 'zzz'"):
        Agent("m", backend="zzz").run_sync("go")
    with pytest.raises(ToolwireError, match=r"no model 'zzz' here.* The settings name them; BACKEND/MODEL asks"):
        Agent("zzz").run_sync("go")


def test_a_run_that_was_left_early_has_no_result() -> None:
    async def main() -> None:
        async with Agent(ScriptedModel("Hi.")).stream("go") as run:
            pass
        with pytest.raises(RuntimeError, match="was left before its end, so it has no result"):
            _ = run.result

    play(main())


def test_a_session_is_kept_in_a_directory_that_is_a_text(tmp_path: Path) -> None:
    begun = Session.begin("scripted", ".", str(tmp_path))
    Agent(ScriptedModel("A.")).run_sync("one", session=begun)
    assert len(Session.resume(begun.id, str(tmp_path)).history) == 2


def test_the_page_draws_every_error() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/agent-library.md").read_text()
    kinds = [AgentError, ToolError, FatalToolError, SessionError]
    for kind in kinds:
        assert issubclass(kind, ToolwireError)
        assert f"─ {kind.__name__}" in page
        kinds += [each for each in kind.__subclasses__() if each.__module__.startswith("toolwire")]
    assert len(kinds) >= 11
