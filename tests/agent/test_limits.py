"""Bounds of a task, prices, and what headers and the usage endpoint tell of an account's rate limits."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.stage import (
    Far,
    Held,
    agent_on,
    echo,
    end_of,
    ended,
    only,
    play,
    refuses,
    runner_on,
    settle,
    streams,
    turn,
    worked,
)
from tests.support.app_server import Workers, say, write
from tests.support.frames import completed, created
from tests.support.frames import text as said
from tests.support.scripts import Calls, Name, Says
from tests.support.scripts import Tokens as Counted
from tests.support.upstream import Hold, Reply
from toolwire.agent import AgentConfig, Limits, Prices, TaskEnded, Tokens, as_line
from toolwire.agent.events import AgentEvent, CallEnded, LimitsUpdated, RateLimit, Retrying, UsageUpdated, Window
from toolwire.agent.limits import limits_from_headers, limits_from_usage
from toolwire.config.settings import Backend, Settings, load

# Limits

SPENT = Tokens(input=900, output=100)
REACHED: dict[str, tuple[Limits, str]] = {
    "none": (Limits(max_turns=0), ""),
    "rounds": (Limits(max_turns=3), "max_turns"),
    "more rounds": (Limits(max_turns=4), ""),
    "tokens": (Limits(tokens=1000), "tokens"),
    "more tokens": (Limits(tokens=1001), ""),
    "seconds": (Limits(seconds=10.0), "seconds"),
    "more seconds": (Limits(seconds=10.5), ""),
    "cost": (Limits(cost=0.0011, prices=Prices(input=1, output=2)), "cost"),
    "more cost": (Limits(cost=0.0012, prices=Prices(input=1, output=2)), ""),
    "cost without prices": (Limits(cost=0.0001), ""),
    "the first of several": (Limits(max_turns=1, tokens=1, seconds=1), "max_turns"),
}


@pytest.mark.parametrize(("limits", "reason"), REACHED.values(), ids=REACHED)
def test_a_limit_is_reached(limits: Limits, reason: str) -> None:
    assert limits.reached(3, SPENT, 10.0) == reason


PRICES: dict[str, tuple[Prices, Tokens, float]] = {
    "input and output": (Prices(3, 15), Tokens(1_000_000, 100_000), 4.5),
    "cached input as other input": (Prices(3, 15), Tokens(1_000_000, 0, cached=500_000), 3.0),
    "cached input at its own price": (Prices(3, 15, 0.3), Tokens(1_000_000, 0, cached=500_000), 1.65),
    "cached input for nothing": (Prices(3, 15, 0.0), Tokens(1_000_000, 0, cached=1_000_000), 0.0),
    "more cached than there is": (Prices(3, 15, 0.0), Tokens(10, 0, cached=20), 0.0),
    "nothing": (Prices(3, 15), Tokens(), 0.0),
}


@pytest.mark.parametrize(("prices", "tokens", "cost"), PRICES.values(), ids=PRICES)
def test_what_tokens_cost(prices: Prices, tokens: Tokens, cost: float) -> None:
    assert prices.of(tokens) == pytest.approx(cost)


def test_tokens_add_up_field_by_field() -> None:
    assert Tokens(1, 2, 3, 4, 5).plus(Tokens(10, 20, 30, 40, 50)) == Tokens(11, 22, 33, 44, 55)
    assert Tokens(1, 2, 3, 4, 5).total == 3


def looping(kind: Name = "responses") -> list[Reply]:
    """A model that never stops calling, 16 tokens a turn."""
    return [turn(Calls(f"c{number}", "look"), kind=kind) for number in range(8)]


IN_A_TASK: dict[str, tuple[Limits, str, int]] = {
    "rounds": (Limits(max_turns=2), "max_turns", 2),
    "one round": (Limits(max_turns=1), "max_turns", 1),
    "tokens": (Limits(tokens=33), "tokens", 3),
    "cost": (Limits(cost=0.00002, prices=Prices(input=1, output=1)), "cost", 2),
    "seconds": (Limits(seconds=1e-9), "seconds", 0),
}


@pytest.mark.parametrize(("limits", "reason", "rounds"), IN_A_TASK.values(), ids=IN_A_TASK)
def test_a_task_ends_at_its_limit_and_says_which(limits: Limits, reason: str, rounds: int) -> None:
    async def main() -> None:
        async with Far(*looping()) as far:
            agent = agent_on(far, echo(), config=AgentConfig(limits=limits))
            events = await worked(agent)
            assert ended(events) == TaskEnded(reason, "", Tokens(10 * rounds, 6 * rounds))
            assert len(far.asked) == rounds
            assert len(only(events, CallEnded)) == rounds

    play(main())


def test_a_limit_that_is_reached_with_the_last_answer_is_no_limit() -> None:
    async def main() -> TaskEnded:
        async with Far(turn(Says("done"))) as far:
            return ended(await worked(agent_on(far, config=AgentConfig(limits=Limits(max_turns=1, tokens=1)))))

    assert play(main()).reason == "done"


def test_every_task_has_its_own_limits_and_the_session_counts_on() -> None:
    async def main() -> None:
        async with Far(turn(Says("one")), turn(Says("two"))) as far:
            agent = agent_on(far, config=AgentConfig(limits=Limits(tokens=16)))
            async with agent:
                for text in ("one", "two"):
                    assert await end_of(agent, "go") == TaskEnded("done", text, Tokens(10, 6))
                assert agent.session.usage == Tokens(20, 12)

    play(main())


@pytest.mark.parametrize("hanging", ["tool", "stream"])
def test_the_limit_of_seconds_also_ends_a_turn_that_hangs(hanging: str) -> None:
    async def main() -> None:
        held = Held()
        reply = turn(Calls("c1", "work")) if hanging == "tool" else streams(created(), said("hm"), Hold())
        async with Far(reply) as far:
            agent = agent_on(far, held.tool, config=AgentConfig(limits=Limits(seconds=0.05)))
            async with agent, asyncio.timeout(0.7):
                assert (await end_of(agent, "go")).reason == "seconds"

    play(main())


# Usage


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_usage_is_told_for_the_last_turn_and_in_all(kind: Name) -> None:
    async def main() -> list[UsageUpdated]:
        counted = Counted(input=100, output=50, cached=40, reasoning=7)
        async with Far(
            turn(Calls("c1", "look"), kind=kind, tokens=counted), turn(Says("done"), kind=kind), kind=kind
        ) as far:
            return only(await worked(agent_on(far, echo())), UsageUpdated)

    first = Tokens(100, 50, cached=40, reasoning=7)
    last = Tokens(10, 6)
    assert play(main()) == [UsageUpdated(first, first), UsageUpdated(last, first.plus(last))]


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_missing_usage_is_no_error(kind: Name) -> None:
    async def main() -> list[AgentEvent]:
        async with Far(turn(Says("done"), kind=kind, tokens=None), kind=kind) as far:
            return await worked(agent_on(far))

    events = play(main())
    assert ended(events) == TaskEnded("done", "done", Tokens())
    assert only(events, UsageUpdated) == []


ODD_USAGE: dict[str, tuple[Any, Tokens | None]] = {
    "null": (None, None),
    "an empty object": ({}, Tokens()),
    "totals only": ({"input_tokens": 5, "output_tokens": 2}, Tokens(5, 2)),
    "null details": (
        {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": None, "output_tokens_details": None},
        Tokens(5, 2),
    ),
    "null counts": ({"input_tokens": None, "output_tokens": 2}, Tokens(0, 2)),
    "fractions": ({"input_tokens": 5.0, "output_tokens": 2.0}, Tokens(5, 2)),
}


@pytest.mark.parametrize(("usage", "expected"), ODD_USAGE.values(), ids=ODD_USAGE)
def test_usage_of_any_shape_ends_a_task_well(usage: Any, expected: Tokens | None) -> None:
    async def main() -> list[AgentEvent]:
        async with Far(streams(created(), said("hi"), completed(usage=usage))) as far:
            return await worked(agent_on(far))

    events = play(main())
    assert ended(events).reason == "done"
    assert [event.last for event in only(events, UsageUpdated)] == ([expected] if expected is not None else [])


# Rate limits in headers


HEADERS: dict[str, tuple[dict[str, str], tuple[RateLimit, ...]]] = {
    "none": ({"content-type": "text/event-stream", "x-request-id": "1"}, ()),
    "one window": ({"x-codex-primary-used-percent": "12.5"}, (RateLimit("codex", Window(12.5)),)),
    "all of a window": (
        {
            "x-codex-primary-used-percent": "12",
            "x-codex-primary-window-minutes": "300",
            "x-codex-primary-reset-at": "1700000000",
        },
        (RateLimit("codex", Window(12.0, 300.0, 1700000000.0)),),
    ),
    "both windows": (
        {"x-codex-primary-used-percent": "12", "x-codex-secondary-used-percent": "80"},
        (RateLimit("codex", Window(12.0), Window(80.0)),),
    ),
    "the second window alone": ({"x-codex-secondary-used-percent": "80"}, (RateLimit("codex", None, Window(80.0)),)),
    "another family": (
        {"x-codex-primary-used-percent": "1", "x-codex-bengalfox-primary-used-percent": "2"},
        (RateLimit("codex", Window(1.0)), RateLimit("codex-bengalfox", Window(2.0))),
    ),
    "any case": ({"X-Codex-Primary-Used-Percent": "3"}, (RateLimit("codex", Window(3.0)),)),
    "no number": ({"x-codex-primary-used-percent": "many"}, ()),
    "a part that is no number": (
        {"x-codex-primary-used-percent": "3", "x-codex-primary-reset-at": "soon"},
        (RateLimit("codex", Window(3.0)),),
    ),
}


@pytest.mark.parametrize(("headers", "limits"), HEADERS.values(), ids=HEADERS)
def test_headers_tell_rate_limits(headers: dict[str, str], limits: tuple[RateLimit, ...]) -> None:
    assert limits_from_headers(headers) == limits


def test_a_family_without_a_share_that_is_used_is_none() -> None:
    assert limits_from_headers({"x-codex-primary-window-minutes": "300"}) == ()


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity"])
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    assert limits_from_headers({"x-codex-primary-used-percent": value}) == ()


LIMITED = {"x-codex-primary-used-percent": "42", "x-codex-primary-window-minutes": "300"}
TOLD = LimitsUpdated((RateLimit("codex", Window(42.0, 300.0)),))


def with_headers(reply: Reply, headers: dict[str, str]) -> Reply:
    reply.headers = headers
    return reply


def test_limits_are_told_when_they_change() -> None:
    async def main() -> list[AgentEvent]:
        other = {**LIMITED, "x-codex-primary-used-percent": "43"}
        async with Far(
            with_headers(turn(Calls("c1", "look")), LIMITED),
            with_headers(turn(Calls("c2", "look")), LIMITED),
            with_headers(turn(Says("done")), other),
        ) as far:
            return only(await worked(agent_on(far, echo())), LimitsUpdated)

    assert play(main()) == [TOLD, LimitsUpdated((RateLimit("codex", Window(43.0, 300.0)),))]


def test_no_headers_are_no_limits() -> None:
    async def main() -> list[AgentEvent]:
        async with Far(turn(Says("done"))) as far:
            return await worked(agent_on(far))

    assert only(play(main()), LimitsUpdated) == []


def test_limits_that_a_codex_worker_learns_in_its_first_turn_are_told_with_their_fractions(tmp_path: Path) -> None:
    limits = {"limitId": "codex", "primary": {"usedPercent": 12.5, "windowDurationMins": 300}}
    line = json.dumps({"method": "account/rateLimits/updated", "params": {"rateLimits": limits}})
    workers = Workers(tmp_path)
    model = workers.script(say("hello") + write(line))
    file = tmp_path / "toolwire.toml"
    file.write_text(workers.backend())

    async def main() -> list[AgentEvent]:
        return await worked(runner_on(model, settings=load(str(file))))

    events = play(main())
    assert only(events, LimitsUpdated) == [LimitsUpdated((RateLimit("codex", Window(12.5, 300.0)),))]


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_tells_its_limits_too(status: int) -> None:
    async def main() -> list[AgentEvent]:
        refusal = refuses(
            status, "Slow down.", retry_after="0", **{name.replace("-", "_"): v for name, v in LIMITED.items()}
        )
        async with Far(refusal, turn(Says("done"))) as far:
            return await worked(agent_on(far, config=AgentConfig(retries=1)))

    events = play(main())
    kinds = [type(event) for event in events if isinstance(event, LimitsUpdated | Retrying)]
    assert kinds == [LimitsUpdated, Retrying]


# The usage endpoint

BODY = {
    "plan_type": "plus",
    "rate_limit": {
        "allowed": True,
        "limit_reached": False,
        "primary_window": {
            "used_percent": 12,
            "limit_window_seconds": 18000,
            "reset_after_seconds": 5,
            "reset_at": 1700,
        },
        "secondary_window": {"used_percent": 34.5, "limit_window_seconds": 604800},
    },
    "additional_rate_limits": [
        {"limit_name": "codex_other", "metered_feature": "x", "rate_limit": {"primary_window": {"used_percent": 1}}},
        {"limit_name": None, "rate_limit": {"primary_window": {"used_percent": 2}}},
        {"limit_name": "empty", "rate_limit": None},
    ],
    "credits": None,
}
USED = (
    RateLimit("codex", Window(12.0, 300.0, 1700.0), Window(34.5, 10080.0)),
    RateLimit("codex_other", Window(1.0)),
    RateLimit("other", Window(2.0)),
)
BODIES: dict[str, tuple[bytes, tuple[RateLimit, ...]]] = {
    "all of it": (json.dumps(BODY).encode(), USED),
    "one window": (b'{"rate_limit":{"primary_window":{"used_percent":5}}}', (RateLimit("codex", Window(5.0)),)),
    "nothing of it": (b"{}", ()),
    "nulls": (b'{"rate_limit":null,"additional_rate_limits":null}', ()),
    "no json": (b"<html>", ()),
    "empty": (b"", ()),
    "another shape": (b'{"rate_limit":"none"}', ()),
    "a list": (b"[]", ()),
    "too deep": (b'{"x":' + b"[" * 5000, ()),
}


@pytest.mark.parametrize(("body", "limits"), BODIES.values(), ids=BODIES)
def test_the_usage_endpoint_tells_rate_limits(body: bytes, limits: tuple[RateLimit, ...]) -> None:
    assert limits_from_usage(body) == limits


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ChatGPT login on this machine."""
    (tmp_path / "auth.json").write_text('{"tokens":{"access_token":"secret","account_id":"acc"}}')
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))


