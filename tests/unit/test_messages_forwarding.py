"""A Messages client and a Messages server: what we do not know survives, and what leaves is lawful all the same."""

import json
from typing import Any

import pytest

from tests.support.backend_writers import frame
from tests.unit.test_batches import RULES, Way, ask, carried_ways
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends.messages import Conversation
from toolwire.core.collect import collect
from toolwire.core.events import RawFrame
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.dialects import messages

Json = dict[str, Any]

TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]


# What a server sends


def event(type: str, **fields: Any) -> bytes:
    return frame(type, {"type": type, **fields})


def begun(usage: Json | None = None, **fields: Any) -> bytes:
    message: Json = {"id": "msg_up", "type": "message", "role": "assistant", "model": "m-2026", "content": []}
    return event(
        "message_start", message={**message, "usage": usage or {"input_tokens": 3, "output_tokens": 1}, **fields}
    )


def ended(reason: str = "end_turn", usage: Json | None = None, **delta: Any) -> bytes:
    said = {"stop_reason": reason, "stop_sequence": None, **delta}
    return event("message_delta", delta=said, usage=usage or {"output_tokens": 5}) + event("message_stop")


def block(index: int, start: Json, *deltas: Json) -> bytes:
    grown = (event("content_block_delta", index=index, delta=each) for each in deltas)
    opened = event("content_block_start", index=index, content_block=start)
    return b"".join((opened, *grown, event("content_block_stop", index=index)))


def says(words: str) -> Json:
    return {"type": "text_delta", "text": words}


def thinks(words: str) -> Json:
    return {"type": "thinking_delta", "thinking": words}


def fills(words: str) -> Json:
    return {"type": "input_json_delta", "partial_json": words}


def signs(words: str) -> Json:
    return {"type": "signature_delta", "signature": words}


def cites(number: int) -> Json:
    return {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x", "n": number}}


TEXT: Json = {"type": "text", "text": ""}
THOUGHT: Json = {"type": "thinking", "thinking": "", "signature": ""}
SEARCH: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Json = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result", "encrypted_content": "E"}]}  # fmt: skip


def uses(name: str, **more: Any) -> Json:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": {}, **more}


def text(index: int, *words: str, **more: Any) -> bytes:
    return block(index, {**TEXT, **more}, *map(says, words))


def call(index: int, name: str, *pieces: str, **more: Any) -> bytes:
    return block(index, uses(name, **more), *map(fills, pieces))


# What a client gets


class Stream:
    """A Messages stream in a client's hand. Its order is checked: one block at a time, counted as they open."""

    def __init__(self, data: bytes) -> None:
        lines = data.decode().split("\n")
        self.events: list[Json] = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert [line[7:] for line in lines if line.startswith("event: ")] == [each["type"] for each in self.events]
        assert all(not line or line.startswith(("event: ", "data: ", ": ")) for line in lines)
        self.types = [each["type"] for each in self.events]
        assert self.types[0] == "message_start"
        assert self.types[-2:] == ["message_delta", "message_stop"]
        self.message = self._folded()

    def of(self, type: str) -> list[Json]:
        return [each for each in self.events if each["type"] == type]

    @property
    def blocks(self) -> list[Json]:
        return self.message["content"]

    @property
    def deltas(self) -> list[tuple[int, Json]]:
        return [(each["index"], each["delta"]) for each in self.of("content_block_delta")]

    def _folded(self) -> Json:
        message: Json = {**self.events[0]["message"], "content": []}
        open: Json | None = None
        for each in self.events[1:-1]:
            match each["type"]:
                case "content_block_start":
                    assert open is None
                    assert each["index"] == len(message["content"])
                    open = {**each["content_block"]}
                    message["content"].append(open)
                case "content_block_delta":
                    assert open is not None
                    assert each["index"] == len(message["content"]) - 1
                    _grow(open, each["delta"])
                case "content_block_stop":
                    assert open is not None
                    if isinstance(open.get("input"), str):
                        open["input"] = json.loads(open["input"])
                    open = None
                case "message_delta":
                    assert open is None
                    message |= each["delta"]
                    message["usage"] = {**message["usage"], **each["usage"]}
                case other:
                    assert other == "ping"
        return message


def _grow(block: Json, delta: Json) -> None:
    match delta["type"]:
        case "text_delta" | "thinking_delta":
            field = delta["type"].removesuffix("_delta")
            block[field] += delta[field]
        case "input_json_delta":
            known = block["input"] if isinstance(block["input"], str) else ""
            block["input"] = known + delta["partial_json"] or "{}"
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        case _:
            block["grown"] = [*block.get("grown", []), delta]


def through(*parts: bytes, request: Request | None = None, rules: ToolRules = RULES) -> Stream:
    """The client's stream, which adds up to the same in runs and one by one, at any chunking."""
    request = request or ask("messages", tools=TOOLS)
    data = b"".join(parts)
    first, *others = map(Stream, carried_ways(data, request, "messages", "messages", rules))
    for other in others:
        assert other.message == first.message
    return first


def collected(*parts: bytes) -> Json:
    """The plain answer that is made of a stream."""
    request = ask("messages", tools=TOOLS)
    way = Way(request, "messages", "messages", RULES, merged=True)
    way.run([b"".join(parts)])
    return json.loads(messages.encode_turn(collect(way.events), request, "id_7", 7))


def plain(content: list[Json], rules: ToolRules = RULES, **fields: Any) -> Json:
    """The plain answer to a plain answer."""
    request = ask("messages", tools=TOOLS, stream=False)
    conversation = Conversation(request, "S")
    conversation.start()
    assembly = assemble_policies(request, rules, "S", conversation.stand_in)
    message: Json = {
        "id": "msg_up", "type": "message", "role": "assistant", "model": "m-2026", "content": content,
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 5}, **fields,
    }  # fmt: skip
    events = conversation.feed_plain(json.dumps(message).encode())
    passed = [out for event in events for out in assembly.policies.feed(event)]
    return json.loads(messages.encode_turn(collect(passed), request, "id_7", 7))


