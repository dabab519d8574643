"""Calls in text: reading, writing, and what survives."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks import in_any_chunking
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.core.collect import collect
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    CallTwin,
    Note,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, Tool
from toolwire.notations.read import MAX_FALSE_BLOCKS, MAX_HELD_SPACE, ReadTextCalls, extract_calls
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL, survives, write_use_tool
from toolwire.notations.values import Schemas, write_value


def schema(**properties) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"type": "object", "properties": properties}).encode())


TOOLS = (
    Tool("find", parameters=schema(q={"type": "string"}, n={"type": "integer"}, tags={"type": "array"}, deep={"type": "boolean"},
                                   any={}, either={"anyOf": [{"type": "string"}, {"type": "null"}]})),
    Tool("now"),
)  # fmt: skip
NOTATIONS = (USE_TOOL, TOOL_CALL)


def reading(text: str, *, live: bool = False, names=("find", "now")):
    """The turn a text makes, the same in any chunking."""

    def run(pieces: list[str]):
        reader = ReadTextCalls(NOTATIONS, "S", Schemas(TOOLS), names, mode="live" if live else "whole")
        events = [out for piece in pieces for out in reader.feed(TextDelta(piece))]
        return collect([TurnStarted(), *events, *reader.feed(TurnEnded())])

    turn = in_any_chunking(text, run)
    return (
        turn.text,
        [(call.name, call.arguments, call.complete) for call in turn.calls],
        [note.code for note in turn.notes],
    )


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ('a <tool_call>{"name":"find","arguments":{"q":"x"}}</tool_call> b', "a  b", [("find", '{"q":"x"}')]),
        ('<tool_call>{"arguments":{"q":1},"name":"find"}</tool_call>', "", [("find", '{"q":1}')]),
        ('<tool_call>{"name":"find","arguments":"{\\"q\\":1}"}</tool_call>', "", [("find", '{"q":1}')]),
        ('<tool_call>\n{"name": "now"}\n</tool_call>', "", [("now", "{}")]),
        ('<tool_call>{"name":"now","arguments":null}</tool_call>', "", [("now", "{}")]),
        ('<tool_call>{"id":[{}],"name":"now","x":"}"}</tool_call>', "", [("now", "{}")]),
        ("<tool_call>now</tool_call>", "", [("now", "{}")]),
        (
            "<tool_call><function=find><parameter=q>\na\n\n</parameter>\n<parameter=n>3</parameter></function></tool_call>",
            "",
            [("find", '{"q":"a\\n","n":3}')],
        ),
        ("<use_tool><name>now</name></use_tool>", "", [("now", "{}")]),
        ("<use_tool>\n<name> find </name>\n<q> a <b> & &lt; c </q>\n</use_tool>", "", [("find", '{"q":"a <b> & &lt; c"}')]),
        ("<use_tool><q>x</q><name>find</name></use_tool>", "", [("find", '{"q":"x"}')]),
        ("<use_tool><name>find</name><name>x</name></use_tool>", "", [("find", '{"name":"x"}')]),
        (
            '<use_tool><name>find</name><n>3</n><tags>["a"]</tags><deep>True</deep><q>4</q><either>null</either></use_tool>',
            "",
            [("find", '{"n":3,"tags":["a"],"deep":true,"q":"4","either":"null"}')],
        ),
        ('<use_tool><name>find</name><any>{"a":1}</any><n>x</n></use_tool>', "", [("find", '{"any":{"a":1},"n":"x"}')]),
        ("<use_tool><name>now</name></use_tool>\n<use_tool><name>now</name></use_tool>", "", [("now", "{}"), ("now", "{}")]),
    ],
)  # fmt: skip
def test_a_block_is_a_call(live, text, said, calls):
    assert reading(text, live=live)[:2] == (said, [(*call, True) for call in calls])


BODIES = {
    "json": '{"name": "find", "arguments": {"q": "x"}}',
    "json in a string": '{"arguments": "{\\"q\\": \\"x\\"}", "name": "find"}',
    "named tags": "<name>find</name><q>x</q>",
    "named tags, the name last": "\n<q> x </q>\n<name> find </name>\n",
    "function tags": "<function=find>\n<parameter=q>\nx\n</parameter>\n</function>",
    "pairs": "find\n<arg_key>q</arg_key>\n<arg_value>x</arg_value>\n",
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("tag", ["use_tool", "tool_call"])
@pytest.mark.parametrize("body", BODIES)
def test_every_body_is_read_under_either_tag(body, tag, live):
    said, calls, notes = reading(f"a <{tag}>{BODIES[body]}</{tag}> b", live=live)
    assert (said, [(name, json.loads(arguments), whole) for name, arguments, whole in calls], notes) == (
        "a  b",
        [("find", {"q": "x"}, True)],
        [],
    )
    assert reading(f"<{tag}>now</{tag}>", live=live)[1] == [("now", "{}", True)]


@pytest.mark.parametrize("tag", ["use_tool", "tool_call"])
@pytest.mark.parametrize("body", ["<function=find><q>x</q></function>", "find<q>x</q>"])
def test_tags_of_two_kinds_are_no_call(body, tag):
    words = f"<{tag}>{body}</{tag}>"
    assert reading(words)[:2] == (words, [])


@pytest.mark.parametrize(
    "text",
    [
        "plain < text > with <use_tools> and <tool_calls> and </use_tool>",
        "`<use_tool><name>now</name></use_tool>` inline",
        "```xml\n<use_tool><name>now</name></use_tool>\n```",
        "~~~\n<tool_call>now</tool_call>\n~~~ still\n~~~\n",
        "``a ` <tool_call>now</tool_call>``",
        "1. Like this:\n   ```\n   <tool_call>now</tool_call>\n   ```\n",
        "> ```\n> <tool_call>now</tool_call>\n> ```\n",
        "<USE_TOOL><name>now</name></USE_TOOL>",
        '<use_tool name="now"></use_tool>',
        "ends with <use_to",
        "<tool_call>other</tool_call>",
        "<use_tool>no name</use_tool>",
        "<use_tool><name></name></use_tool>",
        "<use_tool><name>now</name> stray </use_tool>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name" "now"}</tool_call>',
        '<tool_call>{"name":"now","arguments":{"x":NaN}}</tool_call>',
        '<tool_call>{"name":"now","arguments":{}} and more</tool_call>',
        '<tool_call>{"name":"now","arguments":{"a":',
        "<use_tool><name>now</name>",
        "<use_tool><name>find</name><q>abc</use_tool>",
        "<tool_call>" * (MAX_FALSE_BLOCKS + 5),
    ],
)
def test_what_is_no_call_stays_text_letter_by_letter(text):
    said, calls, _ = reading(text)
    assert (said, calls) == (text, [])


def test_a_stray_backtick_hides_nothing_after_its_line():
    assert reading("a ` b\n<tool_call>now</tool_call>")[1] == [("now", "{}", True)]


def test_a_span_that_opens_a_line_is_no_fence():
    assert reading("```foo``` is code\n<tool_call>now</tool_call>")[1] == [("now", "{}", True)]


def test_code_ends_where_its_fence_does():
    assert reading("```\n<tool_call>now</tool_call>\n```\n<tool_call>now</tool_call>")[1] == [("now", "{}", True)]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("end", ["", "</tool_cal"])
def test_a_whole_call_without_its_closing_tag_is_recovered(live, end):
    _, calls, notes = reading('<tool_call>{"name":"find","arguments":{"q":1}}' + end, live=live)
    assert (calls, notes) == ([("find", '{"q":1}', True)], ["text_call_recovered"])


def test_a_call_told_live_that_breaks_off_is_incomplete():
    assert reading('<tool_call>{"name":"find","arguments":{"q":', live=True)[1] == [("find", '{"q":', False)]
    assert reading("<use_tool><name>find</name><q>abc</use_tool> on", live=True) == (
        " on",
        [("find", '{"q":"abc', False)],
        [],
    )


def test_a_live_value_flows_before_it_is_whole():
    reader = ReadTextCalls(NOTATIONS, "S", Schemas(TOOLS), ("find",), mode="live")
    told = [len(reader.feed(TextDelta(piece))) for piece in ("<use_tool><name>find</name><q>aaa", "bbb", "ccc</")]
    assert told == [2, 1, 1]


def test_line_ends_inside_json_strings_are_repaired_and_noted():
    _, calls, notes = reading('<tool_call>{"name":"find","arguments":{"q":"a\nb\t"}}</tool_call>')
    assert json.loads(calls[0][1]) == {"q": "a\nb\t"}
    assert notes == ["text_call_repaired"]


def test_an_extra_bracket_before_the_closing_tag_is_repaired():
    _, calls, notes = reading('<tool_call>{"name":"find","arguments":{"q":1}}}</tool_call>')
    assert (calls, notes) == ([("find", '{"q":1}', True)], ["text_call_repaired"])


def test_strict_parsing_turns_a_broken_block_into_a_failure():
    rules = ToolRules(strict_parsing=True)
    policies = assemble_policies(Request("m", (), tools=TOOLS), rules, "S", tuple).policies
    events = [*policies.feed(TextDelta("<use_tool>oops</use_tool>")), *policies.feed(TurnEnded())]
    assert isinstance(events[0], TurnFailed)


def test_without_declared_tools_every_name_counts():
    assert reading("<use_tool><name>anything</name></use_tool>", names=None)[1] == [("anything", "{}", True)]


def test_a_structured_call_settles_an_open_block():
    reader = ReadTextCalls(NOTATIONS, "S", Schemas(TOOLS), ("find",))
    started = CallStarted("c", "find")
    assert list(reader.feed(TextDelta("<use_tool><na"))) == []
    assert [event for event in reader.feed(started) if not isinstance(event, TextDelta)][-1] == started


BLOCK = "<use_tool><name>find</name><q>x</q></use_tool>"


def structured(id: str, arguments: str, name: str = "find", signature: str = ""):
    half = len(arguments) // 2
    pieces = [CallArgs(id, piece) for piece in (arguments[:half], arguments[half:]) if piece]
    return CallStarted(id, name, signature=signature), *pieces, CallEnded(id)


def through(*events):
    """What a turn's events become, with a lawful order."""
    reader = ReadTextCalls(NOTATIONS, "S", Schemas(TOOLS), ("find", "now"))
    order = TurnOrder()
    out = [TurnStarted(), *(passed for event in (*events, TurnEnded()) for passed in reader.feed(event))]
    for event in out:
        order.check((event,))
    order.end()
    return out


