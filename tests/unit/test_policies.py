"""Every policy is a decision; every decision has a test."""

import json
import re

import msgspec
import pytest

from toolwire.assembly import ToolRules, apply_rules, assemble_policies, choose_output_mode
from toolwire.core.collect import collect
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    CallTwin,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from toolwire.core.policies import Policies, SuppressTail
from toolwire.core.request import HostedTool, Message, Request, ResultEntry, TextPart, Tool, ToolChoice
from toolwire.core.stage import Pipeline
from toolwire.dialects.chat import encode_turn

TOOLS = (Tool("f"), Tool("g"))
REQUEST = Request("m", (), tools=TOOLS)
RULES = ToolRules()
FAILED = TurnFailed(Failure(502, "stream_cut", "gone"))


def nobody(call: str, delivered: str) -> None:
    """Hears of twins, and does not care."""


def called(id: str, name: str = "f", text: str = "{}", complete: bool = True):
    return CallStarted(id, name), CallArgs(id, text), CallEnded(id, complete)


def through(*events, rules: ToolRules = RULES, request: Request = REQUEST):
    assembly = assemble_policies(apply_rules(request, rules), rules, "S", nobody)
    out = [passed for event in (TurnStarted(), *events) for passed in assembly.policies.feed(event)]
    return collect(out), assembly


def turn(*events, **given):
    return through(*events, **given)[0]


def ids(*events, **given):
    return [call.id for call in turn(*events, **given).calls]


def test_calls_decide_over_the_backends_stop():
    assert turn(*called("a"), TurnEnded("stop")).reason == "calls"
    assert turn(TextDelta("x"), TurnEnded("calls")).reason == "stop"


@pytest.mark.parametrize("reason", ["length", "filter"])
def test_length_and_filter_stay_the_truth_even_after_a_call(reason):
    assert turn(*called("a"), TurnEnded(reason)).reason == reason


def test_a_turn_with_a_cut_call_ends_with_length():
    result, assembly = through(*called("a", text='{"x":', complete=False), TurnEnded("stop"))
    assert result.reason == "length"
    assert assembly.stats.counts == {"call_incomplete": 1}


def test_a_nameless_call_gets_the_only_declared_name():
    one = Request("m", (), tools=(Tool("only"),))
    result, assembly = through(*called("a", ""), TurnEnded(), request=one)
    assert result.calls[0].name == "only"
    assert assembly.stats.counts == {"name_inferred": 1}


def test_a_nameless_call_gets_the_forced_name():
    forced = Request("m", (), tools=TOOLS, tool_choice=ToolChoice("required", "g"))
    assert turn(*called("a", ""), TurnEnded(), request=forced).calls[0].name == "g"


def test_a_nameless_call_fails_the_turn_when_it_could_be_either():
    result, assembly = through(*called("a", ""), TextDelta("x"), TurnEnded())
    assert result.failure is not None
    assert "a" in result.failure.message
    assert assembly.policies.closed


def test_a_nameless_call_is_named_by_position_only_on_demand():
    rules = ToolRules(name_fallback="position")
    assert [call.name for call in turn(*called("a", ""), *called("b", ""), TurnEnded(), rules=rules).calls] == [
        "f",
        "g",
    ]


def test_the_cap_is_exact_and_says_so():
    result, assembly = through(*called("a"), *called("b"), *called("c"), TurnEnded(), rules=ToolRules(max_calls=2))
    assert [call.id for call in result.calls] == ["a", "b"]
    assert assembly.stats.truncated
    assert assembly.stats.call_count == 2


def test_a_cap_that_nothing_exceeds_truncates_nothing():
    assert not through(*called("a"), TurnEnded(), rules=ToolRules(max_calls=1))[1].stats.truncated


@pytest.mark.parametrize(
    ("request_says", "operator_says", "expected"),
    [(False, None, ["a"]), (True, None, ["a", "b"]), (None, False, ["a"]), (False, True, ["a", "b"])],
)
def test_parallel_off_lets_one_call_pass(request_says, operator_says, expected):
    request = Request("m", (), tools=TOOLS, parallel_calls=request_says)
    assert (
        ids(*called("a"), *called("b"), TurnEnded(), request=request, rules=ToolRules(parallel=operator_says))
        == expected
    )


def test_equal_calls_without_ids_of_their_own_are_one_if_dedup_is_on():
    minted, twin, other = "call_S01", "call_S02", "call_S03"
    events = (
        *called(minted, text='{"x":1,"y":2}'),
        *called(twin, text='{"y":2, "x":1}'),
        *called(other, text='{"x":true}'),
        TurnEnded(),
    )
    assert ids(*events) == [minted, twin, other]
    assert ids(*events, rules=ToolRules(dedup=True)) == [minted, other]


