"""Frames read in runs say what they say one by one, to the letter, and so does all that is made of them."""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backend_writers import STREAMED, frame
from tests.support.chunks import chunkings
from tests.support.scripts import DECLARED, NAMES, Calls, Declines, Name, Says, Script, Thinks, Tokens
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends import chat as chat_backend
from toolwire.backends import gemini as gemini_backend
from toolwire.backends import messages as messages_backend
from toolwire.backends import responses as responses_backend
from toolwire.backends.chat.decode import Decoder as ChatDecoder
from toolwire.backends.gemini.decode import Decoder as GeminiDecoder
from toolwire.backends.lowered import LoweredConversation
from toolwire.backends.messages.decode import Decoder as MessagesDecoder
from toolwire.backends.responses.decode import DELTA_FIELDS
from toolwire.core.batch import find_delta_openings
from toolwire.core.errors import BackendFault
from toolwire.core.events import Event, attach_batch
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.sse import Frame, FrameReader
from toolwire.dialects import chat, gemini, messages, responses

RECORDINGS = sorted((Path(__file__).parent.parent / "recordings").glob("*.sse"))
FIELDS: dict[Name, Sequence[bytes]] = {
    "chat": ChatDecoder.delta_fields,
    "gemini": GeminiDecoder.delta_fields,
    "messages": MessagesDecoder.delta_fields,
    "responses": DELTA_FIELDS,
}
DELTA = find_delta_openings("delta")

Said = list[tuple[bytes, bytes]]


