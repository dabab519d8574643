"""What is shown in the callback that received it is what the task of the turn would have shown.

Every turn is answered twice, once with the callback and once without: the writes to the client, and all that observers
see, must be equal. Reads are cut by the test; time is the test's.
"""

import asyncio
import gzip
import json
import random
import re
from typing import Any
from unittest import mock

import msgspec
import pytest

from tests.gateway.test_matrix import TURNS, A, B
from tests.support.backend_writers import STREAMED, frame
from tests.support.frames import rs
from tests.support.routes import question
from tests.support.scripts import NAMES, Calls, Name, Says, Script, Thinks, each_route
from tests.support.wires import KEY, Cut, Drain, Gone, Played, Slow, Step, Wait, Wires, chunk, wires
from toolwire.core.events import Usage
from toolwire.core.lane import Lane
from toolwire.core.policies import Policies
from toolwire.dialects.chat.encode import StreamEncoder

ROUTES = [(turn, *route) for turn, script in TURNS.items() for route in each_route(script)]
WITH_LANE: tuple[Name, ...] = ("chat", "responses", "messages")
"""The protocols whose deltas may pass by the stages."""
LONG = Script((Says("All of this is said in small pieces, one after the other. " * 3),), tools=())

LETTERS = Script((Says("All of this is said letter by letter. " * 130),), tools=(), chars=1)


def told(script: Script, kind: Name) -> list[bytes]:
    return [step for step in STREAMED[kind](script) if isinstance(step, bytes)]


def reads(script: Script, kind: Name, seed: int | None = None) -> list[Step]:
    """The reads of a stream: a frame each, or cut at random, anywhere."""
    data = [chunk(frame) for frame in told(script, kind)]
    if script.end != "cut":
        data.append(chunk(b""))
    if seed is not None:
        rnd, whole = random.Random(seed), b"".join(data)
        cuts = sorted(rnd.sample(range(len(whole)), min(len(whole), len(data))))
        data = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return [*data, Cut()] if script.end == "cut" else [*data]


async def both(ends: Wires, dialect: Name, body: Any, steps: list[Step], head: bytes = b"") -> Played:
    """The turn as it is shown at once, which must be the same without that."""
    shown = await ends.play(dialect, body, steps, head=head)
    plain = await ends.play(dialect, body, steps, head=head, shows=False)
    assert plain.shown == 0
    for ours, expected in zip(shown.seen, plain.seen, strict=False):
        assert ours == expected
    assert (shown.written, shown.seen, shown.asked) == (plain.written, plain.seen, plain.asked)
    assert shown.aborted == plain.aborted
    assert ends.errors == []
    return shown


def play(dialect: Name, kind: Name, steps: list[Step], config: str = "", head: bytes = b"", **fields: Any) -> Played:
    async def main() -> Played:
        async with wires(config) as ends:
            body = question(dialect, f"{kind}/m", LONG.tools, stream=True, **fields)
            return await both(ends, dialect, body, steps, head)

    return asyncio.run(main())


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", NAMES)
def test_every_turn_is_the_same(dialect: Name, kind: Name):
    async def main() -> tuple[int, int]:
        shown = passed = 0
        async with wires() as ends:
            for script in (LETTERS, *(script for turn, script in TURNS.items() if (turn, dialect, kind) in ROUTES)):
                body = question(dialect, f"{kind}/m", script.tools, stream=True)
                small = msgspec.structs.replace(script, chars=1)
                for steps in (reads(small, kind), reads(script, kind), reads(script, kind, 1)):
                    played = await both(ends, dialect, body, steps)
                    shown, passed = shown + played.shown, passed + played.passed
        return shown, passed

    shown, passed = asyncio.run(main())
    assert shown > 6_500
    assert (passed > 11_200) == (dialect in WITH_LANE and kind in WITH_LANE)


ODD_TEXTS = (
    "{",
    "}{",
    " {",
    "}",
    "\\\\",
    '\\"',
    "\\n",
    "\\u00e9",
    "\\/",
    "\\ud83d",
    "\\ude00",
    "é",
    "😀",
    "<",
    "`",
    "```",
    "@toolwire@",
)
"""Texts as they are written in JSON, some of which a stage must see."""
MIXED = Script(
    (Thinks("I wonder how this goes. " * 4), Says("Some words, then a call. " * 6), A, B, Says("More.")), chars=2
)


