"""The codex backend: what is made of app-server's messages, recorded and made up."""

import json
import random
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codex_lines import (
    ASKING,
    BEGUN,
    OPENED,
    RECORDINGS,
    STARTED,
    TURN,
    Talk,
    answered,
    asked,
    completed,
    counted,
    delta,
    ended,
    failed,
    failing,
    ids,
    message,
    noted,
    played,
    probed,
    raw,
    raw_call,
    raw_output,
    raw_text,
    recorded,
    refused,
    scenes,
    talk,
    text_of,
    tokens,
    told,
    with_results,
)
from toolwire.backends import codex
from toolwire.backends.codex import protocol
from toolwire.backends.codex.protocol import UNASSIGNED
from toolwire.core.collect import Reasoning, Text
from toolwire.core.events import (
    MessageEnded,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnFailed,
    Usage,
)
from toolwire.core.jsonrpc import write_notification
from toolwire.core.request import Request

CallTold: TypeAlias = tuple[str, str, str]
Ending: TypeAlias = str | tuple[int, str, bool]
"""Why a turn ended, or the status and code of its failure and whether to ask again."""

PARIS, OSLO, UTC = '{"city":"Paris"}', '{"city":"Oslo"}', '{"tz":"UTC"}'
WEATHER = ("call_1", "get_weather", PARIS)
CUT, TOOLS_REFUSED, INTERRUPTED = (
    (502, "stream_cut", True),
    (400, "invalid_tools", False),
    (502, "turn_interrupted", True),
)


def said(text: str, *calls: CallTold, ending: Ending = "stop") -> tuple[str, list[CallTold], Ending]:
    return text, [*calls], ending


NOTHING_CAME = said("", ending=CUT)

TURNS: dict[str, list[tuple[str, list[CallTold], Ending]]] = {
    "01": [said("Hello! How can I help?")],
    "02": [said("It is 21 C in Paris.", ("call_weather_1", "get_weather", PARIS))],
    "03": [said("All done.", ("call_3", "get_time", UTC), WEATHER, ("call_2", "get_weather", OSLO))],
    "04": [said("Let me look that up.21 C.", WEATHER)],
    "05": [said("The tool failed.", WEATHER)],
    "06": [said("The tool failed.", WEATHER)],
    "07": [said("The tool failed.", WEATHER)],
    "08": [said("Sorry.")],
    "09": [said("Done.", ("call_3", "get_weather", '{"town":"Paris"}'))],
    "10": [said("", ("call_2", "get_time", UTC), WEATHER, ending=INTERRUPTED), said("OK.")],
    "11": [said("This is a long answer that will ", ending=INTERRUPTED), said("OK.")],
    "12": [said("Recovered.")],
    "13": [said("", ending=(502, "server_error", True))],
    "14": [said("", ending=(429, "rate_limit_exceeded", True))],
    "15": [said("", ending=(429, "usage_limit_reached", False))],
    "16": [said("", ending=(400, "invalid_value", False))],
    "17": [said("", ending=(401, "unauthorized", False))],
    "18": [said("A partial answer that ge", ending=CUT)],
    "19": [said("", WEATHER, ending=CUT)],
    "20": [NOTHING_CAME],
    "21": [NOTHING_CAME],
    "22": [NOTHING_CAME],
    "23": [said("", ending=(400, "context_length_exceeded", False))],
    "24": [said("Recovered.")],
    "25": [said("Truncated ans", ending="length")],
    "26": [said("21 C.", WEATHER)],
    "27": [said("Hi.")],
    "28": [said("You asked about Paris.")],
    "29": [said("It is 21 C.")],
    "30": [said("", ending=(500, "codex_refused", False))],
    "31": [said('{"answer":"42"}'), said("plain")],
    "32": [said("Done.", ("call_2", "get_weather", PARIS), ("call_1", "lookup", '{"id":"T-1"}'))],
    "33": [
        said("Done.", ("call_3", "get_weather", '{"city":"Rome"}'), WEATHER, ("call_2", "get_weather", OSLO)),
    ],
    "34": [
        said(
            "Let me check.",
            ("call_1", "get_weather", '{"city": "Paris"}'),
            ("call_2", "get_time", '{"tz": "UTC"}'),
        ),
        said("21 C."),
    ],
    "35": [said("OK, in French: 21 degres.", WEATHER)],
    "36": [
        said("", ending=(500, "codex_refused", False)),  # not greeted yet
        said("", ending=(500, "codex_refused", False)),  # greeted without what dynamic tools need
        said("", ending=(404, "thread_not_found", True)),
        said("", ending=(404, "thread_not_found", True)),
        said("", ending=(500, "codex_refused", False)),  # a thread that is no string
    ],
    "37": [
        *[said("", ending=TOOLS_REFUSED)] * 4,
        *[NOTHING_CAME] * 2,
        *[said("", ending=TOOLS_REFUSED)] * 2,
        NOTHING_CAME,
        *[said("", ending=TOOLS_REFUSED)] * 2,
        NOTHING_CAME,
        *[said("", ending=TOOLS_REFUSED)] * 3,
    ],
    "38": [said("ok")],
    "39": [said("Done.", WEATHER)],
    "40": [said("Both answered.", WEATHER)],
    "41": [said("hi"), NOTHING_CAME],
    "42": [said("ok")],
    "43": [said("")],
    "44": [said("", WEATHER, ending=CUT)],
    "45": [
        said("Answer A.", ("call_A", "get_weather", '{"city":"A"}')),
        said("Answer B.", ("call_B", "get_weather", '{"city":"B"}')),
    ],
    "46": [said("21 C.", WEATHER)],
    "47": [said("21 C.", WEATHER)],
    "48": [NOTHING_CAME],
    "49": [said("no usage")],
    "50": [said("21 C.", WEATHER)],
    "51": [said("ok")],
    "52": [said("ok")],
    "53": [said("Thinking aloud.Final.")],
    "54": [said("done", WEATHER, ("call_S02", "get_weather", OSLO))],
    "55": [said("")],
    "56": [said("Hi.")],
    "57": [said("21 C.", WEATHER)],
    # A model that calls tools from a script, which the configuration of workers does not allow: no raw item of the call.
    "58": [said("", ("exec-798b8e9b-c7e9-40b7-81ff-80b7898c3c4e", "get_weather", PARIS)), said("21 C.")],
    "59": [said("Hi.")],
    "60": [said("Hi.")],
    "61": [said("OK.")],
    "62": [said("Hi.")],
    "63": [said("", ("call_2", "get_weather", PARIS), ending=INTERRUPTED), said("OK.")],
    "64": [said("OK.", ("call_3", "get_weather", PARIS))],
}
"""What each recorded conversation comes to: its text, its calls, its end.

Most were recorded without raw events and with a client that answered by itself, so the turn went on behind its calls.
"""