def frames_of(pieces: Iterable[bytes], fields: Sequence[bytes] = ()) -> list[Frame]:
    reader = FrameReader(delta_fields=fields)
    return [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()


def taken_apart(frames: Iterable[Frame]) -> Said:
    """Every frame by itself: its name and its data."""
    out: Said = []
    for each in frames:
        datas = [each.data] if each.batch is None else each.batch.render_frames()
        out += [(each.event, data) for data in datas]
    return out


def runs_in(frames: Iterable[Frame]) -> list[int]:
    """How many frames each run has."""
    return [len(each.batch.texts) for each in frames if each.batch is not None]


def says_the_same(data: bytes, fields: Sequence[bytes], tries: int = 12) -> None:
    """Read in runs, at any chunking, it is what it is one by one."""
    expected = taken_apart(frames_of([data]))
    for pieces in chunkings(data, tries=tries):
        assert taken_apart(frames_of(pieces, fields)) == expected


# Frames to read


TYPE = "response.output_text.delta"


def delta(text: str, number: object = None, /, *, name: str = "", space: str = "", **more: object) -> bytes:
    """One frame with a text; a number, if there is one, stands before it."""
    fields: dict[str, object] = {"type": TYPE, **({} if number is None else {"sequence_number": number}), "delta": text}
    written = json.dumps({**fields, **more}, separators=(",", ":" + space), ensure_ascii=False)
    return frame(name, written)


def spelt(inside: str, number: int | None = None) -> bytes:
    """One frame whose text is written just so."""
    return delta("@", number).replace(b"@", inside.encode())


def deltas(texts: Iterable[str], **how: Any) -> bytes:
    return b"".join(delta(text, **how) for text in texts)


def padded(texts: Iterable[str], /, *number: int, **how: Any) -> bytes:
    """Frames that end with random letters, as OpenAI pads them."""
    letters = random.Random(7)
    return b"".join(
        delta(text, *number, **how, obfuscation="".join(letters.choices("aZ09", k=letters.randrange(9))))
        for text in texts
    )


def numbered(numbers: Iterable[object], **how: Any) -> bytes:
    return b"".join(delta("abc"[place % 3], number, **how) for place, number in enumerate(numbers))


def chunk(**said: object) -> bytes:
    return frame("", {"id": "x", "choices": [{"index": 0, "delta": said, "finish_reason": None}]})


def arguments(text: str, **more: object) -> bytes:
    return chunk(tool_calls=[{"index": 0, "function": {**more, "arguments": text}}])


def grown(index: int, **said: object) -> bytes:
    return frame("content_block_delta", {"type": "content_block_delta", "index": index, "delta": said})


DONE = b"data: [DONE]\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
COMMENT = b": keepalive\n\n"

RUNS: dict[str, bytes] = {
    "a burst": deltas("abcdefgh"),
    "a burst of named events": deltas("abcdefgh", name="t"),
    "two bursts of two names": deltas("abcd", name="t") + deltas("abcd", name="u"),
    "spaces after colons": deltas("abcdefgh", space=" "),
    "numbers": numbered(range(3, 9)),
    "numbers of named events": numbered(range(3, 9), name="t"),
    "numbers with spaces": numbered(range(3, 9), space=" "),
    "numbers that get longer": numbered(range(7, 13)),
    "numbers that get longer twice": numbered([*range(97, 104), *range(997, 1004)]),
    "a jump in the numbers": numbered([1, 2, 3, 7, 8, 9]),
    "letters of all lengths": deltas(("é", "渐", "😀", "a", "ß" * 9, "\u2028", "\x7f")),
    "escapes that stay": deltas(('say "a"', "back\\slash", "line\nfeed", "\t\r\b\f", "a")),
    "a text that holds the key": deltas(("a", '"delta":"', '"delta": "', "b", "c")),
    "a text that holds the tail": deltas(("a", '"}', '"}\n\n', '"}\n\ndata: {"type":"response.output_text.delta","delta":"x', "b", "c")),
    "a text that holds the lead": deltas(('data: {"type":"response.output_text.delta",', "a", 'event: t\ndata: {"type":', "b", "c")),
    "backslashes before the end": deltas(("a", "\\", "\\\\", '\\"', '"', "b")),
    "a field behind the text": deltas("abcdef", more=[1, {"delta": 2}]),
    "obfuscation": padded("abcdefgh"),
    "obfuscation and numbers": b"".join(padded(text, place) for place, text in enumerate("abcdef", 8)),
    "obfuscation with spaces": b"".join(padded(text, place, space=" ") for place, text in enumerate("abcdef", 8)),
    "obfuscation in some frames": padded("abc") + deltas("def") + padded("ghi"),
    "obfuscation that is odd at times": padded("abc") + delta("d", obfuscation="\\") + padded("efg"),
    "a field behind the obfuscation": b"".join(delta(text, obfuscation="xyz"[:place], more=1) for place, text in enumerate("abc")),
    "a text that holds obfuscation": padded(("a", '","obfuscation":"', '","obfuscation":"x"}\n\n', "\\", "b", "c")),
    "numbers behind the text": b"".join(delta(text, sequence_number=place) for place, text in enumerate("abcdef", 7)),
    "numbers behind the text that jump": b"".join(delta("a", sequence_number=place) for place in (1, 2, 3, 7, 8, 8, 9, 10)),
    "numbers behind the obfuscation": b"".join(delta(text, obfuscation="x" * place, sequence_number=place) for place, text in enumerate("abcdef", 7)),
    "a text that holds a number": b"".join(delta(text, sequence_number=place) for place, text in enumerate(("a", '","sequence_number":2}\n\n', "b", "c"))),
    "escapes and empty texts now and then": b"".join(spelt(text) for text in ("a", "b", "c", "\\u00e9", "d", "e", "", "f", "g", "\\/", "h")),
    "intruders": deltas("abc") + PING + deltas("def") + COMMENT + deltas("ghi") + b"data: x\n\n" + deltas("jkl"),
    "single frames between others": b"".join(deltas(text) + PING for text in "abcdef"),
    "pairs between others": b"".join(deltas(text) + PING for text in ("ab", "cd", "ef")),
    "more blank lines": deltas("abc") + b"\n\n\n" + deltas("def") + b"\n" + deltas("ghi") + b"\n",
    "an end without its blank line": deltas("abcd") + delta("e")[:-2],
    "an end in the middle of a text": deltas("abcd") + delta("efgh")[:-6],
    "an end in the middle of a letter": deltas("abcd") + delta("é").partition(b"\xa9")[0],
    "the end of a chat stream": deltas("abcd") + DONE,
    "no white space behind data": deltas("abcdef").replace(b"data: ", b"data:"),
    "a byte order mark": b"\xef\xbb\xbf" + deltas("abcd"),
    "ids before the data": b"".join(b"id: 7\n" + delta(text) for text in "abcdef"),
    "comments inside blocks": b"".join(b": x\n" + delta(text) for text in "abcdef"),
    "a name behind a colon": b"".join(b"event:t\n" + delta(text) for text in "abcdef"),
    "an empty name": b"".join(b"event: \n" + delta(text) for text in "abcdef"),
    "bare JSON": b"".join(delta(text)[6:] for text in "abcdef"),
    "data over two lines before the text": deltas("abcdef").replace(b'delta",', b'delta",\ndata: '),
}  # fmt: skip
"""Streams that hold runs, or something that looks like one."""

SINGLE: dict[str, tuple[bytes, Sequence[bytes]]] = {
    "one frame": (delta("a"), DELTA),
    "empty texts": (deltas(["", "", ""]), DELTA),
    "no texts": (deltas([None, 1, {}]), DELTA),  # type: ignore[list-item]
    "escapes that are written otherwise": (b"".join(map(spelt, ("\\u00e9", "\\u0041", "\\/", "\\ud83d\\ude00"))), DELTA),
    "a letter in two halves": (b"".join(map(spelt, ("a", "\\ud83d", "\\ude00", "\\ud83d", "b"))), DELTA),
    "two texts that flow": (deltas("abc", text="x"), find_delta_openings("delta", "text")),
    "the same field twice": (deltas("abc", inner={"delta": "x"}), DELTA),
    "leading zeros": (b"".join(delta(text, 11).replace(b"11", b"0%d" % place) for place, text in enumerate("abc", 1)), DELTA),
    "numbers that stand still": (numbered([4, 4, 4, 4]), DELTA),
    "numbers backwards": (numbered([4, 3, 2, 1]), DELTA),
    "obfuscation that is escaped": (b"".join(delta(text, obfuscation='"' * place) for place, text in enumerate("abc", 1)), DELTA),
    "a number between text and obfuscation": (b"".join(delta(text, sequence_number=place, obfuscation="x") for place, text in enumerate("abc")), DELTA),
    "interleaved calls": (b"".join(delta(text, item_id=f"fc_{place % 2}") for place, text in enumerate("abcdefgh")), DELTA),
    "whole calls under one index": (b"".join(arguments(f'{{"x":{each}}}', name="f") for each in range(4)), FIELDS["chat"]),
    "whole calls with spaces": (b"".join(arguments("{}", name="f") for _ in range(4)).replace(b":", b": "), FIELDS["chat"]),
    "text and thoughts in one chunk": (b"".join(chunk(content=text, reasoning_content=text) for text in "abc"), FIELDS["chat"]),
    "malformed text": (b"".join(map(spelt, ('a"b', '"', 'a","x":"'))), DELTA),
}  # fmt: skip
"""Streams of frames that must stay by themselves."""


@pytest.mark.parametrize("data", RUNS.values(), ids=[name.replace(" ", "-") for name in RUNS])
def test_frames_in_runs_say_what_they_say_one_by_one(data: bytes):
    says_the_same(data, DELTA)


@pytest.mark.parametrize("data", RUNS.values(), ids=[name.replace(" ", "-") for name in RUNS])
def test_other_line_ends_change_nothing(data: bytes):
    for end in (b"\r\n", b"\r"):
        says_the_same(data.replace(b"\n", end), DELTA, tries=4)


@pytest.mark.parametrize(("data", "fields"), SINGLE.values(), ids=[name.replace(" ", "-") for name in SINGLE])
def test_what_is_no_run_stays_as_it_is(data: bytes, fields: Sequence[bytes]):
    says_the_same(data, fields)
    assert runs_in(frames_of([data], fields)) == []


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_recorded_streams_say_the_same(path: Path):
    says_the_same(path.read_bytes(), DELTA_FIELDS)


BEHIND: dict[str, bytes] = {
    "data over two lines": deltas("abcdef", x=1).replace(b',"x"', b',\ndata: "x"'),
    "an id": b"".join(delta(text)[:-1] + b"id: 7\n\n" for text in "abcdef"),
    "a comment": b"".join(delta(text)[:-1] + b": x\n\n" for text in "abcdef"),
    "the name": b"".join(delta(text)[:-1] + b"event: t\n\n" for text in "abcdef"),
}


@pytest.mark.parametrize("data", BEHIND.values(), ids=[name.replace(" ", "-") for name in BEHIND])
def test_lines_behind_the_text_say_what_they_say_one_by_one(data: bytes):
    says_the_same(data, DELTA)


def test_a_frame_beyond_the_limit_is_an_error_in_a_run_too():
    data = deltas(["a", "b", "c" * 200, "d"])
    for fields in ((), DELTA):
        with pytest.raises(BackendFault):
            FrameReader(100, fields).feed(data)


def test_a_number_may_have_any_length():
    says_the_same(b"".join(delta(text, 5).replace(b"5", b"5" * 5000) for text in "abcd"), DELTA, tries=0)


@pytest.mark.parametrize("numbers", [[1, 2, 4, 3, 5], [10, 11, 13, 12, 14]], ids=["turned", "long"])
def test_numbers_between_the_first_and_the_last_are_kept(numbers: list[object]):
    says_the_same(numbered(numbers), DELTA)


@pytest.mark.parametrize("size", [1, 2, 3, 50, 1000, 16_000, 17_000, 40_000])
def test_runs_longer_than_any_window_say_the_same(size: int):
    for start in (0, 9_990):
        data = b"".join(delta("x" * size, start + number) for number in range(50_000 // (size + 70) + 3))
        assert taken_apart(frames_of([data], DELTA)) == taken_apart(frames_of([data]))


# What a run is


def test_a_burst_is_the_first_frame_and_one_run():
    frames = frames_of([deltas("abcdefgh")], DELTA)
    assert runs_in(frames) == [7]
    assert [json.loads(each.data)["delta"] for each in frames] == ["a", "bcdefgh"]


def test_a_run_goes_on_in_the_next_read_without_being_learned_again():
    frames = frames_of([deltas("abcd"), deltas("efgh")], DELTA)
    assert [json.loads(each.data)["delta"] for each in frames] == ["a", "bcd", "efgh"]


@pytest.mark.parametrize(
    ("data", "runs"),
    [
        (numbered(range(3, 9)), [5]),
        (numbered(range(7, 13)), [5]),
        (numbered([1, 2, 3, 4, 8, 9, 10]), [3]),
        (deltas("abc") + COMMENT + deltas("def"), [2, 3]),
        (padded("abcdef"), [5]),
        (b"".join(padded(text, place) for place, text in enumerate("abcdef", 7)), [5]),
        (b"".join(delta(text, sequence_number=place) for place, text in enumerate("abcdef", 7)), [5]),
        (b"".join(delta(text, obfuscation="x" * place, sequence_number=place) for place, text in enumerate("abcd", 7)), [3]),
        (b"".join(map(spelt, ("a", "b", "c", "\\u00e9", "d", "e", "", "f", "g"))), [2, 2, 2]),
        (b"".join(delta(text, item_id="fc_0") for text in "abcd"), [3]),
        (b"".join(arguments(text) for text in "abcd"), [3]),
    ],
)  # fmt: skip
def test_runs_are_as_long_as_they_can_be(data: bytes, runs: list[int]):
    found = runs_in(frames_of([data], (*DELTA, *find_delta_openings("arguments"))))
    assert found[: len(runs)] == runs


@pytest.mark.parametrize("kind", NAMES)
def test_a_burst_of_every_dialect_is_read_in_runs(kind: Name):
    data = told(Script((Says("abcdefgh" * 9), Calls("call_a", "look", '{"path":"a b c d e f"}')), chars=1), kind)
    frames = frames_of([data], FIELDS[kind])
    assert sum(runs_in(frames)) > len(frames)


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=4), min_size=3, max_size=9))
def test_a_run_is_the_text_of_its_frames_put_together(texts: list[str]):
    for each in frames_of([deltas(texts)], DELTA):
        if each.batch is not None:
            said = [json.loads(data)["delta"] for data in each.batch.render_frames()]
            assert json.loads(each.data)["delta"] == "".join(said)


