"""No server is sent a message that holds nothing, whoever wrote it and whatever was left out of it."""

import json
from typing import Any

import pytest

from tests.museum.routes import ASK, KINDS, sent
from tests.unit.codex_lines import OPENED, Talk
from toolwire.adapt.history import OPENING
from toolwire.core.request import Request

Json = dict[str, Any]
DIALECTS = ("chat", "responses", "messages")
ROLES = {"chat": ("system", "developer", "user", "assistant"), "responses": ("system", "developer", "user", "assistant"), "messages": ("system", "user", "assistant")}  # fmt: skip
NOTHING: dict[str, list[Any]] = {
    "chat": ["", [], [{"type": "text", "text": ""}]],
    "responses": ["", [], [{"type": "input_text", "text": ""}]],
    "messages": ["", [], [{"type": "text", "text": ""}]],
}
UNKNOWN: dict[str, Any] = {
    "chat": [{"type": "video_url", "video_url": {"url": "https://x/v"}}],
    "responses": [{"type": "input_video", "video_url": "https://x/v"}],
}
CASES = [(dialect, role, content) for dialect in DIALECTS for role in ROLES[dialect] for content in NOTHING[dialect]]


def asked(dialect: str, *history: Json) -> Request:
    return ASK[dialect](**{"input" if dialect == "responses" else "messages": [*history]})


def contents(kind: str, request: Request) -> list[Any]:
    """What each message holds that a server is sent."""
    if kind == "codex":
        talk = Talk(request)
        talk.hear(OPENED)
        opening, *further = (ask.params for ask in talk.dialogue.outbox)
        told = [opening["baseInstructions"], opening["developerInstructions"]]
        return [*filter(None, told), *(item["content"] for params in further for item in params.get("items", ()))]
    body = sent(kind, request).body
    return [each["content"] for each in body.get("messages") or body["input"]]


def is_empty(content: Any) -> bool:
    if isinstance(content, str):
        return not content
    return not any(part.get("text", "x") for part in content)


@pytest.mark.parametrize("kind", [*KINDS, "codex"])
@pytest.mark.parametrize(("dialect", "role", "content"), CASES)
def test_an_empty_message_is_left_out(dialect: str, role: str, content: Any, kind: str):
    empty = {"role": role, "content": content}
    request = asked(dialect, {"role": "user", "content": "Go."}, empty, {"role": "user", "content": "On."})
    found = contents(kind, request)
    assert [each for each in found if is_empty(each)] == []
    assert "Go." in json.dumps(found)
    assert "On." in json.dumps(found)
    if kind in KINDS:
        assert sent(kind, request).codes == ([] if role == "assistant" else ["message_dropped"])


@pytest.mark.parametrize("kind", [*KINDS, "codex"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_history_of_nothing_gets_one_short_message(dialect: str, kind: str):
    request = asked(dialect, {"role": "user", "content": ""})
    assert OPENING in json.dumps(contents(kind, request))
    assert [each for each in contents(kind, request) if is_empty(each)] == []


@pytest.mark.parametrize("kind", [*KINDS, "codex"])
@pytest.mark.parametrize("dialect", [*UNKNOWN])
def test_parts_of_another_dialect_leave_no_empty_message_behind(dialect: str, kind: str):
    for before in ((), ({"role": "user", "content": "Go."},)):
        request = asked(dialect, *before, {"role": "user", "content": UNKNOWN[dialect]})
        if kind == dialect:
            assert contents(kind, request)[-1] == UNKNOWN[dialect], "its own server may know the part"
            assert sent(kind, request).codes == []
            continue
        assert [each for each in contents(kind, request) if is_empty(each)] == []
        if kind in KINDS:
            assert ("part_dropped", UNKNOWN[dialect][0]["type"]) in sent(kind, request).notes


def test_the_neighbours_of_an_empty_message_stay_as_they_are():
    kept = [
        {"role": "user", "content": "Go.", "x": 1},
        {"role": "user", "content": [{"type": "text", "text": "On."}], "y": 2},
    ]
    for dialect in ("chat", "messages"):
        told = sent(dialect, asked(dialect, kept[0], {"role": "user", "content": ""}, kept[1]))
        assert told.messages == kept


def test_what_only_looks_empty_is_kept():
    heard = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    history = [{"role": "user", "content": "Go."}, heard, {"role": "user", "content": " "}]
    assert sent("chat", asked("chat", *history)).messages == history


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "chat"])
def test_spoken_audio_of_the_assistant_is_dropped_with_a_note(kind: str):
    heard = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert sent(kind, asked("chat", {"role": "user", "content": "Go."}, heard)).notes == [("part_dropped", "audio")]


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_what_a_messages_server_cannot_take_of_a_message_is_noted(role: str):
    for before in ((), ({"role": "user", "content": "Go."},)):
        content = [{"type": "text", "text": "So."}, UNKNOWN["chat"][0]]
        found = sent("messages", asked("chat", *before, {"role": role, "content": content}))
        assert ("part_dropped", "video_url") in found.notes
