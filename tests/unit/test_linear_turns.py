"""Requests, frames and events cost steps that grow as their number does, whatever they say."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest

from tests.support.steps import Meter, counted, metered

SIZE = 80
"""Units of the smaller input; the larger has four times as many."""

MOST = 6

Json = dict[str, Any]
DIALECTS = ("chat", "responses", "messages")
BACKENDS = ("chat", "responses", "messages", "gemini", "codex")


@cache
def loaded() -> tuple[Meter, dict[str, Any]]:
    modules = [f"dialects.{name}" for name in DIALECTS] + [f"backends.{name}" for name in BACKENDS]
    return metered(
        (*modules, "aggregator", "assembly", "core.collect", "core.events", "core.jsonrpc", "adapt.repair",
         "adapt.schemas", "core.sse", "memory.reasoning")
    )  # fmt: skip


def _grown(steps: Callable[[int], int], size: int = SIZE, most: float = MOST) -> str:
    small, large = steps(size), steps(4 * size)
    return f"{small} → {large} steps, × {large / small:.1f}" if large > most * small else ""


def _too_fast(cases: Iterable[tuple[str, Callable[[int], int]]]) -> dict[str, str]:
    return {what: grown for what, steps in cases if (grown := _grown(steps))}


# Requests, in the words of Responses, from which the others are made


def _call(number: int, id: str = "") -> Json:
    arguments = json.dumps({"k": number})
    return {"type": "function_call", "call_id": id or f"c{number}", "name": "a", "arguments": arguments}


def _result(number: int, id: str = "") -> Json:
    return {"type": "function_call_output", "call_id": id or f"c{number}", "output": "r"}


def _said(role: str) -> Json:
    return {"role": role, "content": "x"}


HISTORIES: dict[str, Callable[[range], list[Json]]] = {
    "messages": lambda units: [_said("assistant" if number % 2 else "user") for number in units],
    "messages of the model": lambda units: [_said("user"), *(_said("assistant") for _ in units)],
    "messages of the user": lambda units: [_said("user") for _ in units],
    "calls": lambda units: [_said("user"), *map(_call, units), *map(_result, units)],
    "calls without results": lambda units: [_said("user"), *map(_call, units)],
    "calls of one id": lambda units: [
        _said("user"),
        *(_call(each, "c") for each in units),
        *(_result(each, "c") for each in units),
    ],
    "calls one by one": lambda units: [
        _said("user"),
        *(item for each in units for item in (_call(each), _result(each))),
    ],
    "late results": lambda units: [
        *(item for each in units for item in (_call(each), _said("user"))),
        *map(_result, units),
    ],
    "words between": lambda units: [*map(_call, units), *(_said("assistant") for _ in units), *map(_result, units)],
    "results without calls": lambda units: [_said("user"), *map(_result, units)],
}

TOOLS: dict[str, Callable[[int], str]] = {
    "tools": lambda number: f"t{number}",
    "tools with names that do not fit": lambda number: f"t.{number}",
    "tools of one name": lambda number: "t",
}


def _responses(items: list[Json], tools: list[Json]) -> Json:
    return {"model": "m", "input": items, "tools": tools}


def _chat(items: list[Json], tools: list[Json]) -> Json:
    messages: list[Json] = []
    for item in items:
        if item.get("type") == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if not messages or "tool_calls" not in messages[-1]:
                messages.append({"role": "assistant", "tool_calls": []})
            messages[-1]["tool_calls"].append(call)
        elif "output" in item:
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        else:
            messages.append(item)
    written = [each if "name" not in each else {"type": "function", "function": each} for each in tools]
    return {"model": "m", "messages": messages, "tools": written}


def _messages(items: list[Json], tools: list[Json]) -> Json:
    messages: list[Json] = []
    for item in items:
        role, block = item.get("role", ""), {"type": "text", "text": "x"}
        if item.get("type") == "function_call":
            given = json.loads(item["arguments"])
            role, block = "assistant", {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": given}
        elif "output" in item:
            role, block = "user", {"type": "tool_result", "tool_use_id": item["call_id"], "content": "r"}
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "content": []})
        messages[-1]["content"].append(block)
    written = [
        {"name": each["name"], "input_schema": {"type": "object"}} if "name" in each else {**each, "name": "w"}
        for each in tools
    ]
    return {"model": "m", "max_tokens": 9, "messages": messages, "tools": written}


WRITE = {"chat": _chat, "responses": _responses, "messages": _messages}


def _bodies(dialect: str) -> dict[str, Callable[[int], bytes]]:
    write = WRITE[dialect]

    def history(make: Callable[[range], list[Json]]) -> Callable[[int], bytes]:
        return lambda size: json.dumps(write(make(range(size)), [])).encode()

    def tools(name: Callable[[int], str]) -> Callable[[int], bytes]:
        def body(size: int) -> bytes:
            declared = [
                {"type": "function", "name": name(each), "parameters": {"type": "object"}} for each in range(size)
            ]
            return json.dumps(write([_said("user")], declared)).encode()

        return body

    def hosted(size: int) -> bytes:
        return json.dumps(write([_said("user")], [{"type": f"hosted_{each}"} for each in range(size)])).encode()

    found = {what: history(make) for what, make in HISTORIES.items()}
    return {**found, **{what: tools(name) for what, name in TOOLS.items()}, "hosted tools": hosted}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_requests(dialect: str) -> None:
    meter, modules = loaded()
    decode, assembly, thoughts = (
        modules[f"dialects.{dialect}"].decode_request,
        modules["assembly"],
        modules["memory.reasoning"],
    )

    def cases() -> Iterable[tuple[str, Callable[[int], int]]]:
        for what, body in _bodies(dialect).items():

            def request(size: int, body: Callable[[int], bytes] = body) -> Any:
                return assembly.apply_rules(decode(body(size)), assembly.ToolRules(), results_anywhere=False)

            def decoding(size: int, body: Callable[[int], bytes] = body) -> int:
                data = body(size)
                return counted(meter, lambda: decode(data))

            def ruling(size: int, body: Callable[[int], bytes] = body) -> int:
                read = decode(body(size))
                return counted(meter, lambda: assembly.apply_rules(read, assembly.ToolRules(), results_anywhere=False))

            def remembering(size: int, request: Callable[[int], Any] = request) -> int:
                known, asked = thoughts.ReasoningCache(), request(size)
                known.remember_signature("owner", "signature", "b")
                return counted(
                    meter, lambda: (known.fit_to_backend("b", "owner", asked), known.restore_reasoning("owner", asked))
                )

            yield from ((f"decoding {what}", decoding), (f"closing {what}", ruling), (f"restoring {what}", remembering))
            for backend in BACKENDS:

                def sending(size: int, backend: str = backend, request: Callable[[int], Any] = request) -> int:
                    asked = request(size)
                    return counted(meter, lambda: modules[f"backends.{backend}"].Conversation(asked, "s").start())

                yield f"sending {what} to {backend}", sending

    assert not _too_fast(cases())


# Frames


def _sse(data: Json) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _delta(delta: Json) -> bytes:
    return _sse({"id": "x", "choices": [{"index": 0, "delta": delta}]})


def _part(**call: Any) -> bytes:
    return _delta({"tool_calls": [call]})


def _named(number: int, arguments: str = "{}", **more: Any) -> bytes:
    return _part(**{"index": number, "id": f"c{number}", "function": {"name": "a", "arguments": arguments}, **more})


FRAMES: dict[str, Callable[[range], Iterable[bytes]]] = {
    "text": lambda units: (_delta({"content": "x"}) for _ in units),
    "reasoning": lambda units: (_delta({"reasoning_content": "x"}) for _ in units),
    "details": lambda units: (
        _delta({"reasoning_details": [{"type": "reasoning.text", "text": "x", "index": 0}]}) for _ in units
    ),
    "arguments": lambda units: (_named(0, ""), *(_part(index=0, function={"arguments": "x"}) for _ in units)),
    "blank arguments": lambda units: (_named(0, ""), *(_part(index=0, function={"arguments": " "}) for _ in units)),
    "calls": lambda units: map(_named, units),
    "calls of one id": lambda units: (_named(each, id="c") for each in units),
    "calls of one index": lambda units: (_named(each, index=0) for each in units),
    "calls without id and index": lambda units: (_part(function={"name": "a", "arguments": "{}"}) for _ in units),
    "calls that interleave": lambda units: (
        *(_named(each, "{") for each in units),
        *(_part(index=each, function={"arguments": "}"}) for each in reversed(units)),
    ),
    "calls in the text": lambda units: (
        _delta({"content": f'<use_tool>{{"name":"a","arguments":{{"k":{n}}}}}</use_tool>'}) for n in units
    ),
    "a name in pieces": lambda units: (_part(index=0, id="c", function={"name": "x"}) for _ in units),
    "what cannot be read": lambda units: (b"data: {nope\n\n" for _ in units),
    "lines of data": lambda units: (b"data: x\n" for _ in units),
    "line ends": lambda units: (b"\r" for _ in units),
    "comments": lambda units: (b": x\n\n" for _ in units),
}


LENGTHS = [
    pytest.param(1, id="by byte"),
    pytest.param(100, id="in pieces"),
    pytest.param(1_000_000, id="whole", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("length", LENGTHS)
def test_replies(length: int) -> None:
    """From bytes to the client's bytes, through everything between."""
    meter, modules = loaded()
    size = SIZE // 4 if length == 1 else SIZE
    cases: dict[str, str] = {}
    for what, frames in FRAMES.items():
        for dialect in DIALECTS if length > 1 else DIALECTS[:1]:

            def steps(count: int, frames: Callable[[range], Iterable[bytes]] = frames, dialect: str = dialect) -> int:
                data = b"".join((*frames(range(count)), _delta({}), b"data: [DONE]\n\n"))
                pieces = [data[place : place + length] for place in range(0, len(data), length)]
                tools = [{"type": "function", "name": "a", "parameters": {"type": "object"}}]
                body = json.dumps(WRITE[dialect]([_said("user")], tools)).encode()
                request = modules[f"dialects.{dialect}"].decode_request(body)

                def converse() -> None:
                    conversation = modules["backends.chat"].Conversation(request, "s")
                    assembly = modules["assembly"]
                    made = assembly.assemble_policies(
                        request, assembly.ToolRules(dedup=True), "s", lambda one, other: None
                    )
                    encoder = modules[f"dialects.{dialect}"].StreamEncoder(request, "id", 0, made.stats)
                    reader = modules["core.sse"].FrameReader(delta_fields=conversation.delta_fields)
                    conversation.start()
                    passed: list[Any] = []
                    read = [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()
                    for event in (event for frame in read for event in conversation.feed(frame)):
                        passed += made.policies.feed(event)
                    for event in conversation.end():
                        passed += made.policies.feed(event)
                    for event in passed:
                        encoder.feed(event)
                    conversation.decoder.encode_reasoning()
                    modules[f"dialects.{dialect}"].encode_turn(
                        modules["core.collect"].collect(passed), request, "id", 0
                    )

                return counted(meter, converse)

            grown = _grown(steps, size)
            if grown:
                cases[f"{what} to {dialect}"] = grown
    assert not cases


def _line(method: str, id: int | None = None, /, **params: Any) -> bytes:
    message: Json = {"method": method, "params": {"threadId": "t", "turnId": "u", **params}}
    return json.dumps(message if id is None else {**message, "id": id}).encode() + b"\n"


def _answer(name: str, **result: Any) -> bytes:
    return json.dumps({"id": f"1.{name}", "result": result}).encode() + b"\n"


def _raw(**item: Any) -> bytes:
    return _line("rawResponseItem/completed", item=item)


def _item(number: int, id: str = "", name: str = "a") -> bytes:
    return _raw(type="function_call", id=f"fc{number}", call_id=id or f"c{number}", name=name, arguments="{}")


def _request(number: int, id: str = "") -> bytes:
    return _line("item/tool/call", number, callId=id or f"c{number}", tool="a", arguments={})


def _output(id: str) -> bytes:
    return _raw(type="function_call_output", call_id=id, output="r")


def _message(text: str) -> bytes:
    return _line("item/completed", item={"type": "agentMessage", "id": "m", "text": text})


_SILENT = _answer("probe", thread={"id": "t", "status": {"type": "active"}})
_COMPLETED = _line("rawResponse/completed", usage=None)

LINES: dict[str, Callable[[range], Iterable[bytes]]] = {
    "text": lambda units: (_line("item/agentMessage/delta", itemId="m", delta="x") for _ in units),
    "messages": lambda units: (_line("item/agentMessage/delta", itemId=f"m{each}", delta="x") for each in units),
    "a message that is whole again and again": lambda units: (
        *(_line("item/agentMessage/delta", itemId="m", delta="x") for _ in units),
        *(_message("y") for _ in units),
    ),
    "reasoning": lambda units: (
        _line("item/reasoning/textDelta", itemId=f"r{each}", delta="x", contentIndex=0) for each in units
    ),
    "calls": lambda units: (*map(_item, units), *map(_request, units), _COMPLETED),
    "calls one by one": lambda units: (
        *(line for each in units for line in (_item(each), _request(each))),
        _COMPLETED,
    ),
    "calls in the other order": lambda units: (*map(_item, units), *map(_request, reversed(units)), _COMPLETED),
    "requests before their items": lambda units: (
        _item(-1),
        *map(_request, units),
        *map(_item, reversed(units)),
        _request(-1),
        _COMPLETED,
    ),
    "requests without items": lambda units: (*map(_request, units), _COMPLETED),
    "calls of one id": lambda units: (
        *(_item(each, "c") for each in units),
        *(_request(each, "c") for each in units),
        _COMPLETED,
    ),
    "requests for one call": lambda units: (_item(0), *(_request(each, "c0") for each in units), _COMPLETED),
    "items that are told again": lambda units: (_item(0) for _ in units),
    "calls of unknown tools": lambda units: (
        *(_item(each, name="z") for each in units),
        *(_output(f"c{each}") for each in units),
        *map(_request, units),
        _COMPLETED,
    ),
    "results that app-server gives by itself": lambda units: (
        *map(_item, units),
        *(_output(f"c{each}") for each in reversed(units)),
    ),
    "results of one id": lambda units: (*(_item(each, "c") for each in units), *(_output("c") for _ in units)),
    "results of no call": lambda units: (_output(f"x{each}") for each in units),
    "silence": lambda units: (*map(_item, units), *(_SILENT for _ in units)),
    "silence after requests": lambda units: (*map(_request, units), *(_SILENT for _ in units)),
    "requests that nobody serves": lambda units: (_line("item/other", each) for each in units),
    "retries": lambda units: (_line("error", error={"message": "x"}, willRetry=True) for _ in units),
    "warnings": lambda units: (_line("warning", message="x") for _ in units),
    "what cannot be read": lambda units: (b"{nope\n" for _ in units),
    "lines after the end": lambda units: (_item(0), _request(0), _COMPLETED, *map(_request, units)),
}


def test_lines_of_codex() -> None:
    """A turn of app-server from its lines to its events, and what is kept of it while its calls wait."""
    meter, modules = loaded()
    body = json.dumps(_responses([_said("user")], [{"type": "function", "name": "a"}])).encode()

    def steps(size: int, lines: Callable[[range], Iterable[bytes]]) -> int:
        request = modules["dialects.responses"].decode_request(body)
        started = _line("turn/started", turn={"id": "u", "status": "inProgress", "error": None})
        data = b"".join((_answer("thread", thread={"id": "t"}), started, *lines(range(size))))

        def converse() -> None:
            conversation = modules["backends.codex"].Conversation(request, "s")
            dialogue = conversation.start()
            for frame in modules["core.jsonrpc"].LineReader().feed(data):
                conversation.feed(frame)
            for number in range(size):
                conversation.stand_in(f"c{number}", f"d{number}")
            conversation.end()
            assert dialogue.waiting is None or dialogue.waiting.calls

        return counted(meter, converse)

    # A line costs many steps, so that those for each of the others before it are seen late.
    grown = {what: _grown(lambda size, lines=lines: steps(size, lines), 2 * SIZE, 4.5) for what, lines in LINES.items()}
    assert not {what: found for what, found in grown.items() if found}


def _parts(*parts: Json) -> bytes:
    return _sse({"candidates": [{"content": {"parts": [*parts]}}]})


def _value(path: str, **value: Any) -> bytes:
    piece = {"jsonPath": path, **value}
    return _parts({"functionCall": {"partialArgs": [piece], "willContinue": True}})


_BEGUN = _parts({"functionCall": {"name": "a", "willContinue": True}})

PARTS: dict[str, Callable[[range], Iterable[bytes]]] = {
    "text": lambda units: (_parts({"text": "x"}) for _ in units),
    "text in one chunk": lambda units: (_parts(*({"text": "x"} for _ in units)),),
    "signed text": lambda units: (_parts({"text": "x", "thoughtSignature": "AA=="}) for _ in units),
    "thoughts": lambda units: (_parts({"text": "x", "thought": True, "thoughtSignature": "AA=="}) for _ in units),
    "calls": lambda units: (_parts({"functionCall": {"name": "a", "args": {}}}) for _ in units),
    "calls of one id": lambda units: (_parts({"functionCall": {"name": "a", "id": "c"}}) for _ in units),
    "other parts": lambda units: (_parts({f"other{each}": 1}) for each in units),
    "other parts in one chunk": lambda units: (_parts(*({"other": 1} for _ in units)),),
    "a streamed text": lambda units: (_BEGUN, *(_value("$.a", stringValue="x", willContinue=True) for _ in units)),
    "streamed values": lambda units: (_BEGUN, *(_value(f"$.k{each}", numberValue=each) for each in units)),
    "streamed lists": lambda units: (_BEGUN, *(_value(f"$.k[{each}].a", numberValue=each) for each in units)),
    "a deep path": lambda units: (_BEGUN, _value("$" + ".a" * len(units), boolValue=True)),
    "streamed calls": lambda units: (frame for each in units for frame in (_BEGUN, _value("$.a", numberValue=each))),
    "counts": lambda units: (_sse({"usageMetadata": {"promptTokenCount": each}}) for each in units),
}


def test_chunks_of_gemini() -> None:
    meter, modules = loaded()
    body = json.dumps(_responses([_said("user")], [{"type": "function", "name": "a"}])).encode()

    def steps(size: int, frames: Callable[[range], Iterable[bytes]]) -> int:
        request = modules["dialects.responses"].decode_request(body)
        end = _sse({"candidates": [{"finishReason": "STOP"}]})
        data = b"".join((*frames(range(size)), end))

        def converse() -> None:
            conversation = modules["backends.gemini"].Conversation(request, "s")
            for frame in modules["core.sse"].FrameReader(delta_fields=conversation.delta_fields).feed(data):
                conversation.feed(frame)
            conversation.end()

        return counted(meter, converse)

    grown = {what: _grown(lambda size, frames=frames: steps(size, frames), SIZE) for what, frames in PARTS.items()}
    assert not {what: found for what, found in grown.items() if found}


def test_the_aggregator() -> None:
    meter, modules = loaded()

    def cases() -> Iterable[tuple[str, Callable[[int], int]]]:
        for what, frames in FRAMES.items():

            def steps(size: int, frames: Callable[[range], Iterable[bytes]] = frames) -> int:
                told = [json.loads(frame[6:]) for frame in frames(range(size)) if frame.startswith(b'data: {"')]

                def ingest() -> None:
                    aggregator = modules["aggregator"].ToolCallAggregator(seed="s")
                    for payload in told:
                        aggregator.ingest_delta(payload)
                    aggregator.snapshot()

                return max(1, counted(meter, ingest))

            yield what, steps

    assert not _too_fast(cases())


def test_lines_of_json() -> None:
    meter, modules = loaded()

    def steps(size: int, line: bytes, length: int) -> int:
        data = line * size
        pieces = [data[place : place + length] for place in range(0, len(data), length)]
        return counted(meter, lambda: [modules["core.jsonrpc"].LineReader().feed(piece) for piece in pieces])

    for line in (b'{"method":"x"}\n', b"x", b"\n"):
        for length in (1, 50, 1_000_000):
            assert not _grown(lambda size, line=line, length=length: steps(size, line, length))


REPAIRED: dict[str, Callable[[int], str]] = {
    "keys": lambda size: "{" + ",".join(f"k{each}: 1" for each in range(size)),
    "quotes": lambda size: "{'k': '" + "\\'" * size + "'}",
    "an open text": lambda size: '{"k": "' + "x" * size,
    "open texts": lambda size: "{" + '"k": ' * size,
    "brackets": lambda size: "[" * size,
    "commas": lambda size: "[1" + ",," * size,
    "fences": lambda size: "```" * size,
}


def test_mending_arguments() -> None:
    meter, modules = loaded()
    repair_json = modules["adapt.repair"].repair_json
    cases = (
        (what, lambda size, make=make: counted(meter, lambda: repair_json(make(size))))
        for what, make in REPAIRED.items()
    )
    assert not _too_fast(cases)


SCHEMAS: dict[str, Callable[[range], Json]] = {
    "properties": lambda units: {"properties": {f"p{each}": {"const": each} for each in units}},
    "references": lambda units: {
        "$defs": {"d": {"type": "string"}},
        "properties": {f"p{each}": {"$ref": "#/$defs/d"} for each in units},
    },
    "alternatives": lambda units: {"anyOf": [{"properties": {f"p{each}": {"type": "string"}}} for each in units]},
    "alternatives of one property": lambda units: {"anyOf": [{"properties": {"p": {"const": each}}} for each in units]},
    "required": lambda units: {"properties": {}, "required": [f"p{each}" for each in units]},
}


def test_fitting_schemas() -> None:
    meter, modules = loaded()
    schemas = modules["adapt.schemas"]
    needs = tuple(schemas.CHANGES)

    def cases() -> Iterable[tuple[str, Callable[[int], int]]]:
        for what, make in SCHEMAS.items():
            for need in needs:

                def steps(size: int, make: Callable[[range], Json] = make, need: str = need) -> int:
                    raw = schemas.msgspec.Raw(json.dumps({"type": "object", **make(range(size))}).encode())
                    schemas._adjusted_schemas.clear()
                    return counted(meter, lambda: schemas.adjust(raw, (need,)))

                yield f"{what}, {need}", steps

    assert not _too_fast(cases())
