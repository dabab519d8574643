"""Headers of a backend that are passed on hold nothing that a header must not hold."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.support.console import ConsoleClient
from tests.support.gateway import Gateway, chat_body
from tests.support.raw_backend import RawBackend

NAMES = ["x-ratelimit-remaining-requests", "x-codex-primary-used-percent", "openai-processing-ms", "x-request-id"]
CHOICE = {"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [CHOICE]}
TURN = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(CHUNK).encode()


class Said:
    """What the backend answers next."""

    answer = b""


@pytest.fixture(scope="module")
def said() -> Said:
    return Said()


@pytest.fixture(scope="module")
def gateway(said: Said, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    backend = RawBackend(lambda: (said.answer,))
    settings = f'[[backends]]\nname = "up"\nkind = "chat"\nbase_url = "{backend.url}"\nretries = 0\n'
    server = Gateway(tmp_path_factory.mktemp("headers"), settings)
    yield server
    server.stop()
    backend.stop()


@pytest.fixture(scope="module")
def console(gateway: Gateway) -> Iterator[ConsoleClient]:
    with ConsoleClient(gateway) as client:
        yield client


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [b"\x01", b"\x0b", b"\x1b[31m", b"\x7f", b"\xe9", b"\xc3\xa9"], ids=ascii)
@pytest.mark.parametrize("status", [200, 429])
def test_a_bad_character_in_a_header_costs_nothing(
    http: httpx.Client, gateway: Gateway, console: ConsoleClient, said: Said, name: str, bad: bytes, status: int
):
    head = b"HTTP/1.1 %d X\r\nretry-after: 9\r\nconnection: close\r\n%b: 4%b2\r\n" % (status, name.encode(), bad)
    kind, body = (
        (b"text/event-stream", TURN) if status == 200 else (b"application/json", b'{"error":{"message":"No."}}')
    )
    said.answer = head + b"content-type: %b\r\n\r\n" % kind + body
    model = f"up/{name}-{bad.hex()}-{status}"
    answer = http.post(f"{gateway.base_url}/chat/completions", json=chat_body(model, stream=True))
    assert answer.status_code == status
    assert ("Hi." if status == 200 else "No.") in answer.text
    passed = answer.headers["x-upstream-request-id" if name == "x-request-id" else name]
    assert passed.startswith("4")
    assert passed.endswith("2")
    kept = console.turn(model=model)
    assert kept["row"]["kept"] == "whole"
    shown = {header.lower(): value for header, value in kept["whole"]["attempts"][0]["headers"]}
    assert shown[name].startswith("4")
