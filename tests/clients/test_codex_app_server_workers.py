"""A real `codex app-server` behind each of two workers: rounds of tools land on either, and stay in one thread."""

import sys
from collections.abc import Iterator
from itertools import cycle

import httpx
import pytest

from tests.clients.app_server import AppServer, Json, history, running, table, tells, thread_of
from tests.clients.codex import needs_codex
from tests.support.client_readers import PATHS, Held, hold
from tests.support.conversations import AGENTS, CLIENTS, Client, Result, ScriptedConversation, Step
from tests.support.doors import Doors, patched
from tests.support.fleet import Fleet
from tests.support.scripts import Calls, Name, Says, Script, Thinks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")

NO_TURN = Script()


class InTurns:
    """Requests go to one worker after the other."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._slots = cycle((0, 1))

    def ask(self, dialect: Name, body: Json, key: str = "") -> Held:
        answer = self._doors[next(self._slots)].post(PATHS[dialect], json=body)
        return hold(answer, dialect, stream=bool(body.get("stream")))


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[AppServer]:
    needs_codex()
    folder = tmp_path_factory.mktemp("workers")
    config = "[server]\nidle_timeout = 600\n" + table("codex", base_url='"{url}"', workers=2)
    with running(folder, http, config, start=Fleet, PYTHONPATH=patched(folder)) as stand:
        yield stand


@pytest.mark.parametrize("client", CLIENTS)
def test_a_loop_that_lands_on_either_worker_stays_in_its_thread(stand: AppServer, client: Client):
    assert isinstance(stand.gateway, Fleet)
    doors = Doors(stand.gateway, 2)
    doors.open()
    rounds = [tells(Thinks(f"Hm {n}.", f"signature-{n}"), Calls(f"c{n}", "look", "{}")) for n in range(3)]
    model = stand.model(*rounds, tells(Says("There.")))
    agent = AGENTS[client](InTurns(doors), model, ScriptedConversation((), thinks=True), stream=True)  # pyright: ignore[reportArgumentType]
    agent.take(Step(NO_TURN, user="Go."))
    seen = [agent.take(Step(NO_TURN, results=(Result(f"c{n}", f"result {n}"),))) for n in range(3)]
    assert (seen[-1].text, seen[-1].finish) == ("There.", "stop")
    asked = stand.asked(model)
    assert len(asked) == 4, "no turn is asked for twice"
    assert len({thread_of(each) for each in asked}) == 1
    outputs = [item["output"] for item in history(asked[-1]) if item["type"] == "function_call_output"]
    assert outputs == ["result 0", "result 1", "result 2"]
    doors.close()