# Streams made up

FRAGMENTS = (
    "a",
    "é",
    "😀",
    '"',
    "\\",
    "\n",
    "/",
    "\x01",
    "<",
    '"delta":"',
    '"}',
    "\n\n",
    "data: ",
    "event: t",
    "",
    "{}",
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=3).map("".join)
SHAPES: tuple[Callable[[str, int], bytes], ...] = (
    lambda text, number: delta(text),
    lambda text, number: delta(text, name="t"),
    delta,
    lambda text, number: delta(text, number, name="t", space=" "),
    lambda text, number: delta(text, 0),
    lambda text, number: delta(text, more="x" * (number % 3)),
    lambda text, number: delta(text, item_id=number % 2),
    lambda text, number: delta(text, name="t", sequence_number=number),
    lambda text, number: delta(text, number, obfuscation="x" * (number % 3)),
    lambda text, number: delta(text, obfuscation=text, sequence_number=number),
    lambda text, number: chunk(content=text),
    lambda text, number: chunk(role="assistant", content=text),
    lambda text, number: chunk(reasoning_content=text, content=None),
    lambda text, number: arguments(text),
    lambda text, number: arguments(text, name="f"),
    lambda text, number: grown(number % 2, type="text_delta", text=text),
    lambda text, number: grown(0, type="input_json_delta", partial_json=text),
    lambda text, number: spelt(text.replace("\n", "")),  # malformed as often as not
)
OTHERS = (
    b"\n",
    b"\n\n",
    PING,
    COMMENT,
    DONE,
    b"data: {\n\n",
    b": x\n",
    b'{"error":{}}\n',
    b"data: \xff\n\n",
    b"data:\n\n",
)
EVERY_FIELD = tuple(field for fields in FIELDS.values() for field in fields)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Bursts of all shapes, with something between them now and then."""
    out: list[bytes] = []
    number = draw(st.sampled_from((0, 8, 97)))
    for _ in range(draw(st.integers(1, 5))):
        shape = draw(st.sampled_from(SHAPES))
        for text in draw(st.lists(texts, max_size=6)):
            out.append(shape(text, number))
            number += draw(st.sampled_from((1, 1, 1, 1, 1, 2)))
        out.append(draw(st.sampled_from((b"", b"", *OTHERS))))
    return b"".join(out)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted(place % (len(data) + 1) for place in cuts)
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


places = st.lists(st.integers(0, 4000), max_size=6)


@given(streams(), places)
def test_any_stream_says_in_runs_what_it_says_one_by_one(data: bytes, cuts: list[int]):
    assert taken_apart(frames_of(cut(data, cuts), EVERY_FIELD)) == taken_apart(frames_of([data]))


# Cost


class Counted(bytes):
    """Bytes that count how much of them is copied."""

    work: ClassVar[int] = 0
    searches: ClassVar[int] = 0

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        part = super().__getitem__(key)
        if isinstance(part, int):
            return part
        Counted.work += len(part)
        return Counted(part)

    def split(self, sep: Any = None, maxsplit: SupportsIndex = -1) -> list[bytes]:
        Counted.work += len(self)
        return super().split(sep, maxsplit)

    def find(self, sub: Any, start: Any = None, end: Any = None, /) -> int:
        Counted.searches += 1
        assert Counted.searches < 10_000, "it never ends"
        return super().find(sub, start, end)


def work_for(data: bytes) -> int:
    """How many bytes are copied while this is read in runs, in one go."""
    reader = FrameReader(delta_fields=DELTA)
    reader.feed(COMMENT)
    Counted.work = Counted.searches = 0
    reader.feed(Counted(data))
    return Counted.work


@pytest.mark.parametrize(
    "data", [b"data: a\n\n\n", deltas("abc") + b"\n", PING + b"\n\n\n"], ids=["one", "a-run", "more"]
)
def test_a_blank_line_too_many_is_read_to_the_end(data: bytes):
    assert work_for(data) < 10 * len(data)


PATTERNS: dict[str, Callable[[int], bytes]] = {
    "one burst": lambda times: deltas("abcd" * times),
    "one numbered burst": lambda times: numbered(range(4 * times)),
    "all of them different": lambda times: b"".join(delta("a", x=place) for place in range(4 * times)),
    "interleaved": lambda times: b"".join(delta("a", x=place % 2) for place in range(4 * times)),
    "short bursts": lambda times: b"".join(deltas("abcd") + COMMENT for _ in range(times)),
    "numbers that jump": lambda times: numbered(each + each // 4 for each in range(4 * times)),
    "two calls in turn": lambda times: b"".join(delta("a", x=place // 4 % 2) for place in range(4 * times)),
    "empty texts now and then": lambda times: b"".join(deltas(["a", "b", ""]) for _ in range(times)),
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=[name.replace(" ", "-") for name in PATTERNS])
def test_four_times_as_much_costs_four_times_as_much(pattern: Callable[[int], bytes]):
    assert work_for(pattern(800)) < 6 * work_for(pattern(200))


# The whole way: decode, pieces, policies, encode

BACKENDS: dict[Name, Callable[[Request, str], LoweredConversation]] = {
    "chat": chat_backend.Conversation,
    "gemini": gemini_backend.Conversation,
    "messages": messages_backend.Conversation,
    "responses": responses_backend.Conversation,
}
ENCODERS: dict[Name, Any] = {"chat": chat, "gemini": gemini, "messages": messages, "responses": responses}
QUESTIONS: dict[Name, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Go."}]},
    "messages": {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 99},
    "responses": {"input": "Go."},
    "gemini": {
        "contents": [{"parts": [{"text": "Go."}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    },
}
RULES = ToolRules()


def ask(dialect: Name, **fields: Any) -> Request:
    body = {"model": "m", "stream": True, **QUESTIONS[dialect], **fields}
    return ENCODERS[dialect].decode_request(json.dumps(body).encode())


class Way:
    """One turn on its way from a backend to a client. `merged`: frames are read in runs, as in service."""

    def __init__(self, request: Request, dialect: Name, kind: Name, rules: ToolRules, *, merged: bool) -> None:
        self._conversation = BACKENDS[kind](request, "S")
        self._conversation.start()
        self._reader = FrameReader(delta_fields=self._conversation.delta_fields if merged else ())
        self._assembly = assemble_policies(request, rules, "S", self._conversation.stand_in)
        self._encoder = ENCODERS[dialect].StreamEncoder(request, "id_7", 7, self._assembly.stats)
        self._order = TurnOrder()
        self.events: list[Event] = []
        self.written: list[bytes] = []

    def run(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._pass(self._converse(self._reader.feed(piece)))
        self._pass(self._converse(self._reader.end()))
        self._pass(self._conversation.end())

    def _converse(self, frames: Iterable[Frame]) -> list[Event]:
        feed = self._conversation.feed
        return [event for each in frames for event in attach_batch(feed(each), each)]

    def _pass(self, events: Iterable[Event]) -> None:
        for event in events:
            for passed in self._assembly.policies.feed(event):
                self._order.check((passed,))
                self.events.append(passed)
                self.written += self._encoder.feed(passed)


def carried(
    pieces: Iterable[bytes], request: Request, dialect: Name, kind: Name, rules: ToolRules = RULES, *, merged: bool = True
) -> bytes:  # fmt: skip
    """The client's stream."""
    way = Way(request, dialect, kind, rules, merged=merged)
    way.run(pieces)
    return b"".join(way.written)


