"""The codex backend: a thread that waits for results goes on with them, if the client still tells the same story."""

import json
from typing import Any, Literal, TypeAlias

import msgspec
import pytest

from tests.unit.codex_lines import (
    BEGUN,
    THREAD,
    TURN,
    Talk,
    answered,
    asked,
    completed,
    counted,
    delta,
    ended,
    ids,
    message,
    raw_call,
    raw_output,
    raw_text,
    refused,
    talk,
    text_of,
    tokens,
    told,
)
from toolwire.adapt.history import NO_RESULT, repair_pairs
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends.codex import find_awaited_calls, read_turn, write_turn
from toolwire.backends.codex.resume import WITHHELD
from toolwire.core.backend import PendingTurn
from toolwire.core.collect import Turn, collect
from toolwire.core.events import TurnFailed, TurnStarted, Usage
from toolwire.core.request import (
    CallEntry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OutputFormat,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.dialects import chat, messages, responses

Json: TypeAlias = dict[str, Any]
Name: TypeAlias = Literal["chat", "responses", "messages"]
DIALECTS: tuple[Name, ...] = ("chat", "responses", "messages")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
RULES = ToolRules()
DATA = f"data:image/png;base64,{PIXEL}"


# A client's story, and how each dialect tells it


class Call(msgspec.Struct, frozen=True):
    id: str
    name: str = "f"
    arguments: str = "{}"


class Result(msgspec.Struct, frozen=True):
    id: str
    text: str = "21"
    failed: bool = False
    image: bool = False


class Round(msgspec.Struct, frozen=True):
    """What the model said and called, and what the client brings for it."""

    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    said: str = ""
    thought: str = ""
    words: str = ""
    """What the user adds."""
    system: str = ""
    """What the system adds."""


class Story(msgspec.Struct, frozen=True):
    rounds: tuple[Round, ...] = ()
    user: str = "Go."
    system: str = "Be brief."
    tools: tuple[str, ...] = ("f", "g")
    model: str = "m"
    effort: str = "low"

    def then(self, *rounds: Round) -> "Story":
        return msgspec.structs.replace(self, rounds=(*self.rounds, *rounds))


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def told_by_chat(story: Story) -> Json:
    said: list[Json] = [{"role": "system", "content": story.system}, {"role": "user", "content": story.user}]
    for each in story.rounds:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in each.calls
        ]
        said.append({"role": "assistant", "content": each.said or None, "tool_calls": calls})
        said += [{"role": "tool", "tool_call_id": result.id, "content": result.text} for result in each.results]
        said += [{"role": "system", "content": each.system}] * bool(each.system)
        said += [{"role": "user", "content": each.words}] * bool(each.words)
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in story.tools]
    return {"model": story.model, "messages": said, "tools": tools, "reasoning_effort": story.effort}


def told_by_responses(story: Story) -> Json:
    said: list[Json] = [{"role": "user", "content": story.user}]
    for each in story.rounds:
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": each.thought}
        said += [thought] * bool(each.thought)
        said += [{"role": "assistant", "content": [{"type": "output_text", "text": each.said}]}] * bool(each.said)
        said += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in each.calls
        ]
        said += [
            {"type": "function_call_output", "call_id": result.id, "output": _parts_of(result)}
            for result in each.results
        ]
        said += [{"role": "developer", "content": each.system}] * bool(each.system)
        said += [{"role": "user", "content": each.words}] * bool(each.words)
    tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in story.tools]
    return {
        "model": story.model,
        "instructions": story.system,
        "input": said,
        "tools": tools,
        "reasoning": {"effort": story.effort},
    }


def _parts_of(result: Result) -> Any:
    if not result.image:
        return result.text
    return [{"type": "input_text", "text": result.text}, {"type": "input_image", "image_url": DATA}]


