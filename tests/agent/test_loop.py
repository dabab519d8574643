"""The turn loop on scripted streams: what starts when, what is kept, what is asked again, and what a stop leaves."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from tests.agent.stage import (
    Drip,
    Far,
    Held,
    Sets,
    Step,
    Watcher,
    agent_on,
    assert_paired,
    assert_whole,
    echo,
    end_of,
    ended,
    engine,
    item_done,
    only,
    outputs_of,
    play,
    refuses,
    runner_on,
    settle,
    streams,
    turn,
    types_of,
    which,
    worked,
)
from tests.support.backend_writers import BROKEN, STREAMED, frame
from tests.support.chunks import chunkings
from tests.support.frames import call as called
from tests.support.frames import call_item, completed, created, rs, sse
from tests.support.frames import text as said
from tests.support.scripts import NAMES, TEXTUAL, Calls, Declines, Name, Says, Script, Thinks
from tests.support.scripts import Tokens as Counted
from tests.support.upstream import Cut, Hold, Reply
from toolwire import backoff as retrying
from toolwire.agent import (
    AgentConfig,
    Context,
    FatalToolError,
    TaskEnded,
    Tokens,
    ToolCall,
    ToolError,
    as_line,
    tool,
)
from toolwire.agent.events import (
    AgentEvent,
    ApprovalAsked,
    CallEnded,
    CallStarted,
    Compacted,
    ItemCompleted,
    ItemStarted,
    Noted,
    ReasoningDelta,
    ResponseCreated,
    Retrying,
    TaskStarted,
    TextDelta,
    ToolOutput,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageUpdated,
)
from toolwire.agent.history import OutputItem
from toolwire.agent.model import Model
from toolwire.agent.runner import Runner
from toolwire.agent.task import MAX_QUEUED_EVENTS, EventQueue
from toolwire.agent.tools import builtin
from toolwire.backoff import MAX_SPREAD
from toolwire.config.settings import Backend, Settings, SettingsError
from toolwire.core.errors import BadRequest, Failure
from toolwire.turns.tools.registry import Tool
from toolwire.upstream.reply import Timeouts

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_DELAY", 0.001)


def said_in(events: Iterable[AgentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def kinds_of(events: Iterable[AgentEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def work(id: str, index: int = 0) -> bytes:
    """A call of the held tool, whole, in a Responses stream."""
    return item_done(call_item(id, "work", which(id), f"fc_{id}"), index)


# A turn


def test_everything_that_happens_in_a_task_is_told_in_order() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(
            turn(Thinks("hm", "S"), Says("I look"), Calls("c1", "look", '{"path":"a"}')), turn(Says("seen"))
        ) as far:
            return await worked(agent_on(far, echo()), "Look!")

    events = play(main())
    kinds = [kind for kind, before in zip(kinds_of(events), ["", *kinds_of(events)], strict=False) if kind != before]
    assert kinds == [
        "TaskStarted", "TurnStarted", "ResponseCreated", "ItemStarted", "ReasoningDelta", "ItemCompleted",
        "ItemStarted", "TextDelta", "ItemCompleted", "CallStarted", "UsageUpdated", "ToolStarted", "CallEnded",
        "TurnEnded", "TurnStarted", "ResponseCreated", "ItemStarted", "TextDelta", "ItemCompleted", "UsageUpdated",
        "TurnEnded", "TaskEnded",
    ]  # fmt: skip
    assert isinstance(events[0], TaskStarted)
    assert (events[0].model, events[0].prompt) == ("up/m", "Look!")
    assert only(events, TurnEnded) == [TurnEnded(1, 1, "resp_up"), TurnEnded(2, 0, "resp_up")]
    assert ended(events) == TaskEnded("done", "seen", Tokens(20, 12))
    assert [json.loads(as_line(event))["type"] for event in events][:2] == ["task_started", "turn_started"]


def test_what_is_asked() -> None:
    async def main() -> list[Json]:
        async with Far(turn(Says("hi"))) as far:
            agent = agent_on(far, echo(), config=AgentConfig(instructions="Be brief.", effort="low"))
            async with agent:
                await end_of(agent, "Look!", ["data:image/png;base64,AA=="])
            return [asked.body for asked in far.asked]

    [body] = play(main())
    assert body["model"] == "m"
    assert body["instructions"] == "Be brief."
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert (body["stream"], body["store"]) == (True, False)
    assert body["include"] == ["reasoning.encrypted_content"]
    assert [each["name"] for each in body["tools"]] == ["look"]
    assert [part["type"] for part in body["input"][0]["content"]] == ["input_text", "input_image"]


def test_what_there_is_to_say_about_tools_follows_the_instructions() -> None:
    async def main() -> Json:
        async with Far(turn(Says("hi"))) as far:
            agent = agent_on(far, echo(), config=AgentConfig(instructions="Be brief."))
            agent.registry.advise("a", "Look twice.")
            agent.registry.advise("b", "")
            await worked(agent)
            return far.asked[0].body

    assert play(main())["instructions"] == "Be brief.\n\nAbout the tools of a:\nLook twice."


def test_images_are_files_or_urls(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 9)

    async def main() -> list[str]:
        async with Far(turn(Says("hi"))) as far, agent_on(far) as agent:
            await end_of(agent, "Look!", [file, "https://host/a.png"])
            for wrong in ("p.png", tmp_path / "none", Path(__file__)):
                with pytest.raises((ValueError, OSError)):
                    await end_of(agent, "Look!", [wrong])
            assert len(agent.session.history) == 2
            return [part.get("image_url", "") for part in far.asked[0].body["input"][0]["content"]]

    assert play(main())[1:] == ["data:image/png;base64,iVBORw0KGgoAAAAAAAAAAAA=", "https://host/a.png"]


def test_an_agent_remembers_its_tasks() -> None:
    async def main() -> list[Json]:
        async with Far(turn(Says("one")), turn(Says("two"))) as far:
            async with agent_on(far) as agent:
                assert (await end_of(agent, "first")).text == "one"
                assert (await end_of(agent, "second")).text == "two"
            return far.inputs[1]

    assert [part["text"] for item in play(main()) for part in item["content"]] == ["first", "one", "second"]


@pytest.mark.parametrize(("end", "reason"), [("length", "length"), ("filter", "filter"), ("stop", "done")])
def test_how_the_model_ended_is_told(end: str, reason: str) -> None:
    async def main() -> TaskEnded:
        async with Far(turn(Says("half"), end=end)) as far:
            return ended(await worked(agent_on(far)))

    assert play(main()) == TaskEnded(reason, "half", Tokens(10, 6))


def test_what_a_model_declines_is_its_answer() -> None:
    async def main() -> TaskEnded:
        async with Far(turn(Declines("I won't."))) as far:
            return ended(await worked(agent_on(far)))

    assert play(main()).text == "I won't."


def test_tools_that_come_later_are_declared_from_the_next_request_on() -> None:
    async def main() -> list[list[str]]:
        async with Far(turn(Calls("c1", "look")), turn(Says("done"))) as far:
            agent = agent_on(far, echo())
            later = iter([None, echo(name="find"), None])

            def source(registry: Any) -> None:
                new = next(later)
                if new is not None:
                    registry.add(new)

            agent.registry.follow(source)
            await worked(agent)
            return [[each["name"] for each in asked.body["tools"]] for asked in far.asked]

    assert play(main()) == [["look"], ["look", "find"]]


# A call starts while the stream goes on


@pytest.mark.parametrize("kind", NAMES)
def test_a_tool_runs_before_the_stream_ends(kind: Name) -> None:
    async def main() -> list[AgentEvent]:
        held = Held()
        whole = b"".join(turn(Calls("c1", "work", which("a")), Says("More to come"), kind=kind).steps)
        cut = whole.index(b"output_item.done") if kind == "responses" else whole.index(b"More"[:1] + b"o")
        ending = b"\r\n\r\n" if kind == "gemini" else b"\n\n"
        cut = whole.index(ending, cut) + len(ending)
        held.may_end("a").set()
        ran = asyncio.Event()
        async with Far(streams(whole[:cut], ran, whole[cut:]), turn(Says("done"), kind=kind), kind=kind) as far:
            async with agent_on(far, held.tool) as agent, Watcher(agent) as watcher:
                await watcher.sees(CallEnded)  # while the far end waits for exactly that
                ran.set()
                await watcher.end()
            return watcher.events

    kinds = kinds_of(play(main()))
    assert kinds.index("CallEnded") < kinds.index("UsageUpdated") < kinds.index("TurnEnded")


def test_a_call_starts_the_moment_its_item_is_done_and_not_with_its_arguments() -> None:
    async def main() -> None:
        held, sent, go = Held(), asyncio.Event(), asyncio.Event()
        item = call_item("c1", "work", which("a"))
        before = [
            rs("output_item.added", output_index=0, item={**item, "arguments": ""}),
            rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=which("a")),
        ]
        async with Far(
            streams(created(), *before, Sets(sent), go, item_done(item), completed()), turn(Says("ok"))
        ) as far:
            async with agent_on(far, held.tool) as agent, Watcher(agent) as watcher:
                await sent.wait()
                await settle(100)
                assert only(watcher.events, CallStarted) == []
                go.set()
                await held.began("a").wait()
                held.may_end("a").set()
                await watcher.end()

    play(main())


# Side by side


def test_parallel_tools_overlap_and_exclusive_ones_do_not() -> None:
    async def main() -> list[str]:
        held = Held()
        read, write = held.named("read", parallel=True), held.named("write")
        names = [("r1", "read"), ("r2", "read"), ("w1", "write"), ("r3", "read"), ("w2", "write")]
        async with Far(turn(*(Calls(id, name, which(id)) for id, name in names)), turn(Says("done"))) as far:
            async with agent_on(far, read, write) as agent, Watcher(agent) as watcher:
                for id in ("r2", "r1", "w1", "r3", "w2"):
                    await held.began(id).wait()
                    await settle()
                    held.may_end(id).set()
                await watcher.end()
                assert list(outputs_of(far.inputs[1])) == ["r1", "r2", "w1", "r3", "w2"]
        return held.log

    assert play(main()) == [
        "begin r1", "begin r2", "end r2", "end r1", "begin w1", "end w1", "begin r3", "end r3", "begin w2", "end w2",
    ]  # fmt: skip


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
@pytest.mark.parametrize("kind", NAMES)
def test_results_stand_in_the_order_of_the_calls(kind: Name, order: str) -> None:
    async def main() -> None:
        held = Held(parallel=True)
        called = turn(*(Calls(id, "work", which(id)) for id in "abc"), kind=kind)
        async with Far(called, turn(Says("done"), kind=kind), kind=kind) as far:
            agent = agent_on(far, held.tool)
            async with agent, Watcher(agent) as watcher:
                for id in order:
                    await held.began(id).wait()
                    held.may_end(id).set()
                    await watcher.sees(CallEnded, call_id=id)
                await watcher.end()
            assert_whole(agent.session.history)
            assert [event.call_id for event in only(watcher.events, CallEnded)] == list(order)
            sent = far.posted[1].decode()
            places = [sent.index(f"done {id}") for id in "abc"]
            assert places == sorted(places)

    play(main())


# A stream that fails


FAILURES: dict[str, list[Step]] = {
    "closed": [],
    "cut": [Cut()],
    "failed": [
        rs("failed", response={"id": "r", "status": "failed", "error": {"code": "server_error", "message": BROKEN}})
    ],
    "error": [sse({"type": "error", "code": "server_error", "message": BROKEN, "param": None})],
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_after_a_failed_stream_the_calls_are_answered_and_the_partial_text_is_not_sent(failure: list[Step]) -> None:
    async def main() -> None:
        held, ran = Held(parallel=True), asyncio.Event()
        whole = [item_done(_message("I look"), 0), work("a", 1), work("b", 2)]
        partial = [rs("output_item.added", output_index=3, item=_message("", "msg_2")), said("And the", "msg_2", 3)]
        async with Far(streams(created(), *whole, *partial, ran, *failure), turn(Says("Now whole"))) as far:
            agent = agent_on(far, held.tool, config=AgentConfig(retries=1))
            async with agent, Watcher(agent) as watcher:
                for id in "ba":
                    await held.began(id).wait()
                held.may_end("b").set()
                await watcher.sees(CallEnded, call_id="b")
                ran.set()
                await settle(100)
                assert only(watcher.events, Retrying) == [], "it is not asked again before all tools are done"
                held.may_end("a").set()
                done = await watcher.end()
            assert (done.reason, done.text) == ("done", "Now whole")
            assert (
                types_of(far.inputs[1])
                == ["message", "message", "function_call", "function_call"] + ["function_call_output"] * 2
            )
            assert outputs_of(far.inputs[1]) == {"a": "done a", "b": "done b"}
            assert_paired(far.inputs[1])
            assert "And the" not in far.posted[1].decode()
            assert_whole(agent.session.history)
            assert held.log.count("begin a") == held.log.count("begin b") == 1

    play(main())


def _message(text: str, id: str = "msg_1") -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("end", ["cut", "error"])
def test_a_stream_that_breaks_is_asked_for_again_on_every_kind_of_backend(kind: Name, end: str) -> None:
    async def main() -> None:
        held = Held()
        held.may_end("a").set()
        broken = turn(Calls("a", "work", which("a")), Says("And"), kind=kind, end=end)
        async with Far(broken, turn(Says("Whole"), kind=kind), kind=kind) as far:
            agent = agent_on(far, held.tool, config=AgentConfig(retries=1))
            events = await worked(agent)
            assert ended(events).text == "Whole"
            assert [event.attempt for event in only(events, Retrying)] == [1]
            assert_whole(agent.session.history)
            assert "done a" in far.posted[1].decode()
            if kind != "responses":  # which had told that the text was whole
                assert "And" not in far.posted[1].decode()

    play(main())


@pytest.mark.parametrize("kind", NAMES)
def test_half_a_call_of_a_stream_that_breaks_is_not_run(kind: Name) -> None:
    async def main() -> None:
        held = Held()
        broken = turn(Calls("a", "work", '{"which":"a', whole=False), kind=kind, end="cut")
        async with Far(broken, turn(Says("Whole"), kind=kind), kind=kind) as far:
            agent = agent_on(far, held.tool, config=AgentConfig(retries=1))
            events = await worked(agent)
            assert ended(events).text == "Whole"
            assert held.log == []
            assert only(events, CallStarted) == []
            assert_whole(agent.session.history)
            assert b"work" not in far.posted[1].replace(b'"name":"work","desc', b"").partition(b'"tools"')[0]

    play(main())


# Asked again


def test_every_new_request_is_announced_as_one_of_so_many() -> None:
    async def main() -> list[AgentEvent]:
        busy = [refuses(503, "Overloaded.", retry_after="0") for _ in range(3)]
        async with Far(*busy, turn(Says("done"))) as far:
            events = await worked(agent_on(far, config=AgentConfig(retries=3)))
            assert len(far.asked) == 4
            return events

    events = play(main())
    assert only(events, Retrying) == [Retrying(number, 3, 0.0, "Overloaded.") for number in (1, 2, 3)]
    assert only(events, TurnStarted) == [TurnStarted(1)]
    assert ended(events).reason == "done"


def test_a_backend_that_fails_for_ever_ends_the_task_with_its_words() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(*(refuses(503, f"Overloaded {number}.", retry_after="0") for number in range(9))) as far:
            events = await worked(agent_on(far, config=AgentConfig(retries=2)))
            assert len(far.asked) == 3
            return events

    events = play(main())
    assert [event.attempt for event in only(events, Retrying)] == [1, 2]
    assert ended(events) == TaskEnded("failed", "", Tokens(), "Overloaded 2.")


def test_a_reply_without_an_end_fails_the_task_and_is_not_asked_for_again() -> None:
    async def main() -> list[AgentEvent]:
        endless = [said("word " * 2000) for _ in range(5000)]
        async with Far(streams(created(), *endless), turn(Says("done"))) as far:
            server = msgspec.structs.replace(far.settings.server, max_reply=200_000)
            settings = msgspec.structs.replace(far.settings, server=server)
            events = await worked(runner_on("up/m", settings=settings))
            assert len(far.asked) == 1
            return events

    events = play(main())
    assert (ended(events).reason, "server.max_reply" in ended(events).error) == ("failed", True)
    assert sum(len(event.text) for event in only(events, TextDelta)) < 1_000_000


def test_an_agent_works_again_after_a_task_that_failed() -> None:
    async def main() -> None:
        async with Far(refuses(400, "No."), turn(Says("yes"))) as far:
            async with agent_on(far) as agent:
                assert (await end_of(agent, "first")).reason == "failed"
                assert (await end_of(agent, "second")).text == "yes"
            assert len(far.inputs[1]) == 2

    play(main())


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_failures_that_may_pass_are_asked_again(status: int) -> None:
    async def main() -> list[AgentEvent]:
        async with Far(refuses(status, "Later.", retry_after="0"), turn(Says("done"))) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=1)))

    events = play(main())
    assert len(only(events, Retrying)) == 1
    assert ended(events).reason == "done"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
@pytest.mark.parametrize("kind", NAMES)
def test_failures_that_are_final_are_not_asked_again(status: int, kind: Name) -> None:
    async def main() -> list[AgentEvent]:
        async with Far(refuses(status, "Never.", kind=kind, retry_after="0"), kind=kind) as far:
            events = await worked(agent_on(far, config=AgentConfig(retries=3)))
            assert len(far.asked) == 1
            refused = f"Backend `up` ({far.url}) refused a request without a key: Never. Set api_key_env"
            assert ended(events).error.startswith(refused if status == 401 else "Never.")
            return events

    events = play(main())
    assert only(events, Retrying) == []
    assert (ended(events).reason, ended(events).text) == ("failed", "")


def test_a_quota_that_is_used_up_is_final() -> None:
    async def main() -> list[AgentEvent]:
        body = {"error": {"message": "Out of money.", "type": "insufficient_quota", "code": "insufficient_quota"}}
        refusal = Reply([json.dumps(body).encode()], 429, "application/json", {"retry-after": "0"})
        async with Far(refusal) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=3)))

    assert kinds_of(play(main())) == ["TaskStarted", "TurnStarted", "TaskEnded"]


def test_the_pause_that_a_server_asks_for_is_kept() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(refuses(429, "Slow.", retry_after="0.02"), turn(Says("done"))) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=1)))

    [again] = only(play(main()), Retrying)
    assert (again.attempt, again.most, again.reason) == (1, 1, "Slow.")
    assert 0.02 <= again.seconds <= 0.02 * (1 + MAX_SPREAD)


def test_a_server_that_asks_for_too_long_a_pause_is_not_asked_again() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(refuses(429, "Tomorrow.", retry_after="86400")) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=3)))

    events = play(main())
    assert only(events, Retrying) == []
    assert ended(events).error == "Tomorrow."


LATER = Failure(503, "busy", "Later.", retryable=True)


@pytest.mark.parametrize("attempt", range(1, 8))
def test_pauses_of_our_own_grow(attempt: int) -> None:
    expected = 0.001 * 2 ** (attempt - 1)
    pauses = [retrying.choose_retry_delay(LATER, attempt, 600) or 0 for _ in range(50)]
    assert all(0.9 * expected <= each <= 1.1 * expected for each in pauses)
    assert len(set(pauses)) > 1


def test_pauses_of_our_own_have_an_end() -> None:
    assert (retrying.choose_retry_delay(LATER, 99, 600) or 0) <= 1.1 * retrying.MAX_DELAY


PAUSES: dict[str, tuple[str, float | None]] = {
    "none": ("0", 0.0),
    "seconds": ("7", 7.0),
    "parts of a second": ("1.5", 1.5),
    "the longest": ("600", 600.0),
    "longer": ("601", None),
    "for ever": ("inf", None),
}


@pytest.mark.parametrize(("asked", "expected"), PAUSES.values(), ids=PAUSES)
def test_pauses_that_a_server_asks_for(asked: str, expected: float | None) -> None:
    seconds = retrying.choose_retry_delay(msgspec.structs.replace(LATER, retry_after=asked), 1, 600)
    if expected is None:
        assert seconds is None
    else:
        assert seconds is not None
        assert expected <= seconds <= expected * (1 + MAX_SPREAD)


def test_a_pause_that_cannot_be_read_is_one_of_our_own() -> None:
    dated = msgspec.structs.replace(LATER, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")
    assert (retrying.choose_retry_delay(dated, 6, 600) or 0) > 5 * retrying.FIRST_DELAY


@pytest.mark.parametrize(("longest", "pauses"), [(600.0, True), (30.0, False)])
def test_a_pause_may_be_given_as_a_date(longest: float, pauses: bool) -> None:
    dated = msgspec.structs.replace(LATER, retry_after=formatdate(time.time() + 300, usegmt=True))
    seconds = retrying.choose_retry_delay(dated, 1, longest)
    assert (seconds is not None and 200 < seconds <= 300 * (1 + MAX_SPREAD)) == pauses


def test_what_is_final_has_no_pause() -> None:
    assert retrying.choose_retry_delay(Failure(400, "bad", "No.", retry_after="1"), 1, 600) is None


def test_a_failure_inside_a_stream_that_is_final_is_not_asked_again() -> None:
    async def main() -> list[AgentEvent]:
        error = {"code": "context_length_exceeded", "message": "Too long."}
        failed = rs("failed", response={"id": "r", "status": "failed", "error": error})
        async with Far(streams(created(), said("hm"), failed)) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=3)))

    events = play(main())
    assert only(events, Retrying) == []
    assert ended(events).error == "Too long."


def test_a_server_that_is_not_there_is_asked_again() -> None:
    async def main() -> list[AgentEvent]:
        async with Far() as far:
            url = far.url
        settings = Settings(backends=(Backend("up", "responses", base_url=url),))
        events = await worked(runner_on("up/m", settings=settings, config=AgentConfig(retries=2)))
        error = f"Backend `up` ({url}) cannot be reached: connection refused."
        assert ended(events).error.startswith(error)
        return events

    events = play(main())
    assert [event.attempt for event in only(events, Retrying)] == [1, 2]
    assert (ended(events).reason, ended(events).text) == ("failed", "")


def test_a_model_that_is_not_there_is_said_before_anything_is_asked() -> None:
    async def main() -> None:
        agent = runner_on("nothing", settings=Far().settings)
        with pytest.raises(BadRequest, match="There is no model 'nothing' here"):
            await agent.__aenter__()

    play(main())


# Stopped at every point

ABORTED = re.compile(r"aborted by user after \d+\.\ds")
NEVER_STARTED = "aborted by user before it started"


class Scene:
    """An agent at work, with a held tool, and somebody who may be asked."""

    def __init__(self, *replies: Reply, config: AgentConfig | None = None, approves: bool = False) -> None:
        self.held = Held()
        self.asked = asyncio.Event()
        self.sent = asyncio.Event()
        self._setup = config or AgentConfig(retries=3)
        self.far = Far(*replies)
        self._approver = self._ask if approves else None
        self.agent: Runner
        self.watcher: Watcher

    async def _ask(self, tool: Tool, call: ToolCall) -> bool:
        self.asked.set()
        await asyncio.Event().wait()
        return True

    async def __aenter__(self) -> "Scene":
        await self.far.__aenter__()
        tools = (self.held.tool, self.held.named("read", parallel=True), echo())
        self.agent = agent_on(self.far, *tools, config=self._setup, approver=self._approver)
        await self.agent.__aenter__()
        self.watcher = Watcher(self.agent)
        await self.watcher.__aenter__()
        return self

    async def goes_on(self) -> None:
        """The agent can be used again."""
        self.far.next(turn(Says("again")), turn(Says("again")))  # the first of which may be a summary
        assert (await end_of(self.agent, "go on")).text == "again"
        assert_paired(self.far.inputs[-1])

    async def __aexit__(self, *error: object) -> None:
        await self.watcher.__aexit__(*error)
        await self.agent.close()
        await self.far.__aexit__()


class Point(NamedTuple):
    """Where a task is stopped: what the far end does, when it is there, and what of it is in the history then."""

    replies: Callable[[], list[Reply]]
    until: Callable[[Scene], Awaitable[object]]
    outputs: list[str] = []  # noqa: RUF012 - `?` is a call that was stopped, `-` one that had not started
    open: bool = True
    """The far end's reply is not complete, so the connection must be closed."""
    config: AgentConfig | None = None
    approves: bool = False