def carried_ways(data: bytes, request: Request, dialect: Name, kind: Name, rules: ToolRules = RULES) -> Iterator[bytes]:
    """The client's stream in runs, at any chunking, and then one by one."""
    for pieces in chunkings(data, tries=6):
        yield carried(pieces, request, dialect, kind, rules)
    yield carried([data], request, dialect, kind, rules, merged=False)


def carried_anyhow(data: bytes, request: Request, dialect: Name, kind: Name, rules: ToolRules = RULES) -> bytes:
    """The client's stream, to the letter the same in runs and one by one, at any chunking."""
    *ways, split_batch = carried_ways(data, request, dialect, kind, rules)
    for stream in ways:
        assert stream == split_batch
    return split_batch


def told(script: Script, kind: Name) -> bytes:
    """The turn as a backend of this kind streams it; a number stands behind the type, as OpenAI has it."""
    data = b"".join(STREAMED[kind](script))
    return NUMBER.sub(rb'{"type":\1,\3\2', data)


def pad(data: bytes) -> bytes:
    """The stream with random letters at the end of every frame, as OpenAI pads its own."""
    letters = random.Random(7)
    return re.sub(
        rb"\}\n\n",
        lambda _: b',"obfuscation":"%s"}\n\n' % "".join(letters.choices("aZ09", k=letters.randrange(16))).encode(),
        data,
    )


