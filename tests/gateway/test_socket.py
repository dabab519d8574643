"""Responses over a WebSocket: one turn after the other, with a memory that lasts as long as the connection."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.checked import responses_faults
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gate, Gateway, Responses, backend, calls_of, flat, text_of, tool
from tests.support.schemas import event_errors
from tests.support.upstream import Hold, Reply, Upstream

FIND = [flat(tool("find", q={"type": "string"}))]
SAYS_HI = Reply([stream(created(), text("hi"), completed())])
CALLS_FIND = Reply([stream(created(), call("c1", "find", '{"q":"x"}'), completed())])
BUSY = Reply([b'{"error":{"message":"Busy."}}'], 503, "application/json")
CODEX = Path(__file__).parent.parent / "recordings" / "codex-cli-client" / "59-websocket-accepted-tool-call.jsonl"
PATIENCE = 90
"""Seconds to wait for a message that must come."""


class Turn:
    """The messages of one turn."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.messages]

    @property
    def response(self) -> dict[str, Any]:
        return self.messages[-1]["response"]

    @property
    def error(self) -> tuple[int, str]:
        """The status and code of a turn that is nothing but an error."""
        assert self.types == ["error"]
        [message] = self.messages
        assert set(message["error"]) >= {"message", "type", "param", "code"}
        return message["status"], message["error"]["code"]


class Socket:
    """A client's end of the connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, model: str = "", input: Any = "Go.", **fields: Any) -> None:
        named = {"model": model} if model else {}
        self.connection.send(json.dumps({"type": "response.create", **named, "input": input, **fields}))

    def turn(self, heard: Callable[[list[str]], None] = lambda _: None) -> Turn:
        """The next turn, to its closing event or its error; `heard` gets the types so far after each."""
        turn = Turn()
        while True:
            message = self.receive()
            turn.messages.append(message)
            heard([each["type"] for each in turn.messages])
            if message["type"] in ("response.completed", "response.failed", "response.incomplete"):
                return turn
            if message["type"] == "error" and len(turn.messages) == 1:
                return turn

    def ask(self, model: str = "demo", input: Any = "Go.", **fields: Any) -> Turn:
        self.send(model, input, **fields)
        return self.turn()

    def receive(self) -> dict[str, Any]:
        message = self.connection.recv(PATIENCE)
        assert isinstance(message, str)
        return json.loads(message)


@contextmanager
def opened(gateway: Gateway, path: str = "/v1/responses", **headers: str) -> Iterator[Socket]:
    url = gateway.url.replace("http", "ws", 1) + path
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with connect(url, additional_headers=named, proxy=None, open_timeout=PATIENCE, close_timeout=0.2) as connection:
        yield Socket(connection)


@pytest.fixture
def socket(gateway: Gateway, upstream: Upstream) -> Iterator[Socket]:
    upstream.replies["hi"] = SAYS_HI
    with opened(gateway) as socket:
        yield socket


@pytest.fixture(scope="module")
def particular(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that speaks up soon, takes no long messages, and serves Codex."""
    server = '[server]\ncommit_after = 0.15\nkeepalive = 0.15\nmax_body = "200KB"\n'
    gateway = Gateway(tmp_path_factory.mktemp("particular"), server + backend(upstream.url, models='["gpt-*"]'))
    yield gateway
    gateway.stop()


