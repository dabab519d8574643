"""What is remembered has bounds: chains that are put together again, references, sockets, endless replies."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.checked import responses_faults
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, Gateway, Responses, backend, error_of, good, read_events, response_body, text_of
from tests.support.upstream import Reply, Upstream

SAYS_HI = Reply([stream(created(), text("hi"), completed())])
NO_CONSOLE = "[console]\nenabled = false\n"
"""The console keeps the bytes of turns, up to its own bound; these tests measure what sockets keep."""
LONG = "x" * 60_000


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with small bounds, and a backend whose models answer at once."""
    server = '[server]\nmax_body = "200KB"\nmax_reply = "300KB"\n'
    upstream.replies["hi"] = SAYS_HI
    gateway = Gateway(tmp_path_factory.mktemp("bounds"), server + backend(upstream.url))
    yield gateway
    gateway.stop()


@pytest.fixture
def api(http: httpx.Client, gateway: Gateway, upstream: Upstream) -> Responses:
    upstream.replies["hi"] = SAYS_HI
    return Responses(http, gateway)


@contextmanager
def opened(gateway: Gateway) -> Iterator[ClientConnection]:
    with connect(gateway.url.replace("http", "ws") + "/v1/responses", proxy=None, max_size=None) as socket:
        yield socket


def ask(socket: ClientConnection, input: Any = "Go.", model: str = "up/hi", **fields: Any) -> dict[str, Any]:
    """The closing message of a turn."""
    socket.send(json.dumps({"type": "response.create", "model": model, "input": input, **fields}))
    while True:
        message = json.loads(socket.recv(90))
        if message["type"] in ("response.completed", "response.failed", "error") and "sequence_number" not in message:
            return message
        if message["type"] in ("response.completed", "response.failed"):
            return message


# Requests that are put together again


def too_large(response: httpx.Response, field: str) -> None:
    status, error = error_of(response)
    assert (status, error["code"], error["param"]) == (413, "request_too_large", field)
    assert "server.max_body" in error["message"]


def test_a_small_request_that_continues_too_much_is_413_in_every_way(api, gateway, http, upstream):
    first = api.create("up/hi", LONG)["id"]
    second = api.create("up/hi", LONG, previous_response_id=first)["id"]
    third = api.create("up/hi", LONG, previous_response_id=second)["id"]
    before = len(upstream.of("hi"))
    continued: dict[str, Any] = {"previous_response_id": third}
    for response in (
        api.post(response_body("up/hi", LONG, **continued)),
        api.post(response_body("up/hi", LONG, **continued, stream=True)),
        api.post(response_body("up/hi", LONG, **continued, background=True)),
        api.post(response_body("up/hi", LONG, **continued), "/compact"),
        api.post(response_body("up/hi", LONG, **continued), "/input_tokens"),
    ):
        too_large(response, "previous_response_id")
    with opened(gateway) as socket:
        message = ask(socket, LONG, **continued)
        assert (message["type"], message["status"], message["error"]["code"]) == ("error", 413, "request_too_large")
    assert len(upstream.of("hi")) == before
    assert good(api.post(response_body("up/hi", "short", **continued))).json()["status"] == "completed"


def test_so_is_one_in_a_conversation_that_is_too_large(api, gateway, http):
    url = f"{gateway.base_url}/conversations"
    items = [{"role": "user", "content": LONG}]
    conversation = http.post(url, json={"items": items}).json()["id"]
    for _ in range(3):
        good(http.post(f"{url}/{conversation}/items", json={"items": items}))
    too_large(api.post(response_body("up/hi", conversation=conversation)), "conversation")


def test_so_is_one_that_refers_to_too_much(api):
    [item] = good(api.get(api.create("up/hi", LONG)["id"] + "/input_items")).json()["data"]
    reference = {"type": "item_reference", "id": item["id"]}
    assert text_of(api.create("up/hi", [reference] * 3)) == "hi"
    too_large(api.post(response_body("up/hi", [reference] * 4)), "input")


def test_more_references_than_anybody_needs_are_400(http, upstream, tmp_path):
    gateway = Gateway(tmp_path, backend(upstream.url))
    references = [{"type": "item_reference", "id": f"msg_{place}"} for place in range(10_001)]
    status, error = error_of(Responses(http, gateway).post(response_body("up/hi", references)))
    gateway.stop()
    assert (status, error["param"], error["code"]) == (400, "input", "too_many_entries")


