"""A chat server whose template takes one system message, first."""

from typing import Any

import pytest

from tests.museum.routes import ASK, sent
from toolwire.backends.failures import make_http_failure
from toolwire.core.request import Request
from toolwire.turns.explain import AskedBackend, explain_failure

Json = dict[str, Any]
SYSTEM, DEVELOPER = {"role": "system", "content": "S"}, {"role": "developer", "content": "D"}
USER, SAID, NEXT = {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}  # fmt: skip
LATER = {"role": "user", "content": "<system>\nD\n</system>"}


def one(text: str) -> Json:
    return {"role": "system", "content": text}


def told(request: Request, **profile: Any) -> list[Json]:
    return sent("chat", request, system="first", **profile).messages


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([SYSTEM, USER], [SYSTEM, USER]),
        ([USER], [USER]),
        ([DEVELOPER, USER], [one("D"), USER]),
        ([SYSTEM, DEVELOPER, USER], [one("S\n\nD"), USER]),
        ([SYSTEM, USER, SAID, DEVELOPER, NEXT], [SYSTEM, USER, SAID, LATER, NEXT]),
        ([USER, DEVELOPER], [USER, LATER]),
        ([SYSTEM, DEVELOPER, USER, DEVELOPER, SAID, DEVELOPER, NEXT], [one("S\n\nD"), USER, LATER, SAID, LATER, NEXT]),
    ],
)
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_all_instructions_before_the_conversation_are_one_message(dialect: str, history: list[Json], expected: Any):
    field = "input" if dialect == "responses" else "messages"
    assert told(ASK[dialect](**{field: history})) == expected


def test_the_system_text_of_a_messages_client_is_the_first():
    history = [USER, {"role": "system", "content": "D"}, SAID, NEXT]
    assert told(ASK["messages"](system="S", messages=history)) == [one("S"), USER, LATER, SAID, NEXT]


def test_instructions_beside_the_input_come_first():
    assert told(ASK["responses"](instructions="I", input=[SYSTEM, USER])) == [one("I\n\nS"), USER]


def test_the_tools_of_a_prompt_are_in_that_message():
    [first, *rest] = told(ASK["chat"](messages=[SYSTEM, DEVELOPER, USER], tools=("look",)), tools="prompt")
    assert first["role"] == "system"
    assert "S" in first["content"]
    assert "# Tools" in first["content"]
    assert rest == [USER]


def test_messages_beside_it_keep_their_fields():
    kept = {**USER, "x": 1}
    assert told(ASK["chat"](messages=[{**SYSTEM, "name": "s"}, DEVELOPER, kept])) == [
        {**one("S\n\nD"), "name": "s"},
        kept,
    ]


def test_the_body_of_the_next_turn_begins_with_that_of_this_one():
    history = [SYSTEM, USER, SAID, DEVELOPER, NEXT]
    for length in range(1, len(history)):
        now, then = (told(ASK["chat"](messages=history[:end])) for end in (length, length + 1))
        assert then[: len(now)] == now


def test_other_servers_get_them_in_their_places():
    history = [SYSTEM, DEVELOPER, USER, DEVELOPER]
    assert [each["role"] for each in sent("chat", ASK["chat"](messages=history)).messages] == ["system", "system", "user", "system"]  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        "System message must be at the beginning.",
        "Jinja Exception: System message must be at the beginning.",
        "System role must be the first message",
        "Only the first message can have the role system",
    ],
)
def test_a_server_that_wants_it_is_told_apart_by_its_words(message: str):
    failure = make_http_failure(400, {}, b'{"error":{"message":"%b"}}' % message.encode())
    hint = 'Set profile = { system = "first" } for this backend.'
    assert explain_failure(failure, AskedBackend("b")).message == f"{message.rstrip('.')}. {hint}"