def varied(frame: bytes, rnd: random.Random) -> list[bytes]:
    """A frame as servers may send it, and what else they may send around it."""
    delta = re.search(rb'"(content|reasoning_content|arguments|delta|text|thinking|partial_json)":"(?=[^"])', frame)
    if delta is not None and frame.count(b"\n\n") == 1:
        if rnd.random() < 0.3:
            frame = frame[: delta.end()] + rnd.choice(ODD_TEXTS).encode() + frame[delta.end() :]
        if rnd.random() < 0.9:
            padding = "".join(rnd.choices("abcXYZ019", k=rnd.randint(0, 16))).encode()
            frame = frame[:-3] + b',"obfuscation":"%b"}\n\n' % padding
    match rnd.randrange(40):
        case 0:
            return [b": a comment\n\n", frame]
        case 1:
            return [frame[: len(frame) // 2], frame[len(frame) // 2 :]]
        case 2:
            return [frame, b'event: ping\ndata: {"type":"ping"}\n\n']
        case 3:
            return [frame.replace(b"\n", b"\r\n")]
        case 4:
            return [frame.replace(b'":', b'": ')]
        case 5:
            return [
                re.sub(rb'"sequence_number":(\d+)', lambda found: b'"sequence_number":%d' % (int(found[1]) * 3), frame)
            ]
        case 6:
            return [re.sub(rb'"sequence_number":', b'"sequence_number":0', frame)]
        case 7:
            return [frame + frame]
        case 8:
            return [frame[:-1], b"\n"]
        case 9:
            return [frame.replace(b'"finish_reason":null', b'"finish_reason":""')]
        case _:
            return [frame]


@pytest.mark.parametrize("dialect", WITH_LANE)
@pytest.mark.parametrize("kind", WITH_LANE)
def test_odd_frames_are_the_same(dialect: Name, kind: Name):
    async def main() -> int:
        passed = 0
        async with wires() as ends:
            body = question(dialect, f"{kind}/m", MIXED.tools, stream=True)
            for seed in range(30):
                rnd = random.Random(seed)
                frames = [each for frame in told(MIXED, kind) for each in varied(frame, rnd)]
                if seed % 3 == 0 and kind != "responses":
                    frames = [
                        re.sub(rb"}\n\n$", rb',"sequence_number":%d}\n\n' % at, each) for at, each in enumerate(frames)
                    ]
                if seed % 2:  # as OpenAI writes them
                    frames = [re.sub(rb'{(.*),("sequence_number":\d+)', rb"{\2,\1", frame) for frame in frames]
                played = await both(ends, dialect, body, [*map(chunk, frames), chunk(b"")])
                passed += played.passed
        return passed

    assert asyncio.run(main()) > 200


TEXTUAL = 'I look at it. <tool_call>{"name":"look","arguments":{"path":"a b"}}</tool_call> Done.'
TWICE = [Script((Calls("call_a", "look", f'{{"path":"{"a" * size}"}}' * 2),), chars=1) for size in (5, 8, 9)]


@pytest.mark.parametrize("dialect", WITH_LANE)
@pytest.mark.parametrize("kind", WITH_LANE)
@pytest.mark.parametrize("script", [Script((Says(TEXTUAL),), chars=1), *TWICE])
def test_a_text_that_a_stage_must_see_does_not_pass(dialect: Name, kind: Name, script: Script):
    async def main() -> Played:
        async with wires() as ends:
            body = question(dialect, f"{kind}/m", script.tools, stream=True)
            return await both(ends, dialect, body, reads(script, kind))

    played = asyncio.run(main())
    assert played.passed > 5
    assert TEXTUAL[14:25].encode() not in played.body
    assert b'"tool_call_count":1,' in played.body


@pytest.mark.parametrize("dialect", NAMES)
def test_nothing_is_shown_to_a_client_that_does_not_read(dialect: Name):
    frames = [chunk(frame) for frame in told(LONG, dialect)]
    steps: list[Step] = [*frames[:10], Slow(), *frames[10:15], Slow(reads=True), *frames[15:], chunk(b"")]
    played = play(dialect, dialect, steps)
    assert played.shown > 10
    assert played.body == play(dialect, dialect, [*frames, chunk(b"")]).body


def test_a_backend_pauses_while_its_client_does_not_read():
    frames = [chunk(frame) for frame in told(LONG, "chat")]
    flood = [chunk(b": %b\n\n" % (b"x" * 200_000))] * 2
    played = play(
        "chat", "chat", [*frames[:10], Slow(), *flood, *frames[10:15], Slow(reads=True), *frames[15:], chunk(b"")]
    )
    assert played.paused


@pytest.mark.parametrize("end", [Gone(), Cut(), Drain()], ids=["client", "backend", "gateway"])
@pytest.mark.parametrize("dialect", NAMES)
def test_an_end_in_the_middle(dialect: Name, end: Step):
    frames = [chunk(frame) for frame in told(LONG, dialect)]
    played = play(dialect, dialect, [*frames[:15], end, *frames[15:20]])
    assert played.shown
    assert played.aborted or isinstance(end, Cut)


TIMES: dict[str, tuple[str, tuple[float, ...], bytes]] = {
    "idle counts from the last read": ("idle = 20\n", (19, 19, 19), b"timeouts.idle"),
    "and from what passed": ("idle = 20\n", (1, 1, 4, 4, 4, 16), b"timeouts.idle"),
    "so does progress": ("progress = 20\nidle = 900\n", (19, 19, 19), b"timeouts.progress"),
    "also from what passed": ("progress = 20\nidle = 900\n", (1, 1, 4, 4, 4, 16), b"timeouts.progress"),
    "the turn has one limit": ("total = 50\n", (9, 9, 9, 9, 9), b"timeouts.total"),
}


@pytest.mark.parametrize(("limit", "pauses", "name"), TIMES.values(), ids=TIMES)
def test_deadlines_hold(limit: str, pauses: tuple[float, ...], name: bytes):
    frames = [chunk(frame) for frame in told(LONG, "chat")]
    paced: list[Step] = [
        step for frame, pause in zip(frames[1:], pauses, strict=False) for step in (frame, Wait(pause))
    ]
    config = f"[server]\nkeepalive = 0\n[timeouts]\n{limit}"
    played = play("chat", "chat", [frames[0], *paced, frames[9], Wait(20)], config)
    assert played.shown >= 3
    assert name in played.body


@pytest.mark.parametrize("dialect", WITH_LANE)
def test_a_keepalive_counts_from_what_was_shown(dialect: Name):
    frames = [chunk(frame) for frame in told(LONG, dialect)]
    paced: list[Step] = [step for frame in frames[5:10] for step in (frame, Wait(14))]
    steps: list[Step] = [*frames[:5], *paced, frames[10], Wait(16), *frames[11:], chunk(b"")]
    played = play(dialect, dialect, steps)
    assert played.body.count(b"keepalive") + played.body.count(b"event: ping") == 1


def test_the_grace_after_a_burst_of_calls_begins():
    config = "[tools]\nstop_after = true\nstop_after_grace_ms = 5000\n"
    played = play(
        "chat", "responses", [chunk(f) for f in told(Script((Says("Hm. "), A)), "responses")[:-1]] + [Wait(6)], config
    )
    assert b'"finish_reason":"tool_calls"' in played.body
    assert played.aborted


def test_a_stream_that_stays_open_ends():
    frames = [chunk(frame) for frame in told(LONG, "chat")]
    played = play("responses", "chat", [*frames[:-1], Wait(3)])
    assert b"response.completed" in played.body


def test_a_small_frame_that_leads_to_much_is_shown_in_slices():
    big = Script((Calls("call_a", "look", json.dumps({"text": "x" * 300_000})),), chars=1500)
    frames = [chunk(frame) for frame in told(big, "messages")]
    played = play("responses", "messages", [*frames, chunk(b"")])
    assert played.shown > 100
    assert max(map(len, played.written)) < 300_000


def test_an_answer_that_grows_too_large_is_cut():
    frames = [chunk(each) for each in told(LONG, "messages")]
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 3000}}
    more = chunk(frame("content_block_delta", delta))
    steps = [*frames[:6], *[more] * 400]

    async def main() -> list[Played]:
        async with wires('[server]\nmax_reply = "1 MB"\n') as ends:
            body = question("responses", "messages/m", LONG.tools, stream=True)
            return [await ends.play("responses", body, steps, shows=shows) for shows in (True, False)]

    shown, plain = asyncio.run(main())
    assert shown.passed
    for played in (shown, plain):
        assert b"reply_too_large" in played.body
    assert len(shown.written) - len(plain.written) < 10


