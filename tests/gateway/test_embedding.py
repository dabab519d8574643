"""The gateway inside other applications: under a prefix, with their lifespan or without any."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncGenerator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.backend_writers import reply
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Events, Gate, chat_body, iter_events, read_events, text_of
from tests.support.scripts import Calls, Says, Script
from tests.support.upstream import Reply, Upstream
from toolwire import GatewayApp, Settings, SettingsError, create_app
from toolwire.gateway.console import routes
from toolwire.gateway.console.access import load_token
from toolwire.gateway.console.http import address_of
from toolwire.gateway.http import PREFIX

MEMORY: dict[str, Any] = {"store": {"url": "memory:"}, "debug": {"level": "error"}}


@contextlib.contextmanager
def served(app: Any, lifespan: str = "on") -> Iterator[str]:
    """The address of an application that uvicorn serves on a thread of its own."""
    with started(app, lifespan) as server:
        yield url_of(server)


def url_of(server: uvicorn.Server) -> str:
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


@contextlib.contextmanager
def started(app: Any, lifespan: str = "on") -> Iterator[uvicorn.Server]:
    """A server of an application on a thread of its own."""
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
        yield server
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


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "alone"])
def test_a_turn_of_a_websocket_is_finished_before_the_server_ends(upstream: Upstream, is_mounted: bool):
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["mounted-socket"] = Reply(gate)
    backend = {"name": "up", "kind": "responses", "base_url": upstream.url}
    gateway = create_app({**MEMORY, "backends": [backend]})
    app: Any = gateway
    if is_mounted:
        app = FastAPI(lifespan=gateway.lifespan)
        app.mount("/llm", gateway)
    with started(app) as server:
        address = url_of(server).replace("http", "ws", 1) + ("/llm" if is_mounted else "") + "/v1/responses"
        with connect(address, proxy=None) as socket, connect(address, proxy=None) as idle:
            socket.send(json.dumps({"type": "response.create", "model": "up/mounted-socket", "input": "Go."}))
            while "output_text.delta" not in socket.recv(60):
                pass
            server.should_exit = True
            with pytest.raises(ConnectionClosed) as closed:
                idle.recv(60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
            gate.open()
            while (message := json.loads(socket.recv(60)))["type"] != "response.completed":
                pass
            assert text_of(message["response"]) == "ab"
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012


def test_a_background_stream_that_is_silent_for_long_has_numbered_signs_of_life(
    upstream: Upstream, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toolwire.gateway.responses.run_task.EVENT_KEEPALIVE_AFTER", 0.05)
    monkeypatch.setattr("toolwire.dialects.responses.encode.EVENT_KEEPALIVE_AFTER", 0.05)
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["silent-for-long"] = Reply(gate)
    backend = {"name": "up", "kind": "responses", "base_url": upstream.url}
    gateway = create_app({**MEMORY, "backends": [backend], "server": {"keepalive": 0.04}})
    body = {"model": "up/silent-for-long", "input": "Go.", "background": True, "stream": True}
    events = Events()
    with served(gateway) as url:
        with http.stream("POST", f"{url}/v1/responses", json=body) as response:
            for frame in iter_events(response, events):
                events.frames.append(frame)
                if len(events.of("response.in_progress")) == 4:
                    gate.open()
        again = read_events(http.get(f"{url}/v1/responses/{events.response['id']}", params={"stream": "true"}))
    assert events.numbers == list(range(len(events.frames)))
    assert text_of(events.response) == "ab"
    assert again.frames == events.frames
    assert again.telemetry == events.telemetry


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


def test_a_backend_gets_the_key_of_the_given_environment(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("MY_KEY", "sk-of-this-process")
    upstream.replies["given"] = reply(Script((Says("My key is sk-given."),)), "chat", stream=False)
    backend = {"name": "up", "kind": "chat", "base_url": upstream.url, "api_key_env": "MY_KEY"}
    table = {**MEMORY, "backends": [backend], "debug": {"level": "error", "record": str(tmp_path)}}
    settings = Settings.from_dict(table, {"MY_KEY": "sk-given"})
    body = chat_body("up/given")
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert upstream.of("given")[-1].headers["authorization"] == "Bearer sk-given"
    [recording] = tmp_path.glob("*.jsonl")
    assert "sk-given" not in recording.read_text()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"sever": {}}, "settings: sever: unknown key; did you mean server?"),
        ({"backends": [{"name": "x", "kind": "chat"}]}, "settings: backends[0] (x).base_url: "),
        ({"backends": [{"name": "x", "kind": "chta"}]}, "settings: backends[0] (x).kind: 'chta' is not one of"),
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


# The console under a prefix


@contextlib.contextmanager
def mounted(**at: GatewayApp) -> Iterator[httpx.Client]:
    """A browser, and an application with gateways below these names."""
    app = Starlette(routes=[Mount(f"/{name}", gateway) for name, gateway in at.items()])
    with served(app, "off") as url, httpx.Client(base_url=url, trust_env=False, timeout=90) as browser:
        browser.headers["origin"] = url
        yield browser


def links_in(page: httpx.Response) -> list[str]:
    """The paths that a page leads to, as a browser understands them."""
    found = re.findall(r'(?:href|src|action)="([^"#][^"]*)"', page.text)
    assert found
    return [httpx.URL(urljoin(str(page.url), link)).raw_path.decode() for link in found]


@pytest.mark.parametrize("name", ["llm", "deep/er", "a b"])
@pytest.mark.parametrize("page", ["", "console"])
def test_the_console_works_under_a_prefix(name: str, page: str):
    prefix = f"/{quote(name)}"
    with mounted(**{name: create_app(MEMORY)}) as browser:
        asked = browser.get(f"{prefix}/{page}")
        refused = browser.post(f"{prefix}/console/sign-in", data={"secret": "no"})
        assert refused.status_code == 403
        for shown in (asked, refused):
            assert all(link.startswith(f"{prefix}/console/") for link in links_in(shown))
            assert [browser.get(link).status_code for link in links_in(shown) if "static" in link] == [200] * 3
        entered = browser.post(f"{prefix}/console/sign-in", data={"secret": load_token()}, follow_redirects=True)
        assert (entered.status_code, entered.url.raw_path.decode()) == (200, f"{prefix}/")
        assert all(link.startswith(f"{prefix}/console/") for link in links_in(entered))
        assert [cookie.path for cookie in browser.cookies.jar] == [prefix]
        assert browser.get(f"{prefix}/console/api/me").json()["sees_all"] is True
        left = browser.post(f"{prefix}/console/sign-out", follow_redirects=True)
        assert left.url.raw_path.decode() == f"{prefix}/"
        assert browser.get(f"{prefix}/console/api/me").status_code == 401
        by_link = browser.get(f"{prefix}/{page}", params={"token": load_token()}, follow_redirects=True)
        assert by_link.url.raw_path.decode() == f"{prefix}/"
        assert browser.get(f"{prefix}/console/api/me").status_code == 200


def test_the_consoles_of_two_gateways_do_not_sign_each_other_out():
    settings = [{**MEMORY, "keys": [{"name": "ann", "key": f"key-of-{name}", "console": True}]} for name in "ab"]
    with mounted(a=create_app(settings[0]), b=create_app(settings[1])) as browser:
        for name in "ab":
            browser.post(f"/{name}/console/sign-in", data={"secret": f"key-of-{name}"})
        assert [browser.get(f"/{name}/console/api/me").status_code for name in "ab"] == [200, 200]


def test_scripts_of_the_console_know_no_absolute_path():
    scripts = [
        path.read_text() for path in (files(routes.__package__ or "") / "static").iterdir() if path.name.endswith(".js")
    ]
    assert len(scripts) > 10
    assert not [script for script in scripts if re.search(r"""["'`]/(console|v1)/""", script) and "PATHS" not in script]


