"""Responses: everything that can be wrong with a turn, streamed and plain."""

import json
from typing import Any

from tests.check.responses_turns import (
    ADDED,
    ANNOTATION,
    ARGUMENTS,
    ASKED,
    DONE,
    EARLY_TEXT,
    ERROR_EVENT,
    EXTENDED,
    FAILURE,
    FINAL,
    HALF,
    LATE_TEXT,
    REQUEST,
    RESPONSE,
    TOO_LONG,
    asked_for,
    call,
    event,
    failed,
    fails,
    framed,
    message,
    search,
    sound,
    spoken,
    stream,
)
from tests.check.streams import (
    Change,
    Frames,
    all_of,
    change,
    drop,
    faults,
    index_of,
    insert,
    move,
    remove,
    rename,
    repeat,
    somewhere,
)


def from_one(frames: Frames) -> int:
    for frame in frames[:-1]:
        frame.data["sequence_number"] += 1
    return 0


def reverse_output(frames: Frames) -> int:
    index = index_of(frames, "completed")
    frames[index].data["response"]["output"].reverse()
    return index


def retype(at: str, to: str) -> Change:
    """Another event in its place."""

    def do(frames: Frames) -> int:
        index = index_of(frames, at)
        frames[index].name = frames[index].data["type"] = to
        return index

    return do


def done_as(index: int, key: str, to: Any) -> Change:
    """Another value in the item when it is done, and in the response."""
    return all_of(change("completed", *FINAL, index, key, to=to), change(DONE, "item", key, to=to, nth=index))


def everywhere(index: int, key: str, to: Any) -> Change:
    """Another value in everything that is said of an item; None takes it away."""

    def do(frames: Frames) -> int:
        events = [
            frame.data for frame in frames if isinstance(frame.data, dict) and frame.data.get("output_index") == index
        ]
        final = frames[index_of(frames, "completed")].data["response"]["output"][index]
        for item in [final, *(data["item"] for data in events if "item" in data)]:
            item[key] = to
            if to is None:
                del item[key]
        for data in events:
            if key == "id" and "item_id" in data:
                data["item_id"] = to
            if key == "name" and "name" in data:
                data["name"] = to
        return index_of(frames, ADDED, index)

    return do


def everywhere_in_text(key: str) -> Change:
    """A field is missing wherever the text of the message is told as a whole."""

    def do(frames: Frames) -> int:
        index = index_of(frames, DONE, 1)
        for part in (frames[index].data["item"], frames[index_of(frames, "completed")].data["response"]["output"][1]):
            del part["content"][0][key]
        return index

    return do


def at_index(index: int, to: int) -> Change:
    """Another index in everything that is said of an item."""

    def do(frames: Frames) -> int:
        changed = [n for n, frame in enumerate(frames[:-1]) if frame.data.get("output_index") == index]
        for n in changed:
            frames[n].data["output_index"] = to
        return changed[0]

    return do


