"""A codex backend and its workers: threads that go on, workers that die, hang and are replaced, clients that leave.

The worker is scripted (`tests/support/app_server.py`) and logs all it hears, so that both ends can be looked at.
"""

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.app_server import (
    MODELS,
    Rows,
    Step,
    Take,
    Workers,
    ask,
    calls,
    deaf,
    demand,
    die,
    done,
    end,
    hang,
    item,
    results,
    say,
    sleep,
    tell,
    write,
)
from tests.support.client_readers import PATHS, Held, Refused, hold
from tests.support.conversations import AGENTS, CLIENTS, Agent, Client, Result, ScriptedConversation, dialect_of
from tests.support.conversations import Step as Say
from tests.support.gateway import Gateway, Responses, calls_of, good, leave_when, read_events, text_of
from tests.support.gateway import tool as declared
from tests.support.routes import question
from tests.support.scripts import FIND, LOOK, NAMES, Name, Script, Seen, Tokens

Json = dict[str, Any]

HEAD = "[server]\ndrain = 1\n[timeouts]\nfirst_byte = 4\nidle = 4\n"
TOKENS = Tokens(100, 20, 40, 0, 5)
CALL = ("c1", "look", '{"path":"a"}')
OTHER = ("c2", "find", '{"path":"b"}')
THIRD = ("c3", "look", '{"path":"c"}')

each_dialect = pytest.mark.parametrize("dialect", NAMES)
each_client = pytest.mark.parametrize("client", CLIENTS)
streamed_and_plain = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


class Stage:
    """A gateway with codex backends, each with scripted workers of its own."""

    def __init__(
        self,
        folder: Path,
        crews: list[Workers],
        backends: str,
        http: httpx.Client,
        head: str = HEAD,
        **environment: str,
    ) -> None:
        self._crews = {crew.name: crew for crew in crews}
        self._callers: list[Caller] = []
        self.gateway = Gateway(folder, head + backends, **environment)
        self.http = http

    def __getitem__(self, name: str) -> Workers:
        return self._crews[name]

    def forget(self) -> None:
        """Nobody is there any more, and nothing has been said yet."""
        for caller in self._callers:
            caller.close()
        self._callers.clear()
        for crew in self._crews.values():
            crew.forget()

    def stop(self) -> int:
        self.forget()
        return self.gateway.stop()

    def post(self, dialect: Name, body: Json, key: str = "unused") -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return self.http.post(self.gateway.url + PATHS[dialect], json=body, headers=headers)

    def ask(self, dialect: Name, body: Json, key: str = "unused") -> Held:
        return hold(self.post(dialect, body, key), dialect, stream=bool(body.get("stream")))

    def turn(self, model: str, dialect: Name = "chat", *, stream: bool = True) -> Seen:
        """A first turn, with two tools."""
        return self.ask(dialect, question(dialect, model, (LOOK, FIND), stream=stream)).seen

    def refused(self, model: str, dialect: Name = "chat", *, stream: bool = True) -> Refused:
        with pytest.raises(Refused) as caught:
            self.turn(model, dialect, stream=stream)
        return caught.value

    def agent(self, client: Client, model: str, *, stream: bool = True) -> Agent:
        return AGENTS[client](self, model, ScriptedConversation(()), stream=stream)  # pyright: ignore[reportArgumentType]

    def call(self, model: str) -> "Caller":
        """A chat request on a connection of its own."""
        return self.send(question("chat", model, (LOOK, FIND), stream=True))

    def send(self, body: Json, key: str = "unused") -> "Caller":
        caller = Caller(self.gateway.url, body, key)
        self._callers.append(caller)
        return caller

    def settle(self) -> None:
        """Wait until the gateway has read and begun whatever was sent before: each answer takes it a round or more."""
        for _ in range(20):
            assert self.http.get(f"{self.gateway.url}/healthz").status_code == 200


