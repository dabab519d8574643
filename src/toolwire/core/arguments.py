"""The arguments of finished calls against the declared schemas: noted, or put right where that is certain.

Only function calls have a schema. Whoever validates is given (`Validate`): what a schema means is not known here.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec

from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    MessageEnded,
    Note,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnFailed,
    Usage,
)
from toolwire.core.policies import Events, Kinds
from toolwire.core.repair import Fix, Mended, mend
from toolwire.core.request import Tool
from toolwire.core.retype import Problem, retyped
from toolwire.core.text import is_json

ArgumentsRule: TypeAlias = Literal["pass", "check", "repair"]

Validate: TypeAlias = Callable[[bytes, str], Sequence[Problem] | None]
"""From a schema and a JSON text to what is wrong with the text; None if the schema cannot be used."""

LONGEST = 1024 * 1024
"""Most characters of arguments that are looked at."""

HELD_LIMIT = 32 * 1024 * 1024
"""Most characters that may wait behind a call for the end of the turn."""

ROUNDS = 4
"""How often arguments are unquoted: a string may hold an object that holds a string."""

NOT_JSON = Problem((), "json")
NO_OBJECT = Problem((), "type", ("object",))


class Verdict(msgspec.Struct, frozen=True):
    """What there is to say about a call, and its arguments as they should be, if they can be put right."""

    notes: tuple[Note, ...] = ()
    repaired: Mended | None = None


class Declared:
    """The tools of a request as the judge of the arguments that come for them."""

    def __init__(self, tools: Sequence[Tool], validate: Validate) -> None:
        self._tools = {(tool.namespace, tool.name): tool for tool in tools}
        self._named = {tool.name: tool for tool in tools}  # calls in text say no namespace
        self._validate = validate
        self._unusable: set[str] = set()  # tools whose schemas were noted

    def check(self, call: CallStarted, text: str) -> Verdict:
        return self._judge(call, text)[0]

    def repair(self, call: CallStarted, text: str) -> Verdict:
        verdict, tool = self._judge(call, text)
        if tool is None or not verdict.notes:
            return verdict
        repaired = self._repaired(tool, text)
        return Verdict(verdict.notes, repaired) if repaired is not None else verdict

    def _judge(self, call: CallStarted, text: str) -> tuple[Verdict, Tool | None]:
        """The verdict, and the tool if its schema said so."""
        tool = self._tools.get((call.namespace, call.name)) or self._named.get(call.name)
        if tool is None:
            return (Verdict((Note("tool_undeclared", call.name),)) if self._tools else Verdict()), None
        if tool.kind == "custom":
            return Verdict(), None
        problems = self._problems(tool, text)
        if problems is None:
            noted = tool.name in self._unusable
            self._unusable.add(tool.name)
            return (Verdict() if noted else Verdict((Note("arguments_unchecked", tool.name),))), None
        notes = tuple(Note("arguments_invalid", f"{call.id} {problem}") for problem in problems[:1])
        return Verdict(notes), tool

    def _problems(self, tool: Tool, text: str) -> Sequence[Problem] | None:
        if len(text) > LONGEST:
            return None
        if not is_json(text):
            return (NOT_JSON,)
        if not text.lstrip().startswith("{"):
            return (NO_OBJECT,)
        return self._validate(bytes(tool.parameters), text) if tool.parameters is not None else ()

    def _repaired(self, tool: Tool, text: str) -> Mended | None:
        """The arguments as they fit; None if they cannot be made to without guessing."""
        mended = mend(text)
        if mended is None:
            return None
        text, fixes = mended.text, mended.fixes
        for _ in range(ROUNDS):
            problems = self._problems(tool, text)
            if not problems:
                return Mended(text, fixes) if problems is not None else None
            better = retyped(text, problems)
            if better is None:
                return None
            text, fixes = better, _with(fixes, "types")
        return None


def _with(fixes: tuple[Fix, ...], fix: Fix) -> tuple[Fix, ...]:
    return fixes if fix in fixes else (*fixes, fix)


class CheckArguments:
    """Notes calls whose arguments do not fit. Nothing is held back: the note comes with the call's end."""

    handles: ClassVar[Kinds] = (CallStarted, CallArgs, CallEnded)

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self._call: CallStarted | None = None
        self._pieces: list[str] = []

    def feed(self, event: Event) -> Events:
        if isinstance(event, CallArgs):
            self._pieces.append(event.text)
        elif isinstance(event, CallStarted):
            self._call, self._pieces = event, []
        elif isinstance(event, CallEnded) and self._call is not None:
            call, self._call = self._call, None
            if call.kind == "function" and event.complete:
                return *self._declared.check(call, "".join(self._pieces)).notes, event
        return (event,)

    def end(self) -> Events:
        return ()


