"""The lifecycle of a Responses stream: whatever the upstream leaves out, the client gets all of it, in order."""

import json
from typing import Any

import msgspec

from tests.museum.cases import Theme
from tests.museum.clients import received, sound_response
from tests.museum.gate import Wire
from tests.museum.lines import (
    RULES,
    TALK,
    answer,
    answer_responses,
    ask_responses,
    carry,
    encoded,
    plain_answer,
    say,
)
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.upstream import Pause, Reply
from toolwire.assembly import ToolRules
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.dialects import responses

theme = Theme("lifecycle")

_USAGE = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}


def _added(arguments: str = "") -> bytes:
    return rs("output_item.added", output_index=0, item=call_item("c", "add", arguments))


def _done(arguments: str) -> bytes:
    return rs("output_item.done", output_index=0, item=call_item("c", "add", arguments))


def _delta(words: str) -> bytes:
    return rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta=words)


class _Event(msgspec.Struct):
    type: str
    item: msgspec.Raw = msgspec.Raw(b"")
    response: dict[str, msgspec.Raw] = {}


@theme.row("rs-completed-empty")
def _() -> None:
    turn = stream(created(), text("Hm.", index=1), _done("{}"))
    for ending in (
        completed(usage=_USAGE),
        rs("completed", response={"id": "r", "status": "completed", "usage": _USAGE}),
        rs("completed", response={"id": "r", "status": "completed", "output": None, "usage": _USAGE}),
    ):
        answered = answer(turn + ending)
        assert [item["type"] for item in answered.response["output"]] == ["message", "function_call"]
        assert answered.response["usage"]["total_tokens"] == 12
    # To the byte: what was said of an item when it was done is what the last event says of it.
    lines = carry([turn + completed()], ask_responses()).data.split(b"\n")
    events = [msgspec.json.decode(line[6:], type=_Event) for line in lines if line.startswith(b"data: {")]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response["output"] == msgspec.Raw(b"[" + b",".join(map(bytes, done)) + b"]")
    assert "usage" in events[-1].response


@theme.row("rs-upstream-empty")
def _(wire: Wire) -> None:
    arguments = '{"a":1}'
    told = stream(created(), _added(), _done(arguments), completed(usage=_USAGE))
    answered = answer(told)
    assert answered.calls == [("c", "add", arguments)]
    model = wire.script(told)
    for door in wire.doors:
        said = door.said(door.plain(model))
        assert (said.calls, said.finish) == ((("c", "add", arguments),), "tool_calls")
    # A final list with more in it counts.
    more = [call_item("c", "add", arguments), call_item("d", "add", "{}", "fc_2")]
    for ending in (completed(more), completed(more[1:])):
        assert answer(stream(created(), _added(), _done(arguments), ending)).calls == [
            ("c", "add", arguments),
            ("d", "add", "{}"),
        ]


