"""Responses: sound turns, streamed and plain, and what is sound besides."""

from copy import deepcopy
from typing import Any

from tests.check.streams import (
    Change,
    Frame,
    Frames,
    Json,
    change,
    drop,
    insert,
    move,
    numbered,
    remove,
)
from toolwire.check.turns.rule import RequestFacts

ASKED = RequestFacts("responses", ("weather", "run"))
EXTENDED = RequestFacts("responses", ("weather", "run"), extended=True)
SOCKET = RequestFacts("responses", ("weather", "run"), socket=True)

RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1700000000,
    "completed_at": None,
    "status": "in_progress",
    "incomplete_details": None,
    "model": "demo",
    "previous_response_id": None,
    "instructions": None,
    "output": [],
    "error": None,
    "tools": [
        {"type": "function", "name": "weather", "description": None, "parameters": {"type": "object"}, "strict": False},
        {"type": "custom", "name": "run", "description": "Runs a line."},
    ],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": "low", "summary": "auto"},
    "usage": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": False,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 39,
}


def event(type: str, **fields: Any) -> Json:
    return {"type": f"response.{type}", **fields}


def growing(kind: str, where: Json, key: str, *pieces: str, **done: Any) -> list[Json]:
    """Deltas and the done event that repeats them together."""
    return [
        *(event(f"{kind}.delta", **where, delta=piece) for piece in pieces),
        event(f"{kind}.done", **where, **{key: "".join(pieces)}, **done),
    ]


def item(index: int, begun: Json, ended: Json, *between: list[Json]) -> list[Json]:
    """Everything that a stream says of one item."""
    return [
        event("output_item.added", output_index=index, item={**begun, "status": "in_progress"}),
        *(event for events in between for event in events),
        event("output_item.done", output_index=index, item={**begun, "status": "completed", **ended}),
    ]


def reasoning(index: int = 0) -> list[Json]:
    begun = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    summary = {"type": "summary_text", "text": "Two cities."}
    thought = {"type": "reasoning_text", "text": "Ask twice."}
    first = {"item_id": "rs_1", "output_index": index, "summary_index": 0}
    second = {"item_id": "rs_1", "output_index": index, "content_index": 0}
    return item(
        index,
        begun,
        {"summary": [summary], "content": [thought]},
        [event("reasoning_summary_part.added", **first, part={**summary, "text": ""})],
        growing("reasoning_summary_text", first, "text", "Two ", "cities."),
        [event("reasoning_summary_part.done", **first, part=summary)],
        [event("content_part.added", **second, part={**thought, "text": ""})],
        growing("reasoning_text", second, "text", "Ask ", "twice."),
        [event("content_part.done", **second, part=thought)],
    )


def message(index: int = 1, **ended: Any) -> list[Json]:
    begun = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}
    where = {"item_id": "msg_1", "output_index": index, "content_index": 0}
    return item(
        index,
        begun,
        {"content": [part], **ended},
        [event("content_part.added", **where, part={**part, "text": ""})],
        growing("output_text", {**where, "logprobs": []}, "text", "Let me", " look", "."),
        [event("content_part.done", **where, part=part)],
    )


def call(index: int, id: str, city: str) -> list[Json]:
    begun = {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}", "name": "weather", "arguments": ""}
    where = {"item_id": f"fc_{id}", "output_index": index}
    pieces = ('{"city":', f'"{city}"', "}")
    return item(
        index,
        begun,
        {"arguments": "".join(pieces)},
        growing("function_call_arguments", where, "arguments", *pieces, name="weather"),
    )


def custom(index: int = 4) -> list[Json]:
    begun = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_c", "name": "run", "input": ""}
    where = {"item_id": "ctc_1", "output_index": index}
    return item(index, begun, {"input": "ls -l"}, growing("custom_tool_call_input", where, "input", "ls", " -l"))


def search(index: int = 0) -> list[Json]:
    begun = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "Paris"}}
    where = {"item_id": "ws_1", "output_index": index}
    steps = [event(f"web_search_call.{step}", **where) for step in ("in_progress", "searching", "completed")]
    return item(index, begun, {}, steps)


def stream(*items: list[Json], closing: str = "completed", **final: Any) -> Frames:
    """A numbered stream around the items, each event a copy of its own."""
    output = [events[-1]["item"] for events in items]
    events = [
        event("created", response=RESPONSE),
        event("in_progress", response=RESPONSE),
        *(event for events in items for event in events),
        event(closing, response={**RESPONSE, "status": closing, "output": output, "usage": USAGE, **final}),
    ]
    return numbered([*(framed({**each, "sequence_number": 0}) for each in events), Frame(None, "[DONE]")])


def framed(event: Json) -> Frame:
    return Frame(event["type"], deepcopy(event))


def sound() -> Frames:
    """Reasoning, text, two parallel calls and a custom call."""
    return stream(reasoning(), message(), call(2, "a", "Paris"), call(3, "b", "Rome"), custom())


def failed() -> Frames:
    """It breaks down after a message, in the middle of a call."""
    frames = stream(message(0), call(1, "a", "Paris"), closing="failed", error=FAILURE, usage=None)
    change("failed", *FINAL, 1, "status", to="incomplete")(frames)
    drop("output_item.done", nth=1)(frames)
    drop(f"{ARGUMENTS}.done")(frames)
    insert(framed(ERROR_EVENT), before="failed")(frames)
    return frames


def fails(*items: list[Json]) -> Frames:
    """It breaks down after these items."""
    frames = stream(*items, closing="failed", error=FAILURE, usage=None)
    insert(framed(ERROR_EVENT), before="failed")(frames)
    return frames


def spoken() -> Frames:
    """Nothing but text."""
    return stream(message(0))


