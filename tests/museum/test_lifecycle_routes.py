"""The lifecycle of a Responses stream whose backend is of another kind, and translators in a row."""

import json

from tests.museum.cases import Theme
from tests.museum.clients import Json, sound_response
from tests.museum.gate import Routes
from tests.museum.lines import TALK, cc, part
from tests.museum.routes import (
    Kind,
    ask_all,
    began,
    chunks,
    completion,
    message,
    over,
    text_block,
    thought,
    told,
    told_plainly,
    use,
)

theme = Theme("lifecycle")


@theme.row("rs-missing-fields")
def _() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    for answered in (
        told("chat", chunks(cc(role="assistant", content="hi"), {**cc(finish="stop"), "usage": usage})),
        told_plainly("chat", completion({"content": "hi"}, usage=usage)),
        told("messages", began({"input_tokens": 5}) + text_block(0, "hi") + over(usage={"output_tokens": 7})),
    ):
        assert answered.received.types == TALK
        [item] = answered.received.output
        for event in answered.received.events[3:7]:
            assert (event["item_id"], event["output_index"], event["content_index"]) == (item["id"], 0, 0)
        for event in (answered.received.events[0], answered.received.events[-1]):
            response = event["response"]
            assert (response["id"], response["object"], response["model"]) == ("resp_1", "response", "m")
        last = answered.received.response
        assert (last["status"], last["usage"]["total_tokens"]) == ("completed", 12)
        assert (item["role"], item["status"], item["content"][0]["text"]) == ("assistant", "completed", "hi")


_CHAT = chunks(
    cc(content="Hi"),
    cc(reasoning_content="hmm"),
    cc(part('{"x":1}', index=0, id="a", name="f")),
    cc(finish="tool_calls"),
)
_MESSAGES = began() + text_block(0, "Hi") + thought(1, "hmm") + use(2, "a", "f", '{"x":', "1}") + over("tool_use")


@theme.row("rs-late-text-done")
def _() -> None:
    turns: list[tuple[Kind, bytes]] = [("chat", _CHAT), ("messages", _MESSAGES)]
    for kind, data in turns:
        first = told(kind, data, ask_all("f"))
        in_chat, in_responses, in_messages = first.data
        # What each client received is what the next translator in a chain has for a backend.
        chained: list[tuple[Kind, bytes]] = [("responses", in_responses), ("messages", in_messages), ("chat", in_chat)]
        for next_kind, received in chained:
            second = told(next_kind, received, ask_all("f"))
            assert (second.said.text, second.said.reasoning) == ("Hi", "hmm")
            assert (second.calls, second.said.finish) == ([("a", "f", '{"x":1}')], "tool_calls")
            assert second.item_types == ["message", "reasoning", "function_call"]
            assert second.block_types == ["text", "thinking", "tool_use"]


_CALLED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
_PLAIN: list[tuple[Kind, Json]] = [
    ("chat", completion({"content": "ok", "tool_calls": [_CALLED]}, "tool_calls")),
    (
        "messages",
        message(
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}},
            reason="tool_use",
        ),
    ),
]


@theme.row("rs-nonstream-drop")
def _(routes: Routes) -> None:
    door = routes.responses
    for kind, reply in _PLAIN:
        answered = told_plainly(kind, reply)
        assert answered.item_types == ["message", "function_call"]
        types = answered.received.types
        assert "function_call_arguments.done" in types
        assert not any(type.startswith("custom_tool_call_input") for type in types)
        model = routes.script(kind, json.dumps(reply).encode())
        plain = sound_response(door.plain(model, stream=False).json())
        assert [item["type"] for item in plain["output"]] == ["message", "function_call"]
        assert (plain["status"], json.loads(plain["output"][1]["arguments"])) == ("completed", {"a": 1})
    # Nothing but a call, and the field for its reason left out.
    bare = completion({"content": None, "tool_calls": [{**_CALLED, "function": {"name": "f", "arguments": "{}"}}]})
    del bare["choices"][0]["finish_reason"]
    only = told_plainly("chat", bare)
    assert (only.item_types, only.said.finish) == (["function_call"], "tool_calls")
    # A custom tool comes back as one.
    patch: Json = {"type": "custom", "name": "f"}
    wrapped = {**_CALLED, "function": {"name": "f", "arguments": '{"input":"*** Begin"}'}}
    used = {"type": "tool_use", "id": "a", "name": "f", "input": {"input": "*** Begin"}}
    replies: list[tuple[Kind, Json]] = [("chat", completion({"tool_calls": [wrapped]})), ("messages", message(used))]
    for kind, reply in replies:
        model = routes.script(kind, json.dumps(reply).encode())
        [item] = door.plain(model, (patch,)).json()["output"]
        assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")
        streamed = door.stream(model, (patch,)).received
        assert [event["item_id"] for event in streamed.of("custom_tool_call_input.done")] == [streamed.output[0]["id"]]
        assert streamed.of("function_call_arguments.done") == []


test_museum = theme.test()
