r"""Frames that differ in one text only, read as one frame with its text in pieces.

    data: {"index":0,"delta":{"text":"Hel"}}\n\n
    data: {"index":0,"delta":{"text":"lo"}}\n\n      →  data: {"index":0,"delta":{"text":"Hello"}} in two pieces

In a burst most of a read is such a run: the same bytes around a text that flows. What stands around it is learned from
one frame; then a whole run is taken apart, and put together again by whoever writes it, without looking at each frame.
Nothing is lost by it: a piece is what its frame said, to the letter.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

_NUMBER = re.compile(rb'"sequence_number": ?([0-9]+)')
_NAME = re.compile(rb'"name": ?"')
_END = b"\n\n"
_inside = re.compile(rb'[^"\\\n]*(?:\\[^u/\n][^"\\\n]*)*')


class Template(msgspec.Struct, frozen=True, gc=False):
    """What stands around a text that flows: `lead`, a number if there is a `middle`, `key`, the text, `tail`."""

    lead: bytes
    middle: bytes
    key: bytes
    tail: bytes
    event: bytes
    """The event's name, which is also in the lead."""
    data: int
    """Where in the lead the data begins."""

    def whole(self, text: bytes, number: int) -> bytes:
        """The data of one frame with this text, which is the inside of a JSON string."""
        counted = b"%d" % number + self.middle if self.middle else b""
        return self.lead[self.data :] + counted + self.key + text + self.tail[: -len(_END)]


class Pieces(msgspec.Struct, frozen=True, gc=False):
    """The texts of a run of frames, each the inside of a JSON string just as we would write it."""

    texts: Sequence[bytes]
    template: Template
    number: int = 0
    """Of the first frame, where frames are numbered; the others follow."""

    def spread(self, head: bytes, tail: bytes) -> bytes:
        """All pieces, each in its own place between head and tail."""
        return head + b'"' + (b'"' + tail + head + b'"').join(self.texts) + b'"' + tail

    def single(self) -> Iterator[bytes]:
        """The data of each frame as it came."""
        return (self.template.whole(text, number) for number, text in enumerate(self.texts, self.number))


def flowing(*fields: str) -> tuple[bytes, ...]:
    """The beginnings of these fields, as servers write them."""
    return tuple(f'"{field}":{space}"'.encode() for field in fields for space in ("", " "))


def learned(block: bytes, fields: Sequence[bytes]) -> Template | None:
    """The template of a block without its blank line, if exactly one of the fields is a text in it."""
    found = [(at, key) for key in fields if (at := block.find(key)) >= 0]
    if len(found) != 1 or _NAME.search(block):  # what names itself may be another call
        return None
    at, key = found[0]
    text = _inside.match(block, at + len(key))
    if text is None or not block.startswith(b'"', text.end()) or block.find(key, text.end()) >= 0:
        return None
    lead, middle, tail = block[:at], b"", block[text.end() :] + _END
    number = _NUMBER.search(lead)
    if number is not None:
        lead, middle = lead[: number.start(1)], lead[number.end() :]
    event, data = b"", 6
    if lead.startswith(b"event: "):
        event, data = lead[7 : lead.find(b"\n")], lead.find(b"\ndata: ") + 7
    if lead.count(b"\n") != bool(event) or not lead.startswith(b"data: ", data - 6):
        return None
    return Template(lead, middle, key, tail, event, data)


def run_of(data: bytes, template: Template) -> tuple[Pieces, int] | None:
    """The run of frames that data begins with, and its length in bytes. None: there are not two of them.

    Where frames are numbered, a run ends where numbers get longer.
    """
    tail = template.tail
    end = data.find(tail, len(template.lead))
    if end < 0 or not data.startswith(template.lead, end + len(tail)):
        return None
    opening, *parts = data.split(template.key)
    digits = len(opening) - len(template.lead) - len(template.middle)
    number = _number_in(opening, digits, template)
    if number is None:
        return None
    # A part is a text, the end of its frame, and the opening of the next.
    between = len(tail) + len(opening)
    count = _followed(parts, between, digits, number, template)
    texts = [part[:-between] for part in parts[:count]]
    if count < len(parts) and (end := parts[count].find(tail)) >= 0:
        texts.append(parts[count][:end])
    if len(texts) < 2 or b"" in texts or not _inside.fullmatch(b"".join(texts)):
        return None
    around = len(opening) + len(template.key) + len(tail)
    return Pieces(texts, template, number), len(texts) * around + sum(map(len, texts))


def _number_in(opening: bytes, digits: int, template: Template) -> int | None:
    """The number in what stands before a text; 0 if there is none, None if this is no frame of the template."""
    if not template.middle:
        return 0 if opening == template.lead else None
    written = opening[len(template.lead) : len(template.lead) + digits]
    number = int(written) if written.isdigit() else 0
    return number if opening == template.lead + b"%d" % number + template.middle else None


def _followed(parts: Sequence[bytes], between: int, digits: int, number: int, template: Template) -> int:
    """How many of the first parts are followed by the next frame of the run."""
    if not template.middle:
        joint = template.tail + template.lead
        return _agreeing([part[-between:] for part in parts], [joint] * len(parts))
    left, right = template.tail + template.lead, len(template.middle)
    joints = [part[-between : -right - digits] + part[-right:] for part in parts]
    numbers = [part[-right - digits : -right] for part in parts]
    return min(
        _agreeing(joints, [left + template.middle] * len(parts)),
        _agreeing(numbers, [b"%d" % each for each in range(number + 1, number + 1 + len(parts))]),
    )


def _agreeing(found: list[bytes], due: list[bytes]) -> int:
    """How many of the first are as they should be. Nearly always that is all but the last."""
    last = len(due) - 1
    if found[:last] == due[:last]:
        return last + (found[last] == due[last])
    return next(place for place, each in enumerate(found) if each != due[place])