def test_a_piece_that_takes_long_is_read_in_slices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.reader.SLICE_SECONDS", -1)
    frames = [chunk(frame) for frame in told(LONG, "chat")]
    many = chunk(b'data: {"choices":[]}\n\n' * 150 + told(LONG, "chat")[6])
    played = play("responses", "chat", [*frames[:6], many, Wait(1), *frames[7:], chunk(b"")])
    assert b"response.completed" in played.body


def test_many_held_events_pass_in_slices(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    feed_all = Policies.feed_all

    def measured(policies: Policies, events: Any) -> Any:
        sizes.append(len(events))
        return feed_all(policies, events)

    monkeypatch.setattr(Policies, "feed_all", measured)
    frames = [chunk(frame) for frame in told(Script((A, Says("x" * 1000)), chars=1), "responses")]
    done = next(place for place, frame in enumerate(frames) if b"response.output_item.done" in frame)
    late, text = frames[done - 1 : done + 1], [frame for frame in frames if b"output_text.delta" in frame]
    assert len(text) > 450
    parts = frames[: done - 2]
    play("chat", "responses", [*parts, *text, *late, *frames[done + 1 :], chunk(b"")])
    assert max(sizes) <= 400


def test_arguments_that_grow_too_large_are_cut():
    frames = [chunk(each) for each in told(Script((A,), chars=2), "messages")]
    delta = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": "x" * 3000},
    }
    more = chunk(frame("content_block_delta", delta))
    played = play("chat", "messages", [*frames[:5], *[more] * 400], '[server]\nmax_reply = "1 MB"\n')
    assert played.passed > 300
    assert b"reply_too_large" in played.body


