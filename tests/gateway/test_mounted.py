"""The gateway inside other applications: under a prefix, with their lifespan or without any."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from tests.support.backend_writers import reply
from tests.support.gateway import chat_body
from tests.support.scripts import Calls, Says, Script
from tests.support.upstream import Upstream
from toolwire import GatewayApp, Settings, SettingsError, create_app

MEMORY: dict[str, Any] = {"store": {"url": "memory:"}, "debug": {"level": "error"}}


@contextlib.contextmanager
def served(app: Any, lifespan: str = "on") -> Iterator[str]:
    """The address of an application that uvicorn serves on a thread of its own."""
    config = uvicorn.Config(app, port=0, lifespan=lifespan, log_level="error")  # pyright: ignore[reportArgumentType]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = threading.Event()
    for _ in range(6000):
        if server.started or not thread.is_alive():
            break
        deadline.wait(0.01)
    assert server.started
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def says_hello(url: str, http: httpx.Client) -> None:
    """The whole gateway is there: turns, streams, models, and errors in the dialect of the path."""
    answer = http.post(f"{url}/v1/chat/completions", json=chat_body("demo"))
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    streamed = http.post(f"{url}/v1/responses", json={"model": "demo", "input": "Hello", "stream": True})
    assert streamed.text.rstrip().endswith("data: [DONE]")
    stored = streamed.text.split('"id":"')[1].split('"')[0]
    assert http.get(f"{url}/v1/responses/{stored}").json()["status"] == "completed"
    assert "demo" in [model["id"] for model in http.get(f"{url}/v1/models").json()["data"]]
    refused = http.post(f"{url}/v1/messages", json={"model": "demo"})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")
    missing = http.get(f"{url}/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("prefix", ["/llm", "/deep/er", "/v1", "/api"])
def test_it_is_mounted_into_fastapi_with_its_lifespan(prefix: str, http: httpx.Client):
    gateway = create_app(MEMORY)
    app = FastAPI(lifespan=gateway.lifespan)
    app.mount(prefix, gateway)

    @app.get("/mine")
    def mine() -> str:
        return "mine"

    with served(app) as url:
        says_hello(url + prefix, http)
        assert http.get(f"{url}/mine").json() == "mine"


def test_it_shares_a_lifespan_of_ones_own(http: httpx.Client):
    gateway, events = create_app(MEMORY), list[str]()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with gateway.lifespan():
            events.append("started")
            yield
        events.append("closed")

    app = Starlette(routes=[Mount("/llm", gateway), Route("/", lambda _: PlainTextResponse("root"))], lifespan=lifespan)
    with served(app) as url:
        says_hello(f"{url}/llm", http)
        assert http.get(url).text == "root"
    assert events == ["started", "closed"]


def test_it_runs_alone(http: httpx.Client):
    with served(create_app(MEMORY)) as url:
        says_hello(url, http)


def test_it_starts_with_the_first_request_if_nobody_has_started_it(http: httpx.Client):
    """A mounted application hears nothing of the lifespan around it."""
    app = Starlette(routes=[Mount("/llm", create_app(MEMORY))])
    with served(app, "off") as url:
        says_hello(f"{url}/llm", http)


def test_several_first_requests_start_it_once(tmp_path: Path):
    """A second store on the same file would be refused."""
    settings = Settings.from_dict({**MEMORY, "store": {"url": f"sqlite:{tmp_path / 'store.db'}"}})
    gateway = create_app(settings)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=chat_body("demo")) for _ in range(8))
            )
            codes = [answer.status_code for answer in answers]
            await gateway.aclose()
            codes.append((await client.get("/v1/models")).status_code)  # which starts it again
            await gateway.aclose()
            return codes

    assert asyncio.run(ask()) == [200] * 9


def test_a_new_event_loop_gets_a_new_gateway():
    """A test client without a context has a loop for every request."""
    client = TestClient(create_app(MEMORY), base_url="http://localhost")
    assert [client.get("/v1/models").status_code for _ in range(3)] == [200] * 3
    with TestClient(create_app(MEMORY), base_url="http://localhost") as kept:
        assert [kept.get("/v1/models").status_code for _ in range(3)] == [200] * 3


def test_a_websocket_works_under_a_prefix():
    gateway = create_app(MEMORY)
    app = FastAPI(lifespan=gateway.lifespan)
    app.mount("/llm", gateway)
    with TestClient(app, base_url="http://localhost") as client:
        with client.websocket_connect("/llm/v1/responses", headers={"host": "localhost"}) as socket:
            socket.send_text(json.dumps({"type": "response.create", "model": "demo", "input": "Hello"}))
            types: list[str] = []
            while not types or types[-1] != "response.completed":
                types.append(json.loads(socket.receive_text())["type"])
    assert types[0] == "response.created"


def test_without_keys_it_answers_its_own_machine_only():
    client = TestClient(create_app(MEMORY), base_url="http://elsewhere.example")
    assert client.get("/v1/models").status_code == 403
    known = {**MEMORY, "server": {"hosts": ["elsewhere.example"]}}
    assert TestClient(create_app(known), base_url="http://elsewhere.example").get("/v1/models").status_code == 200


def test_it_asks_the_backends_of_its_settings(upstream: Upstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    upstream.replies["mounted"] = reply(Script((Says("So."), Calls("c1", "look", "{}"))), "messages", stream=False)
    backend = {"name": "up", "kind": "messages", "base_url": upstream.url, "api_key_env": "MY_KEY"}
    with TestClient(create_app({**MEMORY, "backends": [backend]}), base_url="http://localhost") as client:
        answer = client.post("/v1/chat/completions", json=chat_body("up/mounted")).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert upstream.of("mounted")[-1].headers["x-api-key"] == "sk-mine"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"sever": {}}, "settings: sever: unknown key; did you mean server?"),
        ({"backends": [{"name": "x", "kind": "chat"}]}, "settings: backends[0] (x).base_url: "),
        ({"backends": [{"name": "x", "kind": "chta"}]}, "settings: backends[0] (x).kind: 'chta' is none of"),
        ({"server": {"max_body": "much"}}, "settings: server.max_body: 'much' is not a size"),
        ({"file": "x"}, "settings: file: unknown key"),
    ],
)
def test_a_setting_that_cannot_be_is_named(table: dict[str, Any], said: str):
    for make in (Settings.from_dict, create_app):
        with pytest.raises(SettingsError) as caught:
            make(table)
        assert str(caught.value).startswith(said)


def test_the_path_of_a_file_is_no_settings(tmp_path: Path):
    for path in (tmp_path / "toolwire.toml", "toolwire.toml"):
        with pytest.raises(TypeError, match=r"`Settings\.from_file\(path\)` reads a file"):
            create_app(path)  # pyright: ignore[reportArgumentType]


def test_settings_of_a_file_and_of_a_dictionary_are_the_same(tmp_path: Path):
    file = tmp_path / "toolwire.toml"
    file.write_text('[tools]\nmax_calls = 2\n[[backends]]\npreset = "ollama"\n')
    from_file = Settings.from_file(file, {})
    from_dict = Settings.from_dict({"tools": {"max_calls": 2}, "backends": [{"preset": "ollama"}]}, {})
    assert (from_file.tools, from_file.backends) == (from_dict.tools, from_dict.backends)
    with pytest.raises(SettingsError, match="there is no such file"):
        Settings.from_file(tmp_path / "missing.toml")
    assert Settings.from_dict({}, {"PROXY_TOOL_BLOCK_MAX": "3"}).tools.max_calls == 3


def test_a_store_that_cannot_be_opened_fails_the_start_and_names_the_field(tmp_path: Path):
    settings = Settings.from_dict({**MEMORY, "store": {"url": f"sqlite:{tmp_path}"}})

    async def start(gateway: GatewayApp) -> None:
        async with gateway.lifespan():
            pass

    with pytest.raises(SettingsError, match=r"store\.url: "):
        asyncio.run(start(create_app(settings)))
