"""Text that says where it goes: thoughts before an answer, and the channels of Harmony."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.notated import reading, stages, told
from toolwire.core.collect import Reasoning, collect
from toolwire.core.events import (
    CallEnded,
    CallStarted,
    Note,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.notations.reasoning import MAX_LEADING_SPACE

ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"q":"x"}'


# ReasoningCache


@pytest.mark.parametrize(
    ("words", "thoughts", "text"),
    [
        ("<think>They want\nit.</think>Hello", ["They want\nit."], "Hello"),
        ("\n <think>\n a \n</think>\n\nHello \n", ["a \n"], "Hello \n"),
        ("<think>a</think>\n<think>b</think>c", ["ab"], "c"),
        ("<think></think>Hello", [], "Hello"),
        ("<think> \n </think> ", [], ""),
        (
            "<think>some models use <tool_call>now</tool_call> tags</think>Hello",
            ["some models use <tool_call>now</tool_call> tags"],
            "Hello",
        ),
        ("<think>`</think>`", ["`"], "`"),
        ("<think>cut", ["cut"], ""),
        ("<think>cut</thi", ["cut</thi"], ""),
        ("Hello <think>x</think>", [], "Hello <think>x</think>"),
        ("`<think>`", [], "`<think>`"),
        ("<thinking>x</thinking>", [], "<thinking>x</thinking>"),
        ("x</think>y", [], "x</think>y"),
        ("<thi", [], "<thi"),
        ("  \n", [], "  \n"),
        ("", [], ""),
        (" " * MAX_LEADING_SPACE + "<think>a</think>b", ["a"], "b"),
        (" " * (MAX_LEADING_SPACE + 1) + "<think>a</think>b", [], " " * (MAX_LEADING_SPACE + 1) + "<think>a</think>b"),
    ],
)
def test_a_thought_stands_before_the_answer(words, thoughts, text):
    found = reading(words, "think", "hermes")
    assert ("".join(found.thoughts), found.text, found.calls, found.notes) == ("".join(thoughts), text, [], ())


@pytest.mark.parametrize(
    ("words", "thoughts", "text"),
    [
        ("They want it.</think>\n\nHello", "They want it.", "Hello"),
        ("\n<think>a</think>Hello", "a", "Hello"),
        ("<thin ice</think>Hello", "<thin ice", "Hello"),
        ("</think>Hello", "", "Hello"),
        ("never ends", "never ends", ""),
        ("<thi", "<thi", ""),
        ("a</think>b</think>c", "a", "b</think>c"),
    ],
)
def test_an_answer_may_begin_inside_a_thought_if_the_profile_says_so(words, thoughts, text):
    found = reading(words, "think-begun")
    assert ("".join(found.thoughts), found.text) == (thoughts, text)


def test_mistral_thinks_in_brackets():
    found = reading("[THINK]a [TOOL_CALLS]now[ARGS]{}[/THINK]b[TOOL_CALLS]now[ARGS]{}", "mistral")
    assert found.pieces == (frozenset({"a [TOOL_CALLS]now[ARGS]{}"}), "b", ("now", "{}", True))


def test_a_thought_flows_and_only_a_possible_marker_waits():
    line = stages(["think"])
    fed = ["<thi", "nk>", " a", "b ", "c</th", "e", "</think", "> ", "d"]
    out = [[event.text for event in line.feed(TextDelta(piece))] for piece in fed]
    assert out == [[], [], ["a"], ["b "], ["c"], ["</the"], [], [], ["d"]]
    event = TextDelta("after that everything passes as it is <think>")
    assert next(iter(line.feed(event))) is event


@pytest.mark.parametrize("begun", ["", "<think>a", "<think>a</thi", " ", "<th"])
@pytest.mark.parametrize("breaker", [CallStarted("c", "find"), RefusalDelta("no")])
def test_a_call_or_a_refusal_ends_the_thought(begun, breaker):
    line = stages(["think"])
    out = [*line.feed(TextDelta(begun)), *line.feed(breaker)] if begun else [*line.feed(breaker)]
    if isinstance(breaker, CallStarted):
        out.append(CallEnded("c"))
    found = told([*out, *line.feed(TextDelta("<think>b")), *line.feed(TurnEnded())])
    said = begun.removeprefix("<think>") if begun.startswith("<think>") else ""
    assert "".join(found.thoughts) == said
    assert found.text == ("" if said else begun) + "<think>b"


def test_what_is_no_text_passes_a_thought_by():
    line = stages(["think"])
    for event in (Usage(1), Note("x"), ReasoningDelta("structured")):
        assert [*line.feed(event)] == [event]
    assert [*line.feed(TextDelta("<think>a"))] == [ReasoningDelta("a", "content")]


@given(st.text(st.sampled_from("<>/think ab\n`"), max_size=40))
def test_any_text_is_thought_alike_in_any_chunking(text):
    for name in ("think", "think-begun"):
        reading(text, name)
        reading("<think>" + text, name)


# Harmony


@pytest.mark.parametrize("mode", ["live", "whole"])
@pytest.mark.parametrize("ending", ["", "<|call|>", "<|end|>", "<|return|>"])
@pytest.mark.parametrize("thought", ["<|end|>", ""])
def test_harmony_is_read_channel_by_channel(mode, ending, thought):
    found = reading(f"{ANALYSIS}think{thought}{CALL}{ending}", "harmony", mode=mode)
    assert (found.thoughts, found.text, found.calls, found.notes) == (["think"], "", [("find", '{"q":"x"}')], ())


@pytest.mark.parametrize(
    "head",
    [
        "<|channel|>commentary to=functions.find <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.find json<|message|>",
        "<|channel|>commentary to=find<|message|>",
        "<|start|>assistant to=functions.find<|channel|>commentary <|constrain|>json<|message|>",
        "<|start|>assistant<|channel|>analysis to=functions.find code<|message|>",
        "<|start|>assistant to=functions.find<|message|>",
    ],
)
def test_the_recipient_may_stand_in_several_places(head):
    assert reading(head + '{"q": "<|call|>"}', "harmony").pieces == (("find", '{"q": "<|call|>"}', True),)


def test_the_final_channel_is_the_answer_and_commentary_is_said_before_a_call():
    words = f"<|channel|>commentary<|message|>I will look.<|end|>{CALL}<|call|>{FINAL}It rains.<|return|>"
    assert reading(words, "harmony").pieces == ("I will look.", ("find", '{"q":"x"}', True), "It rains.")
    assert reading("<|start|>assistant<|message|>Hello", "harmony").pieces == ("Hello",)
    assert reading(f"{FINAL}a<|channel|>final<|message|>b", "harmony").pieces == ("ab",)


def test_two_thoughts_are_two_items():
    line = stages(["harmony"])
    words = f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{ANALYSIS}<|end|>{FINAL}c"
    turn = collect([TurnStarted(), *line.feed(TextDelta(words)), *line.feed(TurnEnded())])
    assert [item.content for item in turn.items if isinstance(item, Reasoning)] == [("a",), ("b",)]
    assert turn.text == "c"


def test_nothing_in_a_thought_is_a_call_and_a_thought_may_be_cut():
    words = ANALYSIS + 'use <tool_call>now</tool_call> to="x" <|chan'
    found = reading(words, "harmony", "hermes")
    assert (found.thoughts, found.text, found.calls) == ([words.removeprefix(ANALYSIS)], "", [])
    line = stages(["harmony"])
    out = [*line.feed(TextDelta(ANALYSIS + "a<|e")), *line.feed(CallStarted("c", "f")), CallEnded("c")]
    found = told([*out, *line.feed(TextDelta("b<|end|>c")), *line.feed(TurnEnded())])
    assert (found.thoughts, found.text) == (["a<|e"], "bc")


@pytest.mark.parametrize(
    "words",
    [
        "plain <|text|> and <|end|> and <|call|>",
        "<|channel|>",
        "<|channel|>final",
        "<|channel|>gossip<|message|>x<|end|>",
        "<|start|>user<|message|>x<|end|>",
        "<|channel|>commentary to=functions.lose <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.now<|message|>print(1)<|call|>",
        "<|channel|>commentary to=functions.now<|message|>",
        "<|channel|>" + "x" * 400 + "<|message|>",
        "```\n<|channel|>final<|message|>x<|end|>\n```",
        "`<|channel|>final<|message|>`",
    ],
)
def test_what_is_no_message_stays_text(words):
    found = reading(words, "harmony")
    assert (found.text, found.calls, found.thoughts) == (words, [], [])


def test_harmony_quoted_in_an_answer_is_not_read():
    quoted = f"So:\n```\n{CALL}<|call|>\n```\nor `{CALL}`."
    assert reading(f"{FINAL}{quoted}<|return|>", "harmony").pieces == (quoted,)


def test_without_tools_there_are_still_channels():
    found = reading(f"{ANALYSIS}a<|end|>{FINAL}b", "harmony", declared=())
    assert found.pieces == (frozenset({"a"}), "b")
    assert reading(CALL, "harmony", declared=()).pieces == (CALL,)


@given(st.lists(st.sampled_from(["<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary", " to=functions.find", "<|message|>", "<|end|>", "<|call|>", '{"q":1}', "a", "`", "\n", "<|"]), max_size=14))  # fmt: skip
def test_any_messages_are_read_alike_in_any_chunking(tokens):
    for mode in ("live", "whole"):
        reading("".join(tokens), "harmony", mode=mode)
