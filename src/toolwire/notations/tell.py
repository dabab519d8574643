"""How a call that was read goes out: live, while it is read; whole, when it is closed; or at the end of the turn.

The last is for tools that also went to the backend in structure: the same call may come both ways, and then the
structured one wins, one for one.
"""

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeAlias

from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note
from toolwire.core.identity import minted_prefix
from toolwire.core.policies import Events
from toolwire.core.text import is_json, same_json
from toolwire.notations.draft import Draft

Telling: TypeAlias = Literal["live", "whole", "end"]


class Made(Protocol):
    """A structured call the backend made."""

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> str: ...


class Teller:
    """Makes events of one call after another."""

    def __init__(self, telling: Telling, seed: str, structured: Callable[[], Iterable[Made]]) -> None:
        self._live = telling == "live"
        self._held = telling == "end"
        self._seed = seed
        self._structured = structured
        self._arguments: list[str] = []
        self._count = 0
        self._id = ""  # of the call being told live
        self.waiting: list[tuple[str, str]] = []  # calls held to the end: name and arguments

    @property
    def is_telling(self) -> bool:
        """A call has begun to go out."""
        return bool(self._id)

    def begin(self) -> None:
        self._arguments = []
        self._id = ""

    def tell(self, call: Draft) -> Events:
        """Take what is new of a call, and pass it on if nothing has to be held."""
        if not call.name:
            return ()
        taken = call.taken()
        self._arguments.append(taken)
        if not self._live:
            return ()
        out: list[Event] = []
        if not self._id:
            self._id = self._mint()
            out.append(CallStarted(self._id, call.name))
        if taken:
            out.append(CallArgs(self._id, taken))
        return out

    def close(self, call: Draft) -> Events | None:
        """The call is whole; None if its arguments are not JSON."""
        arguments = "".join(self._arguments)
        if not is_json(arguments):
            return None
        out: list[Event] = [Note("text_call_repaired", call.name)] if call.repaired else []
        if self._id:
            out.append(CallEnded(self._id))
        elif self._held:
            self.waiting.append((call.name, arguments))
        else:
            out += self._whole(call.name, arguments)
        self.begin()
        return out

    def cut(self) -> Events:
        """The call that has begun to go out has no end."""
        ended = CallEnded(self._id, complete=False)
        self.begin()
        return (ended,)

    def release(self) -> Events:
        """The calls that were held to the end, without those that also came in structure."""
        if not self.waiting:
            return ()
        out: list[Event] = []
        made = list(self._structured())
        for name, arguments in self.waiting:
            if take_twin(made, name, arguments):
                out.append(Note("text_call_twin", name))
            else:
                out += self._whole(name, arguments)
        self.waiting.clear()
        return out

    def _whole(self, name: str, arguments: str) -> Events:
        id = self._mint()
        return CallStarted(id, name), CallArgs(id, arguments), CallEnded(id)

    def _mint(self) -> str:
        self._count += 1
        return f"{minted_prefix(self._seed)}t{self._count:02d}"


def take_twin(made: list[Made], name: str, arguments: str) -> bool:
    """Whether one of the structured calls says the same; it is taken out, so that each is the twin of one text only."""
    for place, each in enumerate(made):
        if each.name == name and same_json(each.text or "{}", arguments):
            del made[place]
            return True
    return False