NUMBER = re.compile(rb'\{"type":("[a-z_.]+")(,[^\n]*),("sequence_number":[0-9]+)')
LONG = 'Zürich ☃ 東京 😀 "said" \\ back\nand so on, for a while'
CALL = Calls("call_a", "look", '{"path":"a b","deep":[1,{"x":null}],"e":"\\u2603 \\" \\\\"}')
TURNS: dict[str, Script] = {
    "text": Script((Says(LONG),), chars=2),
    "text in single letters": Script((Says(LONG * 2),), chars=1),
    "a call": Script((CALL,), chars=2),
    "two calls": Script((CALL, Calls("call_b", "find", '{"q":"another"}')), chars=2),
    "thoughts, text and calls": Script((Thinks(LONG, "SEAL"), Says(LONG), CALL, Calls("call_b", "find", "{}")), chars=3),
    "two thoughts": Script((Thinks("One thing first.", "S1"), CALL, Thinks("And another one.", "S2"), Says(LONG)), chars=2),
    "text between calls": Script((Says(LONG), CALL, Says(LONG), Calls("call_b", "find", '{"q":1}')), chars=2),
    "cut in a call": Script((Calls("call_a", "look", '{"path":"half a wo', whole=False),), "length", chars=2),
    "all tokens": Script((Thinks("Hm, well, so.", "SEAL"), Says("So be it then.")), tokens=Tokens(90, 9, 6, 3, 7), chars=2),
}  # fmt: skip


