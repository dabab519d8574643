"""Vertex AI: tokens of Google Cloud, and the paths of its models."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.testclient import TestClient

from tests.commands.server import Answer, Server
from tests.support.backend_writers import reply
from tests.support.gateway import chat_body
from tests.support.scripts import Calls, Name, Says, Script
from tests.support.upstream import Reply, Upstream
from toolwire import Settings, SettingsError
from toolwire.gateway.app import Gateway
from toolwire.imports import REQUIREMENTS
from toolwire.turns.backends import find_obstacles

HELLO = Script((Says("Hello."), Calls("call_a", "look", "{}")))
TOKEN = {"token_type": "Bearer", "expires_in": 3600}
FILE, METADATA = "GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"


class Tokens:
    """Google's servers of tokens: that for service accounts, and the metadata server of a machine."""

    def __init__(self) -> None:
        self.made = 0
        self.lifetime = 3600
        self.refuses = False

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        flavor = {"metadata-flavor": "Google"}
        if method == "GET" and not path.startswith("/computeMetadata/v1/instance/service-accounts/"):
            return 200, "text/plain", b"", flavor
        if "token" not in path:
            return 200, "application/json", b'{"email":"me@example.com","scopes":[],"aliases":[]}', flavor
        if self.refuses:
            return 400, "application/json", b'{"error":"invalid_grant","error_description":"Invalid JWT"}'
        self.made += 1
        token = {"access_token": f"google-token-{self.made}", "expires_in": self.lifetime, "token_type": "Bearer"}
        return 200, "application/json", json.dumps(token).encode(), flavor


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.fixture
def google(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The address of Google's servers. No other credentials are on this machine."""
    for name in (FILE, METADATA, "GOOGLE_CLOUD_PROJECT", "http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")
    with Server(tokens) as server:
        yield server


@pytest.fixture(scope="module")
def private_key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.private_bytes(serialization.Encoding.PEM, *form).decode()


@pytest.fixture
def account(tmp_path: Path, google: Server, private_key: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a service account."""
    path = tmp_path / "account.json"
    fields = {
        "type": "service_account",
        "client_email": "me@example.com",
        "private_key": private_key,
        "token_uri": f"{google.url}/token",
        "project_id": "mine",
    }
    path.write_text(json.dumps(fields))
    monkeypatch.setenv(FILE, str(path))
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "billed")
    return path


def entry(upstream: Upstream, kind: Name, **fields: Any) -> dict[str, Any]:
    return {"name": kind, "kind": kind, "base_url": upstream.url, "auth": "google", "retries": 0, **fields}


def client(*backends: dict[str, Any]) -> TestClient:
    return TestClient(Gateway(Settings.from_dict({"backends": [*backends]}, {})), base_url="http://127.0.0.1")


def ask(gateway: TestClient, model: str, *, stream: bool = False) -> Any:
    return gateway.post("/v1/chat/completions", json=chat_body(model, stream=stream))


@pytest.mark.usefixtures("account")
def test_the_token_of_a_service_account_is_used_until_it_expires(upstream: Upstream, tokens: Tokens):
    upstream.replies["on vertex"] = reply(HELLO, "gemini", stream=False)
    with client(entry(upstream, "gemini")) as gateway:
        for _ in range(2):
            answer = ask(gateway, "gemini/on vertex")
            assert answer.status_code == 200, answer.text
    seen = [asked.headers for asked in upstream.of("on vertex")]
    assert [each["authorization"] for each in seen] == ["Bearer google-token-1"] * 2
    assert [each["x-goog-user-project"] for each in seen] == ["billed"] * 2
    assert "x-goog-api-key" not in seen[0]
    assert tokens.made == 1


@pytest.mark.usefixtures("account")
def test_a_token_that_expires_soon_is_renewed(upstream: Upstream, tokens: Tokens):
    tokens.lifetime = 60
    upstream.replies["renewed"] = reply(HELLO, "gemini", stream=False)
    with client(entry(upstream, "gemini")) as gateway:
        for _ in range(2):
            assert ask(gateway, "gemini/renewed").status_code == 200
    assert [asked.headers["authorization"] for asked in upstream.of("renewed")] == [
        "Bearer google-token-1",
        "Bearer google-token-2",
    ]


def test_the_metadata_server_of_a_machine_gives_tokens(
    upstream: Upstream, google: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NO_GCE_CHECK")
    monkeypatch.setenv(METADATA, f"127.0.0.1:{google.port}")
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{google.port}")
    upstream.replies["machine"] = reply(HELLO, "gemini", stream=False)
    with client(entry(upstream, "gemini")) as gateway:
        answer = ask(gateway, "gemini/machine")
    assert answer.status_code == 200, answer.text
    assert upstream.of("machine")[-1].headers["authorization"].startswith("Bearer google-token-")


@pytest.mark.usefixtures("google")
def test_without_a_login_the_client_is_told_how_to_log_in(upstream: Upstream):
    with client(entry(upstream, "gemini")) as gateway:
        answer = ask(gateway, "gemini/none")
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["code"] == "google_login_required"
    assert "gcloud auth application-default login" in error["message"]


@pytest.mark.usefixtures("account")
def test_an_account_that_is_refused_is_a_401(upstream: Upstream, tokens: Tokens):
    tokens.refuses = True
    with client(entry(upstream, "gemini")) as gateway:
        answer = ask(gateway, "gemini/refused")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "google_login_required")
    assert "invalid_grant" in answer.json()["error"]["message"]


@pytest.mark.usefixtures("account")
def test_the_token_is_in_no_answer(upstream: Upstream):
    body = b'{"error":{"code":400,"message":"You sent google-token-1.","status":"INVALID_ARGUMENT"}}'
    upstream.replies["echo"] = Reply([body], 400, "application/json")
    with client(entry(upstream, "gemini")) as gateway:
        answer = ask(gateway, "gemini/echo")
    assert answer.status_code == 400
    assert "google-token-1" not in answer.text


def test_a_file_that_is_not_there_is_an_obstacle(upstream: Upstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FILE, "/nowhere/account.json")
    settings = Settings.from_dict({"backends": [entry(upstream, "gemini")]}, {})
    assert find_obstacles(settings)["gemini"] == "there is no file /nowhere/account.json, which " + FILE + " names"


def test_the_extra_that_is_missing_is_an_obstacle(upstream: Upstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.imports.find_spec", lambda name: None if name == "google.auth" else object())
    settings = Settings.from_dict({"backends": [entry(upstream, "gemini")]}, {})
    said = find_obstacles(settings)["gemini"]
    assert said.startswith("A login of Google Cloud needs the package google-auth, which is not installed: ")
    assert REQUIREMENTS["google"] in said


@pytest.mark.parametrize("kind", ["gemini", "messages"])
def test_a_login_of_google_needs_an_address(kind: str):
    with pytest.raises(SettingsError, match=r"base_url: a \w+ backend needs an address"):
        Settings.from_dict({"backends": [{"name": "v", "kind": kind, "auth": "google"}]}, {})
    with pytest.raises(SettingsError, match=r'"google" is for kind = "messages or gemini"'):
        Settings.from_dict({"backends": [{"name": "v", "kind": "chat", "base_url": "http://x", "auth": "google"}]}, {})


# Anthropic's models


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(("stream", "method"), [(True, "streamRawPredict"), (False, "rawPredict")])
def test_claude_on_vertex_is_asked_by_raw_predict(upstream: Upstream, stream: bool, method: str):
    upstream.replies["claude-x@1"] = reply(HELLO, "messages", stream=stream)
    with client(entry(upstream, "messages", profile={"vertex": True})) as gateway:
        answer = ask(gateway, "messages/claude-x@1", stream=stream)
    assert answer.status_code == 200, answer.text
    assert "Hello." in answer.text if not stream else "look" in answer.text
    asked = upstream.of("claude-x@1")[-1]
    assert asked.path == f"/v1/models/claude-x@1:{method}"
    assert asked.headers["authorization"].startswith("Bearer google-token-")
    assert "x-api-key" not in asked.headers
    assert asked.body["anthropic_version"] == "vertex-2023-10-16"
    assert ("model" in asked.body, asked.body["stream"]) == (False, stream)


@pytest.mark.usefixtures("account")
def test_claude_on_vertex_counts_tokens(upstream: Upstream):
    upstream.replies["claude-x"] = Reply([b'{"input_tokens":7}'], content_type="application/json")
    body = {"model": "messages/claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with client(entry(upstream, "messages", profile={"vertex": True})) as gateway:
        counted = gateway.post("/v1/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": 7}
    asked = upstream.of("claude-x")[-1]
    assert asked.path == "/v1/models/count-tokens:rawPredict"
    assert asked.body["anthropic_version"] == "vertex-2023-10-16"