def output_of(call_id: str, output: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def types_of(upstream: Upstream, model: str) -> list[str]:
    return [item.get("type", "message") for item in upstream.of(model)[-1].body["input"]]


def is_sound(turn: Turn) -> None:
    assert responses_faults([(None, message) for message in turn.messages], done=None) == []
    assert [fault for message in turn.messages for fault in event_errors(message)] == []


# Turns


@pytest.mark.parametrize("model", ["demo", "demo-parallel", "demo-refusal", "demo-length", "demo-use-tool"])
@pytest.mark.parametrize("tools", [[], FIND], ids=["no tools", "tools"])
def test_a_turn_is_sound(socket, model, tools):
    is_sound(socket.ask(model, "Find Paris and Rome.", tools=tools))


def test_a_turn_has_the_events_of_the_same_turn_by_post(socket, http, gateway):
    turn = socket.ask("demo", "Find Paris and Rome.", tools=FIND)
    posted = Responses(http, gateway).stream("demo", "Find Paris and Rome.", tools=FIND)
    assert turn.types == posted.types
    assert text_of(turn.response) == text_of(posted.response)
    assert turn.response["toolwire"] == posted.telemetry
    assert turn.response["toolwire"]["tool_call_count"] == 2


def test_only_the_final_response_carries_the_telemetry(socket):
    turn = socket.ask("demo", "Find Rome.", tools=FIND)
    assert [message["type"] for message in turn.messages if "toolwire" in message.get("response", {})] == [
        "response.completed"
    ]


def test_a_stored_turn_is_kept_like_any_other(socket, http, gateway):
    turn = socket.ask("demo", "Find Rome.", tools=FIND, store=True)
    figures = turn.response.pop("toolwire")
    assert figures["tool_call_count"] == 1
    kept = Responses(http, gateway).get(turn.response["id"])
    assert (kept.json(), kept.headers["x-codex-tool-call-count"]) == (turn.response, "1")


def test_a_turn_by_socket_continues_one_by_post_and_the_other_way_round(socket, http, gateway, upstream):
    api = Responses(http, gateway)
    first = api.create("up/hi", "one")
    second = socket.ask("up/hi", "two", previous_response_id=first["id"]).response
    api.create("up/hi", "three", previous_response_id=second["id"])
    assert types_of(upstream, "hi") == ["message"] * 5


def test_an_extended_turn_is_asked_for_with_the_upgrade(gateway):
    with opened(gateway, x_proxy_responses_events="extended") as socket:
        turn = socket.ask("demo", "Find Rome.", tools=FIND)
    frames = [(None, message) for message in turn.messages]
    assert responses_faults(frames, done=None, extended=True) == []
    assert turn.types[-2:] == ["response.required_action", "response.completed"]


def test_a_path_prefix_sets_the_output_mode(gateway):
    with opened(gateway, "/obsidian-xml/v1/responses") as socket:
        assert "<use_tool>" in text_of(socket.ask("demo", "Find Rome.", tools=FIND).response)


def test_a_message_in_bytes_is_read_too(socket):
    socket.connection.send(json.dumps({"type": "response.create", "model": "demo", "input": "Hello."}).encode())
    assert "Hello." in text_of(socket.turn().response)


def test_a_stream_id_is_on_every_message_of_its_turn(socket):
    turn = socket.ask("demo", "Find Rome.", tools=FIND, stream_id='lane "1"')
    assert {message["stream_id"] for message in turn.messages} == {'lane "1"'}
    assert "stream_id" not in turn.response
    failed = socket.ask("nobody", stream_id="lane 2")
    assert failed.messages[0]["stream_id"] == "lane 2"
    assert "stream_id" not in socket.ask("demo").messages[0]


@pytest.mark.parametrize(
    "fields", [{"stream": True}, {"background": False}, {"background": None}, {"stream_options": None}]
)
def test_what_says_nothing_is_accepted(socket, fields):
    assert socket.ask("demo", **fields).types[-1] == "response.completed"


# One after the other


def test_turns_are_worked_off_in_order_and_never_mixed(socket):
    for number in range(100):
        socket.send("demo", f"number {number}", store=False)
    for number in range(100):
        turn = socket.turn()
        assert responses_faults([(None, message) for message in turn.messages], done=None) == []
        assert f"You said: number {number}\n" in text_of(turn.response)


def test_a_turn_does_not_begin_before_the_one_before_it_ended(socket, upstream):
    gate = Gate(stream(created(), text("one")), after=(completed(),))
    upstream.replies["first"], upstream.replies["second"] = Reply(gate), SAYS_HI
    before = len(upstream.of("second"))
    socket.send("up/first")
    socket.send("up/second")
    while socket.receive()["type"] != "response.output_text.delta":
        pass
    assert len(upstream.of("second")) == before
    gate.open()
    assert socket.turn().types[-1] == "response.completed"
    assert text_of(socket.turn().response) == "hi"


def test_a_request_that_waits_may_continue_the_one_before_it_by_its_id_only_when_that_is_known(socket):
    socket.send("demo", "one", store=False)
    socket.send("demo", "two", store=False, previous_response_id="resp_guessed")
    assert socket.turn().types[-1] == "response.completed"
    assert socket.turn().error == (404, "previous_response_not_found")


def test_a_failed_turn_does_not_end_the_connection_or_those_that_wait(socket, upstream):
    upstream.replies["busy"] = BUSY
    for model in ("up/busy", "nobody", "demo-error-middle", "demo"):
        socket.send(model)
    assert socket.turn().error[0] == 503
    assert socket.turn().error == (404, "model_not_found")
    assert socket.turn().types[-1] == "response.failed"
    assert socket.turn().types[-1] == "response.completed"


# Memory


def test_a_chain_works_though_nothing_is_stored(socket, upstream, http, gateway):
    upstream.replies["loop"] = [CALLS_FIND, SAYS_HI, SAYS_HI]
    first = socket.ask("up/loop", tools=FIND, store=False).response
    second = socket.ask("up/loop", [output_of("c1")], store=False, previous_response_id=first["id"]).response
    assert types_of(upstream, "loop") == ["message", "function_call", "function_call_output"]
    third = socket.ask("up/loop", "more", store=False, previous_response_id=second["id"]).response
    assert types_of(upstream, "loop") == ["message", "function_call", "function_call_output", "message", "message"]
    assert third["previous_response_id"] == second["id"]
    for response in (first, second, third):
        assert Responses(http, gateway).get(response["id"]).status_code == 404


def test_only_the_latest_response_is_remembered(socket):
    first = socket.ask("demo", "one", store=False).response
    socket.ask("demo", "two", store=False)
    assert socket.ask("demo", store=False, previous_response_id=first["id"]).error == (
        404,
        "previous_response_not_found",
    )


def test_every_lane_remembers_its_own_latest_response(socket):
    left, right = (socket.ask("demo", store=False, stream_id=lane).response["id"] for lane in ("left", "right"))
    again = socket.ask("demo", store=False, stream_id="left", previous_response_id=left)
    assert again.types[-1] == "response.completed"
    other = socket.ask("demo", store=False, stream_id="right", previous_response_id=right)
    assert other.types[-1] == "response.completed"
    for lane, id in (("left", left), ("right", right)):
        stale = socket.ask("demo", store=False, stream_id=lane, previous_response_id=id)
        assert stale.error == (404, "previous_response_not_found")


def test_a_new_connection_remembers_nothing(gateway):
    with opened(gateway) as before:
        id = before.ask("demo", store=False).response["id"]
    with opened(gateway) as after:
        assert after.ask("demo", store=False, previous_response_id=id).error == (404, "previous_response_not_found")
        assert id in after.ask("demo", previous_response_id=id).messages[0]["error"]["message"]


def test_an_unknown_response_does_not_cost_the_one_that_is_remembered(socket):
    first = socket.ask("demo", store=False).response
    assert socket.ask("demo", store=False, previous_response_id="resp_x").error[0] == 404
    assert socket.ask("demo", store=False, previous_response_id=first["id"]).types[-1] == "response.completed"


FAULTY: dict[str, tuple[str, dict[str, Any], int]] = {
    "an unknown call": ("demo", {"input": [output_of("call_strange")]}, 400),
    "an unknown model": ("nobody", {}, 404),
    "an upstream that refuses": ("up/busy", {}, 503),
    "a bad item": ("demo", {"input": [{"role": "robot"}]}, 400),
    "a bad field": ("demo", {"temperature": "hot"}, 400),
    "a field that sockets refuse": ("demo", {"background": True}, 400),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_continuation_that_fails_evicts_what_it_continued(socket, upstream, fault):
    upstream.replies["busy"] = BUSY
    model, fields, status = FAULTY[fault]
    first = socket.ask("demo", store=False).response
    assert socket.ask(model, **{"store": False, **fields}, previous_response_id=first["id"]).error[0] == status
    again = socket.ask("demo", store=False, previous_response_id=first["id"])
    assert again.error == (404, "previous_response_not_found")


@pytest.mark.parametrize("model", ["demo-error-middle", "demo-cut"])
def test_so_does_one_that_fails_in_the_middle(socket, model):
    first = socket.ask("demo", store=False).response
    assert socket.ask(model, store=False, previous_response_id=first["id"]).types[-1] == "response.failed"
    again = socket.ask("demo", store=False, previous_response_id=first["id"])
    assert again.error == (404, "previous_response_not_found")


def test_an_output_for_a_call_that_is_nowhere_fails_the_turn(socket):
    first = socket.ask("demo", store=False).response
    turn = socket.ask("demo", [output_of("call_strange")], store=False, previous_response_id=first["id"])
    assert turn.error[0] == 400
    assert "call_strange" in turn.messages[0]["error"]["message"]


# Warming up


def test_a_warm_up_is_remembered_and_costs_no_turn(socket, upstream):
    before = len(upstream.of("hi"))
    warm = socket.ask("up/hi", "context", store=False, generate=False)
    is_sound(warm)
    assert (warm.types[0], warm.types[-1]) == ("response.created", "response.completed")
    assert warm.response["output"] == []
    assert len(upstream.of("hi")) == before
    turn = socket.ask("up/hi", "question", store=False, previous_response_id=warm.response["id"])
    assert text_of(turn.response) == "hi"
    assert types_of(upstream, "hi") == ["message", "message"]


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": None}], ids=["none", "empty", "null"])
def test_a_warm_up_needs_no_input(socket, fields):
    body = {"type": "response.create", "model": "demo", "store": False, "generate": False, **fields}
    socket.connection.send(json.dumps(body))
    warm = socket.turn()
    assert warm.types[-1] == "response.completed"
    turn = socket.ask("demo", "Hello.", store=False, previous_response_id=warm.response["id"])
    assert "Hello." in text_of(turn.response)


def test_after_an_empty_warm_up_an_output_for_no_call_fails_the_turn(socket):
    warm = socket.ask("demo", [], store=False, generate=False)
    turn = socket.ask("demo", [output_of("call_strange")], store=False, previous_response_id=warm.response["id"])
    assert turn.error[0] == 400


def test_a_warm_up_for_no_model_is_an_error(socket):
    assert socket.ask("nobody", store=False, generate=False).error == (404, "model_not_found")


def test_codex_gets_through_a_tool_call_as_it_really_talks(particular, upstream):
    lines = [json.loads(line) for line in CODEX.read_text().splitlines()]
    asked = next(line for line in lines if line["dir"] == "upstream_request")
    warm, first, second = (line["msg"] for line in lines if line["dir"] == "ws_client_message")
    arguments = '{"cmd": "echo hi"}'
    upstream.replies["gpt-5.5"] = [
        Reply([stream(created(), call("call_1", "exec_command", arguments), completed())]),
        Reply([stream(created(), text("Done."), completed())]),
    ]
    before = len(upstream.of("gpt-5.5"))
    own = ("host", "connection", "upgrade", "sec-websocket")
    headers = {name: value for name, value in asked["headers"].items() if not name.startswith(own)}
    with opened(particular, asked["path"], **headers) as socket:
        ids: dict[str, str] = {}
        turns: list[Turn] = []
        for message, name in ((warm, "resp_w"), (first, "resp_1"), (second, "resp_2")):
            if "previous_response_id" in message:
                message["previous_response_id"] = ids[message["previous_response_id"]]
            socket.connection.send(json.dumps(message))
            turns.append(socket.turn())
            is_sound(turns[-1])
            assert turns[-1].types[-1] == "response.completed"
            ids[name] = turns[-1].response["id"]
    assert turns[0].response["output"] == []
    assert [(item["call_id"], item["name"], item["arguments"]) for item in calls_of(turns[1].response)] == [
        ("call_1", "exec_command", arguments)
    ]
    assert text_of(turns[2].response) == "Done."
    sent = [asked.body for asked in upstream.of("gpt-5.5")[before:]]
    assert len(sent) == 2, "the warm-up is not asked of the model"
    assert sent[0]["input"] == warm["input"] + first["input"]
    assert sent[1]["input"][: len(sent[0]["input"])] == sent[0]["input"]
    made, answered = sent[1]["input"][len(sent[0]["input"]) :]
    assert (made["type"], made["call_id"], made["arguments"]) == ("function_call", "call_1", arguments)
    assert answered == second["input"][0]
    for body, message in zip(sent, (first, second), strict=True):
        assert body["tools"] == message["tools"]
        assert body["store"] is False
        assert not {"type", "generate", "previous_response_id", "stream_id"} & set(body)


# Messages at fault


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("{nope", None, "invalid_json"),
        ("", None, "invalid_json"),
        ("[]", None, "invalid_type"),
        ('{"type":"response.cancel"}', "type", "unknown_message"),
        ('{"model":"demo","input":"x"}', "type", "unknown_message"),
        ('{"type":"response.create","input":"x"}', "model", "model_required"),
        ('{"type":"response.create","model":"demo"}', "input", "missing_required_parameter"),
        (
            '{"type":"response.create","model":"demo","input":"x","background":true}',
            "background",
            "unsupported_parameter",
        ),
        (
            '{"type":"response.create","model":"demo","input":"x","stream_options":{}}',
            "stream_options",
            "unsupported_parameter",
        ),
        ('{"type":"response.create","model":"demo","input":"x","stream":false}', "stream", "unsupported_value"),
        ('{"type":"response.create","model":"demo","input":5}', "input", "invalid_type"),
        (
            '{"type":"response.create","model":"demo","input":[5,{"type":"item_reference","id":"x"}]}',
            "input[0]",
            "invalid_type",
        ),
    ],
)
def test_a_message_at_fault_is_an_error_frame_and_no_more(socket, message, param, code):
    socket.connection.send(message)
    turn = socket.turn()
    status, found = turn.error
    assert status == 400
    assert turn.messages[0]["error"]["param"] == param
    assert found == code
    assert socket.ask("demo").types[-1] == "response.completed"