async def _seen(scene: Scene, kind: type, **fields: Any) -> None:
    await scene.watcher.sees(kind, **fields)
    await settle()


async def _streamed(scene: Scene) -> None:
    """The stream is over, and tools run on."""
    await scene.watcher.sees(UsageUpdated)
    await settle(100)


def hanging(*steps: Step) -> Callable[[], list[Reply]]:
    return lambda: [streams(created(), *steps, Hold())]


def read(id: str, index: int = 0) -> bytes:
    return item_done(call_item(id, "read", which(id), f"fc_{id}"), index)


ARGUMENTS = [
    rs("output_item.added", output_index=0, item=call_item("c1", "work", "")),
    rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"whi'),
]
LOOKED = item_done(call_item("c0", "look", "{}", "fc_c0"))
POINTS: dict[str, Point] = {
    "before anything": Point(hanging(), lambda scene: scene.watcher.sees(TaskStarted), open=False),
    "before the first byte": Point(lambda: [streams(Hold())], lambda scene: scene.far.came[0].wait()),
    "before the first event": Point(hanging(), lambda scene: _after(scene.far.came[0])),
    "in a text": Point(hanging(said("hal")), lambda scene: _seen(scene, TextDelta)),
    "in a thought": Point(
        hanging(rs("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="hm")),
        lambda scene: _seen(scene, ReasoningDelta),
    ),
    "in arguments": Point(hanging(said("hm"), *ARGUMENTS), lambda scene: _after(scene.watcher.sees(TextDelta))),
    "behind a call that is done": Point(hanging(LOOKED), lambda scene: _seen(scene, CallEnded), ["saw "]),
    "while a tool runs": Point(hanging(work("a")), lambda scene: _after(scene.held.began("a")), ["?"]),
    "while tools run side by side": Point(
        hanging(read("a"), read("b", 1)), lambda scene: _after(scene.held.began("a"), scene.held.began("b")), ["?", "?"]
    ),
    "while one tool is done and another runs": Point(
        hanging(LOOKED, work("a", 1)), lambda scene: _after(scene.held.began("a")), ["saw ", "?"]
    ),
    "while a tool runs and one waits": Point(
        hanging(work("a"), work("b", 1)), lambda scene: _seen(scene, CallStarted, call_id="b"), ["?", "-"]
    ),
    "while tools run and others wait": Point(
        hanging(read("a"), work("b", 1), read("c", 2), work("d", 3)),
        lambda scene: _seen(scene, CallStarted, call_id="d"),
        ["?", "-", "-", "-"],
    ),
    "while somebody is asked": Point(
        hanging(work("a")), lambda scene: scene.asked.wait(), ["-"], config=AgentConfig(approve="always"), approves=True
    ),
    "behind the stream while a tool runs": Point(lambda: [turn(Calls("a", "work"))], _streamed, ["?"], open=False),
    "behind the stream while tools run side by side": Point(
        lambda: [turn(Calls("a", "read", which("a")), Calls("b", "read", which("b")))],
        _streamed,
        ["?", "?"],
        open=False,
    ),
    "behind the stream while one waits": Point(
        lambda: [turn(Calls("a", "work", which("a")), Calls("b", "work", which("b")))],
        _streamed,
        ["?", "-"],
        open=False,
    ),
    "behind the stream while somebody is asked": Point(
        lambda: [turn(Calls("a", "work"))], _streamed, ["-"], False, AgentConfig(approve="always"), True
    ),
    "behind a stream that failed while a tool runs": Point(
        lambda: [streams(created(), work("a"), rs("failed", response={"error": {"code": "server_error"}}))],
        lambda scene: _after(scene.held.began("a")),
        ["?"],
        open=False,
    ),
    "in the pause before it is asked again": Point(
        lambda: [refuses(503, "Later.", retry_after="300")], lambda scene: _seen(scene, Retrying), open=False
    ),
    "in the pause behind a call that is done": Point(
        lambda: [
            streams(
                created(),
                LOOKED,
                rs("failed", response={"error": {"code": "rate_limit_exceeded", "message": "try again in 300s"}}),
            )
        ],
        lambda scene: _seen(scene, Retrying),
        ["saw "],
        open=False,
    ),
    "between two turns": Point(
        lambda: [turn(Calls("a", "look")), streams(Hold())], lambda scene: scene.far.came[1].wait(), ["saw "]
    ),
    "in the second turn": Point(
        lambda: [turn(Calls("a", "look")), streams(created(), said("hal"), Hold())],
        lambda scene: _seen(scene, TextDelta),
        ["saw "],
    ),
    "in a compaction": Point(
        lambda: [turn(Calls("a", "look")), streams(created(), said("Sum"), Hold())],
        lambda scene: _after(scene.far.came[1]),
        ["saw "],
        config=AgentConfig(context_window=10),
    ),
}


async def _after(*events: Any) -> None:
    for event in events:
        await (event.wait() if isinstance(event, asyncio.Event) else event)
    await settle(100)


@pytest.mark.parametrize("point", [pytest.param(point, id=id) for id, point in POINTS.items()])
def test_a_task_that_is_stopped_leaves_a_whole_history_and_nothing_else(point: Point) -> None:
    async def main() -> None:
        async with Scene(*point.replies(), config=point.config, approves=point.approves) as scene:
            await point.until(scene)
            requests = len(scene.far.asked)
            scene.agent.cancel()
            done = await scene.watcher.end()
            assert done.reason == "cancelled"
            assert done.error == ""
            assert_whole(scene.agent.session.history)
            outputs = [item.text for item in scene.agent.session.history.items if isinstance(item, OutputItem)]
            shown = ["-" if text == NEVER_STARTED else text for text in outputs]
            assert ["?" if ABORTED.fullmatch(text) else text for text in shown] == point.outputs
            begun = [line.removeprefix("begin ") for line in scene.held.log if line.startswith("begin")]
            assert scene.held.log == [*(f"begin {id}" for id in begun), *(f"stop {id}" for id in begun)]
            told = {event.call_id for event in only(scene.watcher.events, CallStarted)}
            assert told == {event.call_id for event in only(scene.watcher.events, CallEnded)}
            if point.open:
                await scene.far.gone.wait()
            assert len(scene.far.asked) == requests, "nothing is asked after a stop"
            await scene.goes_on()

    play(main())


@pytest.mark.parametrize("streaming", [True, False], ids=["while it streams", "behind the stream"])
def test_a_task_that_is_stopped_twice_still_waits_for_its_tools(streaming: bool) -> None:
    async def main() -> None:
        stopping, may_stop, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool
        async def slow() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                stopping.set()
                await may_stop.wait()  # as a process that takes a while to be ended
                stopped.set()
            return ""

        call = item_done(call_item("c1", "slow", "{}"))
        async with Far(streams(created(), call, Hold()) if streaming else turn(Calls("c1", "slow"))) as far:
            async with agent_on(far, slow) as agent, Watcher(agent) as watcher:
                await watcher.sees(ToolStarted)
                await settle(100)
                agent.cancel()
                try:
                    await settle()
                    assert stopping.is_set()
                    agent.cancel()
                    await settle()
                finally:
                    may_stop.set()
                assert (await watcher.end()).reason == "cancelled"
            assert stopped.is_set()
            assert_whole(agent.session.history)
            assert len(agent.session.history) == 3

    play(main())


@pytest.mark.parametrize(
    "streaming", [pytest.param(True, id="while it streams"), pytest.param(False, id="behind the stream")]
)
def test_an_agent_that_is_closed_stops_its_task(streaming: bool) -> None:
    async def main() -> None:
        held = Held()
        reply = streams(created(), work("a"), Hold()) if streaming else turn(Calls("a", "work", which("a")))
        async with Far(reply) as far:
            agent = agent_on(far, held.tool)
            async with agent:
                watcher = Watcher(agent)
                await watcher.__aenter__()
                await held.began("a").wait()
                await settle(100)
            assert (await watcher.end()).reason == "cancelled"
            assert held.log == ["begin a", "stop a"]
            assert_whole(agent.session.history)

    play(main())


def test_a_stop_at_any_moment_leaves_a_whole_history() -> None:
    """The task is stopped after any number of steps of the loop, from none to more than it takes."""
    log: list[str] = []

    def steps(name: str, *, parallel: bool) -> Tool:
        async def run(which: str) -> str:
            log.append(f"begin {which}")
            try:
                for _ in range(12):
                    await asyncio.sleep(0)
            finally:
                log.append(f"end {which}")
            return which

        return tool(name=name, parallel=parallel)(run)

    tools = (steps("work", parallel=False), steps("read", parallel=True))

    async def stopped(moment: int) -> str:
        log.clear()
        first = streams(created(), read("a"), work("b", 1), work("c", 2), read("d", 3), *FAILURES["error"])
        second = turn(Calls("e", "work", which("e")), Calls("f", "work", which("f")), Calls("g", "read", which("g")))
        async with Far(first, second, turn(Says("done"))) as far:
            agent = agent_on(far, *tools, config=AgentConfig(retries=1))
            async with agent, Watcher(agent) as watcher:
                await settle(moment)
                agent.cancel()
                reason = (await watcher.end()).reason
                assert sorted(line[-1] for line in log if line.startswith("b")) == sorted(
                    line[-1] for line in log if line.startswith("e")
                )
            assert_whole(agent.session.history)
            outputs = [item.text for item in agent.session.history.items if isinstance(item, OutputItem)]
            stopped = [text for text in outputs if len(text) != 1]
            assert all(text == NEVER_STARTED or ABORTED.fullmatch(text) for text in stopped), outputs
            return reason

    async def main() -> None:
        assert {await stopped(moment) for moment in range(0, 500, 3)} == {"cancelled", "done"}

    play(main())


def test_nothing_to_stop_is_no_error() -> None:
    async def main() -> None:
        async with Far(turn(Says("one")), turn(Says("two"))) as far, agent_on(far) as agent:
            agent.cancel()
            assert (await end_of(agent, "go")).text == "one"
            agent.cancel()
            assert (await end_of(agent, "go")).text == "two"

    play(main())


def test_whoever_stops_listening_stops_the_task() -> None:
    async def main() -> None:
        held = Held()
        async with Far(streams(created(), work("a"), Hold()), turn(Says("again"))) as far:
            async with agent_on(far, held.tool) as agent:
                async with aclosing(agent.stream("go")) as stream:  # type: ignore[type-var]
                    async for event in stream:
                        if isinstance(event, ToolStarted):
                            await held.began("a").wait()
                            break
                await far.gone.wait()
                assert held.log == ["begin a", "stop a"]
                assert_whole(agent.session.history)
                assert (await end_of(agent, "go on")).text == "again"

    play(main())


def test_leaving_the_loop_is_enough() -> None:
    async def main() -> None:
        async with Far(streams(created(), said("hal"), Hold()), turn(Says("again"))) as far, agent_on(far) as agent:
            async for event in agent.stream("go"):
                if isinstance(event, TextDelta):
                    break
            await far.gone.wait()
            await settle()
            assert (await end_of(agent, "go on")).text == "again"

    play(main())


def test_a_stop_of_whoever_waits_stops_the_task_and_comes_through() -> None:
    async def main() -> None:
        held = Held()
        async with Far(streams(created(), work("a"), Hold())) as far, agent_on(far, held.tool) as agent:
            waiting = asyncio.create_task(end_of(agent, "go"))
            await held.began("a").wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert held.log == ["begin a", "stop a"]
            assert_whole(agent.session.history)
            await far.gone.wait()

    play(main())


def test_an_agent_does_one_thing_at_a_time() -> None:
    async def main() -> None:
        async with (
            Far(streams(created(), said("hal"), Hold())) as far,
            agent_on(far) as agent,
            Watcher(agent) as watcher,
        ):
            await watcher.sees(TextDelta)
            with pytest.raises(RuntimeError, match="already at work"):
                await end_of(agent, "and this")
            agent.cancel()
            assert (await watcher.end()).reason == "cancelled"
            assert len(agent.session.history) == 1

    play(main())


# Answers to the model


@tool(parallel=True)
async def breaks(how: str) -> str:
    """Break."""
    raise {"error": ToolError, "other": ValueError, "fatal": FatalToolError}[how]("no such luck")


WRONG: dict[str, tuple[Calls, str]] = {
    "an unknown tool": (Calls("c1", "nothing"), "unsupported call: nothing"),
    "arguments that are not json": (Calls("c1", "look", '{"path": '), "failed to parse function arguments: "),
    "arguments that do not fit": (Calls("c1", "look", '{"path":7}'), "invalid arguments for look: Expected `str`"),
    "a tool that says what is wrong": (Calls("c1", "breaks", '{"how":"error"}'), "no such luck"),
    "a tool that breaks": (Calls("c1", "breaks", '{"how":"other"}'), "ValueError: no such luck"),
    "a custom tool that is a function": (
        Calls("c1", "look", "x", kind="custom"),
        "look takes arguments, not free text",
    ),
    "an unknown custom tool": (Calls("c1", "patch", "x", kind="custom"), "unsupported c"),
}


@pytest.mark.parametrize(("called", "answer"), WRONG.values(), ids=WRONG)
def test_what_goes_wrong_with_a_call_is_an_answer_to_the_model(called: Calls, answer: str) -> None:
    async def main() -> None:
        async with Far(turn(called, Calls("c2", "look")), turn(Says("I see"))) as far:
            agent = agent_on(far, echo(), breaks)
            events = await worked(agent)
            assert ended(events) == TaskEnded("done", "I see", Tokens(20, 12))
            told = outputs_of(far.inputs[1])
            assert told["c1"].startswith(answer)
            assert told["c2"] == "saw "
            assert [event.failed for event in sorted(only(events, CallEnded), key=lambda each: each.call_id)] == [
                True,
                False,
            ]
            assert_whole(agent.session.history)

    play(main())


def test_a_fatal_error_ends_the_task_with_its_words_and_keeps_the_other_results() -> None:
    async def main() -> None:
        held = Held(parallel=True)
        calls = (Calls("c1", "look"), Calls("c2", "breaks", '{"how":"fatal"}'), Calls("c3", "work", which("a")))
        async with Far(turn(*calls), turn(Says("again"))) as far:
            agent = agent_on(far, echo(), breaks, held.tool)
            async with agent:
                async with Watcher(agent) as watcher:
                    await watcher.sees(CallEnded, call_id="c2")
                    held.may_end("a").set()
                    done = await watcher.end()
                assert (done.reason, done.error) == ("failed", "no such luck")
                assert len(far.asked) == 1
                assert_whole(agent.session.history)
                assert (await end_of(agent, "go on")).text == "again"
                assert outputs_of(far.inputs[1]) == {"c1": "saw ", "c2": "no such luck", "c3": "done a"}

    play(main())


def test_a_fatal_error_in_a_stream_that_fails_is_not_asked_again() -> None:
    async def main() -> None:
        call = item_done(call_item("c1", "breaks", '{"how":"fatal"}'))
        async with Far(streams(created(), call, *FAILURES["error"])) as far:
            events = await worked(agent_on(far, breaks, config=AgentConfig(retries=3)))
            assert only(events, Retrying) == []
            assert ended(events).error == "no such luck"

    play(main())


# Approval


class Asking:
    """Somebody who allows some calls."""

    def __init__(self, *allowed: str) -> None:
        self.asked: list[tuple[str, str]] = []
        self._allowed = allowed

    async def __call__(self, tool: Tool, call: ToolCall) -> bool:
        self.asked.append((tool.name, call.text))
        return call.call_id in self._allowed


APPROVALS: dict[str, tuple[AgentConfig, list[str], set[str]]] = {
    "never asks": (AgentConfig(approve="never"), [], set()),
    "asks before what writes": (AgentConfig(approve="on-write"), ["change"], {"c2"}),
    "asks always": (AgentConfig(approve="always"), ["look", "change"], {"c1", "c2"}),
    "does not ask for what may not be": (AgentConfig(approve="on-write", read_only=True), [], {"c2"}),
}


@pytest.mark.parametrize(("config", "asked", "denied"), APPROVALS.values(), ids=APPROVALS)
def test_a_policy(config: AgentConfig, asked: list[str], denied: set[str]) -> None:
    async def main() -> None:
        asking = Asking()
        async with Far(turn(Calls("c1", "look"), Calls("c2", "change", '{"path":"p"}')), turn(Says("ok"))) as far:
            agent = agent_on(far, echo(), echo(name="change", writes=True), config=config, approver=asking)
            events = await worked(agent)
            assert [name for name, _ in asking.asked] == asked
            assert [event.name for event in only(events, ApprovalAsked)] == asked
            assert {event.call_id for event in only(events, CallEnded) if event.failed} == denied
            assert ended(events).reason == "done"
            told = outputs_of(far.inputs[1])
            for call_id in denied:
                assert "did not allow" in told[call_id] or "read-only mode: change may" in told[call_id]
            assert_whole(agent.session.history)

    play(main())


def test_a_call_that_is_allowed_runs() -> None:
    async def main() -> None:
        asking = Asking("c1")
        async with Far(turn(Calls("c1", "change", '{"path":"p"}')), turn(Says("ok"))) as far:
            config = AgentConfig(approve="on-write")
            events = await worked(agent_on(far, echo(name="change", writes=True), config=config, approver=asking))
            assert asking.asked == [("change", '{"path":"p"}')]
            assert only(events, ApprovalAsked) == [ApprovalAsked("c1", "change", '{"path":"p"}')]
            assert outputs_of(far.inputs[1]) == {"c1": "saw p"}

    play(main())


def test_nobody_to_ask_is_no_permission() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "change")), turn(Says("ok"))) as far:
            await worked(agent_on(far, echo(name="change", writes=True), config=AgentConfig(approve="on-write")))
            assert "no user is present to give it" in outputs_of(far.inputs[1])["c1"]

    play(main())


