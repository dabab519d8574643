"""Several gateways on one store: each knows what the others do, and takes over what one of them leaves."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_reasoning_fields import Forgetful
from tests.support.checked import responses_faults
from tests.support.conversations import Result, ScriptedConversation, Step, Strict
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gate, Responses, backend, error_of, flat, good, response_body, text_of, tool
from tests.support.gateways import PATIENCE, Gateways, frames, over, seen_until, until
from tests.support.postgres import database
from tests.support.routes import Routes, backends
from tests.support.scripts import FIND as DECLARED_FIND
from tests.support.scripts import LOOK, Calls, Says, Script, Thinks
from tests.support.upstream import Asked, Hold, Reply, Upstream

FIND = [flat(tool("find", q={"type": "string"}))]
CALLS_FIND = Reply([stream(created(), call("c1", "find", '{"q":"x"}'), completed())])
TEXT = "response.output_text.delta"

SHED = '''
import asyncio
from pathlib import Path

async def dig(mark: str) -> str:
    """Note that it was begun, and end when the file `mark`.go is there."""
    with Path(mark).open("a") as file:
        file.write("begun\\n")
    while not Path(mark + ".go").exists():
        await asyncio.sleep(0.05)
    return "dug"

def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"
'''
TOOLS = '[gateway_tools]\ntools = ["shed:dig", "shed:weather"]\n'


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Makes the configuration of a store that some gateways use together, and no others."""
    if request.param == "sqlite":
        yield lambda: '[store]\nurl = "sqlite:kept.db"\n'
        return
    server = request.getfixturevalue("postgres")
    with ExitStack() as databases:
        yield lambda: f'[store]\nurl = "{server.url(databases.enter_context(database(server)))}"\n'