class _Late(msgspec.Struct, frozen=True):
    """A call that is right if the turn ends by itself, and cut otherwise."""

    pieces: tuple[CallArgs, ...]
    end: CallEnded
    verdict: Verdict


class RepairArguments:
    """Lets a call's arguments pass when they are whole, put right where that is certain.

    Arguments that fit go as they came. Brackets that are missing, and a call that its backend did not call complete,
    may mean that the turn was cut: then all that follows waits until the turn says how it ends.
    """

    handles: ClassVar[Kinds] = (
        CallStarted,
        CallArgs,
        CallEnded,
        TextDelta,
        RefusalDelta,
        MessageEnded,
        ReasoningDelta,
        ReasoningEnded,
        Told,
        Usage,
        TurnEnded,
        TurnFailed,
    )

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self._call: CallStarted | None = None
        self._pieces: list[CallArgs] = []
        self._late: _Late | None = None
        self._held: list[Event] = []
        self._size = 0
        self._natural: bool | None = None
        """Whether the turn ended by itself, once that is known."""

    def feed(self, event: Event) -> Events:
        if self._late is not None:
            return self._wait(event)
        if isinstance(event, CallStarted):
            self._call = event if event.kind == "function" else None
        elif self._call is not None:
            if isinstance(event, CallArgs):
                self._pieces.append(event)
                return ()
            if isinstance(event, CallEnded):
                return self._end(self._call, event)
            if isinstance(event, TurnFailed):
                return *self._taken(), event
        return (event,)

    def end(self) -> Events:
        return ()

    def _taken(self) -> tuple[CallArgs, ...]:
        self._call, pieces, self._pieces = None, tuple(self._pieces), []
        return pieces

    def _end(self, call: CallStarted, event: CallEnded) -> Events:
        pieces = self._taken()
        text = "".join(piece.text for piece in pieces)
        if event.damaged or (not event.complete and is_json(text)):
            return *pieces, event
        late = _Late(pieces, event, self._declared.repair(call, text))
        repaired = late.verdict.repaired
        if repaired is None or (event.complete and "brackets" not in repaired.fixes):
            return self._settled(late, natural=event.complete)
        if self._natural is None:
            self._late = late
            return ()
        return self._settled(late, natural=self._natural)

    def _settled(self, late: _Late, *, natural: bool) -> Events:
        id, repaired = late.end.id, late.verdict.repaired
        if repaired is None or not natural:
            notes = late.verdict.notes if late.end.complete else ()
            return *late.pieces, *notes, late.end
        note = Note("arguments_repaired", f"{id} {', '.join(repaired.fixes)}")
        return CallArgs(id, repaired.text), note, CallEnded(id)

    def _wait(self, event: Event) -> Events:
        self._held.append(event)
        self._size += len(getattr(event, "text", ""))
        if isinstance(event, TurnEnded):
            self._natural = event.reason in ("stop", "calls")
        elif isinstance(event, TurnFailed) or self._size > HELD_LIMIT:
            self._natural = False
        else:
            return ()
        late, self._late = self._late, None
        held, self._held = self._held, []
        assert late is not None
        return [*self._settled(late, natural=self._natural), *(out for each in held for out in self.feed(each))]