REQUEST: Json = {
    "model": "demo",
    "input": "Hi",
    "tools": [
        {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False},
        {"type": "custom", "name": "run", "description": "Runs a line."},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 1,
    "top_p": 1,
    "text": {"format": {"type": "text"}},
    "metadata": {},
    "reasoning": {"effort": "low"},
    "truncation": None,
    "store": False,
}
"""What the sound turns were asked for."""


def asked_for(**fields: Any) -> RequestFacts:
    return RequestFacts("responses", ("weather", "run"), fields=fields)


FAILURE = {"code": "server_error", "message": "Gone."}
ERROR = {"code": "server_error", "message": "Gone.", "param": None}
ERROR_EVENT: Json = {"type": "error", **ERROR, "error": {"type": "server_error", **ERROR}}
CITATION = {"type": "url_citation", "url": "http://paris.test", "title": "Paris", "start_index": 0, "end_index": 3}
ANNOTATION = event(
    "output_text.annotation.added",
    item_id="msg_1",
    output_index=1,
    content_index=0,
    annotation_index=0,
    annotation=CITATION,
)
LATE_TEXT = event("output_text.delta", item_id="msg_1", output_index=1, content_index=0, delta="!", logprobs=[])
EARLY_TEXT = event("output_text.delta", item_id="msg_1", output_index=7, content_index=0, delta="!", logprobs=[])
FINAL = ("response", "output")
DONE = "output_item.done"
ADDED = "output_item.added"
ARGUMENTS = "function_call_arguments"


def plain() -> Json:
    output = [events[-1]["item"] for events in (reasoning(), message(), call(2, "a", "Paris"), custom(3))]
    return deepcopy({**RESPONSE, "status": "completed", "output": output, "usage": USAGE})


def sound_case(
    *changes: Change, frames: Frames | None = None, facts: RequestFacts = ASKED
) -> tuple[Frames, RequestFacts]:
    made = sound() if frames is None else frames
    for each in changes:
        each(made)
    return made, facts


def nameless() -> Frames:
    return [Frame(None, frame.data) for frame in sound()[:-1]]


def further(type: str) -> Change:
    """An event that a stream has only on request."""
    return insert(Frame(type, {"type": type}), before="completed")


HALF = {"status": "incomplete"}
TOO_LONG = {"incomplete_details": {"reason": "max_output_tokens"}}
QUEUED = framed(event("queued", response={**RESPONSE, "status": "queued"}))
KEEPALIVE = Frame("keepalive", {"type": "keepalive"})

ALSO_SOUND: dict[str, tuple[Frames, RequestFacts]] = {
    "text": (spoken(), ASKED),
    "failed": (failed(), ASKED),
    "failed after an item": (fails(message(0)), ASKED),
    "a websocket, without names and marker": (nameless(), SOCKET),
    "an item that begins before another ends": sound_case(
        move(ADDED, behind=ADDED, nth=1), frames=stream(call(0, "a", "Paris"), call(1, "b", "Rome"))
    ),
    "in_progress again, to keep the connection": sound_case(insert(framed(event("in_progress", response=RESPONSE)), before=DONE)),
    "keepalive, as OpenAI sends it": sound_case(insert(KEEPALIVE, before="in_progress"), insert(KEEPALIVE, before=DONE)),
    "a response that waited in a queue": sound_case(
        insert(QUEUED, before="in_progress"), change("created", "response", "status", to="queued")
    ),
    "text that is annotated inside its part": sound_case(insert(framed(ANNOTATION), before="output_text.done")),
    "hosted tools with events of their own": (stream(search(), message()), ASKED),
    "hosted tools without a status": sound_case(
        *(remove(at, "item", "status") for at in (ADDED, DONE)), remove("completed", *FINAL, 0, "status"),
        frames=stream(search(), message()),
    ),
    "audio": sound_case(insert(framed(event("audio.delta", delta="AAAA")), before="completed")),
    "reasoning without a status, as OpenAI sends it": sound_case(
        *(remove(at, "item", "status") for at in (ADDED, DONE)), remove("completed", *FINAL, 0, "status")
    ),
    "a thought that is signed anew in the end": sound_case(
        change(ADDED, "item", "encrypted_content", to="1"),
        change(DONE, "item", "encrypted_content", to="2"),
        change("completed", *FINAL, 0, "encrypted_content", to="3"),
    ),
    "an incomplete message that is the last": (stream(reasoning(), message(**HALF), closing="incomplete", **TOO_LONG), ASKED),
    "an incomplete message in a failed response": (fails(reasoning(), message(**HALF)), ASKED),
    "all that was asked for is told": sound_case(facts=asked_for(**REQUEST)),
    "a server that has tools of its own": sound_case(facts=asked_for(tools=REQUEST["tools"][:1])),
    "a strict tool, whose schema was made to fit": sound_case(facts=asked_for(tools=[{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}])),
    "a summary of reasoning, which the server chooses": sound_case(facts=asked_for(reasoning={"effort": "low", "summary": "concise"})),
    "half a call that nobody declares done": sound_case(
        change(DONE, "item", "status", to="incomplete"),
        change("incomplete", *FINAL, 0, "status", to="incomplete"),
        drop(f"{ARGUMENTS}.done"),
        frames=stream(call(0, "a", "Paris"), closing="incomplete", **TOO_LONG),
    ),
    "extended: ping": sound_case(further("ping"), facts=EXTENDED),
    "extended: required_action": sound_case(further("response.required_action"), facts=EXTENDED),
    "extended: an event with its maker's name": sound_case(further("toolwire:required_action"), facts=EXTENDED),
    "extended: incomplete while calls wait": (stream(call(0, "a", "Paris"), status="incomplete"), EXTENDED),
}  # fmt: skip