def test_equal_calls_with_ids_of_their_own_are_always_two():
    assert ids(*called("a"), *called("b"), TurnEnded(), rules=ToolRules(dedup=True)) == ["a", "b"]


def test_text_after_a_call_is_dropped_by_suppress_tail():
    result, assembly = through(TextDelta("a"), *called("c"), TextDelta("b"), TextDelta("c"), TurnEnded(),
                               rules=ToolRules(suppress_tail=True))  # fmt: skip
    assert result.text == "a"
    assert assembly.stats.counts == {"tail_withheld": 1}


@pytest.mark.parametrize("follows", [TextDelta("x"), ReasoningDelta("r"), CallStarted("b", "g")])
def test_stop_after_first_closes_where_something_follows(follows):
    rules = ToolRules(stop_after=True, stop_after_mode="first")
    result, assembly = through(*called("a"), follows, rules=rules)
    assert assembly.policies.closed
    assert (result.reason, [call.id for call in result.calls]) == ("calls", ["a"])
    assert assembly.stats.truncated == isinstance(follows, CallStarted)


def test_stop_after_first_lets_a_single_call_end_by_itself():
    result, assembly = through(*called("a"), TurnEnded(), rules=ToolRules(stop_after=True, stop_after_mode="first"))
    assert result.reason == "calls"
    assert not assembly.stats.counts


def test_a_burst_waits_only_between_calls():
    assembly = assemble_policies(REQUEST, ToolRules(stop_after=True), "S", nobody)
    waits = []
    for event in (TurnStarted(), *called("a"), TextDelta("x"), *called("b")):
        assembly.policies.feed(event)
        waits.append(assembly.burst.waiting)
    assert waits == [False, False, False, True, True, False, False, True]


BLOCK = '<tool_call>{"name":"f","arguments":{}}</tool_call>'


@pytest.mark.parametrize("rules", [ToolRules(stop_after=True, dedup=True), ToolRules(stop_after=True)])
def test_a_burst_is_not_over_while_a_call_is_held_back(rules):
    """A call that waits for its end, or for its twin, and a block that is being read, are under way too."""
    assembly = assemble_policies(REQUEST, rules, "S", nobody)
    waits = []
    for event in (TurnStarted(), TextDelta(BLOCK), *called("a"), TextDelta("<tool_call>"), TextDelta("oops </x>")):
        assembly.policies.feed(event)
        waits.append(assembly.burst.waiting)
    assert waits == [False, True, False, False, True, False, True]


def test_a_textual_call_counts_where_it_stands():
    events = (TextDelta(f"a {BLOCK} b"), *called("c", "g"), TurnEnded())
    assert [call.name for call in turn(*events).calls] == ["f", "g"]
    first, assembly = through(*events, rules=ToolRules(stop_after=True, stop_after_mode="first"))
    assert ([call.name for call in first.calls], first.text, assembly.policies.closed) == (["f"], "a ", True)
    assert assembly.stats.counts == {"tail_withheld": 1}
    capped, assembly = through(*events, rules=ToolRules(max_calls=1))
    assert ([call.name for call in capped.calls], assembly.stats.truncated) == (["f"], True)


def test_a_twin_is_no_second_call_to_any_rule():
    events = (TextDelta(BLOCK), *called("a"), TurnEnded())
    for rules in (
        ToolRules(max_calls=1),
        ToolRules(stop_after=True, stop_after_mode="first"),
        ToolRules(dedup=True),
        ToolRules(output_mode="obsidian-xml"),
    ):
        result, assembly = through(*events, rules=rules)
        assert ([call.name for call in result.calls], assembly.stats.counts) == (["f"], {"text_call_twin": 1})
        assert (assembly.stats.truncated, assembly.stats.call_count) == (False, 1)


def test_the_backend_hears_which_call_stands_for_its_own():
    heard: list[tuple[str, str]] = []
    policies = assemble_policies(REQUEST, RULES, "S", lambda *ids: heard.append(ids)).policies
    out = [passed for event in (TurnStarted(), TextDelta(BLOCK), *called("a")) for passed in policies.feed(event)]
    assert heard == [("a", "call_St01")]
    assert not any(isinstance(event, CallTwin) for event in out)


