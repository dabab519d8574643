"""The rules that a turn by itself can break: sound turns break none, and every fault breaks the rules of its row."""

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import pytest

from tests.check import chat_turns, gemini_turns, messages_turns, responses_faults, responses_turns, sse_turns
from tests.check.streams import Change, Fault, Frame, Frames, Json, broken, findings, ids, numbered, read, wire
from tests.support.chunks import chunkings, in_any_chunking
from tests.support.schemas import events as package_events
from toolwire.check.rules import CAUSES, RULES, find_roots
from toolwire.check.turns.responses_items import CORE, HOSTED
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.streams import check_plain
from toolwire.protocols import detect_dialect

SOUND: dict[str, tuple[Frames, RequestFacts]] = {
    f"{module.ASKED.api}: {name}": each
    for module in (chat_turns, messages_turns, responses_turns, gemini_turns)
    for name, each in {"sound": (module.sound(), module.ASKED), **module.ALSO_SOUND}.items()
}
FAULTS = [
    *chat_turns.STREAM_FAULTS,
    *messages_turns.STREAM_FAULTS,
    *responses_faults.STREAM_FAULTS,
    *gemini_turns.STREAM_FAULTS,
]
PLAIN: dict[str, tuple[Callable[[], Json], dict[str, tuple[str, Change]]]] = {
    "chat": (chat_turns.plain, chat_turns.PLAIN_FAULTS),
    "messages": (messages_turns.plain, messages_turns.PLAIN_FAULTS),
    "responses": (responses_turns.plain, responses_faults.PLAIN_FAULTS),
    "gemini": (gemini_turns.plain, gemini_turns.PLAIN_FAULTS),
}
ALSO_SOUND_PLAIN: dict[str, dict[str, Change]] = {
    "chat": chat_turns.ALSO_SOUND_PLAIN,
    "messages": messages_turns.ALSO_SOUND_PLAIN,
    "responses": responses_faults.ALSO_SOUND_PLAIN,
    "gemini": gemini_turns.ALSO_SOUND_PLAIN,
}
PLAIN_FAULTS = [(api, what) for api, (_, table) in PLAIN.items() for what in table]
ASKED = {
    facts.api: facts for facts in (chat_turns.ASKED, messages_turns.ASKED, responses_turns.ASKED, gemini_turns.ASKED)
}
STREAMS: dict[str, Callable[[], Frames]] = {
    "chat": chat_turns.sound,
    "messages": messages_turns.sound,
    "responses": responses_turns.sound,
    "gemini": gemini_turns.sound,
}
NO_JSON = {
    "nothing": b"",
    "text": b"Bad Gateway",
    "a list": b"[]",
    "cut": b'{"id":',
    "of another encoding": b'{"id":"caf\xe9"}',
    "deeper than anybody reads": sse_turns.DEEP,
}
IN_A_CONVERSATION = {"sse.content-type", "stream.whole", "stream.live"}
"""What is not seen in bytes alone: the content type, and when they come and break off."""
NEVER_ALONE = {"messages.block-keys", "messages.input"}
"""A call without id, name or input in Messages breaks the rules for calls of every API as well."""


def faulty(fault: Fault) -> tuple[Frames, int | None]:
    frames = fault.sound()
    return frames, fault.change(frames)


def plain_findings(body: Json, api: str) -> list[Finding]:
    return check_plain(json.dumps(body).encode(), ASKED[api])[0]


def faulty_answer(api: str, what: str) -> tuple[Json, frozenset[str]]:
    sound, table = PLAIN[api]
    rules, change = table[what]
    frames = [Frame(None, sound())]
    change(frames)
    return frames[0].data, ids(api, rules)


def also_of_gemini(rules: set[str], data: bytes) -> set[str]:
    """The rules of framing that a stream of Gemini breaks: its clients read data alone, and any line end.
    An event that does not end is not read.
    """
    other = re.search(rb"^(:|event|id|retry)", data, re.MULTILINE) is not None
    also = {"sse.data-only"} if other and rules != {"sse.ended"} else set[str]()
    return rules - {"sse.newline", "sse.empty-event"} | also


# The table


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_stream_breaks_no_rule(name: str):
    assert findings(*SOUND[name]) == []


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_breaks_exactly_its_rules(fault: Fault):
    assert broken(faulty(fault)[0], fault.facts) == fault.rules


@pytest.mark.parametrize("api", STREAMS)
@pytest.mark.parametrize("what", sse_turns.FAULTS)
def test_bad_framing_breaks_exactly_its_rule(api: str, what: str):
    rule, change = sse_turns.FAULTS[what]
    data = change(wire(STREAMS[api]()))
    found, _ = read(data, ASKED[api])
    assert {finding.rule for finding in found} == also_of_gemini({rule}, data) if api == "gemini" else {rule}