def test_a_command_that_wants_more_is_asked_about() -> None:
    ran: list[str] = []

    @tool(name="local_shell")
    async def shell(command: list[str], env: Any, working_directory: str, timeout_ms: Any, justification: str,
                    with_escalated_permissions: bool) -> None:  # fmt: skip
        ran.append(command[0])

    def command(id: str, **fields: Any) -> Json:
        action = {"type": "exec", "command": [id], "env": {}, **fields}
        return {"type": "local_shell_call", "id": f"lsh_{id}", "call_id": id, "status": "completed", "action": action}

    async def main() -> None:
        asking = Asking()
        more = command("b", with_escalated_permissions=True, justification="must")
        steps = [item_done(command("a"), 0), item_done(more, 1)]
        async with Far(streams(created(), *steps, completed()), turn(Says("ok"))) as far:
            await worked(agent_on(far, shell, config=AgentConfig(approve="on-write"), approver=asking))
        assert len(asking.asked) == 1
        assert '"justification":"must"' in asking.asked[0][1]
        assert ran == ["a"]

    play(main())


ELSEWHERE = {
    "local_shell": ("local_shell_call", "working_directory"),
    "Bash": ("function_call", "cwd"),
    "exec_command": ("function_call", "workdir"),
}


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "refused"])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_command_that_starts_outside_the_roots_is_asked_about(
    name: str, allowed: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    kind, parameter = ELSEWHERE[name]

    async def main() -> None:
        asking = Asking("c1") if allowed else Asking()
        if kind == "local_shell_call":
            action = {"type": "exec", "command": ["pwd"], "env": {}, parameter: str(elsewhere)}
            item = {"type": kind, "id": "lsh_1", "call_id": "c1", "status": "completed", "action": action}
        else:
            line = {"cmd": "pwd"} if name == "exec_command" else {"command": "pwd"}
            item = call_item("c1", name, json.dumps({**line, parameter: str(elsewhere)}))
        tools = builtin(["bash", "exec", "local_shell"])
        async with Far(streams(created(), item_done(item), completed()), turn(Says("ok"))) as far, tools:
            config = AgentConfig(approve="on-write", retries=0)
            runner = agent_on(far, *tools.tools, config=config, approver=asking, cwd=tmp_path)
            await worked(runner)
            [output] = outputs_of(far.inputs[1]).values()
        assert [(tool, str(elsewhere) in text) for tool, text in asking.asked] == [(name, True)]
        assert (str(elsewhere) in output, "did not allow" in output) == (allowed, not allowed)

    play(main())


@pytest.mark.parametrize("directory", ["", "below", "..", "/"])
def test_a_tool_that_writes_nothing_is_asked_about_where_it_starts_outside(directory: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()

    @tool(name="local_shell")
    async def shell(command: list[str], env: Any, working_directory: str, timeout_ms: Any, justification: str,
                    with_escalated_permissions: bool) -> None:  # fmt: skip
        pass

    async def main() -> None:
        asking = Asking()
        action = {"type": "exec", "command": ["x"], "env": {}, "working_directory": directory}
        item = {"type": "local_shell_call", "id": "l", "call_id": "c1", "status": "completed", "action": action}
        async with Far(streams(created(), item_done(item), completed()), turn(Says("ok"))) as far:
            config = AgentConfig(approve="on-write")
            await worked(agent_on(far, shell, config=config, approver=asking, cwd=tmp_path))
        assert len(asking.asked) == (directory in ("..", "/"))

    play(main())


def test_a_tool_knows_that_nothing_may_be_changed() -> None:
    seen: list[bool] = []

    @tool
    async def look(context: Context) -> None:
        seen.append(context.writable)

    async def main() -> None:
        for read_only in (True, False):
            async with Far(turn(Calls("c1", "look")), turn(Says("ok"))) as far:
                await worked(agent_on(far, look, config=AgentConfig(read_only=read_only)))

    play(main())
    assert seen == [False, True]


# Compaction

FULL = Counted(input=900, output=60)
"""Of a window of 1000: more than nine tenths."""
WINDOW = AgentConfig(context_window=1000, retries=0)


def texts_of(body: Json) -> list[str]:
    """What the messages of a request to any kind of backend say."""
    out: list[str] = []
    for message in body.get("input") or body.get("messages") or body["contents"]:
        content = message.get("content") or message.get("parts") or []
        out += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return [text for text in out if text]


@pytest.mark.parametrize("kind", NAMES)
def test_a_history_that_fills_its_window_is_summarised(kind: Name) -> None:
    async def main() -> None:
        first = turn(Calls("c1", "look", '{"path":"a"}'), kind=kind, tokens=FULL)
        others = [turn(Says("We looked at a."), kind=kind), turn(Says("done"), kind=kind)]
        async with Far(first, *others, kind=kind) as far:
            agent = agent_on(far, echo(), config=WINDOW)
            events = await worked(agent, "Look at a")
            assert ended(events).text == "done"
            summing, last = (asked.body for asked in far.asked[1:])
            assert texts_of(summing)[-1].startswith("Summarise this conversation")
            assert "tools" not in summing or summing["tool_choice"] == {"type": "none"}
            assert texts_of(last)[0].startswith("Summary of the conversation so far:\n\nWe looked at a.")
            assert "Look at a" in texts_of(last)[1]
            assert "saw a" in far.posted[2].decode(), "the call of this task is kept, with its result"
            [compacted] = only(events, Compacted)
            assert (compacted.before, compacted.after) == (3, 4)
            assert_whole(agent.session.history)
            assert len(only(events, TurnStarted)) == 2

    play(main())


def test_pairs_stay_whole_when_all_of_a_task_is_summarised() -> None:
    async def main() -> None:
        first = turn(*(Calls(f"c{n}", "look", json.dumps({"path": "x" * 400})) for n in range(3)), tokens=FULL)
        async with Far(first, turn(Says("All of it.")), turn(Says("done"))) as far:
            agent = agent_on(far, echo(), config=WINDOW)
            events = await worked(agent)
            assert types_of(far.inputs[2]) == ["message", "message"]
            assert_paired(far.inputs[1])
            assert_whole(agent.session.history)
            assert ended(events).reason == "done"

    play(main())


def test_a_summary_counts_as_used() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look"), tokens=FULL), turn(Says("Sum.")), turn(Says("done"))) as far:
            events = await worked(agent_on(far, echo(), config=WINDOW))
            assert ended(events).usage == Tokens(920, 72)

    play(main())


@pytest.mark.parametrize(
    ("config", "requests"),
    [
        pytest.param(AgentConfig(context_window=0), 2, id="no window is known"),
        pytest.param(AgentConfig(context_window=2000), 2, id="there is room"),
        pytest.param(AgentConfig(context_window=2000, compact_at=0.4), 3, id="at a smaller share"),
    ],
)
def test_when_a_history_is_summarised(config: AgentConfig, requests: int) -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look"), tokens=FULL), turn(Says("Sum.")), turn(Says("done"))) as far:
            await worked(agent_on(far, echo(), config=config))
            assert len(far.asked) == requests

    play(main())


def test_a_server_that_compacts_by_itself_is_asked_to() -> None:
    async def main() -> None:
        made = {"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"}
        summary = streams(created(), item_done(made), completed())
        async with Far(turn(Calls("c1", "look"), tokens=FULL), summary, turn(Says("done"))) as far:
            settings = Settings(backends=(Backend("up", "responses", base_url=far.url, profile={"compacts": True}),))
            agent = runner_on("up/m", tools=[echo()], settings=settings, config=WINDOW)
            events = await worked(agent)
            assert ended(events).text == "done"
            assert far.inputs[1][-1] == {"type": "compaction_trigger"}
            assert types_of(far.inputs[2])[:2] == ["compaction", "message"]
            assert far.inputs[2][0]["encrypted_content"] == "opaque"
            assert_paired(far.inputs[2])

    play(main())


def test_a_server_that_should_compact_and_does_not_ends_the_task() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look"), tokens=FULL), turn(Says("Sum."))) as far:
            settings = Settings(backends=(Backend("up", "responses", base_url=far.url, profile={"compacts": True}),))
            agent = runner_on("up/m", tools=[echo()], settings=settings, config=WINDOW)
            done = ended(await worked(agent))
            assert (done.reason, done.error) == ("failed", "The model gave no summary of the conversation.")
            assert len(agent.session.history) == 3

    play(main())


NO_SUMMARY: dict[str, tuple[Callable[[], Reply], str]] = {
    "it is refused": (lambda: refuses(400, "Too long."), "Too long."),
    "it is empty": (turn, "The model gave no summary to compact with."),
    "it is a call": (lambda: turn(Calls("c9", "look")), "The model gave no summary to compact with."),
    "it breaks": (lambda: turn(Says("Su"), end="cut"), "stream ended before the turn did."),
}


@pytest.mark.parametrize(("summary", "error"), NO_SUMMARY.values(), ids=NO_SUMMARY)
def test_a_history_that_cannot_be_summarised_stays_as_it_is(summary: Callable[[], Reply], error: str) -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look"), tokens=FULL), summary(), turn(Says("on"))) as far:
            agent = agent_on(far, echo(), config=WINDOW)
            async with agent:
                events = [event async for event in agent.stream("go")]
                assert ended(events).reason == "failed"
                assert ended(events).error.endswith(error)
                assert only(events, Compacted) == []
                assert len(agent.session.history) == 3
                assert_whole(agent.session.history)

    play(main())


@pytest.mark.parametrize("failure", ["busy", "cut"])
def test_a_summary_that_fails_for_a_moment_is_asked_for_again(failure: str) -> None:
    async def main() -> None:
        fails = refuses(503, "Later.", retry_after="0") if failure == "busy" else turn(Says("Su"), end="cut")
        async with Far(turn(Calls("c1", "look"), tokens=FULL), fails, turn(Says("Sum.")), turn(Says("done"))) as far:
            config = msgspec.structs.replace(WINDOW, retries=1)
            events = await worked(agent_on(far, echo(), config=config))
            assert ended(events).text == "done"
            assert len(only(events, Retrying)) == 1

    play(main())


def test_a_history_that_the_last_task_filled_is_summarised_first() -> None:
    async def main() -> None:
        async with Far(turn(Says("long"), tokens=FULL), turn(Says("Sum.")), turn(Says("done"))) as far:
            agent = agent_on(far, config=WINDOW)
            async with agent:
                await end_of(agent, "first")
                events = [event async for event in agent.stream("second")]
            assert len(only(events, Compacted)) == 1
            assert texts_of(far.asked[2].body)[-1] == "second"

    play(main())


# Reading the stream


async def on_a_model(far: Far, *tools: Tool, idle: float, retries: int = 0) -> list[AgentEvent]:
    """What a loop tells whose model has this patience."""
    model = Model(far.settings, "up/m", idle=idle)
    await model.open()
    try:
        task = engine(model, *tools, config=AgentConfig(retries=retries))
        working = asyncio.create_task(task.run(task.work))
        events = [event async for event in task.events]
        await working
        return events
    finally:
        await model.close()


SILENCES: dict[str, list[Step]] = {
    "nothing": [Hold()],
    "comments": [Drip(b": keepalive\n\n", 0.02)],
    "unknown events": [Drip(sse({"type": "ping"}), 0.02)],
    "half an event": [b'data: {"type":"response.output_text.delta"', Hold()],
}


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES)
def test_a_stream_that_says_nothing_for_too_long_is_an_error(silence: list[Step]) -> None:
    async def main() -> None:
        async with Far(streams(created(), said("hal"), *silence)) as far:
            events = await on_a_model(far, idle=0.1)
            assert ended(events).reason == "failed"
            assert "too slow" in ended(events).error
            await far.gone.wait()

    play(main())


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES)
def test_a_stream_that_says_nothing_for_too_long_is_asked_for_again(silence: list[Step]) -> None:
    async def main() -> None:
        async with Far(streams(created(), LOOKED, said("hal"), *silence), turn(Says("whole"))) as far:
            events = await on_a_model(far, echo(), idle=0.1, retries=1)
            assert ended(events).text == "whole"
            assert len(only(events, Retrying)) == 1
            assert outputs_of(far.inputs[1]) == {"c0": "saw "}

    play(main())