@pytest.mark.parametrize(
    ("asked", "mode", "text"),
    [(None, "openai-json", "a b"), (None, "obsidian-xml", "a "), (False, "obsidian-xml", "a b"), (True, "openai-json", "a ")],
)  # fmt: skip
def test_nothing_follows_a_block_in_obsidian_xml_unless_asked_for(asked, mode, text):
    rules = ToolRules(suppress_tail=asked, output_mode=mode)
    result = turn(TextDelta("a "), *called("c"), TextDelta("b"), TurnEnded(), rules=rules)
    assert re.sub(r"\n*<use_tool>.*</use_tool>", "", result.text, flags=re.DOTALL) == text


def test_a_failure_after_complete_calls_finishes_only_on_demand():
    assert turn(*called("a"), FAILED).failure is not None
    result, assembly = through(*called("a"), FAILED, rules=ToolRules(finish_after_calls=True))
    assert (result.failure, result.reason) == (None, "calls")
    assert assembly.stats.counts == {"failure_after_calls": 1}


def test_a_failure_inside_a_call_is_never_hidden():
    started = (CallStarted("b", "g"), CallArgs("b", "{"))
    assert turn(*called("a"), *started, FAILED, rules=ToolRules(finish_after_calls=True)).failure is not None


def test_nothing_passes_after_the_end():
    assembly = assemble_policies(REQUEST, ToolRules(), "S", nobody)
    assert list(assembly.policies.feed(TurnEnded())) == [TurnEnded("stop")]
    assert list(assembly.policies.feed(TextDelta("late"))) == []
    assert list(Pipeline(assembly.policies).end()) == []


def prompt(text: str, tools=(), role="system", before=()) -> Request:
    return Request("m", (*before, Message(role, (TextPart(text),))), tools=tools)


TEACHES = "write <use_tool> blocks"
ASKED = (Message("user", (TextPart("hi"),)),)


@pytest.mark.parametrize(
    ("setting", "request_", "expected"),
    [
        ("auto", prompt("hi"), "openai-json"),
        ("auto", prompt("write <use_tool> blocks"), "obsidian-xml"),
        ("auto", prompt("write <use_tool> blocks", TOOLS), "openai-json"),
        ("obsidian-xml", prompt("hi", TOOLS), "obsidian-xml"),
        ("openai-json", prompt("write <use_tool> blocks"), "openai-json"),
        ("auto", Request("m", ASKED, instructions=TEACHES), "obsidian-xml"),
        ("auto", prompt(TEACHES, role="developer"), "obsidian-xml"),
        ("auto", prompt(TEACHES, role="developer", before=ASKED), "obsidian-xml"),
        ("auto", prompt(TEACHES, role="assistant"), "obsidian-xml"),
        ("auto", prompt(TEACHES, role="assistant", before=ASKED), "openai-json"),
        ("auto", prompt(TEACHES, role="user"), "openai-json"),
        ("auto", Request("m", (ResultEntry("c", (TextPart(TEACHES),)),)), "openai-json"),
    ],
)
def test_the_output_mode_follows_setting_tools_and_prompt(setting, request_, expected):
    assert choose_output_mode(ToolRules(output_mode=setting), request_) == expected


def test_obsidian_mode_writes_a_block_after_each_call_and_keeps_the_calls():
    rules = ToolRules(output_mode="obsidian-xml")
    result = turn(TextDelta("Look:"), *called("a", text='{"q":"x"}'), *called("b", "g"), TurnEnded(), rules=rules)
    assert [call.id for call in result.calls] == ["a", "b"]
    assert result.text == (
        "Look:\n\n<use_tool>\n<name>f</name>\n<q>x</q>\n</use_tool>\n\n<use_tool>\n<name>g</name>\n</use_tool>"
    )


def test_the_delimiter_stands_between_blocks():
    rules = ToolRules(output_mode="obsidian-xml", delimiter="|")
    assert turn(*called("a"), *called("b"), TurnEnded(), rules=rules).text.count("</use_tool>|<use_tool>") == 1
    bare = ToolRules(output_mode="obsidian-xml", delimiter="")
    assert "</use_tool><use_tool>" in turn(*called("a"), *called("b"), TurnEnded(), rules=bare).text


def test_text_that_is_withheld_between_two_calls_leaves_no_blank_line():
    rules = ToolRules(output_mode="obsidian-xml", delimiter="|")
    between = (MessageEnded(""), TextDelta("Now the next one."))
    events = (TextDelta("Look:"), *called("a"), *between, *called("b"), *between, TurnEnded())
    folded, assembly = through(*events, rules=rules)
    text = json.loads(encode_turn(folded, REQUEST, "chatcmpl_1", 1))["choices"][0]["message"]["content"]
    assert text.count("</use_tool>|<use_tool>") == 1
    assert text.endswith("</use_tool>")
    assert assembly.stats.counts == {"tail_withheld": 1}


