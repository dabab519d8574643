"""Chat: sound turns, streamed and plain, and everything that can be wrong with them."""

from copy import deepcopy
from typing import Any

from tests.check.streams import (
    Change,
    Frame,
    Frames,
    Json,
    all_of,
    change,
    drop,
    faults,
    insert,
    move,
    remove,
    repeat,
)
from toolwire.check.turns.rule import RequestFacts

ASKED = RequestFacts("chat", ("look", "read"), usage=True)
UNKNOWN = RequestFacts("chat")
"""A stream of which the request is not known."""
UNASKED = RequestFacts("chat", ("look", "read"), usage=False)

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
ERROR = {"error": {"message": "No.", "type": "server_error", "param": None, "code": None}}


def chunk(delta: Json, finish: str | None = None, **fields: Any) -> Frame:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    about = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return Frame(None, {**about, "choices": choices, "usage": None, **fields})


def part(index: int, **fields: Any) -> Frame:
    return chunk({"tool_calls": [{"index": index, **fields}]})


def opening(index: int, id: str, name: str = "look") -> Frame:
    return part(index, id=id, type="function", function={"name": name, "arguments": ""})


def more(index: int, text: str = '{"at":1}') -> Frame:
    return part(index, function={"arguments": text})


ROLE, TEXT, OPENS_A, MORE_A, OPENS_B, MORE_B, FINISH, TOKENS, DONE = range(9)
"""The frames of the sound stream."""


def sound() -> Frames:
    """Text and two calls."""
    return [
        chunk({"role": "assistant", "content": None}),
        chunk({"content": "Hi"}),
        opening(0, "a"),
        more(0),
        opening(1, "b", "read"),
        more(1),
        chunk({}, "tool_calls"),
        chunk({}, choices=[], usage={**USAGE}),
        Frame(None, "[DONE]"),
    ]


def failed() -> Frames:
    """It breaks down in the middle of a call."""
    return [*sound()[:MORE_A], more(0, '{"at'), Frame(None, deepcopy(ERROR)), Frame(None, "[DONE]")]


def spoken() -> Frames:
    """Nothing but text."""
    return [
        *sound()[:OPENS_A],
        chunk({"content": " there"}),
        chunk({}, "stop"),
        chunk({}, choices=[], usage={**USAGE}),
        Frame(None, "[DONE]"),
    ]


def uncounted() -> Frames:
    return [frame for index, frame in enumerate(sound()) if index != TOKENS]


PART = ("choices", 0, "delta", "tool_calls", 0)
DELTA = ("choices", 0, "delta")