SLOW: dict[str, tuple[Timeouts, list[Step]]] = {
    "first_byte": (Timeouts(first_byte=0.1), [Hold()]),
    "idle": (Timeouts(idle=0.1), [created(), said("hal"), Hold()]),
    "progress": (Timeouts(progress=0.2), [created(), said("hal"), Drip(b": keepalive\n\n", 0.02)]),
    "total": (Timeouts(total=0.3), [created(), Drip(said("hal"), 0.02)]),
}


@pytest.mark.parametrize("name", SLOW)
def test_the_timeouts_of_the_settings_hold(name: str) -> None:
    async def main() -> None:
        timeouts, steps = SLOW[name]
        async with Far(streams(*steps)) as far:
            settings = msgspec.structs.replace(far.settings, timeouts=timeouts)
            done = ended(await worked(runner_on("up/m", settings=settings, config=AgentConfig(retries=0))))
            assert done.reason == "failed"
            assert f"timeouts.{name} of " in done.error

    play(main())


def test_an_idle_time_of_the_set_up_wins() -> None:
    async def main() -> None:
        async with Far(streams(created(), said("hal"), Hold())) as far:
            settings = msgspec.structs.replace(far.settings, timeouts=Timeouts(idle=1000))
            done = ended(await worked(runner_on("up/m", settings=settings, config=AgentConfig(retries=0, idle=0.1))))
            assert done.error.endswith(" was too slow: idle of 0.1 seconds has passed.")

    play(main())


