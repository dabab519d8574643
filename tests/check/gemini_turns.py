"""Gemini: sound turns, streamed and plain, and everything that can be wrong with them."""

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
    remove,
    rename,
)
from toolwire.check.turns.rule import RequestFacts

ASKED = RequestFacts("gemini", ("look", "read"))
CALLING = {"functionCallingConfig": {"streamFunctionCallArguments": True}}
IN_PIECES = RequestFacts("gemini", ("look", "read"), fields={"toolConfig": CALLING})
"""A request that asks for streamed arguments."""

USAGE = {"promptTokenCount": 5, "candidatesTokenCount": 4, "thoughtsTokenCount": 2, "totalTokenCount": 11}
ABOUT = {"modelVersion": "m", "responseId": "r"}
FAILED = Frame(None, {"error": {"code": 503, "message": "No.", "status": "UNAVAILABLE"}})


def chunk(*parts: Json, finish: str | None = None, **fields: Any) -> Frame:
    reason = {} if finish is None else {"finishReason": finish}
    candidate = {"content": {"parts": [*parts], "role": "model"}, "index": 0, **reason}
    return Frame(None, {"candidates": [candidate], **ABOUT, **fields})


def call(name: str, id: str, **fields: Any) -> Json:
    return {"functionCall": {"name": name, "args": {"at": 1}, "id": id}, **fields}


THOUGHT, TEXT, CALL_A, CALL_B, END = range(5)
"""The frames of the sound stream."""


def sound() -> Frames:
    """A thought, text and two calls."""
    return [
        chunk({"text": "Hm.", "thought": True}),
        chunk({"text": "So.", "thoughtSignature": "c2ln"}),
        chunk(call("look", "a", thoughtSignature="_-8=")),
        chunk(call("read", "b")),
        chunk({"text": ""}, finish="STOP", usageMetadata={**USAGE}),
    ]


def failed() -> Frames:
    """It breaks down behind its text."""
    return [*sound()[:CALL_A], deepcopy(FAILED)]


def spoken() -> Frames:
    """Nothing but text."""
    return [chunk({"text": "So."}), chunk({"text": "!"}, finish="STOP", usageMetadata={**USAGE})]


def in_pieces() -> Frames:
    """A call whose arguments are streamed."""
    pieces: list[Json] = [
        {"name": "look", "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.at", "numberValue": 1}]},
    ]
    return [*(chunk({"functionCall": piece}) for piece in pieces), sound()[END]]


CANDIDATE = ("candidates", 0)
CONTENT = (*CANDIDATE, "content")
PART = (*CONTENT, "parts", 0)
CALL = (*PART, "functionCall")

STREAM_FAULTS = [
    *faults(
        sound,
        ASKED,
        {
            "an event has a name": ("sse.data-only", rename(TEXT, "message")),
            "the marker of another API comes last": ("done-marker", append(Frame(None, "[DONE]"))),
            "a chunk is empty": ("chunk fields", insert(Frame(None, {}), before=TEXT)),  # it has nothing at all
            "a chunk has no candidates": ("chunk", insert(Frame(None, {**ABOUT, "candidates": []}), before=TEXT)),
            "the content is text": ("chunk", change(TEXT, *CONTENT, to="So.")),
            "the content is the user's": ("chunk", change(TEXT, *CONTENT, "role", to="user")),
            "the parts are one part": ("chunk", change(TEXT, *CONTENT, "parts", to={"text": "So."})),
            "text is a number": ("chunk", change(TEXT, *PART, "text", to=1)),
            "a part is text and a call": ("chunk", change(CALL_A, *PART, "text", to="So.")),
            "a signature is no Base64": ("signature", change(CALL_A, *PART, "thoughtSignature", to="a.b")),
            "a signature has no possible length": ("signature", change(TEXT, *PART, "thoughtSignature", to="c2lnb")),
            "a signature is a number": ("signature", change(TEXT, *PART, "thoughtSignature", to=1)),
            "a call is a fragment": ("whole-call", change(CALL_A, *CALL, "willContinue", to=True)),
            "a call has the name of its tool in its id": ("call-id", change(CALL_A, *CALL, "id", to="look__1")),
            "two calls have one id": ("calls.id", change(CALL_B, *CALL, "id", to="a")),
            "a call is of a tool that was not declared": ("calls.name", change(CALL_B, *CALL, "name", to="fly")),
            "arguments are text": ("calls.json", change(CALL_B, *CALL, "args", to='{"at":1}')),
            "arguments are a list": ("calls.json", change(CALL_B, *CALL, "args", to=[])),
            "a chunk does not name its model": ("fields", remove(TEXT, "modelVersion")),
            "a chunk has no id": ("fields", remove(END, "responseId")),
            "the finish reason is missing": ("finish", remove(END, *CANDIDATE, "finishReason")),
            "the finish reason is none of the API's": ("finish", change(END, *CANDIDATE, "finishReason", to="tool_calls")),
            "the finish reason is a number": ("finish", change(END, *CANDIDATE, "finishReason", to=1)),
            "the finish reason is in snake case": (
                "camel-case finish",  # no client sees it
                all_of(change(END, *CANDIDATE, "finish_reason", to="STOP"), remove(END, *CANDIDATE, "finishReason")),
            ),
            "a signature is in snake case": ("camel-case", change(CALL_B, *PART, "thought_signature", to="c2ln")),
            "a count is in snake case": ("camel-case", change(END, "usageMetadata", "total_token_count", to=11)),
            "an error comes after the end": ("error-frame", insert(FAILED, before=END)),
            "tokens are not reported": ("usage.reported", remove(END, "usageMetadata")),
            "the total lacks the thoughts": ("usage.sum", change(END, "usageMetadata", "totalTokenCount", to=9)),
            "more tokens are cached than there are": (
                "usage.parts",
                change(END, "usageMetadata", "cachedContentTokenCount", to=6),
            ),
        },
    ),
    *faults(
        spoken,
        ASKED,
        {"a call is left in the text": ("calls.leak", change(0, *PART, "text", to="<tool_call>"))},
    ),
    *faults(
        failed,
        ASKED,
        {
            "an error is followed by text": ("error-frame", append(chunk({"text": "So."}))),
            "an error has no number": ("error-frame", change(-1, "error", "code", to="unavailable")),
            "an error is a success": ("error-frame", change(-1, "error", "code", to=200)),
            "an error has no status": ("error-frame", remove(-1, "error", "status")),
            "an error has no message": ("error-frame", change(-1, "error", to="No.")),
        },
    ),
]  # fmt: skip