def asked(dialect: Name, script: Script) -> Request:
    return ask(dialect, tools=DECLARED[dialect](script.tools))


@pytest.mark.parametrize("script", TURNS.values(), ids=[name.replace(" ", "-") for name in TURNS])
@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", NAMES)
def test_a_client_gets_the_same_bytes_however_frames_are_read(dialect: Name, kind: Name, script: Script):
    carried_anyhow(told(script, kind), asked(dialect, script), dialect, kind)


@pytest.mark.parametrize("script", TURNS.values(), ids=[name.replace(" ", "-") for name in TURNS])
@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", NAMES)
def test_a_client_gets_the_same_bytes_of_padded_frames(dialect: Name, kind: Name, script: Script):
    carried_anyhow(pad(told(script, kind)), asked(dialect, script), dialect, kind)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_a_padded_burst_is_read_in_runs_and_keeps_its_padding(kind: Name):
    script = Script((Says("abcdefgh" * 9), Calls("call_a", "look", '{"path":"a b c d e f"}')), chars=1)
    data = pad(told(script, kind))
    frames = frames_of([data], FIELDS[kind])
    assert sum(runs_in(frames)) > 50
    written = carried([data], asked(kind, script), kind, kind)
    text = rb'"delta":"' if kind == "responses" else rb'(?:content|arguments)":"'
    paddings = [re.findall(text + rb'[^"][^\n]*"obfuscation":"(\w*)"', each) for each in (data, written)]
    assert len(paddings[0]) > 50
    assert [each for each in paddings[0] if each not in paddings[1]] == []