STREAM_FAULTS = [
    *faults(
        sound,
        ASKED,
        {
            "the marker is missing": ("done-marker", drop(DONE)),
            "the marker comes twice": ("done-marker", repeat(DONE)),
            "the marker is not last": ("done-marker", move(TOKENS, behind=DONE)),
            "a chunk is an object of another kind": ("chunk", change(TEXT, "object", to="chat.completion")),
            "a chunk is an empty object": ("chunk identity", insert(Frame(None, {}), before=TEXT)),  # it has no id either
            "a chunk has no choices": ("chunk", remove(TEXT, "choices")),
            "choices are an object": ("chunk", change(TEXT, "choices", to={})),
            "a choice has no index": ("chunk", remove(TEXT, "choices", 0, "index")),
            "a choice has no delta": ("chunk", change(TEXT, *DELTA, to=None)),
            "content is a list": ("chunk", change(TEXT, *DELTA, "content", to=["Hi"])),
            "the id changes": ("identity", change(-2, "id", to="d")),
            "the time changes": ("identity", change(-2, "created", to=2)),
            "the model changes": ("identity", change(-2, "model", to="n")),
            "no chunk has a model": ("fields", all_of(*(remove(index, "model") for index in reversed(range(DONE))))),
            "the time is text": ("fields", all_of(*(change(index, "created", to="1") for index in reversed(range(DONE))))),
            "a chunk has no id": ("fields identity", remove(TEXT, "id")),  # it is another one then
            "a choice does not say that it goes on": ("fields", remove(TEXT, "choices", 0, "finish_reason")),
            "the role is missing": ("role", remove(ROLE, *DELTA, "role")),
            "the first chunk is missing": ("role", drop(ROLE)),
            "the role comes twice": ("role", change(TEXT, *DELTA, "role", to="assistant")),
            "the role is the user's": ("role", change(ROLE, *DELTA, "role", to="user")),
            "the finish reason is missing": ("finish", drop(FINISH)),
            "the finish reason comes twice": ("finish", repeat(FINISH)),
            "the finish reason is none of the API's": ("finish", change(FINISH, "choices", 0, "finish_reason", to="done")),
            "the finish reason is a number": ("finish", change(FINISH, "choices", 0, "finish_reason", to=1)),
            "only the marker comes": ("finish", drop(*range(DONE))),
            "text follows the finish reason": ("after-finish", move(TEXT, behind=FINISH)),
            "arguments follow the finish reason": ("after-finish", move(MORE_B, behind=FINISH)),
            "tokens are told twice": ("usage", repeat(TOKENS)),
            "tokens are told with the finish reason": (
                "usage",
                all_of(drop(TOKENS), change(FINISH, "usage", to=USAGE)),
            ),
            "tokens are told at the beginning": ("usage", move(TOKENS, behind=ROLE)),
            "a chunk has neither choices nor tokens": ("usage", insert(chunk({}, choices=[]), before=ROLE)),
            "a fragment has no index": ("call-index", remove(MORE_A, *PART, "index")),
            "the index of a fragment is text": ("call-index", change(MORE_B, *PART, "index", to="1")),
            "the index of a fragment is true": ("call-index", change(MORE_B, *PART, "index", to=True)),
            "a call begins without an index": ("call-index", remove(OPENS_B, *PART, "index")),
            "a call begins without its type": ("call-opening", remove(OPENS_A, *PART, "type")),
            "a call begins under another type than its own": ("call-opening", change(OPENS_A, *PART, "type", to="custom")),
            # It never gets what it began without.
            "a call begins without its id": ("call-opening calls.id", remove(OPENS_A, *PART, "id")),
            "a call begins without its name": ("call-opening calls.name", change(OPENS_A, *PART, "function", "name", to="")),
            "the id of a call comes late": (
                "call-opening",
                all_of(change(MORE_A, *PART, "id", to="a"), remove(OPENS_A, *PART, "id")),
            ),
            "the id of a call comes twice": ("call-once", change(MORE_A, *PART, "id", to="a")),
            "the name of a call comes in pieces": (
                "call-once",
                all_of(
                    change(OPENS_A, *PART, "function", "name", to="lo"),
                    change(MORE_A, *PART, "function", "name", to="ok"),
                ),
            ),
            # The name is `looklook` then, and no tool has it.
            "the name of a call comes twice": ("call-once calls.name", change(MORE_A, *PART, "function", "name", to="look")),
            "the type of a call comes twice": ("call-type", change(MORE_A, *PART, "type", to="function")),
            "a fragment has an object more": (
                "call-fragment",
                insert(part(1, function={"arguments": {}}), before=FINISH),
            ),
            # What is no text is lost.
            "arguments are an object": (
                "call-fragment calls.json",
                change(MORE_A, *PART, "function", "arguments", to={"at": 1}),
            ),
            "an index is skipped": (
                "call-order",
                all_of(change(MORE_B, *PART, "index", to=2), change(OPENS_B, *PART, "index", to=2)),
            ),
            "indexes begin with one": (
                "call-order",
                all_of(
                    *(change(index, *PART, "index", to=2) for index in (OPENS_B, MORE_B)),
                    *(change(index, *PART, "index", to=1) for index in (MORE_A, OPENS_A)),
                ),
            ),
            "two calls are told at once": ("call-order", move(MORE_A, behind=OPENS_B)),
            "two calls have one id": ("calls.id", change(OPENS_B, *PART, "id", to="a")),
            "a call is of a tool that was not declared": ("calls.name", change(OPENS_B, *PART, "function", "name", to="fly")),
            "arguments are cut": ("calls.json", change(MORE_A, *PART, "function", "arguments", to='{"at":')),
            "arguments are missing": ("calls.json", drop(MORE_A)),
            "arguments are a list": ("calls.json", change(MORE_B, *PART, "function", "arguments", to="[1]")),
            "arguments are deeper than anybody reads": (
                "calls.json",
                change(MORE_B, *PART, "function", "arguments", to='{"at":' + "[" * 5000 + "]" * 5000 + "}"),
            ),
            "a turn with calls ends with stop": ("calls.finish", change(FINISH, "choices", 0, "finish_reason", to="stop")),
            "tokens are not told": ("usage.reported", drop(TOKENS)),
            "tokens are told as text": ("usage.reported", change(TOKENS, "usage", "prompt_tokens", to="3")),
            "the sum of tokens is wrong": ("usage.sum", change(TOKENS, "usage", "total_tokens", to=8)),
            "more tokens are cached than came in": (
                "usage.parts",
                change(TOKENS, "usage", "prompt_tokens_details", to={"cached_tokens": 4}),
            ),
            "more tokens are thought than went out": (
                "usage.parts",
                change(TOKENS, "usage", "completion_tokens_details", to={"reasoning_tokens": 5}),
            ),
        },
    ),
    *faults(
        spoken,
        ASKED,
        {
            "a turn without calls ends with calls": ("calls.finish", change(3, "choices", 0, "finish_reason", to="tool_calls")),
            "a call is left in the text": (
                "calls.leak",
                all_of(
                    change(1, *DELTA, "content", to="Well. <tool_"),
                    change(2, *DELTA, "content", to='call>{"name": "look"}'),
                ),
            ),
        },
    ),
    *faults(sound, UNASKED, {"tokens are told unasked": ("usage", lambda frames: TOKENS)}),
    *faults(
        failed,
        ASKED,
        {
            "an error is followed by text": ("error-frame", insert(chunk({"content": "!"}), before=-1)),
            "an error is followed by nothing": ("error-frame", drop(-1)),
            "an error is followed by an error": ("error-frame", insert(Frame(None, ERROR), before=-1)),
            "an error has no message": ("error-frame", remove(-2, "error", "message")),
            "an error is text": ("error-frame", change(-2, "error", to="No.")),
            "an error comes after the finish reason": ("error-frame", insert(chunk({}, "stop"), before=-2)),
        },
    ),
]  # fmt: skip

