"""Arguments against the declared schemas: what is noted, what is put right, and what has to wait for the turn's end."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.adapt.arguments import ArgumentJudge, CheckArguments, RepairArguments
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.config.flags import HEADERS, FlagError, with_flags
from toolwire.core.collect import collect
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    Note,
    ReasoningDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.order import TurnOrder
from toolwire.core.policies import Policies
from toolwire.core.request import Request, Tool
from toolwire.core.sse import Frame
from toolwire.turns.schemas import find_problems


def schema(**properties: Any) -> msgspec.Raw:
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    return msgspec.Raw(json.dumps(closed).encode())


BOOK = Tool("book", parameters=schema(days={"type": "integer"}, city={"type": "string"}, when={"type": "object"}))
FREE = Tool("free")
PATCH = Tool("patch", kind="custom")
BROKEN = Tool("broken", parameters=msgspec.Raw(b'{"type":"banana"}'))
REQUEST = Request("m", (), tools=(BOOK, FREE, PATCH, BROKEN))
CHECK, REPAIR = ToolRules(arguments="check"), ToolRules(arguments="repair")
CUT = TurnFailed(Failure(502, "stream_cut", "gone"))


def ignore_twin(_call: str, _twin: str) -> None:
    """These turns have no twins."""


def called(text: str, name: str = "book", id: str = "a", *, complete: bool = True, **fields: Any) -> list[Event]:
    middle = len(text) // 2
    pieces = [CallArgs(id, piece) for piece in (text[:middle], text[middle:]) if piece]
    return [CallStarted(id, name, **fields), *pieces, CallEnded(id, complete)]


def through(*events: Event, rules: ToolRules = REPAIR, request: Request = REQUEST):
    assembly = assemble_policies(request, rules, "S", ignore_twin, validate=find_problems)
    order = TurnOrder()
    out: list[Event] = []
    for event in (TurnStarted(), *events):
        for passed in assembly.policies.feed(event):
            order.check((passed,))
            out.append(passed)
    notes = [(note.code, note.subject) for note in assembly.stats.notes]
    return out, notes


def arguments(*events: Event, **given: Any) -> list[tuple[str, bool]]:
    return [(call.arguments, call.complete) for call in collect(through(*events, **given)[0]).calls]


INVALID = [
    ('{"days": "soon"}', "a $.days type"),
    ('{"nights": 1}', "a $ additionalProperties"),
    ("[1]", "a $ type"),
    ("{'days': it's}", "a $ json"),
]


@pytest.mark.parametrize("rules", [CHECK, REPAIR])
@pytest.mark.parametrize(("text", "subject"), INVALID)
def test_arguments_that_do_not_fit_are_noted_and_passed_on(text: str, subject: str, rules: ToolRules):
    events = *called(text), TurnEnded()
    assert through(*events, rules=rules)[1] == [("arguments_invalid", subject)]
    assert arguments(*events, rules=rules) == [(text, True)]


def test_arguments_are_looked_at_by_default_and_pass_does_not_look():
    events = *called('{"days": "soon"}'), *called("{}", "nobody", "b"), TurnEnded()
    seen = [("arguments_invalid", "a $.days type"), ("tool_undeclared", "nobody")]
    assert through(*events, rules=ToolRules())[1] == seen
    assert through(*events, rules=ToolRules(arguments="pass"))[1] == []


def test_a_schema_with_too_many_objects_is_not_used():
    many = Tool("many", parameters=schema(**{f"p{number}": {} for number in range(600)}))
    _, notes = through(
        *called('{"days": 3}', "many"), TurnEnded(), rules=CHECK, request=Request("m", (), tools=(many,))
    )
    assert notes == [("arguments_unchecked", "many")]


def test_check_holds_nothing_back():
    assembly = assemble_policies(REQUEST, CHECK, "S", ignore_twin, validate=find_problems)
    for event in (TurnStarted(), CallStarted("a", "book"), CallArgs("a", '{"da'), CallArgs("a", 'ys": 1}')):
        assert list(assembly.policies.feed(event)) == [event]


@pytest.mark.parametrize("rules", [CHECK, REPAIR])
def test_a_tool_that_nobody_declared_is_noted(rules: ToolRules):
    assert through(*called("{}", "nobody"), TurnEnded(), rules=rules)[1] == [("tool_undeclared", "nobody")]
    none = Request("m", ())
    assert through(*called("{}", "nobody"), TurnEnded(), rules=rules, request=none)[1] == []


@pytest.mark.parametrize("rules", [CHECK, REPAIR])
def test_a_schema_that_cannot_be_used_is_noted_once_and_changes_nothing(rules: ToolRules):
    events = *called("{'x': 1}", "broken"), *called('{"x": 1}', "broken", "b"), *called('{"y": 1}', "broken", "c")
    out, notes = through(*events, TurnEnded(), rules=rules)
    assert [call.arguments for call in collect(out).calls] == ["{'x': 1}", '{"x": 1}', '{"y": 1}']
    assert notes == [("arguments_invalid", "a $ json"), ("arguments_unchecked", "broken")]


@pytest.mark.parametrize("rules", [CHECK, REPAIR])
def test_custom_calls_have_no_schema(rules: ToolRules):
    events = *called("{'a': not json", "patch", kind="custom"), TurnEnded()
    assert through(*events, rules=rules)[1] == []
    assert arguments(*events, rules=rules) == [("{'a': not json", True)]


def test_a_custom_tool_that_is_called_as_a_function_has_no_schema_either():
    assert through(*called("not json", "patch"), TurnEnded())[1] == []


def test_strings_inside_of_strings_are_not_followed_forever():
    again = Tool("again", parameters=msgspec.Raw(b'{"type":"object","properties":{"o":{"$ref":"#"}}}'))
    request = Request("m", (), tools=(again,))
    for levels, fixed in ((2, True), (9, False)):
        text = "{}"
        for _ in range(levels):
            text = json.dumps({"o": text})
        [(arguments_then, _)] = arguments(*called(text, "again"), TurnEnded(), request=request)
        assert (arguments_then != text) is fixed


def test_what_is_told_inside_a_call_does_not_wait_for_it():
    out, _ = through(CallStarted("a", "book"), CallArgs("a", "{}"), Usage(1, 2), CallEnded("a"), TurnEnded())
    assert out[1:4] == [CallStarted("a", "book"), Usage(1, 2), CallArgs("a", "{}")]


def test_without_a_schema_arguments_are_an_object():
    assert through(*called('{"x": 1}', "free"), TurnEnded())[1] == []
    assert through(*called("3", "free"), TurnEnded(), rules=CHECK)[1] == [("arguments_invalid", "a $ type")]
    assert arguments(*called('"{\\"x\\": 1}"', "free"), TurnEnded()) == [('{"x": 1}', True)]


def test_tools_in_a_namespace_are_found_with_it_and_without():
    tools = (Tool("book", parameters=schema(n={"type": "string"}), namespace="docs"), BOOK)
    request = Request("m", (), tools=tools)
    spaced = called('{"n": "x"}', namespace="docs")
    assert through(*spaced, *called('{"days": 1}', id="b"), TurnEnded(), request=request, rules=CHECK)[1] == []


REPAIRED = [
    ("{'days': 3}", '{"days": 3}', "a quotes"),
    ('{"days": "3"}', '{"days":3}', "a types"),
    ("{'days': '3', city: 'Oslo',}", '{"days":3,"city":"Oslo"}', "a quotes, keys, commas, types"),
    ('"{\\"days\\": \\"3\\"}"', '{"days":3}', "a types"),
    ('{"when": "{\\"x\\": 1}"}', '{"when":{"x": 1}}', "a types"),
    ('{"city": "Oslo"', '{"city": "Oslo"}', "a brackets"),
]


@pytest.mark.parametrize(("text", "expected", "subject"), REPAIRED)
def test_what_is_certain_is_put_right(text: str, expected: str, subject: str):
    out, notes = through(*called(text), TurnEnded())
    turn = collect(out)
    assert [(call.arguments, call.complete) for call in turn.calls] == [(expected, True)]
    assert notes == [("arguments_repaired", subject)]
    assert turn.reason == "calls"


def test_what_was_mended_must_fit():
    events = *called("{'nights': 3}"), TurnEnded()
    assert arguments(*events) == [("{'nights': 3}", True)]
    assert through(*events)[1] == [("arguments_invalid", "a $ json")]


@given(st.dictionaries(st.sampled_from(["days", "city"]), st.integers() | st.text()), st.sampled_from([None, 2]))
def test_what_fits_is_never_changed(value: dict[str, Any], indent: int | None):
    text = json.dumps(value, indent=indent)
    if find_problems(bytes(BOOK.parameters or b""), text):
        return
    events = called(text)
    out, notes = through(*events, TurnEnded())
    assert out == [TurnStarted(), *events, TurnEnded("calls")], "the same events, in their pieces"
    assert notes == []


def test_pieces_that_fit_keep_their_frames():
    frame = Frame(b"x", b"{}")
    policy = Policies(RepairArguments(ArgumentJudge(REQUEST.tools, find_problems)))
    told = [CallStarted("a", "book"), CallArgs("a", "{", frame), CallArgs("a", "}", frame), CallEnded("a")]
    assert [out for event in told for out in policy.feed(event)] == told


# The end of the turn

OPEN = '{"city": "Oslo"'


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("reason", ["stop", "calls"])
def test_brackets_are_closed_when_the_turn_ended_by_itself(complete: bool, reason: Any):
    events = *called(OPEN, complete=complete), Usage(1, 2), TurnEnded(reason)
    out, notes = through(*events)
    assert arguments(*events) == [('{"city": "Oslo"}', True)]
    assert out[-2:] == [Usage(1, 2), TurnEnded("calls")]
    assert notes == [("arguments_repaired", "a brackets")]


def test_nothing_is_made_of_a_call_that_is_damaged():
    *events, _ = called(OPEN, complete=False)
    damaged = *events, CallEnded("a", complete=False, damaged=True), TurnEnded()
    assert arguments(*damaged) == [(OPEN, False)]
    assert [code for code, _ in through(*damaged)[1]] == ["call_incomplete"]


@pytest.mark.parametrize("end", [TurnEnded("length"), TurnEnded("filter"), CUT])
@pytest.mark.parametrize("text", [OPEN, "{'city': 'Oslo'}"])
def test_a_call_that_was_cut_stays_cut(text: str, end: TurnEnded | TurnFailed):
    events = *called(text, complete=False), end
    assert arguments(*events) == [(text, False)]
    assert [code for code, _ in through(*events)[1]] == ["call_incomplete"]


def test_brackets_stay_open_in_a_turn_that_ran_out_of_tokens_whatever_the_call_says():
    events = *called(OPEN), TurnEnded("length")
    assert arguments(*events) == [(OPEN, True)]
    assert through(*events)[1] == [("arguments_invalid", "a $ json")]


def test_half_of_a_call_that_happens_to_be_json_is_still_half():
    events = *called('{"days": "3"}', complete=False), TurnEnded()
    assert arguments(*events) == [('{"days": "3"}', False)]


def test_what_follows_a_call_that_waits_keeps_its_order():
    rest = [TextDelta("and"), *called("{'days': 2}", id="b"), ReasoningDelta("hm"), *called(OPEN, id="c")]
    out, notes = through(*called(OPEN), *rest, TurnEnded("calls"))
    turn = collect(out)
    assert [call.arguments for call in turn.calls] == ['{"city": "Oslo"}', '{"days": 2}', '{"city": "Oslo"}']
    assert (turn.text, turn.reasoning) == ("and", "hm")
    kinds = [type(event) for event in out if isinstance(event, CallStarted | TextDelta | ReasoningDelta)]
    assert kinds == [CallStarted, TextDelta, CallStarted, ReasoningDelta, CallStarted]
    assert [code for code, _ in notes] == ["arguments_repaired"] * 3


def test_a_call_begins_for_the_client_at_once():
    assembly = assemble_policies(REQUEST, REPAIR, "S", ignore_twin, validate=find_problems)
    events = [TurnStarted(), *called(OPEN)]
    assert [out for event in events for out in assembly.policies.feed(event)] == events[:2]


def test_a_turn_that_fails_inside_a_call_shows_what_came_of_it():
    out, _ = through(CallStarted("a", "book"), CallArgs("a", '{"ci'), CUT)
    assert out[2:] == [CallArgs("a", '{"ci'), CUT]


def test_too_much_behind_a_call_that_waits_lets_it_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.adapt.arguments.MAX_HELD_CHARS", 10)
    out, _ = through(*called(OPEN, complete=False), TextDelta("x" * 20))
    assert out[-2:] == [CallEnded("a", complete=False), TextDelta("x" * 20)]


def test_arguments_without_end_are_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.adapt.arguments.MAX_CHECKED_CHARS", 10)
    events = *called('{"nights": 12345}'), *called('{"nights": 12345}', id="b"), TurnEnded()
    assert through(*events)[1] == [("arguments_too_long", "a"), ("arguments_too_long", "b")]


@pytest.mark.parametrize("rules", [CHECK, REPAIR])
def test_arguments_with_half_a_character_are_checked_like_others(rules: ToolRules):
    good, bad = '{"city": "\\ud83d"}', '{"city": "\\ud83d", "days": "3"}'
    events = *called(good), *called(bad, id="b"), TurnEnded()
    assert through(*events, rules=rules)[1] == [("arguments_invalid", "b $.days type")]
    assert arguments(*events, rules=rules) == [(good, True), (bad, True)]


def test_repaired_calls_stand_in_the_text_of_obsidian():
    rules = ToolRules(arguments="repair", output_mode="obsidian-xml")
    out, _ = through(*called("{'city': 'Oslo'}"), TurnEnded(), rules=rules)
    assert "<city>Oslo</city>" in collect(out).text


def test_the_header_says_what_is_done():
    header = "x-proxy-tool-arguments"
    assert with_flags(REPAIR, HEADERS, {header: ""}) is REPAIR
    assert with_flags(REPAIR, HEADERS, {header: "check"}).arguments == "check"
    with pytest.raises(FlagError, match="pass, check or repair"):
        with_flags(REPAIR, HEADERS, {header: "mend"})


def test_an_end_without_a_beginning_passes():
    policies = Policies(CheckArguments(ArgumentJudge(REQUEST.tools, find_problems)))
    assert list(policies.feed(CallEnded("a"))) == [CallEnded("a")]


def test_notes_name_no_values():
    _, notes = through(*called('{"city": 1, "days": "secret"}'), TurnEnded(), rules=CHECK)
    assert notes
    assert all("secret" not in subject for _, subject in notes)
    assert isinstance(Note(*notes[0]), Note)
