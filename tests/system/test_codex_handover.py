"""Codex threads of several workers: results that land elsewhere, processes that die or stand still, and no turn twice.

The app-server is scripted (`tests/support/app_server.py`) and logs all it hears. A client picks its worker by the
connection that it uses.
"""

import json
import os
import random
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.app_server import Rows, Step, Workers, calls, hang, say, sleep
from tests.support.client_readers import PATHS, Held, Refused, hold
from tests.support.conversations import AGENTS, CLIENTS, Agent, Client, Result, ScriptedConversation
from tests.support.conversations import Step as Say
from tests.support.doors import KEY, Doors, patched
from tests.support.fleet import PATIENCE, Fleet, signal_to, until
from tests.support.gateway import calls_of, good, response_body, text_of, tool
from tests.support.scripts import Name, Script, Seen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

Json = dict[str, Any]

THEIRS = "key-of-theirs"
HEAD = "[server]\ndrain = 5\nidle_timeout = 600\n"
STOPPED = """
    import asyncio, os, pathlib, signal
    connect = host.HostedCodexUpstream._connect
    async def connect_to_stopped(self, message):
        file = pathlib.Path("stop")
        if message.turn is not None and file.exists():
            os.kill(pid := int(file.read_text()), signal.SIGSTOP)
            while ") T" not in pathlib.Path(f"/proc/{pid}/stat").read_text():
                pass
            file.unlink()
            return await connect_as_usual(self, message)
        return await connect(self, message)
    connect_as_usual = connect
    host.HostedCodexUpstream._connect = connect_to_stopped
"""
"""The process whose id is in the file `stop` is stopped right before a turn that waits is continued."""
UNFENCED = (
    STOPPED
    + """
    async def connect_as_usual(self, message):
        reader, writer = await asyncio.open_unix_connection(self._host.path)
        host._write(writer, message)
        return host.HostedThread(reader, writer, {}, self._host)
    async def open_at_once(self, backend, dialogue, reader):
        return await self._upstreams[backend].open(dialogue, "")
    host.CodexHostServer._open_while_connected = open_at_once
"""
)
"""Results are sent before the host has said that it has opened the thread, and it takes them."""

each_client = pytest.mark.parametrize("client", CLIENTS)
streamed_and_plain = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


class Stage:
    """Some workers with a scripted app-server each. Requests go where `slots` says, one after the other."""

    def __init__(self, folder: Path, workers: int, path: str, head: str = HEAD, profile: str = "") -> None:
        self.crew = Workers(folder)
        self.count = workers
        backend = self.crew.backend(workers=workers, profile=profile)
        self.fleet = Fleet(folder, head + backend, workers, PYTHONPATH=path)
        self.doors = Doors(self.fleet, workers)
        self.slots: Iterator[int] = iter(())

    def ready(self) -> "Stage":
        """With a connection to each worker, and logs that begin anew."""
        until(lambda: self.fleet.all_ready(self.count))
        self.crew.wait_for(lambda rows: self._app_servers() == self.count, PATIENCE)
        self.doors.open()
        self.crew.forget()
        return self

    def _app_servers(self) -> int:
        """How many app-servers live whose gateways do."""
        return sum(parent_of(pid) in self.fleet.pids for pid in self.crew.all_rows().pids)

    def stop(self) -> None:
        self.doors.close()
        for pid in self.fleet.pids:
            strike(pid, signal.SIGCONT)
        self.fleet.stop()

    def post(self, path: str, body: Json, key: str = KEY) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return self.doors[next(self.slots)].post(path, json=body, headers=headers)

    def ask(self, dialect: Name, body: Json, key: str = KEY) -> Held:
        """The turn in an answer. Agents have keys of their own, which are of no interest here."""
        given = key if key == THEIRS else KEY
        return hold(self.post(PATHS[dialect], body, given), dialect, stream=bool(body.get("stream")))

    def agent(self, client: Client, model: str, *slots: int, stream: bool = True) -> Agent:
        """A client whose requests go to these workers, one after the other."""
        self.slots = iter(slots)
        return AGENTS[client](self, model, ScriptedConversation(()), stream=stream)  # pyright: ignore[reportArgumentType]

    def host(self) -> int:
        """The process of the gateway that has the latest thread."""
        [*_, row] = [row for row in self.crew.rows() if "thread" in row.get("line", {}).get("result", {})]
        return parent_of(row["pid"])


