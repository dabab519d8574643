"""Recorded turns as test cases: saved in the console, and run by `toolwire replay --assert`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import httpx
import pytest
from click.testing import CliRunner

from tests.gateway.test_matrix import CASES, TURNS
from tests.support.backend_writers import reply
from tests.support.console import ConsoleClient
from tests.support.fleet import until
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, response_body, tool
from tests.support.pairs import cover
from tests.support.routes import Routes, question
from tests.support.scripts import Name
from tests.support.upstream import Hold, Reply, Upstream
from toolwire.cli.replay import replay

FIND = [tool("find", path={"type": "string"}, line={"type": "integer"})]
SECRET = "sk-proj-abcdefghijklmnop1234"


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    prompted = backend(upstream.url, "prompted", profile='{ tools = "prompt" }').replace('"responses"', '"chat"')
    config = f"{backend(upstream.url)}\n{prompted}"
    server = Gateway(tmp_path_factory.mktemp("cases"), config, PROXY_TOOL_ARGUMENTS="repair")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def console(gateway: Gateway) -> Iterator[ConsoleClient]:
    with ConsoleClient(gateway) as client:
        yield client


def ask(gateway: Gateway, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> None:
    httpx.post(gateway.url + path, json=body, headers=headers, timeout=90, trust_env=False)


def run(*options: Any) -> tuple[int, str]:
    done = CliRunner().invoke(replay, ["--assert", *map(str, options)])
    return done.exit_code, done.output


def case_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text().splitlines()[-1])["case"]


Save = Callable[..., Path]


@pytest.fixture
def save(console: ConsoleClient, tmp_path: Path) -> Save:
    """Saves the last turn of a model, with what is changed in the expectation."""

    def do(model: str, **changed: Any) -> Path:
        id = console.wait_for(model=model)["id"]
        expected = {**console.get(f"turns/{id}/case")["expected"], **changed}
        answer = console.http.post(f"/console/api/turns/{id}/case", json={"expected": expected})
        assert answer.status_code == 200, answer.text
        path = tmp_path / f"{model.replace('/', '-')}.jsonl"
        path.write_bytes(answer.content)
        return path

    return do


def repaired(gateway: Gateway, upstream: Upstream) -> None:
    said = call("c1", "find", '{"path":"a","line":1}'), call("c2", "find", "{'path': 'b', 'line': 2,}", index=1)
    upstream.replies["repaired"] = Reply([stream(created(), text("So."), *said, completed())])
    ask(gateway, chat_body("up/repaired", tools=FIND, stream=True))


def test_a_case_expects_what_the_client_got(gateway: Gateway, upstream: Upstream, console: ConsoleClient):
    repaired(gateway, upstream)
    shown = console.get(f"turns/{console.wait_for(model='up/repaired')['id']}/case")
    assert shown == {
        "expected": {
            "calls": [
                {"name": "find", "arguments": {"path": "a", "line": 1}, "id": "c1"},
                {"name": "find", "arguments": {"path": "b", "line": 2}, "id": "c2"},
            ],
            "text": "So.",
            "finish": "tool_calls",
            "notes": ["arguments_repaired"],
        },
        "differences": [],
    }


def test_a_saved_case_holds_and_what_differs_is_said_in_words(gateway: Gateway, upstream: Upstream, save: Save):
    repaired(gateway, upstream)
    path = save("up/repaired")
    assert run(path) == (0, f"ok       {path}\n1 case: 1 ok\n")
    first = {"name": "find", "arguments": {"path": "a", "line": 1.0}}
    second = {"name": "look", "arguments": {"path": "B", "more": [1]}, "id": "c3"}
    save("up/repaired", calls=[first, second, first], text="No.", finish="stop", notes=["call_cut"])
    assert run(path) == (
        1,
        f"""differs  {path}
         call 1: arguments differ at key `line`: expected 1.0, got 1
         call 2: name differs: expected "look", got "find"
         call 2: id differs: expected "c3", got "c2"
         call 2: arguments differ at key `path`: expected "B", got "b"
         call 2: arguments differ at key `more[0]`: expected 1, got nothing
         call 3: name differs: expected "find", got nothing
         call 3: complete differs: expected true, got nothing
         call 3: arguments differ at key `path`: expected "a", got nothing
         call 3: arguments differ at key `line`: expected 1.0, got nothing
         text differs: expected "No.", got "So."
         finish differs: expected "stop", got "tool_calls"
         notes differ: expected ["call_cut"], got ["arguments_repaired"]
         call 2: arguments differ at key `line`: expected nothing, got 2