STREAM: dict[str, tuple[str, Change]] = {
    # What leaves out a number goes back to it afterwards, or the other way round.
    "a number is far ahead": ("sequence-gap sequence", change("output_text.done", "sequence_number", to=99)),
    "a number is the one before": ("sequence sequence-gap", change("in_progress", "sequence_number", to=0)),
    "a number is true": ("sequence", change("in_progress", "sequence_number", to=True)),
    "a number is text": ("sequence", change("in_progress", "sequence_number", to="1")),
    "a number is missing": ("sequence", remove("completed", "sequence_number")),
    "numbers begin with one": ("sequence-gap", from_one),
    "created is missing": ("opening", drop("created")),
    "created comes twice": ("opening", repeat("created")),
    "in_progress is missing": ("in-progress", drop("in_progress")),
    "in_progress comes first": ("opening", move("created", behind="in_progress")),
    "in_progress comes after an item": ("in-progress", move("in_progress", behind=ADDED)),
    "queued comes late": (
        "in-progress",
        insert(framed(event("queued", response={**RESPONSE, "status": "queued"})), before=ADDED),
    ),
    "the closing event is missing": ("closing", drop("completed")),
    "there are two closing events": ("closing", repeat("completed")),
    "there are two different closing events": (
        "closing",
        insert(framed(event("failed", response={**RESPONSE, "status": "failed"})), before="completed"),
    ),
    "something follows the closing event": (
        "closing",
        insert(framed(event("in_progress", response=RESPONSE)), before=-1),
    ),
    "an error is followed by completed": ("error-event", insert(framed(ERROR_EVENT), before="completed")),
    "an error comes in the middle": ("error-event", insert(framed(ERROR_EVENT), before=DONE)),
    "all is nameless": ("event-name", all_of(*(rename(index, None) for index in range(len(sound()) - 1)))),
    "an event has the name of all events": ("event-name", rename(3, "message")),
    "the marker is missing": ("done-marker", drop(-1)),
    "the marker comes twice": ("done-marker", repeat(-1)),
    "the marker comes before the end": ("done-marker", move("completed", behind="[DONE]")),
    "the response id changes": ("response-id", change("completed", "response", "id", to="resp_2")),
    "the response id is missing": ("response-id", remove("in_progress", "response", "id")),
    "created says completed": ("response-status", change("created", "response", "status", to="completed")),
    "created says queued and nothing is": ("response-status", change("created", "response", "status", to="queued")),
    "completed says incomplete": ("response-status", change("completed", "response", "status", to="incomplete")),
    "completed says in_progress": ("response-status", change("completed", "response", "status", to="in_progress")),
    "ping is sent": ("unknown-event", insert(framed({"type": "ping"}), before=ADDED)),
    "an event with a prefix is sent": ("unknown-event", insert(framed({"type": "toolwire:ping"}), before=ADDED)),
    "reasoning has the other name": ("unknown-event", insert(framed(event("reasoning.delta")), before=ADDED)),
    # The item is not there for all that is said of it.
    "an item is not announced": ("item-added final-output", drop(ADDED, nth=4)),
    "text comes before its item": ("item-added", insert(framed(EARLY_TEXT), before=ADDED)),
    "an item is announced twice": ("output-index", repeat(ADDED, nth=2)),
    "an index is skipped": ("output-index", change(ADDED, "output_index", to=7, nth=4)),
    "an index is skipped in all events of an item": ("output-index", at_index(4, 7)),
    "an index is text": ("output-index", change(ADDED, "output_index", to="4", nth=4)),
    "an index is missing": ("output-index", remove(ADDED, "output_index", nth=4)),
    "all items have one index": ("output-index", all_of(*(at_index(index, 0) for index in (1, 3, 4, 2)))),
    "items are counted from one": ("output-index", all_of(*(at_index(index, index + 1) for index in (4, 3, 2, 1, 0)))),
    "an item is done under the index of another": ("output-index", change(DONE, "output_index", to=1, nth=3)),
    "two items have one id": ("item-id", everywhere(3, "id", "fc_a")),
    "two items begin with one id": ("item-id item-identity", change(ADDED, "item", "id", to="fc_a", nth=3)),
    "an event has the id of another item": ("item-id", change("output_text.delta", "item_id", to="rs_1")),
    "an event has no item id": ("item-id", remove(f"{ARGUMENTS}.done", "item_id")),
    "an event has the index of another item": (
        "output-index",
        change(f"{ARGUMENTS}.delta", "output_index", to=2, nth=3),
    ),
    "an item has no type": ("item-keys part-order", everywhere(1, "type", None)),  # nor a type that parts belong to
    "a message has no role": ("item-keys", everywhere(1, "role", None)),
    "a call has no name": ("item-keys calls.name", everywhere(2, "name", None)),  # in any API a call has one
    "a call has no call id": ("item-keys calls.id", everywhere(2, "call_id", None)),
    # Later events say what it began without.
    "an item is announced without its id": ("item-keys item-id item-identity", remove(ADDED, "item", "id", nth=1)),
    "a message is announced without its role": ("item-keys item-identity", remove(ADDED, "item", "role", nth=1)),
    "a call is announced without its name": ("item-keys item-identity", remove(ADDED, "item", "name", nth=2)),
    "a call has no status": ("item-status", everywhere(2, "status", None)),
    "a message is done without a status": ("item-status final-output", remove(DONE, "item", "status", nth=1)),
    "an item begins completed": ("item-status", change(ADDED, "item", "status", to="completed")),
    "an item ends in progress": (
        "item-status",
        done_as(2, "status", "in_progress"),
    ),
    "an item is done in progress": ("item-status final-output", change(DONE, "item", "status", to="in_progress")),
    "a part is not announced": ("part-order text-agrees", drop("content_part.added", nth=1)),
    "a summary part is not announced": ("part-order text-agrees", drop("reasoning_summary_part.added")),
    "a part is announced after its text": (
        "part-order text-agrees",
        somewhere(move("content_part.added", behind="output_text.delta", nth=1)),
    ),
    "a part has the wrong index": ("part-order", change("content_part.added", "content_index", to=1, nth=1)),
    "text has the wrong part index": ("part-order text-agrees", change("output_text.delta", "content_index", to=1)),
    "a part begins with text": ("part-begins-empty", change("content_part.added", "part", "text", to="Let", nth=1)),
    "a part of the wrong type is announced": (
        "part-order",
        change("content_part.added", "part", "type", to="summary_text", nth=1),
    ),
    "a part changes its type": (
        "part-order",
        change("content_part.done", "part", "type", to="refusal", nth=1),
    ),
    "an annotation comes after its part": ("part-order", insert(framed(ANNOTATION), before=DONE, nth=1)),
    "a part is not closed": ("part-order", drop("content_part.done", nth=1)),
    "a part is closed before its text": ("part-order", move("content_part.done", behind="output_text.delta", nth=1)),
    "a part begins inside another": (
        "part-order",
        somewhere(move("reasoning_summary_part.done", behind="content_part.added")),
    ),
    "text has no done": ("part-order", drop("output_text.done")),
    "text comes after its done": ("part-order text-agrees", move("output_text.delta", behind="output_text.done")),
    "text is done twice": ("part-order", repeat("output_text.done")),
    "a delta of text is lost": ("text-agrees", drop("output_text.delta", nth=1)),
    "a delta of text comes twice": ("text-agrees", somewhere(repeat("output_text.delta"))),
    "a delta is no string": ("text-agrees", change("output_text.delta", "delta", to=None)),
    "a letter differs in done": ("text-agrees", change("output_text.done", "text", to="Let me look!")),
    "a letter differs in the summary": ("text-agrees", change("reasoning_summary_text.done", "text", to="Two Cities.")),
    "a letter differs in the thought": ("text-agrees", somewhere(change("reasoning_text.delta", "delta", to="ask "))),
    "a letter differs in the part": (
        "text-agrees",
        change("content_part.done", "part", "text", to="Let me look!", nth=1),
    ),
    "a letter differs in the closed item": (
        "text-agrees final-output",
        change(DONE, "item", "content", 0, "text", to="Let me look!", nth=1),
    ),
    "a letter differs in the final output": (
        "final-output",
        change("completed", *FINAL, 1, "content", 0, "text", to="Let me look!"),
    ),
    "a closed item lacks a part": ("text-agrees final-output", change(DONE, "item", "summary", to=[], nth=0)),
    "a delta of arguments is lost": ("text-agrees", drop(f"{ARGUMENTS}.delta")),
    "all deltas of input are lost": ("call-order text-agrees", all_of(*[drop("custom_tool_call_input.delta")] * 2)),
    "a letter differs in arguments.done": (
        "text-agrees",
        change(f"{ARGUMENTS}.done", "arguments", to='{"city":"paris"}'),
    ),
    "a letter differs in input.done": ("text-agrees", change("custom_tool_call_input.done", "input", to="ls -L")),
    "a letter differs in the closed call": (
        "text-agrees final-output",
        change(DONE, "item", "arguments", to="{}", nth=2),
    ),
    "a call has no arguments.done": ("call-order", drop(f"{ARGUMENTS}.done")),
    "a call has two arguments.done": ("call-order", repeat(f"{ARGUMENTS}.done")),
    "a delta comes after arguments.done": (
        "call-order text-agrees",
        move(f"{ARGUMENTS}.delta", behind=f"{ARGUMENTS}.done"),
    ),
    "a custom call is told as a function": (
        "call-order text-agrees",
        retype("custom_tool_call_input.delta", f"response.{ARGUMENTS}.delta"),
    ),
    "a call begins with its arguments": ("item-begins-empty", change(ADDED, "item", "arguments", to="{}", nth=2)),
    "a message begins with its content": (
        "item-begins-empty",
        change(ADDED, "item", "content", to=[{"type": "output_text"}], nth=1),
    ),
    "arguments are an object": (
        "arguments-string text-agrees final-output calls.json",  # what is no text is lost
        change(DONE, "item", "arguments", to={"city": "Paris"}, nth=2),
    ),
    "arguments are an object in done": (
        "arguments-string",
        change(f"{ARGUMENTS}.done", "arguments", to={"city": "Paris"}),
    ),
    "arguments begin as null": ("arguments-string", change(ADDED, "item", "arguments", to=None, nth=2)),
    "two calls have one call id": ("calls.id", somewhere(everywhere(3, "call_id", "call_a"))),
    "two calls begin with one call id": (
        "item-identity",
        somewhere(change(ADDED, "item", "call_id", to="call_a", nth=3)),
    ),
    "id and call id are the same": ("call-id", everywhere(2, "call_id", "fc_a")),
    "id and call id begin as the same": ("call-id item-identity", change(ADDED, "item", "call_id", to="fc_a", nth=2)),
    # It is judged by the type that it has now.
    "the type changes": (
        "item-identity final-output arguments-string",
        change(DONE, "item", "type", to="custom_tool_call", nth=2),
    ),
    # The response still tells the old one.
    "the id changes": ("item-identity final-output", change(DONE, "item", "id", to="fc_z", nth=2)),
    "the call id changes": ("item-identity final-output", change(DONE, "item", "call_id", to="call_z", nth=2)),
    # Nobody has declared the new one.
    "the name changes": ("item-identity final-output calls.name", change(DONE, "item", "name", to="wether", nth=2)),
    "the name changes in arguments.done": ("item-identity", change(f"{ARGUMENTS}.done", "name", to="wether")),
    "an item is not closed": ("item-closed", drop(DONE, nth=4)),
    "an item is closed twice": ("closed-item", repeat(DONE, nth=1)),
    "text comes after its item": ("closed-item", insert(framed(LATE_TEXT), before="completed")),
    "an item is closed after the end": ("closing", move(DONE, behind="completed", nth=4)),
    "the final output lacks an item": ("final-output", remove("completed", *FINAL, 4)),
    "the final output is empty": ("final-output", change("completed", *FINAL, to=[])),
    "the final output is in another order": ("final-output", reverse_output),
    "the final output has another status": ("final-output", change("completed", *FINAL, 2, "status", to="in_progress")),
    "a call is of a tool that was not declared": ("calls.name", somewhere(everywhere(2, "name", "fly"))),
    "arguments are cut": (
        "calls.json",
        all_of(
            drop(f"{ARGUMENTS}.delta", nth=2),
            change(f"{ARGUMENTS}.done", "arguments", to='{"city":"Paris"'),
            done_as(2, "arguments", '{"city":"Paris"'),
        ),
    ),
    "tokens are not told": ("usage.reported", change("completed", "response", "usage", to=None)),
    "the sum of tokens is wrong": ("usage.sum", change("completed", "response", "usage", "total_tokens", to=40)),
    "more tokens are cached than came in": (
        "usage.parts",
        change("completed", "response", "usage", "input_tokens_details", "cached_tokens", to=10),
    ),
    "tokens have no details": ("usage-details", remove("completed", "response", "usage", "output_tokens_details")),
    "cached tokens are null": (
        "usage-details",
        change("completed", "response", "usage", "input_tokens_details", "cached_tokens", to=None),
    ),
    "text has no annotations": ("part-keys", everywhere_in_text("annotations")),
    "the response is of another kind": ("fields", change("created", "response", "object", to="thread")),
    "the response has no time": ("fields", remove("in_progress", "response", "created_at")),
    "the response has no tools": ("fields", remove("completed", "response", "tools")),
    "the response does not say what it continues": (
        "open-fields",
        remove("completed", "response", "previous_response_id"),
    ),
    "the temperature is null": ("open-fields", change("completed", "response", "temperature", to=None)),
    "text has no log probabilities": ("event-fields", remove("output_text.delta", "logprobs")),
    "arguments have no name": ("event-fields", remove(f"{ARGUMENTS}.done", "name")),
    "an incomplete item is in a completed response": (
        "incomplete-item",
        done_as(4, "status", "incomplete"),
    ),
}


