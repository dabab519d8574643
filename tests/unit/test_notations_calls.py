"""Calls in the notations that a profile switches on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks import chunkings
from tests.unit.notated import TOOLS, reading, schema, stages, told
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Note,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
)
from toolwire.core.request import Request, Tool
from toolwire.notations.read import MAX_FALSE_BLOCKS, ReadTextCalls
from toolwire.notations.registry import CALLS
from toolwire.notations.source import MAX_UNIT_CHARS
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas

BAR = "\uff5c"


def invoke(name: str, prefix: str = "", **values: str) -> str:
    parameters = "".join(
        f'<{prefix}parameter name="{key}">{value}</{prefix}parameter>' for key, value in values.items()
    )
    return f'<{prefix}invoke name="{name}">{parameters}</{prefix}invoke>'


def harmony(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"


def kimi(*calls: tuple[str, str]) -> str:
    each = (
        f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        for n, (name, text) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(each)}<|tool_calls_section_end|>"


ONE = {
    "mistral": '[TOOL_CALLS]find[ARGS]{"q": "x"}',
    "harmony": harmony("find", '{"q": "x"}'),
    "invoke": invoke("find", q="x"),
    "glm": "<tool_call>find\n<arg_key>q</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "kimi": kimi(("find", '{"q": "x"}')),
    "hermes": '<tool_call>{"name": "find", "arguments": {"q": "x"}}</tool_call>',
}
"""One and the same call in each notation."""

BARE = {
    "mistral": "[TOOL_CALLS]now[ARGS]{}",
    "harmony": harmony("now", "{}"),
    "invoke": invoke("now"),
    "glm": "<tool_call>now</tool_call>",
    "kimi": kimi(("now", "{}")),
    "hermes": "<tool_call>now</tool_call>",
}
"""A call without arguments."""

each = pytest.mark.parametrize("name", ONE)
mode = pytest.mark.parametrize("mode", ["live", "whole"])


def same(arguments: str) -> object:
    return json.loads(arguments)


@each
@mode
def test_a_call_is_read_with_the_text_around_it(name, mode):
    found = reading(f"Let me see. {ONE[name]} Done.", name, mode=mode)
    [(called, arguments)] = found.calls
    assert (found.text, called, same(arguments), found.notes) == ("Let me see.  Done.", "find", {"q": "x"}, ())


@each
@mode
def test_two_calls_in_a_row_are_two(name, mode):
    for gap in ("", "\n", " and "):
        found = reading(ONE[name] + gap + BARE[name], name, mode=mode)
        assert [(called, same(arguments)) for called, arguments in found.calls] == [("find", {"q": "x"}), ("now", {})]
        assert (found.text, found.notes) == (gap if gap.strip() else "", ())


@each
def test_no_arguments_are_an_empty_object(name):
    assert reading(BARE[name], name).pieces == (("now", "{}", True),)


@each
@mode
def test_a_name_that_is_not_declared_stays_text(name, mode):
    words = f"a {ONE[name]} b".replace("find", "lose")
    found = reading(words, name, mode=mode)
    assert (found.text, found.calls) == (words, [])
    assert {*found.notes} == {("text_block_kept", "not a declared tool")}


@each
def test_code_is_not_read(name):
    for words in (f"```\n{ONE[name]}\n```\n", f"Write `{ONE[name].splitlines()[0]}` then.", f"~~~\n{ONE[name]}"):
        assert reading(words, name).pieces == (words,)


@each
@mode
def test_a_call_that_is_cut_before_its_name_stays_text(name, mode):
    words = ONE[name][: ONE[name].index("find") + 2]
    found = reading(words, name, mode=mode)
    assert (found.text, found.calls, {*found.codes}) == (words, [], {"text_block_kept"})


@each
def test_a_call_that_is_cut_in_its_arguments_is_text_if_held_and_incomplete_if_told(name):
    words = ONE[name][: ONE[name].rindex("x")]
    held = reading(words, name, mode="whole")
    assert (held.text, held.calls) == (words, [])
    [(called, _, complete)] = reading(words, name).pieces
    assert (called, complete) == ("find", False)


@each
def test_a_marker_that_breaks_off_is_text(name):
    for end in range(1, 9):
        words = "a " + ONE[name][:end]
        assert reading(words, name).pieces == (words,)


@each
def test_text_without_markers_passes_at_once(name):
    line = stages([name])
    for text in ("Hello, ", "a.b (c) {d} ", "\n", "1. x\n", "x" * 1000):
        event = TextDelta(text)
        assert [*line.feed(event)] == [event]


@each
def test_a_call_that_also_comes_in_structure_is_delivered_once(name):
    structured = (CallStarted("c", "find"), CallArgs("c", '{"q":"x"}'), CallEnded("c"))
    text = TextDelta(ONE[name] + "\n" + ONE[name])
    for events in ((text, *structured), (*structured, text)):
        line = stages([name], mode="whole")
        found = told([out for event in (*events, TurnEnded()) for out in line.feed(event)])
        assert (len(found.calls), found.codes, found.text) == (2, ["text_call_twin"], "")


@each
def test_a_structured_call_settles_what_is_open(name):
    line = stages([name])
    started = CallStarted("c", "find")
    out = [*line.feed(TextDelta(ONE[name][:12])), *line.feed(started)]
    assert out[-1] == started
    assert told([*out, CallEnded("c"), TurnEnded()]).text == ONE[name][:12]


@each
def test_a_thought_in_the_midst_of_a_call_cuts_it(name):
    line = stages([name])
    begun = ONE[name][: ONE[name].rindex("x")]
    out = [*line.feed(TextDelta(begun)), *line.feed(ReasoningDelta("hm")), *line.feed(TurnEnded())]
    [call, thought] = told(out).pieces
    assert (call[2], thought) == (False, {"hm"})
    held = stages([name], mode="whole")
    assert [*held.feed(TextDelta(begun)), *held.feed(ReasoningDelta("hm"))] == [ReasoningDelta("hm")]


@pytest.mark.parametrize("name", ["mistral", "harmony", "kimi", "hermes"])
def test_markers_inside_a_string_are_its_letters(name):
    value = "a [TOOL_CALLS] <|call|><|end|></tool_call><|tool_call_end|> </invoke> `b`"
    words = ONE[name].replace('"x"', json.dumps(value))
    assert [same(arguments) for _, arguments in reading(words, name).calls] == [{"q": value}]


@pytest.mark.parametrize(("name", "before"), [("invoke", '<parameter name="q">'), ("glm", "<arg_value>"), ("mistral", '"q": "'), ("harmony", '"q": "'), ("kimi", '"q": "')])  # fmt: skip
def test_a_long_string_flows_before_it_is_whole(name, before):
    line = stages([name])
    head = ONE[name][: ONE[name].index(before) + len(before)]
    assert [type(event) for event in line.feed(TextDelta(head))][:1] == [CallStarted]
    told = sum(
        len(event.text) for _ in range(20) for event in line.feed(TextDelta("y" * 50)) if isinstance(event, CallArgs)
    )
    assert told == 1000


@each
def test_a_value_that_never_ends_is_let_go(name):
    line = stages([name], mode="whole")
    head = ONE[name][: ONE[name].rindex("x")]
    out = [event for _ in range(5) for event in line.feed(TextDelta("x" * (MAX_UNIT_CHARS // 2)))]
    out = [
        *line.feed(TextDelta(head)),
        *[event for _ in range(5) for event in line.feed(TextDelta("x" * (MAX_UNIT_CHARS // 2)))],
    ]
    assert sum(len(event.text) for event in out if isinstance(event, TextDelta)) > MAX_UNIT_CHARS


@each
def test_enough_that_is_no_call_ends_the_search(name):
    words = ONE[name].replace("find", "lose") * (MAX_FALSE_BLOCKS + 1) + ONE[name]
    line = stages([name])
    found = told([*line.feed(TextDelta(words)), *line.feed(TurnEnded())])
    assert (found.text, found.calls) == (words, [])


def test_strict_parsing_fails_the_turn_in_any_notation():
    rules = ToolRules(strict_parsing=True)
    for name in CALLS:
        line = stages([name], mode="whole", declared=("now",))
        policies = assemble_policies(Request("m", (), tools=TOOLS), rules, "S", tuple).policies
        events = [out for event in line.feed(TextDelta(f"{ONE[name]} x")) for out in policies.feed(event)]
        assert isinstance(events[0], TurnFailed)


def test_arguments_that_are_not_json_stay_text_at_the_end_too():
    words = '<tool_call>{"name":"now","arguments":{"x":NaN}}'
    assert reading(words, "hermes", mode="whole").text == words
    assert reading(words, "hermes").pieces == (("now", '{"x":NaN}', False),)


@given(st.text(st.sampled_from("[]<>|/`~\n {}ab\"'TOLCARGSinvoke_=")), st.integers(0, 5))
def test_any_text_is_read_alike_in_any_chunking(text, place):
    name = [*ONE][place]
    reading(text, name)
    reading(ONE[name][: len(text)] + text + ONE[name], name)
    reading(ONE[name][: len(text)] + text + ONE[name], name, mode="whole")


@given(st.text(st.characters(exclude_characters="<[`~\n", exclude_categories=("Cs",)), min_size=1))
def test_any_text_without_markers_passes_unchanged_and_at_once(text):
    for pieces in chunkings(text):
        line = stages([*CALLS])
        line.feed(TextDelta("a"))  # white space at the very beginning may belong to a thought
        for piece in filter(None, pieces):
            assert [*line.feed(TextDelta(piece))] == [TextDelta(piece)]


# Mistral


@mode
@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ('[TOOL_CALLS] [{"name": "find", "arguments": {"q": "x"}}, {"name": "now", "arguments": {}}]', ["find", "now"]),
        ('[TOOL_CALLS][{"arguments": "{}", "name": "now", "id": "a"}]', ["now"]),
        ('[TOOL_CALLS]{"name": "now"}', ["now"]),
        ('[TOOL_CALLS]find[CALL_ID]abc123def[ARGS]{"q": "x"}', ["find"]),
        ('[TOOL_CALLS]find{"q": "x"}[TOOL_CALLS]now{}', ["find", "now"]),
        ('[TOOL_CALLS] find [ARGS] {"q": "x"}', ["find"]),
    ],
)
def test_mistral_has_two_forms(words, calls, mode):
    found = reading(words, "mistral", mode=mode)
    assert ([name for name, _ in found.calls], found.text, found.notes) == (calls, "", ())


def test_a_list_without_its_end_is_recovered():
    for end in ("", " ", ","):
        found = reading(f'[TOOL_CALLS][{{"name": "now"}}{end}', "mistral")
        assert (found.calls, found.text, found.codes) == ([("now", "{}")], "", ["text_call_recovered"])


@pytest.mark.parametrize(
    "rest", ["[]", "[1]", "[,]", "now", "now[ARGS]", "now[ARGS]1", "now x[ARGS]{}", "[ARGS]{}", '{"n": 1}', "x" * 600]
)
def test_what_mistral_does_not_write_stays_text(rest):
    words = "[TOOL_CALLS]" + rest
    assert reading(words, "mistral", mode="whole").pieces == (words,)


def test_what_follows_a_call_of_a_list_and_is_none_stays_text():
    words = '[TOOL_CALLS][{"name": "now"}, {"name": "lose"}] b'
    assert reading(words, "mistral").pieces == (("now", "{}", True), ', {"name": "lose"}] b')
    many = '[TOOL_CALLS][{"name": "now"}' + ', {"name": "now"}' * 2000 + "]"
    line = stages(["mistral"])
    assert len(told([*line.feed(TextDelta(many)), *line.feed(TurnEnded())]).calls) == 2001


# Invoke


@mode
@pytest.mark.parametrize("prefix", ["", "antml:", "minimax:", f"{BAR}DSML{BAR}", "|DSML|"])
@pytest.mark.parametrize("wrapper", ["", "function_calls", "tool_calls"])
def test_invoke_may_have_a_prefix_and_a_wrapper(prefix, wrapper, mode):
    inner = f"\n{invoke('find', prefix, q='x')}\n{invoke('now', prefix)}\n"
    words = f"<{prefix}{wrapper}>{inner}</{prefix}{wrapper}>" if wrapper else inner
    found = reading(f"a{words}b", "invoke", mode=mode)
    assert (found.calls, found.notes) == ([("find", '{"q":"x"}'), ("now", "{}")], ())
    assert found.text == ("ab" if wrapper else "a\n\nb")


def test_minimax_wraps_bare_calls():
    words = f"<minimax:tool_call>\n{invoke('now')}\n</minimax:tool_call>"
    assert reading(words, "invoke").pieces == (("now", "{}", True),)


@pytest.mark.parametrize(
    ("parameter", "arguments"),
    [
        ('<parameter name="q">a <b> & &lt; </p></parameter>', {"q": "a <b> & &lt; </p>"}),
        ('<parameter name="q">\n\na\n</parameter>', {"q": "\na"}),
        ("<parameter name='n'>3</parameter>", {"n": 3}),
        ('<parameter name="n" string="true">3</parameter>', {"n": "3"}),
        ('<parameter name="new" string="false">[1]</parameter>', {"new": [1]}),
        ('<parameter name="new" string="false">true</parameter>', {"new": True}),
        ('<parameter name="new">3</parameter>', {"new": "3"}),
        ('<parameter name="tags" type="x">["a"]</parameter>', {"tags": ["a"]}),
        ('{"q": "</invoke>", "n": 3}', {"q": "</invoke>", "n": 3}),
    ],
)
def test_values_of_invoke_have_the_type_that_is_said(parameter, arguments):
    [(_, read)] = reading(f'<invoke name="find">\n{parameter}\n</invoke>', "invoke").calls
    assert same(read) == arguments


@pytest.mark.parametrize(
    "words",
    [
        "<invoke>", "<invoked by='x'>", '<invoke id="now"></invoke>', '<invoke name="now"/> x', '<invoke name="now">text</invoke>',
        '<invoke name="now"><b>x</b></invoke>', "<function_calls></function_calls>", "<function_calls>text</function_calls>",
        "<function_calls>\n<x>", '<tvoe_calls><invoke name="write"></invoke></tvoe_calls>', '<ns:invoke name="now"></ns:invoke>',
        '<invoke name="find"><parameter name="q">x</invoke>',
    ],
)  # fmt: skip
def test_what_invoke_is_not_stays_text(words):
    found = reading(words, "invoke", mode="whole")
    assert (found.text, found.calls) == (words, [])


def test_a_wrapper_without_its_end_is_recovered_and_a_cut_call_in_it_is_text():
    words = f"<function_calls>{invoke('now')}"
    for end in ("", "\n", "\n</function"):
        found = reading(words + end, "invoke")
        assert (found.pieces, found.codes) == ((("now", "{}", True),), ["text_call_recovered"])
    for end in ("<invoke ", "<inv", '<invoke name="fi'):
        found = reading(words + end, "invoke", mode="whole")
        assert (found.pieces, {*found.codes}) == ((("now", "{}", True), end), {"text_block_kept"})


# GLM, Kimi


def test_glm_pairs_are_typed_by_the_schema():
    words = '<tool_call>find<arg_key>n</arg_key><arg_value>3</arg_value><arg_key> tags </arg_key>\n<arg_value>\n["a"]\n</arg_value></tool_call>'
    assert reading(words, "glm").calls == [("find", '{"n":3,"tags":["a"]}')]


@pytest.mark.parametrize(
    "inside",
    [
        "now<arg_value>x</arg_value>",
        "now<arg_key>k</arg_key>x",
        "now text",
        "<arg_key>k</arg_key><arg_value>x</arg_value>",
        "{}",
    ],
)
def test_what_glm_does_not_write_stays_text(inside):
    words = f"<tool_call>{inside}</tool_call>"
    assert reading(words, "glm", mode="whole").pieces == (words,)


def test_glm_reads_the_json_of_its_relatives():
    assert reading(ONE["hermes"], "glm").calls == [("find", '{"q": "x"}')]


def test_kimi_needs_no_section_and_tolerates_names_without_number():
    bare = "<|tool_call_begin|>now<|tool_call_argument_begin|> {} <|tool_call_end|>"
    assert reading(bare, "kimi").pieces == (("now", "{}", True),)
    two = kimi(("find", '{"q":1}'), ("now", "{}"))
    assert [name for name, _ in reading(f"{two}{two}", "kimi").calls] == ["find", "now"] * 2


def test_kimi_with_a_nameless_call_stays_text():
    words = kimi(("", "{}"))
    assert reading(words, "kimi").pieces == (words,)


def test_a_parameter_before_its_name_is_typed_later():
    tools = (Tool("find", parameters=schema(n="integer")),)
    words = "<tool_call><parameter=n>3</parameter><function=find></function></tool_call>"
    assert reading(words, "hermes", tools=tools).calls == [("find", '{"n":3}')]


@pytest.mark.parametrize(
    "inside", ["{1:2}", '{"name":"now","x":nope}', '{"name":"\\x"}', '{"name":"now" 1}', '{"name":3}']
)
def test_json_that_is_none_stays_text(inside):
    words = f"<tool_call>{inside}</tool_call>"
    assert reading(words, "hermes", mode="whole").pieces == (words,)


@pytest.mark.parametrize(("parameter", "piece"), [("q", " "), ("n", "1")])
def test_a_value_has_a_limit(parameter, piece):
    line = stages(["invoke"])
    out = [*line.feed(TextDelta(f'<invoke name="find"><parameter name="{parameter}">'))]
    out += [event for _ in range(5) for event in line.feed(TextDelta(piece * (MAX_UNIT_CHARS // 2)))]
    assert CallEnded("call_St01", complete=False) in out


def test_stages_hold_nothing_when_the_turn_is_over():
    line = stages(["think", "mistral", "hermes"])
    line.feed(TextDelta("<think>a"))
    line.feed(TurnEnded())
    assert [*line.end()] == []


def test_a_block_in_which_a_frame_was_lost_is_no_call():
    policy = ReadTextCalls((USE_TOOL, TOOL_CALL), "S", Schemas(()))
    lost = (TextDelta("<use_tool><name>f</name><a>on"), Note("frame_skipped"), TextDelta("e</a></use_tool>"))
    events = [out for event in (*lost, TurnEnded()) for out in policy.feed(event)]
    assert not any(isinstance(event, CallStarted) for event in events)
    assert next(event for event in events if isinstance(event, Note)) == Note(
        "text_block_kept", "a frame of it was lost"
    )
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == (
        "<use_tool><name>f</name><a>one</a></use_tool>"
    )
