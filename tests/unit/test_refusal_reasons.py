"""Why a turn was refused: the reason reaches clients of every dialect, whichever way a server states it."""

import json
from typing import Any

import pytest

from tests.museum.lines import SEED, cc
from tests.museum.routes import ASK, am, began, chunks, completion, hear, hear_plain, message, over, text_block
from tests.support.chunks import in_any_chunking
from tests.support.frames import sse, stream
from tests.unit.codex_lines import delta, ended, failing, talk
from toolwire.backends import chat, messages, responses
from toolwire.backends.failures import make_http_failure
from toolwire.core.collect import collect
from toolwire.core.events import FILTER_REASONS, Event, Reason, TurnEnded, TurnFailed
from toolwire.core.request import Request
from toolwire.core.sse import FrameReader

Json = dict[str, Any]
DIALECTS = ("chat", "responses", "messages")
REFUSED = {"chat": "content_filter", "responses": "content_filter", "messages": "content_filter"}


def streamed(kind: str, reason: str) -> bytes:
    if kind == "chat":
        return chunks(cc(role="assistant", content="No."), cc(finish=reason))
    if kind == "messages":
        return began() + text_block(0, "No.") + over(reason)
    return stream(
        sse({"type": "response.created", "response": {"id": "r"}}),
        sse({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "No."}),
        sse({"type": "response.incomplete", "response": incomplete(reason)}),
    )


def incomplete(reason: str) -> Json:
    said = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "No."}]}
    return {"id": "r", "status": "incomplete", "incomplete_details": {"reason": reason}, "output": [said]}


def plain(kind: str, reason: str) -> Json:
    if kind == "responses":
        return incomplete(reason)
    text = {"type": "text", "text": "No."}
    return completion({"content": "No."}, reason) if kind == "chat" else message(text, reason=reason)


@pytest.mark.parametrize("reason", [*sorted(FILTER_REASONS), "REFUSAL"])
@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_every_word_for_a_refusal_is_one_in_every_dialect(kind: str, reason: str):
    for dialect in DIALECTS:
        request = ASK[dialect]()
        for heard in (hear(kind, streamed(kind, reason), request), hear_plain(kind, plain(kind, reason), request)):
            assert (heard.said.text, heard.said.finish) == ("No.", REFUSED[dialect]), dialect
            assert "reason_unknown" not in heard.notes


@pytest.mark.parametrize("reason", sorted(FILTER_REASONS))
def test_a_response_that_is_incomplete_by_a_refusal_is_refused(reason: str):
    for dialect in DIALECTS:
        request = ASK[dialect]()
        for heard in (hear("responses", streamed("responses", reason), request), hear_plain("responses", plain("responses", reason), request)):  # fmt: skip
            assert (heard.said.text, heard.said.finish) == ("No.", REFUSED[dialect]), dialect


def test_the_explanation_of_a_refusal_is_its_text():
    details = {"type": "refusal", "category": "cyber", "explanation": "This could harm a machine."}
    end = am("message_delta", delta={"stop_reason": "refusal", "stop_details": details}) + am("message_stop")
    body = {**message(reason="refusal"), "stop_details": details}
    for dialect in ("chat", "responses"):
        request = ASK[dialect]()
        for turn in (turn_of("messages", began() + end, request), collect(conversation("messages", request).feed_plain(json.dumps(body).encode()))):  # fmt: skip
            assert (turn.refusal, turn.reason) == ("This could harm a machine.", "filter")
    assert turn_of("messages", began() + end, ASK["messages"]()).refusal == "", "the client reads the details itself"


# A refusal by status


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (completion({"content": None}, "content_filter"), "content_filter", "The backend ended the turn with the reason 'content_filter'."),
        (completion({"content": "", "refusal": "Not this."}, "content_filter"), "content_filter", "Not this."),
        (completion({"content": "I cannot."}, "Content_Filter"), "content_filter", "I cannot."),
        (message(reason="refusal"), "refusal", "The backend ended the turn with the reason 'refusal'."),
        (incomplete("content_filter"), "content_filter", "The backend ended the turn with the reason 'content_filter'."),
        ({**completion({}, "content_filter"), "error": {"message": "Blocked.", "code": "blocked"}}, "blocked", "Blocked."),
        ({**completion({}, "content_filter"), "error": None}, "content_filter", "The backend ended the turn with the reason 'content_filter'."),
        (completion({}, ""), "", "The backend answered with status 400."),
        ({"choices": 7}, "", "The backend answered with status 400."),
    ],
)  # fmt: skip
def test_a_turn_that_was_refused_by_status_keeps_its_reason(body: Json, code: str, text: str):
    failure = make_http_failure(400, {}, json.dumps(body).encode())
    assert (failure.status, failure.code, failure.message, failure.retryable) == (400, code, text, False)


def test_what_a_filter_refused_is_not_asked_again():
    assert not make_http_failure(502, {}, json.dumps(completion({}, "content_filter")).encode()).retryable
    assert make_http_failure(502, {}, json.dumps(completion({}, "")).encode()).retryable


# An error behind the event that a turn failed

SERVERS: dict[str, Any] = {"chat": chat, "messages": messages, "responses": responses}


def conversation(kind: str, request: Request) -> Any:
    made = SERVERS[kind].Conversation(request, SEED)
    made.start()
    return made