@theme.row("rs-item-done-missing")
def _() -> None:
    whole = stream(created(), _added(), _delta('{"city":'), _delta(' "SF"}'), completed())
    answered = answer(whole)
    assert answered.calls == [("c", "add", '{"city": "SF"}')]
    assert answered.received.types[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    [item] = answered.response["output"]
    assert item["status"] == "completed"
    half = answer(stream(created(), _added(), _delta('{"city":'), completed()))
    [item] = half.response["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"city":')
    assert half.received.types[-1] == "incomplete"
    assert "required_action" not in half.response
    unsaid = answer(stream(created(), text("Hi"), completed()))
    assert unsaid.received.types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]


@theme.row("rs-missing-fields")
def _() -> None:
    turns = (
        encoded([TurnStarted(), TextDelta("hi"), TurnEnded()]),  # a backend that has nothing but text
        answer(stream(created(), text("hi"), completed())),
        answer(stream(text("hi"), completed())),  # nobody said that it began
    )
    for answered in turns:
        told = answered.received
        assert told.types == TALK  # ids, places, sums and schemas are checked wherever a stream is read
        [item] = answered.response["output"]
        for event in told.events[3:7]:
            assert (event["item_id"], event["output_index"], event["content_index"]) == (item["id"], 0, 0)
        for event in (told.events[0], told.events[-1]):
            response = event["response"]
            assert (response["id"], response["object"], response["model"]) == ("resp_1", "response", "m")
        assert item == {
            "id": item["id"],
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
        }


@theme.row("rs-late-text-done")
def _() -> None:
    reasoning = rs("reasoning_summary_text.delta", item_id="rs_1", output_index=1, summary_index=0, delta="hmm")
    added = rs("output_item.added", output_index=2, item=call_item("a", "f", "", "fc_a"))
    pieces = [
        rs("function_call_arguments.delta", item_id="fc_a", output_index=2, delta=piece) for piece in ('{"x":', "1}")
    ]
    said = {"type": "output_text", "text": "Hi"}
    for content in ([said], []):  # some servers do not repeat it
        late = [
            rs("output_text.done", item_id="msg_1", output_index=0, content_index=0, text="Hi"),
            rs("content_part.done", item_id="msg_1", output_index=0, content_index=0, part=said),
            rs("output_item.done", output_index=0, item={"type": "message", "id": "msg_1", "content": content}),
        ]
        for place in range(1, 4):
            rest = [reasoning, added, *pieces]
            answered = answer(stream(created(), text("Hi"), *rest[:place], *late, *rest[place:], completed()))
            assert [item["type"] for item in answered.response["output"]] == ["message", "reasoning", "function_call"]
            assert answered.said.text == "Hi"
            assert answered.calls == [("a", "f", '{"x":1}')]
    chained = encoded([
        TurnStarted(), TextDelta("Hi"), ReasoningDelta("hmm"),
        CallStarted("a", "f"), CallArgs("a", '{"x":1}'), CallEnded("a"), TurnEnded("calls"),
    ])  # fmt: skip
    assert [item["type"] for item in chained.response["output"]] == ["message", "reasoning", "function_call"]


@theme.row("as-seed-required-action")
def _(wire: Wire) -> None:
    door = wire.responses
    turn = Reply([stream(created(), call("a", "f", '{"x":', "1}"), completed())])
    model = wire.script(turn)
    told = door.stream(model, ("f",)).received  # any made-up event would be a violation
    assert told.types[-1] == "completed"
    assert (told.response["status"], told.output[0]["type"]) == ("completed", "function_call")
    waiting = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    required = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": [waiting]}}
    assert told.response["required_action"] == required

    extended = {"x-proxy-responses-events": "extended"}
    asked = received(door.stream(model, ("f",), headers=extended).raw, extended=True)
    *_, action, last = asked.events
    assert (action["type"], action["required_action"]) == ("response.required_action", required)
    assert (last["type"], last["response"]["status"]) == ("response.completed", "incomplete")
    wire.upstream.replies[model.removeprefix("up/")] = Reply([stream(created(), text("Done."), completed())])
    url = f"{door.url}/{asked.response['id']}"
    outputs = {"tool_outputs": [{"tool_call_id": "a", "output": "ok"}]}
    submitted = wire.http.post(f"{url}/submit_tool_outputs", json=outputs)
    assert door.said(submitted).text == "Done."
    kept = wire.http.get(url).json()
    assert kept["status"] == "completed"
    assert "required_action" not in kept
    slow = wire.script(Reply([created(), text("a"), Pause(2.3), text("b"), completed()]))
    pinged = received(door.stream(slow, headers=extended).raw, extended=True)
    assert "ping" in pinged.types
    assert pinged.said.text == "ab"


_CUTS = (
    RULES,
    ToolRules(output_mode="obsidian-xml"),
    ToolRules(dedup=True),
    ToolRules(max_calls=1),
    ToolRules(suppress_tail=True),
    ToolRules(stop_after=True, stop_after_mode="first"),
)


def _numbered(data: bytes, number: Any) -> bytes:
    return data.replace(b'data: {"type"', b'data: {"sequence_number": ' + json.dumps(number).encode() + b', "type"')


@theme.row("rs-seq")
def _() -> None:
    # That numbers are 0, 1, 2 … is checked wherever a stream is read; here is what might disturb them.
    turn = stream(
        created(), text("One."), call("a", "f", "{}", index=1), call("b", "f", '{"x":', "1}", index=2),
        text("Two.", "msg_2", 3), completed(),
    )  # fmt: skip
    failed = stream(turn[: -len(completed())], rs("failed", response={"status": "failed", "error": {"message": "x"}}))
    for upstream in (turn, *(_numbered(turn, number) for number in (0, 7, None)), failed):
        for rules in _CUTS:
            answer(upstream, rules=rules)
    # A frame that goes on as it came has its own number in its text too.
    quoted = '{"t":"\\"sequence_number\\":77,"}'
    called = answer(_numbered(stream(created(), call("a", "f", quoted), completed()), 5))
    assert called.calls == [("a", "f", quoted)]
    encoder = responses.StreamEncoder(Request("m", ()), "resp_1", 0, TurnStats())
    steps = (
        encoder.keepalive(61.0),
        encoder.feed(TurnStarted()),
        encoder.feed(TextDelta("a")),
        encoder.keepalive(61.0),
        encoder.keepalive(15.0),
        encoder.feed(TextDelta("b")),
        encoder.feed(TurnEnded()),
    )
    kept_alive = received(b"".join(piece for step in steps for piece in step))
    assert kept_alive.types.count("in_progress") == 2
    assert (kept_alive.said.text, kept_alive.comments[0]) == ("ab", "keepalive")


_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


@theme.row("rs-echo-tools")
def _(wire: Wire) -> None:
    door = wire.responses
    model = wire.script(stream(created(), call("a", "f", "{}"), completed(usage=_USAGE)))
    told = door.stream(model, [_TOOL], input="call f").received
    plain = sound_response(door.plain(model, [_TOOL], input="call f").json())
    for response in (*(event["response"] for event in told.events if "response" in event), plain):
        assert response["tools"] == [{**_TOOL, "description": None, "strict": None}]
    given = {**_TOOL, "strict": True, "description": "D", "defer_loading": True}
    assert answer_responses(stream(created(), completed()), ask_responses(tools=(given,))).response["tools"] == [given]
    # Without tools, and with fields that are null, the defaults are there.
    bare = answer_responses(
        stream(created(), completed()), ask_responses(tools=(), tool_choice=None, text=None, reasoning=None)
    )
    assert bare.response["tools"] == []
    assert (bare.response["tool_choice"], bare.response["text"]) == ("auto", {"format": {"type": "text"}})


@theme.row("rs-nonstream-drop")
def _(wire: Wire) -> None:
    door = wire.responses
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "b", "name": "patch", "input": "*** Begin"}
    output = [{"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "ok"}]}]
    output += [call_item("a", "f", '{"a":1}'), custom]
    reply = {"id": "r", "status": "completed", "output": output}
    model = wire.script(Reply([json.dumps(reply).encode()], content_type="application/json"))
    plain = door.plain(model).json()
    assert [item["type"] for item in plain["output"]] == ["message", "function_call", "custom_tool_call"]
    assert plain["status"] == "completed"
    expected = (("a", "f", '{"a":1}'), ("b", "patch", "*** Begin"))
    assert door.said(door.plain(model)).calls == expected
    for answered in (plain_answer(reply), answer(stream(created(), completed(output)))):
        told = answered.received
        assert told.said.calls == expected
        for kind, id in (("function_call_arguments", "fc_1"), ("custom_tool_call_input", "ctc_1")):
            for verb in ("delta", "done"):
                assert [event["item_id"] for event in told.of(f"{kind}.{verb}")] == [id]
    assert say("Only text.").response["output"][0]["type"] == "message"


test_museum = theme.test()
