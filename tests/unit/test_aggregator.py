"""The public aggregator: every payload shape, one answer."""

import copy

import pytest

from tests.support.chunks import in_any_chunking
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


FOUND = [("find", '{"q":"x"}', True)]

TEXT_DELTAS = {
    "a string": lambda text: text,
    "chat delta": lambda text: {"content": text},
    "chat parts": lambda text: {"role": "assistant", "content": [{"type": "text", "text": text}]},
    "chat chunk": lambda text: {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]},
    "responses": lambda text: {"type": "response.output_text.delta", "item_id": "m", "delta": text},
    "anthropic": lambda text: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
    "app-server": lambda text: {"method": "item/agentMessage/delta", "params": {"itemId": "m", "delta": text}},
    "agent message": lambda text: {"type": "codex/event/agent_message_delta", "msg": {"delta": text}},
    "agent message parts": lambda text: {"type": "agent_message_delta", "msg": {"delta": {"content": text}}},
}  # fmt: skip


def seen(aggregator: ToolCallAggregator) -> list[tuple[str, str, bool]]:
    return [(call.name, call.arguments, call.complete) for call in aggregator.snapshot()]


@pytest.mark.parametrize("shape", TEXT_DELTAS)
def test_calls_in_the_text_of_deltas_are_read_in_any_chunking(shape):
    def run(pieces: list[str]):
        aggregator = ToolCallAggregator(seed="S")
        told = [aggregator.ingest_delta(TEXT_DELTAS[shape](piece)) for piece in pieces]
        return [delta for each in told for delta in each.deltas], aggregator.snapshot()

    deltas, calls = in_any_chunking(f"{TEXT} and <tool_call>now</tool_call> {TEXT}", run)
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("call_S01", "find", '{"q":"x"}'),
        ("call_S02", "find", '{"q":"x"}'),
    ]
    first = [CallDelta(0, "call_S01", "find"), CallDelta(0, arguments='{"q":"x"}'), CallDelta(0, complete=True)]
    assert deltas[:3] == first
    assert [delta.index for delta in deltas] == [0, 0, 0, 1, 1, 1]


def test_only_declared_names_count_in_text_where_they_are_known():
    assert collected({"content": TEXT}, names=["seek"]) == ()
    assert len(collected({"content": TEXT + "<tool_call>seek</tool_call>"}, names=["seek", "find"])) == 2


@pytest.mark.parametrize(
    "payload",
    [
        {"role": "user", "content": TEXT},
        {"role": "tool", "content": TEXT},
        {"reasoning_content": TEXT},
        {"content": f"```\n{TEXT}\n```"},
        {"type": "response.reasoning_text.delta", "delta": TEXT},
        {"type": "response.output_text.done", "text": TEXT},
        {"type": "response.refusal.delta", "delta": TEXT},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": TEXT}},
        {"method": "item/reasoning/textDelta", "params": {"delta": TEXT}},
    ],
)
def test_what_is_not_the_answers_new_text_is_not_read(payload):
    assert not ToolCallAggregator().ingest_delta(payload).updated


def test_a_text_that_is_told_once_more_as_a_whole_is_news_only_once():
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta({"content": TEXT})
    assert not aggregator.ingest_message({"role": "assistant", "content": TEXT}, emit_if_missing=True).updated
    assert seen(aggregator) == FOUND


STREAMED = [
    {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "find", "arguments": '{ "q":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ' "x" }'}}]},
]
OTHERS = {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "find", "arguments": '{"q":"y"}'}}]}


def test_a_structured_call_that_follows_its_text_is_the_same_call():
    aggregator = ToolCallAggregator(seed="S")
    aggregator.ingest_delta({"content": TEXT})
    assert [aggregator.ingest_delta(delta).updated for delta in STREAMED] == [False, False]
    assert aggregator.ingest_delta(OTHERS).deltas[0] == CallDelta(1, "c2", "find")
    assert [(call.id, call.arguments) for call in aggregator.snapshot()] == [
        ("call_S01", '{"q":"x"}'),
        ("c2", '{"q":"y"}'),
    ]
    aggregator.ingest_message({"tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": '{"q":"x"}'}}]})
    assert len(aggregator.snapshot()) == 2


def test_a_text_that_follows_its_structured_call_is_the_same_call():
    aggregator = ToolCallAggregator()
    for delta in (*STREAMED, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}):
        aggregator.ingest_delta(delta)
    assert not aggregator.ingest_message({"content": TEXT}, emit_if_missing=True).updated
    assert [aggregator.ingest_delta({"content": TEXT}).updated for _ in range(2)] == [False, True]  # one for one


def test_a_structured_call_that_says_something_else_than_a_text_is_let_go():
    aggregator = ToolCallAggregator()
    aggregator.ingest_delta({"content": TEXT})
    begun = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "find", "arguments": ""}}]}
    assert not aggregator.ingest_delta(begun).updated
    ended = aggregator.ingest_delta({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert ended.deltas == (CallDelta(1, "c1", "find"),)
    assert [call.arguments for call in aggregator.snapshot()] == ['{"q":"x"}', "{}"]


def test_a_whole_call_without_its_closing_tag_counts_when_the_turn_ends():
    aggregator = ToolCallAggregator()
    finish = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    assert not aggregator.ingest_delta({"content": '<tool_call>{"name":"find","arguments":{"q":"x"}'}).updated
    assert not aggregator.ingest_delta(finish).updated  # some servers end every chunk
    assert not aggregator.ingest_delta({"content": "}"}).updated
    assert aggregator.ingest_delta(finish).updated
    assert seen(aggregator) == FOUND


def test_a_pattern_of_ones_own_replaces_the_reading_of_deltas():
    aggregator = ToolCallAggregator()
    aggregator.register_text_pattern("text", lambda text: [])
    assert not aggregator.ingest_delta({"content": TEXT}).updated


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