HELLO = text(0, "Hel", "lo, ", "wor", "ld")
KNOWN_USAGE = {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 5}


# The message


def test_a_message_is_under_our_name_and_keeps_the_rest():
    told = through(begun(container={"id": "c_1"}, x_message=[1]), HELLO, ended())
    assert (told.message["id"], told.message["model"], told.message["role"]) == ("id_7", "m", "assistant")
    assert (told.message["container"], told.message["x_message"]) == ({"id": "c_1"}, [1])


def test_what_the_end_says_beyond_our_words_survives():
    told = through(begun(), HELLO, ended(container={"id": "c_1"}, x_delta={"a": None}))
    [last] = told.of("message_delta")
    assert (last["delta"]["container"], last["delta"]["x_delta"]) == ({"id": "c_1"}, {"a": None})


def test_what_stands_beside_the_delta_of_the_end_survives():
    """Anthropic tells there which edits of the context it made."""
    managed = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_input_tokens": 9}]}
    last = event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 5}, context_management=managed)  # fmt: skip
    told = through(begun(), HELLO, last, event("message_stop"))
    assert told.of("message_delta")[0].get("context_management") == managed


@pytest.mark.parametrize("type", ["message_start", "content_block_start", "content_block_stop", "message_stop"])
def test_what_stands_beside_what_we_know_survives(type: str):
    data = b"".join((begun(), HELLO, ended())).replace(
        b'"type":"%b"' % type.encode(), b'"type":"%b","x_event":1' % type.encode()
    )
    assert all(each.get("x_event") == 1 for each in through(data).of(type))


def test_usage_keeps_what_we_do_not_count():
    first = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation": {"ephemeral_5m_input_tokens": 0}, "service_tier": "standard", "output_tokens": 1}  # fmt: skip
    last = {"output_tokens": 9, "server_tool_use": {"web_search_requests": 1}, "x_count": 7}
    told = through(begun(first), HELLO, ended(usage=last))
    assert told.of("message_start")[0]["message"]["usage"].items() >= first.items()
    assert told.message["usage"].items() >= {**first, **last}.items()


def test_counts_that_a_server_leaves_out_are_there():
    told = through(begun({"input_tokens": 3}), HELLO, ended(usage={"output_tokens": 5}))
    assert {name: value for name, value in told.message["usage"].items() if value is not None} == KNOWN_USAGE