LEAK = "<tool_call>look"


def leaking(frames: Frames) -> int:
    """The model's own notation for a call, in everything that is said of a message."""
    for frame in frames:
        frame.data = json.loads(json.dumps(frame.data).replace("Let me look.", LEAK))
    change("output_text.delta", "delta", to=LEAK)(frames)
    drop("output_text.delta", nth=1)(frames)
    drop("output_text.delta", nth=1)(frames)
    return index_of(frames, DONE)


WAITING = all_of(
    change("completed", "response", "required_action", to={"type": "submit_tool_outputs"}),
    change("completed", "response", "status", to="incomplete"),
)
"""A response that waits for the results of calls."""

ECHOES: dict[str, tuple[str, Change]] = {
    "a tool is not told": ("echo-tools", remove("completed", "response", "tools", 0)),
    "a tool is told under another name": ("echo-tools", change("completed", "response", "tools", 1, "name", to="walk")),
    "the parameters of a tool are lost": ("echo-tools", change("created", "response", "tools", 0, "parameters", to={})),
    "no tools are told": ("echo-tools", change("completed", "response", "tools", to=[])),
    "another choice is told": ("echo-tools", change("completed", "response", "tool_choice", to="none")),
    "parallel calls are told as off": ("echo-tools", change("completed", "response", "parallel_tool_calls", to=False)),
    "parallel calls are told as a number": ("echo-tools", change("completed", "response", "parallel_tool_calls", to=1)),
    "another temperature is told": ("echo-sampling", change("completed", "response", "temperature", to=0.7)),
    "another effort is told": ("echo", change("completed", "response", "reasoning", "effort", to="high")),
    "another format is told": ("echo", change("completed", "response", "text", to={"format": {"type": "json_object"}})),
    "a format is not told": ("echo", change("completed", "response", "text", to={})),
    "it is told as stored": ("echo", change("created", "response", "store", to=True)),
}  # fmt: skip

