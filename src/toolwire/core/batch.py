r"""Batches: consecutive frames that differ in one text only, read as one frame that stores each text.

Their sequence numbers and their padding (OpenAI's `obfuscation`, random letters in each frame) may differ, too.

    data: {"index":0,"delta":{"text":"Hel"}}\n\n
    data: {"index":0,"delta":{"text":"lo"}}\n\n      →  data: {"index":0,"delta":{"text":"Hello"}}, a batch of two

In a burst, most frames of a read have the same bytes around the text of a delta. Those bytes, the template, are learned
from one frame; then all frames of a batch are read and written without parsing each of them. The batch stores the exact
text of every frame.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat

import msgspec

find_number = re.compile(rb'"sequence_number": ?([0-9]+)').search
_PADDING = re.compile(rb'"obfuscation": ?"([ !#-\[\]-~]*)"')
_NEVER_BATCHED = re.compile(rb'"name": ?"|"message": ?\{')
"""Frames that are never batched: one with a name may begin another call, and a message holds totals."""
_END = b"\n\n"
_decode = msgspec.json.Decoder(list[str]).decode
_is_plain = re.compile(rb"[ !#-\[\]-~]*").fullmatch
_inside = re.compile(rb'[^"\\\n]*(?:\\[^u/\n][^"\\\n]*)*')


class Template(msgspec.Struct, frozen=True, gc=False):
    """The bytes around the parts of a frame that vary: the text, and a sequence number and padding if it has them.

    A number is before the text, behind `lead`, or at the end, before `close`. Padding is behind the text.
    """

    lead: bytes
    middle: bytes
    """The bytes between a number and the key of the text."""
    key: bytes
    pad: bytes
    """The bytes between the text and the padding."""
    tail: bytes
    """The bytes behind the text or the padding."""
    close: bytes
    """The bytes behind a number at the end."""
    event: bytes
    """The SSE event name, which is also part of the lead."""
    data: int
    """The offset in the lead at which the data begins."""

    def render(self, text: bytes, number: int, padding: bytes) -> bytes:
        """The data of one frame with this text, which is escaped as in a JSON string."""
        opening, end = self.open_frame(number), self.end_frame(number)
        return opening[self.data :] + self.key + text + self.pad + padding + end[: -len(_END)]

    @property
    def is_numbered(self) -> bool:
        return bool(self.middle or self.close)

    def open_frame(self, number: int) -> bytes:
        """The bytes before the key of the text."""
        return self.lead + b"%d" % number + self.middle if self.middle else self.lead

    def end_frame(self, number: int) -> bytes:
        """The bytes behind the text or the padding."""
        return self.tail + b"%d" % number + self.close if self.close else self.tail


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
    paddings: Sequence[bytes] = ()
    """The padding of each frame, where frames are padded."""

    def join(self) -> bytes:
        """The data of one frame with all texts."""
        return self.template.render(b"".join(self.texts), self.number, self.paddings[0] if self.paddings else b"")

    def write_each(self, head: bytes, tail: bytes) -> bytes:
        """All texts, each between a head and a tail."""
        return head + b'"' + (b'"' + tail + head + b'"').join(self.texts) + b'"' + tail

    def render_frames(self, number: int | None = None) -> Iterator[bytes]:
        """The data of each frame as it was received, or with other numbers, of which this is the first."""
        first = self.number if number is None else number
        paddings = self.paddings or repeat(b"")
        return map(self.template.render, self.texts, count(first), paddings)


SAMPLE_TEXT = b"@toolwire@"
SAMPLE_PADDING = b"@padding@"


class BatchWriter:
    """Writes batches by encoding one sample frame per template and repeating the bytes around its text and padding."""

    def __init__(self) -> None:
        self._sampled: tuple[Template, object] | None = None
        self._head = self._pad = self._tail = b""

    def write(self, batch: FrameBatch, encode: Callable[[bytes], bytes], context: object = None) -> bytes:
        """All frames of the batch. `encode` writes the data of one; `context` is what else its output depends on."""
        sampled = self._sampled
        if sampled is None or sampled[0] is not batch.template or sampled[1] != context:
            self._sampled = (batch.template, context)
            sample = encode(batch.template.render(SAMPLE_TEXT, 0, SAMPLE_PADDING if batch.paddings else b""))
            self._head, _, rest = sample.partition(b'"' + SAMPLE_TEXT + b'"')
            self._pad, _, self._tail = rest.rpartition(SAMPLE_PADDING)
        if not self._pad:
            return batch.write_each(self._head, self._tail)
        head, pad, tail = self._head + b'"', b'"' + self._pad, self._tail
        return b"".join(
            [head + text + pad + padding + tail for text, padding in zip(batch.texts, batch.paddings, strict=True)]
        )


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
    lead, middle, pad, tail, close = block[:at], b"", b"", block[text.end() :] + _END, b""
    if b"\n" in tail[: -len(_END)]:
        return None
    if (number := find_number(lead)) is not None:
        lead, middle = lead[: number.start(1)], lead[number.end() :]
    if (padding := _PADDING.search(tail)) is not None:
        pad, tail = tail[: padding.start(1)], tail[padding.end(1) :]
    if not middle and (number := find_number(tail)) is not None:
        tail, close = tail[: number.start(1)], tail[number.end() :]
    event, data = b"", 6
    if lead.startswith(b"event: "):
        event, data = lead[7 : lead.find(b"\n")], lead.find(b"\ndata: ") + 7
    if lead.count(b"\n") != bool(event) or not lead.startswith(b"data: ", data - 6):
        return None
    return Template(lead, middle, key, pad, tail, close, event, data)


MAX_NUMBER_DIGITS = 18
MIN_WINDOW_BYTES = 16 * 1024
"""Minimum size of the window that is split for one batch. Bytes beyond it are left for later."""
FRAMES_PER_WINDOW = 32
"""Minimum size of the window, in frames of the first one's size."""