def test_what_a_server_knows_of_its_message_is_not_made_null():
    known = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
    details = {"type": "refusal", "category": None, "explanation": None}
    told = through(begun({"input_tokens": 3, "service_tier": "standard"}, container=known), HELLO, ended("refusal", stop_details=details))  # fmt: skip
    assert (told.message["container"], told.message["stop_details"]) == (known, details)
    assert told.message["usage"]["service_tier"] == "standard"
    answer = plain([{"type": "text", "text": "Hello"}], container=known, stop_details=details)
    assert (answer["container"], answer["stop_details"]) == (known, details)


# Why it ended


WORDS = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "model_context_window_exceeded",
    "refusal": "refusal",
    "compaction": "compaction",
    "x_word": "x_word",
    "tool_use": "end_turn",  # no tool is used
}


@pytest.mark.parametrize(("given", "kept"), WORDS.items())
def test_the_server_s_own_word_for_the_end_survives(given: str, kept: str):
    assert through(begun(), HELLO, ended(given)).message["stop_reason"] == kept
    assert plain([{"type": "text", "text": "Hello"}], stop_reason=given)["stop_reason"] == kept


def test_a_stop_sequence_survives_with_its_words():
    told = through(begun(), HELLO, ended("stop_sequence", stop_sequence="END"))
    assert (told.message["stop_reason"], told.message["stop_sequence"]) == ("stop_sequence", "END")
    answer = plain([{"type": "text", "text": "Hello"}], stop_reason="stop_sequence", stop_sequence="END")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


def test_a_refusal_survives_with_its_details():
    details = {"type": "refusal", "category": "cyber", "explanation": None}
    told = through(begun(), HELLO, ended("refusal", stop_details=details))
    assert (told.message["stop_reason"], told.message["stop_details"]) == ("refusal", details)
    answer = plain([], stop_reason="refusal", stop_details=details)
    assert (answer["stop_reason"], answer["stop_details"]) == ("refusal", details)


def test_the_last_word_for_the_end_counts_even_if_counts_follow():
    more = event("message_delta", delta={}, usage={"output_tokens": 9})
    ending = event(
        "message_delta", delta={"stop_reason": "stop_sequence", "stop_sequence": "END"}, usage={"output_tokens": 5}
    )
    told = through(begun(), HELLO, ending, more, event("message_stop"))
    assert told.message["usage"]["output_tokens"] == 9
    assert len(told.of("message_delta")) == 1


def test_a_second_delta_of_the_message_takes_nothing_back():
    ending = event(
        "message_delta", delta={"stop_reason": "stop_sequence", "stop_sequence": "END"}, usage={"output_tokens": 5}
    )
    told = through(
        begun(), HELLO, ending, event("message_delta", delta={}, usage={"output_tokens": 9}), event("message_stop")
    )
    assert (told.message["stop_reason"], told.message["stop_sequence"]) == ("stop_sequence", "END")


IN_TEXT = text(0, '<tool_call>{"name":"f",', '"arguments":{}}', "</tool_call>")


def test_a_call_that_a_policy_found_changes_the_end():
    assert through(begun(), IN_TEXT, ended()).message["stop_reason"] == "tool_use"


def test_an_end_that_a_policy_changed_has_no_stop_sequence():
    told = through(begun(), IN_TEXT, ended("stop_sequence", stop_sequence="END"))
    assert (told.message["stop_reason"], told.message["stop_sequence"]) == ("tool_use", None)


# Blocks