def test_a_nested_number_that_counts_up_is_not_renumbered():
    item = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1"}}
    part: dict[str, Any] = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    texts = (
        frame(TYPE, {"type": TYPE, **part, "delta": text, "x": {"sequence_number": number}})
        for number, text in enumerate("abcdefgh", 40)
    )
    data = frame("response.output_item.added", item) + b"".join(texts)
    written = carried_anyhow(data, ask("responses"), "responses", "responses")
    assert re.findall(rb'"x":\{"sequence_number":(\d+)\}', written) == [b"%d" % number for number in range(40, 48)]


@pytest.mark.parametrize("dialect", NAMES)
def test_recordings_reach_every_client_the_same(dialect: Name):
    for path in RECORDINGS:
        carried_anyhow(path.read_bytes(), ask(dialect), dialect, "responses")


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    "rules",
    [ToolRules(max_calls=1), ToolRules(suppress_tail=True), ToolRules(dedup=True), ToolRules(output_mode="obsidian-xml")],
    ids=["one-call", "no-tail", "no-twins", "as-text"],
)  # fmt: skip
def test_rules_hold_however_frames_are_read(dialect: Name, kind: Name, rules: ToolRules):
    script = TURNS["text between calls"]
    carried_anyhow(told(script, kind), asked(dialect, script), dialect, kind, rules)


says = st.lists(st.text(st.sampled_from('ab é😀"\\\n<>{}'), min_size=1, max_size=12).map(Says), min_size=1, max_size=1)
thinks = st.lists(
    st.text(st.sampled_from("ab é😀\n"), min_size=1, max_size=12).map(lambda text: Thinks(text, "S")), max_size=1
)
calls = st.lists(st.dictionaries(st.sampled_from("xyz"), st.text(max_size=6), max_size=2).map(json.dumps), max_size=2)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    made = [Calls(f"call_{place}", "look", text) for place, text in enumerate(draw(calls))]
    return Script((*draw(thinks), *draw(says), *made), chars=draw(st.integers(1, 3)))


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", NAMES)
@given(script=scripts(), cuts=places)
def test_any_turn_reaches_any_client_the_same(dialect: Name, kind: Name, script: Script, cuts: list[int]):
    data, request = told(script, kind), ask(dialect)
    split_batch = carried([data], request, dialect, kind, merged=False)
    assert carried(cut(data, cuts), request, dialect, kind) == split_batch


TAGS = Script((Says("a < b <to <tool_ <tool_call x </b> <use_tool, and so on"),), chars=2)


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("kind", NAMES)
def test_text_with_tags_reaches_a_client_the_same(dialect: Name, kind: Name):
    carried_anyhow(told(TAGS, kind), asked(dialect, TAGS), dialect, kind)


# Turns of which runs could make something else


def chat_turn(*chunks: bytes) -> bytes:
    return b"".join((chunk(role="assistant", content=""), *chunks, DONE))