def read_batch(data: bytes, start: int, template: Template) -> tuple[FrameBatch, int] | None:
    """The batch that begins at this offset and its length in bytes; None if fewer than two frames match."""
    lead, key, pad = template.lead, template.key, template.pad
    end = data.find(_END, start + len(lead), start + MIN_WINDOW_BYTES) + len(_END)
    if end < len(_END) or not data.startswith(lead, end) or data.find(b"\\u", start, end) >= 0:
        return None
    window = max(MIN_WINDOW_BYTES, FRAMES_PER_WINDOW * (end - start))
    opening, *parts = data[start : start + window].split(key)
    number = _find_number(opening, data[start:end], template)
    if number is None:
        return None
    # A part is a text with its padding, the end of its frame, and the opening of the next.
    joints = _join_frames(template, number, len(parts))
    padded = [*map(bytes.removesuffix, parts, joints)]
    whole = _count_complete(parts, padded, joints)
    del padded[whole:]
    if whole < len(parts) and (end := parts[whole].find(template.end_frame(number + whole))) >= 0:
        padded.append(parts[whole][:end])
    texts, paddings = padded, list[bytes]()
    if pad:
        pairs = [text.split(pad) for text in padded]
        regular = next((index for index, pair in enumerate(pairs) if len(pair) != 2), len(pairs))
        texts, paddings = [pair[0] for pair in pairs[:regular]], [pair[1] for pair in pairs[:regular]]
        if not _is_plain(b"".join(paddings)):
            return None
    strings = _decode_texts(texts)
    if strings is None:
        regular = next((index for index, text in enumerate(texts) if _decode_texts([text]) is None), 0)
        texts, paddings = texts[:regular], paddings[:regular]
        strings = _decode_texts(texts)
    if strings is None or len(texts) < 2:
        return None
    last = len(texts) - 1
    length = len(opening) + len(texts) * len(key) + sum(map(len, parts[:last]))
    length += len(padded[last]) + len(template.end_frame(number + last))
    return FrameBatch(texts, template, number, data[start : start + length], strings, paddings), length


def _join_frames(template: Template, number: int, count: int) -> list[bytes]:
    """What is between the text or padding of each frame and the text of the next."""
    lead, middle, tail, close = template.lead, template.middle, template.tail, template.close
    if middle:
        joint = tail + lead
        return [joint + each + middle for each in map(b"%d".__mod__, range(number + 1, number + count + 1))]
    if close:
        joint = close + lead
        return [tail + each + joint for each in map(b"%d".__mod__, range(number, number + count))]
    return [tail + lead] * count


def _count_complete(parts: list[bytes], texts: list[bytes], joints: list[bytes]) -> int:
    """The number of leading parts that ended with the joint to the next frame."""
    last = len(parts) - 1
    if sum(map(len, parts[:last])) - sum(map(len, texts[:last])) == sum(map(len, joints[:last])):
        return last + (len(texts[last]) < len(parts[last]))  # nearly always all but the last
    return next(index for index, text in enumerate(texts) if len(text) == len(parts[index]))


def _decode_texts(texts: list[bytes]) -> list[str] | None:
    """The decoded texts; None if one is empty, is not a JSON string, or is not encoded as we would encode it."""
    if b"" in texts:
        return None
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


def split_frame(data: bytes, opening: bytes, pad: bytes, ending: bytes) -> tuple[bytes, str, bytes] | None:
    """The text of one frame, as written and decoded, and its padding; None for any other frame.

    `opening` is what the frame has before its text, `pad` what it has before its padding, if any.
    """
    if not data.startswith(opening) or not data.endswith(ending):
        return None
    text, padding = data[len(opening) : -len(ending)], b""
    if pad:
        text, found, padding = text.partition(pad)
        if not found or pad in padding or not _is_plain(padding):
            return None
    strings = _decode_texts([text])
    return (text, strings[0], padding) if strings is not None else None


def find_frame_number(data: bytes, template: Template) -> int | None:
    """The sequence number of one frame; 0 if frames have none, None if this is another kind of frame."""
    return _find_number(data[: max(0, data.find(template.key))], data, template)


def _find_number(opening: bytes, frame: bytes, template: Template) -> int | None:
    """The sequence number of a frame; 0 if frames have none, None if this is another kind of frame.

    `opening` is what the frame has before the key of its text.
    """
    if template.middle:
        written = opening[len(template.lead) : -len(template.middle)]
    elif template.close:
        written = frame[frame.rfind(template.tail) + len(template.tail) : -len(template.close)]
    else:
        written = b"0"
    if not written.isdigit() or len(written) > MAX_NUMBER_DIGITS:
        return None
    number = int(written)
    return number if opening == template.open_frame(number) and frame.endswith(template.end_frame(number)) else None
