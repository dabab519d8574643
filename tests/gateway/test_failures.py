"""Failures: a real status before the commit, an error frame after it, and never a clean-looking end."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.test_socket import opened
from tests.support.client_readers import PATHS
from tests.support.fold import fold_chat
from tests.support.frames import call, completed, created, rs, sse, stream, text
from tests.support.gateway import (
    Gate,
    Gateway,
    Responses,
    backend,
    chat_body,
    post_through,
    read_events,
    read_sse,
    tool,
)
from tests.support.pace import at_any_pace
from tests.support.routes import Routes, question
from tests.support.scripts import Name
from tests.support.upstream import Cut, Hold, Pause, Reply, Upstream

FIND = [tool("find", q={"type": "string"})]
STREAMED = pytest.mark.parametrize("streamed", [False, True])


def post(http: httpx.Client, gateway: Gateway, model: str, **fields) -> httpx.Response:
    return http.post(f"{gateway.base_url}/chat/completions", json=chat_body(model, **fields))


def folded(http: httpx.Client, gateway: Gateway, model: str, **fields):
    response = post(http, gateway, model, stream=True, **fields)
    assert response.status_code == 200, response.text
    return fold_chat(list(read_sse(response)))


@STREAMED
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_an_upstream_status_reaches_the_client_with_its_message(http, gateway, upstream: Upstream, status, streamed):
    body = b'{"error":{"message":"Upstream says no.","type":"t","code":"c","param":"p"}}'
    headers = {"retry-after": "9", "x-ratelimit-remaining-requests": "0"}
    upstream.replies["refuses"] = Reply([body], status, "application/json", headers)
    response = post(http, gateway, "up/refuses", stream=streamed)
    assert response.status_code == status
    error = response.json()["error"]
    refused = "Backend `up` (URL) refused a request without a key: Upstream says no. Set api_key_env of the backend, or send a key of your own."
    message = refused.replace("URL", upstream.url) if status == 401 else "Upstream says no."
    assert error == {"message": message, "type": "t", "code": "c", "param": "p"}
    assert response.headers["x-toolwire-backend"] == "up"
    assert response.headers["retry-after"] == "9"
    assert response.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        ("0", "0"),
        ("1.5", "1.5"),
        ("Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 21 Oct 2099 07:28:00 GMT"),
        ("Wednesday, 21-Oct-99 07:28:00 GMT", "Thu, 21 Oct 1999 07:28:00 GMT"),
        ("-5", None),
        ("inf", None),
        ("1e400", None),
        ("9" * 400, None),
        ("soon", None),
        ("1 " * 3000, None),
    ],
)
@pytest.mark.parametrize("dialect", PATHS)
def test_a_retry_after_is_seconds_or_a_date_or_left_out(http, gateway, upstream, dialect, said, passed_on):
    upstream.replies["odd"] = Reply([b"{}"], 429, "application/json", {"retry-after": said})
    response = http.post(gateway.url + PATHS[dialect], json=question(dialect, "up/odd", (), stream=False))
    assert (response.status_code, response.headers.get("retry-after")) == (429, passed_on)


def test_a_pause_in_words_that_is_no_number_of_seconds_is_left_out(http, gateway, upstream):
    message = f"Please try again in {'9' * 400}s."
    failure = {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": message}}
    upstream.replies["for ever"] = Reply([stream(created(), rs("failed", response=failure))])
    response = post(http, gateway, "up/for ever")
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")


@STREAMED
@pytest.mark.parametrize("status", [302, 600, 999])
def test_a_status_that_is_no_http_error_reaches_the_client_as_a_502(http, gateway, upstream, status, streamed):
    upstream.replies["odd"] = Reply([b'{"error":{"message":"Odd."}}'], status, "application/json")
    response = post(http, gateway, "up/odd", stream=streamed)
    assert (response.status_code, response.json()["error"]["message"]) == (502, "Odd.")


@STREAMED
def test_a_failure_before_the_first_content_has_a_real_status(http, gateway, upstream, streamed):
    failed = rs(
        "failed", response={"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow down"}}
    )
    upstream.replies["fails-early"] = Reply([stream(created(), failed)])
    response = post(http, gateway, "up/fails-early", stream=streamed)
    assert (response.status_code, response.json()["error"]["message"]) == (429, "slow down")


@STREAMED
def test_an_unreachable_backend_is_a_502(http, start, streamed):
    gateway = start(backend("http://127.0.0.1:9/v1"))
    response = post(http, gateway, "up/x", stream=streamed)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "backend_unreachable")
    hint = "Is the server running, and is base_url right?"
    said = f"Backend `up` (http://127.0.0.1:9/v1) cannot be reached: connection refused. {hint}"
    assert response.json()["error"]["message"] == said
    [line] = gateway.wait_for_turns(1)
    assert (line["level"], line["backend"], line["url"], line["hint"]) == ("error", "up", "http://127.0.0.1:9/v1", hint)
    assert line["failure"] == "Backend `up` (http://127.0.0.1:9/v1) cannot be reached: connection refused."


@pytest.mark.parametrize(
    "ending",
    [
        [Cut()],
        [],
        [sse({"type": "error", "code": "server_error", "message": "boom"})],
        [rs("failed", response={"status": "failed", "error": {"code": "server_error", "message": "boom"}})],
    ],
)
def test_a_failure_in_mid_stream_is_an_error_frame(http, gateway, upstream, ending):
    begun = stream(created(), text("Hi"), rs("output_item.added", output_index=1, item={
        "type": "function_call", "id": "fc", "call_id": "c", "name": "find", "arguments": ""}))  # fmt: skip
    upstream.replies["fails-late"] = Reply([begun, *ending])
    result = folded(http, gateway, "up/fails-late", tools=FIND)
    assert result["error"]["message"]
    assert result["finish"] is None
    assert result["message"]["content"] == "Hi"


def test_a_turn_that_fails_after_its_calls_can_be_finished_on_demand(http, start, upstream):
    upstream.replies["fails-after"] = Reply([stream(created(), call("c", "find", "{}")), Cut()])
    gateway = start(backend(upstream.url), PROXY_FINISH_AFTER_CALLS="true")
    result = folded(http, gateway, "up/fails-after", tools=FIND)
    assert (result["error"], result["finish"]) == (None, "tool_calls")


@STREAMED
def test_a_web_page_instead_of_a_turn_is_a_502(http, gateway, upstream, streamed):
    upstream.replies["page"] = Reply([b"<html>Sign in</html>"], content_type="text/html")
    assert post(http, gateway, "up/page", stream=streamed).status_code == 502


@STREAMED
def test_garbage_in_a_stream_is_a_502(http, gateway, upstream, streamed):
    upstream.replies["garbage"] = Reply([b"<html>502 Bad Gateway</html>"])
    assert post(http, gateway, "up/garbage", stream=streamed).status_code == 502


def test_a_stream_for_a_plain_request_is_folded_and_a_plain_reply_for_a_stream_is_unfolded(http, gateway, upstream):
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "find", "arguments": '{"q":"x"}'}
    upstream.replies["streams"] = Reply([stream(created(), call("c", "find", '{"q":"x"}'), completed())])
    upstream.replies["plain"] = Reply(
        [b'{"id":"r","status":"completed","output":[', __import__("json").dumps(item).encode(), b"]}"],
        content_type="application/json",
    )
    plain = post(http, gateway, "up/streams", tools=FIND).json()["choices"][0]["message"]
    assert plain["tool_calls"] == folded(http, gateway, "up/plain", tools=FIND)["message"]["tool_calls"]


def test_an_early_failure_is_asked_again_and_told(http, start, upstream):
    busy = Reply([b"{}"], 503, "application/json")
    early = Reply(
        [stream(created(), rs("failed", response={"error": {"code": "server_is_overloaded", "message": "x"}}))]
    )
    upstream.replies["recovers"] = [busy, early, Reply([stream(created(), text("ok"), completed())])]
    gateway = start(backend(upstream.url).replace("retries = 0", "retries = 2"))
    response = post(http, gateway, "up/recovers", stream=True)
    frames = list(read_sse(response))
    assert fold_chat(frames)["message"]["content"] == "ok"
    assert next(value for kind, value in frames if kind == "comment").count('"retried"') == 2


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_nothing_is_asked_again_after_content_came(http, start, upstream, pause):
    failed = rs("failed", response={"error": {"code": "server_is_overloaded", "message": "x"}})
    upstream.replies["once"] = Reply([stream(created(), text("Bon")), Pause(pause), failed])
    gateway = start(backend(upstream.url).replace("retries = 0", "retries = 2"))
    before = len(upstream.of("once"))
    assert folded(http, gateway, "up/once")["message"]["content"] == "Bon"
    assert len(upstream.of("once")) == before + 1


def test_a_backend_that_asks_for_a_long_pause_is_not_asked_again(http, start, upstream):
    upstream.replies["a long pause"] = Reply([b"{}"], 429, "application/json", {"retry-after": "120"})
    gateway = start(backend(upstream.url).replace("retries = 0", "retries = 2"))
    assert post(http, gateway, "up/a long pause").headers["retry-after"] == "120"
    assert len(upstream.of("a long pause")) == 1


TIMEOUTS = "[timeouts]\nconnect = 5\nfirst_byte = {first_byte}\nidle = {idle}\nprogress = {progress}\ntotal = {total}\n"


def limits(**given: float) -> str:
    return TIMEOUTS.format(**{"first_byte": 600, "idle": 600, "progress": 600, "total": 600, **given})


@STREAMED
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("first_byte", [Hold()]),
        ("idle", [created(), Hold()]),
        ("progress", [created(), *([b": ping\n\n", Pause(0.05)] * 10_000)]),
        ("total", [created(), *([text("x"), Pause(0.05)] * 10_000)]),
    ],
)
def test_every_timeout_ends_a_turn_and_says_which(http, start, upstream, name, steps, streamed):
    upstream.replies[f"slow-{name}"] = Reply(steps)

    def end(factor: float) -> None:
        gateway = start(backend(upstream.url) + limits(**{name: 0.2 * factor}))
        response = post(http, gateway, f"up/slow-{name}", stream=streamed)
        if streamed and name == "total":
            assert response.status_code == 200
            assert f"timeouts.{name}" in fold_chat(list(read_sse(response)))["error"]["message"]
        else:
            assert response.status_code == 504
            assert f"timeouts.{name}" in response.json()["error"]["message"]

    at_any_pace(end)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("idle", [Hold()]), ("progress", [b": ping\n\n", Pause(0.05)] * 10_000)],
    ids=["idle", "progress"],
)
def test_timeouts_hold_after_content_too_whatever_the_keepalive(http, start, upstream, name, steps):
    upstream.replies[f"stalls-{name}"] = Reply([stream(created(), text("x")), *steps])

    def stall(factor: float) -> None:
        pace = f"[server]\nkeepalive = {0.1 * factor}\n"
        gateway = start(pace + backend(upstream.url) + limits(**{name: 0.4 * factor}))
        response = post(http, gateway, f"up/stalls-{name}", stream=True)
        assert response.status_code == 200
        assert f"timeouts.{name}" in fold_chat(list(read_sse(response)))["error"]["message"]

    at_any_pace(stall)


def test_the_commit_comes_after_a_while_and_a_later_failure_is_a_frame(http, start, upstream):
    upstream.replies["thinks"] = Reply(gate := Gate(created(), after=(Cut(),)))
    gateway = start("[server]\ncommit_after = 0.2\nkeepalive = 0.1\n" + backend(upstream.url))
    url = f"{gateway.base_url}/chat/completions"
    response = post_through(http, url, chat_body("up/thinks", stream=True), gate, "keepalive")
    frames = list(read_sse(response))
    assert response.status_code == 200
    assert ("comment", "keepalive") in frames
    assert any(kind == "data" and "error" in value for kind, value in frames)


def test_an_event_beyond_the_limit_is_an_error(http, gateway, upstream):
    upstream.replies["flood"] = Reply([created(), *([b"data: " + b"x" * 1_000_000] + [b"x" * 1_000_000] * 33)])
    response = post(http, gateway, "up/flood")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "event_too_large")


# Faults of our own

FAULTY = """
import toolwire.dialects.chat.encode, toolwire.dialects.gemini.encode, toolwire.dialects.messages.encode
import toolwire.gateway.responses.socket
from toolwire.core.events import TextDelta
from toolwire.dialects import chat, gemini, messages, responses


