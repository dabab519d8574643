"""No request and no reply, however large, holds the event loop for more than 100 ms of CPU time."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.soak.attacked import (
    JSON,
    MB,
    PATHS,
    STREAM,
    Attacked,
    Far,
    always,
    answering,
    ask,
    attacked,
    begun,
    chat_delta,
    over,
    packed,
    question,
    words,
)
from tests.soak.conftest import Rows

pytestmark = [
    pytest.mark.soak,
    pytest.mark.xdist_group("attacks"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="measures with Linux's /proc"),
]

LONGEST = 100.0
"""Milliseconds of CPU time."""
LARGE = 31 * MB
OTHER = {"chat": "responses", "responses": "chat", "messages": "chat"}
"""A server of another kind, for each dialect."""
HISTORY = {"chat": "messages", "responses": "input", "messages": "messages"}


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    server = Far()
    for kind in PATHS:
        server.answers[kind] = answering(kind)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(far: Far, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("steps")
    store = f'[store]\nurl = "sqlite:{folder}/store.db"\n'
    with attacked(folder, store + "".join(far.backend(kind, kind) for kind in PATHS)) as server:
        yield server


def filled(dialect: str, field: str, piece: bytes, size: int = LARGE, **fields: Any) -> Callable[[str], bytes]:
    """A request for a model, whose field is an array of so many of these as fit."""

    def body(model: str) -> bytes:
        rest = question(dialect, model, **fields)
        rest.pop(field, None)
        array = b",".join([piece] * (size // (len(piece) + 1)))
        return packed(rest)[:-1] + b',"%b":[%b]}' % (field.encode(), array)

    return body


def with_text(dialect: str, text: bytes) -> Callable[[str], bytes]:
    return filled(dialect, HISTORY[dialect], b'{"role":"user","content":"%b"}' % text, size=len(text) + 40)


def tool(dialect: str, name: str, schema: bytes = b'{"type":"object","properties":{}}') -> bytes:
    if dialect == "chat":
        return b'{"type":"function","function":{"name":"%b","parameters":%b}}' % (name.encode(), schema)
    if dialect == "messages":
        return b'{"name":"%b","input_schema":%b}' % (name.encode(), schema)
    return b'{"type":"function","name":"%b","parameters":%b}' % (name.encode(), schema)


def with_tools(dialect: str, tools: list[bytes]) -> Callable[[str], bytes]:
    return lambda model: packed(question(dialect, model))[:-1] + b',"tools":[%b]}' % b",".join(tools)


def rounds(dialect: str, count: int, size: int) -> list[dict[str, Any]]:
    """A history of calls with results of so many bytes."""
    out: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    result = "line\n" * (size // 5)
    for number in range(count):
        id, arguments = f"call_{number}", '{"path":"a"}'
        if dialect == "chat":
            call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
            out += [{"role": "assistant", "content": None, "tool_calls": [call]}]
            out += [{"role": "tool", "tool_call_id": id, "content": result}]
        elif dialect == "messages":
            use = {"type": "tool_use", "id": id, "name": "f", "input": {"path": "a"}}
            back = {"type": "tool_result", "tool_use_id": id, "content": result}
            out += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]
        else:
            out += [{"type": "function_call", "call_id": id, "name": "f", "arguments": arguments}]
            out += [{"type": "function_call_output", "call_id": id, "output": result}]
    return out


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def deep_schema(depth: int) -> bytes:
    return b'{"type":"object","properties":{"a":' * depth + b"{}" + b"}}" * depth


def shapes(dialect: str) -> dict[str, Callable[[str], bytes]]:
    history = HISTORY[dialect]
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string", "description": "d" * 60} for i in range(3000)}}
    return {
        "31 MB of small messages": filled(dialect, history, b'{"role":"user","content":"x"}'),
        "31 MB of small parts": lambda model: packed(
            question(dialect, model, **{history: [{"role": "user", "content": "PARTS"}]})
        ).replace(b'"PARTS"', b"[" + b",".join([b'{"type":"%b","text":"x"}' % (b"input_text" if dialect == "responses" else b"text")] * (LARGE // 34)) + b"]"),
        "31 MB of empty objects": filled(dialect, history, b"{}"),
        "31 MB of numbers": filled(dialect, "metadata", b"1"),
        "one string of 31 MB": with_text(dialect, b"x" * LARGE),
        "one string of 31 MB, escaped": with_text(dialect, b"\\u00e9\\n" * (LARGE // 8)),
        "one string of 31 MB, not ASCII": with_text(dialect, "é€😀".encode() * (LARGE // 9)),
        "31 MB of small tools": filled(dialect, "tools", tool(dialect, "t")),
        "100 tools with 3,000 properties each": with_tools(dialect, [tool(dialect, f"t{i}", packed(wide)) for i in range(100)]),
        "a schema 5,000 deep": with_tools(dialect, [tool(dialect, "t", deep_schema(5000))]),
        "a schema 400 deep, 500 times": with_tools(dialect, [tool(dialect, f"t{i}", deep_schema(400)) for i in range(500)]),
        "300 results of 100 KB": lambda model: packed(question(dialect, model, **{history: rounds(dialect, 300, 100_000)})),
        "20,000 results of 1 KB": lambda model: packed(question(dialect, model, **{history: rounds(dialect, 20_000, 1000)})),
        "31 MB of nesting": filled(dialect, "metadata", nested(15 * MB), size=LARGE),
        "15,000 times 1,000 deep": filled(dialect, "metadata", nested(1000)),
        "a number of 31 MB": filled(dialect, "metadata", b"9" * (LARGE - 100)),
        "31 MB of unknown fields": lambda model: packed(question(dialect, model))[:-1]
        + b"".join(b',"f%d":0' % i for i in range(2_400_000)) + b"}",
        "one field 2,000,000 times": lambda model: packed(question(dialect, model))[:-1] + b',"user":"x"' * 2_000_000 + b"}",
        "31 MB that is no JSON": lambda model: b"{" + b" " * (LARGE - 2) + b"]",
    }  # fmt: skip


@pytest.mark.parametrize("shape", [*shapes("chat")])
@pytest.mark.parametrize("dialect", [*PATHS])
def test_large_requests(rows: Rows, gateway: Attacked, dialect: str, shape: str):
    make = shapes(dialect)[shape]
    for kind in (dialect, OTHER[dialect]):
        body = make(f"{kind}/m")
        assert len(body) < 32 * MB
        gateway.forget()
        status, said = asyncio.run(ask(gateway.port, PATHS[dialect], body))
        rows.add(f"{dialect} to {kind}: {shape} ({status})", gateway.longest_step(), LONGEST, "ms")
        rows.add(f"{dialect} to {kind}: {shape}: memory", gateway.peak(), 1200, "MB")
        assert status not in (0, 500), said[:500]
        assert gateway.process.poll() is None
    rows.hold()


def test_a_long_chain(rows: Rows, gateway: Attacked):
    """As much as the store takes, then a request of a hundred bytes that brings it all back."""
    previous, sizes = "", 0
    for _ in range(10):
        items = [{"role": "user", "content": "x" * 1000}] * 29_000
        asked = question("responses", "responses/m", input=items, store=True, stream=False)
        if previous:
            asked["previous_response_id"] = previous
        status, said = asyncio.run(ask(gateway.port, PATHS["responses"], packed(asked)))
        if status != 200:
            break
        previous, sizes = json.loads(said)["id"], sizes + 29
    gateway.forget()
    short = question("responses", "responses/m", store=True, previous_response_id=previous)
    status, _ = asyncio.run(ask(gateway.port, PATHS["responses"], packed(short)))
    rows.add(f"a chain of {sizes} MB ({status}): longest loop step", gateway.longest_step(), LONGEST, "ms")
    rows.add(f"a chain of {sizes} MB: memory", gateway.peak(), 1200, "MB")
    many = question(
        "responses", "responses/m", input=[{"type": "item_reference", "id": f"msg_{i}"} for i in range(260_000)]
    )
    gateway.forget()
    status, _ = asyncio.run(ask(gateway.port, PATHS["responses"], packed(many)))
    rows.add(f"260,000 references ({status}): longest loop step", gateway.longest_step(), LONGEST, "ms")
    rows.hold()


def large_replies() -> Iterator[tuple[str, str, bytes]]:
    """What it is, the server's kind, and what it sends."""
    text = "word and word " * (30 * MB // 14)
    for kind in PATHS:
        yield f"one frame of 30 MB from {kind}", kind, STREAM + begun(kind) + words(kind, text) + over(kind)
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    yield "one body of 30 MB", "chat", JSON + packed({**whole, "choices": choices})
    call = {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": packed({"a": text}).decode()},
    }
    yield "arguments of 30 MB", "chat", STREAM + chat_delta({"tool_calls": [call]}) + chat_delta({}, "tool_calls")
    calls = [
        {"index": i, "id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for i in range(100_000)
    ]
    yield (
        "100,000 calls in one frame",
        "chat",
        STREAM + chat_delta({"tool_calls": calls}) + chat_delta({}, "tool_calls"),
    )
    each = b"".join(chat_delta({"tool_calls": [one]}) for one in calls)
    yield "100,000 calls in a frame each", "chat", STREAM + each + chat_delta({}, "tool_calls")
    small = words("chat", "x") * 150_000
    yield "150,000 small deltas", "chat", STREAM + begun("chat") + small + over("chat")
    blocks = "<use_tool>\n<name>f</name>\n<q>" + "a<b " * 200_000
    yield "an open block with 200,000 marks", "chat", STREAM + begun("chat") + words("chat", blocks) + over("chat")
    marks = words("chat", "<use_tool>" * 100) * 1000
    yield "100,000 blocks that open", "chat", STREAM + begun("chat") + marks + over("chat")
    empty = b"data: \n" * 2_000_000 + b"\n"
    yield "a frame of 2,000,000 lines", "chat", STREAM + empty + over("chat")
    yield (
        "1,000,000 choices",
        "chat",
        STREAM
        + b'data: {"choices":['
        + b",".join(b'{"index":%d,"delta":{}}' % i for i in range(1_000_000))
        + b"]}\n\n"
        + over("chat"),
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("number", range(12))
def test_large_replies(rows: Rows, gateway: Attacked, far: Far, number: int, stream: bool):
    every = [*large_replies()]
    assert len(every) == 12
    name, kind, answer = every[number]
    far.answers[kind] = always(*(answer[start : start + MB] for start in range(0, len(answer), MB)))
    try:
        for dialect in dict.fromkeys((kind, "responses")):
            fields: dict[str, Any] = {"stream": stream, "tools": json.loads(b"[" + tool(dialect, "f") + b"]")}
            gateway.forget()
            began = time.monotonic()
            status, _ = asyncio.run(
                ask(gateway.port, PATHS[dialect], packed(question(dialect, f"{kind}/m", **fields)), seconds=45)
            )
            way = "streamed" if stream else "plain"
            what = f"{name} to {dialect}, {way} ({status}, {time.monotonic() - began:.1f} s)"
            rows.add(f"{what}: longest loop step", gateway.longest_step(), LONGEST, "ms")
            rows.add(f"{what}: memory", gateway.peak(), 1200, "MB")
    finally:
        far.answers[kind] = answering(kind)
    rows.hold()