def ids(events) -> list[str]:
    return [event.id for event in events if isinstance(event, CallStarted)]


def codes(events) -> list[str]:
    return [event.code for event in events if isinstance(event, Note)]


def test_a_textual_call_is_delivered_in_its_place():
    out = through(TextDelta("a " + BLOCK + " b"), *structured("c", '{"q":"y"}'), TextDelta("d"))
    kinds = [type(event).__name__ for event in out if not isinstance(event, CallArgs)]
    assert kinds == [
        "TurnStarted", "TextDelta", "CallStarted", "CallEnded", "TextDelta", "CallStarted", "CallEnded", "TextDelta", "TurnEnded",
    ]  # fmt: skip
    assert ids(out) == ["call_St01", "c"]


def test_a_structured_call_that_follows_its_text_is_dropped_one_for_one():
    out = through(TextDelta(BLOCK), *structured("c1", '{ "q": "x" }', signature="s"), *structured("c2", '{"q":"x"}'))
    assert ids(out) == ["call_St01", "c2"]
    assert codes(out) == ["text_call_twin"]
    assert [event for event in out if isinstance(event, CallTwin)] == [CallTwin("call_St01", "c1", "s")]


def test_a_textual_call_that_follows_its_structure_is_dropped_one_for_one():
    out = through(*structured("c1", '{ "q": "x" }'), TextDelta(BLOCK + "\n" + BLOCK))
    assert ids(out) == ["c1", "call_St01"]
    assert codes(out) == ["text_call_twin"]
    assert not any(isinstance(event, CallTwin | TextDelta) for event in out)


