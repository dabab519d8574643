"""Framing: everything that can be wrong with the bytes of a stream, in whichever API."""

from collections.abc import Callable

Bytes = Callable[[bytes], bytes]


def replace(old: bytes, new: bytes, times: int = -1) -> Bytes:
    return lambda data: data.replace(old, new, times)


def before_second(piece: bytes) -> Bytes:
    """Something more between the first event and the second."""
    return lambda data: data.replace(b"\n\n", b"\n\n" + piece, 1)


def behind(piece: bytes) -> Bytes:
    return lambda data: data + piece


def in_two_lines(data: bytes) -> bytes:
    """The first event's object in two lines, which is still JSON."""
    return data.replace(b"data: {", b"data: {\ndata: ", 1)


DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000

FAULTS: dict[str, tuple[str, Bytes]] = {
    "a letter is of another encoding": ("sse.utf8", before_second(b": caf\xe9\n")),
    "a letter in a time is of another encoding": ("sse.utf8", before_second(b"retry: caf\xe9\n")),
    "an error is bare JSON": ("sse.field", before_second(b'{"error":{"message":"No."}}\n\n')),
    "an error is bare JSON at the end": ("sse.field", behind(b'{"error":{"message":"No."}}')),
    "a line is a field that nobody knows": ("sse.field", before_second(b"date: today\n")),
    "a byte order mark comes in the middle": ("sse.field", before_second(b"\xef\xbb\xbf: Hi\n")),
    "an event is text": ("sse.json", before_second(b"event: x\ndata: Hi\n\n")),
    "an event is a list": ("sse.json", before_second(b"event: x\ndata: []\n\n")),
    "an event is null": ("sse.json", before_second(b"event: x\ndata: null\n\n")),
    "an event is empty": ("sse.json", before_second(b"event: x\ndata:\n\n")),
    "an event is two objects": ("sse.json", before_second(b"event: x\ndata: {}{}\n\n")),
    "an event is in Python's notation": ("sse.json", before_second(b"event: x\ndata: {'type': None}\n\n")),
    "an event is deeper than anybody reads": ("sse.json", before_second(b"event: x\ndata: " + DEEP + b"\n\n")),
    "an event begins and does not end": ("sse.ended", behind(b"event: x\ndata: {}\n")),
    "an event breaks off in its data": ("sse.ended", behind(b'data: {"x')),
    "an event breaks off in its field": ("sse.ended", behind(b"dat")),
    "an event breaks off behind its name": ("sse.ended", behind(b"event: x\n")),
    "data has two lines": ("sse.one-line", in_two_lines),
    "no space follows the colon": ("sse.space", replace(b"data: ", b"data:")),
    "no space follows one colon": ("sse.space", replace(b"data: ", b"data:", 1)),
    "lines end as in Windows": ("sse.newline", replace(b"\n", b"\r\n")),
    "lines end as in old Macs": ("sse.newline", replace(b"\n", b"\r")),
    "a comment stands alone": ("sse.empty-event", before_second(b": keepalive\n\n")),
    "a comment stands alone at the end": ("sse.empty-event", behind(b": keepalive\n\n")),
    "an event has no data": ("sse.empty-event", before_second(b"event: ping\n\n")),
    "a time to wait stands alone": ("sse.empty-event", before_second(b"retry: 100\n\n")),
}
"""What is done to the bytes of a stream, and the rule that they break then."""

ID_FAULTS: dict[str, Bytes] = {
    "an id comes twice": replace(b"data: ", b"id: 1\ndata: ", 2),
    "an id has a NUL": before_second(b"id: 1\0\n"),
}
"""The same for ids, which Responses has none of."""
SOUND: dict[str, Bytes] = {
    "a comment before an event": before_second(b": keepalive\n"),
    "a comment at the end": behind(b": bye\n"),
    "a comment at the end that is cut": behind(b": by"),
    "a time to wait": before_second(b"retry: 100\n"),
    "blank lines": before_second(b"\n\n\n"),
    "a replacement character that is meant": before_second(": \ufffd\n".encode()),
}

IDS: dict[str, Bytes] = {
    "one event has a number": before_second(b"id: 1\nretry: 100\n"),
    "an event has an empty id": before_second(b"id\n"),
}
"""Sound everywhere but in Responses."""