def outcome(made: Talk) -> tuple[str, list[CallTold], Ending]:
    turn = made.turn
    failure = turn.failure
    ending = turn.reason if failure is None else (failure.status, failure.code, failure.retryable)
    return turn.text, made.calls, ending


def test_every_recording_is_in_the_table():
    assert sorted(path.name[:2] for path in RECORDINGS.glob("*.jsonl")) == sorted(TURNS)


@pytest.mark.parametrize("name", TURNS)
def test_a_recording_comes_to_its_turns(name: str):
    assert [outcome(made) for scene in scenes(name) for made in played(scene)] == TURNS[name]


@pytest.mark.parametrize("name", TURNS)
def test_a_recording_says_the_same_in_any_chunking(name: str):
    some = random.Random(name)
    for scene in scenes(name):
        first = [(made.turn, made.said()) for made in played(scene)]
        length = sum(map(len, scene.lines))
        for cut in ((), range(length), *(some.sample(range(length), min(length, 9)) for _ in range(4))):
            assert [(made.turn, made.said()) for made in played(scene, cut)] == first


@given(st.sampled_from(sorted(TURNS)), st.lists(st.integers(0, 40_000), max_size=12))
def test_a_recording_comes_to_its_turns_however_it_is_cut(name: str, cut: list[int]):
    assert [outcome(made) for scene in scenes(name) for made in played(scene, cut)] == TURNS[name]


def heard(name: str, method: str) -> list[Any]:
    """The parameters of all messages with this method, as they were recorded."""
    rows = [row["msg"] for row in recorded(name) if row["dir"] == "server_to_client"]
    return [each["params"] for each in rows if each.get("method") == method]


@pytest.mark.parametrize("name", [name for name, turns in TURNS.items() if all(end == "stop" for *_, end in turns)])
def test_text_is_told_once_and_is_what_the_messages_say_in_the_end(name: str):
    items = [each["item"] for each in heard(name, "item/completed")]
    whole = sorted(item["text"] for item in items if item["type"] == "agentMessage")
    texts = [made.turn.text for scene in scenes(name) for made in played(scene)]
    assert sorted("".join(texts)) == sorted("".join(whole))
    assert all(text in "".join(texts) for text in whole)


@pytest.mark.parametrize("name", TURNS)
def test_each_call_is_told_once_with_the_id_that_the_model_gave_it(name: str):
    calls = [call.id for scene in scenes(name) for made in played(scene) for call in made.turn.calls]
    wanted = [each["callId"] for each in heard(name, "item/tool/call")]
    assert len(calls) == len(set(calls)) == (len(wanted) if name == "54" else len(set(wanted)))
    assert set(calls) >= set(wanted)  # of two calls with one id, the second has its own


def test_calls_come_in_the_order_of_the_models_own_items():
    [scene] = scenes("34")
    first, second = played(scene)
    items = [each["item"] for each in heard("34", "rawResponseItem/completed")]
    assert [call.id for call in first.turn.calls] == [i["call_id"] for i in items if i["type"] == "function_call"]
    assert [(text_of(result), result["success"]) for result in second.answers().values()] == [
        ("21", True),
        ("21", True),
    ]


def test_tokens_are_counted_once_over_a_turn_that_waited():
    [scene] = scenes("34")
    assert [made.turn.usage for made in played(scene)] == [Usage(100, 20, 40, 0, 5), Usage(100, 20, 40, 0, 5)]


# Calls

ORDERS = st.permutations(range(3)).flatmap(
    lambda order: st.tuples(st.just(order), st.lists(st.integers(0, 4), min_size=3, max_size=3))
)


def arrivals(order: list[int], places: list[int]) -> list[bytes]:
    """Three items of the model and the end of its response, with the requests put between them."""
    steps = [[raw_call(f"c{number}", arguments=f'{{"n": {number}}}')] for number in range(3)] + [[completed()]]
    gaps: list[list[bytes]] = [[] for _ in range(5)]
    for number, place in zip(order, sorted(places), strict=True):
        gaps[place].append(asked(number, f"c{number}", arguments={"n": number}))
    return [line for gap, step in zip(gaps, [*steps, []], strict=True) for line in (*gap, *step)]