# A plain answer


def call(id: str, name: str, arguments: str = '{"at":1}') -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def plain() -> Json:
    message = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "tool_calls": [call("a", "look"), call("b", "read")],
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    about = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**about, "choices": [choice], "usage": {**USAGE}}  # fmt: skip


CHOICE = ("choices", 0)
MESSAGE = (*CHOICE, "message")
CALL = (*MESSAGE, "tool_calls", 0)


def at(*path: Any, to: Any) -> Change:
    return change(0, *path, to=to)


def lacks(*path: Any) -> Change:
    return remove(0, *path)


PLAIN_FAULTS: dict[str, tuple[str, Change]] = {
    "the answer is a chunk": ("completion", at("object", to="chat.completion.chunk")),
    "there are no choices": ("completion", at("choices", to=[])),
    "the message is the user's": ("completion", at(*MESSAGE, "role", to="user")),
    "the finish reason is missing": ("finish", lacks(*CHOICE, "finish_reason")),
    "the finish reason is none of the API's": ("finish", at(*CHOICE, "finish_reason", to="end_turn")),
    "content is a list": ("message", at(*MESSAGE, "content", to=[{"type": "text", "text": "Hi"}])),
    # There are no calls then.
    "calls are an object": ("message calls.finish", at(*MESSAGE, "tool_calls", to=call("a", "look"))),
    "a call has no type": ("message", lacks(*CALL, "type")),
    "a call has no id": ("message calls.id", lacks(*CALL, "id")),  # in any API a call has one
    "a call has no name": ("message calls.name", lacks(*CALL, "function", "name")),
    "arguments are an object": ("message calls.json", at(*CALL, "function", "arguments", to={"at": 1})),
    "a call has an index": ("index", at(*CALL, "index", to=0)),
    "the answer has no id": ("fields", lacks("id")),
    "the answer has no time": ("fields", lacks("created")),
    "a choice has no index": ("fields", lacks(*CHOICE, "index")),
    "content is missing": ("null-fields", lacks(*MESSAGE, "content")),
    "a refusal is missing": ("null-fields", lacks(*MESSAGE, "refusal")),
    "log probabilities are missing": ("null-fields", lacks(*CHOICE, "logprobs")),
    "calls are an empty list": (
        "no-calls",
        all_of(at(*MESSAGE, "tool_calls", to=[]), at(*CHOICE, "finish_reason", to="stop")),
    ),
    "two calls have one id": ("calls.id", at(*CALL, "id", to="b")),
    "a call is of a tool that was not declared": ("calls.name", at(*CALL, "function", "name", to="fly")),
    "arguments are cut": ("calls.json", at(*CALL, "function", "arguments", to="{")),
    "a turn with calls ends with stop": ("calls.finish", at(*CHOICE, "finish_reason", to="stop")),
    "a call is left in the text": ("calls.leak", at(*MESSAGE, "content", to="[TOOL_CALLS] look")),
    "tokens are not told": ("usage.reported", lacks("usage")),
    "the sum of tokens is wrong": ("usage.sum", at("usage", "total_tokens", to=8)),
    "more tokens are cached than came in": (
        "usage.parts",
        at("usage", "prompt_tokens_details", to={"cached_tokens": 4}),
    ),
}

