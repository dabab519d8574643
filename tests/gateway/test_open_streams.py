"""Backends that give their finish reason and never end the stream: the turn ends, as the finish reason says."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.backend_writers import STREAMED, frame, reply
from tests.support.client_readers import shape_faults
from tests.support.gateway import Gateway, chat_body, read_sse
from tests.support.pace import at_any_pace
from tests.support.routes import Routes, backends, question
from tests.support.scripts import KINDS, NAMES, Calls, Name, Says, Script, Tokens, truth
from tests.support.upstream import Cut, Hold, Pause, Reply, Upstream

STREAM = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
DIALECT = pytest.mark.parametrize("dialect", NAMES)
KIND = pytest.mark.parametrize("kind", ["chat", "messages"])

TALK = Script((Says("It is 42."),))
CALL = Script((Says("I look."), Calls("call_a", "look", '{"path":"a"}'), Calls("call_b", "find", "{}")))
LENGTH = Script((Says("It is"),), end="length")

HEARTBEATS: dict[Name, list[Any]] = {
    "chat": [b": ping\n\n", frame("", {"choices": []}), frame("", {"choices": [{"index": 0, "delta": {}}]})],
    "messages": [b": ping\n\n", frame("ping", {"type": "ping"})],
}
LIMITS = "[timeouts]\nidle = 600\nafter_finish = 0.3\n"


@pytest.fixture(scope="module")
def hasty(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    gateway = Gateway(tmp_path_factory.mktemp("hasty"), LIMITS + backends(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()


def without_end(script: Script, kind: Name) -> list[Any]:
    """The turn up to its usage, without the frame that ends the stream."""
    return [*STREAMED[kind](script)][:-1]


@STREAM
@KIND
@DIALECT
@pytest.mark.parametrize("script", [TALK, CALL, LENGTH], ids=["text", "calls", "length"])
def test_a_stream_that_stays_open_after_its_finish_reason_is_a_whole_turn(
    hasty: Routes, dialect: Name, kind: Name, stream: bool, script: Script
):
    hasty.upstream.gone.clear()
    hasty.upstream.replies["open"] = Reply([*without_end(script, kind), Hold()])
    held = hasty.ask(dialect, question(dialect, f"{kind}/open", script.tools, stream=stream))
    assert held.seen == truth(script, dialect, kind, stream=True)
    assert shape_faults(held, dialect, stream=stream) == []
    assert hasty.upstream.gone.wait(60), "the connection is still open"
    assert hasty.gateway.wait_for_turns(1)[-1]["notes"] == {"end_missing": 1}


@STREAM
@KIND
def test_heartbeats_do_not_hold_the_end_back(hasty: Routes, kind: Name, stream: bool):
    beats = [step for beat in HEARTBEATS[kind] for step in (beat, Pause(0.1))]
    hasty.upstream.replies["beats"] = Reply([*without_end(CALL, kind), *beats * 10_000])
    held = hasty.ask("chat", question("chat", f"{kind}/beats", CALL.tools, stream=stream))
    assert held.seen == truth(CALL, "chat", kind, stream=True)


@STREAM
@DIALECT
def test_usage_that_comes_a_moment_after_the_finish_reason_is_in_the_turn(
    upstream: Upstream, http: httpx.Client, start, dialect: Name, stream: bool
):
    def ask(factor: float) -> None:
        *told, usage = without_end(CALL, "chat")
        upstream.replies["usage"] = Reply([*told, Pause(0.1 * factor), usage, Hold()])
        routes = Routes(start(f"[timeouts]\nafter_finish = {0.3 * factor}\n{backends(upstream.url)}"), upstream, http)
        held = routes.ask(dialect, question(dialect, "chat/usage", CALL.tools, stream=stream))
        assert held.seen == truth(CALL, dialect, "chat", stream=True)
        assert held.seen.tokens == Tokens(10, 6)

    at_any_pace(ask)


@STREAM
@KIND
@DIALECT
def test_a_connection_that_breaks_after_the_finish_reason_is_a_whole_turn(
    hasty: Routes, dialect: Name, kind: Name, stream: bool
):
    hasty.upstream.replies["breaks"] = Reply([*without_end(CALL, kind), Cut()])
    held = hasty.ask(dialect, question(dialect, f"{kind}/breaks", CALL.tools, stream=stream))
    assert held.seen == truth(CALL, dialect, kind, stream=True)


@KIND
@pytest.mark.parametrize("break_off", [Hold(), Cut()], ids=["open", "broken"])
def test_before_the_finish_reason_a_silent_stream_is_no_turn(hasty: Routes, start, http, kind: Name, break_off: Any):
    cut = Script(CALL.items, end="cut")
    hasty.upstream.replies["silent"] = Reply([*STREAMED[kind](cut), break_off])
    limits = "[timeouts]\nidle = 0.5\nafter_finish = 0.1\n"
    routes = Routes(start(limits + backends(hasty.upstream.url)), hasty.upstream, http)
    assert routes.ask("chat", question("chat", f"{kind}/silent", CALL.tools, stream=True)).seen.finish == "failed"


def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
    return frame("", {"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})


def test_every_choice_must_have_its_finish_reason(hasty: Routes, http):
    steps = [
        chunk(0, {"content": "one"}, "stop"),
        Pause(0.5),
        chunk(1, {"content": "two"}),
        Pause(0.5),
        chunk(1, {}, "length"),
        Hold(),
    ]
    hasty.upstream.replies["both"] = Reply(steps)
    with http.stream(
        "POST", f"{hasty.gateway.base_url}/chat/completions", json=chat_body("chat/both", stream=True, n=2)
    ) as response:
        frames = [value for kind, value in read_sse(response) if kind == "data" and value != "[DONE]"]
    told = [choice for each in frames for choice in each["choices"]]
    finishes = sorted((each["index"], each["finish_reason"]) for each in told if each.get("finish_reason"))
    assert finishes == [(0, "stop"), (1, "length")]
    assert "".join(each["delta"].get("content") or "" for each in told) == "onetwo"


def test_a_server_that_ends_every_chunk_may_pause(hasty: Routes):
    steps = [
        chunk(0, {"content": "It "}, "stop"),
        chunk(0, {"content": "is "}, "stop"),
        Pause(0.6),
        chunk(0, {"content": "42."}, "stop"),
        frame("", "[DONE]"),
    ]
    hasty.upstream.replies["always"] = Reply(steps)
    assert hasty.ask("chat", question("chat", "chat/always", (), stream=True)).seen.text == "It is 42."


@KIND
def test_a_burst_that_is_left_open_ends_with_its_calls(hasty: Routes, start, http, kind: Name):
    hasty.upstream.replies["burst"] = Reply([*without_end(CALL, kind), Hold()])
    rules = "[tools]\nstop_after = true\nstop_after_grace_ms = 15000\n"
    routes = Routes(start(LIMITS + rules + backends(hasty.upstream.url)), hasty.upstream, http)
    held = routes.ask("chat", question("chat", f"{kind}/burst", CALL.tools, stream=True))
    assert [call.id for call in held.seen.calls] == ["call_a", "call_b"]
    assert held.seen.finish == "calls"


@pytest.mark.parametrize("status", [201, 202, 203, 206])
@STREAM
@pytest.mark.parametrize("kind", KINDS)
def test_any_status_of_success_brings_a_turn(routes: Routes, kind: Name, stream: bool, status: int):
    answer = reply(CALL, kind, stream=stream)
    routes.upstream.replies["created"] = msgspec.structs.replace(answer, status=status)
    held = routes.ask("chat", question("chat", f"{kind}/created", CALL.tools, stream=stream))
    assert held.seen == truth(CALL, "chat", kind, stream=stream)


FAILED = frame("response.failed", {"type": "response.failed", "response": {"id": "r", "status": "failed"}})
REASON = frame("error", {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."})


@STREAM
@DIALECT
@pytest.mark.parametrize("break_off", [Hold(), Cut()], ids=["open", "broken"])
def test_a_failure_without_a_reason_ends_as_a_finish_reason_does(
    hasty: Routes, dialect: Name, stream: bool, break_off: Any
):
    hasty.upstream.replies["unsaid"] = Reply([FAILED, break_off])
    refused = hasty.refused(dialect, question(dialect, "responses/unsaid", (), stream=stream))
    assert refused.status == 502
    assert "failed without saying why" in str(refused)


@STREAM
@DIALECT
def test_the_reason_of_a_failure_may_come_a_moment_later(
    upstream: Upstream, http: httpx.Client, start, dialect: Name, stream: bool
):
    def ask(factor: float) -> None:
        upstream.replies["later"] = Reply([FAILED, Pause(0.1 * factor), REASON, Hold()])
        routes = Routes(start(f"[timeouts]\nafter_finish = {0.3 * factor}\n{backends(upstream.url)}"), upstream, http)
        refused = routes.refused(dialect, question(dialect, "responses/later", (), stream=stream))
        assert refused.status == 429
        assert "Slow down." in str(refused)

    at_any_pace(ask)