@given(ORDERS)
def test_calls_come_in_the_models_order_whatever_order_they_are_asked_for_in(drawn: tuple[list[int], list[int]]):
    made = talk(raw_text("Go.", "msg_0", "user"))
    for line in arrivals(*drawn):
        assert not made.is_over
        made.hear(line)
    assert made.calls == [(f"c{number}", "f", f'{{"n": {number}}}') for number in range(3)]
    assert made.is_over, "the last of them ends the turn"
    assert made.turn.notes == ()
    assert made.dialogue.waiting is not None
    assert ids(made.dialogue.waiting.calls) == ["c0", "c1", "c2"]


def test_a_request_may_come_before_all_raw_items():
    made = talk(asked(0, "c1"), raw_call("c1"), completed())
    assert made.calls == [("c1", "f", "{}")]
    assert made.is_over


@pytest.mark.parametrize(
    "lines",
    [
        (raw_call("c1"), asked(0, "c1"), asked(1, "c1"), completed()),
        (raw_text("Go.", "msg_0", "user"), asked(0, "c1"), asked(1, "c1"), raw_call("c1"), completed()),
        (raw_call("c1"), asked(0, "c1"), completed(), asked(1, "c1")),
    ],
)
def test_a_request_that_comes_twice_is_one_call_and_is_answered_twice(lines: tuple[bytes, ...]):
    made = talk(*lines)
    assert made.calls == [("c1", "f", "{}")]
    later = made.answers()
    assert made.dialogue.waiting is not None
    after = Talk(with_results(ASKING, made.turn), made.dialogue.waiting)
    assert sorted({**later, **after.answers()}) == [0, 1]


def test_a_raw_item_that_comes_twice_is_one_call():
    made = talk(raw_call("c1"), raw_call("c1"), asked(0, "c1"), raw_call("c1"), completed())
    assert made.calls == [("c1", "f", "{}")]
    assert made.is_over


def test_two_calls_with_one_id_stay_two_and_their_thread_does_not_go_on():
    made = talk(
        raw_call("c1", arguments='{"n":1}', item="fc_1"),
        raw_call("c1", arguments='{"n":2}', item="fc_2"),
        completed(),
        asked(0, "c1", arguments={"n": 1}),
        asked(1, "c1", arguments={"n": 2}),
    )
    [(first, *one), (second, *two)] = made.calls
    assert (first, one, two) == ("c1", ["f", '{"n":1}'], ["f", '{"n":2}'])
    assert made.notes == [("id_reused", second)]
    assert made.dialogue.waiting is None, "app-server would give the result of the one to the other"


@pytest.mark.parametrize("same", [False, True], ids=["other", "equal"])
def test_two_requests_with_one_id_and_no_items_are_two_calls(same: bool):
    other = {"n": 1 if same else 2}
    made = talk(asked(0, "c1", arguments={"n": 1}), asked(1, "c1", arguments=other), completed())
    [(first, *one), (second, *two)] = made.calls
    assert (first, one, two) == ("c1", ["f", '{"n":1}'], ["f", json.dumps(other, separators=(",", ":"))])
    assert made.notes == [("id_reused", second)]
    assert made.dialogue.waiting is None, "app-server would give the result of the one to the other"


def test_a_request_with_a_known_id_and_other_arguments_is_another_call():
    made = talk(
        raw_call("c1", arguments='{"n":1}'), *(asked(n, "c1", arguments={"n": n + 1}) for n in (0, 1)), completed()
    )
    assert [arguments for _, _, arguments in made.calls] == ['{"n":1}', '{"n":2}']
    assert [code for code, _ in made.notes] == ["id_reused"]


@pytest.mark.parametrize("more", [{"arguments": None}, {"arguments": ""}, {"arguments": {}}, {"arguments": "{}"}])
def test_a_call_without_arguments_has_an_empty_object(more: dict[str, Any]):
    assert talk(asked(0, "c1", **more)).calls == [("c1", "f", "{}")]
    assert talk(raw_call("c1", **more), asked(0, "c1", **more), completed()).calls == [("c1", "f", "{}")]


def test_a_call_that_does_not_say_arguments_has_an_empty_object():
    line = told("item/tool/call", 0, callId="c1", tool="f")
    assert talk(line).calls == [("c1", "f", "{}")]


def test_arguments_of_the_raw_item_stand_to_the_letter():
    made = talk(raw_call("c1", arguments='{"b": 1,  "a": 1e2}'), asked(0, "c1", arguments={"a": 100.0, "b": 1}))
    assert made.calls == [("c1", "f", '{"b": 1,  "a": 1e2}')]


REFUSED = [raw_call("c1", "stranger"), raw_call("c1", arguments='{"a":'), raw_call("c1", arguments="")]


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_that_app_server_answers_by_itself_is_not_told(call: bytes):
    made = talk(call, completed(), raw_output("c1"), delta("Sorry."), message("Sorry."), completed(), ended())
    assert (made.calls, made.turn.text) == ([], "Sorry.")
    assert made.notes == [("call_refused", "c1")]
    assert made.turn.reason == "stop"
    assert made.dialogue.waiting is None


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize("refusal", [0, 1])
def test_a_call_beside_one_that_was_refused_is_told(call: bytes, refusal: int):
    lines = [raw_call("c2"), asked(0, "c2")]
    lines.insert(refusal * 2, call)
    made = talk(*lines, completed())
    assert made.calls == [("c2", "f", "{}")]
    assert made.is_over


def test_a_call_that_is_answered_without_being_asked_for_does_not_hold_up_the_others():
    made = talk(raw_call("c1"), raw_call("c2"), asked(0, "c2"), completed())
    assert made.calls == []
    made.hear(raw_output("c1"))
    assert made.calls == [("c2", "f", "{}")]
    assert made.notes == [("call_refused", "c1")]
    assert made.is_over


