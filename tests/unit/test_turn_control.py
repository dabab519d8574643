"""Claude Code's control of a turn: system messages that set the effort, or are shown for one turn only."""

import json
from typing import Any

import pytest

from tests.museum.routes import ask_messages, sent
from tests.unit.codex_lines import OPENED, Talk
from toolwire.core.request import Message
from toolwire.dialects import messages

Json = dict[str, Any]

USER = {"role": "user", "content": "Plan it."}
SAID = {"role": "assistant", "content": "One, two, three."}
NEXT = {"role": "user", "content": [{"type": "text", "text": "Sum it up."}]}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]}


def effort(level: str, **fields: Any) -> Json:
    return {"role": "system", "content": [], "output_config": {"effort": level}, **fields}


EFFORTS: list[tuple[str, list[Json], str | None]] = [
    ("behind new input it counts for its answer", [USER, effort("low")], "low"),
    ("between turns it counts from the next input on", [USER, SAID, effort("low"), NEXT], "low"),
    ("before the first input", [effort("low"), USER], "low"),
    ("no input follows", [USER, SAID, effort("low")], "high"),
    ("results are no new input", [USER, USED, effort("low"), RESULT], "high"),
    ("nor behind them", [USER, USED, RESULT, effort("low")], "high"),
    ("what was in force stays in force", [USER, effort("low"), USED, RESULT], "low"),
    ("results beside text are", [USER, USED, effort("low"), {**RESULT, "content": [*RESULT["content"], {"type": "text", "text": "And?"}]}], "low"),
    ("the latest counts", [USER, effort("low"), SAID, effort("max"), NEXT], "max"),
    ("two in a row", [USER, effort("low"), effort("xhigh")], "xhigh"),
    ("with words beside it", [USER, effort("low", content="Be brief.")], "low"),
    ("an empty text", [USER, effort("low", content="")], "low"),
    ("nothing is said", [USER, {"role": "system", "content": "Be brief.", "output_config": {}}], "high"),
    ("null", [USER, {"role": "system", "content": "Be brief.", "output_config": None}], "high"),
]  # fmt: skip


@pytest.mark.parametrize(("history", "level"), [row[1:] for row in EFFORTS], ids=[row[0] for row in EFFORTS])
def test_the_effort_of_a_turn_is_read_where_it_takes_effect(history: list[Json], level: str):
    request = ask_messages(messages=history, output_config={"effort": "high"}, tools=("f",))
    assert request.sampling.effort == level
    assert sent("chat", request).body["reasoning_effort"] == level
    assert sent("responses", request).body["reasoning"]["effort"] == level
    talk = Talk(request)
    talk.hear(OPENED)
    assert talk.dialogue.outbox[-1].params["effort"] == level


@pytest.mark.parametrize("history", [row[1] for row in EFFORTS], ids=[row[0] for row in EFFORTS])
def test_a_control_is_never_sent_as_a_message_to_another_server(history: list[Json]):
    request = ask_messages(messages=history, tools=("f",))
    assert all(entry.parts for entry in request.entries if isinstance(entry, Message))
    for found in (sent("chat", request), sent("responses", request)):
        assert "message_dropped" not in found.codes
        told = found.body.get("messages") or found.body["input"]
        assert [each for each in told if each.get("content", "x") in ("", [], None) and "tool_calls" not in each] == []
        assert "output_config" not in found.text


def test_a_messages_server_gets_the_control_as_it_came():
    history = [USER, SAID, effort("low"), NEXT, effort("max", content="Be brief.")]
    assert sent("messages", ask_messages(messages=history)).body["messages"] == history


def test_a_control_stays_in_its_place_when_other_messages_change():
    """Here a call without its result gets one, so the history is written anew."""
    history = [USER, effort("low"), USED, {"role": "user", "content": "Never mind."}, effort("max")]
    told = sent("messages", ask_messages(messages=history, tools=("f",)))
    assert told.codes == ["result_missing"]
    assert [each["role"] for each in told.messages] == ["user", "system", "assistant", "user", "system"]
    assert (told.messages[1], told.messages[-1]) == (effort("low"), effort("max"))


REMINDER = {"role": "system", "content": "The build is red.", "clear_at": "next_user_message"}


@pytest.mark.parametrize(
    ("history", "is_shown"),
    [
        ([USER, REMINDER], True),
        ([USER, REMINDER, SAID], True),
        ([USER, REMINDER, SAID, NEXT], False),
        ([USER, REMINDER, USED, RESULT], False),
        ([USER, {**REMINDER, "clear_at": "never"}, SAID, NEXT], True),
        ([USER, {**REMINDER, "clear_at": None}, SAID, NEXT], True),
    ],
)
def test_a_reminder_is_shown_for_its_turn_only(history: list[Json], is_shown: bool):
    request = ask_messages(messages=history, tools=("f",))
    for kind in ("chat", "responses"):
        assert ("The build is red." in sent(kind, request).text) is is_shown, kind
    assert sent("messages", request).body["messages"] == history


def test_a_wrong_control_names_its_field():
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "system", "content": [], "output_config": {"effort": 3}}],
    }
    with pytest.raises(Exception, match=r"messages\[0\]\.output_config\.effort"):
        messages.decode_request(json.dumps(body).encode())
