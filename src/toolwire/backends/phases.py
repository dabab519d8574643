"""Phases of messages: a Codex model may send one text as commentary and again as its final answer.

{"type": "message", "id": "msg_1", "phase": "commentary"}     The tests pass.
{"type": "message", "id": "msg_2", "phase": "final_answer"}   The tests pass.
"""

from toolwire.core.events import Note


class PhasedMessages:
    """Drops a final answer that repeats the commentary right before it.

    The text of an answer is held back while the commentary begins with it.
    """

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}
        self._commentary: list[str] = []
        self._source = ""  # the message of the commentary
        self._held: list[str] = []
        self._answer = ""  # the message whose text is held
        self._length = 0

    def begin(self, item: str, phase: str | None) -> None:
        """Store the phase of a message."""
        if phase:
            self._phases[item] = phase

    def feed(self, item: str, text: str) -> str:
        """The text of a message that can be delivered now."""
        phase, before = self._phases.get(item), ""
        if self._held and item != self._answer:
            held = self.end(self._answer)
            before = "" if isinstance(held, Note) else held
        if phase == "commentary":
            if item != self._source:
                self._source, self._commentary = item, []
            self._commentary.append(text)
        elif phase == "final_answer" and self._commentary:
            if len(self._commentary) > 1:
                self._commentary = ["".join(self._commentary)]
            self._answer = item
            self._held.append(text)
            if not self._commentary[0].startswith(text, self._length):
                return before + self._release()
            self._length += len(text)
            return before
        else:
            self._commentary = []  # another message came between
        return before + text

    def end(self, item: str) -> str | Note:
        """The held text of a message that is complete now, or a note if it repeats the commentary."""
        if not self._held or item != self._answer:
            return ""
        is_repeated = self._length == len(self._commentary[0])
        held = self._release()
        return Note("message_repeated", item) if is_repeated else held

    @property
    def held(self) -> str | None:
        """The message whose text is held back, if there is one."""
        return self._answer if self._held else None

    def _release(self) -> str:
        held, self._held, self._commentary, self._length = "".join(self._held), [], [], 0
        return held