def test_a_refused_call_that_is_asked_for_all_the_same_is_told():
    made = talk(raw_call("c1", "stranger"), completed(), asked(0, "c1", "stranger"))
    assert made.calls == [("c1", "stranger", "{}")]
    assert made.is_over


def test_a_request_without_a_raw_item_is_told_when_the_response_is_over():
    made = talk(raw_call("c1"), asked(0, "c1"), asked(1, "c2", "g"), completed())
    assert [id for id, *_ in made.calls] == ["c1", "c2"]


def test_a_request_without_a_raw_item_is_told_after_the_response_too():
    made = talk(raw_call("c1", "stranger"), completed(), asked(0, "c2", "g"))
    assert made.calls == [("c2", "g", "{}")]
    assert made.is_over


def test_without_raw_events_calls_are_told_as_they_are_asked_for():
    made = talk()
    assert [call for call, *_ in made.calls] == []
    made.hear(asked(0, "c2"))
    assert [call for call, *_ in made.calls] == ["c2"]
    made.hear(asked(1, "c1"))
    assert [call for call, *_ in made.calls] == ["c2", "c1"]
    assert not made.is_over, "more may come"
    made.hear(probed("active"))
    assert made.is_over
    assert made.dialogue.waiting is not None
    assert ids(made.dialogue.waiting.calls) == ["c2", "c1"]


def test_a_call_without_id_or_name_is_answered_and_not_told():
    made = talk(asked(0, "", "f"), asked(1, "c1", ""), delta("Well."), ended())
    assert made.calls == []
    assert [result["success"] for result in made.answers().values()] == [False, False]
    assert made.notes == [("call_refused", ""), ("call_refused", "c1")]


def test_a_result_that_answers_no_call_is_noted():
    assert talk(raw_output("c9"), ended()).notes == [("output_dropped", "c9")]


def test_what_is_asked_after_the_end_is_declined():
    made = talk(raw_call("c1"), asked(0, "c1"), completed())
    made.said()
    assert made.hear(asked(1, "c2"), told("execCommandApproval", 2), delta("late"), ended()) == []
    assert made.answers() == {
        1: {"contentItems": [{"type": "inputText", "text": "This conversation is over."}], "success": False},
        2: {"decision": "denied"},
    }


def test_a_request_that_is_no_call_is_declined_and_noted():
    made = talk(told("item/commandExecution/requestApproval", 4), delta("Well."), ended())
    assert made.answers() == {4: {"decision": "decline"}}
    assert made.notes == [("request_declined", "item/commandExecution/requestApproval")]


# A thread that is silent


@pytest.mark.parametrize("status", ["idle", "notLoaded"])
def test_a_thread_that_is_idle_has_ended_its_turn(status: str):
    made = talk(delta("Hello."))
    assert made.hear(probed(status)) == [Note("end_missing"), TurnEnded("stop")]
    assert made.turn.text == "Hello."


@pytest.mark.parametrize("status", ["idle", "notLoaded", "systemError"])
def test_an_idle_thread_that_told_nothing_has_failed(status: str):
    made = talk()
    [event] = made.hear(probed(status))
    assert isinstance(event, TurnFailed)
    assert (event.failure.code, event.failure.retryable) == ("stream_cut", True)


def test_a_thread_with_a_system_error_has_failed():
    made = talk(delta("Hello."), probed("systemError"))
    assert made.turn.failure is not None


def test_an_idle_thread_that_goes_on_and_told_nothing_has_failed():
    first = talk(raw_call("c1"), asked(0, "c1"), completed())
    made = Talk(with_results(ASKING, first.turn), first.dialogue.waiting)
    [event] = made.hear(probed("idle"))
    assert isinstance(event, TurnFailed)
    assert (event.failure.status, event.failure.code, event.failure.retryable) == CUT


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (delta("Hel"),),
        (raw_text("Go.", "msg_0", "user"),),
        (raw_text("Go.", "msg_0", "user"), raw_call("c1"), asked(0, "c1")),
    ],
)
def test_an_active_thread_goes_on(lines: tuple[bytes, ...]):
    made = talk(*lines)
    before = made.calls
    assert made.hear(probed("active")) == []
    assert (made.is_over, made.calls) == (False, before)


def test_an_active_thread_whose_response_is_over_waits_for_the_calls_that_it_asked_for():
    made = talk(raw_call("c1"), raw_call("c2"), asked(0, "c2"), completed())
    assert made.calls == []
    made.hear(probed("active"))
    assert [id for id, *_ in made.calls] == ["c2"]
    assert made.is_over
    assert made.dialogue.waiting is not None


def test_a_slow_model_is_not_cut_off_at_its_first_call():
    made = talk(probed("active"), asked(0, "c1"), asked(1, "c2"))
    assert [id for id, *_ in made.calls] == ["c1", "c2"]


def test_a_request_that_comes_long_after_the_response_still_ends_the_turn():
    made = talk(raw_call("c1"), completed(), probed("active"), asked(0, "c1"))
    assert [id for id, *_ in made.calls] == ["c1"]
    assert made.is_over


def test_a_look_that_fails_says_nothing():
    made = talk(delta("Hel"))
    assert made.hear(refused("probe", "thread not found: x")) == []
    assert not made.is_over


def test_a_look_before_the_turn_began_says_nothing():
    made = Talk()
    assert made.hear(OPENED, probed("idle")) == []