def test_calls_of_one_source_are_never_twins():
    assert ids(through(TextDelta(BLOCK + BLOCK))) == ["call_St01", "call_St02"]
    assert ids(through(*structured("a", "{}", "now"), *structured("b", "{}", "now"))) == ["a", "b"]


def test_each_of_two_texts_has_its_own_twin():
    twice = (*structured("a", '{"q":"x"}'), *structured("b", '{"q":"x"}'))
    out = through(TextDelta(BLOCK + BLOCK), *twice)
    assert [(event.id, event.twin) for event in out if isinstance(event, CallTwin)] == [
        ("call_St01", "a"),
        ("call_St02", "b"),
    ]


@pytest.mark.parametrize("arguments", ['{"q":"y"}', '{"q":"x","n":1}', "{}", "oops", ""])
def test_a_structured_call_that_says_something_else_goes_out_as_it_came(arguments):
    call = structured("c", arguments)
    assert tuple(through(TextDelta(BLOCK), *call)[-1 - len(call) : -1]) == call


def test_a_structured_call_flows_unless_a_text_of_its_name_has_no_twin():
    reader = ReadTextCalls(NOTATIONS, "S", Schemas(TOOLS), ("find", "now"))
    reader.feed(TextDelta(BLOCK))
    for event in structured("c", "{}", "now"):
        assert list(reader.feed(event)) == [event]
    held = structured("d", '{"q":"y"}')
    assert [list(reader.feed(event)) for event in held[:-1]] == [[]] * len(held[:-1])
    assert tuple(reader.feed(held[-1])) == held


