"""Histories that a model's context window is too small for: when they are summarised, and that it comes to an end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.stage import (
    Far,
    agent_on,
    assert_paired,
    assert_whole,
    echo,
    ended,
    item_done,
    only,
    play,
    refuses,
    runner_on,
    streams,
    turn,
    types_of,
    worked,
)
from tests.support.backend_writers import frame
from tests.support.frames import created, rs, sse
from tests.support.frames import text as said
from tests.support.scripts import NAMES, TEXTUAL, Calls, Name, Says
from tests.support.scripts import Tokens as Counted
from tests.support.upstream import Reply
from toolwire.agent import AgentConfig, Session, tool
from toolwire.agent.events import AgentEvent, Compacted, Retrying
from toolwire.agent.history import newest_items, read_items, size_of, user_message
from toolwire.agent.task import MAX_HALVINGS
from toolwire.config.settings import DEMO, Backend, Settings

Json = dict[str, Any]


def refused(status: int, **error: Any) -> Reply:
    return Reply([json.dumps({"error": error}).encode()], status=status, content_type="application/json")


def too_long(kind: Name = "responses") -> Reply:
    """A refusal in the words of a kind's own vendor."""
    if kind == "messages":
        return refuses(400, "prompt is too long: 208310 tokens > 200000 maximum", kind="messages")
    message = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    return refused(400, message=message, type="invalid_request_error", code="context_length_exceeded")


IN_A_STREAM = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
WAYS: dict[str, tuple[Name, Callable[[], Reply]]] = {
    "OpenAI": ("chat", lambda: too_long("chat")),
    "Anthropic": ("messages", lambda: too_long("messages")),
    "vLLM": (
        "chat",
        lambda: refused(400, message="prompt (length 5000) is longer than the maximum model length of 4096", code=400),
    ),
    "llama.cpp": (
        "chat",
        lambda: refused(
            500, message="the request exceeds the available context size", type="exceed_context_size_error", code=500
        ),
    ),
    "Ollama": ("chat", lambda: refused(400, message="the input length exceeds the context length")),
    "a body that is too large": ("messages", lambda: refuses(413, "Request exceeds the maximum size", kind="messages")),
    "LM Studio, in a stream": (
        "chat",
        lambda: streams(frame("", {"error": {"message": "Context size has been exceeded."}})),
    ),
    "a failed response": (
        "responses",
        lambda: streams(created(), rs("failed", response={"id": "resp_1", "status": "failed", "error": IN_A_STREAM})),
    ),
    "an error event": (
        "responses",
        lambda: streams(created(), sse({"type": "error", **IN_A_STREAM})),
    ),
    "a failed response behind words": (
        "responses",
        lambda: streams(created(), said("hal"), rs("failed", response={"id": "resp_1", "error": IN_A_STREAM})),
    ),
}


@pytest.mark.parametrize(("kind", "overflow"), WAYS.values(), ids=WAYS)
def test_a_history_that_does_not_fit_is_summarised_and_the_work_goes_on(
    kind: Name, overflow: Callable[[], Reply]
) -> None:
    async def main() -> None:
        replies = [
            turn(Calls("c1", "look", '{"path":"a"}'), kind=kind),
            overflow(),
            turn(Says("We looked at a."), kind=kind),
            turn(Says("done"), kind=kind),
        ]
        async with Far(*replies, kind=kind) as far:
            agent = agent_on(far, echo(), config=AgentConfig(retries=3))
            events = await worked(agent, "Look at a")
            assert (ended(events).reason, ended(events).text) == ("done", "done")
            assert len(far.asked) == 4
            assert only(events, Retrying) == []
            assert only(events, Compacted) == [Compacted(3, 2)]
            last = far.posted[3].decode()
            assert "We looked at a." in last
            assert "Look at a" in last
            assert "saw a" not in last
            assert_whole(agent.session.history)

    play(main())