# Text


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((delta("Hel"), delta("lo"), message("Hello"), raw_text("Hello")), "Hello"),
        ((message("Hello"), raw_text("Hello")), "Hello"),
        ((raw_text("Hello"), message("Hello")), "Hello"),
        ((raw_text("Hello"),), "Hello"),
        ((delta("Hel"), message("Hello"), raw_text("Hello, you")), "Hello, you"),
        ((delta("Hel"), message("Other")), "Hel"),
        ((delta("Hel"), message("")), "Hel"),
        ((delta(""), delta("Hi"), message("Hi")), "Hi"),
        ((delta("A"), message("A"), delta("B", "msg_2"), message("B", "msg_2"), raw_text("A")), "AB"),
        ((raw_text("no", "msg_9", "user"), raw_text("no", "msg_9", "developer"), delta("yes")), "yes"),
        ((delta("渐"), delta("😀"), message("渐😀")), "渐😀"),
    ],
)
def test_a_message_is_told_once(lines: tuple[bytes, ...], text: str):
    made = talk(*lines, ended())
    assert made.turn.text == text
    assert made.turn.notes == ()


def test_deltas_are_passed_on_as_they_come():
    made = talk()
    assert [made.hear(delta(text)) for text in ("Hel", "lo")] == [[TextDelta("Hel")], [TextDelta("lo")]]
    assert made.hear(message("Hello")) == []


def test_a_history_that_is_told_before_the_turn_begins_is_not_said_again():
    made = Talk()
    made.hear(OPENED, raw_text("Earlier.", "msg_0"), raw_call("c0"), raw_output("c0"), STARTED, delta("Now."), ended())
    assert (made.turn.text, made.calls, made.turn.notes) == ("Now.", [], ())


def test_a_delta_may_come_before_the_turn_has_started():
    made = Talk()
    made.hear(OPENED, delta("Hi."), message("Hi."), ended())
    assert made.turn.text == "Hi."


# Reasoning


def thought(kind: str, text: str, item: str, **place: int) -> bytes:
    return told(f"item/reasoning/{kind}", itemId=item, delta=text, **place)


def raw_thought(item: str, signature: str | None = None, *summary: str, content: tuple[str, ...] = ()) -> bytes:
    return raw(
        type="reasoning",
        id=item,
        summary=[{"type": "summary_text", "text": text} for text in summary],
        content=[{"type": "reasoning_text", "text": text} for text in content] or None,
        encrypted_content=signature,
    )


def test_thoughts_come_in_pieces_and_end_with_their_seal():
    made = talk()
    assert made.hear(
        thought("summaryTextDelta", "Let ", "rs_1", summaryIndex=0),
        thought("summaryTextDelta", "me", "rs_1", summaryIndex=0),
        thought("summaryTextDelta", "see", "rs_1", summaryIndex=1),
        thought("textDelta", "raw", "rs_1", contentIndex=0),
        told("item/completed", item={"type": "reasoning", "id": "rs_1", "summary": ["Let me", "see"], "content": []}),
        raw_thought("rs_1", "SEAL", "Let me", "see", content=("raw",)),
    ) == [
        ReasoningDelta("Let ", "summary", 0),
        ReasoningDelta("me", "summary", 0),
        ReasoningDelta("see", "summary", 1),
        ReasoningDelta("raw", "content", 0),
        ReasoningEnded("rs_1", "SEAL", "responses"),
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((raw_thought("rs_1", "SEAL"),), Reasoning(id="rs_1", signature="SEAL", origin="responses")),
        (
            (raw_thought("rs_1", "SEAL", "One", "Two"),),
            Reasoning(("One", "Two"), id="rs_1", signature="SEAL", origin="responses"),
        ),
        ((raw_thought("rs_1", None, content=("Deep",)),), Reasoning(content=("Deep",), id="rs_1")),
        ((thought("textDelta", "Deep", "rs_1"), raw_thought("rs_1")), Reasoning(content=("Deep",), id="rs_1")),
        ((thought("summaryTextDelta", "One", "rs_1"),), Reasoning(("One",))),
    ],
)
def test_a_thought_is_told_once(lines: tuple[bytes, ...], expected: Reasoning):
    assert talk(*lines, ended()).turn.items == (expected,)


def test_a_thought_that_says_nothing_is_nothing():
    made = talk(raw_thought("rs_1"), thought("textDelta", "", "rs_1"), ended())
    assert made.turn.items == ()


def test_two_thoughts_are_two():
    made = talk(
        thought("summaryTextDelta", "One", "rs_1", summaryIndex=0),
        thought("summaryTextDelta", "Two", "rs_2", summaryIndex=0),
        raw_thought("rs_2", "SEAL", "Two"),
        ended(),
    )
    first, second = made.turn.items
    assert isinstance(first, Reasoning)
    assert isinstance(second, Reasoning)
    assert (first.summary, second.summary, second.signature) == (("One",), ("Two",), "SEAL")


def test_recorded_thoughts_are_told_apart():
    [scene] = scenes("26")
    [made] = played(scene)
    first, _, second, _ = made.turn.items
    assert isinstance(first, Reasoning)
    assert isinstance(second, Reasoning)
    assert first.summary == ("**Checking** the request", "**Deciding** on a tool")
    assert first.content == ("raw chain of thought",)
    assert second.summary == ("**Answering**",)


def test_a_recorded_thought_has_its_seal():
    [scene] = scenes("34")
    thoughts = [item for item in played(scene)[0].turn.items if isinstance(item, Reasoning)]
    [signed] = [
        each["item"] for each in heard("34", "rawResponseItem/completed") if each["item"]["type"] == "reasoning"
    ]
    assert [(each.id, each.signature, each.origin) for each in thoughts] == [
        (signed["id"], signed["encrypted_content"], "responses")
    ]


# Tokens, limits, warnings


