"""`import toolwire`: streams, as iterators and as push objects, in any chunking."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import toolwire
from tests.support.backend_writers import STREAMED
from tests.support.chunks import in_any_chunking
from tests.support.scripts import NAMES, Calls, Name, Says, Script, Thinks
from toolwire import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    FedAfterEnd,
    Note,
    OutOfOrder,
    RefusalDelta,
    StreamDecoder,
    StreamEncoder,
    TextDelta,
    Translator,
    Turn,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
    WrongDialect,
    check_stream,
    collect,
    decode_body,
    decode_stream,
    encode_body,
    encode_stream,
    events_of,
    translate,
)

LOOK = Calls("call_a", "look", '{"path":"a ü \U0001f600"}')
FIND = Calls("call_b", "find", '{"q": [1, 2.50]}')
TURNS = {
    "text": Script((Says("Hellö, \U0001f600 world."),)),
    "a thought, text and two calls": Script((Thinks("Hm.", "SEAL"), Says("So."), LOOK, FIND)),
    "text behind a call": Script((LOOK, Says("That was it."))),
    "a call without arguments": Script((Calls("call_a", "look", ""),)),
    "cut in a call": Script((Says("So."), Calls("call_a", "look", '{"path":"ha', whole=False)), "length"),
    "an error": Script((Says("And"),), "error"),
    "a stream that is cut": Script((Says("And"), LOOK), "cut"),
}
PAIRS = [*itertools.product(NAMES, NAMES)]


def stream(script: Script, kind: Name) -> bytes:
    """The script as a server of this kind streams it."""
    return b"".join(step for step in STREAMED[kind](script) if isinstance(step, bytes))


def pushed(stage: Any, chunks: list[bytes], empty: Any) -> Any:
    """All that a push object gives."""
    out = empty
    for chunk in chunks:
        out += stage.feed(chunk)
    return out + stage.end()


# Decoding


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("kind", NAMES)
def test_events_do_not_depend_on_how_bytes_are_cut(turn: str, kind: Name):
    data = stream(TURNS[turn], kind)
    events = in_any_chunking(data, lambda chunks: [*decode_stream(kind, chunks, seed="S")])
    assert in_any_chunking(data, lambda chunks: pushed(StreamDecoder(kind, seed="S"), chunks, [])) == events
    assert isinstance(events[-1], TurnEnded | TurnFailed)


def arguments_of(call: Calls, kind: Name) -> str:
    """The arguments as they are read from a server of this kind: Gemini writes an object, not its text."""
    return msgspec.json.format(call.arguments, indent=-1) if kind == "gemini" else call.arguments


@pytest.mark.parametrize("kind", NAMES)
def test_a_turn_is_collected_as_the_server_told_it(kind: Name):
    turn = collect(decode_stream(kind, [stream(TURNS["a thought, text and two calls"], kind)]))
    assert (turn.text, turn.reasoning, turn.reason) == ("So.", "Hm.", "calls")
    assert [(call.id, call.name, call.arguments) for call in turn.calls] == [
        (call.id, call.name, arguments_of(call, kind)) for call in (LOOK, FIND)
    ]
    assert turn.usage is not None
    assert turn.usage.total == 16


@pytest.mark.parametrize("kind", NAMES)
def test_an_event_comes_with_the_bytes_that_complete_it(kind: Name):
    """No iterator reads ahead: what it has is given before the next chunk is asked for."""
    given: list[str] = []

    def chunks() -> Iterator[bytes]:
        for step in STREAMED[kind](TURNS["text"]):
            given.append("chunk")
            yield step

    given.extend(type(event).__name__ for event in decode_stream(kind, chunks()))
    first = given.index("TextDelta")
    assert given[first - 1] in ("chunk", "TurnStarted")
    assert "chunk" in given[first:]


ENDED: tuple[Name, ...] = ("chat", "responses", "messages")
"""The dialects whose streams say that they are over. In the others the end of the body does."""


@pytest.mark.parametrize("kind", ENDED)
def test_what_follows_the_end_of_a_turn_is_not_read(kind: Name):
    chunks = iter([stream(TURNS["text"], kind), b"data: {}\n\n", b"more"])
    assert collect(decode_stream(kind, chunks)).failure is None
    assert [*chunks] == [b"data: {}\n\n", b"more"]


@pytest.mark.parametrize("kind", ENDED)
def test_bytes_behind_the_end_of_a_turn_cause_nothing(kind: Name):
    decoder = StreamDecoder(kind)
    decoder.feed(stream(TURNS["text"], kind))
    assert decoder.ended
    assert decoder.feed(b'data: {"choices":[]}\n\n') == []
    assert decoder.end() == []


# Odd uses


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    "data", [b"", b": keepalive\n\n", 'data: {"x":"ü'.encode()[:-1]], ids=["empty", "comment", "cut"]
)
def test_a_stream_without_a_turn_is_a_failed_turn(kind: Name, data: bytes):
    [event] = in_any_chunking(data, lambda chunks: [*decode_stream(kind, chunks)])
    assert isinstance(event, TurnFailed)
    assert event.failure.code == "stream_cut"
    for target in NAMES:
        assert collect(decode_stream(target, translate(kind, target, [data]))).failure


@pytest.mark.parametrize("kind", NAMES)
def test_a_stream_that_is_cut_inside_a_character_fails_behind_what_came(kind: Name):
    data = stream(TURNS["text"], kind)
    cut = data[: data.index("\U0001f600".encode()) + 2]
    turn = in_any_chunking(cut, lambda chunks: collect(decode_stream(kind, chunks)))
    assert "Hellö, ".startswith(turn.text)
    assert turn.failure is not None


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("data", [b'data: {"error":{"message":"No."}}\n\n', b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"No."}}\n\n', b'{"error":{"message":"No."}}'])  # fmt: skip
def test_an_error_that_comes_first_is_the_failure(kind: Name, data: bytes):
    turn = in_any_chunking(data, lambda chunks: collect(decode_stream(kind, chunks)))
    assert turn.failure is not None
    assert turn.failure.message == "No."


@pytest.mark.parametrize(("kind", "said"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_a_stream_of_another_dialect_is_named(kind: Name, said: Name):
    data = stream(TURNS["text"], kind)
    for read in (lambda: [*decode_stream(said, [data])], lambda: [*translate(said, "chat", [data])]):
        with pytest.raises(WrongDialect) as caught:
            read()
        assert (caught.value.expected, caught.value.found) == (said, kind)


def test_a_reply_that_is_too_large_is_a_failed_turn():
    """No stage holds more than it may: a frame has a limit in bytes, a turn a limit in calls."""
    frame = [b'data: {"x":"', *([b"x" * 1024 * 1024] * 33)]
    assert [event.failure.code for event in decode_stream("chat", frame) if isinstance(event, TurnFailed)] == [
        "event_too_large"
    ]
    many = Script(tuple(Calls(f"call_{number}", "look", "{}") for number in range(10_001)))
    turn = collect(decode_stream("messages", [stream(many, "messages")]))
    assert turn.failure is not None
    assert turn.failure.code == "reply_too_large"


def test_nothing_can_be_fed_after_the_end():
    decoder, encoder, translator = StreamDecoder("chat"), StreamEncoder("chat"), Translator("chat", "chat")
    decoder.end()
    translator.end()
    for event in (TurnStarted(), TurnEnded()):
        encoder.feed(event)
    encoder.end()
    for late in (
        lambda: decoder.feed(b"x"),
        decoder.end,
        lambda: translator.feed(b"x"),
        translator.end,
        lambda: encoder.feed(TurnStarted()),
        encoder.end,
    ):
        with pytest.raises(FedAfterEnd, match="has ended: use a new one for each turn"):
            late()


def test_a_generator_can_be_closed_early_and_reads_no_further():
    read: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number, step in enumerate(STREAMED["chat"](TURNS["a thought, text and two calls"])):
            read.append(number)
            yield step

    source = chunks()
    translation = translate("chat", "responses", source)
    next(translation)
    translation.close()  # pyright: ignore[reportAttributeAccessIssue]
    seen = len(read)
    assert [*translation] == []
    assert len(read) == seen
    assert next(source)


def test_what_cannot_be_an_option_is_refused_where_it_is_said():
    with pytest.raises(ValueError, match="'claude' is no dialect; there are chat, responses, messages, gemini"):
        decode_stream("claude", [])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="there is no option 'max_call'"):
        decode_stream("chat", [], max_call=1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="max_calls: "):
        decode_stream("chat", [], max_calls=-1)
    with pytest.raises(toolwire.SettingsError, match=r"profile\.notation: unknown key; did you mean notations\?"):
        decode_stream("chat", [], profile={"notation": ["think"]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"created": "now"}, "created: "),
        ({"id": 5}, "id: "),
        ({"model": 5}, "model: "),
        ({"include_usage": "yes"}, "include_usage: "),
        ({"seed": 5}, "seed: "),
        ({"text_calls": "no"}, "text_calls: "),
        ({"tools": "find"}, r"tools: a list of names is needed, such as \['find'\]"),
        ({"tools": [{"name": "find"}]}, r"tools\[0\]: a name is needed, not dict"),
        ({"profile": "think"}, "profile: a mapping is needed, not str"),
        ({"answers": {}}, "answers: the result of `convert_request` is needed, not dict"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_option(options: Any, said: str):
    with pytest.raises(ValueError, match=said):
        translate("chat", "messages", [], **options)


def test_a_reason_that_there_is_not_is_refused():
    events = [TurnStarted(), TurnEnded("done")]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="reason: 'done' is not one of stop, calls, length, filter"):
        [*encode_stream("chat", events)]
    with pytest.raises(ValueError, match="reason: 'done' is not one of"):
        encode_body("chat", collect(events))


def test_a_turn_is_needed_for_a_body():
    with pytest.raises(TypeError, match="a Turn is needed, not list; `collect` makes one from events"):
        encode_body("chat", [TurnStarted()])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="a body must be bytes, text or a mapping, not int"):
        decode_body("chat", 5)  # pyright: ignore[reportArgumentType]


READERS: dict[str, Callable[[Any], Any]] = {
    "decode_stream": lambda chunks: [*decode_stream("chat", chunks)],
    "translate": lambda chunks: [*translate("chat", "messages", chunks)],
    "check_stream": lambda chunks: check_stream("chat", chunks),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("chunks", [b"data: {}", "data: {}", bytearray(), memoryview(b"x")])
def test_one_chunk_is_no_iterable_of_chunks(reader: str, chunks: Any):
    with pytest.raises(TypeError, match=r"chunks must be an iterable of bytes, such as \[data\], not "):
        READERS[reader](chunks)


@pytest.mark.parametrize("reader", [*READERS.values(), lambda chunks: StreamDecoder("chat").feed(chunks[0])])
@pytest.mark.parametrize("chunk", [5, "data: {}", None])
def test_a_chunk_is_bytes(reader: Callable[[Any], Any], chunk: Any):
    with pytest.raises(TypeError, match="a chunk must be bytes, not "):
        reader([chunk])


def test_names_of_tools_are_a_list_everywhere():
    with pytest.raises(ValueError, match=r"names: a list of names is needed, such as \['search'\]"):
        toolwire.ToolCallAggregator(names="search")


# Encoding

CALLING: list[Event] = [
    TurnStarted("r", "m"),
    TextDelta("Let me look."),
    CallStarted("c1", "find"),
    CallArgs("c1", '{"q":'),
    CallArgs("c1", '"x"}'),
    CallEnded("c1"),
    CallStarted("c2", "date"),
    CallEnded("c2"),
    Usage(3, 4),
    TurnEnded(),
]


@pytest.mark.parametrize("dialect", NAMES)
def test_a_turn_that_is_written_can_be_read_again(dialect: Name):
    data = b"".join(encode_stream(dialect, CALLING, include_usage=True))
    turn = collect(decode_stream(dialect, [data]))
    assert (turn.text, turn.model, turn.reason, turn.usage) == ("Let me look.", "m", "calls", Usage(3, 4))
    assert [(call.id, call.name, call.arguments) for call in turn.calls] == [
        ("c1", "find", '{"q":"x"}'),
        ("c2", "date", "{}"),
    ]


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("turn", TURNS)
def test_what_was_collected_can_be_told_again(dialect: Name, turn: str):
    """A turn, its events, and its events once more are the same turn."""
    first = collect(decode_stream(dialect, [stream(TURNS[turn], dialect)]))
    assert collect(events_of(first)) == first
    again = collect(decode_stream(dialect, encode_stream(dialect, events_of(first), include_usage=True)))
    assert (again.text, again.reason) == (first.text, first.reason)
    if first.failure is None:
        # Clients of Gemini get no call that they must not run.
        told = [call.arguments for call in first.calls if call.complete or dialect != "gemini"]
        assert [call.arguments for call in again.calls] == told
        assert again.usage == first.usage


@pytest.mark.parametrize("dialect", NAMES)
def test_ids_times_and_names_are_what_the_caller_says(dialect: Name):
    written = [b"".join(encode_stream(dialect, CALLING, id="x_1", created=7, model="mine")) for _ in range(2)]
    assert written[0] == written[1]
    assert b'"x_1"' in written[0]
    assert b'"mine"' in written[0]
    assert b"".join(encode_stream(dialect, CALLING)) != b"".join(encode_stream(dialect, CALLING))


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([TextDelta("x")], "TextDelta while WAITING"),
        ([TurnStarted(), CallArgs("c", "{}")], "CallArgs while TALKING"),
        ([TurnStarted(), CallStarted("c", "f"), TextDelta("x")], "TextDelta while CALLING"),
        ([TurnStarted(), TurnEnded(), TextDelta("x")], "TextDelta while CLOSED"),
        ([TurnStarted(), CallStarted("c", "f"), CallArgs("d", "{}")], "CallArgs of 'd' while CALLING 'c'"),
        ([TurnStarted(), CallStarted("c", "f"), CallEnded("d")], "CallEnded of 'd' while CALLING 'c'"),
        ([TurnStarted(), TextDelta("x")], "end of stream while TALKING: the turn never ended"),
        ([], "the turn never began: the first event must be TurnStarted"),
    ],
)
def test_events_in_an_illegal_order_are_refused(events: list[Event], said: str):
    for dialect in NAMES:
        with pytest.raises(OutOfOrder, match=said):
            [*encode_stream(dialect, events)]
    with pytest.raises(OutOfOrder, match=said):
        collect(events)


def test_notes_are_told_in_the_comment_that_closes_a_stream():
    events = [TurnStarted(), Note("tail_withheld"), TextDelta("x"), TurnEnded()]
    assert b'"notes":[{"code":"tail_withheld"}]' in b"".join(encode_stream("chat", events))


# Translating


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("turn", ["a thought, text and two calls", "cut in a call", "an error"])
def test_a_translation_does_not_depend_on_how_bytes_are_cut(source: Name, target: Name, turn: str):
    data = stream(TURNS[turn], source)

    def run(chunks: list[bytes]) -> bytes:
        return b"".join(translate(source, target, chunks, seed="S", created=1))

    translated = in_any_chunking(data, run)
    assert pushed(Translator(source, target, seed="S", created=1), [data[:99], data[99:]], b"") == translated
    kept, again = collect(decode_stream(source, [data])), collect(decode_stream(target, [translated]))
    assert (again.text, again.reason, bool(again.failure)) == (kept.text, kept.reason, bool(kept.failure))
    assert [call.id for call in again.calls if call.complete] == [call.id for call in kept.calls if call.complete]


@pytest.mark.parametrize("dialect", NAMES)
def test_unknown_fields_survive_from_a_dialect_to_itself(dialect: Name):
    data = stream(TURNS["text"], dialect).replace(b'{"', b'{"vendor_field":7,"', 3)
    assert b"vendor_field" in b"".join(translate(dialect, dialect, [data]))


# Policies, by name

BOTH = Script((Says("So."), LOOK, FIND, Says("Done.")))


def read(script: Script, **options: Any) -> Turn:
    turns = [collect(decode_stream(kind, [stream(script, kind)], seed="S", **options)) for kind in NAMES]
    for turn in turns:
        assert (turn.text, turn.reason) == (turns[0].text, turns[0].reason)
        assert [(call.id, json.loads(call.arguments)) for call in turn.calls] == [
            (call.id, json.loads(call.arguments)) for call in turns[0].calls
        ]
    return turns[0]


def test_the_number_of_calls_is_capped():
    turn = read(BOTH, max_calls=1)
    assert ([call.id for call in turn.calls], turn.reason) == (["call_a"], "calls")
    assert Note("call_capped", "call_b") in turn.notes
    assert len(read(BOTH, parallel=False).calls) == 1


def test_a_turn_is_stopped_after_its_calls():
    assert read(BOTH, stop_after=True).text == "So."
    first = read(BOTH, stop_after=True, stop_after_mode="first")
    assert ([call.id for call in first.calls], first.text) == (["call_a"], "So.")
    assert read(BOTH, suppress_tail=True).text == "So."
    assert read(BOTH).text == "So.Done."


def test_a_call_that_came_twice_is_dropped():
    block = "<use_tool><name>look</name><path>a</path></use_tool>"
    twice = Script((Says(f"{block}\n{block}"),))
    assert len(read(twice, tools=["look"]).calls) == 2
    assert len(read(twice, tools=["look"], dedup=True).calls) == 1


def test_calls_in_text_are_read_where_tools_are_declared_or_it_is_said():
    block = "<use_tool>\n<name>look</name>\n<path>a</path>\n</use_tool>"
    written = Script((Says(block),))
    assert [call.name for call in read(written, tools=["look", "find"]).calls] == ["look"]
    assert [call.name for call in read(written, text_calls=True).calls] == ["look"]
    assert (read(written).calls, read(written).text) == ((), block)
    assert read(written, tools=["look"], text_calls=False).calls == ()
    assert read(written, tools=["find"]).calls == ()


def test_calls_are_written_as_text_in_the_output_mode_for_that():
    turn = read(Script((LOOK,)), output_mode="obsidian-xml")
    assert turn.text.startswith("<use_tool>\n<name>look</name>")
    assert len(turn.calls) == 1


def test_a_profile_names_the_notations_of_a_model():
    data = stream(Script((Says("<think>Hm.</think>So."),)), "chat")
    turn = collect(decode_stream("chat", [data], profile={"notations": ["think"]}))
    assert (turn.reasoning, turn.text) == ("Hm.", "So.")


def test_a_name_that_is_missing_is_inferred_from_the_only_tool():
    turn = read(Script((Calls("call_a", "", "{}"),)), tools=["look"])
    assert [call.name for call in turn.calls] == ["look"]
    assert Note("name_inferred", "call_a") in turn.notes


def test_a_failure_behind_calls_can_be_an_end():
    data = stream(Script((LOOK,), "error"), "responses")
    assert collect(decode_stream("responses", [data])).failure is not None
    finished = collect(decode_stream("responses", [data], finish_after_calls=True))
    assert (finished.failure, finished.reason) == (None, "calls")


def test_a_legacy_client_gets_a_function_call():
    data = stream(Script((LOOK,)), "messages")
    assert b'"function_call":{"name":"look"' in b"".join(translate("messages", "chat", [data], legacy_functions=True))


def test_refusals_are_refusals():
    assert collect([TurnStarted(), RefusalDelta("No."), TurnEnded()]).refusal == "No."