1 case: 1 differs
""",
    )


def test_a_field_that_is_left_out_is_not_compared(gateway: Gateway, upstream: Upstream, save: Save):
    repaired(gateway, upstream)
    calls = [{"name": "find", "arguments": {"path": "a", "line": 1}}] * 2
    path = save("up/repaired", text=None, finish=None, notes=None, calls=None)
    assert run(path)[0] == 0
    save("up/repaired", text=None, finish=None, notes=None, calls=calls)
    assert run(path)[1].count("\n         ") == 2


def test_a_long_text_is_shown_from_where_it_differs(gateway: Gateway, upstream: Upstream, save: Save):
    upstream.replies["long"] = Reply([stream(created(), text("x" * 5000 + "\x1b[31mred"), completed())])
    ask(gateway, chat_body("up/long"))
    code, said = run(save("up/long", text="x" * 4000 + "y" * 3000))
    assert code == 1
    assert 'text differs from character 4001 on: expected "yyy' in said
    assert len(said) < 1000
    assert "\x1b" not in said


def test_a_case_of_any_turn_of_the_matrix_holds(routes: Routes):
    asked: dict[str, str] = {}
    for index in sorted(cover(CASES)):
        turn, dialect, kind, streamed = cast("tuple[str, Name, Name, bool]", CASES[index])
        model = f"case {index}"
        routes.upstream.replies[model] = reply(TURNS[turn], kind, stream=streamed)
        body = question(dialect, f"{kind}/{model}", TURNS[turn].tools, stream=streamed)
        asked[routes.post(dialect, body).headers["x-request-id"]] = f"{turn}, {dialect} on {kind}, streamed: {streamed}"
    with ConsoleClient(routes.gateway) as console:
        until(lambda: asked.keys() <= {row["request_id"] for row in console.rows()})
        rows = [row for row in console.rows() if row["request_id"] in asked]
        found = {asked[row["request_id"]]: console.get(f"turns/{row['id']}/case") for row in rows}
    assert {name: case for name, case in found.items() if case["differences"]} == {}
    assert len(found) == len(asked) > 80


@pytest.mark.parametrize(
    ("model", "sent", "headers", "rules"),
    [
        (
            "xml",
            "<use_tool><name>find</name><path>a</path></use_tool>",
            {"x-proxy-output-mode": "obsidian-xml"},
            {"arguments": "repair", "output_mode": "obsidian-xml"},
        ),
        ("unchecked", "", {"x-proxy-tool-arguments": "pass"}, {"arguments": "pass"}),
    ],
)
def test_a_case_holds_under_the_rules_of_its_request(
    gateway: Gateway,
    upstream: Upstream,
    save: Save,
    model: str,
    sent: str,
    headers: dict[str, str],
    rules: dict[str, str],
):
    said = call("c1", "find", '{"path":"a"}'), call("c2", "find", "{'path':'b'}", index=1), text("Tail.", "m2", 2)
    upstream.replies[model] = Reply([stream(created(), text(sent), *said, completed())])
    ask(gateway, chat_body(f"up/{model}", tools=FIND, stream=True), **headers)
    path = save(f"up/{model}")
    assert run(path) == (0, f"ok       {path}\n1 case: 1 ok\n")
    assert case_of(path).get("rules", {}) == rules


@pytest.mark.parametrize("mode", ["first", "burst"])
def test_a_case_of_a_turn_that_the_gateway_ended_after_calls_holds(upstream: Upstream, tmp_path: Path, mode: str):
    said = call("c1", "find", '{"path":"a"}'), call("c2", "find", '{"path":"b"}', index=1)
    upstream.replies[f"ended-{mode}"] = Reply([stream(created(), *said), Hold()])
    server = Gateway(tmp_path, backend(upstream.url), PROXY_STOP_AFTER_TOOLS="true", PROXY_STOP_AFTER_TOOLS_MODE=mode)
    try:
        ask(server, chat_body(f"up/ended-{mode}", tools=FIND, stream=True))
        with ConsoleClient(server) as console:
            shown = console.get(f"turns/{console.wait_for(model=f'up/ended-{mode}')['id']}/case")
    finally:
        server.stop()
    assert shown["differences"] == []
    assert len(shown["expected"]["calls"]) == (1 if mode == "first" else 2)


def test_a_case_holds_under_the_profile_of_its_backend(gateway: Gateway, upstream: Upstream, save: Save):
    said = {"choices": [{"delta": {"content": '<tool_call>{"name":"find","arguments":{"path":"a"}}</tool_call>'}}]}
    end: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    upstream.replies["written"] = Reply([b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in (said, end))])
    ask(gateway, chat_body("prompted/written", tools=FIND))
    path = save("prompted/written")
    case = case_of(path)
    assert [made["arguments"] for made in case["expected"]["calls"]] == [{"path": "a"}]
    assert case["profile"] == {"tools": "prompt"}
    assert run(path)[0] == 0


@pytest.mark.parametrize(
    ("model", "given", "finish"),
    [
        ("no", Reply([b'{"error":{"message":"No.","code":"nope"}}'], 400, "application/json"), "failed: nope"),
        ("broken", Reply([created(), text("So.")]), "failed: stream_cut"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_failed_turn_is_a_case_too(
    gateway: Gateway,
    upstream: Upstream,
    console: ConsoleClient,
    save: Save,
    model: str,
    given: Reply,
    finish: str,
    path: str,
):
    model = f"{model}{len(path)}"
    upstream.replies[model] = given
    make = chat_body if "chat" in path else response_body
    ask(gateway, make(f"up/{model}", stream=True), path)
    assert run(save(f"up/{model}"))[0] == 0
    shown = console.get(f"turns/{console.wait_for(model=f'up/{model}')['id']}/case")["expected"]["finish"]
    assert shown == finish


def test_a_case_has_no_secrets_also_where_the_viewer_writes_one(gateway: Gateway, upstream: Upstream, save: Save):
    upstream.replies["secret"] = Reply([stream(created(), text(f"It is {SECRET}, well."), completed())])
    ask(gateway, chat_body("up/secret", stream=True))
    path = save("up/secret")
    assert SECRET not in path.read_text()
    assert run(path)[0] == 0
    assert SECRET not in save("up/secret", text=f"It is {SECRET}.").read_text()


def test_a_turn_that_continues_a_stored_response_is_a_case(gateway: Gateway, upstream: Upstream, save: Save):
    upstream.replies["again"] = Reply([stream(created(), call("c1", "find", '{"path":"a"}'), completed())])
    body = response_body("up/again", tools=FIND)
    made = httpx.post(f"{gateway.url}/v1/responses", json=body, timeout=90, trust_env=False).json()
    output = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    ask(gateway, {**body, "previous_response_id": made["id"], "input": [output]}, "/v1/responses")
    assert run(save("up/again"))[0] == 0


def test_a_turn_that_cannot_be_repeated_says_why(gateway: Gateway, console: ConsoleClient):
    ask(gateway, chat_body("no-such-model"))
    id = console.wait_for(model="no-such-model")["id"]
    answer = console.http.post(f"/console/api/turns/{id}/case")
    message = "This turn cannot be a test case: no backend answered."
    assert (answer.status_code, answer.json()["error"]) == (400, {"code": "no_case", "message": message})
    wrong = console.http.post(f"/console/api/turns/{id}/case", json={"expected": {"text": 1}})
    assert "expected.text" in wrong.json()["error"]["message"]


def test_cases_are_run_together_and_reported_as_junit(gateway: Gateway, upstream: Upstream, save: Save, tmp_path: Path):
    repaired(gateway, upstream)
    good = save("up/repaired")
    good.rename(tmp_path / "good.jsonl")
    save("up/repaired", text="\x1b<&").rename(tmp_path / "bad.jsonl")
    (tmp_path / "broken.jsonl").write_text("{}")
    recording = (tmp_path / "good.jsonl").read_text().splitlines()
    (tmp_path / "no-case.jsonl").write_text("\n".join(recording[:-1]))
    code, said = run(tmp_path, "--junit", tmp_path / "junit.xml")
    assert code == 1
    assert said.endswith("3 cases: 1 ok, 1 differs, 1 error\n")
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert {name: root.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    results = {each.get("name"): [(found.tag, found.text) for found in each] for each in root.iter("testcase")}
    assert results["good"] == []
    assert results["bad"] == [("failure", 'text differs: expected "\\u001b<&", got "So."')]
    assert results["broken"][0][0] == "error"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--assert", "--full"], "--assert goes with --request, --dialect and --junit only"),
        (["--junit", "x.xml"], "--junit is for --assert only"),
        (["--assert"], "there is no test case; the console saves turns as test cases"),
    ],
)
def test_what_means_nothing_is_said_in_one_line(tmp_path: Path, options: list[str], said: str):
    done = CliRunner().invoke(replay, [str(tmp_path), *options])
    assert (done.exit_code, said in done.output, done.output.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("way", ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"])
def test_a_turn_whose_model_is_in_the_path_is_a_case_too(gateway: Gateway, upstream: Upstream, save: Save, way: str):
    model = f"in-path-{way.partition('?')[0]}-{'sse' in way}"
    upstream.replies[model] = Reply([stream(created(), call("c.1", "find", '{"path":"a"}'), completed())])
    tools = [{"functionDeclarations": [{"name": "find"}]}]
    body = {"contents": [{"parts": [{"text": "Go."}]}], "tools": tools}
    ask(gateway, body, f"/v1beta/models/up/{model}:{way}")
    path = save(f"up/{model}")
    assert [(each["name"], each["arguments"]) for each in case_of(path)["expected"]["calls"]] == [
        ("find", {"path": "a"})
    ]
    assert run(path)[0] == 0, run(path)[1]