def test_tokens_of_all_responses_are_added():
    usage = tokens(100, 20, cachedInputTokens=40, cacheWriteInputTokens=3, reasoningOutputTokens=5)
    made = talk(delta("A"), completed(usage), delta("B", "msg_2"), completed(tokens(7, 2)), ended())
    assert made.turn.usage == Usage(107, 22, 40, 3, 5)


def test_tokens_of_a_response_that_broke_off_are_in_the_total():
    made = talk(completed(tokens(100, 20)), counted(tokens(150, 30)), ended())
    assert made.turn.usage == Usage(150, 30)


def test_tokens_that_came_with_the_response_stand_while_the_total_is_behind():
    made = talk(counted(tokens(10, 2)), raw_call("c1"), asked(0, "c1"), completed(tokens(100, 20)))
    assert made.turn.usage == Usage(100, 20)


@pytest.mark.parametrize(
    "lines",
    [(), (completed(),), (counted({"totalTokens": 258400}),), (told("thread/tokenUsage/updated"),)],
)
def test_no_tokens_are_no_usage(lines: tuple[bytes, ...]):
    assert talk(*lines, delta("Hi."), ended()).turn.usage is None


def test_tokens_of_a_turn_that_stopped_short_are_told():
    [scene] = scenes("25")
    assert [made.turn.usage for made in played(scene)] == [Usage(10, 5)]


def test_limits_are_the_headers_that_the_models_server_had_sent():
    [params] = heard("27", "account/rateLimits/updated")
    [sent] = [row["headers"] for row in recorded("27") if row["dir"] == "upstream_response"]
    expected = {name: value for name, value in sent.items() if name.startswith("x-codex-")}
    expected["x-codex-primary-used-percent"] = "13"  # was 12.5, which app-server rounds
    assert protocol.make_limit_headers(json.dumps({"params": params}).encode()) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"limitId": "codex", "primary": None, "secondary": None, "credits": None}, {}),
        ({"primary": {"usedPercent": 12.5}}, {"x-codex-primary-used-percent": "12.5"}),
        ({"limitId": "codex_x", "secondary": {"resetsAt": 9}}, {"x-codex_x-secondary-reset-at": "9"}),
        ({"limitId": "codex x\r\n", "secondary": {"resetsAt": 9}}, {"x-codex-secondary-reset-at": "9"}),
        (
            {"credits": {"hasCredits": False, "unlimited": True, "balance": None}},
            {"x-codex-credits-has-credits": "false", "x-codex-credits-unlimited": "true"},
        ),
    ],
)
def test_limits_that_were_not_said_are_no_headers(limits: Any, expected: dict[str, str]):
    assert protocol.make_limit_headers(told("account/rateLimits/updated", rateLimits=limits)) == expected


@pytest.mark.parametrize("line", [b"", b"no", b"{}", b'{"params":null}', b'{"params":{"rateLimits":{"primary":1}}}'])
def test_limits_that_cannot_be_read_are_no_headers(line: bytes):
    assert protocol.make_limit_headers(line) == {}


def test_warnings_and_another_model_are_noted():
    made = Talk()
    made.hear(OPENED, told("warning", message="early"), STARTED, told("warning", message="late"))
    made.hear(told("model/rerouted", fromModel="m", toModel="n"), delta("Hi."), ended())
    assert made.notes == [("backend_warning", "early"), ("backend_warning", "late"), ("model_changed", "n")]


def test_items_that_have_no_place_are_noted():
    made = talk(
        told("item/completed", item={"type": "contextCompaction", "id": "x"}),
        raw(type="web_search_call", id="ws_1"),
        told("item/completed", item={"type": "userMessage", "id": "u", "content": []}),
        told("item/completed", item={"type": "dynamicToolCall", "id": "c1"}),
        told("item/completed"),
        raw_text("Go.", "msg_0", "user"),
        ended(),
    )
    assert made.notes == [("item_dropped", "contextCompaction"), ("item_dropped", "web_search_call")]


def test_notes_about_the_request_are_told_when_the_turn_starts():
    request = Request("m", (), tools=ASKING.tools, extra={"logit_bias": msgspec.Raw(b"1")})
    made = Talk(request)
    assert made.hear(OPENED) == []
    assert noted(made.hear(STARTED)) == ["field_dropped"]


# Failures

DISCONNECTED = {"responseStreamDisconnected": {"httpStatusCode": None}}