STREAM_FAULTS = [
    *faults(sound, ASKED, STREAM),
    *faults(sound, asked_for(**REQUEST), ECHOES),
    *faults(
        spoken,
        ASKED,
        {
            "a call is left in the text": ("calls.leak", leaking),
            "the response waits for calls that are not there": (
                "calls.finish response-status",
                WAITING,
            ),  # nobody asked for this form, either,
        },
    ),
    *faults(
        failed,
        ASKED,
        {
            "a failure comes without its event": ("failure-event", drop("error")),
            "a failed response has no error": ("failed-error", change("failed", "response", "error", to=None)),
            "the error of a failed response has no code": (
                "failed-error",
                remove("failed", "response", "error", "code"),
            ),
            "an error has no code": ("event-fields", remove("error", "code")),
            "an error is flat": ("error-object", remove("error", "error")),
            "something comes between an error and the failure": (
                "error-event",
                insert(framed(event("in_progress", response=RESPONSE)), before="failed"),
            ),
            "a failed response has lost its items": ("failed-output", change("failed", *FINAL, to=[])),
            "a failed response has half a call as a whole one": (
                "failed-output",
                change("failed", *FINAL, 1, "status", to="completed"),
            ),
            "a failed response tells of an item that never was": (
                "failed-output",
                change("failed", *FINAL, to=[*failed()[-2].data["response"]["output"], {"type": "message"}]),
            ),
            "a failed response tells another message": (
                "failed-output",
                change("failed", *FINAL, 0, "content", 0, "text", to="Let me"),
            ),
        },
    ),
    *faults(
        lambda: stream(message(0, **HALF), closing="incomplete", **TOO_LONG),
        ASKED,
        {
            "nobody says why a response is incomplete": (
                "incomplete-details",
                change("incomplete", "response", "incomplete_details", to=None),
            )
        },
    ),
    *faults(
        lambda: stream(message(0, **HALF), call(1, "a", "Paris"), closing="incomplete", **TOO_LONG),
        ASKED,
        {"an incomplete item is not the last": ("incomplete-item", lambda frames: index_of(frames, DONE))},
    ),
    *faults(
        lambda: fails(message(0, **HALF), call(1, "a", "Paris")),
        ASKED,
        {
            "an incomplete item of a failed response is not the last": (
                "incomplete-item",
                lambda frames: index_of(frames, DONE),
            )
        },
    ),
    *faults(
        lambda: stream(search(), message()),
        ASKED,
        {
            "an event of a hosted tool has the id of another item": (
                "item-id",
                change("web_search_call.searching", "item_id", to="ws_2"),
            ),
            "a hosted tool ends in progress": ("item-status", change(DONE, "item", "status", to="in_progress")),
            "a hosted tool begins completed": ("item-status", change(ADDED, "item", "status", to="completed")),
            "a hosted tool is not in the response": (
                "final-output",
                change("completed", *FINAL, 0, "id", to="ws_2"),
            ),
        },
    ),
    *faults(
        sound,
        EXTENDED,
        {
            "extended: an event that nobody asked for": (
                "unknown-event",
                insert(framed({"type": "response.pong"}), before=DONE),
            )
        },
    ),
    *faults(
        lambda: stream(message(0), status="incomplete"),
        EXTENDED,
        {"extended: incomplete without calls": ("response-status", lambda frames: index_of(frames, "completed"))},
    ),
]

