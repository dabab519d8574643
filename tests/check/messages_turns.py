"""Messages: sound turns, streamed and plain, and everything that can be wrong with them."""

from copy import deepcopy
from typing import Any

from tests.check.streams import (
    Change,
    Frame,
    Frames,
    Json,
    all_of,
    append,
    change,
    drop,
    faults,
    insert,
    move,
    remove,
    rename,
    repeat,
)
from toolwire.check.turns.rule import RequestFacts

ASKED = RequestFacts("messages", ("look", "read"))

USAGE = {
    "input_tokens": 3,
    "cache_creation": None,
    "cache_creation_input_tokens": None,
    "cache_read_input_tokens": 0,
    "output_tokens": 1,
    "server_tool_use": None,
    "service_tier": None,
}


def event(type: str, **fields: Any) -> Frame:
    return Frame(type, {"type": type, **fields})


def start(index: int, **block: Any) -> Frame:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, type: str, **fields: Any) -> Frame:
    return event("content_block_delta", index=index, delta={"type": type, **fields})


def stop(index: int) -> Frame:
    return event("content_block_stop", index=index)


def begun() -> Frame:
    about = {"id": "msg", "type": "message", "role": "assistant", "model": "m"}
    ends = {"stop_reason": None, "stop_sequence": None, "stop_details": None, "container": None}
    return event("message_start", message={**about, "content": [], **ends, "usage": {**USAGE}})


def ends(reason: str) -> Frame:
    return event(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None, "stop_details": None, "container": None},
        usage={**USAGE, "output_tokens": 9},
    )


FAILED = event("error", error={"type": "api_error", "message": "No."})
BEGUN, PING, THINKS, THOUGHT, SIGNED, THOUGHT_ENDS, SPEAKS, SPOKEN, SPOKEN_ENDS = range(9)
OPENS_A, MORE_A, LAST_A, ENDS_A, OPENS_B, MORE_B, ENDS_B, END, OVER = range(9, 18)
"""The frames of the sound stream."""


def sound() -> Frames:
    """A thought, text and two calls."""
    return [
        begun(),
        event("ping"),
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="Hm."),
        delta(0, "signature_delta", signature="S"),
        stop(0),
        start(1, type="text", text=""),
        delta(1, "text_delta", text="So."),
        stop(1),
        start(2, type="tool_use", id="a", name="look", input={}),
        delta(2, "input_json_delta", partial_json='{"at":'),
        delta(2, "input_json_delta", partial_json="1}"),
        stop(2),
        start(3, type="tool_use", id="b", name="read", input={}),
        delta(3, "input_json_delta", partial_json=""),
        stop(3),
        ends("tool_use"),
        event("message_stop"),
    ]


def failed() -> Frames:
    """It breaks down in the middle of a call."""
    return [*sound()[: MORE_A + 1], deepcopy(FAILED)]


def spoken() -> Frames:
    """Nothing but text."""
    return [
        begun(),
        start(0, type="text", text=""),
        delta(0, "text_delta", text="So."),
        stop(0),
        ends("end_turn"),
        event("message_stop"),
    ]


BLOCK = ("content_block",)
MESSAGE = ("message",)

