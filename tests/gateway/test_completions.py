"""`toolwire.completion` and `acompletion`: one call without a gateway, with the answer that a gateway gives."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest

import toolwire
from tests.agent.stage import Far, play, refuses, turn
from tests.gateway.test_matrix import TURNS
from tests.support.backend_writers import reply
from tests.support.routes import Routes, question
from tests.support.scripts import KINDS, Calls, Declared, Name, Says, Script, Thinks
from tests.support.upstream import Cut, Hold, Reply
from toolwire import BackendFault, BadRequest, RateLimited, Settings, SettingsError, acompletion, completion

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
TURN = Script((Says("Let me look."), Calls("c1", "look", '{"at":"x"}')), tools=(Declared("look"),))


def settings_of(routes: Routes) -> Settings:
    return Settings.from_dict({"backends": _entries(routes.upstream.url)}, {})


def _entries(url: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "kind": name, "base_url": url, "retries": 0, **fields} for name in KINDS]


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]


def figures_in(stream: bytes) -> dict[str, Any]:
    return next(json.loads(line[2:]) for line in stream.split(b"\n") if line.startswith(b': {"tool_call_count"'))


def comparable(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All but when it was made and the ids, which begin with the seed of the turn."""
    seed = answers[0]["id"].removeprefix("chatcmpl-")
    return json.loads(json.dumps([{**each, "created": 0} for each in answers]).replace(seed, "SEED"))


# The answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["text between calls", "a thought, text and two calls", "all kinds of tokens"])
def test_a_completion_is_what_the_gateway_sends(routes: Routes, name: str, kind: Name):
    script, model = TURNS[name], f"completion {name} {kind}"
    body = question("chat", f"{kind}/{model}", script.tools, stream=False)
    routes.upstream.replies[model] = reply(script, kind, stream=False)
    sent = routes.post("chat", body)
    given = {key: value for key, value in body.items() if key not in ("model", "messages", "stream")}
    made = completion(body["model"], body["messages"], stream=False, settings=settings_of(routes), **given)
    figures = made.pop("toolwire")
    assert comparable([made]) == comparable([sent.json()])
    assert json.loads(sent.headers.get("x-toolwire-notes", "[]")) == figures["notes"]
    first, second = routes.upstream.of(model)
    assert first.body == second.body


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["text between calls", "a thought, text and two calls", "all kinds of tokens"])
def test_chunks_are_what_the_gateway_sends(routes: Routes, name: str, kind: Name):
    script, model = TURNS[name], f"completion stream {name} {kind}"
    body = question("chat", f"{kind}/{model}", script.tools, stream=True)
    routes.upstream.replies[model] = reply(script, kind, stream=True)
    sent = routes.post("chat", body).content
    given = {key: value for key, value in body.items() if key not in ("model", "messages", "stream")}
    made = list(completion(body["model"], body["messages"], stream=True, settings=settings_of(routes), **given))
    assert made[-1].pop("toolwire") == figures_in(sent)
    assert all("toolwire" not in chunk for chunk in made)
    assert joined(comparable(made)) == joined(comparable(chunks_of(sent)))


def joined(chunks: list[dict[str, Any]]) -> list[Any]:
    """What the chunks say, however the text was cut by reads."""
    texts = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    args = [
        call["function"]["arguments"]
        for chunk in chunks
        if chunk["choices"]
        for call in chunk["choices"][0]["delta"].get("tool_calls") or ()
    ]
    return [texts, "".join(args), chunks[0], chunks[-1]]


def test_notes_say_what_was_changed(routes: Routes):
    model = "completion notes"
    routes.upstream.replies[model] = reply(Script((Says("Hi."),)), "messages", stream=False)
    made = completion(f"messages/{model}", HELLO, settings=settings_of(routes), extra_body={"mirostat": 2})
    assert made["toolwire"]["notes"] == [{"code": "field_dropped", "subject": "mirostat"}]


def test_the_message_of_a_completion_is_a_message_of_the_next_request():
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    message = completion("demo", messages, tools=tools)["choices"][0]["message"]
    [call] = message["tool_calls"]
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"}]
    answer = completion("demo", messages, tools=tools)
    assert "18 degrees" in answer["choices"][0]["message"]["content"]
    assert toolwire.decode_body("chat", answer).text.endswith("18 degrees")