FAILURES = [
    ("We’re currently experiencing high demand.", "internalServerError", (502, "server_error", True)),
    ("Selected model is at capacity.", "serverOverloaded", (503, "server_is_overloaded", True)),
    (
        "exceeded retry limit, last status: 429 Too Many Requests",
        {"responseTooManyFailedAttempts": {"httpStatusCode": 429}},
        (429, "rate_limit_exceeded", True),
    ),
    ("You’ve hit your usage limit.", "usageLimitExceeded", (429, "usage_limit_reached", False)),
    ("Quota exceeded.", "usageLimitExceeded", (429, "usage_limit_reached", False)),
    (
        '{"error": {"message": "Invalid", "type": "invalid_request_error", "code": "invalid_value"}}',
        "other",
        (400, "invalid_value", False),
    ),
    (
        "unexpected status 401 Unauthorized: Incorrect API key provided, url: http://x/v1/responses",
        {"httpConnectionFailed": {"httpStatusCode": 401}},
        (401, "unauthorized", False),
    ),
    ("unexpected status 403 Forbidden: no", {"httpConnectionFailed": {"httpStatusCode": 403}}, (403, "forbidden", False)),
    ("no such model", "modelNotFound", (404, "model_not_found", False)),
    ("unexpected status 404 Not Found", {"httpConnectionFailed": {"httpStatusCode": 404}}, (404, "model_not_found", False)),
    ("stream disconnected before completion: stream closed before response.completed", "other", CUT),
    ("stream disconnected before completion: idle timeout waiting for SSE", "other", CUT),
    ("stream disconnected before completion: The model had an error", "other", CUT),
    ("Reconnecting... 1/2", DISCONNECTED, CUT),
    ("Codex ran out of room.", "contextWindowExceeded", (400, "context_length_exceeded", False)),
    ("rate limit exceeded: try again in 1.5s.", "rateLimitExceeded", (429, "rate_limit_exceeded", True)),
    ("bad prompt", "badRequest", (400, "bad_request", False)),
    ("no", "cyberPolicy", (400, "cyber_policy", False)),
    ("error sending request", {"httpConnectionFailed": {"httpStatusCode": None}}, (502, "backend_unreachable", True)),
    ("error sending request", {"responseStreamConnectionFailed": {}}, (502, "backend_unreachable", True)),
    ("unexpected status 503", {"responseStreamConnectionFailed": {"httpStatusCode": 503}}, (503, "backend_unreachable", True)),
    ("odd", {"httpConnectionFailed": {"httpStatusCode": 999}}, (502, "backend_unreachable", True)),
    ("unexpected status 200 OK", "other", (400, "bad_request", False)),
    ("unexpected status 500 Internal Server Error", {"httpConnectionFailed": None}, (500, "backend_unreachable", True)),
    ("not logged in", "unauthorized", (401, "unauthorized", False)),
    ("bad prompt", "other", (400, "bad_request", False)),
    ("what is this", "somethingNew", (502, "server_error", False)),
    ("what is this", None, (502, "server_error", False)),
    ("what is this", {}, (502, "server_error", False)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "info", "expected"), FAILURES)
def test_a_turn_that_failed_says_why(message: str, info: Any, expected: Ending):
    made = talk(failing(message, info), failed(message, info))
    failure = made.turn.failure
    assert failure is not None
    assert (failure.status, failure.code, failure.retryable) == expected
    assert failure.message in message


@pytest.mark.parametrize("status", [413, 422])
def test_a_server_that_refused_was_not_unreachable(status: int):
    info = {"httpConnectionFailed": {"httpStatusCode": status}}
    failure = talk(failed(f"unexpected status {status}: no", info)).turn.failure
    assert failure is not None
    assert (failure.status, failure.retryable) == (status, False)
    assert failure.code != "backend_unreachable"


def test_a_rate_limit_says_when_to_come_back():
    failure = talk(failed("rate limit exceeded: Please try again in 1.5s.", "rateLimitExceeded")).turn.failure
    assert failure is not None
    assert failure.retry_after == "2"


def test_a_refusal_keeps_the_words_and_the_field_of_the_server():
    [scene] = scenes("16")
    failure = played(scene)[0].turn.failure
    assert failure is not None
    assert (failure.message, failure.type) == ("Invalid 'tools[0].name'", "invalid_request_error")
    assert failure.param == "tools[0].name"


@pytest.mark.parametrize(
    ("reason", "expected"), [("max_output_tokens", "length"), ("content_filter", "filter"), ("new_one", "length")]
)
def test_a_response_that_stopped_short_is_no_failure(reason: str, expected: str):
    words = f"Incomplete response returned, reason: {reason}"
    made = talk(delta("Trunc"), failing(words), failed(words))
    assert (made.turn.text, made.turn.reason, made.turn.failure) == ("Trunc", expected, None)


def test_a_turn_that_failed_without_a_word_may_be_asked_for_again():
    failure = talk(ended("failed")).turn.failure
    assert failure is not None
    assert (failure.status, failure.code, failure.retryable) == (502, "server_error", True)


def test_an_error_that_is_tried_again_is_noted_while_nothing_was_shown():
    made = talk(failing("Reconnecting... 1/2", DISCONNECTED, again=True), delta("Fine."), message("Fine."), ended())
    assert (made.turn.text, made.turn.failure) == ("Fine.", None)
    assert made.notes == [("retried", "stream_cut")]


@pytest.mark.parametrize("shown", [(delta("Half"),), (raw_call("c1"), asked(0, "c1")), (asked(0, "c1"),)])
def test_an_error_after_something_was_shown_ends_the_turn(shown: tuple[bytes, ...]):
    made = talk(*shown, failing("Reconnecting... 1/2", DISCONNECTED, again=True), delta("Whole.", "msg_2"), ended())
    failure = made.turn.failure
    assert failure is not None
    assert (failure.code, failure.retryable) == ("stream_cut", True)
    assert "Whole." not in made.turn.text
    assert made.dialogue.waiting is None


REFUSALS = [
    ("thread", "Not initialized", {}, (500, "codex_refused", False)),
    ("thread", "thread/start.dynamicTools requires experimentalApi capability", {}, (500, "codex_refused", False)),
    ("thread", "Invalid request: unknown variant `nope/method`", {}, (500, "codex_refused", False)),
    ("thread", "", {}, (500, "codex_refused", False)),
    ("thread", "Server overloaded; retry later.", {"code": -32001}, (503, "server_is_overloaded", True)),
    ("thread", "dynamic tool name is reserved: mcp__x__y", {}, TOOLS_REFUSED),
    ("thread", "duplicate dynamic tool name: dup", {}, TOOLS_REFUSED),
    ("thread", "deferred dynamic tool must include a namespace: deferred", {}, TOOLS_REFUSED),
    ("inject", "items[0] is not a valid response item: missing field `type`", {}, (500, "codex_refused", False)),
    ("turn", "thread not found: 01a1e06d", {}, (404, "thread_not_found", True)),
    ("turn", "invalid thread id: invalid character", {}, (404, "thread_not_found", True)),
    (
        "turn",
        "Input exceeds the maximum length of 1048576 characters.",
        {"code": -32602, "input_error_code": "input_too_large"},
        (400, "input_too_large", False),
    ),
    ("steer", "no active turn to steer", {}, (404, "thread_not_found", True)),
]