@pytest.mark.parametrize("api", STREAMS)
@pytest.mark.parametrize("what", sse_turns.SOUND)
def test_sound_framing_breaks_no_rule(api: str, what: str):
    data = sse_turns.SOUND[what](wire(STREAMS[api]()))
    expected = also_of_gemini(set(), data) if api == "gemini" else set[str]()
    assert {finding.rule for finding in read(data, ASKED[api])[0]} == expected


@pytest.mark.parametrize("api", STREAMS)
@pytest.mark.parametrize("what", [*sse_turns.ID_FAULTS, *sse_turns.IDS])
def test_ids_of_events_differ_and_responses_has_none(api: str, what: str):
    change = {**sse_turns.ID_FAULTS, **sse_turns.IDS}[what]
    found, _ = read(change(wire(STREAMS[api]())), ASKED[api])
    also = {"responses": {"responses.sse-id"}, "gemini": {"sse.data-only"}}
    rules = {"sse.id"} if what in sse_turns.ID_FAULTS else set[str]()
    assert {finding.rule for finding in found} == rules | also.get(api, set())


@pytest.mark.parametrize(
    ("api", "also"),
    [
        ("chat", {"chat.done-marker"}),
        ("messages", {"messages.closing"}),
        ("responses", {"responses.done-marker"}),
        ("gemini", {"gemini.finish"}),
    ],
)
def test_a_last_event_that_does_not_end_is_no_event(api: str, also: set[str]):
    found, _ = read(wire(STREAMS[api]())[:-1], ASKED[api])
    assert {finding.rule for finding in found} == {"sse.ended", *also}


@pytest.mark.parametrize("api", PLAIN)
def test_a_sound_answer_breaks_no_rule(api: str):
    assert plain_findings(PLAIN[api][0](), api) == []


@pytest.mark.parametrize(("api", "what"), [(api, what) for api in PLAIN for what in ALSO_SOUND_PLAIN[api]])
def test_other_sound_answers_break_no_rule(api: str, what: str):
    frames = [Frame(None, PLAIN[api][0]())]
    ALSO_SOUND_PLAIN[api][what](frames)
    assert plain_findings(frames[0].data, api) == []


@pytest.mark.parametrize(("api", "what"), PLAIN_FAULTS)
def test_a_fault_in_an_answer_breaks_exactly_its_rules(api: str, what: str):
    body, rules = faulty_answer(api, what)
    assert {finding.rule for finding in plain_findings(body, api)} == rules


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
@pytest.mark.parametrize("api", PLAIN)
def test_an_answer_that_is_no_object_breaks_one_rule(api: str, body: bytes):
    assert [finding.rule for finding in check_plain(body, ASKED[api])[0]] == ["plain.json"]


def rows() -> list[frozenset[str]]:
    """The rules of every row of every table."""
    return [
        *(fault.rules for fault in FAULTS),
        *(faulty_answer(*row)[1] for row in PLAIN_FAULTS),
        *(frozenset({rule}) for rule, _ in sse_turns.FAULTS.values()),
        *(frozenset({rule}) for rule in ("plain.json", "sse.id", "responses.sse-id")),
    ]


def test_every_rule_about_turns_has_a_fault():
    turns = {rule.id for rule in RULES.values() if rule.on != "conversation"}
    assert {rule for row in rows() for rule in row} == turns - IN_A_CONVERSATION


def test_every_rule_about_turns_can_be_broken_alone():
    turns = {rule.id for rule in RULES.values() if rule.on != "conversation"}
    assert {rule for row in rows() for rule in row if len(row) == 1} == turns - IN_A_CONVERSATION - NEVER_ALONE


# Causes


def test_no_rule_explains_itself():
    assert [rule for rule, causes in CAUSES.items() if rule in causes] == []


def test_a_rule_explains_rules_that_there_are():
    areas = {rule.area for rule in RULES.values()}
    named = {name for rule in RULES.values() for name in rule.explains}
    assert {name for name in named if name not in RULES and name.removesuffix(".*") not in areas} == set()


@pytest.mark.parametrize("row", sorted({tuple(sorted(row)) for row in rows() if len(row) > 1}), ids="-".join)
def test_whatever_one_fault_breaks_has_one_cause(row: tuple[str, ...]):
    assert len(find_roots(row)) == 1


# Findings


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_finding_points_at_the_frame_that_has_the_fault(fault: Fault):
    frames, index = faulty(fault)
    indexes = {shown for finding in findings(frames, fault.facts) for shown in finding.frames}
    assert indexes <= set(range(len(frames)))
    assert index is None or index in indexes