def named(name: str, id: str) -> bytes:
    return chunk(tool_calls=[{"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}])


def said(text: str) -> bytes:
    return chunk(content=text)


def tools(*names: str) -> list[Any]:
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


LATE = [
    frame("", {"type": "response.output_item.done", "output_index": 0, "item": {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}}),
    *(frame("", {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": text}) for text in "abcd"),
    frame("", {"type": "response.completed", "response": {"status": "completed", "output": []}}),
]  # fmt: skip
SNAPSHOTS = [
    frame("", {"choices": [{"index": 0, "message": {"tool_calls": [{"id": "a", "function": {"arguments": text}}]}}]})
    for text in ('{"x"', '{"x":', '{"x":1', '{"x":1}')
]  # fmt: skip
PAIRS = [arguments(text) for text in ('{"x"', ":", "1", "}")]
ODD: dict[str, tuple[bytes, Name, dict[str, Any]]] = {
    "a refusal": (told(Script((Declines("I will not do that."),), chars=2), "responses"), "responses", {}),
    "a name that another continues": (chat_turn(named("get", "a"), *PAIRS, named("get", "b"), *PAIRS), "chat", {"tools": tools("get", "get_all")}),
    "text behind a call": (chat_turn(*map(said, "abc"), named("f", "a"), arguments("{}"), *map(said, "def")), "chat", {"tools": tools("f")}),
    "arguments behind the end of a call": (b"".join(LATE), "responses", {}),
    "totals of arguments": (chat_turn(*SNAPSHOTS, named("f", "a")), "chat", {}),
}  # fmt: skip


@pytest.mark.parametrize(("data", "kind", "fields"), ODD.values(), ids=[name.replace(" ", "-") for name in ODD])
def test_odd_turns_reach_a_client_the_same(data: bytes, kind: Name, fields: dict[str, Any]):
    carried_anyhow(data, ask("messages", **fields), "messages", kind)


BROKEN: dict[str, bytes] = {
    "half escapes": chat_turn(*map(said, "abc"), said("@").replace(b"@", b"\\"), said("@").replace(b"@", b'"'), said("d")),
    "an escape that is none": chat_turn(*map(said, "abc"), said("@").replace(b"@", b"\\q"), said("d")),
    "a control character": chat_turn(*map(said, "abc"), said("@").replace(b"@", b"\x01"), said("d")),
    "bytes that are no letter": chat_turn(*map(said, "abc"), said("@").replace(b"@", b"\xff"), said("d")),
    "a letter in two frames": chat_turn(*map(said, "abc"), said("@").replace(b"@", b"\xf0\x9f"), said("@").replace(b"@", b"\x98\x80"), said("d")),
}  # fmt: skip
"""Turns with frames that are no JSON between others that are."""


def test_two_broken_frames_do_not_make_up_for_each_other():
    halves = said("@").replace(b"@", b"z\\"), said("@").replace(b"@", b',"d')
    carried_anyhow(chat_turn(*map(said, "abc"), *halves, *map(said, "ef")), ask("chat"), "chat", "chat")


@pytest.mark.parametrize("data", BROKEN.values(), ids=[name.replace(" ", "-") for name in BROKEN])
@pytest.mark.parametrize("dialect", NAMES)
def test_a_broken_frame_spoils_no_other(dialect: Name, data: bytes):
    carried_anyhow(data, ask(dialect), dialect, "chat")


def test_a_letter_in_two_frames_breaks_nothing():
    halves = [said("@").replace(b"@", half) for half in (b"\xf0\x9f", b"\x98\x80")]
    carried([chat_turn(*(chunk(content=text) for text in "ab<c"), *halves)], ask("chat"), "chat", "chat")


def test_the_random_cuts_of_one_stream_agree_with_each_other():
    data = told(TURNS["thoughts, text and calls"], "responses")
    rnd = random.Random(7)
    found = {
        carried(cut(data, [rnd.randrange(len(data)) for _ in range(40)]), ask("chat"), "chat", "responses")
        for _ in range(20)
    }
    assert len(found) == 1


# Responses that go to Responses clients


def of_message(text: str, **first: object) -> dict[str, object]:
    here = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return {**first, "type": "response.output_text.delta", **here, "logprobs": [], "delta": text}


def of_code(text: str, number: int) -> dict[str, object]:
    here = {"item_id": "ci_1", "output_index": 0}
    return {"type": "response.code_interpreter_call_code.delta", "sequence_number": number, **here, "delta": text}


def answered(*events: bytes) -> list[dict[str, Any]]:
    """The events that a client gets when these come all at once, one line of data each."""
    begun = frame("", {"type": "response.created", "response": {"id": "up", "status": "in_progress", "output": []}})
    whole = frame("", {"type": "response.completed", "response": {"id": "up", "status": "completed", "output": []}})
    stream = carried([b"".join((begun, *events, whole))], ask("responses"), "responses", "responses")
    lines = stream.decode().split("\n")
    assert all(not line or line.startswith(("event: ", "data: ", ": ")) for line in lines)
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def is_counted(events: list[dict[str, Any]]) -> None:
    assert [each.get("sequence_number") for each in events] == [*range(len(events))]


def test_a_burst_to_a_responses_client_is_numbered_without_a_gap():
    said = [frame("", of_message(text, sequence_number=number)) for number, text in enumerate("abcdefghijkl", 5)]
    events = answered(*said)
    is_counted(events)
    assert [each["delta"] for each in events if each["type"].endswith("text.delta")] == [*"abcdefghijkl"]


def test_a_number_inside_another_field_is_not_the_frame_s():
    is_counted(
        answered(*(frame("", of_message(text, x={"sequence_number": place})) for place, text in enumerate("abcd")))
    )


def test_deltas_of_other_items_leave_one_by_one():
    added = frame(
        "",
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "code_interpreter_call", "id": "ci_1"},
        },
    )
    events = answered(added, *(frame("", of_code(text, number)) for number, text in enumerate("abcd")))
    assert [each["delta"] for each in events if each["type"].endswith("code.delta")] == [*"abcd"]


def test_data_over_several_lines_leaves_on_one():
    said = [frame("", of_message(text)).replace(b',"delta"', b',\ndata: "delta"') for text in "ab"]
    is_counted(answered(*said))
