"""What a user is told when something is wrong: which backend, why, and what to do about it."""

import os
import threading
from pathlib import Path

import httpx
import pytest

from tests.agent.terminal import PROGRAM, Terminal
from tests.support.gateway import Gateway, backend, chat_body
from tests.support.upstream import Reply

KEYS = '[[keys]]\nname = "ann"\nkey = "sk-ann"\n'
ANN = {"authorization": "Bearer sk-ann"}
WRONG = "base_url of backend `up`{} looks wrong: the server answered with {}. base_url is everything before /chat/completions, /responses or /messages, and usually ends in /v1."


def ask(http: httpx.Client, gateway: Gateway, model: str, **headers: str) -> httpx.Response:
    return http.post(f"{gateway.base_url}/chat/completions", json=chat_body(model), headers=headers)


def message(response: httpx.Response) -> str:
    return response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (Reply([b'{"detail":"Not Found"}'], 404, "application/json"), "status 404"),
        (Reply([b"404 page not found"], 404, "text/plain"), "status 404"),
        (Reply([b""], 405, "text/plain"), "status 405"),
        (Reply([b"<html><h1>Welcome</h1></html>"], 200, "text/html"), "a web page"),
    ],
)
def test_a_path_that_the_server_does_not_know_means_a_wrong_base_url(http, start, upstream, reply, answer):
    upstream.replies["lost"] = reply
    gateway = start(backend(upstream.url))
    response = ask(http, gateway, "up/lost")
    assert (response.status_code, message(response)) == (502, WRONG.format(f" ({upstream.url})", answer))


def test_a_model_that_the_server_does_not_know_is_its_own_404(http, start, upstream):
    body = b'{"error":{"message":"model \\"lost\\" not found, try pulling it first","type":"api_error"}}'
    upstream.replies["lost"] = Reply([body], 404, "application/json")
    response = ask(http, start(backend(upstream.url)), "up/lost")
    assert (response.status_code, message(response)) == (404, 'model "lost" not found, try pulling it first')


@pytest.mark.parametrize(
    ("fields", "key", "whose", "hint"),
    [
        ({"api_key_env": '"UP_KEY"'}, "", "the key in UP_KEY", "Set UP_KEY to a key that this server takes."),
        (
            {},
            "sk-mine",
            "the key that you sent",
            "The backend has no api_key_env, so the key of the client is passed on.",
        ),
        ({}, "", "a request without a key", "Set api_key_env of the backend, or send a key of your own."),
    ],
)
def test_a_refused_key_is_said_to_be_whose_it_is(http, start, upstream, fields, key, whose, hint):
    upstream.replies["locked"] = Reply([b'{"error":{"message":"Wrong key sk-12."}}'], 401, "application/json")
    gateway = start(backend(upstream.url, **fields), UP_KEY="sk-secret")
    response = ask(http, gateway, "up/locked", **({"authorization": f"Bearer {key}"} if key else {}))
    said = f"Backend `up` ({upstream.url}) refused {whose}: Wrong key sk-12. {hint}"
    assert (response.status_code, message(response)) == (401, said)
    [line] = gateway.wait_for_turns(1)
    assert (line["level"], line["failure"], line["hint"]) == ("warning", "status 401", hint)
    assert "sk-" not in "\n".join(gateway.log)


def test_with_keys_nobody_is_told_where_a_backend_is(http, start):
    gateway = start(KEYS + backend("http://user:word@127.0.0.1:9/v1", query='{ token = "1" }'))
    response = ask(http, gateway, "up/x", **ANN)
    said = "Backend `up` cannot be reached: connection refused. Is the server running, and is base_url right?"
    assert message(response) == said
    [line] = gateway.wait_for_turns(1)
    assert line["url"] == "http://127.0.0.1:9/v1"


def test_without_keys_an_address_is_shown_without_user_and_query(http, start):
    response = ask(http, start(backend("http://user:word@127.0.0.1:9/v1", query='{ token = "1" }')), "up/x")
    assert "(http://127.0.0.1:9/v1)" in message(response)
    assert "word" not in response.text
    assert "token" not in response.text


def test_every_answer_names_its_backend(http, gateway):
    assert ask(http, gateway, "demo").headers["x-toolwire-backend"] == "demo"
    assert ask(http, gateway, "demo-error").headers["x-toolwire-backend"] == "demo"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpt5-mini", "Did you mean 'gpt-5-mini'"),
        ("dmeo", "Did you mean 'demo'"),
        ("up2/gpt-5-mini", "'up/gpt-5-mini'"),
        ("up2/llama", "There is no model 'up2/llama' here. GET"),
    ],
)
def test_an_unknown_model_brings_the_nearest_names(http, start, upstream, name, near):
    response = ask(http, start(backend(upstream.url, models='["gpt-5-mini"]')), name)
    assert response.status_code == 404
    assert near in message(response)


