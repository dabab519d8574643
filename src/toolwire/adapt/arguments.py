"""Checks the arguments of finished calls against the declared schemas, and repairs them where the meaning is certain.

Only function calls have a schema. The validator is an argument (`Validate`), so no JSON Schema library is needed.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec

from toolwire.adapt.argument_types import fits_type
from toolwire.adapt.repair import Problem, RepairedJson, repair_json, retype
from toolwire.core.collect import Call, CallAssembler
from toolwire.core.events import OUTPUT, CallArgs, CallEnded, CallStarted, Event, Note, TurnEnded, TurnFailed, Usage
from toolwire.core.policies import Events, Kinds, pass_any_text
from toolwire.core.request import Tool
from toolwire.core.text import is_json

ArgumentsRule: TypeAlias = Literal["pass", "check", "repair"]

Validate: TypeAlias = Callable[[bytes, str], Sequence[Problem] | None]
"""Returns the problems of a JSON text under a schema; None if the schema cannot be used."""

MAX_CHECKED_CHARS = 1024 * 1024
"""Longer arguments are not checked."""

MAX_HELD_CHARS = 32 * 1024 * 1024
"""Maximum characters that are held back until the end of the turn."""

MAX_UNQUOTE_ROUNDS = 4
"""Maximum rounds of unquoting: a string may hold an object that holds a string."""

NOT_JSON = Problem((), "json")
NO_OBJECT = Problem((), "type", ("object",))


class Verdict(msgspec.Struct, frozen=True):
    """The notes about a call, and its repaired arguments, if they can be repaired."""

    notes: tuple[Note, ...] = ()
    repaired: RepairedJson | None = None


class ArgumentJudge:
    """Checks and repairs arguments according to the tools of a request."""

    def __init__(self, tools: Sequence[Tool], validate: Validate) -> None:
        self._tools = {(tool.namespace, tool.name): tool for tool in tools}
        self._named = {tool.name: tool for tool in tools}  # calls in text have no namespace
        self._validate = validate
        self._unusable: set[str] = set()  # tools that were noted as unchecked

    def check(self, call: CallStarted | Call, text: str) -> Verdict:
        """The verdict on a call, without a repair."""
        return self._judge(call, text)[0]

    def repair(self, call: CallStarted, text: str) -> Verdict:
        """The verdict on a call, with its repaired arguments if no guessing is needed."""
        verdict, tool = self._judge(call, text)
        repaired = repair_json(text) if tool is not None and verdict.notes else None
        if tool is None or repaired is None:
            return verdict
        text, fixes = repaired.text, dict.fromkeys(repaired.fixes)
        for _ in range(MAX_UNQUOTE_ROUNDS):
            problems = self._find_problems(tool, text)
            if not problems:
                repaired = RepairedJson(text, tuple(fixes))
                return Verdict(verdict.notes, repaired) if problems is not None else verdict
            better = retype(text, problems)
            if better is None:
                break
            text, fixes["types"] = better, None
        return verdict

    def _judge(self, call: CallStarted | Call, text: str) -> tuple[Verdict, Tool | None]:
        """The verdict, and the tool if its schema was checked."""
        tool = self._tools.get((call.namespace, call.name)) or self._named.get(call.name)
        if tool is None:
            return (Verdict((Note("tool_undeclared", call.name),)) if self._tools else Verdict()), None
        if tool.kind == "custom":
            return Verdict(), None
        if len(text) > MAX_CHECKED_CHARS:
            return Verdict((Note("arguments_too_long", call.id),)), None
        problems = self._find_problems(tool, text)
        if problems is None:
            noted = tool.name in self._unusable
            self._unusable.add(tool.name)
            return (Verdict() if noted else Verdict((Note("arguments_unchecked", tool.name),))), None
        notes = tuple(Note("arguments_invalid", f"{call.id} {problem}") for problem in problems[:1])
        return Verdict(notes), tool

    def _find_problems(self, tool: Tool, text: str) -> Sequence[Problem] | None:
        schema = bytes(tool.parameters) if tool.parameters is not None else b""
        if schema and fits_type(schema, text):
            return ()
        if not is_json(text):
            return (NOT_JSON,)
        if not text.lstrip().startswith("{"):
            return (NO_OBJECT,)
        return self._validate(schema, text) if schema else ()


class CheckArguments:
    """Adds a note to calls whose arguments do not fit the schema. Nothing is held back."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)
    find_check = pass_any_text

    def __init__(self, judge: ArgumentJudge) -> None:
        self._judge = judge
        self._calls = CallAssembler()

    def feed(self, event: Event) -> Events | None:
        call = self._calls.feed(event)
        if call is None or call.kind != "function" or not call.complete:
            return None
        return *self._judge.check(call, call.arguments).notes, event


