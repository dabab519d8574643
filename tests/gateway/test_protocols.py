"""A protocol is added by registering its row: nothing else of the gateway is touched."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.gateway import chat_body
from tests.support.raw_backend import RawBackend
from tests.support.toy import TOY
from toolwire import Settings, SettingsError, WrongDialect, decode_body, translate
from toolwire.gateway.app import Gateway
from toolwire.protocols import PROTOCOLS, register

STREAM = b'data: {"toy":"Hel"}\n\ndata: {"toy":"lo."}\n\ndata: {"calls":0}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: "


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with register(TOY):
        yield
    assert TOY.name not in PROTOCOLS


def frames(text: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: "))


def client(*backends: dict[str, object], **more: object) -> TestClient:
    settings = Settings.from_dict({"backends": [*backends], **more}, {})
    return TestClient(Gateway(settings), base_url="http://127.0.0.1")


def test_a_client_of_a_registered_protocol_is_answered_plainly():
    with client() as gateway:
        answer = gateway.post("/toy/demo:whole", json={"say": "Hello"})
        asked = gateway.post(
            "/v1/chat/completions", json={"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
        )
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"toy": asked.json()["choices"][0]["message"]["content"], "calls": 0}


def test_a_client_of_a_registered_protocol_gets_a_stream():
    with client() as gateway:
        answer = gateway.post("/toy/demo:stream", json={"say": "Hello"})
        whole = gateway.post("/toy/demo:whole", json={"say": "Hello"}).json()["toy"]
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [*frames(answer.text)]
    assert "".join(event.get("toy", "") for event in events) == whole
    assert events[-1] == {"calls": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_a_registered_kind_of_backend_answers_chat_clients(stream: bool):
    body = STREAM if stream else b'{"toy":"Hello.","calls":0}'
    kind = b"text/event-stream" if stream else b"application/json"
    backend = RawBackend(lambda: [HEAD + kind + b"\r\n\r\n" + body])
    settings = {"name": "mine", "kind": "toy", "base_url": backend.url, "models": ["bear"]}
    try:
        with client(settings) as gateway:
            answer = gateway.post("/v1/chat/completions", json=chat_body("bear", stream=stream))
            listed = [model["id"] for model in gateway.get("/v1/models").json()["data"]]
    finally:
        backend.stop()
    assert answer.status_code == 200, answer.text
    turn = answer.json()["choices"][0]["message"]["content"] if not stream else chat_text(answer.text)
    assert turn == "Hello."
    assert listed[:2] == ["bear", "demo"]


def chat_text(text: str) -> str:
    chunks = frames(text.replace("data: [DONE]", ""))
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_what_goes_wrong_is_said_in_the_protocol_of_the_path():
    with client() as gateway:
        refused = gateway.post("/toy/demo:whole", json={"say": ""})
        unknown = gateway.post("/toy/nobody:whole", json={"say": "Hi"})
        nowhere = gateway.get("/toy/demo:whole")
    assert (refused.status_code, refused.json()) == (400, {"toy_error": "say: This field is required."})
    assert (unknown.status_code, [*unknown.json()]) == (404, ["toy_error"])
    assert [*nowhere.json()] == ["toy_error"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/toy/demo:whole", {}, 401),
        ("/toy/demo:whole", {"x-toy-key": "secret-1"}, 200),
        ("/toy/demo:whole?toy_key=secret-1", {}, 200),
        ("/toy/demo:whole?toy_key=wrong", {}, 401),
    ],
)
def test_keys_are_read_where_the_protocol_has_them(path: str, headers: dict[str, str], status: int):
    with client(keys=[{"name": "me", "key": "secret-1"}]) as gateway:
        assert gateway.post(path, json={"say": "Hi"}, headers=headers).status_code == status


def test_settings_know_the_kind_and_its_profile():
    def read(**more: object) -> Settings:
        backend = {"name": "mine", "kind": "toy", "base_url": "http://127.0.0.1:1", **more}
        return Settings.from_dict({"backends": [backend]}, {})

    assert read(profile={"shouts": True}).backends[0].kind == "toy"
    with pytest.raises(SettingsError, match=r"profile\.shots: unknown key; did you mean shouts"):
        read(profile={"shots": True})
    with pytest.raises(SettingsError, match=r"kind: 'tog' is not one of .*responses, toy; did you mean toy"):
        read(kind="tog")


def test_the_library_translates_a_registered_protocol():
    written = b"".join(translate("toy", "chat", [STREAM]))
    assert chat_text(written.decode()) == "Hello."
    assert decode_body("toy", b'{"toy":"Hello.","calls":0}').text == "Hello."
    with pytest.raises(WrongDialect, match=r"This is the toy protocol \('toy'\), not Chat Completions"):
        decode_body("chat", b'{"toy":"Hello.","calls":0}')
