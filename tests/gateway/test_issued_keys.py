"""Issued keys: from the admin API to a request, on several gateways with one store, and what such a key may use."""

import base64
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.gateway.test_embedding import served
from tests.support.fleet import until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, chat_body, response_body
from tests.support.upstream import Reply, Upstream
from toolwire import Settings, SettingsError, create_app
from toolwire.config.settings import with_address
from toolwire.gateway.key_admin import MAX_TEXTS

ADMIN = "the-key-of-the-admin"
OF_FILE = "the-key-of-the-file"
KEYS = "/admin/v1/keys"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def make_settings(upstream: Upstream, place: Path, **more: Any) -> Settings:
    backends = [
        {"name": name, "kind": "responses", "base_url": upstream.url, "models": models, "retries": 0}
        for name, models in (("up", ["gpt-one", "gpt-two", "shared"]), ("other", ["o-one", "shared"]))
    ]
    table = {
        "access": {"issued_keys": True, "admin_key_env": "ADMIN"},
        "store": {"url": f"sqlite:{place}"},
        "debug": {"level": "error"},
        "console": {"enabled": False},
        "backends": backends,
        **more,
    }
    return Settings.from_dict(table, {"ADMIN": ADMIN})


CLIENTS: list[httpx.Client] = []


@pytest.fixture(autouse=True, scope="module")
def close_clients() -> Iterator[None]:
    yield
    for client in CLIENTS:
        client.close()
    CLIENTS.clear()


