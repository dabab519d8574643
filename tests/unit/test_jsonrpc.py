"""JSON-RPC in lines, in any chunking."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks import in_any_chunking
from toolwire.core import jsonrpc
from toolwire.core.errors import BackendFault
from toolwire.core.jsonrpc import MAX_LINE_BYTES, LineReader
from toolwire.core.sse import Frame

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n\r", max_size=3), inner, max_size=3),
    max_leaves=8,
)


def frames(pieces: list[bytes], limit: int = MAX_LINE_BYTES) -> list[Frame]:
    reader = LineReader(limit)
    return [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()


def read(data: bytes) -> list[bytes]:
    found = in_any_chunking(data, frames)
    assert all(frame.event == b"" for frame in found)
    return [frame.data for frame in found]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"id":1}\n', [b'{"id":1}']),
        (b'{"id":1}\n{"id":2}\n', [b'{"id":1}', b'{"id":2}']),
        (b'\n\n{"id":1}\n\n \t\n{"id":2}\n\n', [b'{"id":1}', b'{"id":2}']),
        (b'{"id":1}\n{"id":2', [b'{"id":1}']),
        (b'{"id":1', []),
        (b"not JSON\n", [b"not JSON"]),
        ('{"a":"渐😀\u2028\u0085"}\n'.encode(), ['{"a":"渐😀\u2028\u0085"}'.encode()]),
        (b'{"a":"one\\ntwo"}\n', [b'{"a":"one\\ntwo"}']),
        (b"", []),
        (b"\n", []),
    ],
)
def test_each_line_that_holds_something_is_a_frame(data: bytes, expected: list[bytes]):
    assert read(data) == expected


def test_lines_that_end_as_those_of_windows_say_the_same():
    found = read(b'{"id":1}\r\n\r\n{"id":2}\r\n')
    assert [json.loads(line) for line in found] == [{"id": 1}, {"id": 2}]


def test_a_line_is_given_out_as_soon_as_its_end_is_there():
    reader = LineReader()
    assert reader.feed(b'{"id"') == []
    assert reader.feed(b":1}") == []
    assert reader.feed(b'\n{"id":2}') == [Frame(b"", b'{"id":1}')]
    assert reader.feed(b"\n") == [Frame(b"", b'{"id":2}')]


def test_a_last_line_without_its_end_is_cut_and_says_nothing():
    reader = LineReader()
    assert reader.feed(b'{"id":1}') == []
    assert reader.end() == []


def test_a_line_that_was_cut_does_not_count_after_the_end():
    reader = LineReader(limit=10)
    reader.feed(b"x" * 10)
    reader.end()
    assert reader.feed(b"y" * 10) == []


@pytest.mark.parametrize("size", [4096, 65536, 10**9])
def test_a_line_may_be_long(size: int):
    line = json.dumps({"a": "x" * 5_000_000}).encode()
    data = b'{"id":1}\n' + line + b'\n{"id":2}\n'
    found = frames([data[start : start + size] for start in range(0, len(data), size)])
    assert [frame.data for frame in found] == [b'{"id":1}', line, b'{"id":2}']


@pytest.mark.parametrize("size", [1, 7, 64, 65])
def test_a_line_beyond_the_limit_is_a_fault_that_names_it(size: int):
    data = b"x" * 1000
    with pytest.raises(BackendFault, match="more than 64 bytes") as fault:
        frames([data[start : start + size] for start in range(0, len(data), size)], limit=64)
    assert (fault.value.failure.status, fault.value.failure.code) == (502, "line_too_long")


@pytest.mark.parametrize("pieces", [[b"x" * 100 + b"\n"], [b"x" * 60, b"x" * 40 + b"\n"]])
def test_a_line_beyond_the_limit_is_a_fault_however_it_is_cut(pieces: list[bytes]):
    with pytest.raises(BackendFault, match="more than 64 bytes"):
        frames(pieces, limit=64)


def test_many_lines_may_have_more_than_one_line_may():
    data = b'{"id":1}\n' * 100
    assert in_any_chunking(data, lambda pieces: len(frames(pieces, limit=8))) == 100


@given(st.lists(values, max_size=5), st.randoms(use_true_random=False))
def test_what_is_written_is_one_line_each_and_is_read_again(said: list[Any], random):
    data = b"".join(jsonrpc.write_answer(number, value) for number, value in enumerate(said))
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(5))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    found = [json.loads(frame.data) for frame in frames(pieces)]
    assert found == [{"id": number, "result": value} for number, value in enumerate(said)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            jsonrpc.write_request("3.turn", "turn/start", {"input": []}),
            {"method": "turn/start", "id": "3.turn", "params": {"input": []}},
        ),
        (jsonrpc.write_notification("initialized"), {"method": "initialized"}),
        (jsonrpc.write_answer(0, {"success": True}), {"id": 0, "result": {"success": True}}),
        (
            jsonrpc.write_refusal("a", jsonrpc.NO_SUCH_METHOD, "No."),
            {"id": "a", "error": {"code": -32601, "message": "No."}},
        ),
    ],
)
def test_messages_have_no_member_jsonrpc(line: bytes, expected: Any):
    assert line.endswith(b"\n")
    assert json.loads(line) == expected