# A plain answer


def plain() -> Json:
    parts = [part for frame in sound() for part in frame.data["candidates"][0]["content"]["parts"]]
    return chunk(*parts, finish="STOP", usageMetadata={**USAGE}).data


def at(*path: Any, to: Any) -> Change:
    return change(0, *path, to=to)


def lacks(*path: Any) -> Change:
    return remove(0, *path)


PLAIN_CALL = (*CONTENT, "parts", CALL_A)

PLAIN_FAULTS: dict[str, tuple[str, Change]] = {
    "there are no candidates": (
        "chunk finish",  # nor an end
        all_of(lacks("candidates"), lacks("usageMetadata"), at("promptFeedback", to={})),
    ),
    "the content is a list": ("chunk", at(*CONTENT, to=[])),
    "the finish reason is missing": ("finish", lacks(*CANDIDATE, "finishReason")),
    "the finish reason is none of the API's": ("finish", at(*CANDIDATE, "finishReason", to="stop")),
    "the model is missing": ("fields", lacks("modelVersion")),
    "a signature is no Base64": ("signature", at(*PLAIN_CALL, "thoughtSignature", to="toolwire.signature")),
    "a call is in snake case": ("camel-case", at(*PLAIN_CALL, to={"function_call": {"name": "look"}})),
    "arguments are text": ("calls.json", at(*PLAIN_CALL, "functionCall", "args", to='{"at":1}')),
    "two calls have one id": ("calls.id", at(*PLAIN_CALL, "functionCall", "id", to="b")),
    "there is no usage": ("usage.reported", lacks("usageMetadata")),
}
ALSO_SOUND_PLAIN: dict[str, Change] = {
    "a refused prompt": all_of(lacks("candidates"), at("promptFeedback", to={"blockReason": "SAFETY"})),
    "a filtered answer": at(*CANDIDATE, to={"finishReason": "SAFETY", "index": 0}),
    "an answer without parts": at(*CANDIDATE, to={"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}),
    "a call without arguments": lacks(*PLAIN_CALL, "functionCall", "args"),
    "a call with null arguments": at(*PLAIN_CALL, "functionCall", "args", to=None),
    "a search": at(*CANDIDATE, "groundingMetadata", to={"search_entry_point": 1}),
    "tokens of a hosted tool": all_of(
        at("usageMetadata", "toolUsePromptTokenCount", to=7), at("usageMetadata", "totalTokenCount", to=18)
    ),
}


def sound_case(*changes: Change) -> tuple[Frames, RequestFacts]:
    frames = sound()
    for each in changes:
        each(frames)
    return frames, ASKED


ALSO_SOUND: dict[str, tuple[Frames, RequestFacts]] = {
    "text": (spoken(), ASKED),
    "failed": (failed(), ASKED),
    "failed at once": ([FAILED], ASKED),
    "a call in pieces that were asked for": (in_pieces(), IN_PIECES),
    "calls without ids": sound_case(remove(CALL_A, *CALL, "id"), remove(CALL_B, *CALL, "id")),
    "the reason with the last call": sound_case(
        drop(END),
        change(CALL_B, *CANDIDATE, "finishReason", to="STOP"),
        change(CALL_B, "usageMetadata", to=USAGE),
    ),
    "tokens in every chunk": sound_case(*(change(index, "usageMetadata", to=USAGE) for index in range(END))),
    "tokens alone": sound_case(append(Frame(None, {**ABOUT, "usageMetadata": USAGE}))),
    "tokens without numbers": sound_case(change(TEXT, "usageMetadata", to={"trafficType": "ON_DEMAND"})),
    "a malformed call": sound_case(
        drop(CALL_A, CALL_B), change(-1, *CANDIDATE, "finishReason", to="MALFORMED_FUNCTION_CALL")
    ),
    "a part with a signature alone": sound_case(change(END, *PART, to={"thoughtSignature": "c2ln"})),
}