@pytest.mark.parametrize(("name", "words", "more", "expected"), REFUSALS)
def test_a_request_that_app_server_refuses_is_a_failure(name: str, words: str, more: dict[str, Any], expected: Ending):
    made = Talk()
    [event] = made.hear(refused(name, words, **more))
    assert isinstance(event, TurnFailed)
    failure = event.failure
    assert (failure.status, failure.code, failure.retryable) == expected
    assert failure.message == words or not words


def test_all_recorded_refusals_of_tools_name_the_field():
    failures = [made.turn.failure for scene in scenes("37") for made in played(scene)]
    assert {failure.param for failure in failures if failure and failure.code == "invalid_tools"} == {"tools"}


# Whatever comes


def test_a_line_that_cannot_be_read_is_noted():
    made = talk(b"Oops\n", b'{"method":5}\n', b'{"method":"warning","params":{"message":{}}}\n', delta("Hi."), ended())
    assert made.turn.text == "Hi."
    assert made.notes == [("frame_skipped", "")] * 3


def test_lines_that_cannot_be_read_before_the_turn_are_noted_with_it():
    made = Talk()
    assert made.hear(b"Oops\n") == []
    made.hear(BEGUN, ended())
    assert made.notes == [("frame_skipped", "")]


def test_methods_that_nobody_knows_say_nothing():
    assert talk().hear(told("thread/name/updated"), told("item/started", item={"type": "x"}), b"{}\n") == []


def test_a_turn_that_is_another_one_does_not_end_this():
    made = talk(delta("Hi"), ended(turn="tu_0"))
    assert not made.is_over
    made.hear(ended())
    assert made.turn.id == TURN


@pytest.mark.parametrize("lines", [(), (OPENED,), (BEGUN,), (BEGUN, delta("Hal")), (BEGUN, asked(0, "c1"))])
def test_a_stream_that_ends_before_the_turn_is_cut(lines: tuple[bytes, ...]):
    made = Talk()
    made.hear(*lines)
    [event] = made.end()
    assert isinstance(event, TurnFailed)
    assert (event.failure.code, event.failure.retryable) == ("stream_cut", True)


def test_a_plain_answer_is_none():
    conversation = codex.Conversation(ASKING, "S")
    [event] = conversation.feed_plain(b"{}")
    assert isinstance(event, TurnFailed)
    assert event.failure.code == "bad_reply"


ANY_LINES = [
    OPENED,
    STARTED,
    answered("turn", turn={"id": TURN}),
    delta("a"),
    delta("b", "msg_2"),
    message("ab"),
    raw_text("abc"),
    raw_text("no", "msg_0", "user"),
    thought("summaryTextDelta", "t", "rs_1", summaryIndex=0),
    thought("textDelta", "t", "rs_2"),
    raw_thought("rs_1", "SEAL", "t"),
    *(raw_call(f"c{number}") for number in range(3)),
    raw_call("c1", item="fc_other"),
    raw_call("c2", "stranger"),
    raw_call("", ""),
    *(asked(number, f"c{number}") for number in range(3)),
    asked(7, "c1"),
    asked(8, "c9", "stranger"),
    *(raw_output(f"c{number}") for number in range(3)),
    completed(tokens(1, 1)),
    counted(tokens(3, 3)),
    probed("active"),
    probed("idle"),
    failing("Reconnecting... 1/2", DISCONNECTED, again=True),
    failing("no"),
    refused("probe", "no"),
    told("applyPatchApproval", 9),
    told("warning", message="w"),
    told("model/rerouted", toModel="n"),
    told("item/completed", item={"type": "plan", "id": "p"}),
    b"Oops\n",
    ended(),
    failed("no"),
]


@given(st.lists(st.sampled_from(ANY_LINES), max_size=30))
def test_whatever_comes_in_whatever_order_is_a_legal_turn(lines: list[bytes]):
    made = Talk()
    made.hear(OPENED, STARTED, *lines)
    if not made.is_over:
        made.end()
    calls = [call.id for call in made.turn.calls]
    assert len(calls) == len(set(calls)), "no two calls have one id"
    if made.dialogue.waiting is not None:
        assert made.turn.failure is None
        assert set(ids(made.dialogue.waiting.calls)) <= set(calls)


# Messages, and lines of nobody


def test_two_messages_of_a_turn_are_kept_apart():
    for lines in (
        (delta("Let me "), delta("look."), delta("It is 42.", "msg_2")),
        (delta("Let me look."), message("Let me look."), raw_text("Let me look."), message("It is 42.", "msg_2")),
        (raw_text("Let me look."), raw_text("It is 42.", "msg_2")),
    ):
        heard = talk(*lines, completed(), ended()).turn
        assert heard.items == (Text("Let me look."), MessageEnded(""), Text("It is 42."))


def test_lines_that_name_no_thread_are_noted():
    lost = write_notification(UNASSIGNED, message="")
    asked = write_notification(UNASSIGNED, message="item/tool/call")
    made = talk(delta("Hi"), lost, asked, ended(), lost)
    assert made.notes == [("frame_skipped", ""), ("request_declined", "item/tool/call")]
    assert made.answers() == {}