def test_an_idle_time_of_the_set_up_is_named_for_a_server_that_only_keeps_its_stream_alive_too() -> None:
    async def main() -> None:
        async with Far(streams(created(), said("hal"), Drip(b": keepalive\n\n", 0.02))) as far:
            config = AgentConfig(retries=0, idle=0.2)
            done = ended(await worked(runner_on("up/m", settings=far.settings, config=config)))
            assert done.error.endswith(" was too slow: idle of 0.2 seconds has passed.")

    play(main())


def test_the_other_timeouts_keep_their_names_beside_an_idle_time_of_the_set_up() -> None:
    async def main() -> None:
        async with Far(streams(created(), Drip(said("hal"), 0.02))) as far:
            settings = msgspec.structs.replace(far.settings, timeouts=Timeouts(total=0.3))
            done = ended(await worked(runner_on("up/m", settings=settings, config=AgentConfig(retries=0, idle=60))))
            assert "timeouts.total of 0.3 seconds" in done.error

    play(main())


def test_a_stream_may_go_on_for_longer_than_it_may_be_silent() -> None:
    async def main() -> None:
        delta = partial(rs, "function_call_arguments.delta", item_id="fc_1", output_index=0)
        opened = rs("output_item.added", output_index=0, item=call_item("c1", "look", ""))
        deltas = [delta(delta='{"path":"'), Drip(delta(delta="x"), 0.03, 34), delta(delta='"}')]
        done = item_done(call_item("c1", "look", json.dumps({"path": "x" * 34})))
        async with Far(streams(created(), opened, *deltas, done, completed()), turn(Says("ok"))) as far:
            assert ended(await on_a_model(far, echo(), idle=0.8)).text == "ok"

    play(main())


ODD_FRAMES: dict[str, bytes] = {
    "no json": b"data: {broken\n\n",
    "a keepalive as data": b"data: : keepalive\n\n",
    "an empty one": b"data:\n\n",
    "a comment": b": hello\n\n",
    "another type": sse({"type": "response.output_text.delta", "delta": 7, "item_id": "m", "output_index": 0}),
    "a list": b"data: [1]\n\n",
    "an item that is none": b'data: {"type":"response.output_item.done","item":"x"}\n\n',
    "an unknown one": sse({"type": "response.later.delta", "delta": "x"}),
    "one of nobody's": sse({"type": "codex.rate_limits", "x": {}}),
    "only a name": b"event: response.output_text.delta\n\n",
    "an id and a retry": b"id: 7\nretry: 10\n\n",
}


@pytest.mark.parametrize("odd", ODD_FRAMES.values(), ids=ODD_FRAMES)
def test_an_event_that_is_not_understood_is_skipped(odd: bytes) -> None:
    async def main() -> list[AgentEvent]:
        whole = [
            created(),
            odd,
            said("hel"),
            odd,
            said("lo"),
            odd,
            called("c1", "look", '{"path":', '"a"}', index=1),
            odd,
        ]
        async with Far(streams(*whole, completed()), turn(Says("done"))) as far:
            return await worked(agent_on(far, echo()))

    events = play(main())
    assert said_in(events) == "hellodone"
    assert [event.result for event in only(events, CallEnded)] == ["saw a"]
    assert ended(events).reason == "done"


