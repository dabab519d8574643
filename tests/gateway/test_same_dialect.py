"""Bursts through the running gateway: however many frames one read brings, each leaves by itself."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from websockets.sync.client import connect

from tests.agent.stage import Far, ended, play, runner_on, turn, worked
from tests.support.backend_writers import STREAMED, frame
from tests.support.checked import responses_faults
from tests.support.client_readers import named_frames
from tests.support.gateway import Events, Gateway, Responses
from tests.support.routes import Routes, backends, question
from tests.support.scripts import KINDS, NAMES, Calls, Name, Says, Script, Thinks, truth
from tests.support.upstream import Pause, Reply, Upstream
from toolwire.config.settings import Server
from toolwire.core import sse
from toolwire.core.batch import read_batch

Json = dict[str, Any]

WORDS = [f"word {number} " for number in range(200)]
ARGUMENTS = ['{"q":"', *(f"{number}," for number in range(200)), '"}']
SCRIPT = Script(
    (Thinks("Hm. " * 100, "SEAL"), Says("".join(WORDS)), Calls("call_a", "look", "".join(ARGUMENTS)), Calls("call_b", "find", '{"q":1}')),
    chars=2,
)  # fmt: skip


def numbered(events: list[Json], first: int = 0) -> bytes:
    """Events as OpenAI writes them: the number stands behind the type."""
    return b"".join(
        frame(event["type"], {"type": event["type"], "sequence_number": number, **event})
        for number, event in enumerate(events, first)
    )


def said(words: list[str]) -> list[Json]:
    here = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [{"type": "response.output_text.delta", **here, "delta": word, "logprobs": []} for word in words]


def filled(pieces: list[str]) -> list[Json]:
    here = {"item_id": "fc_1", "output_index": 1}
    return [{"type": "response.function_call_arguments.delta", **here, "delta": piece} for piece in pieces]


MESSAGE: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "".join(WORDS), "annotations": [], "logprobs": []}]}  # fmt: skip
CALL: Json = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "find", "arguments": "".join(ARGUMENTS), "status": "completed"}  # fmt: skip
BEGUN: Json = {"id": "resp_up", "object": "response", "status": "in_progress", "model": "m", "output": []}
PART: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
BURST: list[Json] = [
    {"type": "response.created", "response": BEGUN},
    {"type": "response.in_progress", "response": BEGUN},
    {"type": "response.output_item.added", "output_index": 0, "item": {**MESSAGE, "status": "in_progress", "content": []}},
    {"type": "response.content_part.added", "item_id": "msg_1", "output_index": 0, "content_index": 0, "part": PART},
    *said(WORDS),
    {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
    {"type": "response.output_item.added", "output_index": 1, "item": {**CALL, "status": "in_progress", "arguments": ""}},
    *filled(ARGUMENTS),
    {"type": "response.output_item.done", "output_index": 1, "item": CALL},
    {"type": "response.completed", "response": {**BEGUN, "status": "completed", "output": [MESSAGE, CALL]}},
]  # fmt: skip
FIND = [{"type": "function", "name": "find", "parameters": {"type": "object"}}]

NUMBERS: dict[str, bytes] = {
    "numbered": numbered(BURST),
    "numbered from 95": numbered(BURST, 95),
    "not numbered": b"".join(frame(event["type"], event) for event in BURST),
}


@pytest.fixture(params=NUMBERS.values(), ids=[name.replace(" ", "-") for name in NUMBERS])
def model(request: pytest.FixtureRequest, routes: Routes) -> str:
    """A model that says all of it at once."""
    routes.upstream.replies["burst"] = Reply([request.param])
    return "responses/burst"


@pytest.fixture
def api(routes: Routes) -> Iterator[Responses]:
    with httpx.Client(timeout=120, trust_env=False) as http:
        yield Responses(http, routes.gateway)


def is_whole(events: list[Json]) -> None:
    """Every piece came, as one event, under the next number."""
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert pieces == WORDS
    pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert pieces == ARGUMENTS


def is_lawful(told: Events) -> None:
    assert responses_faults(told.frames, done=told.done) == []
    is_whole([data for _, data in told.frames])


def test_a_burst_is_numbered_without_a_gap(api: Responses, model: str):
    told = api.stream(model, tools=FIND)
    is_lawful(told)
    assert told.response["output"][1]["arguments"] == "".join(ARGUMENTS)


def test_on_a_socket_every_event_of_a_burst_is_one_message(routes: Routes, model: str):
    url = routes.gateway.url.replace("http", "ws", 1) + "/v1/responses"
    messages: list[Json] = []
    with connect(url, proxy=None, open_timeout=90, close_timeout=0.2) as connection:
        connection.send(json.dumps({"type": "response.create", "model": model, "input": "Go.", "tools": FIND}))
        while not messages or messages[-1]["type"] != "response.completed":
            messages.append(json.loads(connection.recv(90)))
    is_whole(messages)


def test_in_the_background_every_event_of_a_burst_is_noted_by_itself(api: Responses, model: str):
    told = api.stream(model, tools=FIND, background=True, store=True)
    is_lawful(told)
    again = api.replay(told.response["id"])
    assert again.frames == told.frames
    half = len(told.frames) // 2
    rest = api.replay(told.response["id"], starting_after=half)
    assert rest.frames == told.frames[half + 1 :]


# All routes


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 997, 40_000], ids=["at-once", "in-small-reads", "in-large-reads"])
def test_a_burst_comes_to_hand_whole_on_every_route(routes: Routes, dialect: Name, kind: Name, size: int):
    data = b"".join(STREAMED[kind](SCRIPT))
    step = size or len(data)
    cut: list[Any] = [part for place in range(0, len(data), step) for part in (data[place : place + step], Pause(0.0))]
    model = f"burst {kind} {size}"
    routes.upstream.replies[model] = Reply(cut)
    held = routes.ask(dialect, question(dialect, f"{kind}/{model}", SCRIPT.tools, stream=True))
    assert held.seen == truth(SCRIPT, dialect, kind, stream=True)


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_leaves_in_as_many_pieces_as_it_came(routes: Routes, dialect: Name, kind: Name):
    script = Script((Says("".join(WORDS)),), chars=3, tools=())
    model = f"pieces {kind}"
    routes.upstream.replies[model] = Reply([b"".join(STREAMED[kind](script))])
    held = routes.ask(dialect, question(dialect, f"{kind}/{model}", (), stream=True))
    found = [piece for piece in map(PIECES[dialect], held.came) if piece]
    came = [
        json.loads(line[6:]) for line in b"".join(STREAMED[kind](script)).split(b"\n") if line.startswith(b"data: {")
    ]
    assert found == [piece for piece in map(PIECES[kind], came) if piece]


def _chat_piece(chunk: Json) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def _responses_piece(event: Json) -> str:
    return event["delta"] if event["type"] == "response.output_text.delta" else ""


def _messages_piece(event: Json) -> str:
    return event["delta"]["text"] if event["type"] == "content_block_delta" else ""


def _gemini_piece(chunk: Json) -> str:
    return "".join(part["text"] for each in chunk["candidates"] for part in each["content"]["parts"])


PIECES: dict[Name, Any] = {
    "chat": _chat_piece,
    "responses": _responses_piece,
    "messages": _messages_piece,
    "gemini": _gemini_piece,
}


# Without batching


@pytest.fixture(scope="module")
def unbatched(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    """The same routes through a gateway that reads every frame by itself."""
    config = backends(upstream.url) + "\n[server]\nbatching = false\n"
    gateway = Gateway(tmp_path_factory.mktemp("one-by-one"), config)
    yield Routes(gateway, upstream, http)
    gateway.stop()


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_client_gets_the_same_bytes_without_batching(routes: Routes, unbatched: Routes, dialect: Name, kind: Name):
    model = f"batching {kind}"
    routes.upstream.replies[model] = Reply([b"".join(STREAMED[kind](SCRIPT))])
    body = question(dialect, f"{kind}/{model}", SCRIPT.tools, stream=True)
    merged, single = (_without_ids(each.post(dialect, body).content) for each in (routes, unbatched))
    assert len(merged) > 20_000
    assert merged == single


def _without_ids(answer: bytes) -> bytes:
    """An answer without the ids and times that are its own."""
    return re.sub(rb'[0-9a-f]{24}|"(?:created|created_at|completed_at)":\d+', b"", answer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batching", [True, False])
def test_frames_are_joined_only_with_batching(monkeypatch: pytest.MonkeyPatch, kind: Name, batching: bool):
    joined: list[int] = []

    def watched(*args: Any) -> Any:
        joined.append(1)
        return read_batch(*args)

    async def ask() -> None:
        async with Far(turn(Says("".join(WORDS)), kind=kind, chars=2), kind=kind) as far:
            settings = msgspec.structs.replace(far.settings, server=Server(batching=batching))
            assert ended(await worked(runner_on("up/m", settings=settings))).text == "".join(WORDS)

    monkeypatch.setattr(sse, "read_batch", watched)
    play(ask())
    assert bool(joined) is batching


# What we have no word for, on the wire


def test_a_messages_stream_keeps_the_server_s_own_tools_in_their_place(routes: Routes):
    blocks: list[Json] = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    ]
    events: list[Json] = [
        {"type": "message_start", "message": {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}},
        *(each for index, block in enumerate(blocks) for each in ({"type": "content_block_start", "index": index, "content_block": block}, {"type": "content_block_stop", "index": index})),
        {"type": "message_delta", "delta": {"stop_reason": "pause_turn", "stop_sequence": None}, "usage": {"output_tokens": 1, "server_tool_use": {"web_search_requests": 1}}},
        {"type": "message_stop"},
    ]  # fmt: skip
    routes.upstream.replies["paused"] = Reply([b"".join(frame(event["type"], event) for event in events)])
    response = routes.post("messages", question("messages", "messages/paused", (), stream=True))
    came = [data for _, data in named_frames(response)]
    assert [each["content_block"] for each in came if each["type"] == "content_block_start"] == blocks
    [last] = [each for each in came if each["type"] == "message_delta"]
    assert last["delta"]["stop_reason"] == "pause_turn"
    assert last["usage"]["server_tool_use"] == {"web_search_requests": 1}


def test_a_chat_stream_keeps_its_fields_on_every_chunk(routes: Routes):
    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return frame("", {"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "fp", "choices": [choice]})  # fmt: skip

    burst = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word}) for word in WORDS),
        chunk({}, "stop"),
    ]
    routes.upstream.replies["marked chunks"] = Reply([b"".join(burst) + b"data: [DONE]\n\n"])
    held = routes.ask("chat", question("chat", "chat/marked chunks", (), stream=True))
    assert held.seen.text == "".join(WORDS)
    assert {each.get("system_fingerprint") for each in held.came} == {"fp"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_line_too_many_holds_nobody_up(routes: Routes, kind: Name):
    data = b"".join(STREAMED[kind](Script((Says("Hello."),))))
    routes.upstream.replies[f"blank {kind}"] = Reply([data.replace(b"\n\n", b"\n\n\n")])
    assert routes.ask("chat", question("chat", f"{kind}/blank {kind}", (), stream=True)).seen.text == "Hello."