STREAM_FAULTS = [
    *faults(
        sound,
        ASKED,
        {
            "an event has the name of another": ("event-name", rename(OVER, "message_delta")),
            "an event has no name": ("event-name", rename(SPOKEN, None)),
            "no event has a name": ("event-name", all_of(*(rename(index, None) for index in range(18)))),
            "message_start is missing": ("opening", drop(BEGUN)),
            "message_start comes twice": ("opening", repeat(BEGUN)),
            "message_start comes late": ("opening", move(BEGUN, behind=THINKS)),
            "the message begins without an id": ("opening", remove(BEGUN, *MESSAGE, "id")),
            "the message begins with content": ("opening", change(BEGUN, *MESSAGE, "content", to=["x"])),
            "the message begins with its end": ("opening", change(BEGUN, *MESSAGE, "stop_reason", to="tool_use")),
            "the message begins without a role": ("opening", remove(BEGUN, *MESSAGE, "role")),
            "the message begins without a model": ("fields", remove(BEGUN, *MESSAGE, "model")),
            "the message begins without a stop sequence": ("fields", remove(BEGUN, *MESSAGE, "stop_sequence")),
            "the end has no stop sequence": ("fields", remove(END, "delta", "stop_sequence")),
            "the end has no container": ("null-fields", remove(END, "delta", "container")),
            "the message has no container": ("null-fields", remove(BEGUN, *MESSAGE, "container")),
            "the usage says nothing of the cache": (
                "null-fields",
                all_of(remove(BEGUN, *MESSAGE, "usage", "cache_creation"), remove(BEGUN, *MESSAGE, "usage", "cache_read_input_tokens")),
            ),
            "the message begins without usage": ("start-usage", remove(BEGUN, *MESSAGE, "usage")),
            "the usage begins without input": ("start-usage", remove(BEGUN, *MESSAGE, "usage", "input_tokens")),
            "message_stop is missing": ("closing", drop(OVER)),
            "message_stop comes twice": ("closing", repeat(OVER)),
            "message_delta is missing": ("closing", drop(END)),
            "message_delta comes before a block": ("closing", move(END, behind=SPOKEN_ENDS)),
            "the stop reason is none of the API's": ("closing", change(END, "delta", "stop_reason", to="done")),
            "the stop reason is missing": ("closing", remove(END, "delta", "stop_reason")),
            "the end has no usage": ("delta-usage", remove(END, "usage")),
            "the end does not count the output": ("delta-usage", change(END, "usage", to={"input_tokens": 3})),
            "an error comes after the end": ("error-event", append(FAILED)),
            "an event is unknown": ("unknown-event", insert(event("message_pause"), before=SPEAKS)),
            "the marker of another API comes last": ("unknown-event", append(Frame(None, "[DONE]"))),
            "a block is not stopped": ("block-order", drop(THOUGHT_ENDS)),
            "the last block is not stopped": ("block-order", drop(ENDS_B)),
            "a block is stopped twice": ("block-order", repeat(SPOKEN_ENDS)),
            "a delta has the index of another block": ("block-order", insert(delta(0, "text_delta", text="So."), before=SPOKEN)),
            "a stop has the index of another block": ("block-order", change(SPOKEN_ENDS, "index", to=0)),
            "a stop has the index true": ("block-order", change(SPOKEN_ENDS, "index", to=True)),
            "a delta comes between blocks": ("block-order", insert(delta(1, "text_delta", text="!"), before=OPENS_A)),
            "an index is skipped": ("block-index", change(SPEAKS, "index", to=2)),
            "an index is text": ("block-index", change(SPEAKS, "index", to="1")),
            "text begins with text": ("block-start", change(SPEAKS, *BLOCK, "text", to="So.")),
            "a thought begins with words": ("block-start", change(THINKS, *BLOCK, "thinking", to="Hm.")),
            "a call begins with its input": ("block-start", change(OPENS_A, *BLOCK, "input", to={"at": 1})),
            "a call begins with text as input": ("block-start", change(OPENS_A, *BLOCK, "input", to="")),
            # In any API a call has an id and a name.
            "a call has no id": ("block-keys calls.id", remove(OPENS_A, *BLOCK, "id")),
            "a call has no name": ("block-keys calls.name", change(OPENS_A, *BLOCK, "name", to="")),
            "a delta is of another kind than its block": ("delta", insert(delta(1, "thinking_delta", thinking="Hm."), before=SPOKEN)),
            "a delta is of a kind that nobody knows": ("delta", insert(delta(1, "sound_delta", sound="Hm."), before=SPOKEN)),
            "a delta has no text": ("delta", insert(delta(1, "text_delta", text=None), before=SPOKEN)),
            "a delta of a call is an object": ("delta", insert(delta(3, "input_json_delta", partial_json={}), before=ENDS_B)),
            "a thought is signed twice": ("delta", repeat(SIGNED)),
            "a thought goes on behind its signature": ("delta", insert(delta(0, "thinking_delta", thinking="!"), before=THOUGHT_ENDS)),
            "text is empty": ("block-empty", drop(SPOKEN)),
            "two calls have one id": ("calls.id", change(OPENS_B, *BLOCK, "id", to="a")),
            "a call is of a tool that was not declared": ("calls.name", change(OPENS_B, *BLOCK, "name", to="fly")),
            "the input is cut": ("calls.json", drop(LAST_A)),
            "the input is a list": ("calls.json", change(MORE_B, "delta", "partial_json", to="[]")),
            "a turn with calls ends its turn": ("calls.finish", change(END, "delta", "stop_reason", to="end_turn")),
            "tokens are told as text": (
                "delta-usage usage.reported",  # there is no other count of the output
                change(END, "usage", "output_tokens", to="9"),
            ),
        },
    ),
    *faults(
        spoken,
        ASKED,
        {
            "a turn without calls ends with calls": ("calls.finish", change(4, "delta", "stop_reason", to="tool_use")),
            "a call is left in the text": ("calls.leak", change(2, "delta", "text", to='<invoke name="look">')),
            "nobody counts the input": (
                "start-usage usage.reported",  # one of them would do for the other
                all_of(remove(0, *MESSAGE, "usage", "input_tokens"), remove(4, "usage", "input_tokens")),
            ),
        },
    ),
    *faults(
        failed,
        ASKED,
        {
            "an error is followed by the end": ("error-event", append(event("message_stop"))),
            "an error is followed by text": ("error-event", append(delta(2, "input_json_delta", partial_json="1}"))),
            "an error follows an error": ("error-event", append(FAILED)),
            "an error has no type": ("error-event", remove(-1, "error", "type")),
            "an error has no message": ("error-event", change(-1, "error", to="No.")),
        },
    ),
]  # fmt: skip