CONTENTS: dict[str, tuple[bytes, list[Json]]] = {
    "text": (HELLO, [{"type": "text", "text": "Hello, world"}]),
    "two texts": (text(0, "Hel", "lo") + text(1, "wor", "ld"), [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]),
    "a text with a field": (text(0, "Hel", "lo", x_block=1), [{"type": "text", "text": "Hello", "x_block": 1}]),
    "a call": (call(0, "f", "", '{"x"', ":", "1}"), [uses("f") | {"input": {"x": 1}}]),
    "a call with a field": (call(0, "f", '{"x"', ":", "1}", caller={"type": "direct"}), [uses("f", caller={"type": "direct"}) | {"input": {"x": 1}}]),
    "a call without input": (call(0, "f"), [uses("f")]),
    "calls and text": (text(0, "So", ".") + call(1, "f", "{", "}") + call(2, "g", "{", "}") + text(3, "E", "nd"), [{"type": "text", "text": "So."}, uses("f"), uses("g"), {"type": "text", "text": "End"}]),
    "a thought": (block(0, THOUGHT, thinks("Hm"), thinks(", "), thinks("so"), signs("SEAL")) + text(1, "So", "."), [{**THOUGHT, "thinking": "Hm, so", "signature": "SEAL"}, {"type": "text", "text": "So."}]),
    "two thoughts": (block(0, THOUGHT, thinks("One"), signs("S1")) + block(1, THOUGHT, thinks("Two"), signs("S2")), [{**THOUGHT, "thinking": "One", "signature": "S1"}, {**THOUGHT, "thinking": "Two", "signature": "S2"}]),
    "a hidden thought": (block(0, {"type": "redacted_thinking", "data": "E"}) + text(1, "So", "."), [{"type": "redacted_thinking", "data": "E"}, {"type": "text", "text": "So."}]),
    "a search": (text(0, "Wait", ".") + block(1, SEARCH, fills("{"), fills('"query":'), fills('"x"}')) + block(2, FOUND) + text(3, "So", "."), [{"type": "text", "text": "Wait."}, {**SEARCH, "input": {"query": "x"}}, FOUND, {"type": "text", "text": "So."}]),
    "a search and a call": (block(0, SEARCH, fills("{}")) + block(1, FOUND) + call(2, "f", "{", "}"), [SEARCH, FOUND, uses("f")]),
    "a search inside a pause": (block(0, SEARCH, fills("{}")), [SEARCH]),
    "citations": (block(0, {**TEXT, "citations": []}, says("So"), cites(1), says("."), cites(2)), [{"type": "text", "text": "So.", "citations": [cites(1)["citation"], cites(2)["citation"]]}]),
    "citations first": (block(0, {**TEXT, "citations": []}, cites(1), says("So"), says(".")), [{"type": "text", "text": "So.", "citations": [cites(1)["citation"]]}]),
    "an unknown delta in a text": (block(0, TEXT, says("So"), {"type": "x_delta", "x": 1}, says(".")), [{"type": "text", "text": "So.", "grown": [{"type": "x_delta", "x": 1}]}]),
    "an unknown block": (block(0, {"type": "x_block", "a": [1]}, {"type": "x_delta", "x": 1}, {"type": "x_delta", "x": 2}) + text(1, "So", "."), [{"type": "x_block", "a": [1], "grown": [{"type": "x_delta", "x": 1}, {"type": "x_delta", "x": 2}]}, {"type": "text", "text": "So."}]),
}  # fmt: skip


@pytest.mark.parametrize(("data", "blocks"), CONTENTS.values(), ids=[name.replace(" ", "-") for name in CONTENTS])
def test_blocks_come_through_in_their_order(data: bytes, blocks: list[Json]):
    assert through(begun(), data, ended()).blocks == blocks


@pytest.mark.parametrize(("data", "blocks"), CONTENTS.values(), ids=[name.replace(" ", "-") for name in CONTENTS])
def test_indexes_are_dense_whatever_the_server_counts(data: bytes, blocks: list[Json]):
    counted = data
    for index in range(8, -1, -1):
        counted = counted.replace(b'"index":%d,' % index, b'"index":%d,' % (3 * index + 2))
        counted = counted.replace(b'"index":%d}' % index, b'"index":%d}' % (3 * index + 2))
    assert through(begun(), counted, ended()).blocks == blocks


@pytest.mark.parametrize(
    "blocks", [blocks for _, blocks in CONTENTS.values()], ids=[name.replace(" ", "-") for name in CONTENTS]
)
def test_a_plain_answer_keeps_its_blocks_as_they_are(blocks: list[Json]):
    assert plain(blocks)["content"] == blocks


@pytest.mark.parametrize("name", ["text", "a call", "calls and text", "a thought", "a hidden thought"])
def test_what_a_stream_adds_up_to_is_the_plain_answer(name: str):
    data, blocks = CONTENTS[name]
    told = through(begun(), data, ended()).message
    assert told == plain(blocks) == collected(begun(), data, ended())


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_a_thought_that_is_not_shown_stays_a_thought(streamed: bool):
    """`thinking.display: omitted`: all there is of the thought is its signature."""
    thought = {**THOUGHT, "signature": "SEAL"}
    data = block(0, THOUGHT, signs("SEAL")) + text(1, "So", ".")
    content = through(begun(), data, ended()).blocks if streamed else plain([thought])["content"]
    assert content[0] == thought


