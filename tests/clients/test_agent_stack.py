"""The whole wire: the engine asks a real gateway, whose backend is a real `codex app-server`. The model is scripted.

    Agent, or toolwire run  →  toolwire serve  →  codex app-server  →  the model

The engine speaks each dialect to the gateway. Nothing here looks at a clock.
"""

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.agent.stage import (
    Held,
    Watcher,
    assert_paired,
    assert_whole,
    call,
    end_of,
    ended,
    only,
    play,
    runner_on,
    which,
)
from tests.agent.terminal import PATIENCE, PROGRAM, environment
from tests.clients.app_server import (
    USUAL,
    AppServer,
    called,
    history,
    message,
    result,
    running,
    table,
    tells,
    thread_of,
    worker_of,
)
from tests.clients.codex import needs_codex
from tests.support import processes
from tests.support.frames import call as whole_call
from tests.support.frames import call_item, completed, created, rs, stream, text
from tests.support.gateway import Gate
from tests.support.scripts import NAMES, Calls, Name, Says, Thinks
from tests.support.upstream import Asked, Cut, Hold, Pause, Reply
from toolwire.agent import AgentConfig, Context, Registry, ToolError, tool
from toolwire.agent.events import (
    AgentEvent,
    CallEnded,
    CallStarted,
    Compacted,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageUpdated,
)
from toolwire.agent.runner import Runner
from toolwire.agent.tools.patch import apply_patch
from toolwire.config.settings import Settings
from toolwire.turns.tools.calls import CallHooks, Finished, TurnCalls
from toolwire.turns.tools.registry import FunctionTool, Tool

Json = dict[str, Any]
DIALECTS = pytest.mark.parametrize("dialect", NAMES)

ODD = 'Zürich ☃ 東京 🌦️ 👩‍👩‍👧 "quoted" \\ back\tslash\n \u0000 \u2028 end'
MEGABYTE = "0123456789abcdef" * 65536
GO = message("user", "Go.")


@pytest.fixture(scope="module", autouse=True)
def codex_is_there() -> None:
    needs_codex()


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[AppServer]:
    """`codex` asks once. `patient` asks again, and looks soon after a silent thread. At `single`, a worker has one thread
    and goes with it, so that whoever is still there has a thread."""
    config = (
        table("codex", base_url='"{url}"')
        + table("patient", base_url='"{url}"', retries=1, profile="{ silence = 0.1 }")
        + table("single", base_url='"{url}"', profile="{ threads = 1 }")
    )
    with running(tmp_path_factory.mktemp("stack"), http, config) as stand:
        yield stand


# Who works