def test_a_skipped_event_is_noted() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(streams(created(), b"data: {broken\n\n", said("hi"), completed())) as far:
            return await worked(agent_on(far))

    assert Noted("frame_skipped") in play(main())


INCOMPLETE: dict[str, Callable[[], Reply]] = {
    "nothing at all": streams,
    "no events": lambda: streams(b": hi\n\n"),
    "only the beginning": lambda: streams(created()),
    "half a text": lambda: streams(created(), said("hal")),
    "a call and no end": lambda: streams(created(), LOOKED),
    "half an end": lambda: streams(created(), said("all"), completed()[:-9]),
    "a cut": lambda: streams(created(), said("hal"), Cut()),
    "a web page": lambda: Reply([b"<html>busy</html>"], content_type="text/html"),
}


@pytest.mark.parametrize("reply", INCOMPLETE.values(), ids=INCOMPLETE)
def test_a_stream_that_closes_before_its_end_is_asked_for_again(reply: Callable[[], Reply]) -> None:
    async def main() -> None:
        async with Far(reply(), turn(Says("whole"))) as far:
            agent = agent_on(far, echo(), config=AgentConfig(retries=1))
            events = await worked(agent)
            assert len(only(events, Retrying)) == 1
            assert ended(events).text == "whole"
            assert_whole(agent.session.history)

    play(main())


def told(events: list[AgentEvent]) -> list[Any]:
    """What happened, with deltas joined and without times and ids: what does not depend on how the bytes came.

    Calls end and tools start when the loop gets to them, so only their own order counts.
    """
    out: list[Any] = []
    later: list[Any] = []
    for event in events:
        if isinstance(event, TaskStarted | Noted):
            continue
        if isinstance(event, ToolStarted | CallEnded):
            later.append((type(event), event.call_id, getattr(event, "result", "")))
        elif isinstance(event, ItemStarted | ItemCompleted):  # the ids of which we make are new each time
            out.append((type(event), event.kind))
        elif isinstance(event, TextDelta | ReasoningDelta):
            joins = out and isinstance(out[-1], type(event))
            before = out.pop().text if joins else ""
            out.append(msgspec.structs.replace(event, text=before + event.text, item_id=""))
        else:
            out.append(event)
    return [*out, *sorted(later, key=repr)]


@pytest.mark.parametrize("kind", NAMES)
def test_any_chunking_gives_the_same_events(kind: Name) -> None:
    items = (Thinks("Hm é", "S"), Says("Größe 🙂 \u2028"), Calls("c1", "look", '{"path":"ä🙂"}'), Calls("c2", "look"))
    data = b"".join(turn(*items, kind=kind, chars=3).steps)

    async def run(pieces: list[bytes]) -> list[Any]:
        async with Far(streams(*pieces), turn(Says("done"), kind=kind), kind=kind) as far:
            return told(await worked(agent_on(far, echo())))

    async def main() -> None:
        first, *others = [await run(pieces) for pieces in chunkings(data, tries=8)]
        for other in others:
            assert other == first
        assert (CallEnded, "c1", "saw ä🙂") in first

    play(main())


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"], ids=["CRLF", "CR"])
def test_any_line_ending_gives_the_same_events(ending: bytes) -> None:
    data = b"".join(turn(Says("hello"), Calls("c1", "look")).steps).replace(b"\n", ending)

    async def main() -> None:
        for pieces in [[data], [data[index : index + 1] for index in range(len(data))]]:
            async with Far(streams(*pieces), turn(Says("done"))) as far:
                events = await worked(agent_on(far, echo()))
                assert said_in(events) == "hellodone"
                assert [event.result for event in only(events, CallEnded)] == ["saw "]

    play(main())


# The museum, where an engine is the client

Case = Callable[[], Awaitable[None]]
MUSEUM: dict[str, Case] = {}


def row(slug: str) -> Callable[[Case], Case]:
    def add(case: Case) -> Case:
        MUSEUM[slug] = case
        return case

    return add


async def after(
    reply: Reply, *tools: Tool, kind: Name = "responses", retries: int = 0
) -> tuple[list[AgentEvent], Far, Runner]:
    """What happens after this reply, when the next one says `done`."""
    async with Far(reply, turn(Says("done"), kind=kind), kind=kind) as far:
        agent = agent_on(far, *(tools or (echo(),)), config=AgentConfig(retries=retries))
        events = await worked(agent)
        assert_whole(agent.session.history)
        return events, far, agent


def results_of(events: list[AgentEvent]) -> list[str]:
    return [event.result for event in only(events, CallEnded)]


def chunk(finish: str | None = None, usage: Json | None = None, **delta: Any) -> bytes:
    body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": usage}
    return frame("", {**body, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def chat_call(index: int, id: str | None, name: str | None, arguments: str) -> Json:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def event(type: str, **fields: Any) -> bytes:
    return frame(type, {"type": type, **fields})


@row("err-silent-trunc")
async def _() -> None:
    async with Far(streams(created(), said("Looks comp"))) as far:
        done = ended(await worked(agent_on(far)))
    assert (done.reason, done.text) == ("failed", "")


@row("err-inband-ignored")
async def _() -> None:
    broken = [event("message_start", message={"id": "m", "role": "assistant", "content": [], "usage": {}})]
    broken += [event("error", error={"type": "overloaded_error", "message": "Overloaded"})]
    async with Far(streams(*broken), kind="messages") as far:
        done = ended(await worked(agent_on(far)))
    assert (done.reason, done.error) == ("failed", "Overloaded")


@row("err-bare-json")
async def _() -> None:
    async with Far(streams(b'{"error":{"message":"Out of memory","type":"server_error"}}'), kind="chat") as far:
        done = ended(await worked(agent_on(far)))
    assert done.reason == "failed"
    assert "Out of memory" in done.error


@row("sse-dup-lifecycle")
async def _() -> None:
    events, _, agent = await after(streams(created(), said("do"), Cut()), retries=1)
    assert ended(events).text == "done"
    assert len(agent.session.history) == 2


@row("rs-item-done-missing")
async def _() -> None:
    whole = called("c1", "look", '{"path":', '"a"}').partition(b"event: response.output_item.done")[0]
    events, _, _ = await after(streams(created(), whole, completed()))
    assert results_of(events) == ["saw a"]


@row("rs-upstream-empty")
async def _() -> None:
    events, far, _ = await after(streams(created(), called("c1", "look", "{}"), completed([])))
    assert results_of(events) == ["saw "]
    assert types_of(far.inputs[1]) == ["message", "function_call", "function_call_output"]


@row("args-delta-plus-done")
async def _() -> None:
    item = call_item("c1", "look", '{"path":"a"}', "fc_c1", status="completed")
    reply = streams(created(), called("c1", "look", '{"path"', ':"a"}'), completed([item]))
    events, far, _ = await after(reply)
    assert results_of(events) == ["saw a"]
    assert far.inputs[1][1]["arguments"] == '{"path":"a"}'


@row("args-empty-string")
async def _() -> None:
    events, far, _ = await after(streams(created(), called("c1", "look"), completed()))
    assert results_of(events) == ["saw "]
    assert far.inputs[1][1]["arguments"] == "{}"


@row("args-empty-drop")
async def _() -> None:
    events, _, _ = await after(turn(Calls("c1", "look", ""), kind="messages"), kind="messages")
    assert results_of(events) == ["saw "]


@row("args-as-object")
async def _() -> None:
    item = {**call_item("c1", "look", ""), "arguments": {"path": "a"}}
    events, _, _ = await after(streams(created(), item_done(item), completed()))
    assert results_of(events) == ["saw a"]


@row("args-malformed-eager")
async def _() -> None:
    events, far, _ = await after(streams(created(), called("c1", "look", '{"path":"a'), completed()))
    assert results_of(events)[0].startswith("failed to parse function arguments")
    assert far.inputs[1][1]["arguments"] == '{"path":"a'


@pytest.mark.parametrize("kind", TEXTUAL)
def test_a_call_with_two_different_sets_of_arguments_is_asked_for_again(kind: Name) -> None:
    async def main() -> None:
        events, far, _ = await after(turn(Calls("c1", "look", '{"path":"a"}{}'), kind=kind), kind=kind, retries=1)
        assert (results_of(events), ended(events).text, len(far.asked)) == ([], "done", 2)

    play(main())


@pytest.mark.parametrize("text", ["{path: a", "{'path': 'a'}", '{"path": "a",}', '{"path": "a"} x'])
@pytest.mark.parametrize("kind", TEXTUAL)
def test_arguments_that_are_no_json_are_told_to_the_model(kind: Name, text: str) -> None:
    async def main() -> None:
        events, _, agent = await after(turn(Calls("c1", "look", text), kind=kind), kind=kind)
        assert results_of(events)[0].startswith("failed to parse function arguments")
        assert ended(events).text == "done"
        assert_whole(agent.session.history)

    play(main())


def _cut_at_length(kind: Name) -> Case:
    async def case() -> None:
        cut = turn(
            Calls("c1", "look", '{"path":"a"}'), Calls("c2", "look", '{"path":"', whole=False), kind=kind, end="length"
        )
        async with Far(cut, turn(Says("done"), kind=kind), kind=kind) as far:
            events = await worked(agent_on(far, echo()))
            assert results_of(events) == ["saw a"]

    return case


for _kind in NAMES:
    MUSEUM[f"fin-length-hidden-{_kind}"] = _cut_at_length(_kind)


@row("fin-stop")
async def _() -> None:
    reply = streams(
        chunk(role="assistant", tool_calls=[chat_call(0, "c1", "look", "{}")]), chunk("stop"), b"data: [DONE]\n\n"
    )
    events, _, _ = await after(reply, kind="chat")
    assert results_of(events) == ["saw "]
    assert ended(events).text == "done"


@row("fin-absent")
async def _() -> None:
    async with Far(streams(chunk(content="hi"), b"data: [DONE]\n\n"), kind="chat") as far:
        assert ended(await worked(agent_on(far))).text == "hi"


@row("fin-tooluse-noblock")
async def _() -> None:
    whole = b"".join(turn(Says("hi"), kind="messages").steps).replace(b'"end_turn"', b'"tool_use"')
    async with Far(streams(whole), kind="messages") as far:
        done = ended(await worked(agent_on(far, echo())))
        assert (done.reason, done.text) == ("done", "hi")
        assert len(far.asked) == 1


@row("fin-unknown-reason")
async def _() -> None:
    whole = b"".join(turn(Calls("c1", "look"), kind="messages").steps).replace(
        b'"tool_use","stop_seq', b'"later","stop_seq'
    )
    assert b'"later"' in whole
    events, _, _ = await after(streams(whole), kind="messages")
    assert results_of(events) == ["saw "]


@row("par-dedup-legit")
async def _() -> None:
    events, far, _ = await after(turn(Calls("c1", "look"), Calls("c2", "look")))
    assert results_of(events) == ["saw ", "saw "]
    assert list(outputs_of(far.inputs[1])) == ["c1", "c2"]


@row("hx-dup-ids")
async def _() -> None:
    items = [call_item("same", "look", json.dumps({"path": path}), f"fc_{path}") for path in "ab"]
    events, far, _ = await after(streams(created(), *(item_done(item, n) for n, item in enumerate(items)), completed()))
    assert sorted(results_of(events)) == ["saw a", "saw b"]
    assert list(outputs_of(far.inputs[1]).values()) == ["saw a", "saw b"]
    assert_paired(far.inputs[1])


@row("am-blocks-open-at-once")
async def _() -> None:
    def event(type: str, **fields: Any) -> bytes:
        return sse({"type": type, **fields})

    def start(index: int, id: str) -> bytes:
        block = {"type": "tool_use", "id": id, "name": "look", "input": {}}
        return event("content_block_start", index=index, content_block=block)

    def piece(index: int, text: str) -> bytes:
        return event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": text})

    reply = streams(
        event("message_start", message={"id": "msg_1", "model": "m", "content": []}),
        start(0, "c1"),
        start(1, "c2"),
        piece(0, '{"path":'),
        piece(1, '{"path":'),
        piece(0, '"a"}'),
        piece(1, '"b"}'),
        event("content_block_stop", index=0),
        event("content_block_stop", index=1),
        event("message_delta", delta={"stop_reason": "tool_use"}),
        event("message_stop"),
    )
    events, far, _ = await after(reply, kind="messages")
    assert sorted(results_of(events)) == ["saw a", "saw b"]
    *_, results = far.asked[1].body["messages"]
    assert [(each["tool_use_id"], each["content"]) for each in results["content"]] == [("c1", "saw a"), ("c2", "saw b")]


@row("id-of-the-item-alone")
async def _() -> None:
    item = {"type": "function_call", "id": "fc_1", "name": "look", "arguments": '{"path":"a"}', "status": "completed"}
    for given in (item, {**item, "call_id": None}, {**item, "call_id": ""}):
        events, far, _ = await after(streams(created(), item_done(given), completed([given])))
        assert results_of(events) == ["saw a"]
        _, call, output = far.inputs[1]
        assert call["call_id"] == output["call_id"] != ""
        assert_paired(far.inputs[1])


@row("id-changes-in-an-item")
async def _() -> None:
    first, last = (call_item(id, "look", text, "fc_1") for id, text in (("c1", ""), ("c2", '{"path":"a"}')))
    begun = rs("output_item.added", output_index=0, item=first)
    events, far, _ = await after(streams(created(), begun, item_done(last), completed([last])))
    assert results_of(events) == ["saw a"]
    assert outputs_of(far.inputs[1]) == {"c1": "saw a"}
    assert_paired(far.inputs[1])


@row("id-in-every-fragment")
async def _() -> None:
    pieces = ('{"pa', 'th":', '"a"}')
    parts = [chat_call(0, f"c{count}", None if count else "look", text) for count, text in enumerate(pieces)]
    reply = streams(*(chunk(tool_calls=[each]) for each in parts), chunk("tool_calls"), b"data: [DONE]\n\n")
    events, _, _ = await after(reply, kind="chat")
    assert results_of(events) == ["saw a"]


@row("id-of-two-equal-calls")
async def _() -> None:
    whole = turn(Calls("c1", "look", '{"path":"a"}'), Calls("c2", "look", '{"path":"b"}'), kind="messages").steps
    reply = streams(b"".join(step for step in whole if isinstance(step, bytes)).replace(b'"c2"', b'"c1"'))
    events, far, _ = await after(reply, kind="messages")
    assert sorted(results_of(events)) == ["saw a", "saw b"]
    *_, said, results = far.asked[1].body["messages"]
    paths = {each["id"]: each["input"]["path"] for each in said["content"] if each["type"] == "tool_use"}
    assert len(paths) == 2
    assert {each["tool_use_id"]: each["content"] for each in results["content"]} == {
        id: f"saw {path}" for id, path in paths.items()
    }


@row("hx-id-reused-in-the-next-turn")
async def _() -> None:
    replies = [turn(Calls("call_1", "look", json.dumps({"path": path}))) for path in "ab"]
    async with Far(*replies, turn(Says("done"))) as far:
        events = await worked(agent_on(far, echo()))
        assert results_of(events) == ["saw a", "saw b"]
        assert [item["output"] for item in far.inputs[2] if "output" in item] == ["saw a", "saw b"]
        assert_paired(far.inputs[2])


@row("id-never")
async def _() -> None:
    calls = [chat_call(index, None, "look", json.dumps({"path": path})) for index, path in enumerate("ab")]
    reply = streams(chunk(role="assistant", tool_calls=calls), chunk("tool_calls"), b"data: [DONE]\n\n")
    events, far, _ = await after(reply, kind="chat")
    assert sorted(results_of(events)) == ["saw a", "saw b"]
    messages = far.asked[1].body["messages"]
    assert [call["id"] for call in messages[1]["tool_calls"]] == [each["tool_call_id"] for each in messages[2:]]


@row("par-sameidx-newid")
async def _() -> None:
    parts = [chunk(tool_calls=[chat_call(0, id, "look", json.dumps({"path": id}))]) for id in "ab"]
    events, _, _ = await after(streams(*parts, chunk("tool_calls"), b"data: [DONE]\n\n"), kind="chat")
    assert sorted(results_of(events)) == ["saw a", "saw b"]


@row("par-interleave")
async def _() -> None:
    parts = [
        chunk(tool_calls=[chat_call(0, "c1", "look", '{"path":')]),
        chunk(tool_calls=[chat_call(1, "c2", "look", '{"path":')]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '"a"}'}}]),
        chunk(tool_calls=[{"index": 1, "function": {"arguments": '"b"}'}}]),
    ]
    events, _, _ = await after(streams(*parts, chunk("tool_calls"), b"data: [DONE]\n\n"), kind="chat")
    assert sorted(results_of(events)) == ["saw a", "saw b"]


