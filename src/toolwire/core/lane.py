r"""The lane: a frame that differs from the one before in its text only reaches the client in one step.

    data: {"index":0,"delta":{"text":"Hel"}}\n\n   →  decoder, policies, order, encoder  →  data: {…"Hel"…}\n\n
    data: {"index":0,"delta":{"text":"lo"}}\n\n    →  the bytes around the two texts     →  data: {…"lo"…}\n\n

A lane is made from a delta that passed every stage unchanged. Stages whose decision depends on the text have a check.
What passed is taken in by the stages later, as one batch of frames (`batch.py`), before they are given anything else.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from toolwire.core.batch import SAMPLE_PADDING, SAMPLE_TEXT, FrameBatch, Template, find_frame_number, split_frame
from toolwire.core.sse import Frame

Check: TypeAlias = Callable[[str], bool]
"""Whether a delta with this text passes, if the one before it has passed."""
SAMPLE_NUMBER = 7_777_777_777_777_777
"""The sequence number of the encoder's sample."""
BACKEND_NUMBER = 5_555_555_555_555_555
"""The sequence number of the frame in that sample."""
MAX_FRAMES = 64
MAX_BYTES = 16 * 1024
"""Frames, and bytes of their texts, after which the stages take in what has passed, so that their limits hold."""


def passes_always(text: str) -> bool:
    """The check of a stage that does not depend on the text."""
    return True


class Lane:
    """Passes frames on that are like one other."""

    def __init__(
        self, template: Template, number: int, around: Sequence[bytes], own_number: int, checks: Sequence[Check]
    ) -> None:
        """`number` is that of the next frame, and `own_number` that of its event for the client; -1 without numbers.

        `around` has the client's bytes before the number, the text, the padding and a number at the end, and the rest.
        """
        self._template = template
        self._first = self._number = number
        self._head, self._middle, self._pad, self._tail, self._close = around
        self._own_number = own_number
        self._checks = checks
        self._opening, self._ending = template.open_frame(0) + template.key, template.end_frame(0)
        self._forget()

    def _forget(self) -> None:
        self._first = self._number
        self._size = 0
        self._texts: list[bytes] = []
        self._strings: list[str] = []
        self._paddings: list[bytes] = []
        self._originals: list[bytes] = []
        self._written: list[bytes] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing has passed since the last `take`."""
        return not self._texts

    @property
    def is_full(self) -> bool:
        """Whether the stages must take in what has passed."""
        return len(self._texts) >= MAX_FRAMES or self._size >= MAX_BYTES

    def feed(self, data: bytes) -> bytes | None:
        """The client's bytes for a frame; None if it is of another kind, or a stage must see it."""
        template = self._template
        if template.is_numbered:
            number = self._number
            self._opening, self._ending = template.open_frame(number) + template.key, template.end_frame(number)
        parts = split_frame(data, self._opening, template.pad, self._ending)
        if parts is None:
            return None
        text, string, padding = parts
        for check in self._checks:
            if not check(string):
                return None
        self._number += 1
        self._size += len(text)
        self._texts.append(text)
        self._strings.append(string)
        self._originals.append(data)
        if template.pad:
            self._paddings.append(padding)
        if self._pad:
            text += self._pad + padding
        if self._middle:
            written = self._head + b"%d" % self._own_number + self._middle + text + self._tail
        elif self._close:
            written = self._head + text + self._tail + b"%d" % self._own_number + self._close
        else:
            written = self._head + text + self._tail
        self._own_number += 1
        self._written.append(written)
        return written

    def take(self) -> tuple[Frame, bytes]:
        """What has passed since the last time: one frame with a batch, and the client's bytes."""
        original, written = b"".join(self._originals), b"".join(self._written)
        batch = FrameBatch(self._texts, self._template, self._first, original, self._strings, self._paddings)
        self._forget()
        return Frame(self._template.event, batch.join(), batch), written


def make_lane(template: Template, frame: bytes, sample: bytes, own_number: int, checks: Sequence[Check]) -> Lane | None:
    """A lane for frames like this one; None if they are irregular.

    `sample` is what the encoder writes for the samples of a text, of padding and, if it counts, of its own number.
    """
    number = find_frame_number(frame, template)
    head, found, rest = sample.partition(SAMPLE_TEXT)
    if number is None or not found or b"%d" % BACKEND_NUMBER in sample:
        return None
    head, before, middle = head.partition(b"%d" % SAMPLE_NUMBER)
    pad, _, tail = rest.rpartition(SAMPLE_PADDING)
    tail, behind, close = tail.partition(b"%d" % SAMPLE_NUMBER)
    if bool(before) + bool(behind) != (own_number >= 0):
        return None
    around = (head, middle, pad, tail, close)
    if any(each in part for part in around for each in (SAMPLE_TEXT, SAMPLE_PADDING, b"%d" % SAMPLE_NUMBER)):
        return None
    checks = [check for check in checks if check is not passes_always]
    return Lane(template, number + 1, around, own_number, checks)
