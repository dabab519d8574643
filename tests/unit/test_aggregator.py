"""The public aggregator: every payload shape, one answer."""

import copy

import pytest

from toolwire import Call, CallDelta, ToolCallAggregator, extract_use_tool_blocks, to_obsidian_xml


def collected(*deltas, **given):
    aggregator = ToolCallAggregator(seed="S", **given)
    for delta in deltas:
        aggregator.ingest_delta(delta)
    return aggregator.snapshot()


WHOLE = (Call("c1", "find", '{"q":"x"}'),)

SHAPES = {
    "chat delta": [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
    ],
    "chat chunk": [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "find"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":"x"}'}}]}}]},
    ],
    "arguments beside function": [
        {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find"}, "arguments": '{"q":"x"}'}]}
    ],
    "object arguments": [{"tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": {"q": "x"}}}]}],
    "responses events": [
        {"type": "response.output_item.added", "output_index": 0,
         "item": {"type": "function_call", "id": "fc", "call_id": "c1", "name": "find", "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "item_id": "fc", "delta": '{"q":"x"}'},
        {"type": "response.function_call_arguments.done", "item_id": "fc", "arguments": '{"q":"x"}'},
        {"type": "response.output_item.done",
         "item": {"type": "function_call", "id": "fc", "call_id": "c1", "name": "find", "arguments": '{"q":"x"}'}},
    ],
    "content part": [
        {"type": "response.content_part.added", "item_id": "i", "part": {"type": "function_call", "id": "c1", "name": "find"}},
        {"type": "response.function_call_arguments.delta", "item_id": "i", "delta": '{"q":"x"}'},
    ],
    "late name in item.content": [
        {"type": "response.function_call_arguments.delta", "item_id": "i", "delta": '{"q":"x"}'},
        {"type": "response.function_call_arguments.done", "item_id": "i", "arguments": '{"q":"x"}'},
        {"type": "response.output_item.done",
         "item": {"type": "message", "id": "i", "content": [{"type": "tool_call", "call_id": "c1", "call_name": "find"}]}},
    ],
    "anthropic stream": [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c1", "name": "find", "input": {}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"q":"x"}'}},
        {"type": "content_block_stop", "index": 0},
    ],
    "dynamic tool call request": [
        {"type": "codex/event/dynamic_tool_call_request", "msg": {"callId": "c1", "tool": "find", "arguments": {"q": "x"}}}
    ],
    "item/tool/call": [
        {"id": 9, "method": "item/tool/call", "params": {"callId": "c1", "tool": "find", "arguments": {"q": "x"}}}
    ],
    "required action": [
        {"type": "response.required_action", "required_action": {"type": "submit_tool_outputs", "submit_tool_outputs": {
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"x"}'}}]}}}
    ],
    "agent message": [{"type": "agent_message_delta", "msg": {"delta": {"tool_calls": [
        {"tool_call_id": "c1", "tool_call_index": "0", "function": {"name": "find", "arguments_chunk": '{"q":"x"}'}}]}}}],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_understood(shape):
    assert collected(*SHAPES[shape]) == WHOLE


@pytest.mark.parametrize("key", ["name", "function_name", "tool_name", "call_name"])
def test_every_spelling_of_the_name_is_understood(key):
    part = {"type": "tool_use", "id": "c1", key: "find"}
    assert collected({"type": "response.content_part.added", "item_id": "i", "part": part})[0].name == "find"


def test_deltas_hold_fragments_and_the_snapshot_totals():
    aggregator = ToolCallAggregator()
    first, second = SHAPES["chat delta"]
    assert aggregator.ingest_delta(first).deltas == (CallDelta(0, "c1", "find"), CallDelta(0, arguments='{"q":'))
    assert not aggregator.snapshot()[0].complete
    assert aggregator.ingest_delta(second).deltas == (CallDelta(0, arguments='"x"}'),)
    assert aggregator.snapshot() == WHOLE


def test_the_same_message_twice_is_news_only_once():
    aggregator = ToolCallAggregator()
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}]}
    assert aggregator.ingest_message(message).updated
    assert not aggregator.ingest_message(message).updated
    assert len(aggregator.snapshot()) == 1


def test_input_is_never_changed():
    for deltas in SHAPES.values():
        before = copy.deepcopy(deltas)
        collected(*deltas)
        assert deltas == before


@pytest.mark.parametrize(
    "payload", [None, 3, "text", [], {}, {"tool_calls": None}, {"tool_calls": ["x"]}, {"delta": []}]
)
def test_anything_else_is_no_call(payload):
    aggregator = ToolCallAggregator()
    assert not aggregator.ingest_delta(payload).updated
    assert not aggregator.has_calls


def test_choices_are_apart():
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta({"choices": [
        {"index": 1, "delta": {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}}]}},
        {"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}},
    ]})  # fmt: skip
    assert [call.id for call in aggregator.snapshot(0)] == ["a"]
    assert [call.id for call in aggregator.snapshot(1)] == ["b"]
    aggregator.reset_turn(1)
    assert (len(aggregator.snapshot(0)), len(aggregator.snapshot(1))) == (1, 0)
    aggregator.reset_turn()
    assert not aggregator.has_calls


def test_minted_ids_differ_between_choices_and_aggregators():
    nameless = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    one, other = ToolCallAggregator(), ToolCallAggregator()
    one.ingest_delta(nameless)
    one.ingest_delta(nameless, choice=1)
    other.ingest_delta(nameless)
    assert len({one.snapshot()[0].id, one.snapshot(1)[0].id, other.snapshot()[0].id}) == 3


def test_parallel_calls_are_supported_until_a_payload_denies_it():
    aggregator = ToolCallAggregator()
    assert aggregator.supports_parallel_calls
    aggregator.ingest_delta({"response": {"parallel_tool_calls": False}})
    assert not aggregator.supports_parallel_calls


TEXT = "Let me see. <use_tool><name>find</name><q>x</q></use_tool>"


def test_text_counts_only_on_demand():
    aggregator = ToolCallAggregator()
    assert not aggregator.ingest_message({"content": TEXT}).updated
    assert aggregator.ingest_message({"content": [{"type": "text", "text": TEXT}]}, emit_if_missing=True).updated
    assert [(call.name, call.arguments, call.complete) for call in aggregator.snapshot()] == [
        ("find", '{"q":"x"}', True)
    ]


def test_a_structured_twin_wins_over_its_text():
    aggregator = ToolCallAggregator()
    calls = [{"id": "c1", "function": {"name": "find", "arguments": '{ "q": "x" }'}}]
    aggregator.ingest_message({"content": TEXT + TEXT, "tool_calls": calls}, emit_if_missing=True)
    assert [call.name for call in aggregator.snapshot()] == ["find", "find"]
    assert aggregator.snapshot()[0].id == "c1"


def test_a_registered_pattern_is_used_until_it_is_removed():
    aggregator = ToolCallAggregator()
    remove = aggregator.register_text_pattern("bang", lambda text: [("run", "{}")] if "!run" in text else [])
    aggregator.ingest_message({"content": "!run"}, emit_if_missing=True)
    assert [call.name for call in aggregator.snapshot()] == ["run"]
    aggregator.reset_turn()
    remove()
    aggregator.ingest_message({"content": "!run"}, emit_if_missing=True)
    assert aggregator.snapshot() == ()


def test_blocks_are_written_and_found_again():
    written = to_obsidian_xml("find", '{"q":"a & b"}')
    assert written == "<use_tool>\n<name>find</name>\n<q>a & b</q>\n</use_tool>"
    assert extract_use_tool_blocks(f"x {written} y") == [("find", '{"q":"a & b"}')]