class Client:
    """A client of one gateway, with one key."""

    def __init__(self, url: str, key: str = "") -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60)
        self.url, self.key = url, key
        CLIENTS.append(self.http)

    def ask(self, model: str, path: str = CHAT) -> httpx.Response:
        body: dict[str, Any] = {**chat_body(model), "max_tokens": 9}
        return self.http.post(path, json=response_body(model) if path == RESPONSES else body)

    def is_known(self) -> bool:
        return self.http.get("/v1/models").status_code == 200

    def create(self, name: str, **fields: Any) -> str:
        """Issue a key; returns its secret."""
        answer = self.http.post(KEYS, json={"name": name, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["key"]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(KEYS + path, json=body)


class Stage:
    """Two gateways with one store."""

    def __init__(self, urls: list[str], place: Path) -> None:
        self.urls, self.place = urls, place
        self.admin = Client(urls[0], ADMIN)

    def client(self, key: str, number: int = 0) -> Client:
        return Client(self.urls[number], key)

    def issue(self, name: str, number: int = 0, **fields: Any) -> Client:
        """A client with a new key, once its gateway knows it."""
        client = self.client(self.admin.create(name, **fields), number)
        until(client.is_known)
        return client


@pytest.fixture(scope="module")
def stage(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = tmp_path_factory.mktemp("issued") / "kept.db"
    for model in ("gpt-one", "gpt-two", "o-one", "shared"):
        upstream.replies[model] = Reply([stream(created(), text("Hi."), completed())])
    with ExitStack() as stack:
        settings = make_settings(upstream, place)
        yield Stage([stack.enter_context(served(create_app(settings))) for _ in range(2)], place)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    return answer.json()["error"]


# From the admin API to a request


def test_a_key_is_issued_once_and_used_on_every_gateway(stage: Stage):
    made = stage.admin.post("", name="ann", team="blue", labels={"app": "notes"}, models=["gpt-*"]).json()
    secret = made.pop("key")
    assert secret.startswith("sk-tw-")
    assert len(secret) == len("sk-tw-") + 43
    assert (made["object"], made["status"], made["team"]) == ("key", "active", "blue")
    for number in range(2):
        client = stage.client(secret, number)
        until(client.is_known)
        assert client.ask("gpt-one").json()["choices"][0]["message"]["content"] == "Hi."
    assert stage.admin.http.get(f"{KEYS}/ann").json() == made
    assert made in stage.admin.http.get(KEYS).json()["data"]


def test_the_secret_is_nowhere_in_the_store(stage: Stage):
    client = stage.issue("hidden")
    with closing(sqlite3.connect(stage.place)) as database:
        [[facts]] = database.execute("SELECT facts FROM issued_keys WHERE name = 'hidden'").fetchall()
    assert client.key.encode() not in facts
    assert client.key[6:].encode() not in facts
    assert hashlib.sha256(client.key.encode()).digest() == base64.b64decode(json.loads(facts)["digest"])


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("key", ["", "sk-tw-unknown", "\u00fc", "x" * 5000, ADMIN])
def test_there_is_no_open_door_beside_issued_keys(stage: Stage, path: str, key: str):
    headers = {"authorization": b"Bearer " + key.encode()} if key else {}
    answer = httpx.post(stage.urls[0] + path, json=chat_body("gpt-one"), headers=headers, trust_env=False)
    assert answer.status_code == 401
    assert error_of(answer)["type"] in ("authentication_error", "invalid_request_error")


def test_a_page_of_this_machine_gets_in_with_no_key_neither(stage: Stage):
    for path in ("/v1/models", "/metrics", "/v1/responses/resp_1"):
        assert httpx.get(stage.urls[0] + path, trust_env=False).status_code == 401
    shown = httpx.get(f"{stage.urls[0]}/readyz", trust_env=False).json()
    assert "backends" not in shown


@pytest.mark.parametrize("act", ["revoke", "rotate"])
def test_a_secret_that_was_revoked_or_replaced_is_refused_on_every_gateway(stage: Stage, act: str):
    clients = [stage.issue(f"{act}d", 0)]
    clients.append(stage.client(clients[0].key, 1))
    until(clients[1].is_known)
    answer = stage.admin.post(f"/{act}d/{act}").json()
    for client in clients:
        until(lambda client=client: not client.is_known())
        refused = client.ask("gpt-one")
        assert refused.status_code == 401
        assert ("was revoked" in error_of(refused)["message"]) == (act == "revoke")
    if act == "rotate":
        assert answer["rotated_at"] >= answer["created_at"]
        until(stage.client(answer["key"], 1).is_known)


def test_an_expired_key_is_refused_and_can_be_rotated_with_another_time(stage: Stage):
    ends = int(time.time()) + 1
    client = stage.client(stage.admin.create("brief", expires_at=ends))
    until(lambda: time.time() > ends)
    until(lambda: "has expired" in client.ask("gpt-one").text)
    refused = client.ask("gpt-one")
    assert (refused.status_code, error_of(refused)["message"]) == (401, "The key `brief` has expired.")
    assert stage.admin.http.get(f"{KEYS}/brief").json()["status"] == "expired"
    assert error_of(stage.admin.post("/brief/rotate"))["param"] == "expires_at"
    until(stage.client(stage.admin.post("/brief/rotate", expires_at=0).json()["key"]).is_known)


# Turns that run


def hold(upstream: Upstream, model: str) -> Gate:
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies[model] = Reply(gate)
    return gate


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_stream_ends_when_its_key_is_revoked_through_another_gateway(stage: Stage, upstream: Upstream, path: str):
    name = f"streams{path.replace('/', '-')}"
    gate, client = hold(upstream, name), stage.issue(name, 1)
    body = response_body(f"up/{name}") if path == RESPONSES else {**chat_body(f"up/{name}"), "max_tokens": 9}
    upstream.gone.clear()
    with client.http.stream("POST", path, json={**body, "stream": True}) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        stage.admin.post(f"/{name}/revoke")
        rest = [first, *lines]
    assert answer.status_code == 200
    assert any("was revoked" in line for line in rest)
    assert upstream.gone.wait(60)
    gate.open()


def test_a_plain_answer_ends_too_and_the_connection_serves_on(stage: Stage, upstream: Upstream):
    gate, client = hold(upstream, "plain-held"), stage.issue("plain")
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(client.ask("up/plain-held")))
    thread.start()
    until(lambda: upstream.of("plain-held"))
    stage.admin.post("/plain/revoke")
    thread.join(60)
    assert answers[0].status_code == 401
    client.http.headers["authorization"] = f"Bearer {stage.issue('next').key}"
    assert client.ask("gpt-one").status_code == 200
    gate.open()


def test_a_background_response_fails_when_its_key_is_revoked(stage: Stage, upstream: Upstream):
    gate, client = hold(upstream, "behind"), stage.issue("behind")
    body = response_body("up/behind", background=True, stream=True)
    with client.http.stream("POST", RESPONSES, json=body) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        stage.admin.post("/behind/revoke")
        with pytest.raises(httpx.RemoteProtocolError):  # what follows a response ends too
            list(lines)
    with closing(sqlite3.connect(stage.place)) as database:
        query = "SELECT status, body FROM holders WHERE owner = 'behind'"
        until(lambda: database.execute(query).fetchone()[0] == "failed")
        assert b"was revoked" in database.execute(query).fetchone()[1]
    gate.open()


def test_a_socket_answers_no_further_request_of_a_revoked_key(stage: Stage):
    client = stage.issue("socket")
    address = client.url.replace("http", "ws") + RESPONSES
    with connect(address, additional_headers={"authorization": f"Bearer {client.key}"}, proxy=None) as socket:

        def ask() -> str:
            socket.send(json.dumps({"type": "response.create", **response_body("gpt-one")}))
            while True:
                event = json.loads(socket.recv(60))
                if event["type"] in ("response.completed", "error"):
                    return event["type"]

        assert ask() == "response.completed"
        stage.admin.post("/socket/revoke")
        until(lambda: ask() == "error")


def test_a_rotated_key_keeps_its_data_and_its_running_turns(stage: Stage, upstream: Upstream):
    gate, client = hold(upstream, "goes-on"), stage.issue("keeper")
    kept = client.ask("gpt-one", RESPONSES).json()["id"]
    with client.http.stream("POST", CHAT, json=chat_body("up/goes-on", stream=True)) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        later = stage.client(stage.admin.post("/keeper/rotate").json()["key"])
        until(later.is_known)
        until(lambda: not client.is_known())
        gate.open()
        assert "data: [DONE]" in list(lines)
    assert later.http.get(f"{RESPONSES}/{kept}").status_code == 200


# What a key may use


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("gpt-two", "It may use gpt-one, shared."),
        ("up/gpt-two", "It may use gpt-one, shared."),
        ("GPT-ONE", "It may use gpt-one, shared."),
        ("nowhere", "It may use gpt-one, shared."),
        ("other/shared", "It may use the backends up."),
        ("gpt-one" + "x" * 2000, "It may use gpt-one, shared."),
    ],
)
def test_a_model_or_backend_that_a_key_may_not_use_is_refused_by_name(
    restricted: Client, path: str, model: str, reason: str
):
    answer = restricted.ask(model, path)
    error = error_of(answer)
    assert answer.status_code == 403
    assert error["message"].startswith("The key `restricted")
    assert reason in error["message"]
    if path == MESSAGES:
        assert error["type"] == "permission_error"
    else:
        assert (error["code"], error["param"]) == ("model_not_allowed", "model")