def chatgpt(far: Far) -> Settings:
    url = far.url.replace("/v1", "/backend-api/codex")
    return Settings(backends=(Backend("up", "responses", base_url=url, auth="codex"),))


@pytest.mark.usefixtures("login")
def test_a_chatgpt_login_is_asked_for_its_usage_now_and_then() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look")), turn(Says("done"))) as far:
            far.usage = json.dumps(BODY).encode()
            agent = runner_on("up/m", tools=[echo()], settings=chatgpt(far))
            events = await worked(agent)
            assert ended(events).reason == "done"
            assert only(events, LimitsUpdated) == [LimitsUpdated(USED)]
            [looked] = far.looked
            assert looked.path == "/backend-api/wham/usage"
            assert looked.headers["authorization"] == "Bearer secret"

    play(main())


@pytest.mark.usefixtures("login")
def test_a_chatgpt_login_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwire.agent.task.USAGE_INTERVAL_SECONDS", 0.0)

    async def main() -> None:
        async with Far(turn(Calls("c1", "look")), turn(Says("done"))) as far:
            far.usage = b"{}"
            await worked(runner_on("up/m", tools=[echo()], settings=chatgpt(far)))
            assert len(far.looked) == 2

    play(main())


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("body", [b"", b"nonsense"], ids=["no answer", "no json"])
def test_a_usage_endpoint_that_fails_does_no_harm(body: bytes) -> None:
    async def main() -> list[AgentEvent]:
        async with Far(turn(Says("done"))) as far:
            far.usage = body
            return await worked(runner_on("up/m", settings=chatgpt(far)))

    events = play(main())
    assert ended(events).reason == "done"
    assert only(events, LimitsUpdated) == []


def test_nobody_else_is_asked_for_usage() -> None:
    async def main() -> None:
        async with Far(turn(Says("done"))) as far:
            await worked(agent_on(far))
            await settle()
            assert far.looked == []

    play(main())


def test_limits_and_usage_have_a_line_of_json() -> None:
    assert as_line(TOLD) == (
        b'{"type":"limits_updated","limits":[{"name":"codex","primary":{"used_percent":42.0,"window_minutes":300.0}}]}\n'
    )
    line = as_line(UsageUpdated(Tokens(1, 2), Tokens(3, 4)))
    assert msgspec.json.decode(line)["total"] == {
        "input": 3,
        "output": 4,
        "cached": 0,
        "cache_write": 0,
        "reasoning": 0,
    }
