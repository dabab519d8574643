"""The commands with a server of the Gemini API: its key, its list of models, and what `init` finds out."""

import json
import tomllib
from collections.abc import Mapping

import pytest

from tests.commands.desk import Desk
from tests.commands.server import Answer, Server
from tests.commands.test_doctor import lines

MODELS = {"models": [{"name": "models/gemini-3-pro", "inputTokenLimit": 9}, {"name": "models/embedding-1"}]}


def error(code: int, status: str, message: str) -> Answer:
    return (
        code,
        "application/json",
        json.dumps({"error": {"code": code, "message": message, "status": status}}).encode(),
    )


def google(method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """Google AI Studio, without models of other vendors."""
    if not path.startswith("/v1beta/models"):
        return error(404, "NOT_FOUND", "")
    if headers.get("x-goog-api-key") != "good":
        return error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.")
    if method == "POST":
        return error(400, "INVALID_ARGUMENT", "* GenerateContentRequest.contents: contents is not specified")
    return 200, "application/json", json.dumps(MODELS).encode()


def entry(url: str) -> str:
    return f'[[backends]]\npreset = "gemini"\nbase_url = "{url}/v1beta"\n'


@pytest.mark.parametrize(
    ("key", "mark", "said"),
    [
        ("good", "✓", "it answers, and accepts the key, with 2 models"),
        ("bad", "✗", "the key in GEMINI_API_KEY was refused (400); put a valid one there"),
    ],
)
def test_doctor_says_whether_the_key_is_good(desk: Desk, key: str, mark: str, said: str):
    with Server(google) as server:
        desk.configure(entry(server.url))
        found = lines(desk, code=mark == "✗", GEMINI_API_KEY=key)
    assert found["backend gemini"] == (mark, f"{server.url}/v1beta: {said}")


def test_models_lists_those_of_the_server(desk: Desk):
    with Server(google) as server:
        desk.configure(entry(server.url))
        assert desk.good("models", GEMINI_API_KEY="good").splitlines()[1:2] == ["  gemini-3-pro"]
        both = desk.good("models", "gemini", GEMINI_API_KEY="good").splitlines()[1:3]
    assert both == ["  gemini-3-pro", "  gemini/embedding-1"]


def test_init_finds_out_what_it_is(desk: Desk):
    with Server(google) as server:
        desk.good("init", "--url", f"{server.url}/v1beta", "--key-env", "MY_KEY", "--yes", MY_KEY="good")
        [written] = tomllib.loads(desk.config.read_text())["backends"]
    assert (written["kind"], written["base_url"]) == ("gemini", f"{server.url}/v1beta")
    assert written["models"] == ["gemini-3-pro", "embedding-1"]


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_a_key_in_the_environment_is_enough(desk: Desk, variable: str):
    shown = json.loads(desk.good("config", "--json", **{variable: "k"}))
    assert "gemini" in json.dumps(shown)
    assert variable in json.dumps(shown)