@row("choices-absent")
async def _() -> None:
    last = frame("", {"id": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}})
    async with Far(streams(chunk(content="hi"), chunk("stop"), last, b"data: [DONE]\n\n"), kind="chat") as far:
        assert ended(await worked(agent_on(far))).usage == Tokens(3, 1)


@row("use-combined-chunk")
async def _() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    async with Far(streams(chunk("stop", usage, content="hi"), b"data: [DONE]\n\n"), kind="chat") as far:
        assert ended(await worked(agent_on(far))) == TaskEnded("done", "hi", Tokens(3, 1))


@row("am-usage-null")
async def _() -> None:
    whole = b"".join(turn(Says("hi"), kind="messages").steps)
    whole = re.sub(rb'"usage":\{.*?\}\}', b'"usage":null', whole)
    assert b'"usage":null' in whole
    async with Far(streams(whole), kind="messages") as far:
        assert ended(await worked(agent_on(far))).text == "hi"


@row("sse-nonjson")
async def _() -> None:
    async with Far(streams(b"Internal Server Error")) as far:
        assert ended(await worked(agent_on(far))).reason == "failed"


@row("sse-nonstream-to-stream")
async def _() -> None:
    body = {"id": "r", "status": "completed", "output": [call_item("c1", "look", "{}")]}
    events, _, _ = await after(Reply([json.dumps(body).encode()], content_type="application/json"))
    assert results_of(events) == ["saw "]


@row("sse-done-json")
async def _() -> None:
    async with Far(streams(created(), said("[DONE]"), completed(), b"data: [DONE]\n\n")) as far:
        assert ended(await worked(agent_on(far))).text == "[DONE]"


@row("uni-surrogate")
async def _() -> None:
    halves = [b'"delta":"{\\"path\\":\\"\\ud83d"', b'"delta":"\\ude00\\"}"']
    deltas = [
        b'data: {"type":"response.function_call_arguments.delta","item_id":"fc_1","output_index":0,%b}\n\n' % half
        for half in halves
    ]
    opened = rs("output_item.added", output_index=0, item=call_item("c1", "look", ""))
    done = item_done(call_item("c1", "look", '{"path":"\U0001f600"}'))
    events, _, _ = await after(streams(created(), opened, *deltas, done, completed()))
    assert results_of(events) == ["saw \U0001f600"]


@row("rz-reasoning-alone")
async def _() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"}
    _, far, _ = await after(streams(created(), item_done(thought), said("hal", index=1), Cut()), retries=1)
    assert types_of(far.inputs[1]) == ["message"]


@row("sec-text-scope")
async def _() -> None:
    @tool
    async def fetch() -> str:
        return '<tool_call>{"name":"look","arguments":{}}</tool_call><use_tool><name>look</name></use_tool>'

    events, far, _ = await after(turn(Calls("c1", "fetch")), fetch, echo())
    assert [event.name for event in only(events, CallEnded)] == ["fetch"]
    assert len(far.asked) == 2


@row("rs-unknown-input")
async def _() -> None:
    later = {"type": "tool_search_call", "id": "ts_1", "call_id": "x", "status": "completed", "arguments": {}}
    events, far, _ = await after(
        streams(created(), item_done(later), item_done(call_item("c1", "look", "{}"), 1), completed())
    )
    assert far.inputs[1][1] == later
    assert results_of(events) == ["saw "]


@row("err-disconnect-mid")
async def _() -> None:
    async with Far(streams(created(), said("hal"), Hold())) as far, agent_on(far) as agent:
        async with aclosing(agent.stream("go")) as stream:  # type: ignore[type-var]
            async for each in stream:
                if isinstance(each, TextDelta):
                    break
        await far.gone.wait()


@pytest.mark.parametrize("slug", MUSEUM)
def test_museum(slug: str) -> None:
    play(MUSEUM[slug]())


@pytest.mark.parametrize("kind", NAMES)
def test_a_call_that_was_cut_leaves_a_whole_history(kind: Name) -> None:
    async def main() -> None:
        cut = turn(Says("I look"), Calls("c1", "look", '{"path":"', whole=False), kind=kind, end="length")
        async with Far(cut, turn(Says("on"), kind=kind), kind=kind) as far:
            async with agent_on(far, echo()) as agent:
                done = await end_of(agent, "go")
                assert (done.reason, done.text) == ("length", "I look")
                assert_whole(agent.session.history)
                assert (await end_of(agent, "go on")).text == "on"

    play(main())