def test_signed_reasoning_returns_to_its_server_though_messages_cannot_hold_it():
    async def main() -> None:
        thinks = turn(Thinks("I look.", "signature-1"), Calls("c1", "look"), kind="messages")
        async with Far(thinks, turn(Says("Done."), kind="messages"), kind="messages") as far:
            place: Any = {
                "backend": f"messages:{far.url}",
                "settings": Settings(),
                "tools": TOOLS,
                "reasoning_effort": "low",
            }
            chunks = [chunk async for chunk in await acompletion("m", HELLO, stream=True, **place)]
            assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "tool_calls"
            call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            history = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
            result = {"role": "tool", "tool_call_id": "c1", "content": "Nothing."}
            async for _ in await acompletion("m", [*history, result], stream=True, **place):
                pass
            blocks = far.asked[1].body["messages"][1]["content"]
            assert blocks[0] == {"type": "thinking", "thinking": "I look.", "signature": "signature-1"}

    play(main())


# Where it works


def test_it_works_inside_a_running_loop_and_leaves_no_thread():
    async def main() -> list[str]:
        before = threading.active_count()
        made = [completion("demo", HELLO)["object"], *{c["object"] for c in completion("demo", HELLO, stream=True)}]
        assert threading.active_count() == before
        return made

    assert play(main()) == ["chat.completion", "chat.completion.chunk"]


def test_calls_of_many_threads_do_not_disturb_each_other(routes: Routes):
    model, settings = "completion threads", settings_of(routes)
    routes.upstream.replies[model] = reply(TURN, "messages", stream=False)
    made: list[Any] = []

    def ask() -> None:
        made.append(completion(f"messages/{model}", HELLO, tools=TOOLS, settings=settings)["choices"][0]["message"])

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [message["tool_calls"][0]["id"] for message in made] == ["c1"] * 16


def test_a_stream_may_be_read_by_another_task():
    async def main() -> None:
        async with Far(turn(Says("Hi."), kind="chat"), kind="chat") as far:
            chunks = await acompletion("m", HELLO, stream=True, base_url=far.url)

            async def read() -> list[dict[str, Any]]:
                return [chunk async for chunk in chunks]

            assert (await asyncio.create_task(read()))[-1]["choices"][0]["finish_reason"] == "stop"

    play(main())


def test_a_timeout_interrupts_the_task_that_reads():
    async def main() -> None:
        first = backend_piece("Hi")
        settings = {"timeouts": {"idle": 0.2}}
        async with Far(Reply([first, Hold()]), kind="chat") as far:
            table = {**settings, "backends": [{"name": "up", "kind": "chat", "base_url": far.url}]}
            chunks = await acompletion("up/m", HELLO, stream=True, settings=Settings.from_dict(table, {}))

            async def read() -> None:
                async for _ in chunks:
                    pass

            with pytest.raises(BackendFault, match=r"timeouts\.idle"):
                await asyncio.create_task(read())

    play(main())


def backend_piece(text: str) -> bytes:
    delta = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}
    return b"data: " + json.dumps({"id": "x", "model": "m", **delta}).encode() + b"\n\n"


# The end of its connection


async def _close(chunks: AsyncGenerator[Any]) -> None:
    await chunks.aclose()


async def _forget(chunks: AsyncGenerator[Any]) -> None:
    await anext(chunks)


@pytest.mark.parametrize("leave", [_close, _forget], ids=["closed before it was read", "forgotten"])
def test_a_stream_that_is_left_stops_the_model(leave: Callable[[AsyncGenerator[Any]], Any]):
    async def main() -> None:
        async with Far(Reply([backend_piece("Hi"), Hold()]), kind="chat") as far:
            await leave(await acompletion("m", HELLO, stream=True, base_url=far.url))
            await far.gone.wait()

    play(main())


def test_a_cancelled_call_stops_the_model():
    async def main() -> None:
        async with Far(Reply([Hold()]), kind="chat") as far:
            task = asyncio.create_task(acompletion("m", HELLO, base_url=far.url))
            await far.came[0].wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await far.gone.wait()

    play(main())


def test_an_iterator_that_is_forgotten_stops_the_model_and_its_thread(routes: Routes):
    model, before = "completion forgotten", threading.active_count()
    routes.upstream.replies[model] = Reply([backend_piece("Hi"), Hold()])
    routes.upstream.gone.clear()
    chunks = completion(f"chat/{model}", HELLO, stream=True, settings=settings_of(routes))
    del chunks
    assert routes.upstream.gone.wait(60)
    assert threading.active_count() == before


