"""Arguments against the declared schemas, on every route: the same calls and the same notes, streamed and plain."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.backend_writers import reply
from tests.support.client_readers import PATHS, hold
from tests.support.gateway import Gateway
from tests.support.routes import Routes, backends, question
from tests.support.scripts import NAMES, Calls, Name, Says, Script
from tests.support.upstream import Upstream

Json = dict[str, Any]
SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: dict[Name, Json] = {
    "chat": {"type": "function", "function": {"name": "book", "parameters": SCHEMA}},
    "responses": {"type": "function", "name": "book", "parameters": SCHEMA, "strict": False},
    "messages": {"name": "book", "input_schema": SCHEMA},
    "gemini": {"functionDeclarations": [{"name": "book", "parametersJsonSchema": SCHEMA}]},
}
ROUTES = [
    (dialect, kind, stream)
    for dialect in NAMES
    for kind in NAMES
    for stream in (True, False)
    if (dialect, stream) != ("gemini", True)  # a stream that has no place for notes
]


@pytest.fixture(scope="module")
def repairing(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path_factory.mktemp("arguments"), backends(upstream.url), PROXY_TOOL_ARGUMENTS="repair")
    yield gateway
    gateway.stop()


class Turn:
    """A model's call of `book`, as a client of one route gets it."""

    def __init__(
        self, gateway: Gateway, upstream: Upstream, http: httpx.Client, route: tuple[Name, Name, bool]
    ) -> None:
        self._gateway, self._upstream, self._http = gateway, upstream, http
        self._dialect: Name = route[0]
        self._kind: Name = route[1]
        self._stream = route[2]
        self.hides_halves = self._dialect == "gemini"

    def __call__(self, *calls: Calls, end: Any = "stop", rule: str = "") -> tuple[list[tuple[str, bool]], list[Json]]:
        """The calls, each with whether it may be run, and the notes."""
        script = Script((Says("So."), *calls), end)
        model = f"arguments-{self._dialect}-{self._kind}"
        self._upstream.replies[model] = reply(script, self._kind, stream=self._stream)
        body = question(self._dialect, f"{self._kind}/{model}", (), stream=self._stream)
        body["tools"] = [TOOLS[self._dialect]]
        headers = {"x-proxy-tool-arguments": rule} if rule else {}
        response = self._http.post(self._gateway.url + PATHS[self._dialect], json=body, headers=headers)
        held = hold(response, self._dialect, stream=self._stream)
        return [(call.arguments, call.whole) for call in held.seen.calls], _notes(response, stream=self._stream)


def _notes(response: httpx.Response, *, stream: bool) -> list[Json]:
    if not stream:
        return json.loads(response.headers.get("x-toolwire-notes", "[]"))
    [comment] = [line for line in response.text.splitlines() if line.startswith(": {")]
    return json.loads(comment[2:])["notes"]


def route_id(route: tuple[Name, Name, bool]) -> str:
    return f"{route[0]}-{route[1]}-{'stream' if route[2] else 'plain'}"


@pytest.fixture(params=ROUTES, ids=route_id)
def turn(request: pytest.FixtureRequest, repairing: Gateway, upstream: Upstream, http: httpx.Client) -> Turn:
    return Turn(repairing, upstream, http, request.param)


def book(arguments: str, id: str = "call_a", **fields: Any) -> Calls:
    return Calls(id, "book", arguments, **fields)


def repaired(*fixes: str, id: str = "call_a") -> Json:
    return {"code": "arguments_repaired", "subject": f"{id} {', '.join(fixes)}"}


def test_arguments_that_fit_pass_as_they_came(turn: Turn):
    calls, notes = turn(book('{"city":"Oslo","days":3}'))
    assert [json.loads(text) for text, _ in calls] == [{"city": "Oslo", "days": 3}]
    assert notes == []


def test_a_number_in_quotes_becomes_a_number(turn: Turn):
    calls, notes = turn(book('{"city":"Oslo","days":"3"}'))
    assert [(json.loads(text), whole) for text, whole in calls] == [({"city": "Oslo", "days": 3}, True)]
    assert notes == [repaired("types")]


def test_what_cannot_be_put_right_is_passed_on_and_noted(turn: Turn):
    calls, notes = turn(book('{"days":3}'), rule="repair")
    assert [json.loads(text) for text, _ in calls] == [{"days": 3}]
    assert notes == [{"code": "arguments_invalid", "subject": "call_a $ required"}]


@pytest.mark.parametrize("dialect", NAMES)
def test_a_wrong_call_is_noted_without_any_setting(routes: Routes, dialect: Name):
    turn = Turn(routes.gateway, routes.upstream, routes.http, (dialect, "chat", dialect != "gemini"))
    calls, notes = turn(book('{"city":"Oslo","days":"3"}'))
    assert [json.loads(text) for text, _ in calls] == [{"city": "Oslo", "days": "3"}]
    assert notes == [{"code": "arguments_invalid", "subject": "call_a $.days type"}]


def test_check_notes_and_pass_does_not_look(turn: Turn):
    call = book('{"city":"Oslo","days":"3"}')
    calls, notes = turn(call, rule="check")
    assert [json.loads(text) for text, _ in calls] == [{"city": "Oslo", "days": "3"}]
    assert notes == [{"code": "arguments_invalid", "subject": "call_a $.days type"}]
    assert turn(call, rule="pass") == (calls, [])


TEXTUAL = [route for route in ROUTES if route[1:] != ("messages", False) and route[1] != "gemini"]
"""Routes on which arguments that are no object can be told at all; a plain message holds objects, and so does Gemini."""
textual = pytest.mark.parametrize("turn", TEXTUAL, indirect=True, ids=route_id)


@textual
@pytest.mark.parametrize(
    ("text", "expected", "fix"),
    [("{'city': 'Oslo'}", {"city": "Oslo"}, "quotes"), ('{"city":"Oslo"', {"city": "Oslo"}, "brackets")],
)
def test_text_that_is_nearly_json_is_mended(turn: Turn, text: str, expected: Json, fix: str):
    calls, notes = turn(book(text), book('{"city":"Bonn"}', "call_b"))
    assert [(json.loads(arguments), whole) for arguments, whole in calls] == [
        (expected, True),
        ({"city": "Bonn"}, True),
    ]
    assert notes == [repaired(fix)]


@textual
def test_a_call_that_was_cut_is_never_made_whole(turn: Turn):
    calls, notes = turn(book('{"city":"Oslo"', whole=False), end="length")
    assert [whole for _, whole in calls] == ([] if turn.hides_halves else [False])
    assert [note["code"] for note in notes] == ["call_incomplete"]


def test_a_rule_that_is_none_is_refused(repairing: Gateway, http: httpx.Client):
    body = question("chat", "demo", (), stream=False)
    response = http.post(repairing.url + PATHS["chat"], json=body, headers={"x-proxy-tool-arguments": "mend"})
    assert response.status_code == 400
    assert "x-proxy-tool-arguments" in response.text
