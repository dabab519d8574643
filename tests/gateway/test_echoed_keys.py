"""A backend that repeats the key it was sent gives it to nobody: not to clients, the log, the console or recordings."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support.gateway import Gateway
from tests.support.upstream import Asked, Reply, Upstream

KEY = "sk-op/erator+Zq81mKxT4vLrPw09sNdYbHc2"
CLIENT_KEY = "sk-client-Yt62nQwE8rTzUiOp"
HEADER = "tenant-token-0987654321"
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 with a scheme": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "hex": lambda key: key.encode().hex(),
    "percent": lambda key: quote(key, safe=""),
}
CHAT = {"model": "", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": CHAT,
    "/responses": {"model": "", "input": "hi"},
    "/messages": {**CHAT, "max_tokens": 10},
}
KINDS = ("chat", "responses", "messages", "gemini")


def config(url: str) -> str:
    """A backend of each kind with the operator's key, and one that passes the client's key on."""
    lines = ['[debug]\nrecord = "recordings"\n', '[console]\nkeep = "everything"\n']
    for kind in KINDS:
        table = f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\nbase_url = "{url}"\nretries = 0\n'
        lines.append(f'{table}api_key_env = "ECHO_KEY"\nheaders = {{ "x-tenant-token" = "{HEADER}" }}\n')
    lines.append(f'[[backends]]\nname = "own"\nkind = "chat"\nbase_url = "{url}"\nretries = 0\n')
    return "".join(lines)


@pytest.fixture(scope="module")
def echoing(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Path]]:
    folder = tmp_path_factory.mktemp("echo")
    gateway = Gateway(folder, config(upstream.url), ECHO_KEY=KEY)
    yield gateway, folder
    gateway.stop()


def sent_key(asked: Asked) -> str:
    own = asked.headers.get("x-api-key") or asked.headers.get("x-goog-api-key")
    return own or asked.headers["authorization"].removeprefix("Bearer ")


def error_reply(form: Callable[[str], str], status: int = 400) -> Callable[[Asked], Reply]:
    def reply(asked: Asked) -> Reply:
        said, tenant = form(sent_key(asked)), form(asked.headers.get("x-tenant-token", ""))
        error = {"message": f"key {said} of {tenant}", "type": said, "code": said, "param": said}
        headers = {"x-request-id": said, "x-ratelimit-limit-requests": said, "retry-after": "1"}
        return Reply([json.dumps({"error": error}).encode()], status, "application/json", headers)

    return reply


def streamed_reply(kind: str, form: Callable[[str], str], cut: int) -> Callable[[Asked], Reply]:
    """Text, arguments and an error that hold the key, sent in pieces of a few bytes."""

    def reply(asked: Asked) -> Reply:
        said = form(sent_key(asked))
        data = b"".join(frames(kind, said))
        return Reply([data[at : at + cut] for at in range(0, len(data), cut)], headers={"x-request-id": said})

    return reply


def frames(kind: str, said: str) -> Iterator[bytes]:
    arguments = json.dumps({"key": said})
    match kind:
        case "chat":
            deltas: list[dict[str, Any]] = [
                {"content": f"Your key is {said}."},
                {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "find", "arguments": arguments}}]},
            ]
            for delta in deltas:
                yield b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"
            yield b"data: " + json.dumps({"error": {"message": said, "code": said}}).encode() + b"\n\n"
        case "gemini":
            part = {"functionCall": {"name": "find", "args": {"key": said}}}
            for fields in (
                {"candidates": [{"content": {"parts": [{"text": f"Your key is {said}."}]}}]},
                {"candidates": [{"content": {"parts": [part]}}]},
                {"error": {"code": 400, "message": said, "status": said}},
            ):
                yield b"data: " + json.dumps(fields).encode() + b"\r\n\r\n"
        case "responses":
            for event in (
                {"type": "response.created", "response": {"id": "r1"}},
                {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m1"}},
                {"type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "delta": f"It is {said}."},
                {"type": "response.failed", "response": {"id": "r1", "error": {"code": said, "message": said}}},
            ):
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        case _:
            for event in (
                {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": []}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"It is {said}."}},
                {"type": "error", "error": {"type": "api_error", "message": said}},
            ):
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def leaks(key: str, *places: bytes) -> list[str]:
    """The forms of a key that stand in some bytes."""
    core = {name: form(key).encode() for name, form in FORMS.items()}
    core["base64 with a scheme"] = base64.b64encode(f"Bearer {key}".encode())[12:-4]
    return [name for name, form in core.items() if any(form in place for place in places)]


def everything_about(answer: httpx.Response) -> bytes:
    return answer.content + b"\n".join(name + b": " + value for name, value in answer.headers.raw)


def ask(http: httpx.Client, gateway: Gateway, path: str, model: str, *, stream: bool) -> httpx.Response:
    body = {**BODIES[path], "model": model, "stream": stream}
    return http.post(gateway.base_url + path, json=body, headers={"authorization": f"Bearer {CLIENT_KEY}"})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", BODIES)
def test_an_error_and_headers_without_the_key(echoing, http, upstream, path, kind, form):
    gateway, _ = echoing
    upstream.replies["echo-error"] = error_reply(FORMS[form])
    for stream in (False, True):
        answer = ask(http, gateway, path, f"{kind}/echo-error", stream=stream)
        assert answer.status_code == 400
        assert b"[removed]" in answer.content
        assert leaks(KEY, everything_about(answer)) == []
        assert leaks(HEADER, everything_about(answer)) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [7, 1000])
def test_a_stream_without_the_key(echoing, http, upstream, kind, form, cut):
    gateway, _ = echoing
    upstream.replies["echo-stream"] = streamed_reply(kind, FORMS[form], cut)
    for path in BODIES:
        answer = ask(http, gateway, path, f"{kind}/echo-stream", stream=True)
        assert answer.status_code == 200
        assert re.search(rb"is [\w]{0,12}\[removed\]", answer.content)
        assert leaks(KEY, everything_about(answer)) == []


@pytest.mark.parametrize("form", FORMS)
def test_the_key_of_a_client_comes_back_to_no_log_either(echoing, http, upstream, form):
    gateway, _ = echoing
    upstream.replies["echo-own"] = error_reply(FORMS[form])
    answer = ask(http, gateway, "/chat/completions", "own/echo-own", stream=False)
    assert b"[removed]" in answer.content
    assert leaks(CLIENT_KEY, everything_about(answer)) == []


def test_a_list_of_models_without_the_key(tmp_path, http, upstream):
    table = f'[[backends]]\nname = "up"\nkind = "chat"\nbase_url = "{upstream.url}"\nmodels = ["*"]\n'
    upstream.listing = Reply([json.dumps({"data": [{"id": f"model-{KEY}"}, {"id": "fine"}]}).encode()])
    gateway = Gateway(tmp_path, table + 'api_key_env = "ECHO_KEY"\n', ECHO_KEY=KEY)
    try:
        answer = http.get(gateway.base_url + "/models")
        assert b"fine" in answer.content
        assert leaks(KEY, everything_about(answer)) == []
    finally:
        upstream.listing = None
        gateway.stop()


def test_log_console_and_recordings_without_the_key(echoing, http, upstream):
    gateway, folder = echoing
    for name, form in FORMS.items():
        upstream.replies[f"echo-{name}"] = error_reply(form, 401)
        ask(http, gateway, "/chat/completions", f"chat/echo-{name}", stream=False)
        upstream.replies[f"echo-{name}"] = streamed_reply("chat", form, 50)
        ask(http, gateway, "/chat/completions", f"chat/echo-{name}", stream=True)
    gateway.wait_for_turns(2 * len(FORMS))
    recorded = [path.read_bytes() for path in (folder / "recordings").iterdir()]
    assert len(recorded) >= 2 * len(FORMS)
    assert leaks(KEY, *recorded, "\n".join(gateway.log).encode()) == []
    assert any(b"[removed]" in each for each in recorded)
