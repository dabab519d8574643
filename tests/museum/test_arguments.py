"""Arguments: they are text, they leave once, and nobody changes a letter of them."""

import json
from typing import Any

import jsonschema

from tests.museum.cases import Theme
from tests.museum.lines import (
    aggregate,
    answer,
    ask,
    call_events,
    cc,
    part,
    plain_answer,
    relay,
    say,
    sent_upstream,
)
from tests.museum.texts import live, read_all, whole
from tests.support.frames import call, call_item, completed, created, rs, stream, text
from toolwire import ToolCallAggregator
from toolwire.backends.responses import Profile
from toolwire.core.events import CallArgs, CallStarted

theme = Theme("arguments")


def _delta(words: str, item: str = "fc_1") -> bytes:
    return rs("function_call_arguments.delta", item_id=item, output_index=0, delta=words)


def _added(name: str = "f", arguments: Any = "") -> bytes:
    return rs("output_item.added", output_index=0, item=call_item("c", name, arguments))


def _args_done(arguments: Any) -> bytes:
    return rs("function_call_arguments.done", item_id="fc_1", output_index=0, arguments=arguments)


def _item_done(arguments: Any, name: str = "f", **fields: Any) -> bytes:
    return rs("output_item.done", output_index=0, item=call_item("c", name, arguments, **fields))


def _history(arguments: Any) -> list[dict[str, Any]]:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]


def _arguments_upstream(arguments: Any) -> str:
    [item] = [item for item in sent_upstream(messages=_history(arguments))["input"] if item["type"] == "function_call"]
    return item["arguments"]


@theme.row("args-delta-plus-done")
def _() -> None:
    whole = '{"command":"ls"}'
    told = [_delta(whole), _args_done(whole), _item_done(whole)]
    ending = completed([call_item("c", "f", whole)])
    for events in (told, told[:1], told[1:], told[2:], [_delta(whole[:5]), *told[1:]]):
        answered = answer(stream(created(), _added(), *events, ending))
        assert answered.calls == [("c", "f", whole)]
        assert answered.notes == ()


@theme.row("args-snapshot-stream")
def _() -> None:
    totals = ['{"a"', '{"a":1', '{"a":1}']
    streamed = stream(created(), _added(), *map(_delta, totals), _args_done(totals[-1]), completed())
    declared = answer(streamed, profile=Profile(arguments="snapshot"))
    assert declared.calls == [("c", "f", '{"a":1}')]
    deltas = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in declared.chunks]
    pieces = [each[0]["function"]["arguments"] for each in deltas if each and "id" not in each[0]]
    assert pieces == ['{"a"', ":1", "}"]
    # Not declared: what was sent cannot be taken back, so the call is incomplete.
    undeclared = answer(streamed)
    assert undeclared.calls == [("c", "f", "".join(totals))]
    assert undeclared.notes == ("arguments_differ", "call_incomplete")


@theme.row("args-empty-string")
def _() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "ping", "input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    stop = {"type": "content_block_stop", "index": 0}
    assert aggregate(start, stop).calls == relay(start, stop).calls == [("t1", "ping", "{}")]
    for nothing in ("", " \n", None, "null"):
        told = stream(created(), _added("ping", nothing), _args_done(nothing), _item_done(nothing, "ping"), completed())
        assert answer(told).calls == [("c", "ping", "{}")]
        item = call_item("c", "ping", nothing)  # type: ignore[arg-type]
        assert plain_answer({"status": "completed", "output": [item]}).calls == [("c", "ping", "{}")]
        assert _arguments_upstream(nothing) == "{}"
        assert relay(cc(part(nothing, index=0, id="c", name="ping"))).calls == [("c", "ping", "{}")]
    spaces = stream(created(), _added("ping"), _delta(" "), _delta("\n"), _item_done(" \n", "ping"), completed())
    assert answer(spaces).calls == [("c", "ping", "{}")]


@theme.row("args-empty-drop")
def _() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "take_screenshot", "input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    stop = {"type": "content_block_stop", "index": 0}
    aggregator = ToolCallAggregator()
    [begun] = aggregator.ingest_delta(start).deltas
    assert (begun.id, begun.name) == ("t1", "take_screenshot")
    aggregator.ingest_delta(stop)
    aggregator.ingest_delta({"type": "message_delta", "delta": {"stop_reason": "tool_use"}})
    assert [(each.name, each.arguments, each.complete) for each in aggregator.snapshot()] == [
        ("take_screenshot", "{}", True)
    ]
    only_begun = answer(stream(created(), _added("take_screenshot"), completed()))
    assert only_begun.calls == [("c", "take_screenshot", "{}")]
    assert only_begun.finish == "tool_calls"


