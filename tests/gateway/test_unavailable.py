"""A backend that cannot be asked stops nothing else: its models are refused with the reason, until the cause is gone."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from websockets.sync.client import connect

from tests.support.client_readers import PATHS, Refused, hold
from tests.support.console import ConsoleClient
from tests.support.frames import completed, created, text
from tests.support.gateway import Gateway, backend, chat_body
from tests.support.routes import question
from tests.support.scripts import NAMES, Name
from tests.support.upstream import Reply, Upstream
from toolwire import Settings, SettingsError, create_app
from toolwire.agent import Agent
from toolwire.core.errors import BackendFault

SAYS_HI = Reply([created(), text("hi"), completed()])
NO_KEY = "NO_SUCH_KEY is not set; start Toolwire with the key of its server in it"
REASONS = {
    "keyless": NO_KEY,
    "agent": "the program no-such-codex is not installed",
    "tape": "there is no recording",
    "account": "there is no login in",
}


def unusable(url: str) -> str:
    """A backend for each reason, all before a good one that serves `shared` too."""
    return "\n".join(
        (
            backend(url, "keyless", api_key_env='"NO_SUCH_KEY"', models='["lost", "shared", "lost-*"]'),
            '[[backends]]\nname = "agent"\nkind = "codex"\ncommand = ["no-such-codex"]\nmodels = ["shared"]\n',
            '[[backends]]\nname = "tape"\nkind = "replay"\nfile = "none.jsonl"\nmodels = ["shared"]\n',
            backend(url, "account", auth='"codex"', models='["shared"]'),
            backend(url, "up", models='["shared"]'),
        )
    )


@pytest.fixture(scope="module")
def lame(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("unavailable")
    upstream.replies["shared"] = SAYS_HI
    gateway = Gateway(folder, unusable(upstream.url), CODEX_HOME=str(folder))
    yield gateway
    gateway.stop()


def ask(gateway: Gateway, model: str, dialect: Name = "chat", *, stream: bool = False) -> httpx.Response:
    body = question(dialect, model, (), stream=stream)
    return httpx.post(gateway.url + PATHS[dialect], json=body, timeout=120, trust_env=False)


def message(response: httpx.Response) -> str:
    return response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("name", REASONS)
def test_a_request_for_it_is_refused_with_the_reason(lame: Gateway, name: str, dialect: Name, stream: bool):
    with pytest.raises(Refused) as refused:
        hold(ask(lame, f"{name}/lost", dialect, stream=stream), dialect, stream=stream)
    assert refused.value.status == 503
    assert refused.value.message.startswith(f"Backend `{name}` is unavailable: {REASONS[name]}")
    assert refused.value.headers["x-should-retry"] == "false"


def test_a_model_that_a_good_backend_serves_too_is_answered_by_it_at_once(lame: Gateway):
    answer = ask(lame, "shared")
    assert (answer.status_code, answer.headers["x-toolwire-backend"]) == (200, "up")
    assert "x-toolwire-notes" not in answer.headers, "there was no failover: the others were not tried"
    assert ask(lame, "demo").status_code == 200


def test_the_log_says_at_the_start_what_is_unavailable(lame: Gateway):
    said = [line for line in lame.log if line.startswith("toolwire: backend ") and "is unavailable" in line]
    assert [line.split()[2] for line in said] == [*REASONS]
    assert said[0] == f"toolwire: backend keyless is unavailable: {NO_KEY}"


def test_readiness_lists_the_reasons_and_stays_ready(lame: Gateway):
    answer = httpx.get(f"{lame.url}/readyz", trust_env=False)
    assert answer.status_code == 200
    found = answer.json()["unavailable"]
    assert found["keyless"] == NO_KEY
    assert {*found} == {*REASONS}


def test_its_models_are_not_listed_and_one_of_them_is_a_503_by_name(lame: Gateway):
    listed = {each["id"]: each["owned_by"] for each in httpx.get(f"{lame.base_url}/models").json()["data"]}
    assert (listed["shared"], "lost" in listed) == ("up", False)
    found = httpx.get(f"{lame.base_url}/models/lost")
    assert (found.status_code, NO_KEY in message(found)) == (503, True)


def test_the_console_shows_the_reasons(lame: Gateway):
    with ConsoleClient(lame) as console:
        shown = {each["name"]: each["unavailable"] for each in console.get("backends")}
    assert shown["keyless"] == NO_KEY
    assert {name for name, reason in shown.items() if reason} == {*REASONS}


def test_over_a_websocket_it_is_an_error_of_the_turn(lame: Gateway):
    with connect(lame.url.replace("http", "ws") + "/v1/responses", proxy=None) as socket:
        for model, kind in (("lost", "error"), ("demo", "response.created")):
            socket.send(json.dumps({"type": "response.create", "model": model, "input": "Go."}))
            heard = json.loads(socket.recv(90))
            assert heard["type"] == kind
            if kind == "error":
                assert (heard["status"], NO_KEY in heard["error"]["message"]) == (503, True)


def test_a_background_response_is_refused_before_it_is_made(lame: Gateway):
    body = {"model": "lost", "input": "Go.", "background": True, "store": True}
    refused = httpx.post(f"{lame.base_url}/responses", json=body, timeout=120, trust_env=False)
    assert (refused.status_code, NO_KEY in message(refused)) == (503, True)


def test_tokens_cannot_be_counted_by_it(lame: Gateway):
    body = question("messages", "lost", (), stream=False)
    refused = httpx.post(f"{lame.base_url}/messages/count_tokens", json=body, trust_env=False)
    assert (refused.status_code, NO_KEY in message(refused)) == (503, True)


def test_a_wrong_name_is_never_corrected_to_a_model_of_it(lame: Gateway):
    said = message(ask(lame, "lose"))
    assert "lost" not in said
    assert "'shared'" in message(ask(lame, "shared1"))
    assert "keyless/" not in message(ask(lame, "keyles/shared")), "no name is made up"


def test_it_is_available_as_soon_as_its_program_is_there(start, tmp_path: Path):
    program = tmp_path / "bin" / "late-codex"
    program.parent.mkdir()
    table = '[[backends]]\nname = "agent"\nkind = "codex"\ncommand = ["late-codex"]\nmodels = ["m"]\n'
    gateway = start(table, PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert "is not installed" in message(ask(gateway, "m"))
    program.write_text("#!/bin/sh\necho it began >&2\nexit 3\n")
    program.chmod(0o755)
    assert "it ended at once: it began" in _until_other(gateway, "m", "cannot be started")
    found = httpx.get(f"{gateway.url}/readyz", trust_env=False).json()["unavailable"]
    assert "it began" in found["agent"]


def _until_other(gateway: Gateway, model: str, before: str) -> str:
    """The message once it is no longer this one: app-servers are started again after a pause."""
    said: list[str] = [before]

    def is_other() -> bool:
        said.append(message(ask(gateway, model)))
        return before not in said[-1]

    gateway.wait_until(is_other)
    return said[-1]


def test_an_address_that_nothing_answers_at_is_shown_until_something_does(start, upstream: Upstream):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gateway = start(backend(f"http://127.0.0.1:{port}", models='["m"]'))
    assert httpx.get(f"{gateway.url}/readyz").json()["unavailable"] == {}
    refused = ask(gateway, "m")
    assert (refused.status_code, "connection refused" in message(refused)) == (502, True)
    assert httpx.get(f"{gateway.url}/readyz").json()["unavailable"] == {"up": "cannot be reached: connection refused"}
    with ConsoleClient(gateway) as console:
        [shown] = [each for each in console.get("backends") if each["name"] == "up"]
    assert shown["unavailable"] == "cannot be reached: connection refused"
    late = Upstream(port)
    try:
        late.replies["m"] = SAYS_HI
        assert ask(gateway, "m").status_code == 200
        assert httpx.get(f"{gateway.url}/readyz").json()["unavailable"] == {}
    finally:
        late.stop()


def test_with_keys_only_their_holders_see_what_is_unavailable(start, upstream: Upstream):
    gateway = start('[[keys]]\nname = "ann"\nkey = "sk-ann"\n' + unusable(upstream.url))
    assert "unavailable" not in httpx.get(f"{gateway.url}/readyz").json()
    answer = httpx.get(f"{gateway.url}/readyz", headers={"authorization": "Bearer sk-ann"})
    assert "keyless" in answer.json()["unavailable"]


# No backend at all


VENDORS = [("gpt-5", "OPENAI_API_KEY"), ("openai/any", "OPENAI_API_KEY"), ("claude-opus-4", "ANTHROPIC_API_KEY")]


def test_a_vendors_model_without_any_backend_names_the_key_that_is_missing(start):
    gateway = start(PATH="/nowhere", OPENAI_API_KEY="", ANTHROPIC_API_KEY="")
    for model, variable in VENDORS:
        refused = ask(gateway, model)
        assert refused.status_code == 404
        assert message(refused).startswith(f"There is no model {model!r} here. {variable} is not set.")
    assert "is not set" not in message(ask(gateway, "llama"))


def test_with_backends_of_ones_own_such_a_key_would_not_help(start):
    gateway = start(backend("http://127.0.0.1:9/v1"))
    assert "is not set" not in message(ask(gateway, "gpt-5"))


# In a program


TABLE: dict[str, Any] = {
    "backends": [
        {"name": "keyless", "kind": "chat", "base_url": "http://127.0.0.1:9", "api_key_env": "MINE", "models": ["m"]}
    ],
    "store": {"url": "memory:"},
    "debug": {"level": "error"},
}


def test_an_application_serves_everything_else():
    with TestClient(create_app(Settings.from_dict(TABLE, {})), base_url="http://127.0.0.1") as client:
        assert client.post("/v1/chat/completions", json=chat_body("demo")).status_code == 200
        refused = client.post("/v1/chat/completions", json=chat_body("m"))
        assert (refused.status_code, "MINE is not set" in refused.text) == (503, True)


def test_a_key_that_only_this_process_has_is_not_set_in_a_given_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINE", "sk-of-the-process")
    with TestClient(create_app(Settings.from_dict(TABLE, {})), base_url="http://127.0.0.1") as client:
        assert client.post("/v1/chat/completions", json=chat_body("m")).status_code == 503


def test_an_application_with_a_strict_start_is_refused():
    with pytest.raises(SettingsError, match="backend keyless is unavailable: MINE is not set"):
        create_app(Settings.from_dict({**TABLE, "server": {"strict_start": True}}, {}))


def test_an_agent_says_why_its_model_is_unavailable():
    async def run() -> None:
        await Agent("m", settings=Settings.from_dict(TABLE, {})).run("Hi")

    with pytest.raises(BackendFault, match="Backend `keyless` is unavailable: MINE is not set"):
        asyncio.run(run())