def folder_of(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    folder = tmp_path_factory.mktemp(name)
    (folder / "shed.py").write_text(SHED)
    return folder


@pytest.fixture(scope="module")
def two(
    store: Callable[[], str], upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateways]:
    """Two gateways that nothing happens to."""
    folder = folder_of(tmp_path_factory, "two")
    replicas = Gateways(folder, store() + backend(upstream.url), 2, http)
    yield replicas
    replicas.stop()


@pytest.fixture
def gate(upstream: Upstream) -> Iterator[Gate]:
    """The turn of `up/slow`, which stops after `Once ` until the gate is opened."""
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["slow"] = Reply(gate)
    upstream.gone.clear()
    yield gate
    gate.open()


# Runs of another process


def test_a_run_is_polled_from_every_process(two, gate):
    first, second = two
    id = first.create("up/slow", background=True)["id"]
    until(lambda: second.retrieve(id)["status"] == "in_progress")
    gate.open()
    done = over(second, id)
    assert (done["status"], text_of(done)) == ("completed", "Once upon")
    assert first.retrieve(id) == done


def test_a_run_is_followed_live_from_every_process(two, gate):
    first, second = two
    id = first.create("up/slow", background=True)["id"]
    events = seen_until(second, id, TEXT)
    assert events.numbers == list(range(len(events.numbers)))
    gate.open()
    over(second, id)
    log = frames(first, id)
    assert frames(second, id) == log
    replayed = second.replay(id)
    assert responses_faults(replayed.frames, done=replayed.done) == []
    assert replayed.frames[: len(events.frames)] == events.frames


def test_a_follower_moves_between_the_processes_after_each_event(two, upstream):
    first, second = two
    words = [text(f"{number} ") for number in range(20)]
    upstream.replies["words"] = Reply([created(), *words, completed()])
    id = first.create("up/words", background=True)["id"]
    got: list[bytes] = []
    while not got or b'"response.completed"' not in got[-1]:
        got += frames((first, second)[len(got) % 2], id, len(got) - 1, 1)
    assert got == frames(first, id) == frames(second, id)
    assert len(got) > 20


def test_a_follower_that_leaves_another_process_does_not_end_the_run(two, gate, upstream):
    first, second = two
    id = first.create("up/slow", background=True)["id"]
    seen_until(second, id, TEXT)
    gate.open()
    assert over(second, id)["status"] == "completed"
    assert not upstream.gone.is_set()


def test_a_run_is_cancelled_from_another_process(two, gate, upstream):
    first, second = two
    id = first.create("up/slow", background=True)["id"]
    seen_until(second, id, TEXT)
    good(second.post({}, f"/{id}/cancel"))
    done = over(second, id)
    assert (done["status"], done["error"]) == ("cancelled", None)
    assert upstream.gone.wait(PATIENCE)
    assert first.retrieve(id) == done
    assert frames(first, id) == frames(second, id)


def test_a_run_is_deleted_from_another_process_and_stops(two, gate, upstream):
    first, second = two
    id = first.create("up/slow", background=True)["id"]
    seen_until(second, id, TEXT)
    assert good(second.delete(id)).json()["deleted"] is True
    assert upstream.gone.wait(PATIENCE)
    assert first.get(id).status_code == second.get(id).status_code == 404


def test_what_another_process_is_still_producing_cannot_be_continued(two, gate):
    first, second = two
    id = first.create("up/slow", background=True)["id"]
    status, error = error_of(second.post(response_body("up/slow", previous_response_id=id)))
    assert (status, error["code"]) == (400, "response_not_finished")


# Chains, submissions and conversations


def test_a_chain_goes_on_in_another_process(two, upstream):
    upstream.replies["hi"] = Reply([stream(created(), text("hi"), completed())])
    id = ""
    for number in range(4):
        continued = {"previous_response_id": id} if id else {}
        id = two[number % 2].create("up/hi", f"turn {number}", **continued)["id"]
    said = [item["content"] for item in upstream.of("hi")[-1].body["input"] if item.get("role") == "user"]
    assert [f"turn {number}" in json.dumps(content) for number, content in enumerate(said)] == [True] * 4


def at_once(*asks: Any) -> list[httpx.Response]:
    """The answers to requests that are made at the same time."""
    got: dict[int, httpx.Response] = {}

    def ask(number: int) -> None:
        got[number] = asks[number]()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [got[number] for number in range(len(asks))]


def test_outputs_submitted_to_both_processes_at_once_run_once(two, upstream):
    gate = Gate(stream(created(), text("hi")), after=(completed(),))
    upstream.replies["calls"] = [CALLS_FIND, Reply(gate)]
    id = two[0].create("up/calls", tools=FIND)["id"]
    asked = len(upstream.of("calls"))

    def submit(api: Responses) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            return client.post(
                f"{api.url}/{id}/submit_tool_outputs", json={"tool_outputs": [{"call_id": "c1", "output": "x"}]}
            )

    def open_the_gate() -> None:
        until(lambda: len(upstream.of("calls")) > asked)
        gate.open()

    answers = at_once(*[lambda api=api: submit(api) for api in (*two, *two)], open_the_gate)[:-1]
    bodies = [good(answer).json() for answer in answers]
    assert all(body == bodies[0] for body in bodies)
    assert text_of(bodies[0]) == "hi"
    assert len(upstream.of("calls")) == asked + 1


def test_turns_of_one_conversation_are_not_mixed(two, upstream):
    """Each sees all of those before it, whichever process it is in."""
    upstream.replies["talks"] = lambda asked: Reply([stream(created(), text(f"answer {question(asked)}"), completed())])
    url = two[0].url.replace("/responses", "/conversations")
    id = good(two[0].http.post(url, json={})).json()["id"]

    def ask(api: Responses, number: int) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            return client.post(api.url, json=response_body("up/talks", f"question {number}", conversation=id))

    answers = at_once(*[lambda number=number: ask(two[number % 2], number) for number in range(8)])
    assert [answer.status_code for answer in answers] == [200] * 8
    items = good(two[1].http.get(f"{url}/{id}/items", params={"limit": 100, "order": "asc"})).json()["data"]
    said = ["".join(part["text"] for part in item["content"]) for item in items]
    assert len(said) == 16
    for asked, answered in zip(said[::2], said[1::2], strict=True):
        assert answered == asked.replace("question", "answer")
    lengths = sorted(len(asked.body["input"]) for asked in upstream.of("talks")[-8:])
    assert lengths == [1, 3, 5, 7, 9, 11, 13, 15]


def question(asked: Asked) -> str:
    return json.dumps(asked.body["input"][-1]).partition("question ")[2].partition('"')[0]


# What clients do not carry


@pytest.fixture(scope="module")
def routed(
    store: Callable[[], str], upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Routes]]:
    """Two gateways with backends of every kind and tools of their own."""
    folder = folder_of(tmp_path_factory, "routed")
    config = TOOLS + store() + backends(upstream.url)
    replicas = Gateways(folder, config, 2, http, PYTHONPATH=str(folder))
    yield [Routes(gateway, upstream, http) for gateway in replicas.gateways]
    replicas.stop()


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_reasoning_by_call_is_found_by_the_next_process_at_once(routed, kind):
    for number in range(5):
        name = f"moving {kind} {number}"
        look = Calls("call_1", "look", "{}")
        service = Strict(kind, [Script((Thinks("Hm.", "SIGNED"), look)), Script((Says("Done."),))], stream=True)
        routed[0].upstream.replies[name] = service
        agent = Forgetful(
            routed[number % 2], f"{kind}/{name}", ScriptedConversation((), tools=(LOOK,), thinks=True), stream=True
        )
        assert agent.take(Step(Script(()), "Go.")).calls
        agent.routes = routed[1 - number % 2]
        assert agent.take(Step(Script(()), results=(Result("call_1", "Here."),))).text == "Done."
        assert json.dumps(service.bodies[-1]).count("SIGNED") == 1