# A plain answer


def plain() -> Json:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "S"},
        {"type": "text", "text": "So."},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "b", "name": "read", "input": {}},
    ]
    about = {"id": "msg", "type": "message", "role": "assistant", "model": "m"}
    ends = {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None, "container": None}
    return {**about, "content": content, **ends, "usage": {**USAGE}}


def at(*path: Any, to: Any) -> Change:
    return change(0, *path, to=to)


def lacks(*path: Any) -> Change:
    return remove(0, *path)


CALL = ("content", 2)

PLAIN_FAULTS: dict[str, tuple[str, Change]] = {
    "the answer is of another type": ("message", at("type", to="completion")),
    "the message is the user's": ("message", at("role", to="user")),
    "the message has no id": ("message", lacks("id")),
    "the stop reason is missing": ("message", lacks("stop_reason")),
    "the stop reason is none of the API's": ("message", at("stop_reason", to="stop")),
    "content is text": ("message calls.finish", at("content", to="So.")),  # the calls are gone
    "there is no usage": ("message usage.reported", lacks("usage")),  # clients raise, and budgets count nothing
    "the input is not counted": ("message usage.reported", lacks("usage", "input_tokens")),
    "a call has no id": ("block-keys calls.id", lacks(*CALL, "id")),  # in any API a call has one
    "a call has no name": ("block-keys calls.name", lacks(*CALL, "name")),
    "the input is text": ("input calls.json", at(*CALL, "input", to='{"at":1}')),  # in any API it is an object
    "the input is missing": ("input calls.json", lacks(*CALL, "input")),
    "the message has no model": ("fields", lacks("model")),
    "the message has no stop sequence": ("fields", lacks("stop_sequence")),
    "the message has no details of its stop": ("null-fields", lacks("stop_details")),
    "the usage has no tier": ("null-fields", lacks("usage", "service_tier")),
    "text is empty": ("block-empty", at("content", 1, "text", to="")),
    "two calls have one id": ("calls.id", at(*CALL, "id", to="b")),
    "a call is of a tool that was not declared": ("calls.name", at(*CALL, "name", to="fly")),
    "a turn with calls ends its turn": ("calls.finish", at("stop_reason", to="end_turn")),
    "a call is left in the text": ("calls.leak", at("content", 1, "text", to="<function_calls>")),
}


ALSO_SOUND_PLAIN: dict[str, Change] = {
    "nothing": all_of(at("content", to=[]), at("stop_reason", to="end_turn")),
    "the tool of a server": all_of(
        at(*CALL, "type", to="server_tool_use"), at("content", 3, "type", to="server_tool_use"), at("stop_reason", to="pause_turn")
    ),
    "tokens from a cache": at("usage", "cache_read_input_tokens", to=None),
}  # fmt: skip


def sound_case(*changes: Change) -> tuple[Frames, RequestFacts]:
    frames = sound()
    for each in changes:
        each(frames)
    return frames, ASKED


ALSO_SOUND: dict[str, tuple[Frames, RequestFacts]] = {
    "text": (spoken(), ASKED),
    "empty": ([begun(), ends("end_turn"), event("message_stop")], ASKED),
    "failed": (failed(), ASKED),
    "failed at once": ([FAILED], ASKED),
    "a call that the tokens did not suffice for": sound_case(
        drop(OPENS_B, MORE_B, ENDS_B), drop(LAST_A), change(-2, "delta", "stop_reason", to="max_tokens")
    ),
    "a call without a delta": sound_case(drop(MORE_B)),
    "a thought of which only the signature is told": sound_case(drop(THOUGHT)),
    "a thought that begins without a signature": sound_case(remove(THINKS, *BLOCK, "signature")),
    "the end in two steps": sound_case(repeat(END)),
    "pings without a name": sound_case(rename(PING, None)),
    "a block that nobody has heard of": sound_case(
        insert(stop(4), before=END), insert(start(4, type="fallback", to={"model": "n"}), before=END)
    ),
    "the tool of a server": sound_case(
        change(OPENS_B, *BLOCK, to={"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})
    ),
    "citations": sound_case(insert(delta(1, "citations_delta", citation={"cited_text": "x"}), before=SPOKEN)),
    "a turn that pauses": (
        [begun(), start(0, type="text", text=""), delta(0, "text_delta", text="So."), stop(0), ends("pause_turn"), event("message_stop")],
        ASKED,
    ),
}  # fmt: skip
