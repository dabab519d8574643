r"""Batches: consecutive frames that differ in one text only, read as one frame that stores each text.

    data: {"index":0,"delta":{"text":"Hel"}}\n\n
    data: {"index":0,"delta":{"text":"lo"}}\n\n      →  data: {"index":0,"delta":{"text":"Hello"}}, a batch of two

In a burst, most frames of a read have the same bytes around the text of a delta. Those bytes, the template, are learned
from one frame; then all frames of a batch are read and written without parsing each of them. The batch stores the exact
text of every frame.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

_NUMBER = re.compile(rb'"sequence_number": ?([0-9]+)')
_NEVER_BATCHED = re.compile(rb'"name": ?"|"message": ?\{')
"""Frames that are never batched: one with a name may begin another call, and a message holds totals."""
_END = b"\n\n"
_decode = msgspec.json.Decoder(list[str]).decode
_inside = re.compile(rb'[^"\\\n]*(?:\\[^u/\n][^"\\\n]*)*')


class Template(msgspec.Struct, frozen=True, gc=False):
    """The bytes around a delta's text: `lead`, a sequence number if there is a `middle`, `key`, the text, `tail`."""

    lead: bytes
    middle: bytes
    key: bytes
    tail: bytes
    event: bytes
    """The SSE event name, which is also part of the lead."""
    data: int
    """The offset in the lead at which the data begins."""

    def render(self, text: bytes, number: int) -> bytes:
        """The data of one frame with this text, which is escaped as in a JSON string."""
        counted = b"%d" % number + self.middle if self.middle else b""
        return self.lead[self.data :] + counted + self.key + text + self.tail[: -len(_END)]


class FrameBatch(msgspec.Struct, frozen=True, gc=False):
    """The texts of several frames, each escaped exactly as in our own JSON, without quotes."""

    texts: Sequence[bytes]
    template: Template
    number: int = 0
    """Sequence number of the first frame, where frames are numbered; the others count up from it."""
    original: bytes = b""
    """The bytes of all frames as they were received."""
    strings: Sequence[str] = ()
    """The decoded texts."""

    def write_each(self, head: bytes, tail: bytes) -> bytes:
        """All texts, each between a head and a tail."""
        return head + b'"' + (b'"' + tail + head + b'"').join(self.texts) + b'"' + tail

    def render_frames(self) -> Iterator[bytes]:
        """The data of each frame as it was received."""
        return (self.template.render(text, number) for number, text in enumerate(self.texts, self.number))


_PLACEHOLDER = b"@toolwire@"


class BatchWriter:
    """Writes batches by encoding one sample frame per template and repeating the bytes around its text."""

    def __init__(self) -> None:
        self._sampled: tuple[Template, object] | None = None
        self._head = self._tail = b""

    def write(self, batch: FrameBatch, encode: Callable[[bytes], bytes], context: object = None) -> bytes:
        """All frames of the batch. `encode` writes the data of one; `context` is what else its output depends on."""
        sampled = self._sampled
        if sampled is None or sampled[0] is not batch.template or sampled[1] != context:
            self._sampled = (batch.template, context)
            sample = encode(batch.template.render(_PLACEHOLDER, 0))
            self._head, _, self._tail = sample.partition(b'"' + _PLACEHOLDER + b'"')
        return batch.write_each(self._head, self._tail)


def find_delta_openings(*fields: str) -> tuple[bytes, ...]:
    """The opening bytes of these JSON fields, as servers write them (with and without a space)."""
    return tuple(f'"{field}":{space}"'.encode() for field in fields for space in ("", " "))


