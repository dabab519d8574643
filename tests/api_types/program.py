"""A user's program that touches the public API. It is not run: pyright in strict mode and mypy --strict read it.

`assert_type` says what a user may rely on.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, assert_type

from fastapi import FastAPI

import toolwire
from toolwire import (
    RULES,
    Call,
    CallStarted,
    ConvertedRequest,
    Dialect,
    Event,
    Failure,
    Finding,
    GatewayApp,
    Note,
    RateLimited,
    Reasoning,
    Settings,
    StreamDecoder,
    StreamEncoder,
    Text,
    TextDelta,
    ToolCallAggregator,
    ToolwireError,
    Translator,
    Turn,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
    acompletion,
    check_body,
    check_stream,
    collect,
    completion,
    convert_request,
    create_app,
    decode_body,
    decode_stream,
    encode_body,
    encode_error,
    encode_stream,
    events_of,
    extract_use_tool_blocks,
    to_obsidian_xml,
    translate,
    translate_body,
)


def streams(dialect: Dialect, chunks: list[bytes]) -> None:
    events = decode_stream(dialect, chunks, max_calls=1, dedup=True, tools=["look"], output_mode="openai-json")
    assert_type(events, Iterator[Event])
    assert_type(collect(events), Turn)
    written = encode_stream("chat", [TurnStarted("r", "m"), TextDelta("x"), TurnEnded()], model="m", created=1)
    assert_type(written, Iterator[bytes])
    assert_type(translate("responses", "chat", chunks, stop_after=True, include_usage=True), Iterator[bytes])
    decoder = StreamDecoder("messages", text_calls=False, profile={"strict": False})
    assert_type(decoder.feed(b""), list[Event])
    assert_type(decoder.end(), list[Event])
    assert_type(decoder.ended, bool)
    assert_type(StreamEncoder("messages", id="msg_1").feed(TextDelta("x")), bytes)
    assert_type(Translator("chat", "responses", seed="s").feed(b""), bytes)


async def calls() -> None:
    messages = [{"role": "user", "content": "Hello"}]
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert_type(completion("demo", messages, tools=tools, temperature=0.5), dict[str, Any])
    assert_type(completion("demo", messages, stream=True, stop=["x"]), Generator[dict[str, Any], None, None])
    assert_type(await acompletion("m", messages, base_url="http://127.0.0.1:1/v1", api_key="k"), dict[str, Any])
    try:
        chunks = await acompletion("m", messages, stream=True, settings=Settings(), extra_body={"top_k": 1})
    except RateLimited as error:
        assert_type(error.failure.retry_after, str)
        return
    assert_type(chunks, AsyncGenerator[dict[str, Any], None])


def turns(turn: Turn) -> str:
    assert_type(turn.calls, tuple[Call, ...])
    assert_type(turn.usage, Usage | None)
    assert_type(turn.notes, tuple[Note, ...])
    assert_type(turn.failure, Failure | None)
    for item in turn.items:
        if isinstance(item, Text):
            assert_type(item.text, str)
        elif isinstance(item, Reasoning):
            assert_type(item.parts, tuple[str, ...])
        elif isinstance(item, Call):
            assert_type(item.arguments, str)
    for event in events_of(turn):
        match event:
            case CallStarted(id, name):
                return id + name
            case TurnFailed(failure):
                assert_type(failure, Failure)
            case _:
                pass
    return turn.text


def bodies(body: bytes, answer: Mapping[str, object]) -> bytes:
    assert_type(decode_body("chat", body), Turn)
    assert_type(encode_body("messages", decode_body("chat", answer), created=1), bytes)
    return translate_body("chat", "responses", body.decode(), model="m")


def requests(body: bytes, chunks: list[bytes]) -> None:
    converted = convert_request("responses", "chat", body, profile={"notations": ["think"]}, history="strict")
    assert_type(converted, ConvertedRequest)
    assert_type(converted.body, bytes)
    assert_type(converted.headers, Mapping[str, str])
    assert_type(converted.notes, tuple[Note, ...])
    assert_type(converted.names, Mapping[str, str])
    assert_type(converted.translate(chunks, id="x"), Iterator[bytes])
    assert_type(converted.translator(), Translator)
    assert_type(converted.decoder(), StreamDecoder)
    assert_type(converted.decode_body(b"{}"), Turn)
    assert_type(encode_error("responses", converted.failure(500, b"")), bytes)
    assert_type(decode_stream("chat", chunks, answers=converted), Iterator[Event])


def checks(chunks: list[bytes]) -> list[str]:
    found = check_stream("chat", chunks, request={"model": "m"})
    assert_type(found, list[Finding])
    assert_type(check_body("chat", b"{}"), list[Finding])
    return [finding.detail for finding in found if RULES[finding.rule].level == "MUST"]


def aggregates() -> tuple[Call, ...]:
    aggregator = ToolCallAggregator(names=["search"])
    for delta in aggregator.ingest_delta({"tool_calls": []}).deltas:
        assert_type(delta.arguments, str)
    assert_type(extract_use_tool_blocks("x"), list[tuple[str, str]])
    assert_type(to_obsidian_xml("search", "{}"), str)
    return aggregator.snapshot()


async def relay(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    translator = Translator("responses", "chat")
    async for chunk in chunks:
        yield translator.feed(chunk)
    yield translator.end()


def application() -> FastAPI:
    try:
        gateway = create_app(Settings.from_dict({"tools": {"max_calls": 1}}))
    except ToolwireError as error:
        assert_type(error.failure, Failure)
        gateway = create_app(Settings.from_file("toolwire.toml"))
    assert_type(gateway, GatewayApp)
    app = FastAPI(lifespan=gateway.lifespan)
    app.mount("/llm", gateway)
    return app


VERSION: str = toolwire.__version__