class Caller:
    """A client on a connection that it can close at any time."""

    def __init__(self, url: str, body: Json, key: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self.heard = b""
        data = json.dumps(body, separators=(",", ":")).encode()  # as httpx writes it
        head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        self._socket.sendall(
            f"{head}authorization: Bearer {key}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        )

    def hear(self, words: bytes) -> "Caller":
        """Wait for these words in the answer."""
        while words not in self.heard:
            data = self._socket.recv(65536)
            assert data, self.heard
            self.heard += data
        return self

    def close(self) -> None:
        self._socket.close()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def eventually(holds: Callable[[], bool], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return holds()


def go(*results: Result, user: str = "") -> Say:
    return Say(Script(), user or ("" if results else "Go."), results)


def the_text(seen: Seen) -> str:
    assert seen.finish == "stop", seen
    return seen.text


def at_once(*work: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(each) for each in work]]


def in_background(work: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def most_at_once(rows: Rows) -> dict[int, int]:
    """How many turns each process had at a time."""
    most: dict[int, int] = {}
    now: Counter[int] = Counter()
    for row in rows:
        method = row.get("line", {}).get("method")
        if row["kind"] == "in" and method == "turn/start":
            now[row["pid"]] += 1
        elif row["kind"] == "out" and method == "turn/completed":
            now[row["pid"]] -= 1
        most[row["pid"]] = max(most.get(row["pid"], 0), now[row["pid"]])
    return most


# The crews by name: what their backend's table says beside the usual.
CREWS: dict[str, Json] = {
    "usual": {},
    "retrying": {"retries": 1},
    "hasty": {"profile": "keep = 0.4"},
    "narrow": {"profile": "turns = 2, queue = 3"},
    "impatient": {"profile": "turns = 1, patience = 0.4"},
    "single": {"profile": "turns = 1, keep = 0.4, patience = 30.0"},
    "pair": {"workers": 2, "profile": "turns = 1, patience = 30.0"},
    **{f"short-{number}": {"profile": "threads = 3"} for number in range(4)},  # a new one for each test
    "four": {"profile": "turns = 4"},
    "learning": {},
    "many": {"models": [f"m{number}" for number in range(70)]},
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("codex")
    crews = [Workers(folder, name) for name in CREWS]
    tables = "".join(crew.backend(**CREWS[crew.name]) for crew in crews)
    stage = Stage(folder, crews, tables, http)
    for crew in crews:
        crew.wait_for(lambda rows, crew=crew: len(rows.heard("initialized")) == CREWS[crew.name].get("workers", 1))
    yield stage
    stage.stop()


@pytest.fixture
def stage(everything: Stage) -> Stage:
    """One gateway for all tests, with logs that begin anew."""
    everything.forget()
    return everything


# Turns, and threads that go on


@each_dialect
@streamed_and_plain
def test_a_turn_is_one_thread_that_begins_with_the_whole_request(stage: Stage, dialect: Name, stream: bool):
    crew = stage["usual"]
    assert stage.turn(crew.script(say("Hel", "lo.")), dialect, stream=stream) == Seen(text="Hello.", tokens=TOKENS)
    rows = crew.wait_for(lambda rows: rows.heard("thread/unsubscribe"))
    [started], [history], [turn] = rows.heard("thread/start"), rows.injected, rows.heard("turn/start")
    assert [tool["name"] for tool in started["dynamicTools"]] == ["look", "find"]
    assert [part["text"] for part in history[0]["content"]] == ["Go."]
    assert turn["input"] == []
    assert rows.heard("turn/interrupt") == []


@each_client
@streamed_and_plain
def test_the_result_of_a_call_goes_to_the_thread_that_waits(stage: Stage, client: Client, stream: bool):
    crew = stage["usual"]
    agent = stage.agent(client, crew.script(calls(CALL) + say("Got {results}.")), stream=stream)
    asked = agent.take(go())
    assert [(call.id, call.name, call.arguments) for call in asked.calls] == [CALL]
    assert (asked.finish, asked.tokens) == ("calls", TOKENS)
    answered = agent.take(go(Result("c1", "one")))
    assert (the_text(answered), answered.tokens) == ("Got one.", TOKENS)
    rows = crew.rows()
    assert len(rows.threads) == len(rows.heard("turn/start")) == 1
    assert [answer["result"] for answer in rows.answers()] == [
        {"contentItems": [{"type": "inputText", "text": "one"}], "success": True}
    ]


@each_client
@streamed_and_plain
def test_parallel_calls_keep_the_models_order_and_get_their_own_results(stage: Stage, client: Client, stream: bool):
    crew = stage["usual"]
    script = say("Let me", " look.", id="msg_0") + calls(CALL, OTHER, THIRD, asked=(2, 0, 1)) + say("Got {results}.")
    agent = stage.agent(client, crew.script(script), stream=stream)
    asked = agent.take(go())
    assert asked.text == "Let me look."
    assert [(call.id, call.name, call.arguments) for call in asked.calls] == [CALL, OTHER, THIRD]
    answered = agent.take(go(Result("c3", "three"), Result("c2", "two"), Result("c1", "one")))
    assert the_text(answered) == "Got one two three."
    rows = crew.rows()
    assert len(rows.threads) == 1
    for demanded in rows.said("item/tool/call"):
        [answer] = rows.answered(demanded["id"])
        [part] = answer["result"]["contentItems"]
        assert part["text"] == {"c1": "one", "c2": "two", "c3": "three"}[demanded["params"]["callId"]]


@each_client
def test_a_thread_goes_on_round_after_round(stage: Stage, client: Client):
    crew = stage["usual"]
    agent = stage.agent(client, crew.script(calls(CALL) + calls(OTHER) + say("Done.")))
    agent.take(go())
    second = agent.take(go(Result("c1", "one")))
    assert [call.id for call in second.calls] == ["c2"]
    assert second.tokens == TOKENS  # of this response, not of the thread
    assert the_text(agent.take(go(Result("c2", "two")))) == "Done."
    assert len(crew.rows().threads) == 1


@streamed_and_plain
@each_client
def test_the_result_of_a_call_in_text_answers_its_twin_that_waits(stage: Stage, client: Client, stream: bool):
    crew = stage["usual"]
    block = "<use_tool><name>look</name><path>a</path></use_tool>"
    script = say("Let me look. ", block, id="msg_0") + calls(CALL, OTHER) + say("Got {results}.")
    agent = stage.agent(client, crew.script(script), stream=stream)
    first = agent.take(go())
    assert [(call.name, call.id == "c1") for call in first.calls] == [("look", False), ("find", False)]
    delivered = first.calls[0].id
    assert the_text(agent.take(go(Result(delivered, "one"), Result("c2", "two")))) == "Got one two."
    assert len(crew.rows().threads) == 1


@streamed_and_plain
def test_submitted_outputs_go_to_the_thread_that_waits(stage: Stage, stream: bool):
    crew = stage["usual"]
    client = Responses(stage.http, stage.gateway)
    model = crew.script(calls(CALL, OTHER) + say("Got {results}."))
    asked = client.create(model, tools=[declared("look"), declared("find")])
    assert [call["call_id"] for call in calls_of(asked)] == ["c1", "c2"]
    answer = good(client.submit(asked["id"], {"c1": "one", "c2": "two"}, stream=stream))
    assert text_of(read_events(answer).response if stream else answer.json()) == "Got one two."
    assert len(crew.rows().threads) == 1


def _as_it_was(body: Json) -> None:
    pass


def _edited(body: Json) -> None:
    history = body.get("messages") or body["input"]
    first = next(entry for entry in history if entry.get("role") == "user")
    first["content"] = "Otherwise."


def _other_tools(body: Json) -> None:
    del body["tools"][1]


def _other_instructions(body: Json) -> None:
    if "messages" in body and body["messages"][0]["role"] == "system":
        body["messages"][0]["content"] = "Be long."
    else:
        body["system" if "messages" in body else "instructions"] = "Be long."


def _other_effort(body: Json) -> None:
    """A field that cannot be changed while a turn runs."""
    if "max_tokens" in body:
        body["thinking"] = {"type": "enabled", "budget_tokens": 20_000}
    else:
        body |= {"reasoning": {"effort": "high"}} if "input" in body else {"reasoning_effort": "high"}


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
@pytest.mark.parametrize("change", [_edited, _other_tools, _other_instructions, _other_effort])
def test_what_is_not_about_the_thread_is_told_from_the_start(
    stage: Stage, client: Client, change: Callable[[Json], None]
):
    crew = stage["usual"]
    agent = stage.agent(client, crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    body = json.loads(json.dumps(agent.request(go(Result("c1", "one")))))
    change(body)
    assert the_text(stage.ask(dialect_of(client), body, body["model"]).seen) == "New."
    rows = crew.rows()
    assert len(rows.threads) == 2
    assert [each["type"] for each in rows.injected[1]] == ["message", "function_call", "function_call_output"]
    assert rows.answers() == []  # the other one was told nothing
    assert rows.heard("turn/interrupt") == []  # and may still be gone on with
    same = agent.request(Say(Script()))
    assert the_text(stage.ask(dialect_of(client), same, body["model"]).seen) == "Same."


@each_client
def test_a_thread_that_nobody_comes_back_to_is_ended_and_told_anew(stage: Stage, client: Client):
    crew = stage["hasty"]
    agent = stage.agent(client, crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    crew.wait_for(lambda rows: rows.heard("turn/interrupt") and rows.heard("thread/unsubscribe"))
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    rows = crew.rows()
    assert [each["type"] for each in rows.injected[1]][-2:] == ["function_call", "function_call_output"]
    assert rows.answers() == []


@each_client
def test_calls_that_wait_at_a_worker_that_dies_are_told_anew(stage: Stage, client: Client):
    crew = stage["usual"]
    agent = stage.agent(client, crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    [old] = crew.rows().pids
    os.kill(old, signal.SIGKILL)
    crew.wait_for(lambda rows: rows.heard("initialized"))
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    assert len(crew.rows().injected[-1]) == 3


@each_client
def test_calls_that_wait_at_a_worker_that_dies_are_told_anew_when_asked_again(stage: Stage, client: Client):
    crew = stage["retrying"]
    agent = stage.agent(client, crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    [old] = crew.rows().pids
    os.kill(old, signal.SIGKILL)
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    rows = crew.rows()
    assert rows.pids[0] == old != rows.pids[-1]
    assert [each["type"] for each in rows.injected[-1]][-2:] == ["function_call", "function_call_output"]


def test_words_of_a_user_beside_results_reach_a_thread_told_anew(stage: Stage):
    crew = stage["hasty"]
    agent = stage.agent("chat", crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    crew.wait_for(lambda rows: rows.heard("turn/interrupt"))
    assert the_text(agent.take(go(Result("c1", "one"), user="And tea."))) == "New."
    assert "And tea." in str(crew.rows().injected[-1][-1])


# Owners


KEYS = '[[keys]]\nname = "ann"\nkey = "key-of-ann"\n[[keys]]\nname = "ben"\nkey = "key-of-ben"\n'


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("keyed")
    crew = Workers(folder)
    stage = Stage(folder, [crew], KEYS + crew.backend(), http)
    yield stage
    stage.stop()


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
def test_nobody_goes_on_with_the_thread_of_another(keyed: Stage, client: Client):
    keyed.forget()
    crew, dialect = keyed["codex"], dialect_of(client)
    agent = keyed.agent(client, crew.script(calls(CALL) + say("Ann's {results}."), say("Ben's.")))
    first = keyed.ask(dialect, agent.request(go()), "key-of-ann")
    agent._keep(first.own)  # an agent has no key of its own
    body = agent.request(go(Result("c1", "one")))
    assert the_text(keyed.ask(dialect, body, "key-of-ben").seen) == "Ben's."
    assert crew.rows().answers() == []
    assert the_text(keyed.ask(dialect, body, "key-of-ann").seen) == "Ann's one."
    assert len(crew.rows().threads) == 2


@each_client
def test_two_conversations_may_wait_for_calls_of_the_same_id(stage: Stage, client: Client):
    """Servers that count their calls give the same ids in every conversation."""
    crew, dialect = stage["usual"], dialect_of(client)
    agents = [stage.agent(client, crew.script(calls(CALL) + say(f"{name} {{results}}."), say("New."))) for name in "AB"]
    for agent in agents:
        agent._keep(stage.ask(dialect, agent.request(go()), "same").own)
    bodies = [agent.request(go(Result("c1", "one"))) for agent in agents]
    assert [the_text(stage.ask(dialect, body, "same").seen) for body in bodies] == ["A one.", "B one."]
    assert len(crew.rows().threads) == 2


# Programs that cannot be used


UNUSABLE = {
    "missing": "the program /nowhere/codex is not installed",
    "exits": "it ended at once: no such option",
    "old": "version 0.120.0 is too old",
    "mute": "it does not answer",
}


def shortened(folder: Path, **constants: float) -> str:
    """A PYTHONPATH with which the gateway's patience is shorter: there is no setting for it."""
    lines = [f"    app_server.{name} = {value}\n" for name, value in constants.items()]
    patch = [
        "import sys\n",
        "if 'toolwire' in sys.orig_argv:\n",
        "    from toolwire.upstream.codex import app_server\n",
    ]
    (folder / "sitecustomize.py").write_text("".join((*patch, *lines)))
    return os.pathsep.join((str(folder), *filter(None, (os.environ.get("PYTHONPATH"),))))


WORKERS = {"exits": 4, "brief": 6}
"""So many tries show what one may not."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[Stage]:
    """A gateway with backends that cannot be used, which has had some time to try."""
    folder = tmp_path_factory.mktemp("broken")
    options = {
        "exits": ("--exit", "hello\nno such option\n"),
        "gone": ("--exit", ""),
        "old": ("--version", "0.120.0"),
        "mute": ("--manner", "mute"),
        "brief": ("--manner", "brief"),
        "hung": (),
    }
    crews = [Workers(folder, name) for name in options]
    tables = "".join(
        crew.backend(*options[crew.name], profile="patience = 2.0", workers=WORKERS.get(crew.name, 1)) for crew in crews
    )
    missing = '[[backends]]\nname = "missing"\nkind = "codex"\ncommand = ["/nowhere/codex"]\nretries = 0\n'
    stage = Stage(
        folder, crews, tables + missing, http, PYTHONPATH=shortened(folder, START_TIMEOUT=2.0, ANSWER_TIMEOUT=2.5)
    )
    time.sleep(2.2)
    stage.gateway.wait_until(lambda: any("backend mute:" in line for line in stage.gateway.log))
    yield stage
    stage.stop()


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_program_that_cannot_be_used_is_one_clear_line_and_a_503(broken: Stage, name: str):
    for dialect in NAMES:
        for stream in (True, False):
            refused = broken.refused(f"{name}/any", dialect, stream=stream)
            assert refused.status == 503
            assert UNUSABLE[name] in refused.message
    lines = [line for line in broken.gateway.log if re.search(rf"backend {name}(:| is unavailable:) ", line)]
    assert len(lines) == 1
    assert UNUSABLE[name] in lines[0]


@each_dialect
def test_other_backends_are_served_beside_one_that_cannot_be_used(broken: Stage, dialect: Name):
    held = broken.ask(dialect, question(dialect, "demo", (), stream=False))
    assert "demo" in the_text(held.seen)


@pytest.mark.parametrize("name", ["gone", "old", "brief"])
def test_a_program_that_cannot_be_used_is_started_less_and_less_often(broken: Stage, name: str):
    starts = [row["t"] for row in broken[name].rows().of("start")]
    within = [start for start in starts if start < starts[0] + 2]
    assert len(within) / WORKERS.get(name, 1) <= 5


def test_a_worker_that_ends_as_soon_as_it_is_greeted_keeps_nobody_waiting(broken: Stage):
    refused = broken.refused(broken["brief"].script(say("Never.")))
    assert refused.status in (429, 502, 503)


def test_a_worker_that_does_not_answer_is_replaced(broken: Stage):
    crew = broken["hung"]
    silent = Take(say("Never."), **{"thread/start": {"never": True}})
    model = crew.script(silent, say("Here."))
    assert broken.refused(model).status == 502
    rows = crew.wait_for(lambda rows: len(rows.heard("initialized")) == 2)
    assert eventually(lambda: not alive(rows.pids[0]))
    assert the_text(broken.turn(model)) == "Here."


# Workers that die


@each_dialect
@streamed_and_plain
def test_a_turn_that_dies_before_anything_was_shown_is_asked_again(stage: Stage, dialect: Name, stream: bool):
    crew = stage["retrying"]
    model = crew.script(die("boom"), say("Alive."))
    assert the_text(stage.turn(model, dialect, stream=stream)) == "Alive."
    assert len(crew.rows().threads) == len(crew.rows().pids) == 2
    stage.gateway.wait_until(lambda: any(turn["model"] == model for turn in stage.gateway.turns()))
    [turn] = [each for each in stage.gateway.turns() if each["model"] == model]
    assert turn["notes"].get("retried") == 1


@pytest.mark.parametrize("method", ["thread/start", "thread/inject_items", "turn/start"])
def test_a_worker_that_dies_when_it_is_asked_is_replaced(stage: Stage, method: str):
    crew = stage["retrying"]
    model = crew.script(Take(say("Never."), **{method: {"die": True}}), say("Alive."))
    assert the_text(stage.turn(model)) == "Alive."


@each_dialect
def test_a_turn_that_dies_after_text_was_shown_fails(stage: Stage, dialect: Name):
    crew = stage["retrying"]
    dying = say("Half") + sleep(0.1) + die()
    held = stage.ask(dialect, question(dialect, crew.script(dying), (), stream=True))
    assert (held.seen.text, held.seen.finish) == ("Half", "failed")
    assert held.error is not None
    assert "worker" in held.error["message"]
    crew.wait_for(lambda rows: len(rows.heard("initialized")) == 1)
    refused = stage.refused(crew.script(dying), dialect, stream=False)
    assert refused.status == 502
    assert "worker" in refused.message
    assert len(crew.rows().threads) == 2, "what was shown is not asked again"


def test_nobody_gets_a_place_at_a_worker_that_has_died(stage: Stage):
    crew = stage["single"]
    leaving = stage.call(crew.script(deaf() + say("Half") + hang())).hear(b"Half")
    [old] = crew.rows().pids
    waiting = in_background(partial(stage.turn, crew.script(say("Hello."))))
    time.sleep(0.1)
    leaving.close()
    crew.wait_for(lambda rows: rows.heard("turn/interrupt"))
    os.kill(old, signal.SIGKILL)
    assert the_text(waiting.result()) == "Hello."


def test_the_last_words_of_a_worker_count(stage: Stage):
    crew = stage["usual"]
    over = tell("turn/completed", turn={"id": "$turn", "status": "completed", "items": []})
    for _ in range(3):
        assert the_text(stage.turn(crew.script(say("Whole.") + done() + over + die()))) == "Whole."
        crew.wait_for(lambda rows: rows.of("start"))
        crew.forget()


def test_one_worker_that_dies_does_not_disturb_the_other(stage: Stage):
    crew = stage["pair"]
    slow = in_background(lambda: stage.turn(crew.script(say("Still") + sleep(0.6) + say(" here.", id="msg_2"))))
    crew.wait_for(lambda rows: rows.heard("turn/start"))
    assert stage.refused(crew.script(die()), stream=False).status == 502
    assert the_text(slow.result()) == "Still\n\n here."
    crew.wait_for(lambda rows: rows.heard("initialized"))


# Places


def test_turns_are_spread_over_workers_and_never_more_than_allowed(stage: Stage):
    pair, narrow = stage["pair"], stage["narrow"]
    slow = sleep(0.15) + say("Done.")
    models = [crew.script(slow) for crew in (pair, narrow) for _ in range(5)]
    assert {the_text(seen) for seen in at_once(*(partial(stage.turn, model) for model in models))} == {"Done."}
    assert sorted(most_at_once(pair.rows()).values()) == [1, 1]
    assert [*most_at_once(narrow.rows()).values()] == [2]


def _is_no_place(refused: Refused, dialect: Name) -> bool:
    error = refused.body["error"]
    named = {
        "messages": error.get("type") == "rate_limit_error",
        "gemini": error.get("status") == "RESOURCE_EXHAUSTED",
    }
    is_named = named.get(dialect, error.get("code") == "rate_limit_exceeded")
    return refused.status == 429 and is_named and int(refused.headers["retry-after"]) > 0


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[Stage]:
    """A gateway in which nothing ends by itself while a test looks at who waits."""
    folder = tmp_path_factory.mktemp("lasting")
    profiles = {"narrow": "turns = 2, queue = 3, patience = 300.0", "single": "turns = 1", "pair": "turns = 1"}
    crews = [Workers(folder, name) for name in profiles]
    tables = "".join(crew.backend(profile=profiles[crew.name], workers=1 + (crew.name == "pair")) for crew in crews)
    stage = Stage(folder, crews, tables, http, "[server]\ndrain = 1\n")
    for crew in crews:
        crew.wait_for(lambda rows, crew=crew: len(rows.heard("initialized")) == 1 + (crew.name == "pair"))
    stage.forget()
    yield stage
    stage.stop()


def test_a_full_queue_is_a_429_that_says_when_to_come_back(lasting: Stage):
    stage, crew = lasting, lasting["narrow"]
    hanging, quick = crew.script(hang()), crew.script(say("Hello."))
    running = [stage.call(hanging) for _ in range(2)]
    crew.wait_for(lambda rows: len(rows.heard("turn/start")) == 2)
    before = len(stage.gateway.turns())
    waiting = [stage.call(quick) for _ in range(4)]
    stage.gateway.wait_for_turns(before + 1, 30)  # one of them is refused, so three wait
    for dialect in NAMES:
        for stream in (True, False):
            refused = stage.refused(quick, dialect, stream=stream)
            assert _is_no_place(refused, dialect), (refused.status, refused.body)
    over = len(stage.gateway.turns())
    for caller in waiting:
        caller.close()
    stage.gateway.wait_for_turns(over + 3, 30)  # so that none of them gets a place
    for caller in running:
        caller.close()
    crew.wait_for(lambda rows: len(rows.heard("turn/interrupt")) == 2)
    assert the_text(stage.turn(quick)) == "Hello."
    # Those who left the queue left nothing: they never reached the worker.
    assert len(crew.rows().threads) == 3


def test_whoever_waits_too_long_gets_a_429(stage: Stage):
    crew = stage["impatient"]
    caller = stage.call(crew.script(hang()))
    crew.wait_for(lambda rows: rows.heard("turn/start"))
    quick = crew.script(say("Hello."))
    waits = [lambda dialect=dialect: (dialect, stage.refused(quick, dialect)) for dialect in NAMES]
    assert all(_is_no_place(refused, dialect) for dialect, refused in at_once(*waits))
    caller.close()
    crew.wait_for(lambda rows: rows.heard("thread/unsubscribe"))
    assert the_text(stage.turn(quick)) == "Hello."


def test_whoever_waits_is_served_in_turn(lasting: Stage):
    crew = lasting["single"]
    caller = lasting.call(crew.script(hang()))
    crew.wait_for(lambda rows: rows.heard("turn/start"))
    waits: list[Caller] = []
    for number in range(3):
        waits.append(lasting.call(crew.script(say(f"{number}"))))
        lasting.settle()
    caller.close()
    for number, wait in enumerate(waits):
        heard = wait.hear(b"[DONE]").heard
        assert f'"content":"{number}"'.encode() in heard
        assert b'"finish_reason":"stop"' in heard
    asked = [params["model"] for params in crew.rows().heard("thread/start")[1:]]
    assert asked == sorted(asked, key=lambda model: int(model[1:]))


def test_who_waits_for_one_worker_does_not_keep_others_from_another(lasting: Stage):
    stage, crew = lasting, lasting["pair"]
    agent = stage.agent("chat", crew.script(calls(CALL) + say("Same.")))
    agent.take(go())
    busy = crew.rows().pids[-1]
    slow = crew.script(hang())
    # Fill the worker that holds the thread, and that one alone.
    callers = [stage.call(slow)]
    crew.wait_for(lambda rows: len(rows.heard("turn/start")) == 2)
    if crew.rows().pids[-1] != busy:
        callers += [stage.call(slow)]
        crew.wait_for(lambda rows: len(rows.heard("turn/start")) == 3)
        callers.pop(0).close()
        crew.wait_for(lambda rows: rows.heard("turn/interrupt"))
    body = agent.request(go(Result("c1", "one")))
    waiting = stage.send(body, body["model"])
    stage.settle()
    # It would be refused if it had to wait for the slow turn, although a worker is free.
    assert the_text(stage.turn(crew.script(say("Quick.")))) == "Quick."
    for caller in callers:
        caller.close()
    heard = waiting.hear(b"[DONE]").heard
    assert b'"content":"Same."' in heard
    assert b'"finish_reason":"stop"' in heard


def test_a_thread_does_not_expire_while_its_results_wait_for_a_place(stage: Stage):
    crew = stage["single"]
    agent = stage.agent("chat", crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    slow = in_background(lambda: stage.turn(crew.script(sleep(1) + say("Slow."))))
    crew.wait_for(lambda rows: len(rows.heard("turn/start")) == 2)
    assert the_text(agent.take(go(Result("c1", "one")))) in ("Same.", "New.")
    assert the_text(slow.result()) == "Slow."


def test_a_thread_that_ends_while_its_results_wait_for_a_place_is_not_waited_for(stage: Stage):
    crew = stage["single"]
    broken = end("failed", {"message": "Gone.", "codexErrorInfo": None})
    agent = stage.agent("chat", crew.script(item(*CALL) + ask(*CALL) + done() + sleep(0.5) + broken, say("New.")))
    agent.take(go())
    slow = in_background(partial(stage.turn, crew.script(sleep(1.2) + say("Slow."))))
    crew.wait_for(lambda rows: len(rows.heard("turn/start")) == 2)
    body = agent.request(go(Result("c1", "one")))
    assert stage.post("chat", body, body["model"]).status_code in (200, 502)
    assert the_text(slow.result()) == "Slow."


# Workers that come and go


def test_a_worker_is_replaced_after_its_share_of_threads(stage: Stage):
    crew = stage["short-0"]
    model = crew.script(say("Hello."))
    for _ in range(4):
        assert the_text(stage.turn(model)) == "Hello."
    began = [row["pid"] for row in crew.rows() if row["kind"] == "in" and row["line"].get("method") == "thread/start"]
    assert began[0] == began[1] == began[2] != began[3]
    assert eventually(lambda: not alive(began[0]))


def _waiting_at_a_worker_that_is_replaced(stage: Stage, crew: Workers) -> tuple[Agent, int]:
    agent = stage.agent("chat", crew.script(calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    [old] = crew.rows().pids
    model = crew.script(say("Hello."))
    for _ in range(3):
        stage.turn(model)
    assert old not in crew.rows().of("start").pids
    return agent, old


def test_a_worker_that_is_replaced_keeps_its_threads_that_wait(stage: Stage):
    crew = stage["short-1"]
    agent, old = _waiting_at_a_worker_that_is_replaced(stage, crew)
    assert alive(old)
    assert the_text(agent.take(go(Result("c1", "one")))) == "Same."
    assert eventually(lambda: not alive(old))


def test_a_worker_that_was_replaced_goes_when_the_next_one_is(stage: Stage):
    crew = stage["short-2"]
    agent, old = _waiting_at_a_worker_that_is_replaced(stage, crew)
    second = stage.agent("chat", crew.script(calls(OTHER) + say("Same.")))
    second.take(go())  # waits at the second
    for _ in range(2):
        stage.turn(crew.script(say("Hello.")))
    assert eventually(lambda: not alive(old))
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    assert the_text(second.take(go(Result("c2", "two")))) == "Same."


def test_a_worker_that_has_nothing_left_to_do_drives_out_no_other(stage: Stage):
    crew = stage["short-3"]
    agent, old = _waiting_at_a_worker_that_is_replaced(stage, crew)
    for _ in range(2):
        stage.turn(crew.script(say("Hello.")))
    crew.wait_for(lambda rows: len(rows.of("start")) == 2)
    assert the_text(agent.take(go(Result("c1", "one")))) == "Same."
    assert eventually(lambda: not alive(old))


def test_a_model_never_heard_of_gets_a_worker_that_knows_it(stage: Stage):
    crew = stage["learning"]
    slow = in_background(lambda: stage.turn(crew.script(say("Still") + sleep(0.6) + say(" here.", id="msg_2"))))
    crew.wait_for(lambda rows: rows.heard("turn/start"))
    [old] = crew.rows().pids
    assert the_text(stage.turn(crew.script(say("I am new."), model="brand-new"))) == "I am new."
    rows = crew.rows()
    [began] = rows.of("start")
    assert {"brand-new", "s0", f"s{MODELS - 1}"} <= _known(began)
    assert rows.by(began["pid"]).heard("thread/start")[0]["model"] == "brand-new"
    assert the_text(slow.result()) == "Still\n\n here."
    assert eventually(lambda: not alive(old))
    assert the_text(stage.turn("learning/brand-new")) == "I am new."
    assert len(crew.rows().of("start")) == 1


def _known(began: Json) -> set[str]:
    """The models that a worker found in its home."""
    return {model["slug"] for model in json.loads(began["files"]["models.json"])["models"]}


def test_the_models_of_the_settings_are_never_forgotten(stage: Stage):
    crew = stage["many"]
    assert the_text(stage.turn("many/brand-new")) == "Hello."
    [began] = crew.rows().of("start")
    assert {"brand-new", "m0", "m69"} <= _known(began)


# Clients that leave


LEFT: dict[str, tuple[list[Step], bytes]] = {
    "before the first byte": (hang(), b""),
    "in the text": (say("Half") + hang(), b"Half"),
    "between calls": (item(*CALL) + ask(*CALL) + hang(), b""),
    "thinking": (tell("item/reasoning/summaryTextDelta", itemId="rs", delta="Hm", summaryIndex=0) + hang(), b""),
}


def _abandon(stage: Stage, crew: Workers, rounds: int) -> int:
    """Leave turns of every kind, while as many wait in the queue and leave it; returns how many were running."""
    models = {kind: crew.script(script) for kind, (script, _) in LEFT.items()}
    running, gateway = 0, stage.gateway

    def ended() -> int:  # of these turns only: others may still be ending
        return sum(turn.get("model") in models.values() for turn in gateway.turns())

    over = ended()
    for number in range(rounds):
        kind = [*LEFT][number % len(LEFT)]
        callers = [stage.call(models[kind]) for _ in range(4)]
        running += 4
        crew.wait_for(lambda rows, running=running: len(rows.heard("turn/start")) == running)
        for caller in callers:
            caller.hear(LEFT[kind][1])
        for caller in [stage.call(models[kind]) for _ in range(4)]:
            caller.close()
        over += 4
        gateway.wait_until(lambda over=over: ended() >= over)  # so that none of them gets a place
        for caller in callers:
            caller.close()
        over += 4
        gateway.wait_until(lambda over=over: ended() >= over)
    return running


def test_a_hundred_abandoned_turns_leave_nothing_behind(stage: Stage):
    crew = stage["four"]
    running = _abandon(stage, crew, 13)
    assert 2 * running > 100
    rows = crew.wait_for(lambda rows: len(rows.heard("thread/unsubscribe")) == running)
    assert len(rows.heard("turn/interrupt")) == len(rows.threads) == running
    assert most_at_once(rows) == {rows.pids[0]: 4}
    quick = crew.script(say("Hello."))
    assert {the_text(seen) for seen in at_once(*[lambda: stage.turn(quick)] * 4)} == {"Hello."}


@pytest.mark.soak
def test_thousands_of_abandoned_turns_leave_nothing_behind(stage: Stage):
    """All leave at the same time, so that places are given to some who have just gone."""
    crew = stage["four"]
    models = [crew.script(script) for script, _ in LEFT.values()]
    for _ in range(60):
        crew.forget()
        callers = [stage.call(model) for model in models for _ in range(10)]
        crew.wait_for(lambda rows: len(rows.heard("turn/start")) >= 4)
        for caller in callers:
            caller.close()
        crew.wait_for(lambda rows: len(rows.said("turn/completed")) == len(rows.heard("turn/start")))
    quick = crew.script(say("Hello."))
    assert {the_text(seen) for seen in at_once(*[lambda: stage.turn(quick)] * 4)} == {"Hello."}


def test_a_plain_request_that_is_given_up_interrupts_its_turn(stage: Stage):
    crew = stage["usual"]
    model = crew.script(say("Half") + hang())
    for dialect in NAMES:
        crew.forget()
        body = question(dialect, model, (), stream=False)
        leave_when(stage.gateway, PATHS[dialect], body, lambda: crew.rows().heard("turn/start"))
        crew.wait_for(lambda rows: rows.heard("turn/interrupt") and rows.heard("thread/unsubscribe"))


def test_a_thread_that_comes_when_its_client_has_left_is_let_go(stage: Stage):
    crew = stage["usual"]
    caller = stage.call(crew.script(Take(say("Never."), **{"thread/start": {"after": 2.0}})))
    crew.wait_for(lambda rows: rows.heard("thread/start"))
    caller.close()
    rows = crew.wait_for(lambda rows: rows.threads)
    assert rows.heard("turn/start") == []
    crew.wait_for(lambda rows: rows.heard("thread/unsubscribe"), 1)


def test_a_turn_is_interrupted_as_soon_as_its_name_is_known(stage: Stage):
    crew = stage["usual"]
    for take in (
        Take(hang(), **{"turn/start": {"after": 0.5}}),  # it is known by its notification
        Take(sleep(0.3) + hang()),
    ):
        caller = stage.call(crew.script(take))
        crew.wait_for(lambda rows: rows.heard("turn/start"))
        caller.close()
        crew.wait_for(lambda rows: rows.heard("turn/interrupt"))
        crew.wait_for(lambda rows: rows.heard("thread/unsubscribe"))
        crew.forget()


def test_a_turn_that_cannot_be_interrupted_gives_its_place_back(stage: Stage):
    crew = stage["impatient"]
    caller = stage.call(crew.script(deaf() + say("Half") + hang())).hear(b"Half")
    caller.close()
    crew.wait_for(lambda rows: rows.heard("turn/interrupt"))
    quick = crew.script(say("Hello."))
    assert eventually(lambda: stage.post("chat", question("chat", quick, (), stream=False)).status_code == 200, 4)
    assert len(crew.rows().heard("turn/interrupt")) == 1


@pytest.fixture(scope="module")
def stopping(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stopping")
    crew = Workers(folder)
    settings = {"PROXY_STOP_AFTER_TOOLS": "1", "PROXY_STOP_AFTER_TOOLS_GRACE_MS": "50"}
    stage = Stage(folder, [crew], crew.backend(profile="turns = 4"), http, **settings)
    yield stage
    stage.stop()


def test_turns_that_are_stopped_after_their_calls_leave_nothing_behind(stopping: Stage):
    crew = stopping["codex"]
    model = crew.script(item(*CALL) + ask(*CALL) + hang())
    for _ in range(6):
        for seen in at_once(*[lambda: stopping.turn(model)] * 4):
            assert ([call.id for call in seen.calls], seen.finish) == (["c1"], "calls")
    rows = crew.wait_for(lambda rows: len(rows.heard("thread/unsubscribe")) == 24)
    assert len(rows.heard("turn/interrupt")) == len(rows.threads) == 24
    quick = crew.script(say("Hello."))
    assert {the_text(seen) for seen in at_once(*[lambda: stopping.turn(quick)] * 4)} == {"Hello."}


def test_a_turn_that_was_stopped_after_its_calls_is_told_anew(stopping: Stage):
    stopping.forget()
    crew = stopping["codex"]
    agent = stopping.agent("chat", crew.script(item(*CALL) + ask(*CALL) + hang(), say("New.")))
    agent.take(go())
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    assert len(crew.rows().injected[-1]) == 3


# What app-server asks


NO_SUCH_METHOD = -32601
DECLINED: dict[str, Any] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
    "account/chatgptAuthTokens/refresh": None,
    "unheard/of": None,
}


def _each_is_declined(rows: Rows) -> None:
    for method, expected in DECLINED.items():
        [demanded] = rows.said(method)
        [answer] = rows.answered(demanded["id"])
        assert answer.get("result") == expected, method
        if expected is None:
            assert answer["error"]["code"] == NO_SUCH_METHOD
            assert method in answer["error"]["message"]


@each_dialect
@pytest.mark.parametrize("threadless", [False, True], ids=["in a turn", "of no thread"])
def test_what_nobody_serves_is_declined_once(stage: Stage, dialect: Name, threadless: bool):
    crew = stage["usual"]
    demands = [step for method in DECLINED for step in demand(method, threadless=threadless)]
    assert the_text(stage.turn(crew.script(demands + sleep(0.1) + say("Well.")), dialect)) == "Well."
    _each_is_declined(crew.rows())


def test_what_nobody_serves_is_declined_when_the_client_has_left(stage: Stage):
    crew = stage["usual"]
    demands = [step for method in DECLINED for step in demand(method)]
    late = sleep(0.3) + demands + ask(*CALL) + sleep(2.4) + ask(*OTHER) + hang()
    caller = stage.call(crew.script(deaf() + say("Half") + late)).hear(b"Half")
    caller.close()
    # The first while the turn is being left, the second when nobody knows it any more.
    rows = crew.wait_for(lambda rows: len(rows.answers()) == len(DECLINED) + 2)
    _each_is_declined(rows)
    for demanded in rows.said("item/tool/call"):
        [answer] = rows.answered(demanded["id"])
        assert answer["result"]["success"] is False
        assert answer["result"]["contentItems"][0]["text"]


def test_what_nobody_serves_is_declined_while_the_thread_waits(stage: Stage):
    """The client does not know of a call that comes then, so the whole is told anew."""
    crew = stage["usual"]
    demands = [step for method in DECLINED for step in demand(method)]
    late = deaf() + sleep(0.2) + demands + ask(*OTHER) + hang()
    agent = stage.agent("chat", crew.script(item(*CALL) + ask(*CALL) + done() + late, say("New.")))
    assert [call.id for call in agent.take(go()).calls] == ["c1"]
    rows = crew.wait_for(lambda rows: len(rows.answers()) == len(DECLINED) + 1)
    _each_is_declined(rows)
    [answer] = rows.answered(rows.said("item/tool/call")[-1]["id"])
    assert answer["result"]["success"] is False
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    assert len(crew.rows().answers()) == len(DECLINED) + 1


@pytest.mark.parametrize("instead", [{"callId": "$absent"}, {"tool": "$absent"}, {"callId": None}, {"tool": ""}])
def test_a_call_without_id_or_name_fails_in_words_for_the_model(stage: Stage, instead: Json):
    crew = stage["usual"]
    seen = stage.turn(crew.script(ask(*CALL, **instead) + results() + say("I read: {results}")))
    assert the_text(seen) == "I read: Error: the call has no id or no name."
    assert seen.calls == ()
    [answer] = crew.rows().answers()
    assert answer["result"]["success"] is False


@pytest.mark.parametrize(
    "line",
    [
        '{"method":"unheard/of","id":7001,"params":[]}',
        '{"method":"unheard/of","id":7001,"params":{"threadId":null}}',
        '{"method":"unheard/of","id":7001,"params":{"threadId":"$thread","turn":"$turn"}}',
        '{"method":"unheard/of","id":7001,"params":{"threadId":"$thread","message":[]}}',
        '{"method":"item/tool/call","id":7001,"params":{"threadId":"$thread","callId":5,"tool":"look","arguments":{}}}',
    ],
)
def test_a_request_with_unreadable_parameters_is_answered(stage: Stage, line: str):
    crew = stage["usual"]
    assert the_text(stage.turn(crew.script(write(line) + sleep(0.1) + say("Well.")))) == "Well."
    assert len(crew.rows().answered(7001)) == 1


# Odd lines


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("this is not json", "frame_skipped"),
        ('{"method":"item/agentMessage/delta","params":{"threadId":[]}}', "frame_skipped"),
        (
            '{"method":"item/tool/call","id":7002,"params":{"callId":"c9","tool":"look","arguments":{}}}',
            "request_declined",
        ),
        ('{"method":"item/tool/call","id":7002}', "request_declined"),
    ],
)
def test_a_line_that_names_no_thread_leaves_a_note(stage: Stage, line: str, code: str):
    crew = stage["usual"]
    model = crew.script(write(line) + sleep(0.1) + say("Well."))
    answer = stage.post("chat", question("chat", model, (), stream=False))
    assert answer.json()["choices"][0]["message"]["content"] == "Well."
    assert [note["code"] for note in json.loads(answer.headers["x-toolwire-notes"])] == [code]
    assert len(crew.rows().answered(7002)) == line.count("7002")


ODD = [
    "",
    "   ",
    "this is not json",
    "[1,2]",
    '"text"',
    "{}",
    '{"method":"item/agentMessage/delta","params":{"threadId":"$thread","delta":5}}',
    '{"method":"item/agentMessage/delta","params":{"threadId":"nobody","turnId":"x","itemId":"m","delta":"Not mine."}}',
    '{"method":"turn/completed","params":{"threadId":"nobody","turn":{"id":"$turn","status":"completed"}}}',
    '{"method":"turn/completed","params":{"threadId":"$thread","turn":{"id":"another","status":"failed"}}}',
    '{"method":"unheard/of","params":{"threadId":"$thread"}}',
    '{"id":99999,"result":{}}',
    '{"id":"99999.thread","result":{"thread":{"id":"nobody"}}}',
    '{"id":null,"error":{"code":-32700,"message":"Parse error"}}',
    '{"method":"item/agentMessage/delta","params":{"threadId":"$thread","delta":"\\ud800"}}',
    '{"method":"error","params":null}',
]


@pytest.mark.parametrize("line", ODD)
def test_an_odd_line_disturbs_nobody(stage: Stage, line: str):
    crew = stage["usual"]
    other = in_background(lambda: stage.turn(crew.script(say("Un") + sleep(0.1) + say("disturbed.", id="msg_2"))))
    seen = stage.turn(crew.script(write(line) + say("Hel") + write(line) + say("lo.", id="msg_2")))
    assert the_text(seen) == "Hel\n\nlo."
    assert the_text(other.result()) == "Un\n\ndisturbed."


@pytest.mark.parametrize("method", ["thread/start", "turn/start"])
def test_an_answer_that_comes_twice_counts_once(stage: Stage, method: str):
    crew = stage["usual"]
    assert the_text(stage.turn(crew.script(Take(say("Once."), **{method: {"twice": True}})))) == "Once."
    assert len(crew.rows().heard("turn/start")) == 1


@each_dialect
@streamed_and_plain
def test_a_line_of_five_megabytes_arrives_whole(stage: Stage, dialect: Name, stream: bool):
    crew = stage["usual"]
    big = "x" * 5_000_000
    seen = stage.turn(crew.script(say(big)), dialect, stream=stream)
    assert (len(seen.text), {*seen.text}) == (5_000_000, {"x"})


def test_a_turn_may_be_told_before_it_is_answered(stage: Stage):
    crew = stage["usual"]
    take = Take(say("Early.") + sleep(0.3), **{"turn/start": {"after": 0.15}, "thread/inject_items": {"after": 0.1}})
    assert the_text(stage.turn(crew.script(take))) == "Early."
    late = Take(say("Early."), **{"turn/start": {"after": 0.2}})
    assert the_text(stage.turn(crew.script(late))) == "Early."
    crew.wait_for(lambda rows: len(rows.heard("thread/unsubscribe")) >= 2)


def test_a_turn_that_fails_says_why(stage: Stage):
    crew = stage["usual"]
    error = {"message": "You are out of credits.", "codexErrorInfo": "usageLimitExceeded"}
    refused = stage.refused(crew.script(end("failed", error)))
    assert (refused.status, refused.message) == (429, "You are out of credits.")


# The gateway's end, and the homes of workers


def _at_work(folder: Path, http: httpx.Client, homes: Path) -> tuple[Stage, list[int]]:
    """A gateway whose workers have a turn that runs and one that waits, and the processes of the workers."""
    crew, stubborn = Workers(folder, "codex"), Workers(folder, "stubborn")
    tables = crew.backend(workers=2) + stubborn.backend("--manner", "stubborn")
    stage = Stage(folder, [crew, stubborn], tables, http, TMPDIR=str(homes))
    stage.agent("chat", crew.script(calls(CALL) + say("Never."))).take(go())
    stage.call(crew.script(say("Half") + hang())).hear(b"Half")
    stubborn.wait_for(lambda rows: rows.heard("initialized"))
    rows = crew.wait_for(lambda rows: len(rows.heard("initialized")) == 2)
    return stage, [*rows.pids, *stubborn.rows().pids]


def test_a_signal_ends_the_workers_and_clears_their_homes(tmp_path: Path, http: httpx.Client):
    homes = tmp_path / "tmp"
    homes.mkdir()
    stage, pids = _at_work(tmp_path, http, homes)
    assert len(pids) == len([*homes.glob("toolwire-codex-*")]) == 3
    assert stage.gateway.stop() == 0
    stage.forget()
    assert not any(alive(pid) for pid in pids)
    assert [*homes.iterdir()] == []


def test_workers_end_when_the_gateway_is_killed_and_the_next_one_clears_up(tmp_path: Path, http: httpx.Client):
    homes = tmp_path / "tmp"
    homes.mkdir()
    crew = Workers(tmp_path)
    stage = Stage(tmp_path, [crew], crew.backend(workers=2), http, TMPDIR=str(homes))
    stage.call(crew.script(say("Half") + hang())).hear(b"Half")
    rows = crew.wait_for(lambda rows: len(rows.heard("initialized")) == 2)
    stage.gateway.kill()
    crew.wait_for(lambda rows: len(rows.of("end")) == 2)
    stage.forget()
    assert eventually(lambda: not any(alive(pid) for pid in rows.pids))
    for home in homes.iterdir():
        os.utime(home, (0, 0))  # long ago
    again = Gateway(tmp_path, crew.backend(), TMPDIR=str(homes))
    crew.wait_for(lambda rows: rows.heard("initialized"))
    assert len([*homes.iterdir()]) == 1
    again.stop()
    assert [*homes.iterdir()] == []


@pytest.mark.parametrize("client", ["chat", "messages", "chained"])
def test_calls_that_wait_at_a_gateway_that_is_killed_are_told_anew(tmp_path: Path, http: httpx.Client, client: Client):
    """With the reasoning that led to them, also for a client that cannot carry it."""
    crew = Workers(tmp_path)
    config = '[store]\nurl = "sqlite:kept.db"\n' + crew.backend()
    stage = Stage(tmp_path, [crew], config, http)
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "SEALED"}
    reasons = tell("rawResponseItem/completed", item=thought)
    agent = stage.agent(client, crew.script(reasons + calls(CALL) + say("Same."), say("New.")))
    agent.take(go())
    stage.gateway.kill()
    stage.gateway = Gateway(tmp_path, HEAD + config)
    assert the_text(agent.take(go(Result("c1", "one")))) == "New."
    sent = crew.rows().injected[-1]
    assert [each["type"] for each in sent][-3:] == ["reasoning", "function_call", "function_call_output"]
    assert sent[-3]["encrypted_content"] == "SEALED"
    stage.stop()


def test_a_signal_does_not_wait_for_a_worker_that_never_greets(tmp_path: Path, http: httpx.Client):
    crew = Workers(tmp_path)
    stage = Stage(tmp_path, [crew], crew.backend("--manner", "mute"), http)
    crew.wait_for(lambda rows: rows.heard("initialize"))
    stage.gateway.process.terminate()
    try:
        assert stage.gateway.process.wait(120) == 0
    finally:
        stage.gateway.kill()
    assert not alive(crew.rows().pids[0])


def test_a_provider_of_the_operators_own_is_the_one_that_threads_ask_for(tmp_path: Path, http: httpx.Client):
    crew = Workers(tmp_path)
    provider = {"model_provider": "mine", "model_providers": {"mine": {"base_url": "http://127.0.0.1:9/v1"}}}
    stage = Stage(tmp_path, [crew], crew.backend(overrides=provider), http)
    assert the_text(stage.turn(crew.script(say("Hello.")))) == "Hello."
    [started] = crew.rows().heard("thread/start")
    assert started["modelProvider"] == "mine"
    stage.stop()


def test_a_worker_has_a_home_of_its_own_and_the_users_login(tmp_path: Path, http: httpx.Client):
    user, homes = tmp_path / "user", tmp_path / "tmp"
    user.mkdir()
    homes.mkdir()
    (user / "auth.json").write_text('{"tokens": {"access_token": "secret-of-the-login"}}')
    crew = Workers(tmp_path)
    table = crew.backend(
        base_url="http://127.0.0.1:9/v1", api_key_env="CODEX_TEST_KEY", overrides={"a": {"b": 1}, "c": "d"}
    )
    secrets = {"CODEX_TEST_KEY": "secret-of-the-operator", "TOOLWIRE_LOG_LEVEL": "debug"}
    stage = Stage(tmp_path, [crew], table, http, TMPDIR=str(homes), CODEX_HOME=str(user), **secrets)
    assert the_text(stage.turn(crew.script(say("Hello.")))) == "Hello."
    stage.post("chat", question("chat", crew.script(die("secret-of-the-worker\n")), (), stream=True), "secret-of-mine")
    crew.wait_for(lambda rows: len(rows.heard("initialized")) == 2)
    first, second = crew.rows().of("start")
    assert first["home"] != second["home"]
    assert Path(first["home"]).parent == homes
    assert not Path(first["home"]).exists()
    assert {*first["files"]} == {"config.toml", "models.json", "auth.json", "owner.lock"}
    assert first["files"]["auth.json"] == str(user / "auth.json")
    assert (Path(second["home"]) / "auth.json").samefile(user / "auth.json")
    assert 'model_provider = "toolwire"' in first["files"]["config.toml"]
    assert f"{first['home']}/models.json" in first["files"]["config.toml"]
    assert first["argv"][-5:] == ["app-server", "-c", "a.b=1", "-c", 'c="d"']
    stage.stop()
    written = "\n".join((*stage.gateway.log, first["files"]["config.toml"]))
    assert "secret-of" not in written
    assert (user / "auth.json").exists()