def learn_template(block: bytes, fields: Sequence[bytes]) -> Template | None:
    """The template of one SSE block (without its blank line), if exactly one of the fields is a string in it."""
    found = [(at, key) for key in fields if (at := block.find(key)) >= 0]
    if len(found) != 1 or _NEVER_BATCHED.search(block):
        return None
    at, key = found[0]
    text = _inside.match(block, at + len(key))
    if text is None or not block.startswith(b'"', text.end()) or block.find(key, text.end()) >= 0:
        return None
    lead, middle, tail = block[:at], b"", block[text.end() :] + _END
    if b"\n" in tail[: -len(_END)]:
        return None
    number = _NUMBER.search(lead)
    if number is not None:
        lead, middle = lead[: number.start(1)], lead[number.end() :]
    event, data = b"", 6
    if lead.startswith(b"event: "):
        event, data = lead[7 : lead.find(b"\n")], lead.find(b"\ndata: ") + 7
    if lead.count(b"\n") != bool(event) or not lead.startswith(b"data: ", data - 6):
        return None
    return Template(lead, middle, key, tail, event, data)


MAX_NUMBER_DIGITS = 18
MIN_WINDOW_BYTES = 16 * 1024
"""Minimum size of the window that is split for one batch. Bytes beyond it are left for later."""
FRAMES_PER_WINDOW = 32
"""Minimum size of the window, in frames of the first one's size."""


def read_batch(data: bytes, start: int, template: Template) -> tuple[FrameBatch, int] | None:
    """The batch that begins at this offset and its length in bytes; None if fewer than two frames match."""
    lead, middle, key, tail = template.lead, template.middle, template.key, template.tail
    end = data.find(tail, start + len(lead), start + MIN_WINDOW_BYTES)
    if end < 0 or not data.startswith(lead, end + len(tail)):
        return None
    window = max(MIN_WINDOW_BYTES, FRAMES_PER_WINDOW * (end - start))
    opening, *parts = data[start : start + window].split(key)
    number = _parse_number(opening, template)
    if number is None:
        return None
    # A part is a text, the end of its frame, and the opening of the next.
    joint, count = tail + lead, len(parts)
    if middle:
        numbers = [*map(b"%d".__mod__, range(number, number + count + 1))]
        joints = [joint + each + middle for each in numbers[1:]]
    else:
        numbers, joints = [], [joint] * count
    texts = [*map(bytes.removesuffix, parts, joints)]
    whole = _count_complete(parts, texts, joints)
    del texts[whole:]
    if whole < count and (end := parts[whole].find(tail)) >= 0:
        texts.append(parts[whole][:end])
    strings = _decode_texts(texts) if len(texts) > 1 and b"" not in texts else None
    if strings is None:
        return None
    around = len(lead) + len(middle) + len(key) + len(tail)
    length = len(texts) * around + sum(map(len, texts)) + sum(map(len, numbers[: len(texts)]))
    return FrameBatch(texts, template, number, data[start : start + length], strings), length


def _count_complete(parts: list[bytes], texts: list[bytes], joints: list[bytes]) -> int:
    """The number of leading parts that ended with the joint to the next frame."""
    last = len(parts) - 1
    if sum(map(len, parts[:last])) - sum(map(len, texts[:last])) == sum(map(len, joints[:last])):
        return last + (len(texts[last]) < len(parts[last]))  # nearly always all but the last
    return next(index for index, text in enumerate(texts) if len(text) == len(parts[index]))


def _decode_texts(texts: list[bytes]) -> list[str] | None:
    """The decoded texts; None if one is not a JSON string, or not encoded as we would encode it."""
    written = b'["' + b'","'.join(texts) + b'"]'
    # Escapes that we would not write, or a backslash at the end of a text.
    if b"\\" in written and (
        b"\\u" in written or b"\\/" in written or b'\\","' in written or written.endswith(b'\\"]')
    ):
        return None
    try:
        strings = _decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return strings if len(strings) == len(texts) else None


def _parse_number(opening: bytes, template: Template) -> int | None:
    """The sequence number in the bytes before a text; 0 if frames have none, None if this is another kind of frame."""
    if not template.middle:
        return 0 if opening == template.lead else None
    written = opening[len(template.lead) : -len(template.middle)]
    number = int(written) if written.isdigit() and len(written) < MAX_NUMBER_DIGITS else 0
    return number if opening == template.lead + b"%d" % number + template.middle else None
