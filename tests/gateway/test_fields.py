"""Every field of a request with something else in it, over the wire: an answer or a 400, and the connection lives on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.test_socket import opened
from tests.support.client_readers import PATHS
from tests.support.fields import BODIES, changed, places, written
from tests.support.gateway import Gateway

LAST = {"chat": b"data: [DONE]\n\n", "responses": b"data: [DONE]\n\n", "messages": b'data: {"type":"message_stop"}\n\n'}


def others(name: str, **fields: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The body with null, a string or an empty list in one of its fields, for each of them."""
    asked = {"model": "demo", **BODIES[name][1], **fields}
    for path in places(BODIES[name][1]):
        for value in (None, "x", []):
            yield written(path, value), changed(asked, path, value)


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", BODIES)
def test_whatever_is_in_a_field_there_is_an_answer_or_a_400(
    http: httpx.Client, gateway: Gateway, name: str, streamed: bool
):
    dialect, _ = BODIES[name]
    for what, body in others(name, stream=streamed):
        response = http.post(gateway.url + PATHS[dialect], json=body)
        if response.status_code == 200 and streamed:
            assert response.content.endswith(LAST[dialect]), what
            assert b"event: error" not in response.content, what
        else:
            assert response.status_code in (200, 400, 404), f"{what}: {response.text}"
            assert response.json(), what


ITEMS = [{"type": "message", "id": "m", "role": "user", "content": [{"type": "input_text", "text": "x"}]}]
BESIDE: dict[str, dict[str, Any]] = {
    "/v1/responses/{response}/submit_tool_outputs": {
        "tool_outputs": [{"tool_call_id": "c", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}],
        "stream": False,
    },
    "/v1/responses/compact": {"model": "demo", **BODIES["responses"][1]},
    "/v1/responses/input_tokens": {"model": "demo", **BODIES["responses"][1]},
    "/v1/messages/count_tokens": {"model": "demo", **BODIES["messages"][1]},
    "/v1/conversations": {"metadata": {"a": "b"}, "items": ITEMS},
    "/v1/conversations/{conversation}": {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation}/items": {"items": ITEMS},
}
"""The endpoints beside the three, with a body each."""


@pytest.mark.parametrize("path", BESIDE)
def test_so_there_is_on_every_other_endpoint(http: httpx.Client, gateway: Gateway, path: str):
    response = http.post(f"{gateway.base_url}/responses", json={"model": "demo-parallel", "input": "Go."}).json()["id"]
    conversation = http.post(f"{gateway.base_url}/conversations", json={}).json()["id"]
    url = gateway.url + path.format(response=response, conversation=conversation)
    body = BESIDE[path]
    for place in places(body):
        for value in (None, "x", [], [None], 5):
            answer = http.post(url, json=changed(body, place, value))
            assert answer.status_code in (200, 400, 404), f"{written(place, value)}: {answer.text}"
            assert answer.json()


def test_a_socket_outlives_whatever_is_in_a_field(gateway: Gateway):
    with opened(gateway) as socket:
        for what, body in others("responses"):
            socket.connection.send(json.dumps({"type": "response.create", **body}))
            turn = socket.turn()
            assert turn.types[-1] in ("response.completed", "error"), what
            if turn.types[-1] == "error":
                assert turn.error[0] in (400, 404), what
                assert turn.error[1], what
        assert socket.ask("demo").types[-1] == "response.completed"
