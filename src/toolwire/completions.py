"""One request to a model as a completion, for programs that need neither an agent nor a gateway.

    completion = toolwire.completion("demo", [{"role": "user", "content": "Hello"}])
    print(completion["choices"][0]["message"]["content"], completion["toolwire"]["notes"])

The answer is the JSON that a gateway with the same settings sends. Each call opens its own connections and closes them.
Reasoning that a model needs back, and for which messages have no field, is remembered in this process.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from secrets import token_hex
from threading import Thread
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, overload

import msgspec

from toolwire.config.settings import Settings, bytes_of, find_model
from toolwire.core.collect import Collector
from toolwire.core.errors import BadRequest, ReplyTooLarge, fault_of
from toolwire.core.events import TurnEnded, TurnFailed
from toolwire.core.request import Request
from toolwire.dialects import chat
from toolwire.library.bodies import as_bytes
from toolwire.memory.reasoning import ReasoningCache
from toolwire.turns.prepare import Engine, LocalCaller, Options, prepare
from toolwire.turns.recordings import make_recordings
from toolwire.turns.routes import Router
from toolwire.turns.run import Run, find_early_failure
from toolwire.upstream.http import HttpSession
from toolwire.upstream.scheduling import Alarm, Ticker

Json: TypeAlias = Mapping[str, Any]
Messages: TypeAlias = Sequence[Json]
Answer: TypeAlias = dict[str, Any]
_NO_DEADLINE = float("inf")
_REASONING = ReasoningCache()


class CompletionOptions(TypedDict, total=False):
    """Fields of a request, of which None is not sent, and the place of the model, as an `Agent` takes it."""

    tools: Sequence[Json] | None
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None
    response_format: Json | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    max_completion_tokens: int | None
    stop: str | Sequence[str] | None
    n: int | None
    seed: int | None
    reasoning_effort: str | None
    stream_options: Json | None
    extra_body: Json  # other fields
    settings: Settings | None
    backend: str
    base_url: str
    api_key: str


_PLACE = ("extra_body", "settings", "backend", "base_url", "api_key")


@overload
async def acompletion(
    model: str, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[CompletionOptions]
) -> Answer: ...
@overload
async def acompletion(
    model: str, messages: Messages, *, stream: Literal[True], **options: Unpack[CompletionOptions]
) -> AsyncGenerator[Answer]: ...
async def acompletion(
    model: str, messages: Messages, *, stream: bool = False, **options: Unpack[CompletionOptions]
) -> Answer | AsyncGenerator[Answer]:
    """Ask a model once. `stream=True` returns an iterator of chunks when the model begins to answer.

    Raises `BadRequest`, which names the field, `SettingsError`, or the `BackendFault` of the model's server, which a
    stream may also raise later. Closing the iterator, or cancelling the call, stops the model.
    """
    answers = _answer(model, messages, options, stream=stream)
    await anext(answers)
    if stream:
        return answers
    async with aclosing(answers):
        return await anext(answers)


@overload
def completion(
    model: str, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[CompletionOptions]
) -> Answer: ...
@overload
def completion(
    model: str, messages: Messages, *, stream: Literal[True], **options: Unpack[CompletionOptions]
) -> Generator[Answer]: ...
def completion(
    model: str, messages: Messages, *, stream: bool = False, **options: Unpack[CompletionOptions]
) -> Answer | Generator[Answer]:
    """The same as `acompletion`, for code that does not await. An event loop that runs in this thread is blocked."""
    answers = _iterate(_answer(model, messages, options, stream=stream))
    next(answers)
    if stream:
        return answers
    with closing(answers):
        return next(answers)


async def _answer(
    model: str, messages: Messages, options: CompletionOptions, *, stream: bool
) -> AsyncGenerator[Answer]:
    """An empty dict when the model begins to answer, then the chunks or the completion."""
    request = _read_request(options, {"model": model, "messages": messages, "stream": stream})
    place = options.get("settings"), options.get("backend", ""), options.get("base_url", "")
    settings, name = find_model(model, *place)
    seed, loop = token_hex(12), asyncio.get_running_loop()
    async with HttpSession(settings.timeouts) as session, AsyncExitStack() as stack:
        router = Router(settings, session, listing="The settings name them")
        stack.push_async_callback(router.stop)
        engine = Engine(settings, router, _REASONING, make_recordings(settings))
        caller = LocalCaller(upstream_key=options.get("api_key", ""))
        asked = msgspec.structs.replace(_REASONING.restore_reasoning("", request), model=name)
        job = prepare(engine, asked, caller, Options(settings.tools, seed))
        run = Run(job, loop, Alarm(Ticker(loop)))
        stack.callback(run.close)
        events = await run.read(_NO_DEADLINE)
        id, created, stats = chat.new_id(seed), int(time.time()), run.assembly.stats
        encoder, collector = chat.StreamEncoder(request, id, created, stats), Collector()
        if (failure := find_early_failure(events)) is not None:
            raise fault_of(failure)
        yield {}
        while events:
            for event in events:
                if isinstance(event, TurnFailed):
                    raise fault_of(event.failure)
                if not stream:
                    collector.feed(event)
                    continue
                lines = b"".join(encoder.feed(event)).split(b"\n")
                chunks = [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
                if isinstance(event, TurnEnded):
                    chunks[-1]["toolwire"] = msgspec.json.decode(stats.comment())
                for chunk in chunks:
                    yield chunk
            if collector.size > (limit := bytes_of(settings.server.max_reply)):
                raise ReplyTooLarge(limit)
            events = await run.read(_NO_DEADLINE)
        if not stream:
            whole = msgspec.json.decode(chat.encode_turn(collector.end()[0], request, id, created))
            yield {**whole, "toolwire": msgspec.json.decode(stats.comment())}


def _read_request(options: CompletionOptions, fields: dict[str, Any]) -> Request:
    """Decode the request. Raises `BadRequest`, which names the field, and `TypeError` for an unknown option."""
    for name in options.keys() - CompletionOptions.__optional_keys__:
        raise TypeError(f"completion has no option {name!r}; `extra_body` takes other fields of a request")
    pieces: list[bytes] = []
    extra: object = options.get("extra_body", {})
    if not isinstance(extra, Mapping):
        raise BadRequest(f"extra_body must be a mapping, not {type(extra).__name__}.", "extra_body")
    for name, value in {**cast("Json", extra), **options, **fields}.items():
        if value is not None and name not in _PLACE:
            try:
                pieces.append(as_bytes({name: value})[1:-1])
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise BadRequest(f"{name} cannot be written as JSON: {error}.", name) from None
    return chat.decode_request(b"{%b}" % b",".join(pieces))


def _iterate(answers: AsyncGenerator[Answer]) -> Generator[Answer]:
    """The same values, from an event loop in a thread of its own."""
    runner, stop = asyncio.Runner(loop_factory=asyncio.new_event_loop), asyncio.Event()
    loop = runner.get_loop()

    def serve() -> None:
        with runner:  # which closes what is open
            runner.run(stop.wait())

    async def read_next() -> Answer:
        return await anext(answers)

    thread = Thread(target=serve, name="toolwire.completion", daemon=True)
    thread.start()
    try:
        while True:
            future = asyncio.run_coroutine_threadsafe(read_next(), loop)
            try:
                answer = future.result()
            except StopAsyncIteration:
                return
            finally:
                future.cancel()  # after an interrupt, such as Ctrl-C
            yield answer
    finally:
        if not sys.is_finalizing():  # then the thread no longer runs
            loop.call_soon_threadsafe(stop.set)
            thread.join()
