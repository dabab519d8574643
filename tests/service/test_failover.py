"""Several backends for one model: the next one is asked when one fails before anything was shown, never later."""

import json

import httpx
import pytest

from tests.support.frames import completed, created, rs, text
from tests.support.gateway import chat_body, read_sse
from tests.support.upstream import Cut, Reply, Upstream


@pytest.fixture
def upstreams():
    pair = Upstream(), Upstream()
    yield pair
    for each in pair:
        each.stop()


@pytest.fixture
def ask(start, upstreams):
    tables = [
        f'[[backends]]\nname = "{name}"\nkind = "responses"\nbase_url = "{each.url}"\nretries = 0\nmodels = ["m-*"]\n'
        for name, each in zip(("first", "second"), upstreams, strict=True)
    ]
    gateway = start("\n".join(tables))

    def post(model: str, *, stream: bool = False) -> httpx.Response:
        return httpx.post(f"{gateway.url}/v1/chat/completions", json=chat_body(model, stream=stream), timeout=20)

    return post


FINE = Reply([created(), text("Here I am."), completed()])
REFUSALS = {
    "busy": Reply([b"{}"], 429, "application/json", {"retry-after": "60"}),
    "down": Reply([b"{}"], 503, "application/json"),
    "cut": Reply([created(), Cut()]),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("name", REFUSALS)
def test_the_next_backend_answers_and_a_note_says_so(ask, upstreams, name: str, stream: bool):
    first, second = upstreams
    first.replies["m-1"], second.replies["m-1"] = REFUSALS[name], FINE
    answer = ask("m-1", stream=stream)
    assert answer.status_code == 200
    if stream:
        [said] = [json.loads(value) for kind, value in read_sse(answer) if kind == "comment"]
        notes = said["notes"]
        assert "Here I am." in answer.text
    else:
        notes = json.loads(answer.headers["x-toolwire-notes"])
        assert answer.json()["choices"][0]["message"]["content"] == "Here I am."
    assert [note["code"] for note in notes] == ["failed_over"]


def test_a_backend_that_failed_comes_last_for_a_while(ask, upstreams):
    first, second = upstreams
    first.replies["m-1"], second.replies["m-1"] = REFUSALS["down"], FINE
    for _ in range(3):
        assert ask("m-1").status_code == 200
    assert (len(first.asked), len(second.asked)) == (1, 3)


def test_what_the_request_is_to_blame_for_is_not_tried_elsewhere(ask, upstreams):
    first, second = upstreams
    body = b'{"error":{"message":"No.","code":"invalid_prompt"}}'
    first.replies["m-1"], second.replies["m-1"] = Reply([body], 400, "application/json"), FINE
    assert ask("m-1").status_code == 400
    assert second.asked == []


def test_nobody_else_is_asked_once_something_was_shown(ask, upstreams):
    first, second = upstreams
    failure = rs("failed", response={"status": "failed", "error": {"code": "server_error", "message": "Broke."}})
    first.replies["m-1"], second.replies["m-1"] = Reply([created(), text("Half"), failure]), FINE
    answer = ask("m-1", stream=True)
    assert "Half" in answer.text
    assert "Broke." in answer.text
    assert second.asked == []


def test_when_all_fail_the_last_failure_is_told(ask, upstreams):
    for each in upstreams:
        each.replies["m-1"] = REFUSALS["down"]
    assert ask("m-1").status_code == 503