def test_a_held_call_that_breaks_off_goes_out_incomplete():
    started, piece, *_ = structured("c", '{"q":"x"}')
    out = through(TextDelta(BLOCK), started, piece)
    assert out[-4:] == [started, piece, CallEnded("c", complete=False), TurnEnded()]


@pytest.mark.parametrize("gap", ["\n", " \n\n ", "\t" * MAX_HELD_SPACE])
def test_white_space_between_and_behind_blocks_is_no_content(gap):
    assert reading(BLOCK + gap + BLOCK + gap)[:2] == ("", [("find", '{"q":"x"}', True)] * 2)


def test_white_space_before_text_is_kept():
    assert reading(f"{BLOCK}\n\nSo <use_tool>oops</use_tool>")[0] == "\n\nSo <use_tool>oops</use_tool>"
    assert reading(f"{BLOCK}\n<use_tool>oops</use_tool>\n{BLOCK}")[0] == "\n<use_tool>oops</use_tool>\n"
    wide = " " * (MAX_HELD_SPACE + 1)
    assert reading(BLOCK + wide + BLOCK)[0] == wide


# Writing


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", True), ("", True), ("a < b > c", True), ("<br>", True), ('<a href="x">y</a>', True), ("[[Note]]", True),
        ("<b>x</b>", False), (" x", False), ("\ufeff", False), ("\u0085x", True), ("[1]", False), ('{"a":1}', False),
        ("a</p>b", False), ("a</use_tool>b", False), ("</b><b>", True), ("{not json}", True),
    ],
)  # fmt: skip
def test_survival_follows_the_clients_own_reader(value, expected):
    assert survives("p", value) is expected


def test_an_empty_list_parameter_does_not_survive_as_a_string():
    assert not survives("salientTerms", "")


def test_a_call_is_written_canonically():
    arguments = '{"path":"a.md","n":3,"ok":true,"list":["<b>"],"none":null,"html":"<b>x</b>"}'
    written = write_use_tool("writeToFile", arguments)
    assert written.text == (
        "<use_tool>\n<name>writeToFile</name>\n<path>a.md</path>\n<n>3</n>\n<ok>true</ok>\n"
        '<list>["\\u003cb>"]</list>\n<html><b>x</b ></html>\n</use_tool>'
    )
    assert written.changed == ("html",)


@pytest.mark.parametrize("number", ["1.50", "1e3", "-0", "0.10", "123456789012345678901234567890", "1E400", "-1.0"])
def test_numbers_are_written_as_they_came(number):
    written = write_use_tool("f", f'{{"n": {number}, "list": [ {number}, {{"k": {number}}} ]}}')
    assert f"<n>{number}</n>" in written.text
    assert f'<list>[{number},{{"k":{number}}}]</list>' in written.text
    assert written.changed == ()


@pytest.mark.parametrize(
    ("parameter", "tag"),
    [("a b", "a_b"), ("", "_"), ("a>b", "a_b"), ("<a", "_a"), ("/a", "_a"), ("use_tool", "use_tool_"), ("a\nb", "a_b")],
)
def test_a_parameter_that_cannot_be_a_tag_becomes_one_and_is_reported(parameter, tag):
    written = write_use_tool("f", json.dumps({parameter: "x", "ok": 1}))
    assert f"<{tag}>x</{tag}>" in written.text
    assert written.changed == (parameter,)


def test_no_two_parameters_become_one():
    arguments = {"a b": "1", "a_b": "2", "a\tb": "3"}
    written = write_use_tool("f", json.dumps(arguments))
    assert sorted(copilot_reads(written.text)[0][1].values()) == ["1", "2", "3"]
    assert written.changed == ("a b", "a\tb")


@pytest.mark.parametrize("name", [" f", "f</name>g", "<b>f</b>"])
def test_a_name_that_cannot_be_written_is_reported(name):
    written = write_use_tool(name, "{}")
    assert written.changed == ("name",)
    assert len(copilot_reads(written.text)) == 1


@pytest.mark.parametrize(("arguments", "line"), [("not json", "<args>not json</args>"), ("[1]", "<args>[1]</args>")])
def test_arguments_that_are_no_object_become_one_parameter(arguments, line):
    assert line in write_use_tool("f", arguments).text


def test_a_lone_surrogate_is_replaced_and_its_parameter_reported():
    written = write_use_tool("f", r'{"q":"a\ud800","r":["\udc00"],"ok":"b"}')
    assert written.text == '<use_tool>\n<name>f</name>\n<q>a\ufffd</q>\n<r>["\\ufffd"]</r>\n<ok>b</ok>\n</use_tool>'
    assert written.changed == ("q", "r")