def test_results_of_gateway_tools_wait_in_every_process(routed):
    for number in range(5):
        name = f"waiting {number}"
        both = (Calls("call_0", "weather", '{"city":"Rome"}'), Calls("call_1", "find", '{"q":"x"}'))
        service = Strict("responses", [Script(both), Script((Says("Done."),))], stream=True)
        routed[0].upstream.replies[name] = service
        conversation = ScriptedConversation((), tools=(DECLARED_FIND,), thinks=True)
        agent = Forgetful(routed[number % 2], f"responses/{name}", conversation, stream=True)
        assert agent.take(Step(Script(()), "Go.")).calls
        agent.routes = routed[1 - number % 2]
        assert agent.take(Step(Script(()), results=(Result("call_1", "There."),))).text == "Done."
        assert "18 degrees in Rome" in json.dumps(service.bodies[-1])


# A process that is killed


KILLED = ("unseen", "followed", "ended", "seen", "digging", "pinged", "keyed")
"""Models whose runs are under way when their process is killed."""


class Killed:
    """What was under way in a process when it was killed, and the others that are left."""

    def __init__(self, replicas: Gateways, upstream: Upstream, folder: Path) -> None:
        self.replicas = replicas
        self.upstream = upstream
        first = replicas[0]
        self._earlier = {name: len(upstream.of(name)) for name in KILLED}  # by tests with another store
        self.ids: dict[str, str] = {}
        self.seen: dict[str, list[bytes]] = {}
        self.mark = folder / "mark"
        silent = Reply([created(), Hold()])
        says = Reply([stream(created(), text("Once again"), completed())])
        begun = Reply([stream(created(), text("Once upon")), Hold()])
        digs = Reply([stream(created(), call("g1", "dig", json.dumps({"mark": str(self.mark)})), completed())])
        upstream.replies |= {
            "unseen": [silent, says],
            "followed": [silent, says],
            "pinged": [silent, says],
            "keyed": [silent, says],
            "ended": [silent, says],
            "seen": begun,
            "digging": [digs, says],
            "calls": [CALLS_FIND, begun, says],
        }
        for name in KILLED[:-1]:
            kind = "extended" if name == "pinged" else "openai"
            body = response_body(f"up/{name}", background=True)
            self.ids[name] = good(first.post(body, x_proxy_responses_events=kind)).json()["id"]
        keyed = Responses(first.http, replicas.gateways[0], "sk-of-the-client")
        self.ids["keyed"] = keyed.create("up/keyed", background=True)["id"]
        self.calling = first.create("up/calls", tools=FIND, background=True)["id"]
        over(first, self.calling)
        self.ids["calls"] = good(first.submit(self.calling, {"c1": "x"})).json()["id"]
        for name in ("seen", "calls"):
            seen_until(replicas[1], self.ids[name], TEXT)
            self.seen[name] = frames(first, self.ids[name], most=5)
        self.seen["followed"] = frames(replicas[1], self.ids["followed"], most=3)
        self.seen["pinged"] = frames(replicas[1], self.ids["pinged"], most=5)
        until(self.mark.exists)
        for name in ("unseen", "followed", "pinged", "keyed", "ended"):
            until(lambda name=name: self.times_asked(name), name)
        replicas.kill(0)
        good(replicas[1].post({}, f"/{self.ids['ended']}/cancel"))

    def times_asked(self, name: str) -> int:
        """How often the model of this name was asked."""
        return len(self.upstream.of(name)) - self._earlier[name]

    def over(self, name: str) -> dict[str, Any]:
        api = self.replicas[1]
        key = "sk-of-the-client" if name == "keyed" else ""
        done = over(Responses(api.http, self.replicas.gateways[1], key), self.ids[name])
        if not key:
            assert self.replicas[2].retrieve(self.ids[name]) == done
            log = frames(api, self.ids[name])
            assert frames(self.replicas[2], self.ids[name]) == log
            assert log[: len(self.seen.get(name, ()))] == self.seen.get(name, [])
            events = api.replay(self.ids[name])
            assert responses_faults(events.frames, done=events.done, extended=name == "pinged") == []
        return done