def told_by_messages(story: Story) -> Json:
    said: list[Json] = [{"role": "user", "content": story.user}]
    for each in story.rounds:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": each.thought}
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in each.calls
        ]
        text = [{"type": "text", "text": each.said}] * bool(each.said)
        said.append({"role": "assistant", "content": [thought] * bool(each.thought) + text + calls})
        added = [{"type": "text", "text": each.words}] * bool(each.words)
        said.append({"role": "user", "content": [*map(_result_block, each.results), *added]})
        said += [{"role": "system", "content": each.system}] * bool(each.system)
    tools = [{"name": name, "input_schema": SCHEMA} for name in story.tools]
    return {
        "model": story.model,
        "max_tokens": 100,
        "system": story.system,
        "messages": said,
        "tools": tools,
        "output_config": {"effort": story.effort},
    }


def _result_block(result: Result) -> Json:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    image = [{"type": "image", "source": source}] * result.image
    content = [{"type": "text", "text": result.text}, *image]
    return {"type": "tool_result", "tool_use_id": result.id, "content": content, "is_error": result.failed}


TELLERS = {"chat": told_by_chat, "responses": told_by_responses, "messages": told_by_messages}
READERS = {"chat": chat.decode_request, "responses": responses.decode_request, "messages": messages.decode_request}


def asked_by(dialect: Name, story: Story) -> Request:
    """The request of a client that tells this story."""
    return READERS[dialect](json.dumps(TELLERS[dialect](story)).encode())


# A thread that waits

ONE, TWO = Call("c1", "f", '{"n": 1}'), Call("c2", "g", '{"n": 2}')
ROUND = Round((ONE, TWO), (Result("c1", "one"), Result("c2", "two")), "Let me check.")
STORY = Story()
NEXT = STORY.then(ROUND)


def called(*calls: Call, first: int = 0) -> list[bytes]:
    """A response that calls these."""
    items = [raw_call(call.id, call.name, call.arguments) for call in calls]
    requests = [
        asked(number, call.id, call.name, arguments=json.loads(call.arguments))
        for number, call in enumerate(calls, first)
    ]
    return [*items, *requests, completed(tokens(100, 20))]


def parked(request: Request) -> PendingTurn:
    """A thread that has said something, called twice, and waits."""
    made = talk(delta("Let me "), delta("check."), message("Let me check."), *called(ONE, TWO), request=request)
    assert [call.id for call in made.turn.calls] == ["c1", "c2"]
    assert made.dialogue.waiting is not None
    return made.dialogue.waiting


def resume(dialect: Name, story: Story, before: Story = STORY) -> Talk:
    """The conversation of the next request of a client."""
    return Talk(asked_by(dialect, story), parked(asked_by(dialect, before)))


def is_same(made: Talk) -> bool:
    """Whether it goes on with the thread, instead of a new one."""
    said = made.said()
    assert said
    new = [each for each in said if isinstance(each, tuple) and each[0] == "thread/start"]
    assert (made.dialogue.resume is None) == bool(new)
    return not new


def words(text: str) -> Json:
    return {"contentItems": [{"type": "inputText", "text": text}], "success": True}


def test_a_turn_that_ended_with_calls_waits_for_them():
    waiting = parked(asked_by("chat", STORY))
    assert (waiting.thread, ids(waiting.calls)) == (THREAD, ["c1", "c2"])


@pytest.mark.parametrize("lines", [[delta("Hi."), completed(), ended()], [raw_call("c1"), asked(0, "c1")]])
def test_a_turn_that_did_not_end_with_calls_waits_for_nothing(lines: list[bytes]):
    assert talk(*lines).dialogue.waiting is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_results_are_the_answers_to_the_requests_of_their_calls(dialect: Name):
    made = resume(dialect, NEXT)
    assert made.said() == [{"id": 0, "result": words("one")}, {"id": 1, "result": words("two")}]
    assert made.dialogue.resume is not None
    assert made.dialogue.resume.thread == THREAD
    assert (made.dialogue.owner, made.dialogue.model) == ("me", "m")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_follows_is_told_as_a_turn_of_its_own(dialect: Name):
    made = resume(dialect, NEXT)
    events = made.hear(
        told("item/completed", item={"type": "dynamicToolCall", "id": "c1"}),
        raw_output("c1"),
        raw_output("c2"),
        counted(tokens(100, 20)),
        delta("Done.", "msg_2"),
        message("Done.", "msg_2"),
        raw_text("Done.", "msg_2"),
        completed(tokens(150, 10)),
        counted(tokens(250, 30)),
        ended(),
    )
    assert events[0] == TurnStarted(TURN)
    assert (made.turn.text, made.calls, made.turn.reason) == ("Done.", [], "stop")
    assert made.turn.usage == Usage(150, 10), "the tokens of before were told before"
    assert made.dialogue.waiting is None
    assert "output_dropped" not in dict(made.notes)