def test_a_missing_and_a_wrong_key_are_told_apart(http, start):
    gateway = start(KEYS)
    missing = ask(http, gateway, "demo")
    assert (missing.status_code, message(missing)) == (
        401,
        "This gateway needs a key of its own: send `Authorization: Bearer KEY` or `x-api-key: KEY`.",
    )
    wrong = ask(http, gateway, "demo", authorization="Bearer sk-other")
    assert (wrong.status_code, message(wrong)) == (
        401,
        "This gateway does not know the key that was sent. It needs one of its own [[keys]].",
    )


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1/chat/completions/",
        "//v1//chat/completions",
        "/openai/v1/chat/completions",
        "/v1/chat/completions/chat/completions",
        "/obsidian-xml/chat/completions",
    ],
)
def test_common_variants_of_a_path_are_served(http, gateway, path):
    assert http.post(gateway.url + path, json=chat_body("demo")).json()["object"] == "chat.completion"


@pytest.mark.parametrize("path", ["/messages", "/v1/v1/messages", "/anthropic/v1/messages", "/v1/messages/v1/messages"])
def test_common_variants_of_messages_are_served(http, gateway, path):
    body = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    assert http.post(gateway.url + path, json=body).json()["type"] == "message"
    counted = http.post(f"{gateway.url}{path}/count_tokens", json=body).json()
    assert counted["input_tokens"] > 0


def test_models_are_found_without_v1(http, gateway):
    assert http.get(f"{gateway.url}/models").json()["object"] == "list"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completion", "/v1/chat/completion is not served here. Did you mean /v1/chat/completions?"),
        ("/v1/embeddings", "/v1/embeddings is not served here. The main paths are /v1/chat/completions, /v1/responses, /v1/messages, /v1beta/models, /v1/models."),
    ],
)  # fmt: skip
def test_an_unknown_path_says_what_was_probably_meant_and_is_logged(http, start, path, said):
    gateway = start()
    response = http.post(gateway.url + path, json={})
    assert (response.status_code, message(response)) == (404, said)
    gateway.wait_until(lambda: any(path in line for line in gateway.log))
    assert any('"event":"refused"' in line and '"level":"warning"' in line and path in line for line in gateway.log)


# At a terminal


def serving(tmp_path: Path, **environment: str) -> Terminal:
    home = {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    usual = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    command = [*PROGRAM, "serve", "--port", "0"]
    return Terminal(command, {**usual, **home, "TERM": "xterm", **environment}, cwd=tmp_path, columns=200)


def address(terminal: Terminal) -> str:
    terminal.until("toolwire ready on ")
    terminal.until(
        lambda: any(line.startswith("toolwire ready on http") and line[-1].isdigit() for line in terminal.lines)
    )
    return next(line for line in terminal.lines if "ready on" in line).split()[-1]


def test_at_a_terminal_a_turn_is_one_line_in_words(http, tmp_path):
    with serving(tmp_path, NO_COLOR="1") as terminal:
        url = address(terminal)
        tool = {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
        http.post(f"{url}/v1/chat/completions", json=chat_body("demo", tools=[tool], tool_choice="required"))
        terminal.until("get_weather")
        [line] = [line for line in terminal.lines if "get_weather" in line]
        time, _, rest = line.partition(" ")
        assert time.count(":") == 2
        assert rest.startswith("chat → demo demo · 200 · ")
        assert rest.endswith(" · calls get_weather")
        terminal.press_ctrl_c()
        assert terminal.end() == 0


def test_ctrl_c_says_what_is_still_running_and_a_second_one_ends_at_once(tmp_path):
    with serving(tmp_path) as terminal:
        url = address(terminal)

        def ask() -> None:
            with httpx.Client(trust_env=False, timeout=60) as client, pytest.raises(httpx.HTTPError):
                client.post(f"{url}/v1/chat/completions", json=chat_body("demo-silent", stream=True)).raise_for_status()

        asking = threading.Thread(target=ask)
        asking.start()
        with httpx.Client(trust_env=False) as client:
            while "toolwire_turns_running 1.0" not in client.get(f"{url}/metrics").text:
                pass
        terminal.press_ctrl_c()
        terminal.until("1 turn is still running; waiting up to 30 s. Ctrl-C again ends at once.")
        terminal.press_ctrl_c()
        assert terminal.end() == 0
        asking.join(90)
        assert not any("Traceback" in line for line in terminal.lines)