def test_a_call_that_waits_behind_another_keeps_its_bounds():
    held = chunk(rs("response.output_text.delta", item_id="m", output_index=2, delta="x" * 3000))
    frames = [chunk(frame) for frame in told(Script((A,)), "responses")]
    played = play("chat", "responses", [*frames[:4], *[held] * 400], '[server]\nmax_reply = "1 MB"\n')
    assert b"reply_too_large" in played.body


def test_frames_without_content_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.reader.MAX_EMPTY_FRAMES", 50)
    frames = [chunk(frame) for frame in told(LONG, "messages")]
    played = play("chat", "messages", [*frames[:6], *[chunk(b'event: ping\ndata: {"type":"ping"}\n\n')] * 60])
    assert b"reply_without_content" in played.body


def test_a_key_in_the_reply_is_blanked_wherever_it_is_cut():
    whole = b"".join(told(LONG, "chat")).replace(b"sai", KEY)
    assert whole.count(KEY) > 1
    for size in (90, 101, 260):
        steps: list[Step] = [chunk(whole[start : start + size]) for start in range(0, len(whole), size)]
        played = play("chat", "chat", [*steps, chunk(b"")])
        assert played.shown
        assert KEY not in played.body


def test_a_compressed_reply_is_read_by_the_task():
    packed = gzip.compress(b"".join(told(LONG, "chat")))
    steps: list[Step] = [chunk(packed[start : start + 40]) for start in range(0, len(packed), 40)]
    played = play("chat", "chat", [*steps, chunk(b"")], head=b"content-encoding: gzip\r\n")
    assert b'"finish_reason":"stop"' in played.body
    assert not played.shown


def test_a_fault_of_ours_ends_the_turn_and_not_the_process():
    frames = [chunk(frame) for frame in told(LONG, "messages")]
    feed = StreamEncoder.feed

    def faulty(encoder: StreamEncoder, event: Any) -> Any:
        if isinstance(event, Usage):
            raise KeyError("a fault")
        return feed(encoder, event)

    with mock.patch.object(StreamEncoder, "feed", faulty):
        played = play("chat", "messages", [*frames, chunk(b"")])
    assert any(entry[0] == "crash" for entry in played.seen), played.seen
    assert b"internal_error" in played.body


def test_stages_that_disagree_with_what_was_sent_end_the_turn(monkeypatch: pytest.MonkeyPatch):
    take = Lane.take
    monkeypatch.setattr(Lane, "take", lambda lane: (take(lane)[0], b"something else"))

    async def main() -> Played:
        async with wires() as ends:
            body = question("chat", "chat/m", LONG.tools, stream=True)
            return await ends.play("chat", body, [*reads(LONG, "chat")])

    played = asyncio.run(main())
    assert b"internal_error" in played.body
    assert any(entry[0] == "crash" for entry in played.seen)


def test_a_stored_response_is_the_same():
    async def main() -> None:
        async with wires() as ends:
            body = question(
                "responses", "chat/m", TURNS["a thought, text and two calls"].tools, stream=True, store=True
            )
            played = await both(ends, "responses", body, reads(TURNS["a thought, text and two calls"], "chat"))
            assert b'"store":true' in played.body

    asyncio.run(main())
