"""Our own streams are held to all rules of form, and to habits of our own besides."""

import pytest

from tests.check import chat_turns, gemini_turns, messages_turns, responses_faults, responses_turns
from tests.check.chat_turns import DELTA, FINISH, MORE_A, PART, TEXT
from tests.check.responses_turns import ADDED, ANNOTATION, FINAL
from tests.check.streams import Change, Fault, Frames, change, drop, insert, remove, repeat
from tests.support.checked import chat_faults, gemini_faults, messages_faults
from tests.support.checked import responses_faults as faults_of_responses

ECHOES = {"responses.echo", "responses.echo-tools", "responses.echo-sampling"}
ABOUT_WORDS = {"calls.name", "calls.json", "calls.leak", "usage.reported", "usage.parts", *ECHOES}
"""Rules about what a model says, which a gateway passes on, and about requests, which nobody knows here."""


def chat(frames: Frames) -> list[str]:
    return chat_faults([("comment", "Hi"), *(("data", frame.data) for frame in frames)], usage=True)


def messages(frames: Frames) -> list[str]:
    return messages_faults([(frame.name, frame.data) for frame in frames])


def responses(frames: Frames) -> list[str]:
    done = frames[-1].data == "[DONE]"
    return faults_of_responses([(frame.name, frame.data) for frame in (frames[:-1] if done else frames)], done=done)


def test_sound_streams_have_no_faults():
    assert chat(chat_turns.sound()) == []
    assert chat(chat_turns.failed()) == []
    assert messages(messages_turns.sound()) == []
    assert gemini_faults(frame.data for frame in gemini_turns.sound()) == []
    assert gemini_faults(frame.data for frame in gemini_turns.failed()) == []
    assert responses(responses_turns.sound()) == []
    assert responses(responses_turns.failed()) == []
    sent = [(None, frame.data) for frame in responses_turns.sound()[:-1]]
    assert faults_of_responses(sent, done=None) == []


def test_extended_streams_are_judged_as_such():
    frames, _ = responses_turns.ALSO_SOUND["extended: ping"]
    named = [(frame.name, frame.data) for frame in frames[:-1]]
    assert faults_of_responses(named, done=True, extended=True) == []
    assert [fault.partition(":")[0] for fault in faults_of_responses(named, done=True)] == ["responses.unknown-event"]


@pytest.mark.parametrize("fault", chat_turns.STREAM_FAULTS, ids=str)
def test_every_fault_of_form_in_chat_is_one_of_ours(fault: Fault):
    frames = fault.sound()
    fault.change(frames)
    found = chat_faults([("data", frame.data) for frame in frames], usage=bool(fault.facts.usage))
    assert fault.rules - ABOUT_WORDS <= rules(found)


@pytest.mark.parametrize("fault", messages_turns.STREAM_FAULTS, ids=str)
def test_every_fault_of_form_in_messages_is_one_of_ours(fault: Fault):
    frames = fault.sound()
    fault.change(frames)
    assert fault.rules - ABOUT_WORDS <= rules(messages(frames))


@pytest.mark.parametrize("fault", gemini_turns.STREAM_FAULTS, ids=str)
def test_every_fault_of_form_in_gemini_is_one_of_ours(fault: Fault):
    frames = fault.sound()
    fault.change(frames)
    assert fault.rules - ABOUT_WORDS - {"sse.data-only"} <= rules(gemini_faults(frame.data for frame in frames))


@pytest.mark.parametrize("fault", responses_faults.STREAM_FAULTS, ids=str)
def test_every_fault_of_form_in_responses_is_one_of_ours(fault: Fault):
    frames = fault.sound()
    fault.change(frames)
    if not fault.facts.extended:
        assert fault.rules - ABOUT_WORDS <= rules(responses(frames))


def rules(faults: list[str]) -> set[str]:
    return {fault.partition(":")[0] for fault in faults}


HABITS: dict[str, tuple[Change, str]] = {
    "a chunk lacks the tokens that were asked for": (remove(TEXT, "usage"), "chat"),
    "the role is null": (change(TEXT, *DELTA, "role", to=None), "chat"),
    "a chunk without words follows the finish reason": (insert(chat_turns.chunk({}), before=FINISH + 1), "chat"),
    "a fragment has no arguments": (insert(chat_turns.part(1, function={}), before=FINISH), "chat"),
    "a further fragment has an empty name": (change(MORE_A, *PART, "function", "name", to=""), "chat"),
    "a further fragment has no id": (change(MORE_A, *PART, "id", to=None), "chat"),
    "the end comes in two steps": (repeat(messages_turns.END), "messages"),
    "a thought starts without a signature": (remove(messages_turns.THINKS, "content_block", "signature"), "messages"),
    "reasoning has no status": (remove(ADDED, "item", "status"), "responses"),
    "a thought is signed anew": (change("completed", *FINAL, 0, "encrypted_content", to="2"), "responses"),
    "an annotation is lost": (change("content_part.done", "part", "annotations", to=[ANNOTATION], nth=1), "responses"),
}  # fmt: skip


@pytest.mark.parametrize("what", HABITS)
def test_what_breaks_a_habit_is_a_fault_of_ours_alone(what: str):
    mutate, api = HABITS[what]
    module, judge = {
        "chat": (chat_turns, chat),
        "messages": (messages_turns, messages),
        "responses": (responses_turns, responses),
    }[api]
    frames = module.sound()
    mutate(frames)
    assert rules(judge(frames)) == {"habit"}


def test_tokens_that_nobody_asked_for_are_no_field_either():
    frames = chat_turns.uncounted()
    assert rules(chat_faults([("data", frame.data) for frame in frames], usage=False)) == {"habit"}


def test_a_gateway_tells_the_tokens_and_the_arguments_that_it_was_told():
    frames = chat_turns.sound()
    change(MORE_A, *PART, "function", "arguments", to="{")(frames)
    drop(chat_turns.TOKENS)(frames)
    assert chat(frames) == []


def test_a_stream_of_nothing_is_no_reason_to_fall_over():
    assert chat([])
    assert messages([])
    assert faults_of_responses([], done=False)