@pytest.fixture(scope="module")
def killed(
    store: Callable[[], str], upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Killed]:
    folder = folder_of(tmp_path_factory, "killed")
    config = TOOLS + store() + "lease = 4\n" + backend(upstream.url)
    replicas = Gateways(folder, config, 3, http, PYTHONPATH=str(folder))
    try:
        yield Killed(replicas, upstream, folder)
    finally:
        replicas.stop()


@pytest.mark.parametrize("name", ["unseen", "followed", "pinged"])
def test_a_run_that_had_shown_nothing_is_asked_for_again(killed, name):
    done = killed.over(name)
    assert (done["status"], text_of(done)) == ("completed", "Once again")
    assert killed.times_asked(name) == 2


def test_a_run_that_had_shown_something_is_lost_with_what_it_had_shown(killed):
    done = killed.over("seen")
    assert (done["status"], done["error"]["code"], text_of(done)) == ("failed", "owner_lost", "Once upon")
    assert [item["status"] for item in done["output"]] == ["incomplete"]
    assert killed.times_asked("seen") == 1


def test_a_run_whose_tool_had_begun_is_lost_and_the_tool_runs_once(killed):
    done = killed.over("digging")
    assert (done["status"], done["error"]["code"]) == ("failed", "owner_lost")
    assert killed.mark.read_text() == "begun\n"
    assert killed.times_asked("digging") == 1


def test_a_run_with_a_key_of_the_client_is_lost_and_the_key_is_nowhere(killed):
    done = killed.over("keyed")
    assert (done["status"], done["error"]["code"]) == ("failed", "owner_lost")
    assert killed.times_asked("keyed") == 1
    for gateway in killed.replicas.gateways:
        assert "sk-of-the-client" not in "".join(gateway.log)


def test_a_run_that_somebody_wanted_to_end_is_cancelled(killed):
    assert killed.over("ended")["status"] == "cancelled"
    assert killed.times_asked("ended") == 1