class Log:
    """A tool that writes down every run of it. `bad` fails as tools do, `worse` as they should not."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    @property
    def tool(self) -> FunctionTool:
        async def look(path: str) -> str:
            """Look at something."""
            self.runs.append(path)
            if path == "bad":
                raise ToolError("No such place.")
            if path == "worse":
                raise ValueError("Kaput.")
            return f"saw {path[-300_000:]}"

        return tool(name="look", parallel=True)(look)


def looks(id: str, path: str) -> Calls:
    return Calls(id, "look", path_of(path))


def path_of(path: str) -> str:
    return json.dumps({"path": path}, ensure_ascii=False, separators=(",", ":"))


def looked(id: str, path: str) -> list[Json]:
    """A look as the model remembers it."""
    return [called(id, "look", path_of(path)), result(id, f"saw {path[-300_000:]}")]


def agent_at(
    stand: AppServer, dialect: Name, model: str, *tools: Tool, config: AgentConfig | None = None, cwd: str | Path = "."
) -> Runner:
    chosen = config or AgentConfig(retries=0, approve="never")
    backend = f"{dialect}:{stand.gateway.base_url}"
    return runner_on(model, tools=tools, config=chosen, backend=backend, settings=Settings(), cwd=cwd)


class Work:
    """What an agent did about its prompts, from both ends."""

    def __init__(self, agent: Runner, events: list[list[AgentEvent]], asked: list[Asked]) -> None:
        self.agent = agent
        self.events = events[-1]
        """Of the last prompt."""
        self.asked = asked
        self.ended = ended(self.events)
        assert_kept(agent, asked)
        assert_each_once([event for each in events for event in each])

    @property
    def text(self) -> str:
        return "".join(event.text for event in only(self.events, TextDelta))


def work(stand: AppServer, model: str, agent: Runner, *prompts: str) -> Work:
    async def work() -> list[list[AgentEvent]]:
        async with agent:
            return [[event async for event in agent.stream(prompt)] for prompt in prompts or ("Go.",)]

    return Work(agent, play(work()), stand.asked(model))


def assert_kept(agent: Runner, asked: list[Asked]) -> None:
    """Every call has its one result, here and in all that the model was shown."""
    assert_whole(agent.session.history)
    for each in asked:
        assert_paired(history(each))


def assert_each_once(events: list[AgentEvent]) -> None:
    """Each call was told, run and ended once, in this order."""
    called = [event.call_id for event in only(events, CallStarted)]
    assert [event.call_id for event in only(events, ToolStarted)] == called
    assert sorted(event.call_id for event in only(events, CallEnded)) == sorted(called)
    assert len(set(called)) == len(called)
    for id in called:
        of_it = [event for event in events if getattr(event, "call_id", "") == id]
        assert [type(event) for event in of_it] == [CallStarted, ToolStarted, CallEnded]


def order(events: list[AgentEvent]) -> list[str]:
    """The calls and turns as they went."""
    out: list[str] = []
    for event in events:
        match event:
            case TurnStarted(number):
                out.append(f"turn {number}")
            case CallStarted(id):
                out.append(f"call {id}")
            case TurnEnded(_, calls):
                out.append(f"{calls} calls")
            case _:
                pass
    return out


def arguments(events: list[AgentEvent]) -> dict[str, Any]:
    return {event.call_id: json.loads(event.arguments) for event in only(events, CallStarted)}


def same_thread(asked: list[Asked]) -> bool:
    return len({thread_of(each) for each in asked}) == 1


# Turns that go well


@DIALECTS
def test_a_call_its_result_and_the_answer(stand: AppServer, dialect: Name):
    log = Log()
    model = stand.model(tells(looks("c1", "a")), tells(Says("It is there.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "It is there.", ["a"])
    assert order(done.events) == ["turn 1", "call c1", "1 calls", "turn 2", "0 calls"]
    assert [history(each) for each in done.asked] == [[GO], [GO, *looked("c1", "a")]]
    assert same_thread(done.asked)
    assert [tool["name"] for tool in done.asked[0].body["tools"]] == ["look"]
    used = (done.ended.usage.input, done.ended.usage.output, done.ended.usage.cached, done.ended.usage.reasoning)
    assert used == (2 * USUAL.input, 2 * USUAL.output, 2 * USUAL.cached, 2 * USUAL.reasoning)
    assert len(only(done.events, UsageUpdated)) == 2


@DIALECTS
def test_two_calls_of_a_turn_run_side_by_side_and_their_results_are_in_order(stand: AppServer, dialect: Name):
    held = Held(parallel=True)
    model = stand.model(tells(*(Calls(id, "work", which(id)) for id in ("c1", "c2"))), tells(Says("Both.")))
    agent = agent_at(stand, dialect, model, held.tool)

    async def main() -> list[AgentEvent]:
        async with agent, Watcher(agent, "Go.") as watcher:
            await held.began("c1").wait()
            await held.began("c2").wait()  # so neither waits for the other
            held.may_end("c2").set()
            await watcher.sees(CallEnded, call_id="c2")
            held.may_end("c1").set()
            await watcher.end()
            return watcher.events

    events = play(main())
    asked = stand.asked(model)
    assert_kept(agent, asked)
    assert_each_once(events)
    assert held.log == ["begin c1", "begin c2", "end c2", "end c1"]
    assert order(events) == ["turn 1", "call c1", "call c2", "2 calls", "turn 2", "0 calls"]
    calls = [called(id, "work", which(id)) for id in ("c1", "c2")]
    assert history(asked[-1]) == [GO, *calls, result("c1", "done c1"), result("c2", "done c2")]
    assert same_thread(asked)
    assert ended(events).text == "Both."


@DIALECTS
def test_three_rounds_are_one_thread_and_the_next_prompt_remembers_them(stand: AppServer, dialect: Name):
    log = Log()
    rounds = [tells(looks(f"c{n}", str(n)), looks(f"d{n}", f"{n}!")) for n in range(3)]
    model = stand.model(*rounds, tells(Says("There.")), tells(Says("Still.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool), "Go.", "Really?")
    assert (done.ended.text, log.runs) == ("Still.", ["0", "0!", "1", "1!", "2", "2!"])
    *begun, later = done.asked
    assert same_thread(begun)
    assert thread_of(later) != thread_of(begun[0])
    both = [
        [
            called(f"c{n}", "look", path_of(str(n))),
            called(f"d{n}", "look", path_of(f"{n}!")),
            result(f"c{n}", f"saw {n}"),
            result(f"d{n}", f"saw {n}!"),
        ]
        for n in range(3)
    ]
    shown = [[GO, *chain(*both[:n])] for n in range(4)]
    assert [history(each) for each in begun] == shown
    assert history(later) == [*shown[-1], message("assistant", "There."), message("user", "Really?")]


@DIALECTS
def test_a_tool_that_fails_is_told_to_the_model(stand: AppServer, dialect: Name):
    log = Log()
    model = stand.model(
        tells(looks("c1", "bad"), looks("c2", "worse")), tells(Calls("c3", "look", '{"way":1}')), tells(Says("Oh."))
    )
    done = work(stand, model, agent_at(stand, dialect, model, log.tool))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "Oh.", ["bad", "worse"])
    assert [(each.call_id, each.failed) for each in only(done.events, CallEnded)] == [
        ("c1", True),
        ("c2", True),
        ("c3", True),
    ]
    told = [item["output"] for item in history(done.asked[-1]) if item["type"] == "function_call_output"]
    assert told[:2] == ["Error: No such place.", "Error: ValueError: Kaput."]
    assert told[2].startswith("Error: invalid arguments for look: ")
    assert same_thread(done.asked)


@DIALECTS
@pytest.mark.parametrize("path", [ODD, MEGABYTE], ids=["odd-letters", "a-megabyte"])
def test_arguments_arrive_whole(stand: AppServer, dialect: Name, path: str):
    log = Log()
    model = stand.model(tells(looks("c1", path)), tells(Says("There.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool))
    assert log.runs == [path]
    assert arguments(done.events) == {"c1": {"path": path}}
    assert history(done.asked[1]) == [GO, *looked("c1", path)]
    assert same_thread(done.asked)


def test_a_large_request_is_no_reason_to_complain(stand: AppServer):
    model = stand.model(tells(Says("There.")))
    done = work(stand, model, agent_at(stand, "responses", model), MEGABYTE)
    assert (done.ended.reason, done.ended.error) == ("done", "")


@DIALECTS
def test_words_and_thoughts_around_calls_arrive_and_go_back(stand: AppServer, dialect: Name):
    log = Log()
    model = stand.model(
        tells(Thinks("Hm. ☃", "signature-1"), Says("Let me see."), looks("t1", "a")),
        tells(Thinks("Aha.", "signature-2"), looks("t2", "b"), Says("Meanwhile.")),
        tells(Says("There.")),
        tells(Says("Still.")),
    )
    config = AgentConfig(retries=0, effort="high", instructions="Be brief.")
    agent = agent_at(stand, dialect, model, log.tool, config=config)
    done = work(stand, model, agent, "Go.")
    assert (log.runs, done.ended.text) == (["a", "b"], "There.")
    assert done.text == "Let me see.Meanwhile.There."
    assert "".join(event.text for event in only(done.events, ReasoningDelta)) == "Hm. ☃Aha."
    assert same_thread(done.asked)
    thoughts = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": words}], "encrypted_content": signature}
        for words, signature in (("Hm. ☃", "signature-1"), ("Aha.", "signature-2"))
    ]
    brief, said = message("developer", "Be brief."), message("assistant", "Let me see.")
    first = [brief, GO, thoughts[0], said, *looked("t1", "a")]
    assert [history(each) for each in done.asked[:2]] == [[brief, GO], first]
    # The next prompt is another thread, which is told everything by us.
    later = history(work(stand, model, agent, "Really?").asked[-1])
    assert later[: len(first)] == first
    assert [item for item in later if item["type"] == "reasoning"] == thoughts
    assert [item for item in later if item.get("role") == "assistant"] == [
        said,
        message("assistant", "Meanwhile."),
        message("assistant", "There."),
    ]


def test_a_chat_is_not_given_the_thoughts_of_another(stand: AppServer):
    one = stand.model(tells(Thinks("Private.", "signature-1"), looks("call_0", "a")), tells(Says("There.")))
    work(stand, one, agent_at(stand, "chat", one, Log().tool))
    other = stand.model(tells(looks("call_0", "b")), tells(Says("There.")))
    done = work(stand, other, agent_at(stand, "chat", other, Log().tool), "Come.", "Really?")
    assert history(done.asked[-1])[:-2] == [message("user", "Come."), *looked("call_0", "b")]


@DIALECTS
def test_a_tool_runs_while_the_stream_goes_on(stand: AppServer, dialect: Name):
    held = Held(parallel=True)
    calls = [whole_call(id, "work", which(id), index=place) for place, id in enumerate(("c1", "c2"))]
    early = WHOLE_WITH[dialect]
    gate = Gate(stream(created(), *calls[:early]), after=(stream(*calls[early:], completed(usage=USAGE)),))
    model = stand.model(Reply(steps_of(gate)), tells(Says("Both.")))
    agent = agent_at(stand, dialect, model, held.tool)

    async def main() -> None:
        async with agent, Watcher(agent, "Go.") as watcher:
            held.may_end("c1").set()
            await watcher.sees(CallEnded, call_id="c1")
            assert [each.call_id for each in only(watcher.events, CallStarted)] == ["c1"]
            held.may_end("c2").set()
            gate.open()
            assert (await watcher.end()).text == "Both."

    play(main())
    assert held.log == ["begin c1", "end c1", "begin c2", "end c2"]
    assert_kept(agent, stand.asked(model))
    assert same_thread(stand.asked(model))


WHOLE_WITH: dict[Name, int] = {"chat": 2, "responses": 1, "messages": 1, "gemini": 1}
"""How many calls must have come for the first to be whole. Chat has no word for the end of a call but the next one."""

USAGE: Json = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}


def steps_of(gate: Gate) -> Any:
    """Any iterable will do."""
    return gate


# Free text


TREE = {"greet.py": 'def greet():\n    print("Hi")\n', "old.txt": "old\n", "kept.txt": "kept\n"}
PATCH = """*** Begin Patch
*** Update File: greet.py
@@ def greet():
-    print("Hi")
+    print("Grüezi, \\"世界\\" ☃")
*** Add File: notes/new.txt
+one
+\ttwo \\n
*** Delete File: old.txt
*** End Patch
"""
PATCHED = {
    "greet.py": 'def greet():\n    print("Grüezi, \\"世界\\" ☃")\n',
    "kept.txt": "kept\n",
    "notes/new.txt": "one\n\ttwo \\n\n",
}
UPDATED = "Success. Updated the following files:\nA notes/new.txt\nM greet.py\nD old.txt"


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def patches(id: str, patch: str) -> Calls:
    """Codex knows no free text of others, so the model is shown a function that takes it."""
    return Calls(id, "apply_patch", json.dumps({"input": patch}))


@DIALECTS
def test_a_patch_is_free_text_here_and_changes_files_once(stand: AppServer, dialect: Name, tmp_path: Path):
    for name, words in TREE.items():
        (tmp_path / name).write_text(words)
    astray = PATCH.replace("old.txt", "nowhere.txt")
    model = stand.model(tells(patches("c1", astray)), tells(patches("c2", PATCH)), tells(Says("Done.")))
    done = work(stand, model, agent_at(stand, dialect, model, apply_patch, cwd=tmp_path))
    assert (done.ended.reason, done.ended.text) == ("done", "Done.")
    assert [each.arguments for each in only(done.events, CallStarted)] == [astray, PATCH]
    assert [each.failed for each in only(done.events, CallEnded)] == [True, False]
    assert tree(tmp_path) == PATCHED
    assert types(done.agent)[1:5] == ["custom_tool_call", "custom_tool_call_output"] * 2
    shown = history(done.asked[2])
    assert [json.loads(item["arguments"]) for item in shown if item["type"] == "function_call"] == [
        {"input": astray},
        {"input": PATCH},
    ]
    first, second = (item["output"] for item in shown if item["type"] == "function_call_output")
    assert first.startswith("Error: ")
    assert "nowhere.txt" in first
    assert second == UPDATED
    assert same_thread(done.asked)


def types(agent: Runner) -> list[str]:
    return [msgspec.json.decode(raw)["type"] for raw in agent.session.history.raw]


# Calls that are cancelled


ABORTED = re.compile(r"Error: aborted by user after \d+\.\ds")


def workers_there(stand: AppServer) -> set[str]:
    """Those that have a home."""
    found: set[str] = set()
    for home in stand.homes:
        try:
            found.add((home / "installation_id").read_text().strip())
        except OSError:
            continue  # it is coming or going
    return found


def assert_no_thread_is_left(stand: AppServer, model: str) -> None:
    """Of a model that `single` has asked: its workers have gone, each with its one thread."""
    workers = {worker_of(asked) for asked in stand.asked(model)}
    stand.gateway.wait_until(lambda: not workers & workers_there(stand))
    assert not workers & workers_there(stand)


@DIALECTS
def test_a_call_that_is_cancelled_while_its_thread_waits(stand: AppServer, dialect: Name):
    held = Held()
    model = stand.model(
        tells(Says("Let me."), Calls("c1", "work", which("c1"))), tells(Says("Well.")), backend="single"
    )
    agent = agent_at(stand, dialect, model, held.tool)

    async def main() -> list[str]:
        async with agent:
            async with Watcher(agent, "Go.") as watcher:
                await held.began("c1").wait()
                await asyncio.to_thread(stand.notes, model)  # the gateway has given the turn to the end
                agent.cancel()
                first = await watcher.end()
            assert worker_of(stand.asked(model)[0]) in workers_there(stand), "its thread waits"
            return [first.reason, (await end_of(agent, "And now?")).text]

    assert play(main()) == ["cancelled", "Well."]
    asked = stand.asked(model)
    assert_kept(agent, asked)
    assert held.log == ["begin c1", "stop c1"]
    *before, aborted, words = history(asked[1])
    assert before == [GO, message("assistant", "Let me."), called("c1", "work", which("c1"))]
    assert ABORTED.fullmatch(aborted["output"])
    assert words == message("user", "And now?")
    assert same_thread(asked), "which has waited, and goes on"
    assert_no_thread_is_left(stand, model)


@DIALECTS
def test_a_call_that_is_cancelled_while_the_model_still_speaks(stand: AppServer, dialect: Name):
    held = Held()
    calls = [whole_call(id, "work", which(id), index=place) for place, id in enumerate(("c1", "never"))]
    speaks = Reply([stream(created(), *calls[: WHOLE_WITH[dialect]]), Hold()])
    model = stand.model(speaks, tells(Calls("c2", "work", which("c2"))), tells(Says("Well.")), backend="single")
    agent = agent_at(stand, dialect, model, held.tool)
    held.may_end("c2").set()
    stand.upstream.gone.clear()

    async def main() -> list[str]:
        async with agent:
            async with Watcher(agent, "Go.") as watcher:
                await held.began("c1").wait()
                agent.cancel()
                first = await watcher.end()
            return [first.reason, (await end_of(agent, "And now?")).text]

    assert play(main()) == ["cancelled", "Well."]
    asked = stand.asked(model)
    assert_kept(agent, asked)
    assert held.log == ["begin c1", "stop c1", "begin c2", "end c2"]
    calling, aborted, *rest = history(asked[2])[1:]
    assert calling == called("c1", "work", which("c1"))
    assert ABORTED.fullmatch(aborted["output"])
    assert rest == [message("user", "And now?"), called("c2", "work", which("c2")), result("c2", "done c2")]
    assert stand.upstream.gone.wait(60), "nobody listens to the model any more"
    assert_no_thread_is_left(stand, model)


# Streams that break


CUT = Reply([stream(created()), Pause(0.02), Cut()])
AGAIN = AgentConfig(retries=2)


def begun(words: str) -> bytes:
    item: Json = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    return stream(created(), rs("output_item.added", output_index=0, item=item), text(words))


def half_call(id: str, name: str, half: str, place: int) -> bytes:
    item = f"fc_{id}"
    return stream(
        rs("output_item.added", output_index=place, item=call_item(id, name, "", item)),
        rs("function_call_arguments.delta", item_id=item, output_index=place, delta=half),
    )


BREAKS = {
    "at-once": CUT,
    "in-words": Reply([begun("Half of"), Pause(0.05), Cut()]),
    "in-a-call": Reply([stream(created(), half_call("c1", "look", '{"pa', 0)), Pause(0.05), Cut()]),
}


@DIALECTS
@pytest.mark.parametrize("name", ["at-once", "in-a-call"])
def test_a_stream_that_breaks_is_asked_for_again_by_the_engine(stand: AppServer, dialect: Name, name: str):
    log = Log()
    model = stand.model(BREAKS[name], tells(looks("c1", "a")), tells(Says("There.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool, config=AGAIN))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "There.", ["a"])
    assert [each.attempt for each in only(done.events, Retrying)] == [1]
    assert order(done.events) == ["turn 1", "call c1", "1 calls", "turn 2", "0 calls"]
    assert [history(each) for each in done.asked] == [[GO], [GO], [GO, *looked("c1", "a")]]
    assert types(done.agent) == ["message", "function_call", "function_call_output", "message"]


@DIALECTS
def test_words_that_break_off_are_said_again_and_kept_once(stand: AppServer, dialect: Name):
    log = Log()
    model = stand.model(BREAKS["in-words"], tells(looks("c1", "a"), Says("Whole.")), tells(Says("There.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool, config=AGAIN))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "There.", ["a"])
    assert (done.text, len(only(done.events, Retrying))) == ("Half ofWhole.There.", 1)
    assert [history(each) for each in done.asked[:2]] == [[GO], [GO]]
    assert "Half of" not in json.dumps(history(done.asked[2]))
    assert sorted(types(done.agent)) == ["function_call", "function_call_output", "message", "message", "message"]


@DIALECTS
def test_a_stream_that_breaks_between_rounds_runs_no_tool_again(stand: AppServer, dialect: Name):
    log = Log()
    model = stand.model(tells(looks("c1", "a")), CUT, tells(Says("There.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool, config=AGAIN))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "There.", ["a"])
    assert [each.attempt for each in only(done.events, Retrying)] == [1]
    assert [history(each) for each in done.asked] == [[GO], *[[GO, *looked("c1", "a")]] * 2]
    assert types(done.agent) == ["message", "function_call", "function_call_output", "message"]


OVERFLOWS = {
    "failed": Reply([
        stream(created(), rs("failed", response={"id": "resp_1", "status": "failed", "error": {
            "code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}}))
    ]),
    "refused": Reply(
        [b'{"error":{"message":"This model\'s maximum context length is 8192 tokens.","type":"BadRequestError","code":400}}'],
        400, "application/json",
    ),
}  # fmt: skip


@DIALECTS
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_a_history_that_does_not_fit_is_summarised(stand: AppServer, dialect: Name, overflow: str):
    log = Log()
    model = stand.model(tells(looks("c1", "a")), OVERFLOWS[overflow], tells(Says("We saw a.")), tells(Says("There.")))
    done = work(stand, model, agent_at(stand, dialect, model, log.tool, config=AGAIN))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "There.", ["a"])
    assert only(done.events, Retrying) == []
    assert len(only(done.events, Compacted)) == 1
    assert "We saw a." in json.dumps(history(done.asked[3]))
    assert history(done.asked[3])[-1]["content"][-1] == GO["content"][0]


@DIALECTS
def test_a_stream_that_the_gateway_asks_for_again_is_not_noticed(stand: AppServer, dialect: Name):
    log = Log()
    model = stand.model(tells(looks("c1", "a")), CUT, tells(Says("There.")), backend="patient")
    done = work(stand, model, agent_at(stand, dialect, model, log.tool))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "There.", ["a"])
    assert only(done.events, Retrying) == []
    assert [history(each) for each in done.asked] == [[GO], *[[GO, *looked("c1", "a")]] * 2]


@DIALECTS
def test_a_stream_that_breaks_behind_a_call_keeps_that_call_and_runs_it_once(stand: AppServer, dialect: Name):
    log = Log()
    broken = stream(created(), whole_call("c1", "look", path_of("a")), half_call("c2", "look", '{"pa', 1))
    model = stand.model(
        Reply([broken, Pause(0.05), Cut()]), tells(looks("c2", "b")), tells(Says("There.")), backend="patient"
    )
    done = work(stand, model, agent_at(stand, dialect, model, log.tool, config=AGAIN))
    assert (done.ended.reason, done.ended.text, log.runs) == ("done", "There.", ["a", "b"])
    shown = [[GO], [GO, *looked("c1", "a")], [GO, *looked("c1", "a"), *looked("c2", "b")]]
    assert [history(each) for each in done.asked] == shown
    assert types(done.agent) == ["message", *["function_call", "function_call_output"] * 2, "message"]


# The program


class Ran:
    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.err = code, err.decode()
        self.events: list[Json] = [json.loads(line) for line in out.splitlines()]

    def of(self, type: str) -> list[Json]:
        return [event for event in self.events if event["type"] == type]

    @property
    def session(self) -> str:
        return self.events[0]["session"]


class Shell:
    """`toolwire run --json` in a folder of its own, each time a new process."""

    def __init__(self, folder: Path, backend: str, model: str) -> None:
        self.folder = folder
        self._options = ("--json", "--backend", backend, "--model", model, "--approve", "never")

    def start(self, prompt: str, *more: str) -> "subprocess.Popen[bytes]":
        return processes.Popen(
            (*PROGRAM, "run", prompt, *self._options, *more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=environment(self.folder),
        )

    def run(self, prompt: str, *more: str) -> Ran:
        with self.start(prompt, *more) as process:
            return Ran(*ending(process))


def ending(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def without_instructions(asked: Asked) -> list[Json]:
    first, *rest = history(asked)
    assert first["role"] == "developer"
    assert_paired(rest)
    return rest


@DIALECTS
def test_a_session_goes_on_in_another_process(stand: AppServer, dialect: Name, tmp_path: Path):
    (tmp_path / "greet.py").write_text("one\n")
    reads = tells(Thinks("Hm.", "signature-1"), Says("Let me see."), Calls("c1", "Read", '{"path":"greet.py"}'))
    patch = "*** Begin Patch\n*** Update File: greet.py\n@@\n-one\n+zwölf\n*** End Patch\n"
    model = stand.model(
        reads, tells(Says("It says one.")), tells(patches("c2", patch)), tells(Says("Now it is zwölf."))
    )
    shell = Shell(tmp_path, f"{dialect}:{stand.gateway.base_url}", model)
    first = shell.run("What is in it?", "--tools", "read")
    assert (first.code, first.err) == (0, "")
    assert (first.events[-1]["reason"], first.events[-1]["text"]) == ("done", "It says one.")
    assert [(each["call_id"], each["result"]) for each in first.of("call_ended")] == [("c1", "     1\tone")]

    second = shell.run("Change it.", "--tools", "read,patch", "--resume", first.session)
    assert (second.code, second.err, second.session) == (0, "", first.session)
    assert (second.events[-1]["reason"], second.events[-1]["text"]) == ("done", "Now it is zwölf.")
    assert [each["call_id"] for each in second.of("tool_started")] == ["c2"]
    assert (tmp_path / "greet.py").read_text() == "zwölf\n"

    asked = stand.asked(model)
    begun, answered, resumed, last = map(without_instructions, asked)
    assert begun == [message("user", "What is in it?")]
    assert answered[:1] == begun
    assert [item["type"] for item in answered[1:]] == ["reasoning", "message", "function_call", "function_call_output"]
    assert answered[1]["encrypted_content"] == "signature-1"
    assert answered[-1] == result("c1", "     1\tone")
    # A chat server has no place for a thought; the gateway knows it again by the call that it led to.
    assert resumed == [*answered, message("assistant", "It says one."), message("user", "Change it.")]
    assert last[: len(resumed)] == resumed
    assert [item["type"] for item in last[len(resumed) :]] == ["function_call", "function_call_output"]
    assert last[-1] == result("c2", "Success. Updated the following files:\nM greet.py")
    assert [thread_of(each) for each in asked[::2]] == [thread_of(each) for each in asked[1::2]]


ENDS = {
    "interrupted": (signal.SIGINT, 130, r"Error: Wall time: \d+\.\d seconds\naborted by user"),
    "killed": (signal.SIGKILL, -signal.SIGKILL, r"Error: aborted"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_that_was_ended_in_a_call_is_gone_on_with(stand: AppServer, name: str, tmp_path: Path):
    number, code, told = ENDS[name]
    waits = Calls(
        "c1",
        "Bash",
        json.dumps({"command": "echo $$ > pid; echo >> ran; while [ -d /proc/$PPID ]; do sleep 0.02; done"}),
    )
    model = stand.model(tells(Says("Let me."), waits), tells(Says("Never mind.")), backend="single")
    shell = Shell(tmp_path, f"responses:{stand.gateway.base_url}", model)
    with shell.start("Wait.", "--tools", "bash") as process:
        stand.notes(model)  # the gateway has given the turn to the end
        stand.gateway.wait_until((tmp_path / "ran").exists)
        process.send_signal(number)
        first = Ran(*ending(process))
    assert (first.code, first.err) == (code, "")
    assert [each["call_id"] for each in first.of("tool_started")] == ["c1"]
    left = Path("/proc", (tmp_path / "pid").read_text().strip())
    stand.gateway.wait_until(lambda: not left.exists())

    second = shell.run("Go on.", "--tools", "bash", "--resume", first.session)
    assert (second.code, second.err, second.events[-1]["text"]) == (0, "", "Never mind.")
    assert second.of("tool_started") == []
    assert (tmp_path / "ran").read_text() == "\n"
    asked = stand.asked(model)
    *before, aborted, words = without_instructions(asked[1])
    calling = called("c1", "Bash", waits.arguments)
    assert before == [message("user", "Wait."), message("assistant", "Let me."), calling]
    assert re.fullmatch(told, aborted["output"])
    assert words == message("user", "Go on.")
    assert same_thread(asked), "which has waited, and goes on"
    assert_no_thread_is_left(stand, model)


# What the engine tells


def test_a_call_has_ended_before_its_result_is_taken():
    log = Log()
    finished: list[Finished] = []

    async def main() -> None:
        hooks = CallHooks(lambda call: Context(Path("."), print), finished=finished.append)
        runtime = TurnCalls(Registry([log.tool]), hooks)
        runtime.start(call("look", "c1", path_of("a")))
        await asyncio.sleep(0)
        assert await runtime.results() == finished

    play(main())
