"""Emits the events of a call in text: live while it is read, or whole when its block closes."""

from typing import Literal, TypeAlias

from toolwire.core.call_index import make_id_prefix
from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event, Note
from toolwire.core.policies import Events
from toolwire.core.text import is_json
from toolwire.notations.draft import Draft
from toolwire.notations.twins import Twins

EmitMode: TypeAlias = Literal["live", "whole"]


class CallEmitter:
    """Emits the events of one call after another."""

    def __init__(self, mode: EmitMode, seed: str, twins: Twins) -> None:
        self._live = mode == "live"
        self._seed = seed
        self._twins = twins
        self._arguments: list[str] = []
        self._count = 0
        self._id = ""  # of the call that is being emitted live

    @property
    def is_emitting(self) -> bool:
        """Whether a call has started that has not ended."""
        return bool(self._id)

    def begin(self) -> None:
        """Start a new call."""
        self._arguments = []
        self._id = ""

    def emit(self, call: Draft) -> Events:
        """Read the new text of a call, and emit it in live mode."""
        if not call.name:
            return ()
        new = call.drain()
        self._arguments.append(new)
        if not self._live:
            return ()
        out: list[Event] = []
        if not self._id:
            self._id = self._mint_id()
            out.append(CallStarted(self._id, call.name))
        if new:
            out.append(CallArgs(self._id, new))
        return out

    def close(self, call: Draft) -> Events | None:
        """Emit the rest of a call that is whole; None if its arguments are not JSON."""
        arguments = "".join(self._arguments)
        if not is_json(arguments):
            return None
        out: list[Event] = [Note("text_call_repaired", call.name)] if call.repaired else []
        if self._id:
            out.append(CallEnded(self._id))
        elif self._twins.take_twin(call.name, arguments):
            out.append(Note("text_call_twin", call.name))
        else:
            id = self._mint_id()
            self._twins.record(id, call.name, arguments)
            out += (CallStarted(id, call.name), CallArgs(id, arguments), CallEnded(id))
        self.begin()
        return out

    def cut(self) -> Events:
        """End the started call as incomplete."""
        ended = CallEnded(self._id, complete=False)
        self.begin()
        return (ended,)

    def _mint_id(self) -> str:
        self._count += 1
        return f"{make_id_prefix(self._seed)}t{self._count:02d}"