def test_tokens_of_a_response_that_broke_off_are_told_with_the_turn_that_goes_on():
    made = resume("chat", NEXT)
    made.hear(counted(tokens(400, 60)), delta("Done."), completed(tokens(150, 10)), ended())
    assert made.turn.usage == Usage(300, 40)


def test_a_failed_result_says_so():
    made = resume("messages", STORY.then(Round((ONE, TWO), (Result("c1", "it broke", failed=True), Result("c2")))))
    assert made.answers() == {0: {**words("Error: it broke"), "success": False}, 1: words("21")}


@pytest.mark.parametrize("dialect", ["responses", "messages"])
def test_an_image_of_a_result_goes_along(dialect: Name):
    made = resume(dialect, STORY.then(Round((ONE, TWO), (Result("c1", "See:", image=True), Result("c2")))))
    image = {"type": "inputImage", "imageUrl": DATA}
    assert made.answers()[0] == {"contentItems": [{"type": "inputText", "text": "See:"}, image], "success": True}


def test_a_result_without_parts_is_an_empty_text():
    request = asked_by("chat", STORY)
    calls = (CallEntry("c1", "f", ONE.arguments), CallEntry("c2", "g", TWO.arguments))
    results = (ResultEntry("c1", ()), ResultEntry("c2", (TextPart("a"), TextPart("b"))))
    made = Talk(with_entries(request, *calls, *results), parked(request))
    found = made.answers()
    assert found[0] == words("")
    assert [part["text"] for part in found[1]["contentItems"]] == ["a", "b"]


def with_entries(request: Request, *entries: Any) -> Request:
    return msgspec.structs.replace(request, entries=(*request.entries, *entries))


# What the user adds


@pytest.mark.parametrize("dialect", DIALECTS)
def test_words_beside_results_are_said_first_and_results_follow(dialect: Name):
    made = resume(dialect, STORY.then(msgspec.structs.replace(ROUND, words="In French.")))
    steering = {"threadId": THREAD, "expectedTurnId": TURN, "input": [{"type": "text", "text": "In French."}]}
    assert made.said() == [("turn/steer", steering)]
    assert made.hear(answered("steer", turnId=TURN)) == []
    assert made.said() == [{"id": 0, "result": words("one")}, {"id": 1, "result": words("two")}]
    made.hear(raw_text("In French.", "msg_9", "user"), raw_output("c1"), delta("Voilà."), ended())
    assert made.turn.text == "Voilà."


def test_words_that_are_refused_are_a_failure_and_nothing_is_answered():
    made = resume("chat", STORY.then(msgspec.structs.replace(ROUND, words="In French.")))
    made.said()
    [event] = made.hear(refused("steer", "no active turn to steer"))
    assert isinstance(event, TurnFailed)
    assert (event.failure.code, event.failure.retryable) == ("thread_not_found", True)
    assert made.said() == []


RESULTS = (
    CallEntry("c1", "f", ONE.arguments),
    CallEntry("c2", "g", TWO.arguments),
    ResultEntry("c1", (TextPart("one"),)),
    ResultEntry("c2", (TextPart("two"),)),
)


def test_an_image_of_the_user_is_said_too():
    request = asked_by("chat", STORY)
    added = Message("user", (TextPart("See."), ImagePart(DATA)))
    made = Talk(with_entries(request, *RESULTS, added), parked(request))
    [(method, params)] = made.said()
    assert method == "turn/steer"
    assert params["input"] == [{"type": "text", "text": "See."}, {"type": "image", "url": DATA}]