def test_a_history_that_still_does_not_fit_is_not_summarised_again() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look")), too_long(), turn(Says("Sum.")), too_long()) as far:
            agent = agent_on(far, echo(), config=AgentConfig(retries=3))
            events = await worked(agent)
            assert ended(events).reason == "failed"
            assert "maximum context length" in ended(events).error
            assert len(far.asked) == 4
            assert_whole(agent.session.history)

    play(main())


def test_every_overflow_is_answered_once() -> None:
    async def main() -> None:
        rounds = [(turn(Calls(f"c{n}", "look")), too_long(), turn(Says("Sum."))) for n in range(3)]
        async with Far(*(reply for each in rounds for reply in each), turn(Says("done"))) as far:
            events = await worked(agent_on(far, echo()))
            assert ended(events).text == "done"
            assert len(only(events, Compacted)) == 3
            assert len(far.asked) == 10

    play(main())


def test_a_prompt_that_does_not_fit_is_an_error_at_once() -> None:
    async def main() -> None:
        async with Far(too_long()) as far:
            done = ended(await worked(agent_on(far), "x" * 1000))
            assert done.reason == "failed"
            assert len(far.asked) == 1

    play(main())


def test_a_model_that_nothing_fits_into_is_not_asked_forever() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look")), *(too_long() for _ in range(50))) as far:
            agent = agent_on(far, echo(), config=AgentConfig(retries=3))
            events = await worked(agent)
            assert ended(events).reason == "failed"
            assert only(events, Compacted) == []
            assert len(far.asked) == 2 + MAX_HALVINGS + 1
            assert len(agent.session.history) == 3, "it stays as it is"

    play(main())


@pytest.mark.parametrize("kind", NAMES)
def test_a_history_that_is_too_long_to_be_summarised_is_halved(kind: Name) -> None:
    @tool
    async def read() -> str:
        return "x" * 100_000

    async def main() -> None:
        replies = [
            *(turn(Says(f"Reading {n}."), Calls(f"c{n}", "read"), kind=kind) for n in range(3)),
            *(too_long(kind) for _ in range(4)),
            turn(Says("Only letters."), kind=kind),
            turn(Says("done"), kind=kind),
        ]
        async with Far(*replies, kind=kind) as far:
            agent = agent_on(far, read)
            events = await worked(agent, "Read it all")
            assert ended(events).text == "done"
            sizes = [len(body) for body in far.posted]
            assert sizes[4] > sizes[5] > sizes[6] > sizes[7]
            assert sizes[7] < sizes[4] / 6
            assert "Reading 2." in far.posted[7].decode(), "what was done last is known"
            assert "Read it all" in far.posted[8].decode(), "the prompt stays"
            assert_whole(agent.session.history)

    play(main())


