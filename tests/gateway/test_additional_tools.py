"""Tools declared in items of the input, over turns that the gateway keeps."""

from typing import Any

import httpx
import pytest

from tests.support.backend_writers import reply
from tests.support.gateway import Gateway, Responses, calls_of, good
from tests.support.routes import Routes, backends
from tests.support.scripts import KINDS, Calls, Name, Says, Script
from tests.support.transcripts import declared

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "Go."}
KIND = pytest.mark.parametrize("kind", KINDS)
HELLO = Script((Says("Hello."),))


def adds(*names: str) -> Json:
    functions = [
        {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in names
    ]
    inner = {"type": "namespace", "name": "space", "description": "", "tools": functions}
    return {"type": "additional_tools", "role": "developer", "tools": [inner]}


def shown(body: Json) -> list[str]:
    return [name.removeprefix("space__") for name in declared(body)]


@pytest.fixture
def api(routes: Routes, http: httpx.Client) -> Responses:
    return Responses(http, routes.gateway)


@KIND
def test_a_later_turn_adds_tools_to_those_of_its_chain(routes: Routes, api: Responses, kind: Name):
    model = f"chain {kind}"
    routes.upstream.replies[model] = reply(HELLO, kind, stream=False)
    first = api.create(f"{kind}/{model}", [adds("f"), USER])
    second = api.create(f"{kind}/{model}", [adds("g"), USER], previous_response_id=first["id"])
    api.create(f"{kind}/{model}", previous_response_id=second["id"])
    names = [shown(asked.body) for asked in routes.upstream.of(model)]
    assert names == [["f"], ["f", "g"], ["f", "g"]]


@KIND
def test_tools_among_the_items_of_a_conversation_are_declared(
    routes: Routes, api: Responses, http: httpx.Client, kind: Name
):
    model = f"conversation {kind}"
    routes.upstream.replies[model] = reply(HELLO, kind, stream=False)
    made = good(http.post(f"{routes.gateway.base_url}/conversations", json={"items": [adds("f")]})).json()
    api.create(f"{kind}/{model}", [adds("g"), USER], conversation=made["id"])
    assert shown(routes.upstream.of(model)[-1].body) == ["f", "g"]


@KIND
def test_a_call_of_one_is_answered_through_submit(routes: Routes, api: Responses, kind: Name):
    model = f"submit {kind}"
    calling = Script((Calls("call_a", "f", '{"q":"x"}', namespace="space"),))
    routes.upstream.replies[model] = [reply(calling, kind, stream=False), reply(HELLO, kind, stream=False)]
    waiting = api.create(f"{kind}/{model}", [adds("f"), USER])
    [call] = calls_of(waiting)
    assert (call["name"], call["namespace"], call["arguments"]) == ("f", "space", '{"q":"x"}')
    good(api.submit(waiting["id"], {call["call_id"]: "ok"}))
    assert shown(routes.upstream.of(model)[-1].body) == ["f"]


def test_it_is_listed_among_the_input_items(routes: Routes, api: Responses):
    routes.upstream.replies["listed"] = reply(HELLO, "chat", stream=False)
    made = api.create("chat/listed", [adds("f"), USER])
    data = good(api.get(f"{made['id']}/input_items", order="asc")).json()["data"]
    assert [item["type"] for item in data] == ["additional_tools", "message"]
    assert data[0]["id"].startswith("at_")
    assert data[0]["tools"] == adds("f")["tools"]


def test_what_is_wrong_with_an_item_of_a_conversation_is_named(routes: Routes, http: httpx.Client):
    body = {"items": [{"type": "additional_tools", "tools": [{"type": "function"}]}]}
    response = http.post(f"{routes.gateway.base_url}/conversations", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "items[0].tools[0].name")


@KIND
def test_they_stand_beside_tools_of_the_gateway(routes: Routes, http: httpx.Client, start, tmp_path, kind: Name):
    (tmp_path / "shed.py").write_text(
        'def weather(city: str) -> str:\n    """The weather."""\n    return "18 degrees"\n'
    )
    gateway: Gateway = start(f'[gateway_tools]\ntools = ["shed:weather"]\n{backends(routes.upstream.url)}')
    model = f"own {kind}"
    calling = Script((Calls("call_a", "f", namespace="space"),))
    routes.upstream.replies[model] = [reply(calling, kind, stream=False), reply(HELLO, kind, stream=False)]
    own = Responses(http, gateway)
    first = own.create(f"{kind}/{model}", [adds("f"), USER])
    [call] = calls_of(first)
    assert (call["name"], call["namespace"]) == ("f", "space")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    own.create(f"{kind}/{model}", [output], previous_response_id=first["id"])
    for asked in routes.upstream.of(model):
        assert sorted(shown(asked.body)) == ["f", "weather"]
    spaces = [item.get("namespace") for item in asked.body.get("input", ()) if item.get("type") == "function_call"]
    assert spaces == ["space"] * (kind == "responses")