# A plain answer


def at(*path: Any, to: Any) -> Change:
    return change(0, *path, to=to)


def lacks(*path: Any) -> Change:
    return remove(0, *path)


CALL = ("output", 2)

PLAIN_FAULTS: dict[str, tuple[str, Change]] = {
    "the answer is of another kind": ("object", at("object", to="chat.completion")),
    "the response has no id": ("object", lacks("id")),
    "the response has no status": ("object", lacks("status")),
    "the output is an object": ("object", at("output", to={})),
    "an item has no id": ("item-keys", lacks("output", 0, "id")),
    "an item is text": ("item-keys", at("output", 0, to="Hm.")),
    "a message has no role": ("item-keys", at("output", 1, "role", to=None)),
    "a call has no call id": ("item-keys calls.id", lacks(*CALL, "call_id")),  # in any API a call has one
    "a call has no name": ("item-keys calls.name", lacks(*CALL, "name")),
    "id and call id are the same": ("call-id", at(*CALL, "call_id", to="fc_a")),
    # What is no text is lost.
    "arguments are an object": ("arguments-string calls.json", at(*CALL, "arguments", to={"city": "Paris"})),
    "the input of a custom tool is an object": ("arguments-string", at("output", 3, "input", to={})),
    "two calls have one id": ("calls.id", at(*CALL, "call_id", to="call_c")),
    "a call is of a tool that was not declared": ("calls.name", at(*CALL, "name", to="fly")),
    "arguments are cut": ("calls.json", at(*CALL, "arguments", to="{")),
    "the response waits for calls that are not there": (
        "calls.finish",
        all_of(at("output", to=[]), at("status", to="incomplete"), at("required_action", to={})),
    ),
    "a call is left in the text": ("calls.leak", at("output", 1, "content", 0, "text", to="<|python_tag|>look()")),
    "the response has no time": ("object", lacks("created_at")),
    "the response has no model": ("object", lacks("model")),
    "text has no annotations": ("part-keys", lacks("output", 1, "content", 0, "annotations")),
    "the response has no metadata": ("fields", lacks("metadata")),
    "the response has no tier": ("open-fields", lacks("service_tier")),
    "the response has no text settings": ("open-fields", at("text", to=None)),
    "tokens have no details": ("usage-details", lacks("usage", "input_tokens_details")),
    "nobody says why a response is incomplete": ("incomplete-details", at("status", to="incomplete")),
    "a failed response has no error": ("failed-error", at("status", to="failed")),
    "tokens are not told": ("usage.reported", at("usage", to=None)),
    "the sum of tokens is wrong": ("usage.sum", at("usage", "total_tokens", to=40)),
}

ALSO_SOUND_PLAIN: dict[str, Change] = {
    "incomplete": all_of(at("status", to="incomplete"), at("incomplete_details", to={"reason": "max_output_tokens"})),
    "filtered": all_of(at("status", to="incomplete"), at("incomplete_details", to={"reason": "content_filter"})),
    "failed": all_of(at("status", to="failed"), at("output", to=[]), at("usage", to=None), at("error", to=FAILURE)),
    "still in progress": all_of(at("status", to="in_progress"), at("output", to=[]), at("usage", to=None)),
    "calls that wait": at("required_action", to={"type": "submit_tool_outputs"}),
    "reasoning without a status": lacks("output", 0, "status"),
}