@pytest.mark.parametrize(
    "delta", [says("a"), {"type": "x_delta", "text": "a"}, thinks("a")], ids=["text", "x", "thinking"]
)
def test_known_deltas_stay_in_unknown_blocks(delta: Json):
    told = through(
        begun(), block(0, {"type": "x_block", "text": "", "thinking": ""}, delta), text(1, "So", "."), ended()
    )
    assert [each["type"] for each in told.blocks] == ["x_block", "text"]


def test_a_block_that_is_whole_when_it_starts_is_whole():
    started = [
        {"type": "text", "text": "Hello", "x": 1},
        uses("f") | {"input": {"x": 1}},
        {**THOUGHT, "thinking": "Hm", "signature": "S"},
    ]
    for each in started:
        assert through(begun(), block(0, each), ended()).blocks == [each]


def test_text_at_the_start_of_a_block_is_in_one_block_with_what_follows():
    parts = (begun(), block(0, {**TEXT, "text": "Hel"}, says("lo")), ended())
    assert collected(*parts)["content"] == through(*parts).blocks == [{**TEXT, "text": "Hello"}]


def test_text_goes_out_in_the_pieces_and_events_it_came_in():
    deltas = [{**says(each), "x_delta": number} for number, each in enumerate(("Hel", "lo"))]
    told = through(begun(), block(0, TEXT, *deltas), ended())
    assert told.deltas == [(0, each) for each in deltas]


@pytest.mark.parametrize("words", [("1 <", " 2"), ("1 ", "<"), ("a <too", "l")])
def test_text_that_may_be_a_tag_stays_in_its_block(words: tuple[str, ...]):
    told = through(begun(), text(0, *words, "<"), call(1, "f", "{}", x=1), ended())
    assert told.blocks == [{"type": "text", "text": "".join(words) + "<"}, uses("f", x=1)]


def test_pings_of_the_server_stay_there():
    told = through(begun(), event("ping"), text(0, "Hel", "lo"), event("ping"), ended())
    assert "ping" not in told.types


# Servers that leave something out


def opened(index: int, start: Json, *deltas: Json) -> bytes:
    """A block that is never stopped."""
    return block(index, start, *deltas).removesuffix(event("content_block_stop", index=index))


def test_blocks_that_are_never_stopped_are_stopped():
    parts = (
        opened(0, THOUGHT, thinks("Hm"), signs("S")),
        opened(1, TEXT, says("So")),
        opened(2, uses("f"), fills("{}")),
        opened(3, uses("g"), fills("{}")),
    )
    told = through(begun(), *parts, ended("tool_use"))
    assert told.blocks == [
        {**THOUGHT, "thinking": "Hm", "signature": "S"},
        {"type": "text", "text": "So"},
        uses("f"),
        uses("g"),
    ]


@pytest.mark.parametrize(
    "before", [opened(0, uses("f"), fills("{}")), opened(0, THOUGHT, thinks("Hm"), signs("S"))], ids=["call", "thought"]
)
def test_an_unknown_block_behind_one_that_is_never_stopped_is_whole(before: bytes):
    told = through(begun(), before, block(1, SEARCH, fills('{"query":'), fills('"x"}')), ended())
    assert told.blocks[1:] == [{**SEARCH, "input": {"query": "x"}}]


def test_an_unknown_block_behind_a_call_without_input_is_whole():
    told = through(
        begun(), call(0, "f"), block(1, SEARCH, fills('{"query":'), fills('"x"}')), block(2, FOUND), ended("tool_use")
    )
    assert told.blocks == [uses("f"), {**SEARCH, "input": {"query": "x"}}, FOUND]


def test_a_stream_without_a_beginning_has_one():
    assert through(HELLO, ended()).blocks == [{"type": "text", "text": "Hello, world"}]


def test_events_known_by_name_alone_are_told():
    data = b"".join((begun(), block(0, SEARCH), text(1, "So", "."), ended())).replace(
        b'{"type":"content_block_start",', b"{"
    )
    assert [each["type"] for each in through(data).blocks] == ["server_tool_use", "text"]


def test_data_over_several_lines_leaves_on_one():
    data = b"".join((begun(), HELLO, ended())).replace(b',"delta"', b',\ndata: "delta"')
    assert through(data).blocks == [{"type": "text", "text": "Hello, world"}]