@pytest.fixture(scope="module")
def restricted(stage: Stage) -> Client:
    return stage.issue("restricted", models=["gpt-one", "shared"], backends=["up"])


def test_a_key_gets_the_models_that_it_may_use(restricted: Client, stage: Stage):
    assert restricted.ask("gpt-one").status_code == restricted.ask("up/shared", RESPONSES).status_code == 200
    names = [each["id"] for each in restricted.http.get("/v1/models").json()["data"]]
    assert names == ["gpt-one", "shared"]
    assert restricted.http.get("/v1/models/gpt-one").status_code == 200
    assert restricted.http.get("/v1/models/gpt-two").status_code == 403
    counted = {**chat_body("gpt-two"), "max_tokens": 9}
    assert restricted.http.post("/v1/messages/count_tokens", json=counted).status_code == 403
    assert restricted.http.post("/v1/responses/input_tokens", json=response_body("gpt-two")).status_code == 403
    everything = stage.issue("everything").http.get("/v1/models").json()["data"]
    assert {"gpt-two", "o-one"} <= {each["id"] for each in everything}


def test_a_failover_stays_on_the_backends_that_a_key_may_use(stage: Stage, upstream: Upstream):
    client = stage.issue("careful", backends=["up"])
    upstream.replies["shared"] = Reply([b"{}"], status=500, content_type="application/json")
    before = len(upstream.of("shared"))
    try:
        assert client.ask("shared").status_code >= 500
        assert len(upstream.of("shared")) == before + 1
    finally:
        upstream.replies["shared"] = Reply([stream(created(), text("Hi."), completed())])