def break_encoder(encoder):
    feed = encoder.feed

    def broken(self, event):
        self.is_broken = getattr(self, "is_broken", False) or (type(event) is TextDelta and "FAULT" in event.text)
        if self.is_broken:
            raise RuntimeError("a fault of the encoder, whatever it is fed")
        return feed(self, event)

    encoder.feed = broken


def break_errors(module, name):
    encode = getattr(module, name)

    def broken(failure):
        if "FAULT" in failure.message:
            raise RuntimeError("a fault in telling a fault")
        return encode(failure)

    setattr(module, name, broken)


for dialect in (chat, gemini, messages, responses):
    break_encoder(dialect.StreamEncoder)
    break_errors(dialect, "encode_error")
for module in (toolwire.dialects.chat.encode, toolwire.dialects.gemini.encode, toolwire.dialects.messages.encode):
    break_errors(module, "encode_error")
break_errors(toolwire.gateway.responses.socket, "encode_error_object")
"""
"""Python reads this when it starts: a gateway whose encoders break at a word, and cannot tell of it."""


@pytest.fixture(scope="module")
def faulty(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "sitecustomize.py").write_text(FAULTY)
    server = Gateway(folder, backend(upstream.url), PYTHONPATH=str(folder))
    upstream.replies["breaks"] = Reply(
        [stream(created(), text("Hi")), Pause(0.05), stream(text("FAULT"), text("more"), completed())]
    )
    upstream.replies["refuses-so"] = Reply([b'{"error":{"message":"FAULT"}}'], 400, "application/json")
    upstream.replies["hi"] = Reply([stream(created(), text("Hi"), completed())])
    yield server
    server.stop()


def told(answer: httpx.Response) -> str:
    """The message of an error object of any dialect."""
    return answer.json()["error"]["message"]


@pytest.mark.parametrize("dialect", PATHS)
def test_a_stream_ends_as_its_dialect_wants_though_nothing_can_be_encoded(http, faulty, upstream, dialect):
    gate = Gate(stream(created(), text("Hi")), after=(stream(text("FAULT"), text("more"), completed()),))
    upstream.replies["breaks-late"] = Reply(gate)
    body = question(dialect, "up/breaks-late", (), stream=True)
    answer = post_through(http, faulty.url + PATHS[dialect], body, gate, "Hi")
    assert answer.status_code == 200
    frames = [frame for frame in answer.text.split("\n\n") if frame]
    assert "Hi" in answer.text
    assert "internal error" in answer.text
    if dialect == "chat":
        assert frames[-2].startswith('data: {"error":')
        assert frames[-1] == "data: [DONE]"
        assert '"finish_reason":"' not in answer.text
    elif dialect == "messages":
        assert frames[-1].startswith("event: error\n")
        assert "message_stop" not in answer.text
    elif dialect == "gemini":
        assert answer.text.split("\r\n\r\n")[-2].startswith('data: {"error":')
        assert "finishReason" not in answer.text
    else:
        events = read_events(answer)
        assert events.types[-2:] == ["error", "response.failed"]
        assert events.done
        assert all(before < after for before, after in pairwise(events.numbers))
        assert (events.response["status"], events.response["error"]["code"]) == ("failed", "server_error")


@STREAMED
@pytest.mark.parametrize("dialect", PATHS)
def test_a_failure_that_cannot_be_encoded_is_a_500_in_the_clients_dialect(http, faulty, dialect, streamed):
    answer = http.post(faulty.url + PATHS[dialect], json=question(dialect, "up/refuses-so", (), stream=streamed))
    assert (answer.status_code, told(answer)) == (500, "Toolwire met an internal error.")
    assert (answer.json().get("type") == "error") == (dialect == "messages")


def test_a_plain_answer_that_cannot_be_encoded_is_a_500(http, faulty):
    answer = http.post(faulty.url + PATHS["responses"], json=question("responses", "up/breaks", (), stream=False))
    assert (answer.status_code, told(answer)) == (500, "Toolwire met an internal error.")


def test_a_socket_lives_on_though_nothing_can_be_encoded(faulty):
    with opened(faulty) as socket:
        turn = socket.ask("up/breaks")
        assert turn.types[-2:] == ["error", "response.failed"]
        assert socket.ask("up/refuses-so").error == (500, "internal_error")
        assert socket.ask("up/hi").types[-1] == "response.completed"


def test_a_background_response_has_failed_when_nothing_can_be_encoded(http, faulty):
    api = Responses(http, faulty)
    id = api.create("up/breaks", background=True)["id"]
    kept = api.wait_for(id, "failed")
    assert (kept["status"], kept["error"]["code"]) == ("failed", "server_error")
    assert api.replay(id).types[-2:] == ["error", "response.failed"]


# The upstream's name for a request


def logged(gateway: Gateway, answer: httpx.Response) -> dict[str, Any]:
    """The log line of the turn with this answer."""
    id = answer.headers["x-request-id"]
    gateway.wait_until(lambda: any(line["request_id"] == id for line in gateway.turns()))
    [line] = [line for line in gateway.turns() if line["request_id"] == id]
    return line


@STREAMED
@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("name", ["x-request-id", "request-id"])
def test_the_upstreams_request_id_is_in_the_headers_and_the_log(http, gateway, upstream, dialect, streamed, name):
    headers = {name: "req_upstream_1"}
    upstream.replies["named"] = Reply([stream(created(), text("Hi"), completed())], headers=headers)
    upstream.replies["named-no"] = Reply([b'{"error":{"message":"No."}}'], 400, "application/json", headers)
    for model, status in (("up/named", 200), ("up/named-no", 400)):
        answer = http.post(gateway.url + PATHS[dialect], json=question(dialect, model, (), stream=streamed))
        assert answer.status_code == status
        assert answer.headers["x-upstream-request-id"] == "req_upstream_1"
        assert answer.headers["x-request-id"] != "req_upstream_1"
        assert logged(gateway, answer)["upstream_request_id"] == "req_upstream_1"


def test_a_failure_in_mid_stream_has_the_upstreams_request_id_in_the_log(http, gateway, upstream):
    upstream.replies["named-late"] = Reply([stream(created(), text("Hi")), Cut()], headers={"x-request-id": "late_1"})
    answer = post(http, gateway, "up/named-late", stream=True)
    assert fold_chat(list(read_sse(answer)))["error"]
    assert logged(gateway, answer)["upstream_request_id"] == "late_1"


def test_an_upstreams_request_id_is_cut_and_cleaned(http, gateway, upstream):
    headers = {"x-request-id": "a b\tc\xe9" + "x" * 500}
    upstream.replies["named-oddly"] = Reply([stream(created(), text("Hi"), completed())], headers=headers)
    told = post(http, gateway, "up/named-oddly").headers["x-upstream-request-id"]
    assert told == "abc" + "x" * 125


def test_where_no_request_id_came_none_is_told(http, gateway):
    answer = post(http, gateway, "demo")
    assert "x-upstream-request-id" not in answer.headers
    assert "upstream_request_id" not in logged(gateway, answer)


def test_after_a_retry_the_request_id_is_of_the_reply_that_was_used(http, start, upstream):
    busy = Reply([b'{"error":{"message":"Busy."}}'], 503, "application/json", {"x-request-id": "first"})
    good = Reply([stream(created(), text("Hi"), completed())], headers={"x-request-id": "second"})
    upstream.replies["busy-once"] = [busy, good]
    gateway = start(backend(upstream.url).replace("retries = 0", "retries = 1"))
    assert post(http, gateway, "up/busy-once").headers["x-upstream-request-id"] == "second"
    [turn] = gateway.wait_for_turns(1)
    assert turn["upstream_request_id"] == "second"


def test_the_upstreams_request_id_is_in_the_error_frame_of_a_socket(gateway, upstream):
    reply = Reply([b'{"error":{"message":"No."}}'], 400, "application/json", {"request-id": "req_7"})
    upstream.replies["named-no"] = reply
    with opened(gateway) as socket:
        [frame] = socket.ask("up/named-no").messages
    assert frame["headers"] == {"x-upstream-request-id": "req_7"}


@STREAMED
@pytest.mark.parametrize("dialect", [*PATHS])
def test_a_completion_that_a_filter_refused_by_status_has_its_reason(routes: Routes, dialect: Name, streamed: bool):
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "content_filter"}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    routes.upstream.replies["filtered"] = Reply([msgspec.json.encode(body)], 400, "application/json")
    refused = routes.refused(dialect, question(dialect, "chat/filtered", (), stream=streamed))
    assert refused.status == 400
    assert "'content_filter'" in refused.message
    assert refused.code in ("", "content_filter")
