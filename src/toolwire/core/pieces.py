r"""Frames that differ in one text only, read as one frame with its text in pieces.

    data: {"index":0,"delta":{"text":"Hel"}}\n\n
    data: {"index":0,"delta":{"text":"lo"}}\n\n      →  data: {"index":0,"delta":{"text":"Hello"}} in two pieces

In a burst most of a read is such a run: the same bytes around a text that flows. What stands around it is learned from
one frame; then a whole run is taken apart, and put together again by whoever writes it, without looking at each frame.
Nothing is lost by it: a piece is what its frame said, to the letter.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

_NUMBER = re.compile(rb'"sequence_number": ?([0-9]+)')
_MORE = re.compile(rb'"name": ?"|"message": ?\{')
"""What names itself may be another call, and a message holds totals."""
_END = b"\n\n"
_decode = msgspec.json.Decoder(list[str]).decode
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
    written: bytes = b""
    """All of it as it came."""
    strings: Sequence[str] = ()
    """The texts as they read."""

    def spread(self, head: bytes, tail: bytes) -> bytes:
        """All pieces, each in its own place between head and tail."""
        return head + b'"' + (b'"' + tail + head + b'"').join(self.texts) + b'"' + tail

    def single(self) -> Iterator[bytes]:
        """The data of each frame as it came."""
        return (self.template.whole(text, number) for number, text in enumerate(self.texts, self.number))


_PLACE = b"@toolwire@"


class Around:
    """Writes runs as one frame of them would be written, which is found out once for each kind of run."""

    def __init__(self) -> None:
        self._known: tuple[Template, object] | None = None
        self._head = self._tail = b""

    def spread(self, pieces: Pieces, write: Callable[[bytes], bytes], about: object = None) -> bytes:
        """All pieces. `write` writes the data of one frame; `about` is what else its work depends on."""
        known = self._known
        if known is None or known[0] is not pieces.template or known[1] != about:
            self._known = (pieces.template, about)
            self._head, _, self._tail = write(pieces.template.whole(_PLACE, 0)).partition(b'"' + _PLACE + b'"')
        return pieces.spread(self._head, self._tail)


def flowing(*fields: str) -> tuple[bytes, ...]:
    """The beginnings of these fields, as servers write them."""
    return tuple(f'"{field}":{space}"'.encode() for field in fields for space in ("", " "))


def learned(block: bytes, fields: Sequence[bytes]) -> Template | None:
    """The template of a block without its blank line, if exactly one of the fields is a text in it."""
    found = [(at, key) for key in fields if (at := block.find(key)) >= 0]
    if len(found) != 1 or _MORE.search(block):
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


LONGEST_NUMBER = 18
WINDOW = 16 * 1024
"""How far a run is followed at once: what comes behind it must not be looked at again and again."""


def run_of(data: bytes, start: int, template: Template) -> tuple[Pieces, int] | None:
    """The run of frames that begins here, and its length in bytes. None: there are not two of them."""
    lead, middle, key, tail = template.lead, template.middle, template.key, template.tail
    end = data.find(tail, start + len(lead), start + WINDOW)
    if end < 0 or not data.startswith(lead, end + len(tail)):
        return None
    opening, *parts = data[start : start + WINDOW].split(key)
    number = _number_in(opening, template)
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
    whole = _followed(parts, texts, joints)
    del texts[whole:]
    if whole < count and (end := parts[whole].find(tail)) >= 0:
        texts.append(parts[whole][:end])
    strings = _strings(texts) if len(texts) > 1 and b"" not in texts else None
    if strings is None:
        return None
    around = len(lead) + len(middle) + len(key) + len(tail)
    length = len(texts) * around + sum(map(len, texts)) + sum(map(len, numbers[: len(texts)]))
    return Pieces(texts, template, number, data[start : start + length], strings), length


def _followed(parts: list[bytes], texts: list[bytes], joints: list[bytes]) -> int:
    """How many of the first parts are followed by the next frame: they have lost their joint."""
    last = len(parts) - 1
    if sum(map(len, parts[:last])) - sum(map(len, texts[:last])) == sum(map(len, joints[:last])):
        return last + (len(texts[last]) < len(parts[last]))  # nearly always that is all but the last
    return next(place for place, text in enumerate(texts) if len(text) == len(parts[place]))


def _strings(texts: list[bytes]) -> list[str] | None:
    """The texts as they read; None if one is no JSON string, or written otherwise than we would."""
    written = b'["' + b'","'.join(texts) + b'"]'
    if b"\\" in written and _is_odd(written):
        return None
    try:
        strings = _decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return strings if len(strings) == len(texts) else None


def _is_odd(written: bytes) -> bool:
    """Whether there are escapes that we would not write, or that end a text."""
    return b"\\u" in written or b"\\/" in written or b'\\","' in written or written.endswith(b'\\"]')


def _number_in(opening: bytes, template: Template) -> int | None:
    """The number in what stands before a text; 0 if there is none, None if this is no frame of the template."""
    if not template.middle:
        return 0 if opening == template.lead else None
    written = opening[len(template.lead) : -len(template.middle)]
    number = int(written) if written.isdigit() and len(written) < LONGEST_NUMBER else 0
    return number if opening == template.lead + b"%d" % number + template.middle else None