def test_a_page_of_items_has_bounds_and_all_pages_are_all_items(api, gateway, http):
    url = f"{gateway.base_url}/conversations"
    conversation = http.post(url, json={}).json()["id"]
    for place in range(6):
        items = [{"role": "user", "content": f"{place}" + LONG}]
        good(http.post(f"{url}/{conversation}/items", json={"items": items}))
    seen, after = [], ""
    while True:
        query = {"order": "asc", "limit": "100", **({"after": after} if after else {})}
        response = good(http.get(f"{url}/{conversation}/items", params=query))
        assert len(response.content) < 250_000
        page = response.json()
        seen += [item["content"][0]["text"][0] for item in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == list("012345")


# Sockets


def test_what_a_socket_remembers_has_bounds_and_the_latest_response_of_a_lane_goes_last(gateway):
    with opened(gateway) as socket:
        latest = [ask(socket, LONG, store=False, stream_id=f"lane {place}")["response"]["id"] for place in range(10)]
        found = [
            ask(socket, "on", store=False, stream_id=f"lane {place}", previous_response_id=id)["type"]
            for place, id in reversed(list(enumerate(latest)))
        ]
    assert found[:2] == ["response.completed"] * 2
    assert found[4:] == ["error"] * 6


def test_a_chain_in_a_socket_does_not_grow_beyond_the_limit_of_a_request(gateway):
    with opened(gateway) as socket:
        id = ask(socket, LONG, store=False)["response"]["id"]
        id = ask(socket, LONG, store=False, previous_response_id=id)["response"]["id"]
        message = ask(socket, "y" * 100_000, store=False, previous_response_id=id)
    assert message["type"] == "error"
    assert message["error"]["code"] == "request_too_large"


def memory_of(gateway: Gateway) -> int:
    """Bytes that the process has in memory."""
    pages = int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="another platform: needs /proc")
def test_many_lanes_and_many_small_requests_leave_no_memory_behind(upstream, tmp_path):
    gateway = Gateway(tmp_path, NO_CONSOLE + '[server]\nmax_body = "4MB"\n' + backend(upstream.url))
    upstream.replies["hi"] = SAYS_HI
    with opened(gateway) as socket:
        ask(socket, store=False)
        before = memory_of(gateway)
        for place in range(32):
            ask(socket, "x" * 3_000_000, store=False, stream_id=f"lane {place}")
        grown = memory_of(gateway) - before
    gateway.stop()
    assert grown < 60_000_000, "less than the messages together"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="another platform: needs /proc")
def test_a_socket_keeps_nothing_of_a_message_that_was_refused(tmp_path):
    gateway = Gateway(tmp_path, NO_CONSOLE)
    with ExitStack() as stack:
        for count in (5, 40):
            before = memory_of(gateway)
            for _ in range(count):
                socket = stack.enter_context(opened(gateway))
                socket.send("x" * 1_000_000)
                assert json.loads(socket.recv(90))["type"] == "error"
        assert memory_of(gateway) - before < 15_000_000
    gateway.stop()


def test_requests_that_wait_on_a_socket_are_counted_and_each_is_answered(gateway, upstream):
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["slow"] = Reply(gate)
    asked = json.dumps({"type": "response.create", "model": "up/hi", "input": "Go.", "store": False})
    many = 1500
    with opened(gateway) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "up/slow", "input": "Go.", "store": False}))
        for _ in range(many):
            socket.send(asked)
        gate.open()
        kinds: list[str] = []
        while len(kinds) < many + 1:
            message = json.loads(socket.recv(90))
            if message["type"] in ("response.completed", "error"):
                kinds.append(message["type"] if message["type"] != "error" else message["error"]["code"])
        assert ask(socket)["type"] == "response.completed"
    refused = kinds.count("too_many_requests")
    assert 0 < refused < many
    assert set(kinds) == {"response.completed", "too_many_requests"}


# Replies without an end


def endless() -> Reply:
    return Reply([stream(created()), *[stream(text("y" * 10_000))] * 1000])


@pytest.mark.parametrize("fields", [{}, {"store": False}], ids=["stored", "not stored"])
def test_a_streamed_reply_without_an_end_fails_as_too_large(api, upstream, fields):
    upstream.replies["endless"] = endless()
    events = read_events(good(api.post(response_body("up/endless", stream=True, **fields))))
    assert responses_faults(events.frames, done=events.done) == []
    [error] = events.of("error")
    assert error["code"] == "reply_too_large"
    assert events.response["status"] == "failed"
    if not fields:
        assert api.retrieve(events.response["id"])["status"] == "failed"


def test_so_does_one_by_socket(gateway, upstream):
    upstream.replies["endless"] = endless()
    with opened(gateway) as socket:
        message = ask(socket, model="up/endless")
        assert message["response"]["status"] == "failed"
        assert ask(socket)["type"] == "response.completed"


def test_the_events_of_a_background_run_have_the_same_bound(api, upstream):
    upstream.replies["endless"] = endless()
    id = api.create("up/endless", background=True)["id"]
    failed = api.wait_for(id, "failed")
    assert failed["status"] == "failed"
    assert "server.max_reply" in failed["error"]["message"]
    events = api.replay(id)
    assert responses_faults(events.frames, done=events.done) == []
    assert sum(len(json.dumps(data)) for _, data in events.frames) < 1_500_000


