"""Limits of a key: exact in any minute, settled with what was used, and told in the client's dialect."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.test_embedding import served
from tests.gateway.test_issued_keys import ADMIN, Client, close_clients  # noqa: F401 - a fixture
from tests.support.fleet import until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, chat_body, response_body
from tests.support.upstream import Reply, Upstream
from toolwire import Settings, create_app
from toolwire.core.request import Message, Request, Sampling, TextPart
from toolwire.core.tokens import estimate_tokens
from toolwire.gateway.limits import MINUTE, LimitReached, Meter, Meters, Ticket
from toolwire.memory.store import KeyLimits

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELD_KEY = "the-key-of-the-file"


def ask(chars: int = 0, max_tokens: int | None = None) -> Request:
    return Request("m", (Message("user", (TextPart("x" * chars),)),), sampling=Sampling(max_tokens=max_tokens))


SMALL = estimate_tokens(ask())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_meter(**limits: int) -> tuple[Meter, Clock]:
    clock = Clock()
    return Meter("ann", KeyLimits(**limits), clock), clock


def is_refused(meter: Meter, request: Request | None = None) -> bool:
    try:
        meter.take(request or ask()).settle(0)
    except LimitReached:
        return True
    return False


# The arithmetic


def test_a_request_counts_for_exactly_a_minute():
    meter, clock = make_meter(requests_per_minute=2)
    meter.take(ask()).settle(0)
    clock.now += 10
    meter.take(ask()).settle(0)
    with pytest.raises(LimitReached, match="The key `ann` has reached its limit of 2 requests per minute") as raised:
        meter.take(ask())
    assert raised.value.failure.status == 429
    assert 50 <= int(raised.value.failure.retry_after) <= 63
    clock.now += 49.99
    assert is_refused(meter)
    clock.now += 0.01
    meter.take(ask()).settle(0)
    assert is_refused(meter)


def test_a_turn_reserves_an_estimate_and_settles_what_it_used():
    meter, clock = make_meter(tokens_per_minute=1000)
    ticket = meter.take(ask(max_tokens=600))
    assert is_refused(meter, ask(max_tokens=400))
    clock.now += 2 * MINUTE
    assert is_refused(meter, ask(max_tokens=400)), "a turn that runs keeps its reservation"
    ticket.settle(100)
    ticket.settle(100)
    second = meter.take(ask(max_tokens=900 - SMALL))
    assert is_refused(meter)
    second.settle(None)
    clock.now += MINUTE - 0.01
    assert is_refused(meter)
    clock.now += 0.01
    assert not is_refused(meter, ask(max_tokens=10_000)), "one that is larger than the limit runs alone"


def test_a_turn_that_used_more_than_its_estimate_counts_in_full():
    meter, clock = make_meter(tokens_per_minute=100)
    meter.take(ask()).settle(5000)
    assert meter.list_allowances()[0].remaining == 0
    assert is_refused(meter)
    clock.now += MINUTE
    assert meter.list_allowances()[0].remaining == 100


def test_turns_at_once_are_counted_until_they_end():
    meter, clock = make_meter(concurrent_turns=2)
    tickets = [meter.take(ask()), meter.take(ask())]
    clock.now += 10 * MINUTE
    assert is_refused(meter)
    tickets[0].settle(0)
    tickets[0].settle(0)
    tickets.append(meter.take(ask()))
    assert is_refused(meter)


def test_limits_that_change_hold_for_what_was_used_before():
    meters, limits = Meters(Clock()), KeyLimits(requests_per_minute=1)
    assert meters.find("ann", KeyLimits()) is None
    meter = meters.find("ann", limits)
    assert meter is not None
    meter.take(ask()).settle(0)
    assert is_refused(meter)
    assert meters.find("ann", KeyLimits(requests_per_minute=2)) is meter
    assert not is_refused(meter)
    assert is_refused(meter)
    assert meters.find("ben", limits) is not meter


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "settle", "wait"]), st.integers(0, 300), st.floats(0, 40)), max_size=60
)


@given(steps=STEPS, requests=st.integers(1, 6), tokens=st.integers(50, 600), turns=st.integers(1, 4))
def test_no_limit_is_exceeded_in_any_minute_and_no_turn_is_refused_with_room(
    steps: list[tuple[str, int, float]], requests: int, tokens: int, turns: int
):
    """Against a model that remembers every turn, if no turn uses more than it reserved."""
    clock = Clock()
    meter = Meter("ann", KeyLimits(requests, tokens, turns), clock)
    running: list[tuple[Ticket, int]] = []
    begun: list[float] = []
    used: list[tuple[float, int]] = []
    for step, number, seconds in steps:
        if step == "wait":
            clock.now += seconds
        elif step == "settle" and running:
            ticket, reserved = running.pop(number % len(running))
            used.append((clock.now, number % (reserved + 1)))
            ticket.settle(used[-1][1])
        elif step == "take":
            wanted = min(SMALL + number, tokens)
            since = clock.now - MINUTE
            in_minute = sum(amount for at, amount in used if at > since) + sum(amount for _, amount in running)
            has_room = (
                len(running) < turns and sum(at > since for at in begun) < requests and in_minute + wanted <= tokens
            )
            refusal = None
            try:
                running.append((meter.take(ask(max_tokens=number)), wanted))
                begun.append(clock.now)
            except LimitReached as error:
                refusal = error.failure
            assert (refusal is None) == has_room
            assert refusal is None or 1 <= int(refusal.retry_after) <= MINUTE * 1.25
        left = {each.kind: each.remaining for each in meter.list_allowances()}
        since = clock.now - MINUTE
        held = sum(amount for at, amount in used if at > since) + sum(amount for _, amount in running)
        assert left == {"requests": requests - sum(at > since for at in begun), "tokens": tokens - held}


# In a gateway


@pytest.fixture(scope="module")
def admin(upstream: Upstream) -> Iterator[Client]:
    usage = {"input_tokens": 70, "output_tokens": 30, "total_tokens": 100}
    headers = {"x-ratelimit-limit-requests": "9999", "anthropic-ratelimit-tokens-limit": "9999"}
    upstream.replies["used"] = Reply([stream(created(), text("Hi."), completed(usage=usage))], headers=headers)
    upstream.replies["silent"] = Reply([stream(created(), text("Hi."), completed(usage=None))])
    upstream.replies["broken"] = Reply([b"{}"], status=500, content_type="application/json")
    backend = {"name": "up", "kind": "responses", "base_url": upstream.url, "retries": 0}
    table: dict[str, Any] = {
        "access": {"issued_keys": True, "admin_key_env": "ADMIN"},
        "keys": [{"name": "file", "key": HELD_KEY, "limits": {"requests_per_minute": 1}}],
        "store": {"url": "memory:"},
        "debug": {"level": "error"},
        "console": {"enabled": False},
        "backends": [backend],
    }
    with served(create_app(Settings.from_dict(table, {"ADMIN": ADMIN}))) as url:
        yield Client(url, ADMIN)


@pytest.fixture
def issue(admin: Client, request: pytest.FixtureRequest) -> Callable[..., Client]:
    """Issues the key of a test, with limits."""

    def issue(**limits: int) -> Client:
        name = "".join(char if char.isalnum() else "-" for char in request.node.name)
        client = Client(admin.url, admin.create(f"k{name}"[:120], limits=limits))
        until(client.is_known)
        return client

    return issue


def remaining(answer: httpx.Response, kind: str = "tokens") -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{kind}"])


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_limit_is_told_and_enforced_in_the_clients_dialect(issue: Callable[..., Client], path: str):
    client = issue(requests_per_minute=2, tokens_per_minute=100_000)
    answers = [client.ask("up/used", path) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    refused = answers[2]
    assert 1 <= int(refused.headers["retry-after"]) <= 80
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "has reached its limit of 2 requests per minute" in refused.json()["error"]["message"]
    if path == MESSAGES:
        left = [int(answer.headers["anthropic-ratelimit-requests-remaining"]) for answer in answers]
        assert refused.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert refused.headers["anthropic-ratelimit-tokens-limit"] == "100000"
        assert refused.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
        assert "x-ratelimit-limit-requests" not in refused.headers
    else:
        left = [remaining(answer, "requests") for answer in answers]
        assert refused.headers["x-ratelimit-limit-requests"] == "2"
        assert refused.headers["x-ratelimit-reset-tokens"].endswith("s")
        assert "9999" not in answers[0].headers.values(), "the backend's own limits are another matter"
    assert left == [1, 0, 0]


def test_limits_of_keys_are_apart_and_a_key_of_the_file_has_them_too(admin: Client, issue: Callable[..., Client]):
    client, of_file = issue(requests_per_minute=1), Client(admin.url, HELD_KEY)
    assert [client.ask("up/used").status_code for _ in range(2)] == [200, 429]
    assert [of_file.ask("up/used").status_code for _ in range(2)] == [200, 429]


RESERVED = estimate_tokens(Request("", (Message("user", (TextPart("Go."),)),))) + 9
"""What `Client.ask` reserves."""


def spent(client: Client, limit: int = 100_000) -> int:
    """The tokens that count for a client, which asks once more for a failing model: that costs nothing."""
    answer = client.ask("up/broken")
    assert answer.status_code >= 500
    return limit - remaining(answer) - RESERVED


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_turn_is_settled_with_the_tokens_that_its_backend_counted(
    issue: Callable[..., Client], path: str, is_stream: bool
):
    client = issue(tokens_per_minute=100_000)
    body = response_body("up/used") if path == RESPONSES else {**chat_body("up/used"), "max_tokens": 50_000}
    assert client.http.post(path, json={**body, "stream": is_stream}).status_code == 200
    until(lambda: spent(client) == 100)


def test_a_background_turn_is_settled_once(issue: Callable[..., Client]):
    client = issue(tokens_per_minute=100_000, concurrent_turns=1)
    made = client.http.post(RESPONSES, json=response_body("up/used", background=True, max_output_tokens=9000)).json()
    until(lambda: client.http.get(f"{RESPONSES}/{made['id']}").json()["status"] == "completed")
    until(lambda: client.ask("up/broken").status_code != 429)
    assert spent(client) == 100


def test_a_turn_whose_tokens_are_unknown_costs_what_it_reserved(issue: Callable[..., Client], upstream: Upstream):
    client = issue(tokens_per_minute=100_000, concurrent_turns=1)
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["left"] = Reply(gate)
    body = chat_body("up/left", stream=True, max_tokens=1000)
    with client.http.stream("POST", CHAT, json=body) as answer:
        next(answer.iter_lines())
        assert client.ask("up/used").status_code == 429, "there is one turn at once"
    until(lambda: client.ask("up/broken").status_code != 429)
    assert 1000 < spent(client) < 1100, "a client does not escape its limit by leaving early"
    gate.open()


def test_refused_and_failed_turns_give_back_what_they_reserved(issue: Callable[..., Client]):
    client = issue(tokens_per_minute=100_000, concurrent_turns=1)
    body = {**chat_body("up/broken"), "max_tokens": 99_000}
    for model in ("up/broken", "nowhere", "up/broken"):
        assert client.http.post(CHAT, json={**body, "model": model}).status_code in (404, 500, 502)
    assert spent(client) == 0


def test_turns_that_come_at_once_are_admitted_up_to_the_limit(issue: Callable[..., Client], upstream: Upstream):
    client = issue(concurrent_turns=3)
    gate = Gate(after=(stream(created(), text("a"), completed()),))
    upstream.replies["many"] = Reply(gate)  # type: ignore[arg-type]
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(client.ask("up/many").status_code)) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(codes) == 5)
    gate.open()
    for thread in threads:
        thread.join(60)
    assert sorted(codes) == [200] * 3 + [429] * 5


@pytest.mark.parametrize("limits", [{"requests_per_minute": -1}, {"requests": 1}, {"tokens_per_minute": "many"}, 7])
def test_an_invalid_limit_is_named(admin: Client, limits: Any):
    answer = admin.post("", name="never", limits=limits)
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (400, "limits")
    shown = admin.post("", name=f"shown{time.time()}", limits={"concurrent_turns": 4}).json()
    assert shown["limits"] == {"concurrent_turns": 4}
