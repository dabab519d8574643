r"""Server-sent events: bytes in any chunking to frames, and frames to bytes.

    event: response.output_text.delta\n
    data: {"type":"response.output_text.delta","delta":"Hi"}\n
    \n

Reading follows the WHATWG rules (CR, LF and CRLF end a line, a comment starts with a colon, one BOM may lead)
with two deliberate tolerances, both for servers seen in the wild: a last event that lacks its blank line is
still delivered, and a line of bare JSON counts as data, because some servers report an error in a stream that way.
JSON over several lines of data becomes one line, so that it can be written as one line again.
Only ASCII bytes are ever searched for, so a multi-byte character is never cut.
"""

import re
from collections.abc import Sequence
from functools import partial

import msgspec

from toolwire.core.batch import FrameBatch, Template, learn_template, read_batch
from toolwire.core.errors import BackendFault, Failure

CONTENT_TYPE = b"text/event-stream; charset=utf-8"

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Maximum bytes of one event, unless configured."""
MAX_EVENT_LINES = 100_000
"""Maximum lines of one event; indented JSON has many."""

TAIL_BYTES = 1024
"""Bytes at the end of a read that are checked: if more than a quarter are line feeds, surplus blank lines are dropped,
because each would cost as much as a frame."""

_usual_blocks = re.compile(rb"event: ([^\n]*)\ndata: ([^\n]*)\n\n").findall
_BLOCK_OVERHEAD = len(b"event: \ndata: \n\n")

_BOM = b"\xef\xbb\xbf"
_without_blank_lines = partial(re.compile(rb"\n{3,}").sub, b"\n\n")


MAX_TEMPLATE_MISSES = 4
"""Templates that may be learned without yielding a batch before the reader stops learning."""
MIN_COMMON_PREFIX = 40
"""Minimum bytes that two frames must share at the beginning before a template is learned."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One SSE block: its event name (often empty) and its data. Similar blocks may form one frame with a `batch`."""

    event: bytes
    data: bytes
    batch: FrameBatch | None = None


