"""One corpus of shapes in which servers send calls: decoder and aggregator make the same calls of each.

Every turn of the matrix is part of it, and every reply that the museum's rows carry (`tests/museum/lines.py`,
`tests/museum/routes.py`).
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.gateway.test_matrix import RECORDINGS, TURNS
from tests.support.agreement import DECODERS, SEED, agreed_calls, agreed_plain_calls
from tests.support.backend_writers import name_told, reply
from tests.support.chunks import in_any_chunking
from tests.support.frames import call_item, completed, created, rs, sse, stream
from toolwire import Call, ToolCallAggregator
from toolwire.backends.messages.decode import EVENTS_BEFORE_SIGNATURE
from toolwire.core.collect import Reasoning, Text, Turn, collect
from toolwire.core.errors import BackendFault
from toolwire.core.events import CallArgs, CallEnded, CallStarted, TextDelta
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.sse import FrameReader
from toolwire.dialects.messages.encode import StreamEncoder

Json = dict[str, Any]
Told = tuple[str, str, str, bool]
NAMES = ("find", "other")


# Chat


def chat(*deltas: Json, finish: str = "tool_calls") -> bytes:
    chunks = [{"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    ended = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in (*chunks, ended)) + b"data: [DONE]\n\n"


def part(arguments: str | None = None, index: Any = 0, id: str = "", name: str = "") -> Json:
    function = {"name": name} if name else {}
    function |= {"arguments": arguments} if arguments is not None else {}
    return {"tool_calls": [{"index": index, "function": function, **({"id": id} if id else {})}]}


# Messages


def began() -> bytes:
    return sse({"type": "message_start", "message": {"id": "msg_1", "model": "m", "content": []}})


def start(index: Any, type: str = "tool_use", **fields: Any) -> bytes:
    return sse({"type": "content_block_start", "index": index, "content_block": {"type": type, **fields}})


def use(index: Any, id: str, name: str, **input: Any) -> bytes:
    return start(index, id=id, name=name, input=input)


def delta(index: Any, text: str) -> bytes:
    return grown(index, type="input_json_delta", partial_json=text)


def grown(index: Any, **fields: str) -> bytes:
    return sse({"type": "content_block_delta", "index": index, "delta": fields})


def stop(*indexes: Any) -> bytes:
    return b"".join(sse({"type": "content_block_stop", "index": index}) for index in indexes)


def over(reason: str = "tool_use") -> bytes:
    return sse({"type": "message_delta", "delta": {"stop_reason": reason}}) + sse({"type": "message_stop"})


# Responses


def added(id: str, name: str, item: str, index: Any) -> bytes:
    return rs("output_item.added", output_index=index, item=call_item(id, name, "", item))


def args(text: str, item: str, index: Any) -> bytes:
    return rs("function_call_arguments.delta", item_id=item, output_index=index, delta=text)


def done(id: str, name: str, text: str, item: str, index: Any) -> bytes:
    return rs("output_item.done", output_index=index, item=call_item(id, name, text, item))


X, Y, HALF = '{"q":"x"}', '{"q":"y"}', '{"q":"\\ud83d"}'
BOTH: list[Told] = [("a", "find", X, True), ("b", "other", Y, True)]
FOUND: list[Told] = [("a", "find", X, True)]
TWICE: list[Told] = [("a", "find", X, True), ("call_S02", "find", Y, True)]
EQUAL: list[Told] = [("a", "find", X, True), ("call_S02", "find", X, True)]
THRICE: list[Told] = [*TWICE, ("call_S03", "find", X, True)]

SHAPES: dict[str, tuple[str, bytes, list[Told], list[str]]] = {
    # Several blocks are open at once
    "blocks: starts, deltas, stops": ("messages", stream(began(), use(0, "a", "find"), use(1, "b", "other"), delta(0, X), delta(1, Y), stop(0, 1), over()), BOTH, []),
    "blocks: alternating pieces": ("messages", stream(began(), use(0, "a", "find"), use(1, "b", "other"), delta(0, X[:5]), delta(1, Y[:5]), delta(0, X[5:]), delta(1, Y[5:]), stop(1, 0), over()), BOTH, []),
    "blocks: alternating pieces, never stopped": ("messages", stream(began(), use(0, "a", "find"), use(1, "b", "other"), delta(1, Y[:5]), delta(0, X[:5]), delta(1, Y[5:]), delta(0, X[5:]), over()), BOTH, []),
    "blocks: the last first": ("messages", stream(began(), use(0, "a", "find"), use(1, "b", "other"), delta(1, Y), stop(1), delta(0, X), stop(0), over()), BOTH, []),
    "blocks: the first without input": ("messages", stream(began(), use(0, "a", "find"), use(1, "b", "other"), delta(1, Y), stop(0, 1), over()), [("a", "find", "{}", True), BOTH[1]], []),
    "blocks: one more, while others wait": ("messages", stream(began(), start(0, "text", text=""), use(1, "a", "find"), use(2, "b", "other"), delta(1, X), stop(0), use(3, "c", "find"), delta(2, Y), delta(3, X), stop(1, 2, 3), over()), [*BOTH, ("c", "find", X, True)], []),
    "blocks: one more under the index of the first, while another waits": ("messages", stream(began(), use(0, "a", "find"), use(1, "b", "other"), delta(0, X), use(0, "c", "find"), delta(1, Y), delta(0, X), stop(1, 0), over()), [*BOTH, ("c", "find", X, True)], []),
    "items: alternating pieces": ("responses", stream(created(), added("a", "find", "i", 0), added("b", "other", "j", 1), args(X[:5], "i", 0), args(Y[:5], "j", 1), args(X[5:], "i", 0), args(Y[5:], "j", 1), done("a", "find", X, "i", 0), done("b", "other", Y, "j", 1), completed()), BOTH, []),
    "indexes: alternating pieces": ("chat", chat(part("", 0, "a", "find"), part("", 1, "b", "other"), part(X[:5]), part(Y[:5], 1), part(X[5:]), part(Y[5:], 1)), BOTH, []),
    # Two calls with one id
    "one id: blocks": ("messages", stream(began(), use(0, "a", "find"), delta(0, X), stop(0), use(1, "a", "find"), delta(1, Y), stop(1), over()), TWICE, ["id_reused"]),
    "one id: equal blocks": ("messages", stream(began(), use(0, "a", "find"), delta(0, X), stop(0), use(1, "a", "find"), delta(1, X), stop(1), over()), EQUAL, ["id_reused"]),
    "one id: blocks that are open at once": ("messages", stream(began(), use(0, "a", "find"), use(1, "a", "find"), delta(1, Y), delta(0, X), stop(0, 1), over()), TWICE, ["id_reused"]),
    "one id: blocks of one index": ("messages", stream(began(), use(0, "a", "find"), delta(0, X), stop(0), use(0, "a", "find"), delta(0, Y), stop(0), over()), TWICE, ["id_reused"]),
    "one id: items": ("responses", stream(created(), done("a", "find", X, "i", 0), done("a", "find", Y, "j", 1), completed()), TWICE, ["id_reused"]),
    "one id: equal items, listed again": ("responses", stream(created(), done("a", "find", X, "i", 0), done("a", "find", X, "j", 1), completed([call_item("a", "find", X, "i"), call_item("a", "find", X, "j")])), EQUAL, ["id_reused"]),
    "one id: items that are open at once": ("responses", stream(created(), added("a", "find", "i", 0), added("a", "find", "j", 1), args(Y, "j", 1), args(X, "i", 0), done("a", "find", X, "i", 0), done("a", "find", Y, "j", 1), completed()), TWICE, ["id_reused"]),
    "one id: a list": ("responses", stream(created(), completed([call_item("a", "find", X, "i"), call_item("a", "find", Y, "j"), call_item("a", "find", X, "k")])), THRICE, ["id_reused", "id_reused"]),
    "one id: indexes": ("chat", chat(part(X, 0, "a", "find"), part("", 1, "a", "find"), part(Y, 1, "a")), TWICE, ["id_reused"]),
    # One call with several ids
    "several ids: an item": ("responses", stream(created(), added("a", "find", "i", 0), args(X, "i", 0), done("b", "find", X, "i", 0), completed([call_item("b", "find", X, "i")])), FOUND, []),
    "several ids: an item, and a third in the list": ("responses", stream(created(), added("a", "find", "i", 0), args(X, "i", 0), done("b", "find", X, "i", 0), completed([call_item("c", "find", X, "i")])), FOUND, []),
    "several ids: an item without deltas": ("responses", stream(created(), added("a", "find", "i", 0), done("b", "find", X, "i", 0), completed()), FOUND, []),
    "several ids: every fragment": ("chat", chat(part("", 0, "a", "find"), part('{"q"', 0, "b"), part(":", 0, "c"), part('"x"}', 0, "d")), FOUND, []),
    "several ids: every fragment, without index": ("chat", chat(part("", None, "a", "find"), part('{"q"', None, "b"), part(':"x"}', None, "c")), FOUND, []),
    "several ids: every fragment, with its name": ("chat", chat(part('{"q"', 0, "a", "find"), part(":", 0, "b", "find"), part('"x"}', 0, "c", "find")), FOUND, []),
    "several ids: an empty fragment at the end": ("chat", chat(part(X, 0, "a", "find"), part("", 0, "b")), FOUND, []),
    "several ids: another name": ("chat", chat(part(X, 0, "a", "find"), part(Y, 0, "b", "other")), BOTH, []),
    "several ids: another name after no arguments": ("chat", chat(part("", 0, "a", "find"), part(Y, 0, "b", "other")), [("a", "find", "{}", True), BOTH[1]], []),
    "several ids: the same name after whole arguments": ("chat", chat(part(X[:5], 0, "a", "find"), part(X[5:], 0, "a"), part(Y, 0, "b", "find")), [FOUND[0], ("b", "find", Y, True)], []),
    # A whole call that is repeated
    "repeated: equal": ("chat", chat(part(X[:5], 0, "a", "find"), part(X[5:]), part(X, 0, "a", "find")), FOUND, []),
    "repeated: equal, in pieces": ("chat", chat(part(X[:5], 0, "a", "find"), part(X[5:]), part(X[:5], 0, "a", "find"), part(X[5:])), FOUND, []),
    "repeated: equal, without id": ("chat", chat(part(X[:5], 0, "a", "find"), part(X[5:]), part(X)), FOUND, []),
    "repeated: the same, written otherwise": ("chat", chat(part(X, 0, "a", "find"), part('{ "q": "x" }', 0, "a", "find")), FOUND, []),
    "repeated: three times": ("chat", chat(part(X, 0, "a", "find"), part(X, 0, "a", "find"), part(X, 0, "a", "find")), FOUND, []),
    "repeated: at once": ("chat", chat(part(X + X, 0, "a", "find")), FOUND, []),
    "repeated: another": ("chat", chat(part(X, 0, "a", "find"), part(Y, 0, "a", "find")), [("a", "find", X, False)], ["arguments_differ"]),
    "repeated: a block": ("messages", stream(began(), use(0, "a", "find"), delta(0, X), delta(0, X), stop(0), over()), FOUND, []),
    "repeated: an item": ("responses", stream(created(), done("a", "find", X + X, "i", 0), completed()), FOUND, []),
    "repeated: another item": ("responses", stream(created(), done("a", "find", X + Y, "i", 0), completed()), [("a", "find", X + Y, False)], ["arguments_differ"]),
    "braces inside a string": ("chat", chat(part('{"q":"}', 0, "a", "find"), part("{", 0, "a", "find"), part('}{"}')), [("a", "find", '{"q":"}{}{"}', True)], []),
    # Half a character
    "half a character: chat": ("chat", chat(part(HALF, 0, "a", "find")), [("a", "find", HALF, True)], []),
    "half a character: chat, in pieces": ("chat", chat(part(HALF[:8], 0, "a", "find"), part(HALF[8:])), [("a", "find", HALF, True)], []),
    "half a character: messages": ("messages", stream(began(), use(0, "a", "find"), delta(0, HALF), stop(0), over()), [("a", "find", HALF, True)], []),
    "half a character: responses": ("responses", stream(created(), added("a", "find", "i", 0), args(HALF, "i", 0), completed()), [("a", "find", HALF, True)], []),
    # Other shapes
    "string indexes: chat": ("chat", chat(part("", "0", "a", "find"), part("", "1", "b", "other"), part(Y, "1"), part(X, "0")), BOTH, []),
    "string indexes: messages": ("messages", stream(began(), use("0", "a", "find"), use("1", "b", "other"), delta("1", Y), delta("0", X), stop("0", "1"), over()), BOTH, []),
    "string indexes: responses": ("responses", stream(created(), added("a", "find", "i", "0"), added("b", "other", "j", "1"), args(X, "i", "0"), args(Y, "j", "1"), completed()), BOTH, []),
    "renamed": ("responses", stream(created(), added("a", "find", "i", 0), args(X, "i", 0), done("a", "other", X, "i", 0), completed()), FOUND, ["name_changed"]),
    "an id and no call id": ("responses", stream(created(), done("", "find", X, "fc_1", 0), completed([call_item("", "find", X, "fc_1")])), [("fc_1", "find", X, True)], []),
    "input at the start and in deltas": ("messages", stream(began(), use(0, "a", "find", q="x"), delta(0, X), stop(0), over()), FOUND, []),
    "a tool of the server": ("messages", stream(began(), start(0, "text", text=""), stop(0), start(1, "server_tool_use", id="s", name="find", input={}), delta(1, X), stop(1), use(2, "a", "find"), delta(2, X), stop(2), over()), FOUND, ["item_dropped"]),
    "a delta of no block": ("messages", stream(began(), delta(0, X), stop(0), use(1, "a", "find"), delta(1, X), stop(1), over()), FOUND, ["arguments_unclaimed"]),
}  # fmt: skip


def turn(kind: str, data: bytes, **given: Any) -> Turn:
    """The turn that a stream makes, the same in any chunking, with its order checked."""

    def run(pieces: list[bytes]) -> Turn:
        decoder, order = DECODERS[kind](SEED, NAMES, **given), TurnOrder()
        reader = FrameReader(delta_fields=decoder.delta_fields)
        frames = [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()
        events = [event for frame in frames for event in decoder.feed(frame)] + [*decoder.end()]
        order.check(events)
        order.end()
        return collect(events)

    return in_any_chunking(data, run)


def bare(calls: Sequence[Call]) -> list[Told]:
    return [(call.id, call.name, call.arguments, call.complete) for call in calls]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_its_calls(shape: str):
    kind, data, calls, notes = SHAPES[shape]
    read = turn(kind, data)
    assert (bare(read.calls), [note.code for note in read.notes]) == (calls, notes)
    kept = turn(kind, data, keeps_frames=True)
    assert bare(kept.calls) == calls


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("names", [NAMES, ()], ids=["declared", "undeclared"])
def test_decoder_and_aggregator_agree_on_every_shape(shape: str, names: Sequence[str]):
    kind, data, calls, _ = SHAPES[shape]
    assert sorted(bare(agreed_calls(kind, data, names))) == calls  # without names they begin with their arguments


PLAIN: dict[str, tuple[str, Json, list[Told]]] = {
    "responses": ("responses", {"status": "completed", "output": [call_item("a", "find", X, "i"), call_item("a", "find", Y, "j"), call_item("a", "find", X, "k")]}, THRICE),
    "messages": ("messages", {"content": [{"type": "tool_use", "id": "a", "name": "find", "input": {"q": each}} for each in "xyx"], "stop_reason": "tool_use"}, THRICE),
    "chat": ("chat", {"choices": [{"message": {"tool_calls": [{"id": "a", "function": {"name": "find", "arguments": each}} for each in (X, Y, X)]}, "finish_reason": "tool_calls"}]}, THRICE),
    "repeated": ("chat", {"choices": [{"message": {"tool_calls": [{"id": "a", "function": {"name": "find", "arguments": X + X}}]}, "finish_reason": "tool_calls"}]}, FOUND),
    "half a character": ("chat", {"choices": [{"message": {"tool_calls": [{"id": "a", "function": {"name": "find", "arguments": HALF}}]}, "finish_reason": "tool_calls"}]}, [("a", "find", HALF, True)]),
}  # fmt: skip


@pytest.mark.parametrize("shape", PLAIN)
def test_every_plain_shape_gives_its_calls(shape: str):
    kind, body, calls = PLAIN[shape]
    read = agreed_plain_calls(kind, json.dumps(body, separators=(",", ":")).encode(), NAMES)
    assert bare(read) == calls


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, script in TURNS.items() for kind in DECODERS if kind in (script.kinds or DECODERS)],
)
def test_decoder_and_aggregator_agree_on_the_turns_of_the_matrix(name: str, kind: Any):
    script = TURNS[name]
    names = [*{name_told(call) if kind != "responses" else call.name for call in script.calls}]
    recorded = script.recorded and kind == "responses"
    recording = Path(RECORDINGS / f"{script.recorded}.sse").read_bytes() if recorded else b""
    steps = reply(script, kind, stream=True, recording=recording).steps
    streamed = agreed_calls(kind, b"".join(step for step in steps if isinstance(step, bytes)), names)
    [body] = reply(script, kind, stream=False).steps
    assert isinstance(body, bytes)
    assert len(streamed) == len(agreed_plain_calls(kind, body, names)) == len(script.calls)


# What happens while blocks are open


def events_of(kind: str, *frames: bytes, **given: Any) -> list[Any]:
    """The events of each frame."""
    decoder = DECODERS[kind](SEED, NAMES, **given)
    return [[*decoder.feed(frame)] for data in frames for frame in FrameReader().feed(data)]


def test_the_first_open_block_is_read_as_it_comes():
    frames = (
        began(),
        use(0, "a", "find"),
        use(1, "b", "other"),
        delta(0, X[:5]),
        delta(1, Y),
        delta(0, X[5:]),
        stop(0),
    )
    _, started, waits, grows, held, ends, released = events_of("messages", *frames)
    assert started == [CallStarted("a", "find")]
    assert (waits, held) == ([], [])
    assert (grows, ends) == ([CallArgs("a", X[:5])], [CallArgs("a", X[5:])])
    assert released == [CallEnded("a"), CallStarted("b", "other"), CallArgs("b", Y)]


def test_a_call_with_its_input_does_not_wait_for_its_stop():
    *_, second, grows = events_of(
        "messages", began(), use(0, "a", "find"), delta(0, X), use(1, "b", "other"), delta(1, Y)
    )
    assert second == [CallEnded("a"), CallStarted("b", "other")]
    assert grows == [CallArgs("b", Y)]


@pytest.mark.parametrize("keeps_frames", [False, True])
def test_a_thought_that_is_left_open_keeps_its_signature(keeps_frames: bool):
    read = turn(
        "messages",
        stream(
            began(),
            start(0, "thinking", thinking="", signature=""),
            grown(0, type="thinking_delta", thinking="Hm"),
            use(1, "a", "find"),
            grown(0, type="thinking_delta", thinking=", well"),
            delta(1, X),
            grown(0, type="signature_delta", signature="SIG"),
            stop(0, 1),
            over(),
        ),
        keeps_frames=keeps_frames,
    )
    [thought] = [item for item in read.items if isinstance(item, Reasoning)]
    assert ("".join(thought.parts), thought.signature) == ("Hm, well", "SIG")
    assert bare(read.calls) == FOUND


KINDS_OF_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_use")


def block_of(kind: str, index: int, cut: int) -> tuple[list[bytes], Any]:
    """The events of a block, and what it says."""
    signature, words = f"SIG{index}", "abc"
    match kind:
        case "text":
            pieces = [grown(index, type="text_delta", text=each) for each in words]
            return [start(index, kind, text=""), *pieces], words
        case "thinking":
            pieces = [grown(index, type="thinking_delta", thinking=each) for each in words]
            signed = grown(index, type="signature_delta", signature=signature)
            return [start(index, kind, thinking="", signature=""), *pieces, signed], (words, signature)
        case "redacted_thinking":
            return [start(index, kind, data=signature)], ("", signature)
        case _:
            id, arguments = f"id{index}", f'{{"q":{index}}}'
            pieces = [delta(index, each) for each in (arguments[:cut], arguments[cut:])]
            return [use(index, id, "find"), *pieces], (id, "find", arguments, True)


def interleaved(random: Random, *, all_at_first: bool) -> tuple[bytes, list[Any]]:
    """A stream whose blocks interleave, and what they say; at first all of them start and say something, or any do."""
    kinds = [random.choice(KINDS_OF_BLOCKS) for _ in range(random.randint(2, 6))]
    blocks = [block_of(kind, index, random.randint(1, 6)) for index, kind in enumerate(kinds)]
    stops = random.random() < 0.7
    queues = [[*events, *([stop(index)] if stops else [])] for index, (events, _) in enumerate(blocks)]
    data, begun = began(), 0
    if all_at_first:
        begun = len(queues)
        data += b"".join(queue.pop(0) for _ in range(2) for queue in queues if queue)
    while any(queues):
        begins = begun < len(queues) and (random.random() < 0.4 or not any(queues[:begun]))
        begun += begins
        index = begun - 1 if begins else random.choice([each for each in range(begun) if queues[each]])
        data += queues[index].pop(0)
    return data + over("end_turn"), [said for _, said in blocks]


def read_items(data: bytes, *, keeps_frames: bool) -> tuple[list[Any], Turn]:
    """What the blocks of a stream said, as a decoder reads them, and the turn."""
    order = TurnOrder()
    events = [event for each in events_of("messages", data, keeps_frames=keeps_frames) for event in each]
    order.check(events)
    order.end()
    read = collect(events)
    items: list[Any] = []
    for item in read.items:
        match item:
            case Text(text):
                items.append(text)
            case Reasoning():
                items.append(("".join(item.parts), item.signature))
            case Call():
                items += bare([item])
            case _:
                pass
    return items, read


def fuzz() -> Iterator[Random]:
    return (Random(f"blocks {seed}") for seed in range(400))


def test_calls_are_delivered_in_the_order_of_their_starts_however_blocks_interleave():
    for random in fuzz():
        data, said = interleaved(random, all_at_first=random.random() < 0.3)
        calls = [each for each in said if len(each) == 4]
        aggregator = ToolCallAggregator(NAMES)
        for frame in FrameReader().feed(data):
            aggregator.ingest_delta(json.loads(frame.data))
        assert bare(aggregator.snapshot()) == calls
        for keeps_frames in (False, True):
            assert bare(read_items(data, keeps_frames=keeps_frames)[1].calls) == calls


def test_blocks_that_all_begin_at_first_are_delivered_one_after_the_other():
    for random in fuzz():
        data, said = interleaved(random, all_at_first=True)
        assert read_items(data, keeps_frames=True)[0] == said
        items, read = read_items(data, keeps_frames=False)
        assert [each for each in items if not isinstance(each, str)] == [each for each in said if each != "abc"]
        assert read.text == "abc" * said.count("abc")


def test_content_that_comes_late_is_neither_lost_nor_given_to_another_block():
    for random in fuzz():
        data, said = interleaved(random, all_at_first=False)
        thoughts = {signature: words for words, signature in (each for each in said if len(each) == 2)}
        for keeps_frames in (False, True):
            items, read = read_items(data, keeps_frames=keeps_frames)
            assert sorted(read.text) == sorted("abc" * said.count("abc"))
            found = [each for each in items if len(each) == 2 and not isinstance(each, str)]
            signed = {signature: words for words, signature in found if signature}
            assert signed.items() <= thoughts.items()
            assert sorted("".join(words for words, _ in found)) == sorted("".join(thoughts.values()))
            assert [note.code for note in read.notes] == ["signature_late"] * (len(thoughts) - len(signed))
            if keeps_frames:
                texts = [item for item in read.items if isinstance(item, Text)]
                by_item = {each.item: "".join(text.text for text in texts if text.item == each.item) for each in texts}
                assert by_item == {f"{index}": "abc" for index, each in enumerate(said) if each == "abc"}


THOUGHT = grown(0, type="thinking_delta", thinking="Hm")
UNSTOPPED = {
    "text": (start(0, "text", text=""), grown(0, type="text_delta", text="Hm")),
    "empty text": (start(0, "text", text=""),),
    "thinking": (start(0, "thinking", thinking="", signature=""), THOUGHT),
    "empty thinking": (start(0, "thinking", thinking="", signature=""),),
    "redacted thinking between": (start(0, "text", text="Hm"), start(5, "redacted_thinking", data="SIG")),
    "several": (start(0, "thinking", thinking="Hm"), start(5, "text", text=""), start(6, "thinking", thinking="")),
}


@pytest.mark.parametrize("keeps_frames", [False, True])
@pytest.mark.parametrize("before", UNSTOPPED.values(), ids=UNSTOPPED)
def test_a_block_behind_one_that_is_never_stopped_is_read_as_it_comes(before: Sequence[bytes], keeps_frames: bool):
    for begins, grows in (
        (start(1, "text", text=""), grown(1, type="text_delta", text="x")),
        (start(1, "thinking", thinking=""), grown(1, type="thinking_delta", thinking="x")),
        (use(1, "a", "find"), delta(1, "x")),
    ):
        events = events_of("messages", began(), *before, begins, *[grows] * 1000, keeps_frames=keeps_frames)
        live = [[event for event in each if getattr(event, "text", "") == "x"] for each in events[-1000:]]
        assert sum(map(len, live)) == 1000
        assert [len(each) for each in live[EVENTS_BEFORE_SIGNATURE:]] == [1] * (1000 - EVENTS_BEFORE_SIGNATURE)
        if "thinking" not in f"{before}":
            assert [len(each) for each in live] == [1] * 1000


def test_a_block_of_a_server_tool_that_is_never_stopped_holds_nothing_back_from_other_dialects():
    found = start(0, "web_search_tool_result", content=[])
    grows = grown(1, type="text_delta", text="x")
    *_, live, late = events_of("messages", began(), found, start(1, "text", text=""), grows, delta(0, X))
    assert (live, late) == ([TextDelta("x")], [])


def test_late_text_is_text_where_it_comes():
    texts = start(0, "text", text="a"), start(1, "text", text="")
    late = (grown(index, type="text_delta", text=text) for index, text in ((1, "x"), (0, "b"), (1, "y")))
    data = stream(began(), *texts, *late, stop(0, 1), over("end_turn"))
    assert turn("messages", data).text == "axby"
    kept = turn("messages", data, keeps_frames=True)
    assert [(item.item, item.text) for item in kept.items if isinstance(item, Text)] == [
        ("0", "a"), ("1", "x"), ("0", "b"), ("1", "y")
    ]  # fmt: skip


def test_late_text_does_not_split_a_thought_or_a_call():
    thought = (
        start(1, "thinking", thinking="Hm"),
        grown(1, type="thinking_delta", thinking=", "),
        grown(0, type="text_delta", text="b"),
        grown(1, type="thinking_delta", thinking="well"),
        grown(1, type="signature_delta", signature="SIG"),
        stop(1),
    )
    call = use(2, "a", "find"), delta(2, X[:5]), grown(0, type="text_delta", text="c"), delta(2, X[5:]), stop(2)
    data = stream(began(), start(0, "text", text="a"), *thought, *call, stop(0), over())
    assert read_items(data, keeps_frames=False)[0] == ["a", ("Hm, well", "SIG"), "b", FOUND[0], "c"]
    assert read_items(data, keeps_frames=True)[0] == ["a", ("Hm, well", "SIG"), "b", FOUND[0], "c"]


@pytest.mark.parametrize("keeps_frames", [False, True])
def test_a_signature_is_not_given_to_a_part_of_its_thought(keeps_frames: bool):
    begin = began(), start(0, "thinking", thinking="", signature="")
    answer = start(1, "text", text=""), grown(1, type="text_delta", text="x")
    rest = [grown(1, type="text_delta", text="x")] * EVENTS_BEFORE_SIGNATURE
    more = grown(0, type="thinking_delta", thinking=", well")
    signed = grown(0, type="signature_delta", signature="SIG")
    end = stop(0, 1) + over("end_turn")
    for late, thoughts, notes in (
        ((THOUGHT, *answer, signed), [("Hm", "SIG")], []),
        ((THOUGHT, *answer, more, signed), [("Hm, well", "SIG")], []),
        ((THOUGHT, *answer, *rest, signed), ["Hm"], ["signature_late"]),
        ((THOUGHT, *answer, *rest, more, signed), ["Hm", ", well"], ["signature_late"]),
        ((THOUGHT, signed, *answer, signed), [("Hm", "SIG")], []),
        ((*answer, THOUGHT, signed), [("Hm", "SIG")], []),
        ((*answer, signed), [("", "SIG")], []),
    ):
        items, read = read_items(stream(*begin, *late, end), keeps_frames=keeps_frames)
        expected = [each if isinstance(each, tuple) else (each, "") for each in thoughts]
        assert [item for item in items if isinstance(item, tuple)] == expected
        assert (read.text.strip("x"), [note.code for note in read.notes]) == ("", notes)


def test_texts_that_are_never_stopped_stay_blocks_of_their_own():
    texts = [start(index, "text", text="") + grown(index, type="text_delta", text=f"t{index}") for index in range(3)]
    decoder = DECODERS["messages"](SEED, NAMES, keeps_frames=True)
    events = [
        each for frame in FrameReader().feed(stream(began(), *texts, over("end_turn"))) for each in decoder.feed(frame)
    ]
    encoder = StreamEncoder(Request("m", ()), "msg_1", 7, TurnStats())
    written = [
        json.loads(frame.data) for event in events for data in encoder.feed(event) for frame in FrameReader().feed(data)
    ]
    assert [each["index"] for each in written if each["type"] == "content_block_start"] == [0, 1, 2]
    assert [each["index"] for each in written if each["type"] == "content_block_stop"] == [0, 1, 2]


def test_texts_of_blocks_that_are_open_at_once_are_not_mixed():
    pieces = [grown(index, type="text_delta", text=text) for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y"))]
    blocks = start(0, "text", text=""), start(1, "text", text="")
    read = turn("messages", stream(began(), *blocks, *pieces, stop(1, 0), over("end_turn")), keeps_frames=True)
    assert [item.text for item in read.items if isinstance(item, Text)] == ["ab", "xy"]


def test_what_waits_behind_an_open_block_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.backends.messages.decode.MAX_HELD_CHARS", 2000)
    with pytest.raises(BackendFault, match="wait behind an open block"):
        events_of("messages", began(), use(0, "a", "find"), use(1, "b", "other"), *[delta(1, "x" * 100)] * 20)


# The aggregator alone


def test_ids_differ_after_a_reset():
    aggregator = ToolCallAggregator()
    ids: set[str] = set()
    for _ in range(4):
        for choice in (0, 1):
            aggregator.ingest_delta(
                {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}, choice
            )
            ids.add(aggregator.snapshot(choice)[0].id)
        aggregator.reset_turn(1)
        aggregator.reset_turn()
    assert len(ids) == 8


def test_a_block_that_is_no_call_takes_no_index():
    aggregator = ToolCallAggregator()
    read = json.loads
    frames = FrameReader().feed(SHAPES["a tool of the server"][1])
    deltas = [each for frame in frames for each in aggregator.ingest_delta(read(frame.data)).deltas]
    assert {delta.index for delta in deltas} == {0}


def test_arguments_that_are_named_and_have_no_id_yet_are_told():
    aggregator = ToolCallAggregator(seed=SEED)
    event = {"type": "response.function_call_arguments.done", "item_id": "fc_1", "name": "find", "arguments": X}
    assert aggregator.ingest_delta(event).updated
    assert bare(aggregator.snapshot()) == [("call_S01", "find", X, True)]
    item = {"type": "response.output_item.done", "item": call_item("a", "find", X)}
    assert aggregator.ingest_delta(item).updated
    assert bare(aggregator.snapshot()) == FOUND


def test_arguments_may_be_cumulative():
    aggregator = ToolCallAggregator(NAMES, arguments="snapshot")
    totals = [part(X[:3], 0, "a", "find"), part(X[:6]), part(X)]
    told = [delta.arguments for each in totals for delta in aggregator.ingest_delta(each).deltas if delta.arguments]
    assert (told, bare(aggregator.snapshot())) == ([X[:3], X[3:6], X[6:]], FOUND)
    for kind, data in (
        ("chat", chat(*totals)),
        ("messages", stream(began(), use(0, "a", "find"), delta(0, X[:3]), delta(0, X), stop(0), over())),
        ("responses", stream(created(), added("a", "find", "i", 0), args(X[:3], "i", 0), args(X, "i", 0), completed())),
    ):
        assert bare(agreed_calls(kind, data, NAMES, snapshots=True)) == FOUND
    with pytest.raises(ValueError, match="arguments"):
        ToolCallAggregator(arguments="all")  # type: ignore[arg-type]