@theme.row("args-final-delta")
def _() -> None:
    blocks = [f'<tool_call>{{"name":"f","arguments":{{"a":{number}}}}}</tool_call>' for number in (1, 2, 3)]
    for count in (1, 3):
        expected = [("f", f'{{"a":{number}}}') for number in (1, 2, 3)[:count]]
        assert read_all("".join(blocks[:count])).calls == expected
        answered = say("".join(blocks[:count]), ask(tools=("f",)), step=10_000)
        assert answered.named == expected
        assert answered.finish == "tool_calls"
        assert answered.content is None


@theme.row("args-finish-strip")
def _() -> None:
    chunk = cc(part('{"x":1}', index=0, id="a", type="function", name="f"), finish="tool_calls")
    assert aggregate(chunk).calls == [("a", "f", '{"x":1}')]
    assert relay(chunk).message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    ]


@theme.row("args-leak-content")
def _() -> None:
    words = '<tool_call>{"name":"w","arguments":{"text":"hello"}}</tool_call>'
    answered = say(words, ask(tools=("w",), messages=_history('{"a":1}')))
    assert answered.named == [("w", '{"text":"hello"}')]
    assert answered.content is None
    read = read_all(f"Before. {words} After.")
    assert read.pieces == ("Before. ", ("w", '{"text":"hello"}'), " After.")


@theme.row("args-start-input")
def _() -> None:
    called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    reply = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    deltas = ToolCallAggregator().ingest_message(reply).deltas
    assert [(delta.name, delta.arguments, delta.complete) for delta in deltas] == [
        ("f", "", False),
        ("", '{"x":1}', False),
        ("", "", True),
    ]
    events = call_events(reply, total=True)
    assert events[1:3] == [CallStarted("a", "f"), CallArgs("a", '{"x":1}')]


@theme.row("args-double-encoded")
def _() -> None:
    twice = json.dumps(json.dumps({"city": "X"}))
    assert aggregate(cc(part(twice, index=0, id="c", name="f"))).calls == [("c", "f", twice)]
    assert answer(stream(created(), call("c", "f", twice, item="fc_1"), completed())).calls == [("c", "f", twice)]
    assert _arguments_upstream(twice) == twice
    nested = '{"where":"{\\"city\\":\\"X\\"}"}'
    assert answer(stream(created(), call("c", "f", nested), completed())).calls == [("c", "f", nested)]


@theme.row("args-as-object")
def _() -> None:
    given = {"b": 1, "a": {"z": [1, 2.5], "y": None}}
    compact = '{"b":1,"a":{"z":[1,2.5],"y":null}}'
    assert _arguments_upstream(given) == compact
    assert aggregate(cc(part(given, index=0, id="c", name="f"))).calls == [("c", "f", compact)]
    assert relay(cc(part(given, index=0, id="c", name="f"))).calls == [("c", "f", compact)]
    assert answer(stream(created(), _added(), _item_done(given), completed())).calls == [("c", "f", compact)]
    item = call_item("c", "f", given)  # type: ignore[arg-type]
    assert plain_answer({"status": "completed", "output": [item]}).calls == [("c", "f", compact)]


@theme.row("args-truncated-history")
def _() -> None:
    # A Responses server takes any text; refusing or wrapping it is for backends that need an object.
    assert _arguments_upstream('{"service":"checkout"') == '{"service":"checkout"'


_FUNCTION = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "arguments": {"type": "string"}},
    "required": ["arguments"],
    "additionalProperties": False,
}
_PART = {
    "type": "object",
    "properties": {
        "index": {"type": "integer", "minimum": 0},
        "id": {"type": "string", "minLength": 1},
        "type": {"const": "function"},
        "function": _FUNCTION,
    },
    "required": ["index", "function"],
    "additionalProperties": False,
}
_DELTA = {
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "tool_calls": {"type": "array", "minItems": 1, "items": _PART},
    },
    "additionalProperties": False,
}
_CHUNK = {
    "type": "object",
    "properties": {
        "choices": {"type": "array", "items": {"properties": {"delta": _DELTA}, "required": ["index", "delta"]}}
    },
    "required": ["id", "object", "created", "model", "choices"],
}