ALSO_SOUND_PLAIN: dict[str, Change] = {
    "a function of the time before tools": all_of(
        lacks(*MESSAGE, "tool_calls"),
        at(*MESSAGE, "function_call", to={"name": "look", "arguments": "{}"}),
        at(*CHOICE, "finish_reason", to="function_call"),
    ),
    "a custom tool, whose input is any text": at(*CALL, to={"id": "a", "type": "custom", "custom": {"name": "look", "input": "ls"}}),
    "calls without content": at(*MESSAGE, "content", to=None),
    "tokens in detail": at("usage", "prompt_tokens_details", to={"cached_tokens": 3}),
    "nothing but text": all_of(lacks(*MESSAGE, "tool_calls"), at(*CHOICE, "finish_reason", to="stop")),
    "arguments that the tokens did not suffice for": all_of(
        at(*MESSAGE, "tool_calls", to=[call("a", "look", '{"at')]), at(*CHOICE, "finish_reason", to="length")
    ),
}  # fmt: skip

ALSO_SOUND: dict[str, tuple[Frames, RequestFacts]] = {
    "text": (spoken(), ASKED),
    "failed": (failed(), ASKED),
    "failed at once": (failed()[-2:], ASKED),
    "no tokens": (uncounted(), UNASKED),
    "an unknown request": (uncounted(), UNKNOWN),
    "an unknown request with tokens": (sound(), UNKNOWN),
}


def sound_case(*changes: Change, facts: RequestFacts = ASKED) -> tuple[Frames, RequestFacts]:
    frames = sound()
    for each in changes:
        each(frames)
    return frames, facts


ALSO_SOUND |= {
    "a role and an error that are null": sound_case(change(TEXT, *DELTA, "role", to=None), change(TEXT, "error", to=None)),
    "a choice that ends with nothing more to say": sound_case(change(FINISH, *DELTA, to={"content": "", "tool_calls": []})),
    "stop, where the request named the tool": sound_case(
        change(FINISH, "choices", 0, "finish_reason", to="stop"), facts=RequestFacts("chat", ("look", "read"), True, forced=True)
    ),
    "a call that the tokens did not suffice for": sound_case(
        change(MORE_B, *PART, "function", "arguments", to='{"at'), change(FINISH, "choices", 0, "finish_reason", to="length")
    ),
    "a custom tool, whose input is any text": sound_case(
        change(OPENS_B, *DELTA, "tool_calls", to=[{"index": 1, "id": "b", "type": "custom", "custom": {"name": "read", "input": ""}}]),
        change(MORE_B, *DELTA, "tool_calls", to=[{"index": 1, "custom": {"input": "ls -l"}}]),
    ),
    "two choices": sound_case(
        *(insert(chunk({}, choices=[{"index": 1, "delta": delta, "finish_reason": finish}]), before=FINISH)
          for delta, finish in [({}, "stop"), ({"role": "assistant", "content": "Ho"}, None)]),
    ),
    "a function of the time before tools": sound_case(
        drop(OPENS_B, MORE_B),
        change(OPENS_A, *DELTA, to={"function_call": {"name": "look", "arguments": ""}}),
        change(MORE_A, *DELTA, to={"function_call": {"arguments": "{}"}}),
        change(OPENS_B, "choices", 0, "finish_reason", to="function_call"),
    ),
}  # fmt: skip