def test_messages_stay_separate_where_nothing_is_withheld():
    folded, _ = through(TextDelta("one"), *called("a"), MessageEnded(""), TextDelta("two"), TurnEnded())
    text = json.loads(encode_turn(folded, REQUEST, "chatcmpl_1", 1))["choices"][0]["message"]["content"]
    assert text == "one\n\ntwo"


NAMED = msgspec.structs.replace(REQUEST, tool_choice=ToolChoice("required", "g"))


def test_with_a_named_tool_calls_of_others_are_withheld():
    folded, assembly = through(*called("a"), *called("b", "g"), TurnEnded("stop"), request=NAMED)
    assert [(call.id, call.name) for call in folded.calls] == [("b", "g")]
    assert (folded.reason, assembly.stats.notes) == ("calls", [Note("call_not_allowed", "f")])


def test_a_textual_call_of_another_than_the_named_tool_is_withheld_too():
    block = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    folded, assembly = through(TextDelta(block), TurnEnded("stop"), request=NAMED)
    assert (folded.calls, folded.reason) == ((), "stop")
    assert [note.code for note in assembly.stats.notes] == ["call_not_allowed", "call_missing"]


@pytest.mark.parametrize("choice", [ToolChoice("required", "g"), ToolChoice("required")])
def test_a_turn_without_the_call_that_is_demanded_says_so(choice):
    request = msgspec.structs.replace(REQUEST, tool_choice=choice)
    folded, assembly = through(TextDelta("No."), TurnEnded("stop"), request=request)
    assert (folded.text, folded.reason) == ("No.", "stop")
    assert assembly.stats.notes == [Note("call_missing", choice.name)]


@pytest.mark.parametrize(
    ("events", "request_"),
    [
        ((*called("a", "g"), TurnEnded("stop")), NAMED),
        ((TextDelta("It is"), TurnEnded("length")), NAMED),
        ((FAILED,), NAMED),
        ((TextDelta("No."), TurnEnded("stop")), REQUEST),
        ((TextDelta("No."), TurnEnded("stop")), msgspec.structs.replace(REQUEST, tool_choice=ToolChoice("auto"))),
        (
            (TextDelta("I searched."), TurnEnded("stop")),
            msgspec.structs.replace(
                REQUEST,
                tool_choice=ToolChoice("required"),
                hosted_tools=(HostedTool("web_search", msgspec.Raw(b"{}")),),
            ),
        ),
    ],
    ids=["called", "cut", "failed", "no-choice", "auto", "hosted"],
)
def test_a_turn_that_owes_no_call_says_nothing(events, request_):
    assert through(*events, request=request_)[1].stats.notes == []


ADDED, DONE = "response.output_item.added", "response.output_item.done"


def shown(event: str, item: str, answers: str | None = None) -> RawFrame:
    return RawFrame(event, item, b"{}", answers)


@pytest.mark.parametrize("item", ["fco_1", ""])
def test_a_result_that_answers_no_call_of_the_turn_is_dropped_and_noted_once(item):
    block, end = shown("content_block_start", "0", "y"), shown("content_block_stop", "0")
    said = [shown(ADDED, item, "x"), shown(DONE, item, "x"), block, end]
    assembly = assemble_policies(REQUEST, RULES, "S", tuple)
    assert [out for event in (TurnStarted(), *said) for out in assembly.policies.feed(event)] == [TurnStarted()]
    assert assembly.stats.notes == [Note("output_dropped", "x"), Note("output_dropped", "y")]


def test_every_other_frame_passes():
    said = [
        *called("x"),
        shown(DONE, "fco_1", "x"),
        shown(DONE, "ws_1"),
        shown("content_block_start", "1"),
        shown("response.completed", ""),
    ]
    assembly = assemble_policies(REQUEST, RULES, "S", tuple)
    assert [out for event in (TurnStarted(), *said) for out in assembly.policies.feed(event)] == [TurnStarted(), *said]


def test_a_policy_that_does_not_say_which_texts_pass_must_see_them():
    class Reads:
        handles = (TextDelta,)

        def feed(self, event: Event) -> None:
            return None

    assert Policies(Reads()).find_checks(TextDelta("a")) is None
    assert Policies(SuppressTail()).find_checks(TextDelta("a")) is not None