@pytest.mark.parametrize(
    "message", ["null", '{"type":5}', '{"type":"response.create","input":' + "[" * 3000 + "]" * 3000 + "}"]
)
def test_a_message_of_another_shape_is_an_error_frame_too(socket, message):
    socket.connection.send(message)
    assert socket.turn().error[0] == 400


def test_an_upstream_that_refuses_is_an_error_frame_with_its_status(socket, upstream):
    body = b'{"error":{"message":"Slow down.","type":"t","code":"rate_limit_exceeded","param":"p"}}'
    upstream.replies["limits"] = Reply([body], 429, "application/json")
    turn = socket.ask("up/limits")
    assert turn.error == (429, "rate_limit_exceeded")
    assert turn.messages[0]["error"]["message"] == "Slow down."


def test_a_failure_in_the_middle_of_a_turn_is_told_and_ends_it(socket):
    turn = socket.ask("demo-error-middle")
    assert responses_faults([(None, message) for message in turn.messages], done=None) == []
    assert turn.types[-2:] == ["error", "response.failed"]
    error = turn.messages[-2]
    assert error["error"]["message"] == error["message"] == "The demo model broke down."


def test_a_message_beyond_the_limit_ends_the_connection(particular):
    with opened(particular) as socket:
        socket.send("demo", "x" * 300_000)
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