@pytest.mark.parametrize(
    ("host", "url"), [("127.0.0.1", "http://127.0.0.1:80/a%20b"), ("::1", "http://[::1]:80/a%20b")]
)
def test_a_check_asks_the_gateway_under_its_prefix(host: str, url: str):
    assert address_of(Request({"type": "http", "server": (host, 80), PREFIX: "/a b"})) == url


def test_a_sign_in_form_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "SIGN_IN_TIMEOUT", 0.05)
    said: list[Any] = []
    begun = {"type": "http.request", "body": b"secret=", "more_body": True}

    async def main() -> None:
        gateway = create_app(MEMORY)
        pieces = iter((begun,))

        async def receive() -> Any:
            for piece in pieces:
                return piece
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            said.append(message)

        headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
        scope = {"type": "http", "method": "POST", "path": "/console/sign-in", "query_string": b"", "headers": headers}
        async with gateway.lifespan(), asyncio.timeout(60):
            await gateway(scope, receive, send)

    asyncio.run(main())
    assert said[0]["status"] == 408


def test_viewers_of_one_turn_share_one_answer():
    """Forty of them would hold more than the gateway may."""
    settings = {**MEMORY, "server": {"max_body": "2MB", "max_in_flight": "8MB"}}
    given = {"authorization": f"Bearer {load_token()}"}

    async def main() -> list[httpx.Response]:
        gateway = create_app(settings)
        transport = httpx.ASGITransport(gateway)
        async with gateway.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            said = ("user", "x" * 1_000_000), ("assistant", "I see."), ("user", "Hello")
            asked = chat_body("demo", messages=[{"role": role, "content": content} for role, content in said])
            assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
            rows = (await client.get("/console/api/turns", headers=given)).json()["workers"][0]["rows"]
            path = f"/console/api/turns/{rows[0]['id']}"
            found = await asyncio.gather(*(client.get(path, headers=given) for _ in range(40)))
            return [
                *found,
                *(await asyncio.gather(*(client.get(f"{path}/recording", headers=given) for _ in range(40)))),
            ]

    answers = asyncio.run(main())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 2
    assert len(answers[0].content) > 1_000_000
