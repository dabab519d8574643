"""No request, however large, holds the event loop for more than 100 ms of CPU time, and no reply for more than 600."""

import asyncio
import json
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
REPLY_STEP = 600.0
"""The same for a reply: whoever runs the gateway has chosen the server."""
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


def described(size: int) -> bytes:
    return packed({"type": "object", "description": "d" * size})


def wide(size: int) -> bytes:
    """A schema of 400 properties, each with a description of this size."""
    properties = {f"p{number}": {"type": "string", "description": "d" * size} for number in range(400)}
    return packed({"type": "object", "properties": properties})


def shapes(dialect: str) -> dict[str, Callable[[str], bytes]]:
    history = HISTORY[dialect]
    instructions = {"chat": "instructions", "responses": "instructions", "messages": "system"}[dialect]
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
        "100 tools with 400 long properties each": with_tools(dialect, [tool(dialect, f"t{i}", wide(700)) for i in range(100)]),
        "100 tools with 400 properties each": with_tools(dialect, [tool(dialect, f"t{i}", wide(135)) for i in range(100)]),
        "1,900 tools of 16 KB": with_tools(dialect, [tool(dialect, f"t{i}", described(16_000)) for i in range(1900)]),
        "1,900 tools of 4 KB": with_tools(dialect, [tool(dialect, f"t{i}", described(4_000)) for i in range(1900)]),
        "31 MB of instructions": lambda model: packed(question(dialect, model, **{instructions: "Do.\n" * (LARGE // 5)})),
        "8 MB of instructions": lambda model: packed(question(dialect, model, **{instructions: "Do.\n" * 1_580_000})),
        "9,900 messages of 3 KB": filled(dialect, history, b'{"role":"user","content":"%b"}' % (b"x" * 3000), size=9_900 * 3040),
        "a schema 5,000 deep": with_tools(dialect, [tool(dialect, "t", deep_schema(5000))]),
        "a schema 100 deep, 500 times": with_tools(dialect, [tool(dialect, f"t{i}", deep_schema(100)) for i in range(500)]),
        "250 results of 100 KB": lambda model: packed(question(dialect, model, **{history: rounds(dialect, 250, 100_000)})),
        "4,900 results of 5 KB": lambda model: packed(question(dialect, model, **{history: rounds(dialect, 4_900, 5_000)})),
        "20,000 results of 1 KB": lambda model: packed(question(dialect, model, **{history: rounds(dialect, 20_000, 1000)})),
        "31 MB of nesting": filled(dialect, "metadata", nested(15 * MB), size=LARGE),
        "15,000 times 1,000 deep": filled(dialect, "metadata", nested(1000)),
        "a number of 31 MB": filled(dialect, "metadata", b"9" * (LARGE - 100)),
        "31 MB of unknown fields": lambda model: packed(question(dialect, model))[:-1]
        + b"".join(b',"f%d":0' % i for i in range(2_400_000)) + b"}",
        "one field 2,000,000 times": lambda model: packed(question(dialect, model))[:-1] + b',"user":"x"' * 2_000_000 + b"}",
        "31 MB that is no JSON": lambda model: b"{" + b" " * (LARGE - 2) + b"]",
    }  # fmt: skip


class Worst:
    """The longest step and the most memory of several tries, and where that was."""

    def __init__(self) -> None:
        self.step = self.memory = 0.0
        self.where = ""
        self.statuses: set[int] = set()

    def see(self, where: str, status: int, step: float, memory: float) -> None:
        if step >= self.step:
            self.step, self.where = step, where
        self.memory = max(self.memory, memory)
        self.statuses.add(status)

    def tell(self, rows: Rows, what: str, memory: float, step: float = LONGEST) -> None:
        statuses = ", ".join(map(str, sorted(self.statuses)))
        rows.add(f"{what} ({statuses}; {self.where}): longest loop step", self.step, step, "ms")
        rows.add(f"{what}: memory", self.memory, memory, "MB")
        rows.hold()


def measured(gateway: Attacked, dialect: str, body: bytes) -> tuple[int, float, float]:
    """The status, the longest step and what memory grew by."""
    gateway.forget()
    before = gateway.memory()
    status, said = asyncio.run(ask(gateway.port, PATHS[dialect], body))
    step, growth = gateway.longest_step(), gateway.peak() - before
    assert gateway.process.poll() is None
    assert status not in (0, 500), said[:500]
    return status, step, growth


@pytest.mark.parametrize("shape", [*shapes("chat")])
def test_large_requests(rows: Rows, gateway: Attacked, shape: str):
    worst = Worst()
    for dialect in PATHS:
        make = shapes(dialect)[shape]
        for kind in (dialect, OTHER[dialect]):
            body = make(f"{kind}/m")
            assert len(body) < 32 * MB
            worst.see(f"{dialect} to {kind}", *measured(gateway, dialect, body))
    worst.tell(rows, shape, 400)


def test_a_long_chain(rows: Rows, gateway: Attacked):
    """As much as the store takes, then a request of a hundred bytes that brings it all back."""
    previous, sizes = "", 0
    for _ in range(10):
        items = [{"role": "user", "content": "x" * 3000}] * 9_500
        asked = question("responses", "responses/m", input=items, store=True, stream=False)
        if previous:
            asked["previous_response_id"] = previous
        status, said = asyncio.run(ask(gateway.port, PATHS["responses"], packed(asked)))
        if status != 200:
            break
        previous, sizes = json.loads(said)["id"], sizes + 29
    assert previous
    short = question("responses", "responses/m", store=True, previous_response_id=previous)
    worst = Worst()
    worst.see("responses", *measured(gateway, "responses", packed(short)))
    worst.tell(rows, f"a chain of {sizes} MB", 400)


def test_many_references(rows: Rows, gateway: Attacked):
    references = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(260_000)]
    worst = Worst()
    worst.see(
        "responses", *measured(gateway, "responses", packed(question("responses", "responses/m", input=references)))
    )
    worst.tell(rows, "260,000 item references", 400)


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


@pytest.mark.parametrize("number", range(12))
def test_large_replies(rows: Rows, gateway: Attacked, far: Far, number: int):
    every = [*large_replies()]
    assert len(every) == 12
    name, kind, answer = every[number]
    far.answers[kind] = always(*(answer[start : start + MB] for start in range(0, len(answer), MB)))
    worst = Worst()
    try:
        for stream in (True, False):
            for dialect in dict.fromkeys((kind, "responses")):
                tools = json.loads(b"[" + tool(dialect, "f") + b"]")
                body = packed(question(dialect, f"{kind}/m", stream=stream, tools=tools))
                way = "streamed" if stream else "plain"
                worst.see(f"to {dialect}, {way}", *measured(gateway, dialect, body))
    finally:
        far.answers[kind] = answering(kind)
    worst.tell(rows, name, 500, REPLY_STEP)