# Signs of life


def test_a_silent_turn_is_kept_alive_with_events(particular, upstream):
    upstream.replies["ponders"] = Reply(gate := Gate(after=(stream(created(), text("a"), completed()),)))
    with opened(particular) as socket:
        socket.send("up/ponders")
        turn = socket.turn(lambda types: gate.open() if types.count("response.in_progress") > 1 else None)
    is_sound(turn)
    assert turn.types.count("response.in_progress") > 1
    assert text_of(turn.response) == "a"


# The connection


@pytest.fixture(scope="module")
def short(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose connections last half a second."""
    config = "[server]\nwebsocket_limit = 0.5\n" + backend(upstream.url)
    gateway = Gateway(tmp_path_factory.mktemp("short"), config)
    yield gateway
    gateway.stop()


def test_a_connection_has_a_limit(short):
    with opened(short) as socket:
        turn = socket.turn()
        assert turn.error[1] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            socket.receive()


def test_a_turn_that_runs_at_the_limit_is_finished_first(short, upstream):
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["takes-its-time"] = Reply(gate)

    def wait_for_the_limit(types: list[str]) -> None:
        if types[-1] == "response.output_text.delta" and types.count(types[-1]) == 1:
            with opened(short) as later:
                assert later.turn().error[1] == "websocket_connection_limit_reached"
            gate.open()

    for _ in range(20):
        with opened(short) as socket:
            socket.send("up/takes-its-time")
            turn = socket.turn(wait_for_the_limit)
            if turn.types == ["error"]:  # it was not sent before the limit
                continue
            assert text_of(turn.response) == "ab"
            assert socket.turn().error[1] == "websocket_connection_limit_reached"
            return
    raise AssertionError("no turn was begun")


def test_a_client_that_leaves_cancels_its_turn(gateway, upstream, http):
    upstream.replies["endless"] = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.gone.clear()
    with opened(gateway) as socket:
        socket.send("up/endless")
        id = socket.receive()["response"]["id"]
        while socket.receive()["type"] != "response.output_text.delta":
            pass
    assert upstream.gone.wait(60)
    left = Responses(http, gateway).wait_for(id, "cancelled")
    assert (left["status"], text_of(left)) == ("cancelled", "Once upon")


def test_a_client_that_leaves_takes_its_waiting_requests_along(gateway, upstream):
    upstream.replies["endless"] = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.replies["later"] = SAYS_HI
    upstream.gone.clear()
    turns = len(gateway.turns())
    before = len(upstream.of("later"))
    with opened(gateway) as socket:
        socket.send("up/endless")
        socket.send("up/later")
        while socket.receive()["type"] != "response.output_text.delta":
            pass
    assert upstream.gone.wait(60)
    gateway.wait_for_turns(turns + 1)
    assert len(upstream.of("later")) == before


def test_a_client_that_leaves_is_noticed_however_many_requests_wait(gateway, upstream):
    upstream.replies["endless"] = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.gone.clear()
    with opened(gateway) as socket:
        socket.send("up/endless")
        while socket.receive()["type"] != "response.output_text.delta":
            pass
        for _ in range(200):
            socket.send("demo", store=False)
    assert upstream.gone.wait(60)


def test_many_connections_do_not_disturb_each_other(gateway):
    said: dict[int, list[str]] = {}

    def talk(number: int) -> None:
        with opened(gateway) as socket:
            previous: dict[str, str] = {}
            said[number] = []
            for place in range(3):
                response = socket.ask("demo", f"{number}-{place}", store=False, **previous).response
                previous = {"previous_response_id": response["id"]}
                said[number].append(text_of(response).splitlines()[0].rpartition(" ")[2])

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {number: [f"{number}-{place}" for place in range(3)] for number in range(8)}


def test_an_idle_connection_does_not_hold_up_the_end_of_the_gateway(start):
    gateway = start()
    with opened(gateway) as socket:
        assert socket.ask("demo").types[-1] == "response.completed"
        assert gateway.stop() == 0
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012, "the client is told that the service restarts"


# The upgrade


KEYS = '[[keys]]\nname = "ann"\nkey = "sk-ann"\n[[keys]]\nname = "ben"\nkey = "sk-ben"\n'


def refusal(gateway: Gateway, path: str = "/v1/responses", **headers: str) -> tuple[int, dict[str, Any]]:
    """The status and the error of an upgrade that is refused."""
    with pytest.raises(InvalidStatus) as refused, opened(gateway, path, **headers):
        pass
    response = refused.value.response
    assert response.body is not None
    return response.status_code, json.loads(response.body)["error"]


def test_an_upgrade_needs_a_key(start, http):
    gateway = start(KEYS)
    for headers in ({}, {"authorization": "Bearer sk-wrong"}):
        status, error = refusal(gateway, **headers)
        assert (status, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
    with opened(gateway, authorization="Bearer sk-ann") as ann, opened(gateway, x_api_key="sk-ben") as ben:
        stored = ann.ask("demo").response["id"]
        remembered = ann.ask("demo", store=False).response["id"]
        for id in (stored, remembered):
            assert ben.ask("demo", previous_response_id=id).error == (404, "previous_response_not_found")
    assert Responses(http, gateway, "sk-ben").get(stored).status_code == 404
    assert Responses(http, gateway, "sk-ann").get(stored).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses/compact", "/v1/models", "/", "/v1/responses/resp_x"]
)
def test_there_is_a_socket_on_one_path_only(gateway, path):
    status, error = refusal(gateway, path)
    assert (status, error["code"]) == (426, "upgrade_required")


def test_sockets_can_be_switched_off(start, http):
    gateway = start("[server]\nwebsocket = false\n")
    status, error = refusal(gateway)
    assert (status, error["code"]) == (426, "upgrade_required")
    assert Responses(http, gateway).create("demo")["status"] == "completed"


def test_a_plain_get_is_no_upgrade(gateway, http: httpx.Client):
    assert http.get(f"{gateway.base_url}/responses").status_code == 405


# Draining


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_turn_is_finished_before_the_gateway_goes(start, upstream, number):
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["finishing-socket"] = Reply(gate)
    gateway = start(backend(upstream.url))
    with opened(gateway) as socket, opened(gateway) as idle:
        socket.send("up/finishing-socket")
        while socket.receive()["type"] != "response.output_text.delta":
            pass
        gateway.process.send_signal(number)
        with pytest.raises(ConnectionClosed) as closed:
            idle.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        gate.open()
        turn = socket.turn()
        assert (turn.types[-1], text_of(turn.response)) == ("response.completed", "ab")
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    assert gateway.process.wait(PATIENCE) == 0


def test_requests_that_wait_are_answered_before_the_gateway_goes(start, upstream):
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["first-of-three"] = Reply(gate)
    upstream.replies["others-of-three"] = SAYS_HI
    gateway = start(backend(upstream.url))
    with opened(gateway) as socket:
        socket.send("up/first-of-three")
        while socket.receive()["type"] != "response.output_text.delta":
            pass
        socket.send("up/others-of-three")
        socket.send("up/others-of-three")
        socket.connection.ping().wait(60)  # what was sent before it has arrived
        gateway.process.send_signal(signal.SIGTERM)
        gateway.wait_until(lambda: any("still running" in line for line in gateway.log))
        gate.open()
        assert [text_of(socket.turn().response) for _ in range(3)] == ["ab", "hi", "hi"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert gateway.process.wait(PATIENCE) == 0


def test_a_turn_that_outlasts_the_drain_fails_and_the_socket_says_why_it_ends(start, upstream):
    upstream.replies["never-socket"] = Reply([stream(created(), text("a")), Hold()])
    gateway = start("[server]\ndrain = 1\n" + backend(upstream.url))
    with opened(gateway) as socket:
        socket.send("up/never-socket")
        while socket.receive()["type"] != "response.output_text.delta":
            pass
        gateway.process.send_signal(signal.SIGTERM)
        while (message := socket.receive())["type"] != "response.failed":
            pass
        assert "shutting down" in message["response"]["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
    assert gateway.process.wait(PATIENCE) == 0
