"""One turn over /v1/responses: what comes back when it goes well, when it fails, and when somebody leaves."""

import json
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.support.checked import responses_faults
from tests.support.frames import call, call_item, completed, created, rs, sse, stream, text
from tests.support.gateway import (
    Events,
    Gate,
    Gateway,
    Responses,
    backend,
    calls_of,
    error_of,
    good,
    iter_events,
    leave_when,
    post_through,
    read_events,
    response_body,
    text_of,
    tool,
)
from tests.support.pace import at_any_pace
from tests.support.schemas import event_errors, response_errors
from tests.support.upstream import Cut, Hold, Reply, Upstream
from toolwire.core.events import TextDelta, TurnStarted
from toolwire.core.notes import TurnStats
from toolwire.dialects import responses as dialect

FIND = [tool("find", q={"type": "string"})]
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
INCOMPLETE = rs(
    "incomplete", response={"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
)


@pytest.fixture
def api(http: httpx.Client, gateway: Gateway) -> Responses:
    return Responses(http, gateway)


@pytest.fixture(scope="module")
def impatient(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that speaks up soon."""
    pace = "[server]\ncommit_after = 0.2\nkeepalive = 0.15\n"
    server = Gateway(tmp_path_factory.mktemp("impatient"), pace + backend(upstream.url))
    yield server
    server.stop()


def is_sound(events: Events, **options: Any) -> None:
    """The stream breaks no rule, and all in it fits every published description."""
    assert responses_faults(events.frames, done=events.done, **options) == []
    described = [data for _, data in events.frames if data["type"] not in ("ping", "response.required_action")]
    if not options.get("extended"):
        assert [fault for data in described for fault in event_errors(data)] == []


def same(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two runs of it."""
    text = json.dumps({**response, "created_at": 0, "completed_at": 0})
    return json.loads(text.replace(response["id"].partition("_")[2], "SEED"))


# Turns that go well

TURNS = {
    "demo": "The weather in Paris and Rome?",
    "demo-parallel": "Go.",
    "demo-refusal": "Go.",
    "demo-use-tool": "The weather in Paris?",
    "demo-length": "Go.",
    "demo-huge": "Go.",
}


@pytest.mark.parametrize("tools", [None, FIND], ids=["no tools", "tools"])
@pytest.mark.parametrize("model", TURNS)
def test_a_turn_is_sound_and_the_same_streamed_and_plain(api, model, tools):
    plain = api.create(model, TURNS[model], tools=tools)
    events = api.stream(model, TURNS[model], tools=tools)
    is_sound(events)
    assert response_errors(plain) == []
    assert same(events.response) == same(plain)


@STREAMED
def test_a_response_tells_what_was_asked_and_who_answered(api, streamed):
    asked = {"temperature": 0.5, "metadata": {"a": "b"}, "instructions": "Be brief.", "tools": FIND}
    response = api.ask("demo", "Hello.", stream=streamed, parallel_tool_calls=False, **asked)
    assert response["id"].startswith("resp_")
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "demo")
    assert (response["temperature"], response["metadata"], response["instructions"]) == (0.5, {"a": "b"}, "Be brief.")
    assert (response["parallel_tool_calls"], response["tools"][0]["name"]) == (False, "find")
    assert (response["error"], response["incomplete_details"]) == (None, None)
    assert response["usage"]["total_tokens"] == sum(
        response["usage"][side] for side in ("input_tokens", "output_tokens")
    )


@STREAMED
def test_the_upstream_is_never_asked_to_keep_state_and_gets_what_we_do_not_know(api, upstream: Upstream, streamed):
    upstream.replies["asked"] = Reply([stream(created(), text("hi"), completed())])
    first = api.create("up/asked")
    api.ask("up/asked", stream=streamed, previous_response_id=first["id"], store=True, brand_new={"x": [1]})
    body = upstream.of("asked")[-1].body
    assert (body["store"], body["stream"], body["brand_new"]) == (False, streamed, {"x": [1]})
    assert not {"previous_response_id", "conversation", "background"} & set(body)


@STREAMED
def test_waiting_calls_are_named_in_a_field_of_the_final_response(api, streamed):
    response = api.ask("demo-parallel", stream=streamed, tools=FIND)
    assert response["status"] == "completed"
    assert response["required_action"] == {
        "type": "submit_tool_outputs",
        "submit_tool_outputs": {
            "tool_calls": [
                {
                    "id": item["call_id"],
                    "type": "function",
                    "function": {"name": item["name"], "arguments": item["arguments"]},
                }
                for item in calls_of(response)
            ]
        },
    }
    assert len(calls_of(response)) == 3
    assert "required_action" not in api.ask("demo", stream=streamed)


@pytest.mark.parametrize("events", ["openai", "extended"])
def test_a_response_that_is_not_stored_names_no_calls_that_wait(api, events):
    for streamed in (False, True):
        body = response_body("demo-parallel", tools=FIND, store=False, stream=streamed)
        answer = good(api.post(body, x_proxy_responses_events=events))
        response = read_events(answer).response if streamed else answer.json()
        assert len(calls_of(response)) == 3
        assert response["status"] == "completed"
        assert "required_action" not in answer.text


def test_no_event_but_the_last_has_the_field(api):
    events = api.stream("demo-parallel", tools=FIND)
    with_field = [data["type"] for _, data in events.frames if "required_action" in data.get("response", {})]
    assert with_field == ["response.completed"]


def test_a_turn_is_one_log_line_without_any_content(http, gateway):
    response = Responses(http, gateway, "sk-hush").create(
        "demo", "Find a hush prompt.", tools=FIND, instructions="hush hush"
    )
    turn = response["id"].removeprefix("resp_")
    gateway.wait_until(lambda: any(line["turn"] == turn for line in gateway.turns()))
    [line] = [line for line in gateway.turns() if line["turn"] == turn]
    assert (line["dialect"], line["backend"], line["status"]) == ("responses", "demo", 200)
    assert line["tool_call_names"] == ["find"]
    assert "hush" not in "\n".join(gateway.log)


# Requests at fault


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": "", "input": "x"}, "model"),
        ({"model": "demo"}, "input"),
        ({"model": "demo", "input": 5}, "input"),
        ({"model": "demo", "input": {"role": "user"}}, "input"),
        ({"model": "demo", "input": [5]}, "input[0]"),
        ({"model": "demo", "input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"model": "demo", "input": [{"content": "x"}]}, "input[0].type"),
        ({"model": "demo", "input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        ({"model": "demo", "input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"model": "demo", "input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"model": "demo", "input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"model": "demo", "input": [5, {"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"model": "demo", "input": ["x", {"type": "item_reference"}]}, "input[0]"),
        ({"model": "demo", "input": "x", "tools": {}}, "tools"),
        ({"model": "demo", "input": "x", "tools": [{}]}, "tools[0].type"),
        ({"model": "demo", "input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"model": "demo", "input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"model": "demo", "input": "x", "tool_choice": "perhaps"}, "tool_choice"),
        ({"model": "demo", "input": "x", "temperature": "hot"}, "temperature"),
        ({"model": "demo", "input": "x", "metadata": {"a": 1}}, "metadata[...]"),
        ({"model": "demo", "input": "x", "previous_response_id": 7}, "previous_response_id"),
        ({"model": "demo", "input": "x", "previous_response_id": "r", "conversation": "c"}, "previous_response_id"),
        ({"model": "demo", "input": "x", "background": True, "store": False}, "background"),
        ({"model": "demo", "input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else value,
)  # fmt: skip
def test_a_request_at_fault_is_a_400_that_names_the_field(api, body, param):
    status, error = error_of(api.post(body))
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize("content", [b"{nope", b"", b"[]", b'"x"', b'{"model":"demo","input":"\xff"}'])
def test_a_body_that_is_no_json_object_is_a_400(http, gateway, content):
    assert error_of(http.post(f"{gateway.base_url}/responses", content=content))[0] == 400


def test_an_unknown_model_is_a_404(api):
    status, error = error_of(api.post(response_body("nobody")))
    assert (status, error["code"]) == (404, "model_not_found")


def test_an_unknown_kind_of_events_is_refused_by_name(api):
    status, error = error_of(api.post(response_body("demo"), x_proxy_responses_events="fancy"))
    assert (status, error["param"]) == (400, "x-proxy-responses-events")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "", 405), ("DELETE", "", 405), ("GET", "/compact", 405), ("PUT", "/resp_x", 405), ("POST", "/resp_x/nothing", 404)],
)  # fmt: skip
def test_what_is_not_served_is_an_error_object(http, gateway, method, path, status):
    assert error_of(http.request(method, f"{gateway.base_url}/responses{path}"))[0] == status


# Failures


@STREAMED
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_an_upstream_status_reaches_the_client_as_a_status(api, upstream, status, streamed):
    body = b'{"error":{"message":"Upstream says no.","type":"t","code":"c","param":"p"}}'
    upstream.replies["says-no"] = Reply([body], status, "application/json", {"retry-after": "9"})
    response = api.post(response_body("up/says-no", stream=streamed))
    got, error = error_of(response)
    assert (got, error) == (status, {"message": error["message"], "type": "t", "code": "c", "param": "p"})
    explained = "Backend `up` "  # whose key was refused, and what to do
    assert "Upstream says no." in error["message"]
    assert error["message"].startswith(explained if status == 401 else "Up")
    assert response.headers["retry-after"] == "9"


EARLY = {
    "server_error": rs("failed", response={"status": "failed", "error": {"code": "server_error", "message": "boom"}}),
    "stream_cut": b"",
}


@STREAMED
@pytest.mark.parametrize("code", EARLY)
def test_a_failure_before_the_first_event_is_a_status(api, upstream, code, streamed):
    upstream.replies["fails-first"] = Reply([stream(created(), EARLY[code])])
    status, error = error_of(api.post(response_body("up/fails-first", stream=streamed)))
    assert (status, error["code"]) == (502, code)


CALL_BEGUN = stream(
    rs("output_item.added", output_index=0, item=call_item("c1", "find", "")),
    rs("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"q":'),
)
BEGUN = {
    "in a text": (text("Hi"), "message"),
    "in a call": (CALL_BEGUN, "function_call"),
    "after a call": (call("c1", "find", '{"q":"x"}'), "function_call"),
}
ENDINGS = {
    "cut": [Cut()],
    "nothing": [],
    "error": [sse({"type": "error", "code": "server_error", "message": "boom"})],
    "failed": [rs("failed", response={"status": "failed", "error": {"code": "x", "message": "boom"}})],
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("begun", BEGUN)
def test_a_failure_in_mid_stream_is_told_in_the_stream_and_kept(api, upstream, begun, ending):
    data, kind = BEGUN[begun]
    upstream.replies["fails-late"] = Reply([stream(created(), data), *ENDINGS[ending]])
    events = api.stream("up/fails-late", tools=FIND)
    is_sound(events)
    assert events.types[-2:] == ["error", "response.failed"]
    [error] = events.of("error")
    assert error["message"] == error["error"]["message"] == events.response["error"]["message"]
    assert error["code"] == error["error"]["code"]
    assert [item["type"] for item in events.response["output"]] == [kind]
    assert events.response["status"] == "failed"
    assert "required_action" not in events.response
    assert api.retrieve(events.response["id"]) == events.response


@pytest.mark.parametrize("model", ["demo-error-middle", "demo-cut"])
def test_the_demo_shows_how_a_stream_breaks(api, model):
    events = api.stream(model, tools=FIND)
    is_sound(events)
    assert events.types[-1] == "response.failed"


def test_after_a_while_of_waiting_the_stream_begins_and_a_failure_is_told_in_it(http, impatient, upstream):
    upstream.replies["thinks"] = Reply(gate := Gate(after=(b"{}",)), 200, "application/json")
    body = response_body("up/thinks", stream=True)
    response = post_through(http, f"{impatient.base_url}/responses", body, gate, "keepalive")
    events = read_events(good(response))
    is_sound(events)
    assert events.types == ["response.created", "response.in_progress", "error", "response.failed"]


def test_a_timeout_is_told_in_the_stream(http, start, upstream):
    upstream.replies["stalls"] = Reply([stream(created(), text("x")), Hold()])

    def stall(factor: float) -> None:
        gateway = start(f"[timeouts]\nidle = {0.3 * factor}\n" + backend(upstream.url))
        response = Responses(http, gateway).post(response_body("up/stalls", stream=True))
        assert response.status_code == 200
        events = read_events(response)
        is_sound(events)
        assert "timeouts.idle" in events.of("error")[0]["message"]

    at_any_pace(stall)


@STREAMED
def test_the_end_of_the_tokens_is_an_incomplete_response(api, upstream, streamed):
    upstream.replies["runs-out"] = Reply([stream(created(), text("And th"), INCOMPLETE)])
    response = api.ask("up/runs-out", stream=streamed)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert text_of(response) == "And th"
    assert api.retrieve(response["id"]) == response


@STREAMED
def test_a_call_that_the_end_of_the_tokens_cut_does_not_wait_for_an_output(api, upstream, streamed):
    upstream.replies["cuts"] = Reply([stream(created(), CALL_BEGUN, INCOMPLETE)])
    response = api.ask("up/cuts", stream=streamed, tools=FIND)
    assert [(item["type"], item["status"]) for item in response["output"]] == [("function_call", "incomplete")]
    assert response["status"] == "incomplete"
    assert "required_action" not in response
    assert api.submit(response["id"], {"c1": "x"}).status_code == 400


def test_an_incomplete_stream_ends_with_its_own_event(api, upstream):
    upstream.replies["cuts"] = Reply([stream(created(), text("Hm."), CALL_BEGUN, INCOMPLETE)])
    events = api.stream("up/cuts", tools=FIND)
    is_sound(events)
    assert events.types[-1] == "response.incomplete"


# Extended events


def extended(api: Responses, model: str, **fields: Any) -> Events:
    body = response_body(model, stream=True, **fields)
    return read_events(good(api.post(body, x_proxy_responses_events="extended")))


def test_extended_events_come_on_request_only(api):
    events = extended(api, "demo-parallel", tools=FIND)
    is_sound(events, extended=True)
    assert events.types[-2:] == ["response.required_action", "response.completed"]
    [asked] = events.of("response.required_action")
    assert asked["required_action"] == events.response["required_action"]
    assert asked["response"]["id"] == events.response["id"]
    assert events.response["status"] == "incomplete"
    assert all(before < after for before, after in pairwise(events.numbers))
    usual = api.stream("demo-parallel", tools=FIND)
    is_sound(usual)
    assert usual.types == [type for type in events.types if type != "response.required_action"]


def test_an_extended_turn_without_calls_is_as_usual(api):
    events = extended(api, "demo")
    is_sound(events)
    assert (events.types[-1], events.response["status"]) == ("response.completed", "completed")


def test_an_extended_plain_answer_is_incomplete_while_calls_wait(api):
    body = response_body("demo", "Find Rome.", tools=FIND)
    response = good(api.post(body, x_proxy_responses_events="extended")).json()
    assert (response["status"], response["required_action"]["type"]) == ("incomplete", "submit_tool_outputs")
    assert api.retrieve(response["id"]) == response


@pytest.mark.parametrize("by", ["submit", "previous_response_id"])
def test_an_extended_response_is_completed_once_its_outputs_came(api, by):
    waiting = extended(api, "demo", input="Find Rome.", tools=FIND).response
    [made] = calls_of(waiting)
    if by == "submit":
        good(api.submit(waiting["id"], {made["call_id"]: "sunny"}))
    else:
        output = {"type": "function_call_output", "call_id": made["call_id"], "output": "sunny"}
        api.create("demo", [output], previous_response_id=waiting["id"])
    later = api.retrieve(waiting["id"])
    assert later["status"] == "completed"
    assert "required_action" not in later
    assert later["output"] == waiting["output"]


def test_the_setting_makes_extended_events_the_default_and_the_header_wins(http, start):
    api = Responses(http, start('[tools]\nresponses_events = "extended"\n'))
    assert api.stream("demo", "Find Rome.", tools=FIND).types[-2] == "response.required_action"
    body = response_body("demo", "Find Rome.", tools=FIND, stream=True)
    usual = read_events(good(api.post(body, x_proxy_responses_events="openai")))
    assert "response.required_action" not in usual.types
    assert usual.response["status"] == "completed"


KINDS = ("openai", "extended")


def test_a_stream_on_request_is_pinged_in_silence_and_no_other(http, gateway, upstream):
    gates = {kind: Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),)) for kind in KINDS}
    upstream.replies |= {f"ponders-{kind}": Reply(gate) for kind, gate in gates.items()}
    got: dict[str, Events] = {}
    first = threading.Event()

    def ask(kind: str) -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            body = response_body(f"up/ponders-{kind}", stream=True)
            headers = {"x-proxy-responses-events": kind}
            events = got[kind] = Events()
            with client.stream("POST", f"{gateway.base_url}/responses", json=body, headers=headers) as response:
                for frame in iter_events(response, events):
                    events.frames.append(frame)
                    if frame[0] == "response.output_text.delta":
                        first.set()
                    if frame[0] == "ping":  # the other stream is as silent, and longer
                        for gate in gates.values():
                            gate.open()

    usual, pinged = (threading.Thread(target=ask, args=(kind,)) for kind in KINDS)
    usual.start()
    assert first.wait(60)
    pinged.start()
    for thread in (usual, pinged):
        thread.join()
    is_sound(got["extended"], extended=True)
    is_sound(got["openai"])
    assert got["extended"].types.count("ping") >= 1
    assert [type for type in got["extended"].types if type != "ping"] == got["openai"].types
    assert got["extended"].response["status"] == "completed"


@pytest.mark.parametrize("steps", [[], [stream(created())]], ids=["nothing", "no content"])
def test_an_extended_stream_begins_at_once_and_is_pinged_from_the_start(start, upstream, steps):
    gateway = start("[server]\ncommit_after = 3600\n" + backend(upstream.url))
    gate = Gate(*steps, after=(stream(text("a"), completed()),))
    upstream.replies["late"] = Reply(gate)
    body = response_body("up/late", stream=True)
    headers = {"x-proxy-responses-events": "extended"}
    events = Events()
    with httpx.Client(trust_env=False, timeout=120) as client:
        with client.stream("POST", f"{gateway.base_url}/responses", json=body, headers=headers) as response:
            assert response.status_code == 200
            for name, data in iter_events(response, events):
                events.frames.append((name, data))
                if events.types.count("ping") == 2:
                    gate.open()
    is_sound(events, extended=True)
    assert events.types[:4] == ["response.created", "response.in_progress", "ping", "ping"]
    assert text_of(events.response) == "a"


def test_a_failure_of_an_extended_stream_is_told_in_it(api, upstream):
    upstream.replies["refuses"] = Reply([b'{"error":{"message":"No.","code":"c"}}'], 503, "application/json")
    events = extended(api, "up/refuses")
    assert events.types == ["response.created", "response.in_progress", "error", "response.failed"]
    assert (events.of("error")[0]["message"], events.done) == ("No.", True)


def test_an_extended_stream_has_begun_and_the_backend_is_asked_again_all_the_same(http, start, upstream):
    upstream.replies["busy-once"] = [
        Reply([b'{"error":{"message":"Busy."}}'], 503, "application/json"),
        Reply([stream(created(), text("a"), completed())]),
    ]
    api = Responses(http, start(backend(upstream.url).replace("retries = 0", "retries = 1")))
    events = extended(api, "up/busy-once")
    is_sound(events, extended=True)
    assert text_of(events.response) == "a"
    assert [note["code"] for note in events.telemetry["notes"]] == ["retried"]


# Signs of life


def test_a_comment_keeps_a_silent_stream_alive_and_takes_no_number(http, impatient, upstream):
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["pauses"] = Reply(gate)
    body = response_body("up/pauses", stream=True)
    events = read_events(good(post_through(http, f"{impatient.base_url}/responses", body, gate, "keepalive")))
    is_sound(events)
    assert "keepalive" in events.comments
    assert text_of(events.response) == "ab"


def encoder(**options: bool) -> dialect.StreamEncoder:
    request = dialect.decode_request(json.dumps(response_body("m")).encode())
    return dialect.StreamEncoder(request, "resp_1", 1, TurnStats(), **options)


def written(pieces: Sequence[bytes]) -> list[tuple[str, dict[str, Any]]]:
    """The name and data of each event in these bytes."""
    blocks = [block.split("\n") for block in b"".join(pieces).decode().split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_from_a_minute_of_silence_on_the_sign_of_life_is_a_numbered_event():
    stage = encoder()
    begun = [*stage.feed(TurnStarted()), *stage.feed(TextDelta("a"))]
    number = len(begun)
    assert b"".join(stage.keepalive(59.9)).strip() == b": keepalive"
    [(name, event)] = written(stage.keepalive(60.0))
    assert (name, event["type"], event["sequence_number"]) == ("response.in_progress", "response.in_progress", number)
    assert (event["response"]["id"], event["response"]["status"]) == ("resp_1", "in_progress")
    [(_, delta)] = written(stage.feed(TextDelta("b")))
    assert delta["sequence_number"] == number + 1


def test_a_sign_of_life_before_everything_begins_the_stream():
    stage = encoder()
    assert [name for name, _ in written(stage.keepalive(60.0))] == ["response.created", "response.in_progress"]
    assert [name for name, _ in written(stage.keepalive(75.0))] == ["response.in_progress"]
    assert list(stage.feed(TurnStarted())) == []


def test_an_extended_sign_of_life_is_a_numbered_ping():
    stage = encoder(extended=True)
    stage.feed(TurnStarted())
    [(name, event)] = written(stage.keepalive(2.0))
    assert (name, event) == ("ping", {"type": "ping", "sequence_number": 2})


# Leaving


def leave_after_the_first_text(gateway: Gateway, body: dict[str, Any]) -> str:
    """Read a stream up to its first text and go; returns the response's id."""
    with httpx.Client(trust_env=False, timeout=120) as client:
        with client.stream("POST", f"{gateway.base_url}/responses", json=body) as response:
            id = ""
            for name, data in iter_events(response, Events()):
                id = data["response"]["id"] if name == "response.created" else id
                if name == "response.output_text.delta":
                    break
    return id


def test_a_client_that_leaves_stops_the_upstream_and_its_response_is_cancelled(gateway, api, upstream):
    upstream.replies["endless"] = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.gone.clear()
    id = leave_after_the_first_text(gateway, response_body("up/endless", stream=True))
    assert upstream.gone.wait(60)
    left = api.wait_for(id, "cancelled")
    assert (left["status"], text_of(left), left["error"]) == ("cancelled", "Once upon", None)
    assert [item["status"] for item in left["output"]] == ["incomplete"]
    assert response_errors(left) == []


def test_nothing_is_kept_of_a_response_that_is_not_stored_when_its_client_leaves(gateway, api, upstream):
    upstream.replies["endless"] = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.gone.clear()
    before = len(gateway.turns())
    id = leave_after_the_first_text(gateway, response_body("up/endless", stream=True, store=False))
    assert upstream.gone.wait(60)
    assert gateway.wait_for_turns(before + 1)[-1]["status"] == 499
    assert api.get(id).status_code == 404


def test_a_plain_client_that_leaves_stops_the_upstream_too(gateway, upstream):
    upstream.replies["endless-plainly"] = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.gone.clear()
    body = response_body("up/endless-plainly")
    leave_when(gateway, "/v1/responses", body, lambda: upstream.of("endless-plainly"))
    assert upstream.gone.wait(60)
