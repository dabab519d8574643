"""Codex at both ends: its CLI is the client of the gateway, and its app-server the backend. Only the model is scripted."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.app_server import USUAL, AppServer, history, running, table, tells, thread_of
from tests.clients.codex import Codex, Said, needs_codex
from tests.support.backend_writers import reply
from tests.support.frames import created, stream
from tests.support.scripts import Calls, Says, Script, Thinks
from tests.support.upstream import Asked, Reply

Start = Callable[[str, str], Codex]

TRANSPORTS = pytest.mark.parametrize("transport", ["sse", "socket"])
PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello\n*** End Patch\n"


@pytest.fixture(scope="module", autouse=True)
def codex_is_there() -> None:
    needs_codex()


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[AppServer]:
    with running(tmp_path_factory.mktemp("both-ends"), http, table("codex", base_url='"{url}"')) as stand:
        yield stand


@pytest.fixture
def start(stand: AppServer, tmp_path: Path) -> Start:
    """A CLI that asks the gateway for this model."""
    return lambda model, transport: Codex(tmp_path, stand.gateway.base_url, model, socket=transport == "socket")


def runs(*commands: str) -> Callable[[Asked], Reply]:
    """The model thinks, and has these commands run."""

    def answer(asked: Asked) -> Reply:
        names = [tool["name"] for tool in asked.body["tools"]]
        name = next((name for name in names if name.startswith("exec_command")), "exec_command")
        calls = [Calls(f"c{n}", name, json.dumps({"cmd": command})) for n, command in enumerate(commands, 1)]
        return tells(Thinks("Let me look.", "signed"), *calls)

    return answer


def outputs(asked: Asked) -> list[tuple[str, str]]:
    """The last line of what each tool put out, by call."""
    found = [item for item in history(asked) if item["type"] == "function_call_output"]
    return [(item["call_id"], item["output"].rstrip("\n").split("\n")[-1]) for item in found]


def users_words(asked: Asked) -> list[str]:
    """What was said by hand and by the model; the CLI's own words begin with a tag."""
    messages = [item for item in history(asked) if item.get("role") in ("user", "assistant")]
    texts = [part["text"] for item in messages for part in item["content"]]
    return [text for text in texts if not text.startswith("<")]


@TRANSPORTS
def test_a_text_turn_arrives(start: Start, stand: AppServer, transport: str):
    model = stand.model(tells(Says("Hello, world.")))
    said = start(model, transport).exec("Hello.")
    assert (said.messages, said.errors, said.code) == (["Hello, world."], [], 0)
    usage = said.end["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (USUAL.input, USUAL.output)
    assert (usage["cached_input_tokens"], usage["reasoning_output_tokens"]) == (USUAL.cached, USUAL.reasoning)


# A command and its output


class RoundTrip:
    """A turn with a command, seen from both ends."""

    def __init__(self, said: Said, asked: list[Asked]) -> None:
        self.said, self.asked = said, asked


@pytest.fixture(scope="module", params=["sse", "socket"])
def round_trip(request: pytest.FixtureRequest, stand: AppServer, tmp_path_factory: pytest.TempPathFactory) -> RoundTrip:
    model = stand.model(runs("echo hi"), tells(Says("It said hi.")))
    codex = Codex(tmp_path_factory.mktemp("codex"), stand.gateway.base_url, model, socket=request.param == "socket")
    return RoundTrip(codex.exec("Run echo."), stand.asked(model))


def test_the_cli_runs_the_command(round_trip: RoundTrip):
    said = round_trip.said
    assert (said.commands, said.messages, said.errors) == ([("hi\n", 0)], ["It said hi."], [])
    assert [item["text"] for item in said.items("reasoning")] == ["Let me look."]


def test_its_output_reaches_the_model(round_trip: RoundTrip):
    first, second = round_trip.asked
    assert outputs(second) == [("c1", "hi")]
    assert history(second)[: len(history(first))] == history(first)
    assert [item["type"] for item in history(second)[-3:]] == ["reasoning", "function_call", "function_call_output"]
    assert history(second)[-3]["encrypted_content"] == "signed"


def test_the_turn_goes_on_in_its_thread(round_trip: RoundTrip):
    first, second = round_trip.asked
    assert thread_of(first) == thread_of(second)


def test_the_model_has_the_tools_of_the_cli(round_trip: RoundTrip):
    first, second = round_trip.asked
    assert {tool["type"] for tool in first.body["tools"]} == {"function"}
    names = {tool["name"] for tool in first.body["tools"]}
    assert "apply_patch" in names
    assert any(name.startswith("exec_command") for name in names)
    assert first.body["tools"] == second.body["tools"]


@TRANSPORTS
def test_commands_at_once_are_all_answered(start: Start, stand: AppServer, transport: str):
    model = stand.model(runs("echo 1", "echo 2"), tells(Says("Both.")))
    said = start(model, transport).exec("Run both.")
    assert (sorted(said.commands), said.messages) == ([("1\n", 0), ("2\n", 0)], ["Both."])
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)
    assert outputs(second) == [("c1", "1"), ("c2", "2")]


@TRANSPORTS
def test_a_patch_is_applied(start: Start, stand: AppServer, transport: str):
    # The CLI declares its tool as one that takes text, and app-server knows functions only.
    model = stand.model(tells(Calls("c1", "apply_patch", json.dumps({"input": PATCH}))), tells(Says("Done.")))
    said = start(model, transport).exec("Write it.")
    assert (said.folder / "hello.txt").read_text() == "hello\n"
    assert said.messages == ["Done."]
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)
    assert outputs(second) == [("c1", "A hello.txt")]


@TRANSPORTS
def test_a_session_is_resumed(start: Start, stand: AppServer, transport: str):
    model = stand.model(runs("echo hi"), tells(Says("It said hi.")), tells(Says("Again.")))
    codex = start(model, transport)
    codex.exec("Run echo.")
    assert codex.exec("resume", "--last", "And now?").messages == ["Again."]
    asked = stand.asked(model)[-1]
    assert users_words(asked) == ["Run echo.", "It said hi.", "And now?"]
    assert outputs(asked) == [("c1", "hi")]


# Failures


@TRANSPORTS
def test_a_request_at_fault_is_shown_and_not_asked_again(start: Start, stand: AppServer, transport: str):
    error = {"message": "No such thing.", "type": "invalid_request_error", "param": None, "code": "nothing"}
    model = stand.model(Reply([json.dumps({"error": error}).encode()], 400, "application/json"))
    said = start(model, transport).exec("Hello.")
    assert json.loads(said.end["error"]["message"])["error"]["message"] == "No such thing."
    assert (len(stand.asked(model)), said.code) == (1, 1)


@TRANSPORTS
def test_a_turn_that_breaks_is_asked_for_again_by_the_cli(start: Start, stand: AppServer, transport: str):
    half: Any = reply(Script((Says("Half of it"),), end="cut"), "responses", stream=True)
    model = stand.model(half, tells(Says("Whole.")))
    said = start(model, transport).exec("Hello.")
    assert (said.messages[-1], said.code) == ("Whole.", 0)
    assert len(stand.asked(model)) == 2


@TRANSPORTS
def test_a_server_that_fails_is_told_of(start: Start, stand: AppServer, transport: str):
    model = stand.model(Reply([stream(created())]))
    said = start(model, transport).exec("Hello.")
    assert (said.messages, said.end["type"], said.code) == ([], "turn.failed", 1)
    assert len(stand.asked(model)) <= 4  # each end tries a little
