"""Server-sent events, in any chunking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks import in_any_chunking
from toolwire.core import sse
from toolwire.core.errors import BackendFault
from toolwire.core.sse import Frame, FrameReader


def frames(pieces: list[bytes], limit: int = sse.MAX_EVENT_BYTES) -> list[Frame]:
    reader = FrameReader(limit)
    out = [frame for piece in pieces for frame in reader.feed(piece)]
    return out + reader.end()


def read(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(frame.event, frame.data) for frame in in_any_chunking(data, frames)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [(b"x", b"a"), (b"", b"b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\n\r\ndata: b\r\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"data:a\ndata\ndata:  b\n\n", [(b"", b"a\n\n b")]),
        (b'data: {"a":\ndata: [1.50,\r\ndata:\ndata: "x\\n"]}\n\n', [(b"", b'{"a":[1.50,"x\\n"]}')]),
        (b'data: {"a":\ndata: \n\n', [(b"", b'{"a":\n')]),
        (b": comment\n\n: more\ndata: a\n\n", [(b"", b"a")]),
        (b"id: 7\nretry: 9\nfoo: bar\ndata: a\nevent: late\n\n", [(b"late", b"a")]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"event: lonely\n\ndata: a\n\n", [(b"", b"a")]),
        (b"data: a\n\ndata: last", [(b"", b"a"), (b"", b"last")]),
        (b'{"error":{"message":"boom"}}\n', [(b"", b'{"error":{"message":"boom"}}')]),
        ("data: 渐😀\n\n".encode(), [(b"", "渐😀".encode())]),
        (b"", []),
        (b"\xef\xbb", []),
    ],
)
def test_blocks_become_frames_by_the_whatwg_rules(data: bytes, expected: list[tuple[bytes, bytes]]):
    assert read(data) == expected


def test_an_event_is_given_out_as_soon_as_its_blank_line_is_there():
    reader = FrameReader()
    assert reader.feed(b"data: a\r\n\r") == [Frame(b"", b"a")]
    assert reader.feed(b"\ndata: b") == []
    assert reader.feed(b"\n\n") == [Frame(b"", b"b")]


@pytest.mark.parametrize("pieces", [[b"data: " + b"x" * 100 + b"\n\n"], [b"data: "] + [b"x" * 10] * 10])
def test_an_event_beyond_the_limit_is_an_error_that_names_it(pieces: list[bytes]):
    with pytest.raises(BackendFault, match="limit of 64 bytes"):
        frames(pieces, limit=64)


def test_an_event_of_too_many_lines_is_an_error_that_names_the_limit():
    lines = b"data: 1\n" * (sse.MAX_EVENT_LINES + 2)
    with pytest.raises(BackendFault, match=f"limit of {sse.MAX_EVENT_LINES} lines"):
        frames([lines, b"\n"])
    assert len(frames([lines[:800], b"\n"])) == 1


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5), st.data())
def test_what_is_written_is_read_back(texts: list[str], data: st.DataObject):
    wire = b"".join(sse.write(text.encode()) + sse.write_comment(b"x") for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    pieces = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert [frame.data.decode() for frame in frames(pieces)] == texts


def test_a_named_event_is_written_in_one_piece_with_line_feeds():
    assert sse.write_named("ping", b"{}") == b"event: ping\ndata: {}\n\n"
