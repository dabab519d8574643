"""The matrix, where it goes wrong: every way a backend can fail, on every route, is the same failure in every dialect."""

import json
from typing import Any

import pytest

from tests.support.backend_writers import BROKEN, STREAMED, refusal, reply
from tests.support.client_readers import Held, shape_faults
from tests.support.routes import Routes, question
from tests.support.scripts import NAMES, Calls, Name, Says, Script, truth
from tests.support.upstream import Reply

STREAM = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
KIND = pytest.mark.parametrize("kind", NAMES)
DIALECT = pytest.mark.parametrize("dialect", NAMES)

A = Calls("call_a", "look", '{"path":"a"}')
HALF = Calls("call_b", "find", '{"q":"ha', whole=False)

# Refused with a status

OPENAI = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "server_error"}
ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


@STREAM
@KIND
@DIALECT
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
def test_a_refusal_keeps_its_status_and_its_words(routes: Routes, dialect: Name, kind: Name, stream: bool, status: int):
    model = f"refuses {kind} {status}"
    headers = {"retry-after": "7"} if status in (429, 503, 529) else {}
    body = refusal(kind, status, f"No, says {kind}.")
    routes.upstream.replies[model] = Reply([body], status, "application/json", headers)
    refused = routes.refused(dialect, question(dialect, f"{kind}/{model}", (), stream=stream))
    # Nobody but Anthropic knows 529, which says what 503 says.
    assert refused.status == status or (status, refused.status) == (529, 503)
    if status == 401:  # a refused key is explained, too: whose it was, and what to do
        assert refused.message.startswith(f"Backend `{kind}` (")
        assert f"refused a request without a key: No, says {kind}. Set api_key_env" in refused.message
    else:
        assert refused.message == f"No, says {kind}."
    assert refused.headers.get("retry-after") == headers.get("retry-after")
    if dialect == "messages":
        assert refused.body["error"]["type"] == ANTHROPIC[503 if status == 529 else status]


@STREAM
@KIND
@DIALECT
def test_a_context_that_is_too_long_has_the_code_that_clients_mend(
    routes: Routes, dialect: Name, kind: Name, stream: bool
):
    model = f"too long {kind}"
    body = refusal(kind, 400, "prompt is too long: 208310 tokens > 200000 maximum")
    routes.upstream.replies[model] = Reply([body], 400, "application/json")
    refused = routes.refused(dialect, question(dialect, f"{kind}/{model}", (), stream=stream))
    assert (refused.status, refused.message) == (400, "prompt is too long: 208310 tokens > 200000 maximum")
    if dialect == "messages":
        assert refused.body["error"]["type"] == "invalid_request_error"
    else:
        assert refused.body["error"]["code"] == "context_length_exceeded"


@STREAM
@KIND
@DIALECT
def test_a_web_page_is_a_bad_gateway(routes: Routes, dialect: Name, kind: Name, stream: bool):
    routes.upstream.replies["page"] = Reply([b"<html>Sign in</html>"], content_type="text/html")
    assert routes.refused(dialect, question(dialect, f"{kind}/page", (), stream=stream)).status == 502


@KIND
@DIALECT
def test_an_empty_stream_is_a_bad_gateway(routes: Routes, dialect: Name, kind: Name):
    routes.upstream.replies["silence"] = Reply([])
    assert routes.refused(dialect, question(dialect, f"{kind}/silence", (), stream=True)).status == 502


# Broken in the middle

BREAKS: dict[str, Script] = {
    "an error after text": Script((Says("So far so"),), "error"),
    "an error after a call": Script((Says("So."), A), "error"),
    "an error in a call": Script((Says("So."), A, HALF), "error"),
    "cut after text": Script((Says("So far so"),), "cut"),
    "cut after a call": Script((A,), "cut"),
    "cut in a call": Script((A, HALF), "cut"),
}


def _model(routes: Routes, name: str, kind: Name, *, stream: bool) -> str:
    model = f"breaks {name} {kind} {stream}"
    routes.upstream.replies[model] = reply(BREAKS[name], kind, stream=stream)
    return model


def _asked(routes: Routes, name: str, dialect: Name, kind: Name) -> Held:
    model = _model(routes, name, kind, stream=True)
    return routes.ask(dialect, question(dialect, f"{kind}/{model}", BREAKS[name].tools, stream=True))