@pytest.mark.parametrize("part", [ImagePart("https://example.com/i.png"), FilePart(id="f1")])
def test_what_a_turn_cannot_be_told_gives_a_new_thread(part: Any):
    request = asked_by("chat", STORY)
    added = Message("user", (TextPart("See."), part))
    assert not is_same(Talk(with_entries(request, *RESULTS, added), parked(request)))
    first, second, *_ = RESULTS
    results = (ResultEntry("c1", (part,)), ResultEntry("c2", ()))
    assert not is_same(Talk(with_entries(request, first, second, *results), parked(request)))


@pytest.mark.parametrize(
    "lengths",
    [
        [1_100_000],
        pytest.param([400_000] * 3),
    ],
)
def test_words_too_long_to_be_said_in_a_turn_give_a_new_thread(lengths: list[int]):
    """App-server refuses to be steered with more than 1048576 letters in all."""
    request = asked_by("chat", STORY)
    added = [Message("user", (TextPart("x" * length),)) for length in lengths]
    assert not is_same(Talk(with_entries(request, *RESULTS, *added), parked(request)))


# What the client was not shown


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_call_that_was_withheld_is_answered_all_the_same(dialect: Name):
    made = resume(dialect, STORY.then(Round((ONE,), (Result("c1", "one"),), ROUND.said)))
    found = made.answers()
    assert found[0] == words("one")
    assert (text_of(found[1]), found[1]["success"]) == (WITHHELD, False)
    made.hear(raw_output("c1"), raw_output("c2"), delta("Done."), ended())
    assert made.turn.notes == () or "output_dropped" not in dict(made.notes)


# What is another story