def test_outputs_whose_answer_was_lost_can_be_submitted_again(killed):
    assert killed.over("calls")["error"]["code"] == "owner_lost"
    again = good(killed.replicas[2].submit(killed.calling, {"c1": "x"})).json()
    assert text_of(over(killed.replicas[1], again["id"])) == "Once again"


def test_what_was_taken_over_is_counted(killed):
    for name in killed.ids:
        killed.over(name)
    counted: dict[str, float] = {}
    for gateway in killed.replicas.gateways[1:]:
        for line in killed.replicas[1].http.get(f"{gateway.url}/metrics").text.splitlines():
            if line.startswith("toolwire_take_overs_total{"):
                outcome, value = line.split('"')[1], float(line.rpartition(" ")[2])
                counted[outcome] = counted.get(outcome, 0) + value
    assert counted == {"asked_again": 3, "owner_lost": 4, "cancelled": 1}


# A process that is asked to end


def test_a_process_that_ends_leaves_what_nobody_has_seen_to_others(store, upstream, http, tmp_path_factory):
    silent = Reply([created(), Hold()])
    upstream.replies |= {
        "left-unseen": [silent, Reply([stream(created(), text("Once again"), completed())])],
        "left-seen": Reply([stream(created(), text("Once upon")), Hold()]),
    }
    config = "[server]\ndrain = 1\n" + store() + "lease = 4\n" + backend(upstream.url)
    earlier = len(upstream.of("left-unseen"))
    replicas = Gateways(folder_of(tmp_path_factory, "ended"), config, 2, http)
    try:
        ids = {name: replicas[0].create(f"up/{name}", background=True)["id"] for name in ("left-unseen", "left-seen")}
        seen_until(replicas[0], ids["left-seen"], TEXT)
        until(lambda: len(upstream.of("left-unseen")) > earlier)
        assert replicas.gateways[0].stop() == 0
        done = {name: over(replicas[1], id) for name, id in ids.items()}
    finally:
        replicas.stop()
    assert (done["left-unseen"]["status"], text_of(done["left-unseen"])) == ("completed", "Once again")
    assert done["left-seen"]["status"] == "failed"
    assert "shutting down" in done["left-seen"]["error"]["message"]


def test_a_process_that_drains_takes_nothing_over(store, upstream, http, tmp_path_factory):
    upstream.replies |= {
        "orphan": [Reply([created(), Hold()]), Reply([stream(created(), text("Once again"), completed())])],
        "open": Reply([stream(created(), text("Once upon")), Hold()]),
    }
    config = "[server]\ndrain = 60\n" + store() + "lease = 2\n" + backend(upstream.url)
    earlier = len(upstream.of("orphan"))
    replicas = Gateways(folder_of(tmp_path_factory, "draining"), config, 2, http)
    try:
        orphan = replicas[1].create("up/orphan", background=True)["id"]
        until(lambda: len(upstream.of("orphan")) > earlier)
        body = response_body("up/open", stream=True, store=False)
        with http.stream("POST", f"{replicas.gateways[0].base_url}/responses", json=body) as answer:
            next(answer.iter_bytes())
            replicas.gateways[0].process.terminate()
            replicas.kill(1)
            time.sleep(5)  # longer than the lease and the pause between two looks
            assert len(upstream.of("orphan")) == earlier + 1, "nobody has asked for it again"
        replicas.start_again(1)
        assert text_of(over(replicas[1], orphan)) == "Once again"
    finally:
        replicas.gateways[0].kill()
        replicas.stop()


# A process that is stopped for too long


@pytest.fixture(scope="module")
def stopped(
    store: Callable[[], str], upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateways]:
    folder = folder_of(tmp_path_factory, "stopped")
    asks_again = backend(upstream.url, "again").replace("retries = 0", "retries = 2")
    replicas = Gateways(folder, store() + "lease = 4\n" + backend(upstream.url) + asks_again, 2, http)
    yield replicas
    replicas.stop()