@KIND
@DIALECT
@pytest.mark.parametrize("name", BREAKS)
def test_a_stream_that_breaks_shows_what_came_and_that_it_broke(routes: Routes, dialect: Name, kind: Name, name: str):
    held = _asked(routes, name, dialect, kind)
    assert _without_doubt(held) == _without_doubt_in(name, dialect, kind)
    assert shape_faults(held, dialect, stream=True) == []
    assert held.error is not None
    if BREAKS[name].end == "error":
        assert held.error["message"] == BROKEN


def _without_doubt(held: Held) -> Any:
    """The turn so far. Whether its last call is whole cannot be known when the end is missing."""
    seen = held.seen
    return seen.text, [(call.id, call.name, call.arguments) for call in seen.calls], seen.finish


def _without_doubt_in(name: str, dialect: Name, kind: Name) -> Any:
    seen = truth(BREAKS[name], dialect, kind, stream=True)
    return seen.text, [(call.id, call.name, call.arguments) for call in seen.calls], seen.finish


@KIND
@DIALECT
@pytest.mark.parametrize("name", ["an error in a call", "cut in a call"])
def test_half_a_call_of_a_broken_stream_cannot_be_run(routes: Routes, dialect: Name, kind: Name, name: str):
    *_, half = _asked(routes, name, dialect, kind).seen.calls
    assert (half.id, half.whole) == ("call_b", False)


@KIND
@DIALECT
@pytest.mark.parametrize("name", BREAKS)
def test_a_plain_answer_that_breaks_is_an_error_with_a_status(routes: Routes, dialect: Name, kind: Name, name: str):
    model = _model(routes, name, kind, stream=False)
    refused = routes.refused(dialect, question(dialect, f"{kind}/{model}", BREAKS[name].tools, stream=False))
    assert refused.status in (500, 502)
    if BREAKS[name].end == "error":
        assert refused.message == BROKEN


@STREAM
@KIND
@DIALECT
def test_an_error_before_anything_was_said_has_a_status(routes: Routes, dialect: Name, kind: Name, stream: bool):
    script = Script((), "error")
    routes.upstream.replies[f"fails at once {kind}"] = Reply([*STREAMED[kind](script)])
    refused = routes.refused(dialect, question(dialect, f"{kind}/fails at once {kind}", (), stream=stream))
    assert refused.status in (500, 502)
    assert refused.message == BROKEN


# A frame lost inside a call

LONG = Calls("call_a", "look", '{"path":"/one/two/three/four/five/six/seven"}')
HOLED = Script((Says("So."), LONG), chars=3)
ARGUMENTS = {"chat": b'"arguments"', "responses": b"function_call_arguments.delta", "messages": b'"partial_json"'}


def _holed(kind: Name) -> list[bytes]:
    """The stream with one frame in the middle of the arguments damaged."""
    frames = [*STREAMED[kind](HOLED)]
    places = [place for place, frame in enumerate(frames) if ARGUMENTS[kind] in frame]
    middle = places[len(places) // 2]
    frames[middle] = frames[middle][: len(frames[middle]) // 2] + b"\n\n"
    return frames


@STREAM
@KIND
@DIALECT
def test_a_call_with_a_hole_in_it_cannot_be_run(routes: Routes, dialect: Name, kind: Name, stream: bool):
    frames = [frame.replace(json.dumps(LONG.arguments).encode(), b'""') for frame in _holed(kind)]
    model = f"has a hole {kind}"
    routes.upstream.replies[model] = Reply(frames)
    held = routes.ask(dialect, question(dialect, f"{kind}/{model}", HOLED.tools, stream=stream))
    [call] = held.seen.calls
    assert (call.id, call.name, call.whole) == ("call_a", "look", False)
    assert LONG.arguments.startswith(call.arguments)
    assert held.seen.finish == "length"
    assert shape_faults(held, dialect, stream=stream) == []


@STREAM
@DIALECT
def test_a_total_fills_the_hole_in_a_call(routes: Routes, dialect: Name, stream: bool):
    routes.upstream.replies["fills its hole"] = Reply(_holed("responses"))
    held = routes.ask(dialect, question(dialect, "responses/fills its hole", HOLED.tools, stream=stream))
    [call] = held.seen.calls
    assert (call.arguments, call.whole, held.seen.finish) == (LONG.arguments, True, "calls")