@pytest.mark.parametrize("api", STREAMS)
@pytest.mark.parametrize("what", sse_turns.FAULTS)
def test_bad_framing_points_at_frames_that_are_there(api: str, what: str):
    found, received = read(sse_turns.FAULTS[what][1](wire(STREAMS[api]())), ASKED[api])
    assert {index for finding in found for index in finding.frames} <= {each.position for each in received}


@pytest.mark.parametrize("data", [b"", b"data: {", b": Hi\n\n", b"Bad Gateway\n\n"])
def test_a_stream_without_frames_has_none_to_point_at(data: bytes):
    found, received = read(data, chat_turns.ASKED)
    assert (received, {index for finding in found for index in finding.frames}) == ([], set())


@pytest.mark.parametrize(("api", "what"), PLAIN_FAULTS)
def test_an_answer_has_no_frames(api: str, what: str):
    body, _ = faulty_answer(api, what)
    assert {index for finding in plain_findings(body, api) for index in finding.frames} == set()


# Chunking


@pytest.mark.parametrize("fault", random.Random(1).sample(FAULTS, 24), ids=str)
def test_findings_are_the_same_in_any_chunking(fault: Fault):
    data = wire(faulty(fault)[0])
    in_any_chunking(data, lambda pieces: read(pieces, fault.facts))


@pytest.mark.parametrize("what", sse_turns.FAULTS)
def test_bad_framing_is_found_in_any_chunking(what: str):
    rule, change = sse_turns.FAULTS[what]
    for pieces in chunkings(change(wire(chat_turns.sound()))):
        assert {finding.rule for finding in read(pieces, chat_turns.ASKED)[0]} == {rule}


def test_a_long_line_in_single_bytes_takes_no_longer_than_it_is():
    data = b'data: {"x":"' + b"x" * 300_000 + b'"}\n\n'
    found, received = read((data[index : index + 1] for index in range(len(data))), chat_turns.ASKED)
    assert len(received) == 1
    assert "sse.ended" not in {finding.rule for finding in found}


# Completeness of the reader of Responses, whose stream says everything three times


@pytest.mark.parametrize("index", range(len(responses_turns.sound())))
def test_an_event_that_is_lost_without_a_gap_is_missed(index: int):
    frames = responses_turns.sound()
    del frames[index]
    assert findings(numbered(frames), responses_turns.ASKED)


def test_neighbours_of_one_item_cannot_change_places():
    frames = responses_turns.sound()[:-1]
    for index, (first, second) in enumerate(pairwise(frames)):
        swapped = deepcopy([*frames[:index], second, first, *frames[index + 2 :]])
        assert findings(numbered(swapped), responses_turns.ASKED) or (
            first.data.get("output_index") != second.data.get("output_index")
        )


@pytest.mark.parametrize("index", range(len(messages_turns.sound())))
def test_an_event_of_messages_that_is_lost_is_missed(index: int):
    frames = messages_turns.sound()
    lost = frames.pop(index)
    harmless = lost.type == "ping" or index in (messages_turns.THOUGHT, messages_turns.SIGNED, messages_turns.MORE_B)
    assert bool(findings(frames, messages_turns.ASKED)) != harmless


def test_an_empty_stream_breaks_the_rules_of_beginning_and_end():
    assert broken([], responses_turns.SOCKET) == {f"responses.{rule}" for rule in ("opening", "in-progress", "closing")}
    assert broken([], messages_turns.ASKED) == {"messages.opening", "messages.closing"}
    assert broken([], chat_turns.ASKED) == {"chat.done-marker", "chat.finish"}
    assert broken([], gemini_turns.ASKED) == {"gemini.finish"}


def test_every_event_that_the_sdk_knows_is_known():
    assert [name for name in package_events() if name not in CORE and not name.startswith(HOSTED)] == []


# Whose words


@pytest.mark.parametrize("api", STREAMS)
def test_an_api_is_known_by_its_first_words(api: str):
    assert detect_dialect(STREAMS[api]()[0].data) == api
    assert detect_dialect(PLAIN[api][0]()) == api


@pytest.mark.parametrize("value", [{}, {"type": "x"}, {"type": ["message"]}, {"object": 1}])
def test_the_words_of_others_are_of_no_api(value: Json):
    assert detect_dialect(value) is None


@pytest.mark.parametrize(("status", "rules"), [("completed", {"calls.json"}), ("incomplete", set[str]())])
def test_half_a_call_is_told_as_half_a_call(status: str, rules: set[str]):
    """Codex runs a call when its item is completed, also in a response that is not."""
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "look",
        "arguments": '{"p',
        "status": status,
    }
    body = {**responses_turns.plain(), "status": "incomplete", "output": [item], **responses_turns.TOO_LONG}
    answer = json.dumps(body).encode()
    assert {finding.rule for finding in check_plain(answer, RequestFacts("responses", ("look",)))[0]} == rules