def test_a_misspelt_model_suggests_none_that_a_key_may_not_use(stage: Stage):
    client = stage.issue("guesser", models=["gpt-o*"])
    message = error_of(client.ask("gpt-onne"))["message"]
    assert "gpt-one" in message
    assert "gpt-two" not in message


def test_tenants_are_kept_apart(stage: Stage):
    ann, ben = stage.issue("tenant-a"), stage.issue("tenant-b")
    id = ann.ask("gpt-one", RESPONSES).json()["id"]
    assert ann.http.get(f"{RESPONSES}/{id}").status_code == 200
    assert ben.http.get(f"{RESPONSES}/{id}").status_code == 404
    continued = {**response_body("gpt-one"), "previous_response_id": id}
    assert ben.http.post(RESPONSES, json=continued).status_code == 404


def test_an_issued_key_sees_nothing_that_concerns_all_clients(stage: Stage):
    client = stage.issue("curious")
    assert client.http.get("/metrics").status_code == 403
    assert "backends" not in client.http.get("/readyz").json()
    assert stage.admin.http.get("/metrics").status_code == 200
    for method, path in (
        ("GET", ""),
        ("POST", ""),
        ("GET", "/curious"),
        ("POST", "/curious"),
        ("POST", "/curious/revoke"),
    ):
        assert client.http.request(method, KEYS + path, json={"name": "x"}).status_code == 401
        assert httpx.request(method, stage.urls[0] + KEYS + path, trust_env=False).status_code == 401


# Hostile input


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "(console)"}, "name"),
        ({"name": "key:0"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "ü"}, "name"),
        ({"name": "a" * 129}, "name"),
        ({"name": 7}, "name"),
        ({}, "name"),
        ({"name": "x", "team": "a\x00b"}, "team"),
        ({"name": "x", "team": "a" * 300}, "team"),
        ({"name": "x", "labels": {"a": "\x1b[2J"}}, "labels"),
        ({"name": "x", "labels": {str(n): "" for n in range(MAX_TEXTS + 1)}}, "labels"),
        ({"name": "x", "models": [""]}, "models"),
        ({"name": "x", "models": ["["]}, "models"),
        ({"name": "x", "models": ["a"] * (MAX_TEXTS + 1)}, "models"),
        ({"name": "x", "models": "gpt"}, "models"),
        ({"name": "x", "backends": ["nowhere"]}, "backends"),
        ({"name": "x", "expires_at": 1}, "expires_at"),
        ({"name": "x", "expires_at": -1}, "expires_at"),
        ({"name": "x", "expires_at": 10**30}, "expires_at"),
        ({"name": "x", "expires_at": "tomorrow"}, "expires_at"),
    ],
)
def test_an_invalid_field_is_named_and_nothing_is_issued(stage: Stage, fields: dict[str, Any], param: str):
    before = stage.admin.http.get(KEYS).json()
    answer = stage.admin.post("", **fields)
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["param"] == param
    assert stage.admin.http.get(KEYS).json() == before


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'{"name":"x","secret":"mine"}', b"[" * 100_000])
def test_a_body_that_is_no_request_is_refused(stage: Stage, body: bytes):
    assert stage.admin.http.post(KEYS, content=body).status_code == 400


def test_a_name_is_never_used_again(stage: Stage):
    stage.admin.create("once")
    assert stage.admin.post("", name="once").status_code == 409
    assert stage.admin.post("/once/revoke").json()["status"] == "revoked"
    ended = stage.admin.post("/once/revoke").json()["revoked_at"]
    assert ended == stage.admin.http.get(f"{KEYS}/once").json()["revoked_at"]
    assert stage.admin.post("", name="once").status_code == 409
    assert stage.admin.post("/once/rotate").status_code == 409
    for path in ("/nobody/rotate", "/nobody/revoke"):
        assert stage.admin.post(path).status_code == 404
    assert stage.admin.http.get(f"{KEYS}/nobody").status_code == 404