@theme.row("seed-args-outside")
def _() -> None:
    beside = {"index": 0, "id": "a", "type": "function", "function": {"name": "f"}, "arguments": '{"x":1}'}
    streamed = stream(
        created(), text("Hm."), call("a", "f", '{"x"', ":1}"), call("b", "g", "", index=1), completed(usage={})
    )
    for answered in (relay(cc(beside)), answer(streamed, ask(stream_options={"include_usage": True}))):
        assert answered.calls[0] == ("a", "f", '{"x":1}')
        for chunk in answered.chunks:
            jsonschema.validate(chunk, _CHUNK)
    assert aggregate(cc(beside)).calls == [("a", "f", '{"x":1}')]
    entry = {"id": "c", "type": "function", "function": {"name": "f"}, "arguments": '{"x":1}'}
    history = [*_history("")[:1], {"role": "assistant", "tool_calls": [entry]}, *_history("")[2:]]
    [item] = [item for item in sent_upstream(messages=history)["input"] if item["type"] == "function_call"]
    assert item["arguments"] == '{"x":1}'


@theme.row("num-float")
def _() -> None:
    digits = '{"limit":10,"big":12345678901234567890,"f":1.10,"e":1E5,"n":-0.0}'
    assert answer(stream(created(), call("c", "f", digits), completed())).calls == [("c", "f", digits)]
    assert _arguments_upstream(digits) == digits
    assert aggregate(cc(part(digits, index=0, id="c", name="f"))).calls == [("c", "f", digits)]
    assert read_all(f'<tool_call>{{"name":"f","arguments":{digits}}}</tool_call>').calls == [("f", digits)]
    # As an object on the wire, where it has to become text, its own digits are kept as well.
    item = json.dumps(call_item("c", "f", "X")).replace('"X"', digits)
    raw = f'data: {{"type":"response.output_item.done","output_index":0,"item":{item}}}\n\n'.encode()
    assert answer(stream(created(), raw, completed())).calls == [("c", "f", digits)]


@theme.row("args-malformed-eager")
def _() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
    events: list[dict[str, Any]] = [{"type": "content_block_start", "index": 0, "content_block": block}]
    for piece in ('{"names": cro', "njob}"):
        delta = {"type": "input_json_delta", "partial_json": piece}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    events.append({"type": "content_block_stop", "index": 0})
    assert aggregate(*events).calls == relay(*events).calls == [("t1", "f", '{"names": cronjob}')]
    answered = answer(stream(created(), call("c", "f", '{"names": cro', "njob}"), completed()))
    assert answered.calls == [("c", "f", '{"names": cronjob}')]


@theme.row("args-tgi-dict")
def _() -> None:
    calls = [
        {"id": "0", "type": "function", "function": {"name": "f", "arguments": {"t": title}}} for title in ("T1", "T2")
    ]
    reply = {"choices": [{"index": 0, "message": {"tool_calls": calls}, "finish_reason": "stop"}]}
    aggregator = ToolCallAggregator()
    aggregator.ingest_message(reply)
    relayed = relay(reply, total=True, reason="stop")
    assert [(each.name, each.arguments) for each in aggregator.snapshot()] == relayed.named
    assert relayed.named == [("f", '{"t":"T1"}'), ("f", '{"t":"T2"}')]
    assert len({id for id, _, _ in relayed.calls}) == 2
    assert relayed.notes == ("id_reused",)
    assert relayed.finish == "tool_calls"


@theme.row("json-nan")
def _() -> None:
    big = '{"x":1,"big":123456789012345678901234567890}'
    assert read_all(f'<tool_call>{{"name":"f","arguments":{big}}}</tool_call>').calls == [("f", big)]
    for number in ("NaN", "Infinity", "-Infinity"):
        words = f'<tool_call>{{"name":"f","arguments":{{"x":{number},"big":12345678901234567890}}}}</tool_call>'
        kept = whole(words)
        assert (kept.text, kept.calls, kept.notes) == (words, [], ("text_block_kept",))
        begun = live(words)
        assert begun.calls == []
        assert len(begun.cut) == 1
        answered = say(words, ask(tools=("f",)))  # every chunk is read as strict JSON
        assert (answered.content, answered.calls, answered.finish) == (words, [], "stop")
        structured = answer(stream(created(), call("c", "f", f'{{"x":{number}}}'), completed()))
        assert structured.calls == [("c", "f", f'{{"x":{number}}}')]  # text, as it came


test_museum = theme.test()
