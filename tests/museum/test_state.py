"""State that a client leaves with us: what it continues is what it left, whatever the upstream can do."""

from typing import Any

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Routes, Wire
from tests.museum.lines import cc, part
from tests.museum.routes import Kind, began, chunks, over, text_block, use
from tests.support.frames import call, completed, created, stream, text
from tests.support.upstream import Reply

theme = Theme("state")

_CALLS = stream(created(), text("Hm."), call("c1", "f", '{"x":1}', index=1), completed())
_SAYS = stream(created("resp_2"), text("Done."), completed())


def _output(id: str = "c1", **fields: Any) -> Json:
    return {"type": "function_call_output", "call_id": id, "output": "ok", **fields}


def _seen(item: Json) -> tuple[str, str]:
    """An item as the upstream got it: what it is, and what it says."""
    content = item.get("content")
    said = "".join(part["text"] for part in content) if isinstance(content, list) else ""
    return item["type"], said or item.get("arguments") or item.get("output") or ""


_WHOLE = [
    ("message", "Go."),
    ("message", "Hm."),
    ("function_call", '{"x":1}'),
    ("function_call_output", "ok"),
]


@theme.row("st-prev-ignored")
def _(wire: Wire, routes: Routes) -> None:
    door = wire.responses
    model = wire.script(_CALLS, _SAYS)
    first = door.stream(model, ("f",)).response
    second = door.plain(model, ("f",), previous_response_id=first["id"], input=[_output()])
    assert door.said(second).text == "Done."
    assert second.json()["previous_response_id"] == first["id"]
    sent = wire.asked(model)[-1].body
    assert [_seen(item) for item in sent["input"]] == _WHOLE
    assert "previous_response_id" not in sent
    assert sent["store"] is False
    # The next link stands on both.
    door.plain(model, ("f",), previous_response_id=second.json()["id"], input="And?")
    seen = [_seen(item) for item in wire.asked(model)[-1].body["input"]]
    assert seen == [*_WHOLE, ("message", "Done."), ("message", "And?")]

    # What cannot be continued is refused, streamed or not, and nobody is asked.
    asked = len(wire.asked(model))
    unknown = {"previous_response_id": "resp_nobody", "input": [_output()]}
    refusals = (door.stream(model, **unknown), door.plain(model, **unknown))
    for status, error in ((refusals[0].status, refusals[0].error), _refused(refusals[1])):
        assert (status, error["type"]) == (404, "invalid_request_error")
        assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    forgotten = door.plain(model, store=False).json()
    status, error = _refused(door.plain(model, previous_response_id=forgotten["id"], input=[_output()]))
    assert (status, error["code"]) == (404, "previous_response_not_found")
    status, error = _refused(door.plain(model, previous_response_id=first["id"], input=[_output("c9")]))
    assert (status, error["param"]) == (400, "input")
    assert "c9" in error["message"]
    assert len(wire.asked(model)) == asked + 1
    for kind in _TOLD:
        _look_at_chain(routes, kind)


_TOLD: dict[Kind, tuple[bytes, bytes]] = {
    "chat": (
        chunks(cc(content="Hm."), cc(part('{"x":1}', index=0, id="c1", name="f")), cc(finish="tool_calls")),
        chunks(cc(content="Done."), cc(finish="stop")),
    ),
    "messages": (
        began() + text_block(0, "Hm.") + use(1, "c1", "f", '{"x":1}') + over("tool_use"),
        began() + text_block(0, "Done.") + over(),
    ),
}
_MADE = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
_USED = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}
_CHAINS: dict[Kind, list[Json]] = {
    "chat": [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Hm.", "tool_calls": [_MADE]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Go."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hm."}, _USED]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
    ],
}


def _look_at_chain(routes: Routes, kind: Kind) -> None:
    """The chain in the words of a server that keeps nothing."""
    door, model = routes.responses, routes.script(kind, *_TOLD[kind])
    first = door.stream(model, ("f",)).response
    second = door.plain(model, ("f",), previous_response_id=first["id"], input=[_output()])
    assert door.said(second).text == "Done."
    sent = routes.asked(model)[-1].body
    assert sent["messages"] == _CHAINS[kind]
    assert not {"previous_response_id", "store", "input"} & set(sent)
    asked = len(routes.asked(model))
    for input, status in (([_output("c9")], 400), ([_output()], 404)):
        id = first["id"] if status == 400 else "resp_nobody"
        refused, error = _refused(door.plain(model, previous_response_id=id, input=input))
        assert (refused, error["type"]) == (status, "invalid_request_error")
    assert len(routes.asked(model)) == asked


def _refused(response: Any) -> tuple[int, Json]:
    return response.status_code, response.json()["error"]


@theme.row("st-chain-fallback")
def _(wire: Wire) -> None:
    door = wire.responses
    # What is to be continued is all in the request: the upstream may keep something or nothing.
    model = wire.script(_CALLS, _SAYS)
    first = door.plain(model, ("f",), store=True).json()
    for _ in range(3):  # no turn of it depends on luck
        answer = door.stream(model, ("f",), previous_response_id=first["id"], input=[_output()])
        assert answer.said.text == "Done."
    for asked in wire.asked(model):
        assert asked.body["store"] is False
        assert not {"previous_response_id", "conversation", "background"} & set(asked.body)
    # Nor does it on the other ways to continue: the outputs alone, a conversation, a socket that stores nothing.
    again = wire.script(_CALLS, _SAYS)
    waiting = door.plain(again, ("f",)).json()
    outputs = {"tool_outputs": [{"tool_call_id": "c1", "output": "ok"}]}
    submitted = wire.http.post(f"{door.url}/{waiting['id']}/submit_tool_outputs", json=outputs)
    assert door.said(submitted).text == "Done."
    assert [_seen(item) for item in wire.asked(again)[-1].body["input"]] == _WHOLE

    talk = wire.script(_CALLS, _SAYS)
    conversation = wire.http.post(f"{wire.gateway.base_url}/conversations", json={}).json()["id"]
    door.plain(talk, ("f",), conversation=conversation)
    door.plain(talk, ("f",), conversation={"id": conversation}, input=[_output()])
    assert [_seen(item) for item in wire.asked(talk)[-1].body["input"]] == _WHOLE

    live = wire.script(_CALLS, _SAYS)
    with door.socket() as socket:
        begun = socket.turn(model=live, input="Go.", store=False)
        ended = socket.turn(model=live, input=[_output()], previous_response_id=begun.response["id"], store=False)
        assert ended.said.text == "Done."
    assert [_seen(item) for item in wire.asked(live)[-1].body["input"]] == _WHOLE
    # An upstream's own refusal reaches the client as it is.
    error = b'{"error":{"message":"No.","code":"previous_response_not_found","param":"previous_response_id"}}'
    refused = door.plain(wire.script(Reply([error], 400, "application/json")))
    assert _refused(refused)[1]["code"] == "previous_response_not_found"


test_museum = theme.test()