def test_a_key_is_changed_field_by_field(stage: Stage):
    client = stage.issue("changing", team="blue", models=["gpt-one"], labels={"a": "b"})
    assert client.ask("gpt-two").status_code == 403
    shown = stage.admin.post("/changing", models=["gpt-two"], expires_at=int(time.time()) + 900).json()
    assert (shown["team"], shown["models"], shown["labels"]) == ("blue", ["gpt-two"], {"a": "b"})
    until(lambda: client.ask("gpt-two").status_code == 200)
    assert client.ask("gpt-one").status_code == 403
    for fields, param in (({"backends": ["nowhere"]}, "backends"), ({"expires_at": 1}, "expires_at")):
        assert error_of(stage.admin.post("/changing", **fields))["param"] == param
    assert stage.admin.post("/changing", name="other").status_code == 400
    assert stage.admin.post("/nobody", team="x").status_code == 404
    stage.admin.post("/changing/revoke")
    assert stage.admin.post("/changing", team="x").status_code == 409


# Settings


def test_keys_of_the_file_and_issued_ones_work_side_by_side(upstream: Upstream):
    settings = make_settings(upstream, Path("unused"), store={"url": "memory:"}, keys=[{"name": "f", "key": OF_FILE}])
    with served(create_app(settings)) as url:
        admin = Client(url, ADMIN)
        assert admin.post("", name="f").status_code == 409
        issued = Client(url, admin.create("g"))
        until(issued.is_known)
        of_file = Client(url, OF_FILE)
        assert of_file.ask("gpt-one").status_code == issued.ask("gpt-one").status_code == 200
        assert of_file.http.get("/metrics").status_code == 200


def test_without_the_setting_there_is_no_admin_api_and_no_issued_key(upstream: Upstream, tmp_path: Path):
    both = make_settings(upstream, tmp_path / "kept.db", keys=[{"name": "f", "key": OF_FILE}])
    with served(create_app(both)) as url:
        issued = Client(url, Client(url, ADMIN).create("g"))
        until(issued.is_known)
    for access in ({}, {"issued_keys": True}):
        settings = make_settings(upstream, tmp_path / "kept.db", keys=[{"name": "f", "key": OF_FILE}], access=access)
        with served(create_app(settings)) as url:
            assert Client(url, ADMIN).http.get(KEYS).status_code == 404
            assert Client(url, issued.key).is_known() == bool(access)


def test_a_gateway_with_issued_keys_may_be_reached_from_outside():
    settings = Settings.from_dict({"access": {"issued_keys": True}}, {})
    assert with_address(settings, "0.0.0.0", 1).server.host == "0.0.0.0"
    with pytest.raises(SettingsError, match=r"server\.host"):
        with_address(Settings.from_dict({}, {}), "0.0.0.0", 1)


@pytest.mark.parametrize(
    ("access", "key", "message"),
    [
        ({"admin_key_env": "ADMIN"}, ADMIN, "is for access.issued_keys = true or usage.enabled = true"),
        ({"issued_keys": True, "admin_key_env": "ADMIN"}, "", "the variable ADMIN is not set"),
        ({"issued_keys": True, "admin_key_env": "ADMIN"}, "short", "at least 20 ASCII characters"),
        ({"issued_keys": True, "admin_key_env": "ADMIN"}, "ü" * 30, "at least 20 ASCII characters"),
        ({"issued_keys": True, "admin_key_env": "ADMIN"}, OF_FILE + "-long", "a client has this key too"),
        ({"issued_keys": True, "admin_key_env": "sk-secret"}, ADMIN, "this is not the name of a variable"),
    ],
)
def test_an_invalid_setting_is_named_and_no_key_is_shown(access: dict[str, Any], key: str, message: str):
    table = {"access": access, "keys": [{"name": "f", "key": OF_FILE + "-long"}]}
    with pytest.raises(SettingsError) as raised:
        Settings.from_dict(table, {"ADMIN": key})
    assert "access.admin_key_env" in str(raised.value)
    assert message in str(raised.value)
    assert "sk-secret" not in str(raised.value)