EDITS: dict[str, Story] = {
    "what the user said": msgspec.structs.replace(NEXT, user="Go!"),
    "what the system said": msgspec.structs.replace(NEXT, system="Be verbose."),
    "an argument": STORY.then(
        Round((Call("c1", "f", '{"n": 9}'), TWO), ROUND.results, ROUND.said),
    ),
    "a name": STORY.then(Round((Call("c1", "g", ONE.arguments), TWO), ROUND.results, ROUND.said)),
    "an id": STORY.then(Round((Call("c9", "f", ONE.arguments), TWO), (Result("c9"), Result("c2")))),
    "a tool more": msgspec.structs.replace(NEXT, tools=("f", "g", "h")),
    "a tool less": msgspec.structs.replace(NEXT, tools=("f",)),
    "the order of tools": msgspec.structs.replace(NEXT, tools=("g", "f")),
    "the model": msgspec.structs.replace(NEXT, model="n"),
    "the effort": msgspec.structs.replace(NEXT, effort="high"),
    "a word of the system": STORY.then(msgspec.structs.replace(ROUND, system="Be careful.")),
    "what the model said": STORY.then(msgspec.structs.replace(ROUND, said="I shall not check.")),
    "a result less": STORY.then(msgspec.structs.replace(ROUND, results=ROUND.results[:1])),
    "no result": STORY.then(msgspec.structs.replace(ROUND, results=(), words="Never mind.")),
    "another round": NEXT.then(Round((Call("c3"),), (Result("c3"),))),
    "nothing new": STORY,
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("edit", EDITS)
def test_a_story_that_was_edited_gives_a_new_thread(dialect: Name, edit: str):
    made = resume(dialect, EDITS[edit])
    assert made.dialogue.resume is None
    [(method, params)] = made.said()
    assert method == "thread/start"
    assert params["model"] == EDITS[edit].model


KEPT: dict[str, Story] = {
    "no words": STORY.then(msgspec.structs.replace(ROUND, said="")),
    "other white space in the words": STORY.then(msgspec.structs.replace(ROUND, said="\n Let  me\ncheck. \n")),
    "other white space in the arguments": STORY.then(
        Round((Call("c1", "f", '{"n":1}'), Call("c2", "g", '{ "n" : 2 }')), ROUND.results, ROUND.said)
    ),
    "results in another order": STORY.then(msgspec.structs.replace(ROUND, results=ROUND.results[::-1])),
    "calls in another order": STORY.then(msgspec.structs.replace(ROUND, calls=ROUND.calls[::-1])),
    "words whose end was withheld": STORY.then(msgspec.structs.replace(ROUND, said="Let me")),
    "a thought": STORY.then(msgspec.structs.replace(ROUND, thought="SEAL")),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("change", KEPT)
def test_a_story_that_says_the_same_goes_on(dialect: Name, change: str):
    made = resume(dialect, KEPT[change])
    assert {id: text_of(result) for id, result in made.answers().items()} == {0: "one", 1: "two"}
    assert made.dialogue.resume is not None


def test_a_history_may_come_with_its_thoughts_or_without_them():
    earlier = Round((Call("c0"),), (Result("c0"),), thought="SEAL")
    before, without = Story((earlier,)), Story((msgspec.structs.replace(earlier, thought=""),))
    for dialect in ("responses", "messages"):
        for one, other in ((before, without), (without, before)):
            assert is_same(resume(dialect, other.then(ROUND), one))


@pytest.mark.parametrize(
    "changed",
    [
        {"tool_choice": ToolChoice("required")},
        {"tool_choice": ToolChoice("none")},
        {"parallel_calls": False},
        {"output_format": OutputFormat()},
        {"sampling": Sampling(effort="low", verbosity="low")},
        {"sampling": Sampling(effort="low", service_tier="flex")},
        {"instructions": "More."},
    ],
)
def test_what_a_thread_was_started_with_cannot_be_changed(changed: Json):
    waiting = parked(asked_by("chat", STORY))
    request = msgspec.structs.replace(asked_by("chat", NEXT), **changed)
    assert not is_same(Talk(request, waiting))


@pytest.mark.parametrize("changed", [{"stream": True}, {"sampling": Sampling(effort="low", temperature=0.1)}])
def test_what_a_thread_never_hears_of_may_change(changed: Json):
    waiting = parked(asked_by("chat", STORY))
    request = msgspec.structs.replace(asked_by("chat", NEXT), **changed)
    assert is_same(Talk(request, waiting))


def test_another_kind_of_summary_gives_a_new_thread():
    waiting = parked(asked_by("chat", STORY))
    assert not is_same(Talk(asked_by("chat", NEXT), waiting, summary="none"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_result_that_was_put_in_for_a_missing_one_is_an_answer(dialect: Name):
    request = asked_by(dialect, STORY.then(msgspec.structs.replace(ROUND, results=ROUND.results[:1])))
    entries, _ = repair_pairs(request.entries, "repair")
    made = Talk(msgspec.structs.replace(request, entries=entries), parked(asked_by(dialect, STORY)))
    assert [text_of(result) for result in made.answers().values()] == ["one", NO_RESULT]


def test_calls_and_results_may_take_turns():
    request = asked_by("responses", STORY)
    one, two, first, second = RESULTS
    assert is_same(Talk(with_entries(request, one, first, two, second), parked(request)))


def test_words_of_the_model_behind_its_results_are_another_story():
    request = asked_by("responses", STORY)
    spoken = Message("assistant", (TextPart("Let me check."),))
    assert not is_same(Talk(with_entries(request, *RESULTS, spoken), parked(request)))


def test_marks_for_the_cache_are_no_part_of_the_story():
    body = told_by_messages(STORY)
    body["messages"][0]["content"] = [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]
    before = messages.decode_request(json.dumps(body).encode())
    assert is_same(Talk(asked_by("messages", NEXT), parked(before)))


@pytest.mark.parametrize(("query", "same"), [("a", True), ("b", False)])
def test_what_only_another_dialect_has_a_word_for_is_part_of_the_story(query: str, same: bool):
    def told(query: str) -> tuple[OtherEntry]:
        return (OtherEntry("web_search_call", msgspec.Raw(json.dumps({"query": query}).encode())),)

    request = asked_by("responses", STORY)
    before, after = (with_entries(request, *told(each)) for each in ("a", query))
    assert is_same(Talk(with_entries(after, *RESULTS), parked(before))) == same


# Names and arguments on their way

STRANGE = [
    Tool("mcp__docs__search"),
    Tool("dots.in.name"),
    Tool("a" * 200),
    Tool("search", namespace="docs"),
    Tool("patch", kind="custom"),
]


@pytest.mark.parametrize("tool", STRANGE, ids=lambda tool: tool.name[:20])
def test_a_call_by_another_name_is_known_again(tool: Tool):
    request = Request("m", (Message("user", (TextPart("Go."),)),), tools=(tool,))
    made = Talk(request)
    [(_, start)] = made.said()
    name = start["dynamicTools"][0]["name"]
    arguments = '{"input": "a b"}'
    made = talk(
        raw_call("c1", name, arguments),
        asked(0, "c1", name, arguments=json.loads(arguments)),
        completed(),
        request=request,
    )
    [call] = made.turn.calls
    entry = CallEntry(call.id, call.name, call.arguments, call.kind, call.namespace)
    after = Talk(with_entries(request, entry, ResultEntry("c1", (TextPart("x"),), call.kind)), made.dialogue.waiting)
    assert after.answers() == {0: words("x")}


@pytest.mark.parametrize(
    "arguments",
    [
        "{}",
        " {} ",
        "null",
    ],
)
def test_a_call_without_arguments_is_known_again(arguments: str):
    request = asked_by("chat", STORY)
    made = talk(raw_call("c1", "f", arguments), asked(0, "c1", "f", arguments=None), completed(), request=request)
    [call] = made.turn.calls
    results = (CallEntry("c1", "f", call.arguments), ResultEntry("c1", (TextPart("x"),)))
    assert is_same(Talk(with_entries(request, *results), made.dialogue.waiting))


# Round after round


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_thread_goes_on_round_after_round(dialect: Name):
    story, made = NEXT, resume(dialect, NEXT)
    assert sorted(made.answers()) == [0, 1]
    for number in range(2, 6):
        made.hear(*(raw_output(call.id) for call in story.rounds[-1].calls), counted(tokens(0, 0)))
        call = Call(f"c{number + 1}", "f", f'{{"n": {number}}}')
        text = f"Round {number}."
        made.hear(delta(text, f"msg_{number}"), message(text, f"msg_{number}"), *called(call, first=number))
        assert made.calls == [(call.id, "f", call.arguments)]
        assert made.turn.usage == Usage(100, 20)
        assert made.dialogue.waiting is not None
        assert ids(made.dialogue.waiting.calls) == [call.id]
        assert made.turn.notes == () or {code for code, _ in made.notes} == {"field_dropped"}
        story = story.then(Round((call,), (Result(call.id, text),), text))
        made = Talk(asked_by(dialect, story), made.dialogue.waiting)
        assert made.answers() == {number: words(text)}
    made.hear(raw_output("c6"), delta("Done."), completed(tokens(7, 7)), ended())
    assert (made.turn.text, made.turn.reason, made.turn.usage) == ("Done.", "stop", Usage(7, 7))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_result_of_an_earlier_round_that_was_edited_gives_a_new_thread(dialect: Name):
    made = resume(dialect, NEXT)
    call = Call("c3")
    made.hear(raw_output("c1"), raw_output("c2"), *called(call, first=2))
    assert made.dialogue.waiting is not None
    edited = STORY.then(msgspec.structs.replace(ROUND, results=(Result("c1", "one!"), Result("c2", "two"))))
    after = edited.then(Round((call,), (Result("c3"),)))
    assert not is_same(Talk(asked_by(dialect, after), made.dialogue.waiting))


def test_a_turn_that_goes_on_is_looked_after_as_a_new_one_is():
    made = resume("chat", NEXT)
    made.said()
    made.hear(told("applyPatchApproval", 7), raw_call("c3", "stranger"), completed(), raw_output("c3"))
    assert made.answers() == {7: {"decision": "denied"}}
    assert [note for note in made.notes if note[0] != "field_dropped"] == [
        ("request_declined", "applyPatchApproval"),
        ("call_refused", "c3"),
    ]
    assert not made.is_over


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_new_thread_is_told_the_whole_story(dialect: Name):
    made = resume(dialect, EDITS["what the user said"])
    made.said()
    made.hear(answered("thread", thread={"id": "th_2"}))
    (inject, injected), (start, params) = made.said()
    assert (inject, start) == ("thread/inject_items", "turn/start")
    assert injected["threadId"] == params["threadId"] == "th_2"
    assert [item["type"] for item in injected["items"]] == [
        "message", "message", "function_call", "function_call", "function_call_output", "function_call_output"
    ]  # fmt: skip


# Which thread to look for


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_calls_of_which_a_request_brings_results_come_last_first(dialect: Name):
    assert find_awaited_calls(asked_by(dialect, STORY), "me") == []
    story = NEXT.then(Round((Call("c3"),), (Result("c3"),)))
    assert ids(find_awaited_calls(asked_by(dialect, story), "me")) == ["c3", "c2", "c1"]


# A call that the model also writes as text

TEXTUAL = "<use_tool><name>f</name><n>1</n></use_tool>"


def delivered(*lines: bytes, request: Request, rules: ToolRules = RULES) -> tuple[Talk, Turn]:
    """A turn that waits, and what its client was shown of it."""
    made = Talk(request)
    policies = assemble_policies(request, rules, "S", made.stand_in).policies
    events = made.hear(BEGUN, *lines)
    return made, collect([passed for event in events for passed in policies.feed(event)])


@pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_result_of_a_textual_call_answers_the_twin_that_waits(dialect: Name, mode: Literal["openai-json", "obsidian-xml"]):  # fmt: skip
    said = f"Let me check. {TEXTUAL} Well."
    lines = (delta(said), message(said), *called(ONE, TWO))
    first, shown = delivered(*lines, request=asked_by(dialect, STORY), rules=ToolRules(output_mode=mode))
    assert [call.name for call in shown.calls] == ["f", "g"]
    textual = shown.calls[0].id
    assert first.dialogue.waiting is not None
    assert ids(first.dialogue.waiting.calls) == [textual, "c2"]
    calls = (Call(textual, "f", '{"n": 1}'), TWO)
    answers = (Result(textual, "one"), Result("c2", "two"))
    made = Talk(asked_by(dialect, STORY.then(Round(calls, answers, shown.text))), first.dialogue.waiting)
    assert made.said() == [{"id": 0, "result": words("one")}, {"id": 1, "result": words("two")}]
    made.hear(
        raw_output("c1"), raw_output("c2"), delta("Done.", "msg_2"), message("Done.", "msg_2"), completed(), ended()
    )
    assert made.turn.text == "Done."
    assert "output_dropped" not in [code for code, _ in made.notes]


def test_a_textual_call_without_a_twin_gives_a_new_thread_that_is_told_of_it():
    request = asked_by("chat", STORY)
    first, shown = delivered(delta(TEXTUAL), message(TEXTUAL), *called(TWO), request=request)
    textual = shown.calls[0].id
    calls = (Call(textual, "f", '{"n": 1}'), TWO)
    answers = (Result(textual, "one"), Result("c2", "two"))
    assert not is_same(Talk(asked_by("chat", STORY.then(Round(calls, answers))), first.dialogue.waiting))


# Other processes


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_that_waits_is_the_same_when_another_process_has_read_it(dialect: Name):
    waiting = parked(asked_by(dialect, STORY))
    written = write_turn(waiting)
    assert written is not None
    read = read_turn(written)
    assert read == waiting
    assert is_same(Talk(asked_by(dialect, NEXT), read))


def test_what_is_written_of_a_turn_does_not_grow_with_its_history():
    long = msgspec.structs.replace(STORY, user="long " * 10_000, system="words " * 10_000)
    assert len(write_turn(parked(asked_by("chat", long))) or b"") < 2_000


def test_half_a_character_cannot_be_written_for_another_process():
    waiting = parked(asked_by("chat", STORY))
    state = msgspec.structs.replace(waiting.state, text="\ud800")
    assert write_turn(msgspec.structs.replace(waiting, state=state)) is None


@pytest.mark.parametrize("written", [b"{}", b"[1]", b'{"thread":"t","calls":[],"state":{"turn":1}}', b"\xff"])
def test_what_another_version_has_written_is_nothing(written: bytes):
    assert read_turn(written) is None