class _UndecidedCall(msgspec.Struct, frozen=True):
    """A call whose repair is valid only if the turn ends normally; otherwise it was cut."""

    pieces: tuple[CallArgs, ...]
    end: CallEnded
    verdict: Verdict

    def settle(self, *, normally: bool) -> Events:
        """The events of the call, repaired if the turn ended normally."""
        repaired = self.verdict.repaired
        if repaired is None or not normally:
            return *self.pieces, *(self.verdict.notes if self.end.complete else ()), self.end
        note = Note("arguments_repaired", f"{self.end.id} {', '.join(repaired.fixes)}")
        return CallArgs(self.end.id, repaired.text), note, CallEnded(self.end.id)


class RepairArguments:
    """Delivers a call's arguments when they are complete, repaired where the meaning is certain.

    Valid arguments are not changed. Missing brackets, and a call that ended incomplete, may mean that the turn was cut:
    then everything after the call is held back until the turn ends.
    """

    handles: ClassVar[Kinds] = (*OUTPUT, Usage, TurnEnded, TurnFailed)
    find_check = pass_any_text

    def __init__(self, judge: ArgumentJudge) -> None:
        self._judge = judge
        self._call: CallStarted | None = None
        self._pieces: list[CallArgs] = []
        self._undecided: _UndecidedCall | None = None
        self._held: list[Event] = []
        self._size = 0
        self._ended_normally: bool | None = None
        """Whether the turn ended normally; None before its end."""

    def feed(self, event: Event) -> Events | None:
        if self._undecided is not None:
            return self._hold(event)
        if isinstance(event, CallStarted):
            self._call = event if event.kind == "function" else None
            return None
        call = self._call
        if call is None:
            return None
        if isinstance(event, CallArgs):
            self._pieces.append(event)
            return ()
        if not isinstance(event, CallEnded):
            return (*self._take_pieces(), event) if isinstance(event, TurnFailed) else None
        pieces = self._take_pieces()
        text = "".join(piece.text for piece in pieces)
        if event.damaged or (not event.complete and is_json(text)):
            return *pieces, event
        undecided = _UndecidedCall(pieces, event, self._judge.repair(call, text))
        repaired = undecided.verdict.repaired
        if repaired is None or (event.complete and "brackets" not in repaired.fixes):
            return undecided.settle(normally=event.complete)
        if self._ended_normally is None:
            self._undecided = undecided
            return ()
        return undecided.settle(normally=self._ended_normally)

    def _take_pieces(self) -> tuple[CallArgs, ...]:
        self._call, pieces, self._pieces = None, tuple(self._pieces), []
        return pieces

    def _hold(self, event: Event) -> Events:
        """Hold an event back; the end of the turn decides about the call, and releases everything."""
        self._held.append(event)
        self._size += len(getattr(event, "text", ""))
        if isinstance(event, TurnEnded):
            self._ended_normally = event.reason in ("stop", "calls")
        elif isinstance(event, TurnFailed) or self._size > MAX_HELD_CHARS:
            self._ended_normally = False
        else:
            return ()
        undecided, self._undecided = self._undecided, None
        held, self._held = self._held, []
        assert undecided is not None
        out = list(undecided.settle(normally=self._ended_normally))
        for each in held:
            caused = self.feed(each)
            out += (each,) if caused is None else caused
        return out
