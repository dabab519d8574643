"""Bodies: what is refused of a request, and how an answer is sent."""

import asyncio
import gzip
import json
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message

from toolwire.core import bounds
from toolwire.core.bounds import ENTRIES_PER_STEP, LARGE_BODY_BYTES, Bounds, check_parts, run_steps
from toolwire.core.errors import BadRequest
from toolwire.dialects import chat, messages, responses
from toolwire.gateway.body import read_body
from toolwire.gateway.http import WHOLE, send_pieces
from toolwire.gateway.memory_budget import MemoryBudget, Overloaded, Reservation

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

USER = {"role": "user", "content": "hi"}


def sent(body: bytes, encoding: str = "", *, declared: bool = True, limit: int = 10**7, **most: int) -> bytes:
    """What is read of a body that comes in two pieces."""
    return asyncio.run(
        _sent(body, encoding, Reservation(MemoryBudget(10**8)), Bounds(body=limit, **most), declared=declared)
    )


async def _sent(body: bytes, encoding: str, claim: Reservation, most: Bounds, *, declared: bool = True) -> bytes:
    pieces = [body[: len(body) // 2], body[len(body) // 2 :]]

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    headers = {b"content-length": b"%d" % len(body)} if declared else {}
    if encoding:
        headers[b"content-encoding"] = encoding.encode()
    return await read_body(headers, receive, most, claim)


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
TEXT = b'{"model":"m"}' * 50_000


@pytest.mark.parametrize("encoding", PACK)
def test_a_packed_body_is_unpacked(encoding):
    assert sent(PACK[encoding](TEXT), encoding) == TEXT
    assert sent(PACK[encoding](b""), encoding) == b""


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("change", ["cut", "nearly whole", "one byte more", "twice", "nothing"])
def test_a_packed_body_is_one_whole_stream(encoding, change):
    packed = PACK[encoding](TEXT)
    changed = {
        "cut": packed[: len(packed) // 2],
        "nearly whole": packed[:-1],
        "one byte more": packed + b"x",
        "twice": packed + packed,
        "nothing": b"",
    }[change]
    with pytest.raises(BadRequest) as refused:
        sent(changed, encoding)
    assert (refused.value.status, refused.value.param) == (400, "content-encoding")


@pytest.mark.parametrize("encoding", PACK)
def test_unpacking_stops_at_the_limit(encoding):
    flight = MemoryBudget(10**9)
    packed = PACK[encoding](bytes(50_000_000))
    with pytest.raises(BadRequest) as refused, Reservation(flight) as claim:
        asyncio.run(_sent(packed, encoding, claim, Bounds(body=3_000_000)))
    assert refused.value.status == 413
    assert flight.reserved == 0


@pytest.mark.parametrize("body", [b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc3', '{"a":1}'.encode("utf-16")])
@pytest.mark.parametrize("around", [0, LARGE_BODY_BYTES, 3_000_000])
def test_a_body_is_utf_8(body, around):
    with pytest.raises(BadRequest) as refused:
        sent(b"\xc3\xa4" * (around // 2) + body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_letters_beyond_ascii_are_whole_wherever_a_step_ends():
    body = b"x" + "ä€😀".encode() * 400_000
    assert sent(body) == body


# In flight


@pytest.mark.parametrize("declared", [True, False])
def test_bytes_are_claimed_before_they_are_read(declared):
    flight = MemoryBudget(1000)
    body = b'"' + b"x" * 598 + b'"'

    async def both() -> None:
        with Reservation(flight) as first, Reservation(flight, 529) as second:
            await _sent(body, "", first, Bounds(), declared=declared)
            assert flight.reserved == 600
            with pytest.raises(Overloaded) as full:
                await _sent(body, "", second, Bounds(), declared=declared)
            assert (full.value.failure.status, full.value.failure.retry_after.isdigit()) == (529, True)
            first.release()
            second.release()
            assert await _sent(body, "", second, Bounds(), declared=declared) == body

    asyncio.run(both())
    assert flight.reserved == 0


def test_nothing_is_read_of_a_declared_body_for_which_there_is_no_room():
    async def receive() -> Message:
        raise AssertionError

    headers = {b"content-length": b"2000"}
    with pytest.raises(Overloaded):
        asyncio.run(read_body(headers, receive, Bounds(), Reservation(MemoryBudget(1000))))


def test_what_is_unpacked_counts_and_what_was_packed_no_longer_does():
    flight = MemoryBudget(10**8)
    with Reservation(flight) as claim:
        asyncio.run(_sent(gzip.compress(TEXT), "gzip", claim, Bounds()))
        assert flight.reserved == len(TEXT)


# How much a body holds


@pytest.mark.parametrize("piece", [b"1,", b"{},", b"[", b'"a":1,'])
def test_a_large_body_of_too_many_values_is_refused_before_it_is_decoded(piece):
    with pytest.raises(BadRequest) as refused:
        sent(b'{"model":"m","x":[' + piece * (2_000_000 // len(piece)), values=100_000)
    assert refused.value.status == 413
    assert "server.max_values" in refused.value.message


@pytest.mark.parametrize("text", ["a,b{[", '\\"', "\\\\", '\\",[', "ä,\\u005b"])
def test_what_stands_in_strings_is_no_value(text):
    inner = (text * (3_000_000 // len(text))).encode()
    for shift in range(4):
        body = b'{"' + b"k" * shift + b'":"' + inner + b'","list":[' + b"1," * 40 + b"1]}"
        assert json.loads(body)
        assert sent(body, values=50) == body
        with pytest.raises(BadRequest):
            sent(body, values=40)


def _history(dialect: Any, entries: list[Any], tools: int = 0) -> bytes:
    field = "input" if dialect is responses else "messages"
    declared: list[Any] = [{"type": "function", "name": f"t{i}", "function": {"name": f"t{i}"}} for i in range(tools)]
    if dialect is messages:
        declared = [{"name": f"t{i}", "input_schema": {"type": "object"}} for i in range(tools)]
    return json.dumps({"model": "m", field: entries, "tools": declared}).encode()


def _decoding(dialect: Any, body: bytes, most: Bounds) -> Any:
    if dialect is not responses:
        return dialect.decode_steps(body, most)

    def both() -> Any:
        asked = yield from responses.read_request_steps(body, most)
        return (yield from asked.decode_steps((), most))

    return both()


@pytest.mark.parametrize("dialect", [chat, messages, responses])
def test_entries_and_tools_have_a_bound(dialect):
    most = Bounds(entries=1000, tools=20)
    field = "input" if dialect is responses else "messages"
    assert len(run_steps(_decoding(dialect, _history(dialect, [USER] * 1000, 20), most)).entries) == 1000
    with pytest.raises(BadRequest) as refused:
        run_steps(_decoding(dialect, _history(dialect, [USER] * 1001), most))
    assert (refused.value.param, refused.value.code) == (field, "too_many_entries")
    with pytest.raises(BadRequest) as refused:
        run_steps(_decoding(dialect, _history(dialect, [USER], 21), most))
    assert (refused.value.param, refused.value.code) == ("tools", "too_many_tools")


@pytest.mark.parametrize("dialect", [chat, messages, responses])
def test_what_stands_beside_the_conversation_has_a_bound(dialect):
    small, large = (_history(dialect, [{**USER, "content": "x" * 5000}], count) for count in (1, 100))
    most = Bounds(preamble=3000)
    assert run_steps(_decoding(dialect, small, most)).tools
    with pytest.raises(BadRequest, match=r"server\.max_preamble") as refused:
        run_steps(_decoding(dialect, large, most))
    assert (refused.value.code, refused.value.status) == ("request_too_large", 413)


@pytest.mark.parametrize("field", ["instructions", "input", "functions"])
def test_instructions_and_tools_elsewhere_are_bounded_too(field):
    parameters = {"type": "object", "description": "x" * 3000}
    declared = {"type": "additional_tools", "tools": [{"type": "function", "name": "f", "parameters": parameters}]}
    value: Any = {
        "instructions": "x" * 3000,
        "input": [declared],
        "functions": [{"name": "f", "parameters": parameters}],
    }
    dialect = chat if field == "functions" else responses
    body = {**json.loads(_history(dialect, [USER])), field: value[field]}
    del body["tools"]
    with pytest.raises(BadRequest, match=r"server\.max_preamble"):
        run_steps(_decoding(dialect, json.dumps(body).encode(), Bounds(preamble=3000)))


@pytest.mark.parametrize("dialect", [chat, messages, responses])
def test_parts_count_as_entries(dialect):
    part = {"type": "input_text" if dialect is responses else "text", "text": "x"}
    request = run_steps(_decoding(dialect, _history(dialect, [{**USER, "content": [part] * 50}] * 2), Bounds()))
    check_parts(request, 100)
    with pytest.raises(BadRequest, match=r"server\.max_entries"):
        check_parts(request, 99)


@pytest.mark.parametrize("dialect", [chat, messages, responses])
def test_many_entries_are_decoded_in_steps(dialect, monkeypatch):
    monkeypatch.setattr(bounds, "ENTRIES_PER_STEP", 10)
    steps = sum(1 for _ in _decoding(dialect, _history(dialect, [USER] * 200), Bounds()))
    assert ENTRIES_PER_STEP > 10
    assert steps >= 20


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "sizes", [[3], [], [100, 0, 65_536], [200_000, 1], [300_000], [1] * 400_000, [10, 700_000, 10]]
)
def test_a_body_is_sent_as_it_is_and_a_large_part_in_slices(sizes: list[int], last: bool):
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    pieces = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    asyncio.run(send_pieces(send, pieces, last=last))
    assert b"".join(each["body"] for each in sent) == b"".join(pieces)
    assert [each["more_body"] for each in sent] == [True] * (len(sent) - 1) + [not last]
    assert max(len(each["body"]) for each in sent) <= WHOLE
    # Before anything else is sent the client has taken what is large: whoever sends after it waits for that.
    assert len(sent) == 1 or sent[-1]["body"] == b""