def test_a_program_ends_while_a_stream_is_open():
    program = (
        "import toolwire\n"
        "chunks = toolwire.completion('demo-slow', [{'role': 'user', 'content': 'x'}], stream=True)\n"
        "print(next(chunks)['object'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "chat.completion.chunk\n", "")


# What can go wrong


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_raised_before_a_stream_is_returned(stream: bool):
    async def main() -> None:
        async with Far(refuses(429, "Slow down.", kind="chat", retry_after="7"), kind="chat") as far:
            table = {"backends": [{"name": "up", "kind": "chat", "base_url": far.url, "retries": 0}]}
            with pytest.raises(RateLimited, match=r"^Slow down") as caught:
                await acompletion("up/m", HELLO, stream=stream, settings=Settings.from_dict(table, {}))
            assert caught.value.failure.retry_after == "7"

    play(main())


def test_a_stream_that_breaks_raises_after_its_chunks():
    async def main() -> None:
        async with Far(Reply([backend_piece("Hi"), Cut()]), kind="chat") as far:
            chunks = await acompletion("m", HELLO, stream=True, base_url=far.url)
            said = [(await anext(chunks))["choices"][0]["delta"]["content"] for _ in range(2)]
            assert said == [None, "Hi"]
            with pytest.raises(BackendFault, match="broke"):
                await anext(chunks)

    play(main())


def test_a_failed_attempt_is_repeated_and_the_next_backend_is_asked():
    async def main() -> None:
        busy = [refuses(503, "Busy.", kind="chat", retry_after="0") for _ in range(2)]
        async with (
            Far(*busy, kind="chat") as first,
            Far(turn(Says("Here."), kind="messages"), kind="messages") as second,
        ):
            entries = [
                {"name": "a", "kind": "chat", "base_url": first.url, "models": ["m"], "retries": 1},
                {"name": "b", "kind": "messages", "base_url": second.url, "models": ["m"]},
            ]
            made = await acompletion("m", HELLO, stream=True, settings=Settings.from_dict({"backends": entries}, {}))
            codes = [note["code"] for note in [c async for c in made][-1]["toolwire"]["notes"]]
            assert (len(first.asked), codes) == (2, ["retried", "failed_over"])

    play(main())


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": "nothing-here"}, "model"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": object()}]}, "messages"),
        ({"tools": "look"}, "tools"),
        ({"temperature": "warm"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"n": 2}, "n"),
        ({"extra_body": ["x"]}, "extra_body"),
        ({"extra_body": {"x": object()}}, "x"),
    ],
)
def test_bad_input_names_the_field(given: dict[str, Any], param: str):
    arguments: dict[str, Any] = {"model": "demo", "messages": HELLO, "settings": Settings.from_dict({}, {}), **given}
    with pytest.raises(BadRequest) as refused:
        completion(**arguments)
    assert refused.value.param == param


def test_an_unknown_option_and_a_place_that_cannot_be_are_named():
    with pytest.raises(TypeError, match="completion has no option 'temprature'"):
        completion("demo", HELLO, temprature=1)  # pyright: ignore
    with pytest.raises(SettingsError, match=r"^base_url: 'nowhere' is not an address"):
        completion("m", HELLO, base_url="nowhere")
    with pytest.raises(SettingsError, match=r"^base_url: a backend is given too"):
        completion("m", HELLO, base_url="http://127.0.0.1:1/v1", backend="chat:http://127.0.0.1:1/v1")


def test_a_key_is_sent_where_the_settings_name_none():
    async def main() -> None:
        async with Far(turn(Says("Hi."), kind="chat"), kind="chat") as far:
            async for _ in await acompletion("m", HELLO, stream=True, base_url=far.url, api_key="sk-mine"):
                pass
            assert far.asked[0].headers["authorization"] == "Bearer sk-mine"
            assert far.asked[0].body["model"] == "m"

    play(main())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("openai:gpt-5", "Write openai/gpt-5. No backend is named 'openai'"),
        ("ollama:qwen3:8b", "Write ollama/qwen3:8b. No backend is named 'ollama'"),
        ("chat:m", "Write chat/m."),
        ("openai/gpt-5", "No backend is named 'openai': add one with preset = \"openai\" to the settings."),
    ],
)
def test_a_name_as_other_libraries_write_it_gets_a_hint(routes: Routes, model: str, said: str):
    entries = [{**entry, "models": ["served"]} for entry in _entries(routes.upstream.url)]
    with pytest.raises(BadRequest, match="There is no model") as refused:
        completion(model, HELLO, settings=Settings.from_dict({"backends": entries}, {}))
    assert said in str(refused.value)