class FrameReader:
    """A stage from bytes to frames. Cost is linear: old bytes are never searched again.

    `delta_fields` are the beginnings of fields whose text grows from frame to frame, such as `"delta":"`: frames of one
    read that differ in that text alone become one.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES, delta_fields: Sequence[bytes] = ()) -> None:
        self._limit = limit
        self._delta_fields = delta_fields
        self._template: Template | None = None
        self._misses_left = MAX_TEMPLATE_MISSES
        self._pending: list[bytes] = []  # an unfinished block, without a blank line in it
        self._held = 0
        self.skipped = 0
        """Blocks so far that held no data, such as comments."""
        self._after_cr = False
        self._lead: bytes | None = b""  # the first bytes, until it is certain that they hold no BOM

    def feed(self, data: bytes) -> list[Frame]:
        if self._lead is not None:
            data = self._strip_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._normalise_line_ends(data)
        if len(data) > TAIL_BYTES and data.count(b"\n", -TAIL_BYTES) * 4 > TAIL_BYTES:
            data = _without_blank_lines(data)
        frames: list[Frame] = []
        if not data:
            return frames
        pending = self._pending
        if pending and pending[-1].endswith(b"\n") and data.startswith(b"\n"):
            self._finish_pending(frames)
        if pending:
            line = data.find(b"\n")  # one byte is found much faster than two, and most reads of a large frame lack it
            blank = data.find(b"\n\n", line) if line >= 0 else -1
            if blank < 0:
                self._hold(data)
                return frames
            self._hold(data[:blank])
            self._finish_pending(frames)
            data = data[blank + 2 :]
        cut = data.rfind(b"\n\n", 0, data.rfind(b"\n") + 1) + 2
        if cut > 1:
            if data.find(b"\n\n") == cut - 2:  # a single block, as from any model that is slower than this reader
                self._read_block(data[: cut - 2], frames)
            elif self._delta_fields:
                self._read_batches(data[:cut], frames)
            else:
                self._read_blocks(data[:cut], frames)
            data = data[cut:]
        if data:
            self._hold(data)
        return frames

    def find_template(self, data: bytes) -> Template | None:
        """The template of the bytes that were fed last, if they were one whole frame."""
        is_one = not self._pending and self._lead is None and not self._after_cr and data.find(b"\n\n") == len(data) - 2
        return learn_template(data[:-2], self._delta_fields) if is_one else None

    def _read_blocks(self, blocks: bytes, frames: list[Frame]) -> None:
        """Read whole blocks. Nearly always each of them is `event: …` and one line of data."""
        found = _usual_blocks(blocks)
        if sum([len(event) + len(data) for event, data in found]) + _BLOCK_OVERHEAD * len(found) == len(blocks):
            if len(blocks) > self._limit:
                self._check_size(max(len(data) for _, data in found))
            frames += [Frame(event, data) for event, data in found]
            return
        for block in blocks.split(b"\n\n"):
            self._read_block(block, frames)

    def _read_batches(self, blocks: bytes, frames: list[Frame]) -> None:
        """Read whole blocks; those that differ in one text only become one frame with a batch."""
        offset = 0
        while offset < len(blocks):
            template = self._template
            if template is not None and blocks.startswith(template.lead, offset):
                found = read_batch(blocks, offset, template)
                if found is not None and found[1] <= self._limit:
                    batch, length = found
                    frames.append(Frame(template.event, batch.join(), batch))
                    offset += length
                    self._misses_left = MAX_TEMPLATE_MISSES
                    continue
            if not self._misses_left:
                self._read_blocks(blocks[offset:], frames)
                return
            end = blocks.find(b"\n\n", offset)
            if end < 0:
                return  # a surplus blank line
            block = blocks[offset:end]
            self._read_block(block, frames)
            offset = end + 2
            if blocks.startswith(block[:MIN_COMMON_PREFIX], offset):
                template = learn_template(block, self._delta_fields)
                if template is not None and blocks.startswith(template.lead, offset):
                    self._template = template
                    self._misses_left -= 1

    def end(self) -> list[Frame]:
        frames: list[Frame] = []
        if self._lead:
            lead, self._lead = self._lead, None
            frames += self.feed(lead)
        try:
            b"".join(self._pending).decode()
        except UnicodeDecodeError:  # cut inside a character: this was not the whole event
            self._pending.clear()
        self._finish_pending(frames)
        return frames

    def _strip_bom(self, data: bytes) -> bytes:
        lead = (self._lead or b"") + data
        if len(lead) < len(_BOM) and _BOM.startswith(lead):
            self._lead = lead
            return b""
        self._lead = None
        return lead.removeprefix(_BOM)

    def _normalise_line_ends(self, data: bytes) -> bytes:
        """Every line end becomes one LF; a CR at the end of a read swallows an LF that opens the next."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        self._after_cr = data.endswith(b"\r") if data else False
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, data: bytes) -> None:
        self._pending.append(data)
        self._held += len(data)
        self._check_size(self._held)

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            message = f"One event of the backend exceeds the limit of {self._limit} bytes."
            raise BackendFault(Failure(502, "event_too_large", message))

    def _finish_pending(self, frames: list[Frame]) -> None:
        block = b"".join(self._pending)
        self._pending.clear()
        self._held = 0
        if block:
            self._read_block(block, frames)

    def _read_block(self, block: bytes, frames: list[Frame]) -> None:
        if len(block) > self._limit:
            self._check_size(len(block))
        # Nearly every block is `event: …` and one line of data, or the latter alone.
        data = block.find(b"\ndata: ", 7) if block.startswith(b"event: ") else -1
        if data > 0 and block.find(b"\n", 7, data) < 0 and block.find(b"\n", data + 7) < 0:
            frames.append(Frame(block[7:data], block[data + 7 :]))
        elif data < 0 and block.startswith(b"data: ") and block.find(b"\n") < 0:
            frames.append(Frame(b"", block[6:]))
        elif block.count(b"\n") > MAX_EVENT_LINES:
            message = f"One event of the backend has more than the limit of {MAX_EVENT_LINES} lines."
            raise BackendFault(Failure(502, "event_too_large", message))
        else:
            event, lines = b"", list[bytes]()
            for line in block.split(b"\n"):
                field, _, value = line.partition(b":")
                if line.startswith(b"{"):
                    lines.append(line)
                elif field == b"data":
                    lines.append(value.removeprefix(b" "))
                elif field == b"event":
                    event = value.removeprefix(b" ")
            if lines:
                frames.append(Frame(event, on_one_line(b"\n".join(lines))))
            else:
                self.skipped += 1


def on_one_line(data: bytes) -> bytes:
    """JSON without line breaks, so that it can stand in one line of data; anything else as it is."""
    if b"\n" not in data and b"\r" not in data:
        return data
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data


DONE = b"data: [DONE]\n\n"
"""The marker that ends a stream of OpenAI's APIs."""


def write(data: bytes) -> bytes:
    """One data-only event."""
    return b"data: " + data + b"\n\n"


def write_named(event: str, data: bytes) -> bytes:
    """One event with a name."""
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def write_comment(text: bytes) -> bytes:
    """A comment line. No blank line follows: some readers take that for an empty event."""
    return b": " + text + b"\n"