def test_a_process_that_was_stopped_for_too_long_writes_nothing(stopped, upstream):
    gates = {name: Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),)) for name in "ab"}
    upstream.replies |= {"seen-a": Reply(gates["a"]), "calls": [CALLS_FIND, Reply(gates["b"]), Reply([stream(created(), text("other"), completed())])]}  # fmt: skip
    first, second = stopped
    run = first.create("up/seen-a", background=True)["id"]
    seen_until(second, run, TEXT)
    calling = first.create("up/calls", tools=FIND)["id"]
    asked = len(upstream.of("calls"))
    got: list[httpx.Response] = []

    def submit() -> None:
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            outputs = {"tool_outputs": [{"call_id": "c1", "output": "x"}]}
            got.append(client.post(f"{first.url}/{calling}/submit_tool_outputs", json=outputs))

    submitting = threading.Thread(target=submit)
    submitting.start()
    until(lambda: len(upstream.of("calls")) > asked)
    stopped.pause(0)
    lost = over(second, run)
    assert lost["error"]["code"] == "owner_lost"
    log = frames(second, run)
    other = good(second.submit(calling, {"c1": "x"})).json()
    assert text_of(other) == "other"
    for gate in gates.values():
        gate.open()
    stopped.go_on(0)
    submitting.join(PATIENCE)
    response = good(got[0])
    assert (response.json()["store"], text_of(response.json())) == (False, "Once upon")
    notes = json.loads(response.headers["x-toolwire-notes"])
    assert [(note["code"], note["subject"]) for note in notes] == [("not_stored", "overtaken")]
    until(lambda: stopped.outcomes(0) == ["lost"])
    for api in stopped:
        assert api.retrieve(run) == lost
        assert frames(api, run) == log
        assert good(api.submit(calling, {"c1": "x"})).json() == other
        assert api.get(response.json()["id"]).status_code == 404


@pytest.mark.parametrize("kind", ["submit", "conversation", "background"])
def test_a_process_that_was_stopped_for_too_long_asks_nothing(stopped, upstream, kind):
    """Between two attempts of a turn a process stands still, and another one asks for the turn in its place."""
    model = f"stands-{kind}"
    busy = Reply([b'{"error":{"message":"busy"}}'], 503, "application/json", {"retry-after": "1"})
    says = Reply([stream(created(), text("other"), completed())])
    upstream.replies[model] = [CALLS_FIND, busy, says] if kind == "submit" else [busy, says]
    first, second = stopped
    made = first.create(f"again/{model}", tools=FIND)["id"] if kind == "submit" else ""
    place = good(first.http.post(first.url.replace("/responses", "/conversations"), json={})).json()["id"]
    body = {"model": f"again/{model}", "input": "hi", **({"conversation": place} if kind == "conversation" else {})}
    asked = len(upstream.of(model))
    got: list[httpx.Response] = []

    def ask(api: Responses) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            outputs = {"tool_outputs": [{"call_id": "c1", "output": "x"}]}
            way = (f"{api.url}/{made}/submit_tool_outputs", outputs) if made else (api.url, body)
            return client.post(way[0], json=way[1])

    if kind == "background":
        id = first.create(f"again/{model}", background=True)["id"]
        until(lambda: len(upstream.of(model)) == asked + 1)
        stopped.pause(0)
        other = over(second, id)
    else:
        asking = threading.Thread(target=lambda: got.append(ask(first)))
        asking.start()
        until(lambda: len(upstream.of(model)) == asked + 1)
        stopped.pause(0)
        other = good(ask(second)).json()
    assert text_of(other) == "other"
    stopped.go_on(0)
    if kind == "background":
        until(lambda: "lost" in stopped.outcomes(0)[-1:])
    else:
        asking.join(PATIENCE)
        code = "submission_locked" if made else "conversation_locked"
        assert (got[0].status_code, got[0].json()["error"]["code"]) == (409, code)
        assert got[0].headers["retry-after"]
    assert len(upstream.of(model)) == asked + 2, "the backend is asked by the other process alone"