@pytest.mark.parametrize("separators", [(", ", ": "), (" , ", " : ")])
def test_white_space_between_fields_means_nothing(separators: tuple[str, str]):
    data = b"".join((begun(), *(data for data, _ in (CONTENTS["a search"],)), ended()))
    loose = [
        line if not line.startswith(b"data: ") else b"data: " + json.dumps(json.loads(line[6:]), separators=separators).encode()
        for line in data.split(b"\n")
    ]  # fmt: skip
    assert through(b"\n".join(loose)).message == through(data).message


# Rules


BOTH = (
    text(0, "So", ".") + call(1, "f", '{"x"', ":", "1}", x=1) + call(2, "g", "{", "}", x=2) + text(3, "ta", "il", x=3)
)
SO: Json = {"type": "text", "text": "So."}
FIRST = uses("f", x=1) | {"input": {"x": 1}}
RULED: dict[str, tuple[ToolRules, list[Json]]] = {
    "none": (ToolRules(), [SO, FIRST, uses("g", x=2), {"type": "text", "text": "tail", "x": 3}]),
    "one call at most": (ToolRules(max_calls=1), [SO, FIRST, {"type": "text", "text": "tail", "x": 3}]),
    "no text after calls": (ToolRules(suppress_tail=True), [SO, FIRST, uses("g", x=2)]),
    "one call and no more": (ToolRules(stop_after=True, stop_after_mode="first"), [SO, FIRST]),
    "no equal calls": (ToolRules(dedup=True), [SO, FIRST, uses("g", x=2), {"type": "text", "text": "tail", "x": 3}]),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "blocks"), RULED.values(), ids=[name.replace(" ", "-") for name in RULED])
def test_rules_hold_for_events_that_are_forwarded(rules: ToolRules, blocks: list[Json]):
    told = through(begun(), BOTH, ended("tool_use"), rules=rules)
    assert told.blocks == blocks
    assert told.message["stop_reason"] == "tool_use"


@pytest.mark.parametrize(("rules", "blocks"), RULED.values(), ids=[name.replace(" ", "-") for name in RULED])
def test_rules_hold_for_a_plain_answer_too(rules: ToolRules, blocks: list[Json]):
    answer = plain(RULED["none"][1], rules, stop_reason="tool_use")
    assert (answer["content"], answer["stop_reason"]) == (blocks, "tool_use")


def test_calls_are_in_the_text_too_where_that_is_asked_for():
    told = through(begun(), BOTH, ended("tool_use"), rules=ToolRules(output_mode="obsidian-xml"))
    words = "".join(each["text"] for each in told.blocks if each["type"] == "text")
    assert words.count("<use_tool>") == 2
    assert [each["name"] for each in told.blocks if each["type"] == "tool_use"] == ["f", "g"]


@pytest.mark.parametrize("delta", [cites(1), says("")], ids=["citations", "nothing"])
def test_citations_of_a_text_that_is_withheld_are_withheld(delta: Json):
    tail = block(1, {**TEXT, "citations": []}, says("tail"), delta)
    told = through(begun(), call(0, "f", "{}"), tail, ended("tool_use"), rules=ToolRules(suppress_tail=True))
    assert told.blocks == [uses("f")]


def test_letters_arrive_as_they_are():
    words = ["é", "😀", '"', "\\", "\n", "\t", "\u2028", "</x>", "@toolwire@", '"@toolwire@"']
    told = through(begun(), text(0, *words), ended(), request=ask("messages"))
    assert [delta["text"] for _, delta in told.deltas] == words


@pytest.mark.parametrize(
    ("block", "answers"),
    [
        ({"type": "tool_result", "tool_use_id": "y"}, "y"),
        ({"type": "tool_result"}, ""),
        ({"type": "tool_result", "tool_use_id": 5}, None),
        (FOUND, None),
        (TEXT, None),
    ],
)
def test_a_block_names_the_call_that_it_answers(block: Json, answers: str | None):
    data = json.dumps({"type": "content_block_start", "index": 0, "content_block": block}).encode()
    body = json.dumps({"type": "message", "content": [block], "stop_reason": "end_turn"}).encode()
    streamed, whole = Conversation(ask("messages"), "S"), Conversation(ask("messages"), "S")
    for events in (streamed.feed(Frame(b"", data)), whole.feed_plain(body)):
        assert [event.answers for event in events if isinstance(event, RawFrame) and event.item] == [answers]