def events_of(kind: str, data: bytes, request: Request, *, end: bool = True) -> list[Event]:
    def read(pieces: list[bytes]) -> list[Event]:
        reader, made = FrameReader(), conversation(kind, request)
        events = [event for piece in pieces for frame in reader.feed(piece) for event in made.feed(frame)]
        return [*events, *(made.end() if end else ())]

    return in_any_chunking(data, read)


def turn_of(kind: str, data: bytes, request: Request) -> Any:
    return collect(events_of(kind, data, request))


def failure_of(kind: str, data: bytes, request: Request) -> tuple[str, str]:
    events = events_of(kind, data, request)
    assert not [event for event in events if isinstance(event, TurnEnded)]
    [failed] = [event for event in events if isinstance(event, TurnFailed)]
    return failed.failure.code, failed.failure.message


def failed(**error: Any) -> bytes:
    return sse({"type": "response.failed", "response": {"id": "r", "status": "failed", "error": error or None}})


def untyped(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def error(**fields: Any) -> bytes:
    return sse({"type": "error", **fields})


CREATED = sse({"type": "response.created", "response": {"id": "r"}})
LIMIT = {"code": "rate_limit_exceeded", "message": "Slow down."}
UNSAID = ("server_error", "The backend failed without saying why.")
LATE = sse({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "Late."})
DONE = b"data: [DONE]\n\n"

FAILURES: list[tuple[str, bytes, tuple[str, str]]] = [
    ("an error behind a failure without one", failed() + error(**LIMIT), ("rate_limit_exceeded", "Slow down.")),
    ("nested", failed() + error(error={"type": "tokens", **LIMIT}), ("rate_limit_exceeded", "Slow down.")),
    ("without a type", failed() + untyped(error=LIMIT), ("rate_limit_exceeded", "Slow down.")),
    ("a code behind a message", failed(message="Slow down.") + error(code="rate_limit_exceeded", message="?"), ("rate_limit_exceeded", "Slow down.")),
    ("a message behind a code", failed(code="rate_limit_exceeded") + error(message="Slow down."), ("rate_limit_exceeded", "Slow down.")),
    ("a failure behind an error that says nothing", error() + failed(**LIMIT), ("rate_limit_exceeded", "Slow down.")),
    ("something between them", failed() + LATE + error(**LIMIT), ("rate_limit_exceeded", "Slow down.")),
    ("nothing behind it", failed(), UNSAID),
    ("the end behind it", failed() + DONE, UNSAID),
    ("text behind it", failed() + LATE + DONE, UNSAID),
    ("twice nothing", failed() + error(), UNSAID),
    ("it is complete", failed(**LIMIT) + error(code="x", message="Y."), ("rate_limit_exceeded", "Slow down.")),
]  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("data", "expected"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_an_error_event_completes_the_reason_of_a_failed_response(data: bytes, expected: tuple[str, str], dialect: str):
    for before in (b"", CREATED):
        assert failure_of("responses", before + data, ASK[dialect]()) == expected


def test_the_end_of_the_stream_is_waited_for_as_after_a_finish_reason():
    made = conversation("responses", ASK["chat"]())
    [frame] = FrameReader().feed(failed())
    assert (made.feed(frame), made.decoder.ended, made.decoder.finishing) == ([], False, 1)
    [frame] = FrameReader().feed(failed(**LIMIT))
    assert made.feed(frame)
    assert made.decoder.ended


ENDED_BADLY = {
    "chat": chunks(cc(role="assistant", content="Hm"), cc(finish="error"), done=False),
    "messages": began() + am("message_delta", delta={"stop_reason": "error"}),
}
SAID_LATER = {
    "chat": untyped(error=LIMIT),
    "messages": am("error", error={"type": "rate_limit_error", "message": "Slow down."}),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_an_error_completes_a_finish_reason_that_means_failure(kind: str, dialect: str):
    request = ASK[dialect]()
    code, text = failure_of(kind, ENDED_BADLY[kind] + SAID_LATER[kind], request)
    assert (code, text) == ("rate_limit_exceeded" if kind == "chat" else "rate_limit_error", "Slow down.")
    ending = DONE if kind == "chat" else am("message_stop")
    for end in (b"", ending):
        assert failure_of(kind, ENDED_BADLY[kind] + end, request)[0] == "error"


def test_a_worker_that_gives_up_says_why_once():
    failure = talk(delta("Hm"), failing("It broke.", "serverOverloaded"), ended("failed")).turn.failure
    assert failure is not None
    assert (failure.code, failure.message) == ("server_is_overloaded", "It broke.")


@pytest.mark.parametrize(("reason", "expected"), [("refusal", "filter"), ("content_filter", "filter"), ("max_output_tokens", "length")])  # fmt: skip
def test_a_worker_tells_a_refusal_from_a_limit(reason: str, expected: Reason):
    error = {"message": f"Incomplete response returned, reason: {reason}", "codexErrorInfo": "other"}
    assert talk(delta("No."), ended("failed", error)).turn.reason == expected


def test_an_error_in_a_list_is_quoted_by_its_message():
    error = {"code": 400, "message": 'Unknown name "seed": Cannot find field.', "status": "INVALID_ARGUMENT"}
    failure = make_http_failure(400, {}, json.dumps([{"error": error}]).encode())
    assert (failure.status, failure.message) == (400, error["message"])
    assert make_http_failure(400, {}, b"[]").message == "The backend answered with status 400."
