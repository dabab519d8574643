"""A gateway that is killed loses nothing that it had answered, and shows nothing that it had only begun."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.checked import responses_faults
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import (
    Events,
    Gate,
    Gateway,
    Responses,
    backend,
    calls_of,
    good,
    iter_events,
    response_body,
    text_of,
    tool,
)
from tests.support.schemas import response_errors
from tests.support.upstream import Reply, Upstream

FIND = [tool("find", q={"type": "string"})]
CONFIG = '[store]\nurl = "sqlite:kept.db"\nlease = 3\n'
PADDING = "word-" * 2000
"""Makes a turn that does not fit on one page of the file."""


class Moment(msgspec.Struct, frozen=True):
    """When to die: as soon as a client of this kind has an answer, and so many have been given in all."""

    kind: str
    answers: int


class Witness:
    """What clients know: which responses have begun, what was asked of them, and how they ended."""

    def __init__(self, gateway: Gateway, moment: Moment) -> None:
        self.begun: dict[str, str] = {}
        self.received: dict[str, dict[str, Any]] = {}
        self._gateway = gateway
        self._moment = moment
        self._lock = threading.Lock()

    def saw_begin(self, id: str, prompt: str) -> None:
        with self._lock:
            self.begun[id] = prompt

    def saw_end(self, kind: str, response: dict[str, Any], prompt: str) -> None:
        with self._lock:
            self.begun[response["id"]] = prompt
            self.received[response["id"]] = response
            if kind == self._moment.kind and len(self.received) >= self._moment.answers:
                self._gateway.process.kill()


class Client(threading.Thread):
    """Asks in one way, again and again, each turn continuing the last, until the gateway is gone."""

    def __init__(self, name: str, gateway: Gateway, witness: Witness) -> None:
        super().__init__(daemon=True)
        self.name = name
        self._gateway = gateway
        self._witness = witness
        self._ask: Callable[[Responses, str], dict[str, Any]] = getattr(self, f"ask_{name.partition(' ')[0]}")
        self.latest: list[str] = []
        """The chain of responses that were received."""
        self.fault: Exception | None = None

    def run(self) -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            api = Responses(client, self._gateway)
            number = 0
            while True:
                number += 1
                try:
                    response = self._ask(api, f"{self.name}, turn {number}. {PADDING}{number}")
                except httpx.TransportError:
                    return
                except Exception as error:  # noqa: BLE001 - shown by the test
                    self.fault = error
                    self._gateway.process.kill()
                    return
                self.latest.append(response["id"])

    @property
    def _chained(self) -> dict[str, str]:
        return {"previous_response_id": self.latest[-1]} if self.latest else {}

    def ask_plain(self, api: Responses, prompt: str) -> dict[str, Any]:
        response = api.create("demo", prompt, **self._chained)
        self._witness.saw_end(self.name, response, prompt)
        return response

    def ask_streamed(self, api: Responses, prompt: str, model: str = "demo", **fields: Any) -> dict[str, Any]:
        body = response_body(model, prompt, stream=True, **fields, **self._chained)
        with api.http.stream("POST", api.url, json=body) as answer:
            assert answer.status_code == 200
            for name, event in iter_events(answer, Events()):
                if name == "response.created":
                    self._witness.saw_begin(event["response"]["id"], prompt)
                if name == "response.completed":
                    self._witness.saw_end(self.name, event["response"], prompt)
                    response = event["response"]
        return response

    def ask_background(self, api: Responses, prompt: str) -> dict[str, Any]:
        return self.ask_streamed(api, prompt, background=True)

    def ask_slowly(self, api: Responses, prompt: str) -> dict[str, Any]:
        """Begins something in the background that takes seconds, so that a crash finds it under way."""
        return self.ask_streamed(api, prompt.replace(PADDING, "word " * 40), model="demo-slow", background=True)

    def ask_polled(self, api: Responses, prompt: str) -> dict[str, Any]:
        queued = api.create("demo", prompt, background=True, **self._chained)
        self._witness.saw_begin(queued["id"], prompt)
        while (response := api.retrieve(queued["id"]))["status"] != "completed":
            pass
        self._witness.saw_end(self.name, response, prompt)
        return response

    def ask_tools(self, api: Responses, prompt: str) -> dict[str, Any]:
        waiting = api.create(
            "demo", prompt, tools=FIND, tool_choice="required", parallel_tool_calls=False, **self._chained
        )
        [made] = calls_of(waiting)
        outputs = {made["call_id"]: prompt}
        response = good(api.submit(waiting["id"], outputs)).json()
        self._witness.saw_end(self.name, response, f"According to find: {prompt}")
        return response

    def ask_endless(self, api: Responses, prompt: str) -> dict[str, Any]:
        """Begins something in the background that cannot end before the crash."""
        response = api.create("demo-silent", prompt, background=True)
        self._witness.saw_begin(response["id"], prompt)
        threading.Event().wait(0.05)
        return response


CLIENTS = ("plain", "plain again", "streamed", "streamed again", "background", "polled", "slowly", "tools", "endless")
MOMENTS = [Moment("plain", 1), Moment("polled", 15), Moment("tools", 30), Moment("background", 45), Moment("streamed", 60)]  # fmt: skip


def live_through_a_crash(folder: Path, moment: Moment) -> tuple[Witness, list[Client]]:
    """Serve many clients until the moment has come."""
    gateway = Gateway(folder, CONFIG)
    witness = Witness(gateway, moment)
    clients = [Client(name, gateway, witness) for name in CLIENTS]
    for client in clients:
        client.start()
    for client in clients:
        client.join(90)
    gateway.kill()
    assert [client.fault for client in clients if client.fault is not None] == []
    return witness, clients


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Witness, list[Client]]]]:
    """Several lives of one file, each ended at another moment."""
    folder = tmp_path_factory.mktemp("crash")
    return folder, [live_through_a_crash(folder, moment) for moment in MOMENTS]


@pytest.fixture(scope="module")
def lives(crashes: tuple[Path, list[tuple[Witness, list[Client]]]]) -> list[tuple[Witness, list[Client]]]:
    return crashes[1]


@pytest.fixture(scope="module")
def api(crashes: tuple[Path, Any], http: httpx.Client):
    """The gateway that was started last, on the same file."""
    gateway = Gateway(crashes[0], CONFIG)
    yield Responses(http, gateway)
    gateway.stop()


def test_every_answer_that_a_client_had_received_is_there_and_whole(lives, api):
    for witness, _ in lives:
        for id, received in witness.received.items():
            assert api.retrieve(id) == received


def endless(clients: list[Client]) -> list[str]:
    return [id for client in clients if client.name == "endless" for id in client.latest]


def test_nothing_half_written_is_to_be_seen(lives, api):
    seen = 0
    for witness, clients in lives:
        for id in witness.begun.keys() - witness.received.keys() - {*endless(clients)}:
            if api.get(id).status_code == 404:
                continue
            seen += 1
            kept = api.wait_for(id, "completed", "failed", seconds=60)
            assert response_errors({**kept, "error": None}) == []
            if kept["status"] == "completed":
                assert witness.begun[id] in text_of(kept)
            else:
                assert (kept["status"], kept["background"]) == ("failed", True)
                assert kept["error"]["code"] == "owner_lost"
    assert seen, "some runs were under way"


def test_background_runs_that_showed_nothing_are_asked_for_again(lives, api):
    """These never say anything, so somebody has to end them."""
    asked = [id for _, clients in lives for id in endless(clients)]
    assert asked
    for id in asked:
        good(api.post({}, f"/{id}/cancel"))
        kept = api.wait_for(id, "cancelled", "failed", seconds=60)
        assert kept["status"] == "cancelled" or kept["error"]["code"] == "owner_lost", "after too many crashes"
        events = api.replay(id)
        assert responses_faults(events.frames, done=events.done) == []
        assert events.types[-2:] == ["error", "response.failed"]


def test_what_was_asked_is_there_as_well(lives, api):
    for witness, _ in lives:
        for id in list(witness.received)[-5:]:
            [item] = good(api.get(f"{id}/input_items")).json()["data"]
            assert item["type"] in ("message", "function_call_output")


def test_every_chain_can_be_continued_from_its_last_answer(lives, api):
    longest = 0
    for _, clients in lives:
        for client in clients:
            if client.name in ("slowly", "endless") or not client.latest:
                continue
            longest = max(longest, len(client.latest))
            count = good(api.post(response_body("demo", "x", previous_response_id=client.latest[-1]), "/input_tokens"))
            assert count.json()["input_tokens"] > len(client.latest) * len(PADDING) / 4
            assert api.create("demo", "x", previous_response_id=client.latest[-1])["status"] == "completed"
    assert longest > 2


def test_the_file_itself_is_sound(lives, api, crashes):
    with sqlite3.connect(crashes[0] / "kept.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


# The moment before


class Locked:
    """A gateway whose file nobody can write to for a while, and one turn that is about to end."""

    def __init__(self, gateway: Gateway, gate: Gate, file: Path) -> None:
        self.gateway = gateway
        self._gate = gate
        self._file = file

    @contextmanager
    def while_the_turn_ends(self) -> Iterator[None]:
        database = sqlite3.connect(self._file, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        try:
            self._gate.open()
            yield
        finally:
            database.execute("ROLLBACK")
            database.close()


@pytest.fixture(scope="module")
def shut(
    upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, Path]]:
    """A gateway and its file."""
    folder = tmp_path_factory.mktemp("shut")
    gateway = Gateway(folder, CONFIG + backend(upstream.url))
    Responses(http, gateway).create("demo")  # so that there is a file
    yield gateway, folder / "kept.db"
    gateway.stop()


@pytest.fixture
def locked(upstream: Upstream, shut: tuple[Gateway, Path]) -> Iterator[Locked]:
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["about-to-end"] = Reply(gate)
    gateway, file = shut
    yield Locked(gateway, gate, file)
    gate.open()


def test_the_closing_event_does_not_leave_before_the_turn_is_committed(locked):
    begun, ended = threading.Event(), threading.Event()
    said: list[str] = []

    def read() -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            body = response_body("up/about-to-end", stream=True)
            with client.stream("POST", f"{locked.gateway.base_url}/responses", json=body) as response:
                for name, event in iter_events(response, Events()):
                    said.append(event.get("delta", ""))
                    begun.set()
                    if name == "response.completed":
                        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    with locked.while_the_turn_ends():
        assert not ended.wait(0.5)
    reader.join(90)
    assert ended.is_set()
    assert "".join(said) == "Once upon"


def test_a_plain_answer_does_not_leave_before_the_turn_is_committed(locked, upstream):
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            answers.append(Responses(client, locked.gateway).create("up/about-to-end"))

    asking = threading.Thread(target=ask)
    asking.start()
    with locked.while_the_turn_ends():
        asking.join(0.5)
        assert answers == []
    asking.join(90)
    assert text_of(answers[0]) == "Once upon"


def test_a_background_run_does_not_say_that_it_is_done_before_it_is_committed(locked, http):
    api = Responses(http, locked.gateway)
    id = api.create("up/about-to-end", background=True)["id"]
    api.wait_for(id, "in_progress")
    with locked.while_the_turn_ends():
        assert api.wait_for(id, "completed", seconds=0.5)["status"] == "in_progress"
    assert text_of(api.wait_for(id, "completed")) == "Once upon"
