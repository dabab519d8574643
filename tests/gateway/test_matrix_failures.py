"""The matrix, where it goes wrong: every way a backend can fail, on every route, is the same failure in every dialect.

`make test` takes every pair of failure, dialect and kind, streamed and plain; `make soak` takes the rest of the product.
"""

import json
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import msgspec
import pytest

from tests.gateway.test_matrix import case_id
from tests.support.backend_writers import BROKEN, STREAMED, refusal, reply
from tests.support.client_readers import shape_faults
from tests.support.pairs import pairwise
from tests.support.routes import Routes, question
from tests.support.scripts import KINDS, NAMES, Calls, Name, Says, Script, Seen, truth
from tests.support.upstream import Reply

STREAM = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
KIND = pytest.mark.parametrize("kind", KINDS)
DIALECT = pytest.mark.parametrize("dialect", NAMES)


def routed(failures: Iterable[str]) -> pytest.MarkDecorator:
    """Each failure on the routes, streamed and plain; a pair of failure, dialect and kind is taken in either way."""
    ways = ([*product(failures, NAMES, KINDS, [stream])] for stream in (True, False))
    cases = [case for way in ways for case in pairwise(way, case_id)]
    return pytest.mark.parametrize(("failure", "dialect", "kind", "stream"), cases)


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


STATUSES = {str(status): status for status in (400, 401, 403, 404, 413, 429, 500, 503, 529)}
TOO_LONG = "prompt is too long: 208310 tokens > 200000 maximum"


@routed(STATUSES)
def test_a_refusal_keeps_its_status_and_its_words(
    routes: Routes, dialect: Name, kind: Name, stream: bool, failure: str
):
    status = STATUSES[failure]
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


EARLY: dict[str, Callable[[Name], Reply]] = {
    "too long": lambda kind: Reply([refusal(kind, 400, TOO_LONG)], 400, "application/json"),
    "a web page": lambda kind: Reply([b"<html>Sign in</html>"], content_type="text/html"),
    "an error at once": lambda kind: Reply([*STREAMED[kind](Script((), "error"))]),
}
"""What a backend answers in place of a turn."""


@routed(EARLY)
def test_an_answer_that_is_no_turn_is_an_error_with_a_status(
    routes: Routes, dialect: Name, kind: Name, stream: bool, failure: str
):
    model = f"{failure} {kind}"
    routes.upstream.replies[model] = EARLY[failure](kind)
    refused = routes.refused(dialect, question(dialect, f"{kind}/{model}", (), stream=stream))
    if failure == "a web page":
        assert refused.status == 502
    elif failure == "an error at once":
        assert refused.status in (500, 502)
        assert refused.message == BROKEN
    else:  # with the code that clients mend
        assert (refused.status, refused.message) == (400, TOO_LONG)
        if dialect == "messages":
            assert refused.body["error"]["type"] == "invalid_request_error"
        else:
            assert refused.code == "context_length_exceeded"


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


@routed(BREAKS)
def test_a_turn_that_breaks_shows_what_came_and_that_it_broke(
    routes: Routes, dialect: Name, kind: Name, stream: bool, failure: str
):
    script = BREAKS[failure]
    model = f"breaks {failure} {kind} {stream}"
    routes.upstream.replies[model] = reply(script, kind, stream=stream)
    asked = question(dialect, f"{kind}/{model}", script.tools, stream=stream)
    if not stream:  # where nothing was shown
        refused = routes.refused(dialect, asked)
        assert refused.status in (500, 502)
        assert script.end != "error" or refused.message == BROKEN
        return
    held = routes.ask(dialect, asked)
    expected = truth(script, dialect, kind, stream=True)
    if dialect == "gemini" and kind == "chat" and script.end == "cut":  # nothing says that the last call was whole
        expected = msgspec.structs.replace(expected, calls=())
    assert _without_doubt(held.seen) == _without_doubt(expected)
    assert shape_faults(held, dialect, stream=True) == []
    assert held.error is not None
    assert script.end != "error" or held.error["message"] == BROKEN
    if HALF in script.items and dialect != "gemini":  # which cannot be run, and is not shown to clients that would
        assert (held.seen.calls[-1].id, held.seen.calls[-1].whole) == (HALF.id, False)


def _without_doubt(seen: Seen) -> Any:
    """The turn so far. Whether its last call is whole cannot be known when the end is missing."""
    return seen.text, [(call.id, call.name, call.arguments) for call in seen.calls], seen.finish


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
@pytest.mark.parametrize("kind", ARGUMENTS)
@DIALECT
def test_a_call_with_a_hole_in_it_cannot_be_run(routes: Routes, dialect: Name, kind: Name, stream: bool):
    frames = [frame.replace(json.dumps(LONG.arguments).encode(), b'""') for frame in _holed(kind)]
    model = f"has a hole {kind}"
    routes.upstream.replies[model] = Reply(frames)
    held = routes.ask(dialect, question(dialect, f"{kind}/{model}", HOLED.tools, stream=stream))
    assert [(call.id, call.name, call.whole) for call in held.seen.calls] == (
        [("call_a", "look", False)] if dialect != "gemini" else []
    )
    assert all(LONG.arguments.startswith(call.arguments) for call in held.seen.calls)
    assert held.seen.finish == "length"
    assert shape_faults(held, dialect, stream=stream) == []


@STREAM
@DIALECT
def test_a_total_fills_the_hole_in_a_call(routes: Routes, dialect: Name, stream: bool):
    routes.upstream.replies["fills its hole"] = Reply(_holed("responses"))
    held = routes.ask(dialect, question(dialect, "responses/fills its hole", HOLED.tools, stream=stream))
    [call] = held.seen.calls
    assert (call.arguments, call.whole, held.seen.finish) == (LONG.arguments, True, "calls")