def results(*sizes: int) -> list[Any]:
    """A conversation of one prompt and a call for each size, whose result is so long."""
    items: list[Json] = [json.loads(bytes(user_message("go").raw))]
    for number, size in enumerate(sizes):
        items += [
            {"type": "reasoning", "id": f"rs_{number}", "summary": []},
            {"type": "function_call", "call_id": f"a{number}", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": f"b{number}", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"a{number}", "output": "x" * size},
            {"type": "function_call_output", "call_id": f"b{number}", "output": "y" * size},
        ]
    return read_items(msgspec.json.encode(item) for item in items)


@pytest.mark.parametrize("letters", [0, 10, 500, 1000, 2000, 4000, 8000, 100_000])
@pytest.mark.parametrize("sizes", [(), (100,), (100, 100, 100), (5000, 10, 10), (10, 10, 5000)])
def test_the_newest_part_of_a_history_has_whole_turns_and_fits_if_it_can(sizes: tuple[int, ...], letters: int) -> None:
    items = results(*sizes)
    part = [json.loads(bytes(item.raw)) for item in newest_items(items, letters)]
    assert part[0]["type"] == "message"
    assert_paired(part)
    calls = [item["call_id"] for item in part if item["type"] == "function_call"]
    assert calls == [each for number in range(len(sizes)) for each in (f"a{number}", f"b{number}")][-len(calls) or 99 :]
    assert types_of(part[1:2]) in ([], ["reasoning"]), "a call keeps its reasoning"
    turns = len(calls) // 2
    assert size_of(newest_items(items, letters)) <= letters + 400 or turns <= 1


def test_the_newest_part_of_nothing_is_nothing_but_words() -> None:
    assert types_of([json.loads(bytes(item.raw)) for item in newest_items([], 10)]) == ["message"]


# When an answer does not fit


def answers_until_full(kind: Name) -> Reply:
    """An answer that ends because the window is full, as a server of this kind says it."""
    made = turn(Says("I was about to"), kind=kind, end="length")
    data = b"".join(step for step in made.steps if isinstance(step, bytes))
    words = {
        "messages": (b'"max_tokens"', b'"model_context_window_exceeded"'),
        "chat": (b'"length"', b'"model_length"'),
    }
    old, new = words.get(kind, (b'"max_output_tokens"', b'"max_context_length"'))
    assert old in data
    return streams(data.replace(old, new))


@pytest.mark.parametrize("kind", TEXTUAL)
def test_an_answer_that_the_window_cuts_short_is_gone_on_with(kind: Name) -> None:
    async def main() -> None:
        replies = [answers_until_full(kind), turn(Says("So far: this."), kind=kind), turn(Says("done"), kind=kind)]
        async with Far(*replies, kind=kind) as far:
            events = await worked(agent_on(far))
            assert (ended(events).reason, ended(events).text) == ("done", "done")
            assert len(only(events, Compacted)) == 1
            assert "So far: this." in far.posted[2].decode()

    play(main())


@pytest.mark.parametrize("kind", TEXTUAL)
def test_an_answer_that_never_fits_ends_the_task(kind: Name) -> None:
    async def main() -> None:
        replies = [answers_until_full(kind), turn(Says("Sum."), kind=kind), answers_until_full(kind)]
        async with Far(*replies, kind=kind) as far:
            done = ended(await worked(agent_on(far)))
            assert (done.reason, done.text) == ("length", "I was about to")
            assert len(far.asked) == 3

    play(main())


@pytest.mark.parametrize(
    ("window", "requests"), [pytest.param(1000, 3, id="it is full"), pytest.param(9000, 1, id="there is room")]
)
def test_an_answer_that_ends_at_a_known_window_was_cut_short_by_it(window: int, requests: int) -> None:
    async def main() -> None:
        cut = turn(Says("I was"), end="length", tokens=Counted(input=600, output=400))
        async with Far(cut, turn(Says("Sum.")), turn(Says("done"))) as far:
            done = ended(await worked(agent_on(far, config=AgentConfig(context_window=window))))
            assert len(far.asked) == requests
            assert done.reason == ("done" if requests == 3 else "length")

    play(main())


def test_a_window_that_is_full_of_other_things_is_not_made_room_in_again_and_again() -> None:
    async def main() -> None:
        full = [turn(Calls(f"c{n}", "look"), tokens=Counted(input=950, output=10)) for n in range(5)]
        async with Far(full[0], turn(Says("Sum.")), *full[1:], turn(Says("done"))) as far:
            events = await worked(agent_on(far, echo(), config=AgentConfig(context_window=1000)))
            assert ended(events).text == "done"
            assert len(only(events, Compacted)) == 1
            assert len(far.asked) == 7

    play(main())


def test_a_window_that_fills_again_is_made_room_in_again() -> None:
    async def main() -> None:
        full, small = Counted(input=950, output=10), Counted(input=100, output=10)
        replies = [
            turn(Calls("c1", "look"), tokens=full),
            turn(Says("Sum.")),
            turn(Calls("c2", "look"), tokens=small),
            turn(Calls("c3", "look"), tokens=full),
            turn(Says("Sum.")),
            turn(Says("done")),
        ]
        async with Far(*replies) as far:
            events = await worked(agent_on(far, echo(), config=AgentConfig(context_window=1000)))
            assert ended(events).text == "done"
            assert len(only(events, Compacted)) == 2

    play(main())


# Windows that nobody has to name

MANY = Counted(input=30_000, output=600)


async def listed(model: Json | None, backend: Json, kind: Name = "chat") -> tuple[list[AgentEvent], Far]:
    """What happens on a server with this list of models, after a turn of many tokens."""
    first = turn(Calls("c1", "look"), kind=kind, tokens=MANY)
    async with Far(first, turn(Says("Sum."), kind=kind), turn(Says("done"), kind=kind), kind=kind) as far:
        far.usage = json.dumps({"data": [model]}).encode() if model is not None else b""
        settings = Settings(backends=(Backend("up", kind, base_url=far.url, **backend), DEMO))
        agent = runner_on("up/m", tools=[echo()], settings=settings, config=AgentConfig(retries=0))
        return await worked(agent), far


KNOWN: dict[str, tuple[Json | None, Json, bool]] = {
    "by the server": ({"id": "m", "max_model_len": 32768}, {}, True),
    "by the settings": (None, {"context_windows": {"m": 32768}}, True),
    "by a glob of the settings": (None, {"context_windows": {"other": 10, "*": 32768}}, True),
    "by the settings in place of the server": (
        {"id": "m", "max_model_len": 4096},
        {"context_windows": {"m": 99999}},
        False,
    ),
    "and is large": ({"id": "m", "context_length": 131072}, {}, False),
    "by nobody": ({"id": "m"}, {}, False),
    "by a server that has no list": (None, {}, False),
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(("model", "backend", "compacts"), KNOWN.values(), ids=KNOWN)
def test_a_window_that_is_known_switches_compaction_on(
    model: Json | None, backend: Json, compacts: bool, kind: Name
) -> None:
    async def main() -> None:
        events, far = await listed(model, backend, kind)
        assert ended(events).reason == "done"
        assert len(only(events, Compacted)) == compacts
        asked = [each.path for each in far.looked]
        assert asked == ([] if "context_windows" in backend else ["/v1/models"]), "once, and only if need be"

    play(main())


def test_an_option_wins_and_nobody_is_asked() -> None:
    async def main() -> None:
        async with Far(turn(Calls("c1", "look"), tokens=MANY), turn(Says("done"))) as far:
            far.usage = json.dumps({"data": [{"id": "m", "max_model_len": 32768}]}).encode()
            events = await worked(agent_on(far, echo(), config=AgentConfig(context_window=200_000)))
            assert ended(events).text == "done"
            assert far.looked == []

    play(main())


def test_a_window_that_is_known_holds_for_a_session_that_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with Far(turn(Says("long"), tokens=MANY)) as far:
            far.usage = json.dumps({"data": [{"id": "m", "max_model_len": 32768}]}).encode()
            begun = Session.begin("up/m", tmp_path, tmp_path)
            await worked(agent_on(far, session=begun))
            assert far.looked == []
            far.next(turn(Says("Sum.")), turn(Says("done")))
            events = await worked(agent_on(far, session=Session.resume(begun.id, tmp_path)), "go on")
            assert len(only(events, Compacted)) == 1

    play(main())


def test_a_compaction_item_of_a_server_goes_back_after_an_overflow() -> None:
    async def main() -> None:
        made = {"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"}
        summary = streams(created(), item_done(made), rs("completed", response={"id": "resp_1", "status": "completed"}))
        async with Far(turn(Calls("c1", "look")), too_long(), summary, turn(Says("done"))) as far:
            settings = Settings(backends=(Backend("up", "responses", base_url=far.url, profile={"compacts": True}),))
            events = await worked(runner_on("up/m", tools=[echo()], settings=settings, config=AgentConfig(retries=0)))
            assert ended(events).text == "done"
            assert far.inputs[2][-1] == {"type": "compaction_trigger"}
            assert types_of(far.inputs[3]) == ["compaction", "message"]

    play(main())