def test_a_background_run_of_many_small_events_has_it_too(api, upstream):
    upstream.replies["endless"] = Reply([stream(created()), *[stream(text("y"))] * 5000, stream(completed())])
    id = api.create("up/endless", background=True)["id"]
    failed = api.wait_for(id, "failed", "completed")
    assert failed["status"] == "failed"
    assert len(api.get(id, stream="true").content) < 700_000


def test_a_reply_below_the_bound_is_whole(api, upstream):
    upstream.replies["long"] = Reply([stream(created(), *[text("y" * 10_000)] * 20, completed())])
    assert text_of(api.stream("up/long").response) == "y" * 200_000


def test_a_background_run_holds_its_bytes_until_it_is_over(http, upstream, tmp_path):
    gateway = Gateway(tmp_path, '[server]\nmax_body = "200KB"\nmax_in_flight = "400KB"\n' + backend(upstream.url))
    api = Responses(http, gateway)
    upstream.replies["hi"] = SAYS_HI
    for _ in range(2):  # what was given back can be taken again
        gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
        upstream.replies["slow"] = Reply(gate)
        begun = [api.create("up/slow", "x" * 150_000, background=True)["id"] for _ in range(2)]
        for id in begun:
            api.wait_for(id, "in_progress")
        assert error_of(api.post(response_body("up/hi", "x" * 150_000)))[0] == 503
        gate.open()
        assert [api.wait_for(id, "completed")["status"] for id in begun] == ["completed"] * 2
    first = api.create("up/hi", "x" * 150_000)["id"]
    upstream.replies["slow"] = Reply(gate := Gate(stream(created(), text("a")), after=(stream(completed()),)))
    begun = [api.create("up/slow", previous_response_id=first, background=True)["id"] for _ in range(2)]
    status, error = error_of(api.post(response_body("up/hi", previous_response_id=first)))
    assert (status, error["code"]) == (503, "overloaded"), "what a request continues counts too"
    gate.open()
    for id in begun:
        api.wait_for(id, "completed")
    gateway.stop()


def test_a_journal_is_sent_in_pieces_and_whole(api, upstream):
    upstream.replies["long"] = Reply([stream(created(), *[text("y" * 10_000)] * 20, completed())])
    id = api.create("up/long", background=True)["id"]
    response = api.wait_for(id, "completed")
    assert api.replay(id).response == response
    assert text_of(response) == "y" * 200_000


@pytest.mark.parametrize(("letter", "count"), [("y", 1000), ("€", 20)])
def test_so_is_what_the_gateway_holds_of_a_turn_for_its_own_tools(http, upstream, tmp_path, letter, count):
    (tmp_path / "shed.py").write_text('def weather(city: str) -> str:\n    """The weather."""\n    return "mild"\n')
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {"choices": [{"index": 0, "delta": {"content": letter * 10_000}, "finish_reason": None}]}
    upstream.replies["talks"] = Reply([b"data: " + json.dumps({**chunk, **delta}).encode() + b"\n\n"] * count)
    config = '[server]\nmax_reply = "300KB"\n[gateway_tools]\ntools = ["shed:weather"]\n'
    chat = f'[[backends]]\nname = "chat"\nkind = "chat"\nbase_url = "{upstream.url}"\nretries = 0\n'
    gateway = Gateway(tmp_path, config + chat, PYTHONPATH=str(tmp_path))
    body = {"model": "chat/talks", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    answer = http.post(f"{gateway.base_url}/chat/completions", json=body)
    gateway.stop()
    assert "reply_too_large" in answer.text
    assert len(answer.content) < 1_000_000


@pytest.mark.parametrize("count", [600])
def test_runs_of_one_key_leave_another_unharmed_with_few_descriptors(upstream, tmp_path, count):
    """One key begins far more background runs than there are descriptors; another key is served as ever."""
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies |= {"held": Reply(gate), "hi": SAYS_HI}
    keys = "".join(f'[[keys]]\nname = "{name}"\nkey = "key-of-{name}"\n' for name in ("ann", "ben"))
    gateway = Gateway(tmp_path, keys + backend(upstream.url))
    try:
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        limits = httpx.Limits(max_connections=20)
        with httpx.Client(trust_env=False, timeout=120, limits=limits) as client:
            ann, ben = (Responses(client, gateway, f"key-of-{name}") for name in ("ann", "ben"))
            begun = [ann.post(response_body("up/held", background=True)).status_code for _ in range(count)]
            assert (begun.count(200), begun.count(429)) == (64, count - 64)
            for _ in range(100):
                assert good(ben.post(response_body("up/hi"))).json()["status"] == "completed"
    finally:
        gate.open()
        gateway.stop()