def test_no_arguments_are_no_lines():
    assert write_use_tool("f", "").text == write_use_tool("f", "{}").text == "<use_tool>\n<name>f</name>\n</use_tool>"


# What the client makes of it: the rules of Obsidian Copilot 3.1, word for word

_PAIR = re.compile(r"<([^>]+)>([\s\S]*?)</\1>")
_JS_TRIM = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))


def copilot_reads(text: str) -> list[tuple[str, dict]]:
    """The calls that the client finds: up to the first closing tag, the first name, then every pair of tags."""
    calls = []
    for block in re.findall(r"<use_tool>([\s\S]*?)(?:</use_tool>|\Z)", text):
        name = re.search(r"<name>([\s\S]*?)</name>", block)
        if name and name[1].strip(_JS_TRIM):
            rest = block[: name.start()] + block[name.end() :]
            values = {key: _copilot_value(key, value.strip(_JS_TRIM)) for key, value in _PAIR.findall(rest)}
            calls.append((name[1].strip(_JS_TRIM), values))
    return calls


def _copilot_value(key: str, value: str) -> object:
    if not value and key in ("chatHistory", "salientTerms"):
        return []
    if not re.search(r"<[^>]+>", value):
        try:
            return json.loads(value) if (value[:1], value[-1:]) in (("[", "]"), ("{", "}")) else value
        except ValueError:
            return value
    pairs = _PAIR.findall(value)
    return dict(pairs) if pairs else value


NASTY = st.lists(
    st.sampled_from(
        ("<", ">", "</", "/", "<b>", "</b>", "<b >", "</b >", "<<b>", "</p>", "</use_tool>", "<a<b>", "</a<b>", "<//b>",
         "a", " ", "\n", "\ufeff", "[", "]", "{}", "[1]", "<br>", '<a x="1">', "</a>", "<p>", "\u0085")
    ),
    max_size=9,
).map("".join)  # fmt: skip


@given(NASTY)
def test_the_survival_rule_is_exact(value):
    [(_, read)] = copilot_reads(f"<use_tool>\n<name>f</name>\n<p>{value}</p>\n</use_tool>") or [("", {})]
    assert survives("p", value) == (read == {"p": value})


@given(NASTY)
def test_a_guarded_value_arrives_as_a_string(value):
    written = write_use_tool("f", json.dumps({"p": value, "q": "after"}))
    [(name, read)] = copilot_reads(written.text)
    assert (name, read["q"], list(read)) == ("f", "after", ["p", "q"])
    shown = value.strip(_JS_TRIM)
    if (shown[:1], shown[-1:]) not in (("[", "]"), ("{", "}")):
        assert isinstance(read["p"], str)
        assert read["p"].replace(" ", "") == shown.replace(" ", "")
    assert (written.changed == ()) == (read["p"] == value)


def test_a_value_full_of_signs_is_written_in_good_time():
    for value in ("<" * 200_000, "</" * 100_000 + ">", "<b>x</b>" * 20_000):
        assert len(write_use_tool("f", json.dumps({"p": value})).text) >= len(value)


KEYS = st.from_regex(r"[a-zA-Z][a-zA-Z0-9]{0,8}", fullmatch=True).filter(lambda key: key not in ("name", "use_tool"))
PLAIN = st.text(st.sampled_from("ab <>/&\"'[]{}:,\n\u00e4\U0001f600")).filter(lambda value: survives("p", value))
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_survives_is_read_back_equal(arguments):
    written = write_use_tool("f", json.dumps(arguments))
    if not written.changed:
        assert [(name, json.loads(text)) for name, text in extract_calls(written.text, NOTATIONS)] == [("f", arguments)]


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "object", "properties": {"x": True}}, "5", '"5"'),
        ({"type": "object", "properties": {"x": {"enum": ["a", "b"]}}}, "5", '"5"'),
        ({"type": "object", "properties": "none"}, "5", '"5"'),
        ({"type": "object", "properties": {"x": {"type": ["integer", "string"]}}}, "5", '"5"'),
        ({"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, "5", "5"),
    ],
    ids=["a-schema-of-anything", "words", "no-properties", "also-a-string", "a-number-or-null"],
)
def test_a_value_is_more_than_a_string_only_where_the_schema_leaves_no_doubt(schema, text: str, expected: str):
    tool = Tool("f", parameters=msgspec.Raw(json.dumps(schema).encode()))
    assert write_value(text, Schemas([tool]).types_of("f", "x")) == expected