def strike(pid: int, number: signal.Signals) -> None:
    """Send a signal to a worker that the supervisor may have ended meanwhile."""
    with suppress(ProcessLookupError):
        signal_to(pid, number)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("handover")
    stage = Stage(folder, 3, patched(folder))
    yield stage
    stage.stop()


@pytest.fixture
def stage(everything: Stage) -> Stage:
    """Three workers, which have all the time they need to answer each other."""
    return everything.ready()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Starts workers for one test."""
    started: list[Stage] = []

    def begin(workers: int, answer: float, hung: int, more: str = "", head: str = HEAD) -> Stage:
        started.append(Stage(tmp_path, workers, patched(tmp_path, answer, hung, more), head))
        return started[-1].ready()

    yield begin
    for stage in started:
        stage.stop()


def call(id: str) -> list[Step]:
    return calls((id, "look", '{"path":"a"}'))


def go(user: str = "Go.") -> Say:
    return Say(Script(), user)


def bring(*results: Result, user: str = "") -> Say:
    return Say(Script(), user, results)


def the_text(seen: Seen) -> str:
    assert seen.finish == "stop", seen
    return seen.text


def times_run(rows: Rows, result: str) -> int:
    """How often a model was asked to go on with this result: in a thread that waited, or in a new one."""
    answers = [answer for answer in rows.answers() if f'"{result}"' in json.dumps(answer.get("result"))]
    anew = [items for items in rows.injected if last_output(items) == result]
    return len(answers) + len(anew)


def last_output(items: list[Json]) -> str:
    outputs = [item["output"] for item in items if item["type"] == "function_call_output"]
    last = outputs[-1] if outputs else ""
    return last if isinstance(last, str) else "".join(part.get("text", "") for part in last)


# Results that land elsewhere


@each_client
@streamed_and_plain
def test_a_result_that_lands_elsewhere_goes_to_the_thread_that_waits(stage: Stage, client: Client, stream: bool):
    model = stage.crew.script(call("c1") + call("c2") + call("c3") + say("Got {results}."))
    agent = stage.agent(client, model, 0, 1, 2, 0, stream=stream)
    seen = [agent.take(go())]
    for number in (1, 2, 3):
        assert [each.id for each in seen[-1].calls] == [f"c{number}"]
        seen.append(agent.take(bring(Result(f"c{number}", f"r{number}"))))
    assert the_text(seen[-1]) == "Got r1 r2 r3."
    assert {each.tokens for each in seen} == {seen[0].tokens}, "each turn has its own tokens, not the thread's"
    rows = stage.crew.rows()
    assert len(rows.threads) == len(rows.heard("turn/start")) == 1
    assert [times_run(rows, result) for result in ("r1", "r2", "r3")] == [1, 1, 1]


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
def test_parallel_results_and_words_of_the_user_land_elsewhere(stage: Stage, client: Client):
    made = ("c1", "look", '{"path":"a"}'), ("c2", "find", '{"path":"b"}')
    script = say("Let me look.", id="msg_0") + calls(*made, asked=(1, 0)) + say("Got {results} and {words}")
    agent = stage.agent(client, stage.crew.script(script), 0, 2)
    assert [each.id for each in agent.take(go()).calls] == ["c1", "c2"]
    last = agent.take(bring(Result("c2", "two"), Result("c1", "one"), user="thanks."))
    assert the_text(last) == "Got one two and thanks."
    assert len(stage.crew.rows().threads) == 1


def test_submitted_outputs_land_elsewhere(stage: Stage):
    model = stage.crew.script(call("c1") + say("Got {results}."))
    stage.slots = iter((1, 2))
    asked = good(stage.post(PATHS["responses"], response_body(model, tools=[tool("look")]))).json()
    assert [each["call_id"] for each in calls_of(asked)] == ["c1"]
    outputs = {"tool_outputs": [{"tool_call_id": "c1", "output": "one"}]}
    answer = stage.post(f"/v1/responses/{asked['id']}/submit_tool_outputs", outputs)
    assert text_of(good(answer).json()) == "Got one."
    assert len(stage.crew.rows().threads) == 1


def test_a_long_line_and_many_of_them_arrive_whole_from_elsewhere(stage: Stage):
    pieces = [f"{number:04d} " for number in range(2000)]
    script = call("c1") + say("x" * 1_000_000, id="msg_1") + say(*pieces, id="msg_2")
    agent = stage.agent("chat", stage.crew.script(script), 0, 1)
    agent.take(go())
    assert the_text(agent.take(bring(Result("c1", "y" * 300_000)))).split("x")[-1].split() == "".join(pieces).split()
    assert len(stage.crew.rows().threads) == 1


def test_an_edited_history_is_told_anew_elsewhere_and_the_thread_waits_on(stage: Stage):
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Same."), say("New.")), 0, 1, 1)
    agent.take(go())
    body = json.loads(json.dumps(agent.request(bring(Result("c1", "one")))))
    body["tools"].pop()
    assert the_text(stage.ask("chat", body).seen) == "New."
    assert stage.crew.rows().answers() == []
    assert the_text(stage.ask("chat", agent.request(Say(Script()))).seen) == "Same."


def test_nobody_goes_on_with_the_thread_of_another_elsewhere(stage: Stage):
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Ours."), say("Theirs.")), 0, 1, 1)
    agent.take(go())
    body = agent.request(bring(Result("c1", "one")))
    assert the_text(stage.ask("chat", body, THEIRS).seen) == "Theirs."
    assert stage.crew.rows().answers() == []
    assert the_text(stage.ask("chat", body).seen) == "Ours."


def test_every_continuation_goes_to_its_thread_wherever_it_lands(stage: Stage):
    """Only first turns begin threads, however requests are routed."""
    rounds, talks = 5, 8
    model = stage.crew.script(
        *(
            [step for number in range(rounds) for step in call(f"t{talk}c{number}")] + say("Got {results}.")
            for talk in range(talks)
        )
    )
    routes = random.Random(7)

    def talk(number: int) -> Seen:
        agent = AGENTS[CLIENTS[number % len(CLIENTS)]](Scattered(stage, routes), model, ScriptedConversation(()), stream=True)  # type: ignore[arg-type]  # fmt: skip
        seen = agent.take(go(f"Talk {number}."))
        while seen.calls:
            seen = agent.take(bring(*(Result(each.id, f"r-{each.id}") for each in seen.calls)))
        return seen

    with ThreadPoolExecutor(4) as pool:
        texts = [the_text(seen) for seen in pool.map(talk, range(talks))]
    assert sorted(texts) == sorted(
        f"Got {' '.join(f'r-t{talk}c{number}' for number in range(rounds))}." for talk in range(talks)
    )
    rows = stage.crew.rows()
    assert len(rows.threads) == talks
    turns = [times_run(rows, f"r-t{talk}c{number}") for talk in range(talks) for number in range(rounds)]
    assert set(turns) == {1}


class Scattered:
    """Each request goes to another worker, by chance."""

    def __init__(self, stage: Stage, routes: random.Random) -> None:
        self._stage = stage
        self._routes = routes

    def ask(self, dialect: Name, body: Json, key: str) -> Held:
        doors, slot = self._stage.doors, self._routes.randrange(self._stage.count)
        with doors.lock(slot):
            return hold(doors[slot].post(PATHS[dialect], json=body), dialect, stream=True)


# Whoever goes


def leave_in_the_middle(stage: Stage, model: str) -> threading.Thread:
    """A client that is shown the first words of a turn that was handed over, and waits for more in vain."""
    agent = stage.agent("chat", model, 0)
    agent.take(go())
    body, door, shown = agent.request(bring(Result("c1", "one"))), stage.doors[1], threading.Event()

    def read() -> None:
        with door.stream("POST", PATHS["chat"], json=body) as response:
            for line in response.iter_lines():
                if "Half" in line:
                    shown.set()
                    return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert shown.wait(PATIENCE)
    return reader


def test_a_client_that_leaves_interrupts_its_turn_elsewhere(stage: Stage):
    leave_in_the_middle(stage, stage.crew.script(call("c1") + say("Half") + hang())).join(PATIENCE)
    rows = stage.crew.wait_for(lambda rows: rows.heard("turn/interrupt"), PATIENCE)
    assert times_run(rows, "one") == 1


def pid_behind(stage: Stage, response: httpx.Response) -> int:
    """The worker at the other end of a connection."""
    _, port = response.extensions["network_stream"].get_extra_info("client_addr")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    [inode] = [row[9] for row in rows if row[2].endswith(f":{port:04X}")]

    def holds(pid: int) -> bool:
        return any(os.readlink(link) == f"socket:[{inode}]" for link in Path(f"/proc/{pid}/fd").iterdir())

    [found] = [pid for pid in stage.fleet.pids if holds(pid)]
    return found


def test_a_front_that_is_killed_leaves_no_turn_running_elsewhere(stage: Stage):
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Half") + hang()), 0, 1)
    agent.take(go())
    body = agent.request(bring(Result("c1", "one")))
    with stage.doors[1].stream("POST", PATHS["chat"], json=body) as response:
        lines = response.iter_lines()
        assert any("Half" in line for line in lines)
        signal_to(pid_behind(stage, response), signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    rows = stage.crew.wait_for(lambda rows: rows.heard("turn/interrupt"), PATIENCE)
    assert times_run(rows, "one") == 1


@pytest.mark.parametrize("shown", ["Half", ""])
def test_a_host_that_is_killed_in_the_middle_of_a_turn_is_told_and_nothing_is_asked_again(stage: Stage, shown: str):
    words = say(shown) if shown else []
    agent = stage.agent("chat", stage.crew.script(call("c1") + words + hang(), say("Again.")), 0, 1)
    agent.take(go())
    host = stage.host()

    def kill() -> None:
        stage.crew.wait_for(lambda rows: times_run(rows, "one"), PATIENCE)
        if shown:
            stage.crew.wait_for(lambda rows: rows.said("item/agentMessage/delta"), PATIENCE)
        signal_to(host, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    if shown:
        held = stage.ask("chat", agent.request(bring(Result("c1", "one"))))
        assert (held.seen.text, held.seen.finish) in (("Half", "failed"), ("", "failed"))
        assert held.error is not None
        said = held.error["message"]
    else:
        with pytest.raises(Refused) as refused:
            stage.ask("chat", agent.request(bring(Result("c1", "one"))))
        assert refused.value.status == 502
        said = refused.value.message
    killer.join(PATIENCE)
    assert "ended in the middle of the turn" in said
    rows = stage.crew.rows()
    assert (len(rows.threads), times_run(rows, "one")) == (1, 1)


def test_calls_of_a_worker_that_was_killed_wait_at_the_host(stage: Stage):
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Same.")), 0, 1)
    agent.take(go())
    with stage.doors[0].stream("GET", "/healthz") as response:
        signal_to(pid_behind(stage, response), signal.SIGKILL)
    assert the_text(agent.take(bring(Result("c1", "one")))) == "Same."
    assert times_run(stage.crew.rows(), "one") == 1


def test_calls_that_wait_at_a_host_that_was_killed_are_told_anew(stage: Stage):
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Same."), say("New.")), 0, 1)
    agent.take(go())
    signal_to(stage.host(), signal.SIGKILL)
    assert the_text(agent.take(bring(Result("c1", "one")))) == "New."
    assert times_run(stage.crew.rows(), "one") == 1


def test_calls_that_wait_at_an_app_server_that_died_are_told_anew(stage: Stage):
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Same."), say("New.")), 0, 1)
    agent.take(go())
    [app_server] = {row["pid"] for row in stage.crew.rows() if row.get("line", {}).get("method") == "turn/start"}
    os.kill(app_server, signal.SIGKILL)
    stage.crew.wait_for(lambda rows: rows.heard("initialized"), PATIENCE)  # its gateway has noticed
    assert the_text(agent.take(bring(Result("c1", "one")))) == "New."
    assert times_run(stage.crew.rows(), "one") == 1


def test_a_turn_that_was_handed_over_ends_before_its_host_is_replaced(stage: Stage):
    """New settings replace all workers, one by one."""
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Half") + sleep(2) + say(" and whole.")), 0, 1)
    agent.take(go())
    host, before = stage.host(), stage.fleet.pids
    body = agent.request(bring(Result("c1", "one")))
    with stage.doors[1].stream("POST", PATHS["chat"], json=body) as response:
        lines: list[str] = []
        for line in response.iter_lines():
            lines.append(line)
            if "Half" in line:
                assert host in before
                stage.fleet.reload()
    assert '" and whole."' in "".join(lines)
    assert '"error"' not in "".join(lines)
    stage.doors.close()  # a worker stays as long as its clients do
    until(lambda: not before & stage.fleet.pids, "all workers are new")
    assert len(stage.crew.rows().threads) == 1


# Hosts that stand still


def test_a_host_that_stands_still_is_replaced_and_its_turns_are_told_anew(start):
    stage = start(2, 0.5, 4)
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Same."), say("New.")), 0, 1)
    agent.take(go())
    signal_to(stage.host(), signal.SIGSTOP)
    assert the_text(agent.take(bring(Result("c1", "one")))) == "New."
    assert times_run(stage.crew.rows(), "one") == 1


def after_a_host_stood_still(stage: Stage, folder: Path) -> Rows:
    """The host is stopped when a turn is continued, and wakes when the client has given up. Then the client asks again."""
    agent = stage.agent("chat", stage.crew.script(call("c1") + say("Same."), say("New.")), 0, 1)
    agent.take(go())
    host, body = stage.host(), agent.request(bring(Result("c1", "one")))
    until(lambda: len(stage.fleet.turns()) == 1)
    (folder / "stop").write_text(str(host))
    address, data = stage.fleet.url.removeprefix("http://"), json.dumps(body, separators=(",", ":")).encode()
    with socket.create_connection((address.partition(":")[0], int(address.partition(":")[2])), PATIENCE) as client:
        head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {KEY}\r\n"
        client.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        until(lambda: not (folder / "stop").exists())
    until(lambda: len(stage.fleet.turns()) == 2)  # its worker has let go of the host
    signal_to(host, signal.SIGCONT)
    stage.crew.wait_for(lambda rows: rows.heard("turn/interrupt"), PATIENCE)
    stage.slots = iter((0,))
    assert the_text(stage.ask("chat", body).seen) == "New."
    return stage.crew.rows()


def test_a_host_that_stood_still_does_not_run_the_turn_when_it_wakes(start, tmp_path):
    assert times_run(after_a_host_stood_still(start(2, 90, 600, STOPPED), tmp_path), "one") == 1


def test_without_the_fence_a_host_that_stood_still_runs_the_turn_a_second_time(start, tmp_path):
    assert times_run(after_a_host_stood_still(start(2, 90, 600, UNFENCED), tmp_path), "one") == 2


# Chaos


class Talker(threading.Thread):
    """A client that talks until it is told to stop. Whatever fails it asks again, with other results."""

    def __init__(self, stage: Stage, model: str, number: int, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.ends: Counter[str] = Counter()
        self.given: list[str] = []
        self.odd: list[str] = []
        self._url = stage.fleet.url + PATHS["chat"]
        self._model = model
        self._number = number
        self._over = over

    def run(self) -> None:
        talks = 0
        while not self._over.is_set():
            self._talk(f"Talk {self._number}.{talks}.")
            talks += 1

    def _talk(self, words: str) -> None:
        history: list[Json] = [{"role": "user", "content": words}]
        for _ in range(12):
            message = self._ask(history)
            if message is None or not message.get("tool_calls"):
                return
            history.append(message)
            for each in message["tool_calls"]:
                result = f"r{self._number}-{len(self.given)}"
                self.given.append(result)
                history.append({"role": "tool", "tool_call_id": each["id"], "content": result})

    def _ask(self, history: list[Json]) -> Json | None:
        declared = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        body = {"model": self._model, "messages": history, "tools": declared}
        try:
            with httpx.Client(trust_env=False, timeout=PATIENCE) as http:
                answer = http.post(self._url, json=body)
        except httpx.HTTPError as error:
            self.ends[type(error).__name__] += 1
            if isinstance(error, httpx.TimeoutException):
                self.odd.append(repr(error))
            return None
        self.ends[str(answer.status_code)] += 1
        if answer.status_code == 200:
            return answer.json()["choices"][0]["message"]
        if answer.status_code not in (429, 502, 503, 504):
            self.odd.append(answer.text)
        return None


def test_no_turn_runs_twice_while_workers_are_killed_and_stopped(start):
    stage = start(3, 0.5, 4)
    takes = [
        [step for number in range(6) for step in [*sleep(0.01), *call(f"t{take}c{number}")]] + say("Done.")
        for take in range(400)
    ]
    model, over = stage.crew.script(*takes), threading.Event()
    talkers = [Talker(stage, model, number, over) for number in range(4)]
    for talker in talkers:
        talker.start()
    chance = random.Random(11)
    for _ in range(8):
        over.wait(0.3)
        pid = chance.choice(sorted(stage.fleet.pids))
        if chance.random() < 0.4:
            strike(pid, signal.SIGKILL)
            continue
        strike(pid, signal.SIGSTOP)
        over.wait(chance.uniform(0.2, 1.2))
        strike(pid, signal.SIGCONT)
    over.set()
    for talker in talkers:
        talker.join(PATIENCE)
    ends = sum((talker.ends for talker in talkers), Counter[str]())
    assert [fault for talker in talkers for fault in talker.odd] == []
    assert ends["200"] >= 8, ends
    rows = stage.crew.rows()
    given = [result for talker in talkers for result in talker.given]
    assert {result: times for result in given if (times := times_run(rows, result)) > 1} == {}