@pytest.mark.parametrize("kind", TEXTUAL)
def test_a_call_with_a_lost_frame_in_it_is_not_run(kind: Name) -> None:
    async def main() -> None:
        arguments = '{"path":"/one/two/three/four/five"}'
        told = Script((Calls("c1", "look", arguments),), chars=3)
        frames = [each.replace(json.dumps(arguments).encode(), b'""') for each in STREAMED[kind](told)]
        pieces = [index for index, each in enumerate(frames) if b'"arguments"' in each or b'"delta"' in each]
        middle = pieces[len(pieces) // 2]
        frames[middle] = frames[middle][:60] + b"\n\n"
        async with Far(streams(*frames), kind=kind) as far:
            events = await worked(agent_on(far, echo(), config=AgentConfig(retries=0)))
            assert ended(events).reason == "failed"
            assert only(events, CallStarted) == []

    play(main())


def test_a_call_that_is_incomplete_is_not_run() -> None:
    async def main() -> None:
        opened = rs("output_item.added", output_index=0, item=call_item("c1", "look", ""))
        delta = rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"path":"')
        hole = item_done(call_item("c1", "look", '{"path":"', status="incomplete"))
        async with Far(streams(created(), opened, delta, hole, completed())) as far:
            agent = agent_on(far, echo())
            events = await worked(agent)
            assert ended(events).reason == "length"
            assert only(events, CallStarted) == []
            assert only(events, Noted) == [Noted("call_incomplete", "c1")]
            assert_whole(agent.session.history)

    play(main())


@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_a_call_that_lost_a_frame_is_not_run_and_asked_for_again(kind: Name) -> None:
    calls = (Calls("c1", "look", '{"path":"abcdefghijklmnop"}'),)
    data = b"".join(step for step in turn(*calls, kind=kind, chars=3).steps if isinstance(step, bytes))
    blocks = data.split(b"\n\n")
    index = next(index for index, block in enumerate(blocks) if b"efg" in block or b"fgh" in block or b"ghi" in block)
    blocks[index] = b"data: {broken"

    async def main() -> None:
        broken = streams(b"\n\n".join(blocks))
        async with Far(broken, turn(*calls, kind=kind), turn(Says("done"), kind=kind), kind=kind) as far:
            agent = agent_on(far, echo(), config=AgentConfig(retries=1))
            events = await worked(agent)
            assert ended(events).text == "done"
            assert len(only(events, Retrying)) == 1
            assert [event.result for event in only(events, CallEnded)] == ["saw abcdefghijklmnop"]
            assert_whole(agent.session.history)

    play(main())


# Whoever watches


def test_items_and_their_parts_are_told() -> None:
    summary = partial(rs, "reasoning_summary_text.delta", item_id="rs_1", output_index=0)
    content = partial(rs, "reasoning_text.delta", item_id="rs_1", output_index=0)
    thought = {
        "type": "reasoning", "id": "rs_1", "encrypted_content": "S",
        "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}],
        "content": [{"type": "reasoning_text", "text": "raw"}],
    }  # fmt: skip
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    shell = {"type": "local_shell_call", "id": "ls_1", "call_id": "c8", "status": "completed", "action": {}}
    answer = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}

    async def main() -> list[AgentEvent]:
        first = streams(
            created("resp_7"),
            summary(summary_index=0, delta="one"),
            summary(summary_index=1, delta="two"),
            content(content_index=0, delta="raw"),
            item_done(thought, 0),
            rs("output_item.added", output_index=1, item={**search, "status": "in_progress"}),
            item_done(search, 1),
            said("Hi", index=2),
            item_done(answer, 2),
            item_done(shell, 3),
            item_done(call_item("c1", "look", "{}", "fc_4"), 4),
            completed(),
        )
        async with Far(first, turn(Says("done"))) as far:
            return await worked(agent_on(far, echo()))

    events = play(main())
    kinds = (ItemStarted, ItemCompleted, ReasoningDelta, TextDelta, CallStarted, ResponseCreated)
    seen = [event for event in events if isinstance(event, kinds)]
    whole = {event.item_id: event for event in only(events, ItemCompleted)}
    assert seen[1:13] == [
        ItemStarted("rs_1", "reasoning"),
        ReasoningDelta("one", "rs_1", "summary", 0),
        ReasoningDelta("two", "rs_1", "summary", 1),
        ReasoningDelta("raw", "rs_1", "content", 0),
        whole["rs_1"],
        ItemStarted("ws_1", "web_search_call"),
        whole["ws_1"],
        ItemStarted("msg_1", "message"),
        TextDelta("Hi", "msg_1", 0),
        whole["msg_1"],
        CallStarted("c8", "local_shell", seen[11].arguments),  # type: ignore[union-attr]
        CallStarted("c1", "look", "{}"),
    ]
    assert [each.kind for each in whole.values()][:3] == ["reasoning", "web_search_call", "message"]
    lines = [json.loads(as_line(event))["item"] for event in whole.values()]
    assert lines[0]["encrypted_content"] == "S"
    assert lines[1] == search
    assert only(events, ResponseCreated)[0].response_id == only(events, TurnEnded)[0].response_id == "resp_7"


@pytest.mark.parametrize("kind", NAMES)
def test_every_backend_tells_of_its_items(kind: Name) -> None:
    async def main() -> list[AgentEvent]:
        items = (Thinks("hm", "S"), Says("I look"), Calls("c1", "look"))
        async with Far(turn(*items, kind=kind), turn(Says("done"), kind=kind), kind=kind) as far:
            return await worked(agent_on(far, echo()))

    events = play(main())
    started, complete = only(events, ItemStarted), only(events, ItemCompleted)
    assert [event.kind for event in started] == ["reasoning", "message", "message"]
    assert [(event.item_id, event.kind) for event in complete] == [(event.item_id, event.kind) for event in started]
    assert {event.item_id for event in only(events, ReasoningDelta)} == {started[0].item_id}
    assert {event.item_id for event in only(events, TextDelta)} == {started[1].item_id, started[2].item_id}
    names = [event.response_id for event in only(events, ResponseCreated)]
    assert all(names)
    assert [event.response_id for event in only(events, TurnEnded)] == names


def test_an_item_that_breaks_off_is_never_complete() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(streams(created(), said("I lo")), turn(Says("done"))) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=1)))

    events = play(main())
    assert len(only(events, ItemStarted)) == 2
    [whole] = only(events, ItemCompleted)
    assert json.loads(bytes(whole.item))["content"][0]["text"] == "done"


def test_a_feed_gives_everything_in_order_to_its_end() -> None:
    async def main() -> None:
        feed = EventQueue()
        sent: list[AgentEvent] = [TextDelta(str(number)) for number in range(5)]
        for each in sent:
            feed.put(each)
        feed.put(TaskEnded("done", "", Tokens()))
        assert [each async for each in feed][:5] == sent

    play(main())


def test_a_feed_that_is_full_makes_the_stream_wait_until_something_is_taken() -> None:
    async def main() -> None:
        feed = EventQueue()
        for number in range(MAX_QUEUED_EVENTS):
            feed.put(TextDelta(str(number)))
        waiting = asyncio.create_task(feed.wait_for_room())
        await settle()
        assert not waiting.done()
        events = feed.__aiter__()
        await anext(events)
        await settle()
        assert waiting.done()
        feed.put(TaskEnded("done", "", Tokens()))
        assert len([each async for each in events]) == MAX_QUEUED_EVENTS

    play(main())


def test_a_slow_watcher_slows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwire.agent.task.MAX_QUEUED_EVENTS", 8)

    async def main() -> None:
        held, sent = Held(), asyncio.Event()
        held.may_end("a").set()
        deltas = [
            delta
            for _ in range(20)
            for delta in (
                said("x"),
                rs("reasoning_summary_text.delta", item_id="r", output_index=1, summary_index=0, delta="y"),
            )
        ]
        first = streams(created(), *deltas, sent, work("a", 2), completed())
        async with Far(first, turn(Says("done"))) as far, agent_on(far, held.tool) as agent:
            async with aclosing(agent.stream("go")) as stream:  # type: ignore[type-var]
                await anext(stream)
                await settle(200)
                sent.set()
                await asyncio.sleep(0.05)
                assert held.log == [], "the call has come, and nobody has read so far"
                events = [each async for each in stream]
            assert held.log == ["begin a", "end a"]
            assert said_in(events) == "x" * 20 + "done"

    play(main())


def test_output_that_nobody_takes_is_left_out_and_the_result_is_whole() -> None:
    async def main() -> None:
        pieces = 3 * MAX_QUEUED_EVENTS
        finished = asyncio.Event()

        @tool
        async def loud(context: Context) -> str:
            for number in range(pieces):
                context.emit(f"{number} ")
            finished.set()
            return "".join(f"{number} " for number in range(pieces))

        async with Far(turn(Calls("c1", "loud")), turn(Says("done"))) as far, agent_on(far, loud) as agent:
            async with aclosing(agent.stream("go")) as stream:  # type: ignore[type-var]
                events = [await anext(stream)]
                await finished.wait()
                events += [each async for each in stream]
            shown = only(events, ToolOutput)
            assert 0 < len(shown) <= 2 * MAX_QUEUED_EVENTS
            assert [each.text for each in shown] == [f"{number} " for number in range(len(shown))]
            assert len(results_of(events)[0].split()) == pieces
            assert ended(events).text == "done"

    play(main())


def test_output_of_a_running_tool_is_told_as_it_comes() -> None:
    async def main() -> None:
        go = asyncio.Event()

        @tool
        async def loud(context: Context) -> str:
            context.emit("one")
            await go.wait()
            context.emit("two")
            return "all"

        async with Far(turn(Calls("c1", "loud")), turn(Says("done"))) as far, agent_on(far, loud) as agent:
            async with Watcher(agent) as watcher:
                assert await watcher.sees(ToolOutput) == ToolOutput("c1", "one")
                assert only(watcher.events, CallEnded) == []
                go.set()
                await watcher.end()
            assert [each.text for each in only(watcher.events, ToolOutput)] == ["one", "two"]

    play(main())


def test_what_a_thread_puts_out_is_told_too() -> None:
    @tool
    def loud(context: Context) -> str:
        for number in range(50):
            context.emit(str(number))
        return "all"

    async def main() -> list[AgentEvent]:
        async with Far(turn(Calls("c1", "loud")), turn(Says("done"))) as far:
            return await worked(agent_on(far, loud))

    events = play(main())
    assert [each.text for each in only(events, ToolOutput)] == [str(number) for number in range(50)]


def test_what_a_thread_puts_out_is_told_while_it_runs() -> None:
    seen = threading.Event()

    @tool
    def loud(context: Context) -> str:
        time.sleep(0.12)  # until nothing else wakes the loop
        context.emit("one")
        return "seen" if seen.wait(60) else "not seen"

    async def main() -> list[AgentEvent]:
        async with Far(turn(Calls("c1", "loud")), turn(Says("done"))) as far, agent_on(far, loud) as agent:
            async with Watcher(agent) as watcher:
                await watcher.sees(ToolOutput)
                seen.set()
                await watcher.end()
            return watcher.events

    assert results_of(play(main())) == ["seen"]


def test_a_task_is_stopped_while_it_waits_for_its_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwire.agent.task.MAX_QUEUED_EVENTS", 3)

    async def main() -> None:
        deltas = [said(str(index), f"msg_{index}", index) for index in range(9)]
        async with Far(streams(created(), *deltas, Hold())) as far, agent_on(far) as agent:
            async with aclosing(agent.stream("go")) as stream:  # type: ignore[type-var]
                events = [await anext(stream)]
                await far.came[0].wait()
                await settle(100)
                agent.cancel()
                await far.gone.wait()
                events += [each async for each in stream]
            assert ended(events).reason == "cancelled"

    play(main())


def test_every_event_has_a_line_of_json_with_its_own_name() -> None:
    kinds = get_args(AgentEvent)
    names = {msgspec.inspect.type_info(kind).tag for kind in kinds}  # type: ignore[attr-defined]
    assert len(names) == len(kinds) == 19
    line = as_line(CallEnded("c1", "look", "a\nb", failed=True, seconds=0.5))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "type": "call_ended", "call_id": "c1", "name": "look", "result": "a\nb", "failed": True, "seconds": 0.5,
    }  # fmt: skip


def test_an_agent_is_closed_twice() -> None:
    async def main() -> None:
        async with Far(turn(Says("hi"))) as far, agent_on(far) as agent:
            await end_of(agent, "go")
            await agent.close()

    play(main())


def test_an_agent_that_was_not_entered_says_so() -> None:
    async def main() -> str:
        try:
            return (await end_of(runner_on("demo", settings=Far().settings), "go")).error
        except RuntimeError as error:
            return str(error)

    assert play(main())


# Which backend


@pytest.mark.parametrize("kind", NAMES)
def test_a_backend_can_be_given_as_its_kind_and_address(kind: Name) -> None:
    async def main() -> None:
        async with Far(turn(Says("hi"), kind=kind), kind=kind) as far:
            async with runner_on("m", backend=f"{kind}:{far.url}", settings=Settings()) as agent:
                assert (await end_of(agent, "go")).text == "hi"
            assert far.asked[0].model == "m"

    play(main())


def test_a_backend_can_be_named() -> None:
    async def main() -> str:
        async with Far(turn(Says("hi"))) as far:
            async with runner_on("m", backend="up", settings=far.settings) as agent:
                return (await end_of(agent, "go")).text

    assert play(main()) == "hi"


@pytest.mark.parametrize("backend", ["nothing", "smtp:http://127.0.0.1:1/v1"])
def test_a_backend_that_cannot_be_is_an_error(backend: str) -> None:
    with pytest.raises(SettingsError, match=r"^backend: "):
        runner_on("m", backend=backend, settings=Far().settings)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools named 'look'"):
        runner_on("demo", tools=[echo(), echo()], settings=Far().settings)
