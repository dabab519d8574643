"""Calls: one, two at once, with odd, long, cut and without arguments."""

import html
from collections.abc import Callable, Sequence

import msgspec

from toolwire.check.apis import Ask, Called, Result, User
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.probes.scene import BOTH, FEW, LONG, ODD, ONE, PING, SAVE, SUNNY, TWO
from toolwire.check.talks import Talk
from toolwire.check.turns.loose import as_object, as_text, shown
from toolwire.check.turns.turn import Call, Turn


@probe("one-call", "history.result", TURNS)
async def one_call(talk: Talk) -> None:
    """A call, streamed and plain, and its result."""
    for stream in (True, False):
        first = await talk.ask(Ask((ONE,), BOTH, stream=stream))
        if talk.needs_call("history.result", first):
            results = [Result(call.id, SUNNY) for call in first.turn.calls]
            await _goes_on(talk, "history.result", ONE, first, results, stream=stream)


async def _goes_on(
    talk: Talk, rule: str, user: User, first: Exchange, results: Sequence[Result], *, stream: bool
) -> None:
    next = await talk.ask(Ask((user, Called(first.turn.calls), *results), BOTH, stream=stream))
    if {(call.name, call.arguments) for call in first.turn.calls} & {
        (call.name, call.arguments) for call in next.turn.calls
    }:
        talk.unseen(rule, "the model made the same call again")
    else:
        talk.answered(rule, next)


@probe("parallel", "parallel.calls", "history.results", TURNS)
async def parallel_calls(talk: Talk) -> None:
    """Two calls in one turn, and their results in the other order."""
    for stream in (True, False):
        first = await talk.ask(Ask((TWO,), BOTH, stream=stream))
        if not talk.needs_call("parallel.calls", first):
            talk.unseen("history.results", "there were no two calls")
            continue
        calls = [(call.name, call.arguments) for call in first.turn.calls]
        told = "".join(arguments.lower() for _, arguments in calls)
        if not all(call.value for call in first.turn.calls):
            talk.judge("parallel.calls", False, f"The calls are {shown(calls)}.", first)
        elif len(calls) > 1 and "paris" in told and "rome" in told:
            talk.judge("parallel.calls", len(set(calls)) == len(calls), f"The calls are {shown(calls)}.", first)
            results = [Result(call.id, SUNNY) for call in reversed(first.turn.calls)]
            await _goes_on(talk, "history.results", TWO, first, results, stream=stream)
            continue
        else:
            talk.unseen("parallel.calls", "the model made one call only, or called for something else")
        talk.unseen("history.results", "there were no two calls")


@probe("no-arguments", "arguments.empty", TURNS)
async def no_arguments(talk: Talk) -> None:
    """A tool without parameters."""
    for stream in (True, False):
        got = await talk.ask(Ask((User('Call the tool "ping".'),), (PING,), stream=stream))
        if talk.needs_call("arguments.empty", got):
            told = [call.arguments for call in got.turn.calls if not isinstance(call.value, dict)]
            talk.judge("arguments.empty", not told, f"A call without arguments has {told!r} as its arguments.", got)


@probe("letters", "arguments.unicode")
async def odd_letters(talk: Talk) -> None:
    """Arguments in every script."""
    for stream in (True, False):
        await _carries(talk, "arguments.unicode", ODD, _is_mangled, stream=stream)


@probe("huge", "arguments.huge", "stream.live")
async def huge_arguments(talk: Talk) -> None:
    """Arguments of several kilobytes."""
    for stream in (True, False):
        await _carries(talk, "arguments.huge", LONG, _is_torn, stream=stream)


async def _carries(talk: Talk, rule: str, text: str, is_wrong: Callable[[Call], bool], *, stream: bool) -> None:
    got = await talk.ask(Ask((_save(text),), (SAVE,), named=SAVE.name, stream=stream, most=8192))
    if not talk.needs_call(rule, got):
        return
    if text in map(_saved, got.turn.calls):
        talk.judge(rule, True, "", got)
    elif got.turn.finish == "length":
        talk.unseen(rule, "the turn met its token limit")
    elif any(map(is_wrong, got.turn.calls)):
        arrived = shown(got.turn.calls[0].arguments)
        talk.judge(rule, False, f"{len(text)} letters arrived as {arrived}.", got)
    else:
        talk.unseen(rule, "the model did not repeat the text")


def _save(text: str) -> User:
    return User(f'Call the tool save_text with exactly this text, every letter of it: "{text}"')


def _saved(call: Call) -> str:
    return as_text(as_object(call.value).get("text"))


def _is_mangled(call: Call) -> bool:
    """Whether the text went through wrong hands: no model does this by itself."""
    escaped = msgspec.json.encode(ODD).decode()[1:-1]
    wrong = {
        ODD.encode().decode("latin-1"),
        ODD.encode().decode("cp1252", "replace"),
        *(ODD.encode("ascii", how).decode() for how in ("replace", "ignore", "backslashreplace")),
        *(html.escape(ODD, quote=quote) for quote in (True, False)),
        escaped,
    }
    return "\ufffd" in call.arguments or _saved(call) in wrong


def _is_torn(call: Call) -> bool:
    return not isinstance(call.value, dict) or is_torn(_saved(call), LONG)


def is_torn(arrived: str, text: str) -> bool:
    """Whether a stretch is missing from a text, or is there twice, that is not made of words. Models keep to words."""
    more = len(text) - len(arrived)
    head, tail = _same(arrived, text), _same(arrived[::-1], text[::-1])
    seams = range(len(arrived) - tail, head + 1)
    return bool(arrived and more and seams) and not any(
        _parts_words(text, seam) and _parts_words(text, seam + more) for seam in seams
    )


def _parts_words(text: str, place: int) -> bool:
    return " " in f" {text} "[place : place + 2]


def _same(one: str, other: str) -> int:
    """How many letters two texts have in common at their beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@probe("cut", "arguments.cut", TURNS)
async def cut_call(talk: Talk) -> None:
    """A call that meets the token limit."""
    for stream in (True, False):
        got = await talk.ask(Ask((_save(LONG),), (SAVE,), stream=stream, most=FEW), "length")
        if not talk.needs_turn("arguments.cut", got):
            continue
        told = got.turn.finish == "length"
        # A server may leave half a call out. Whether there was one is only known of the scripted model.
        if any(_is_cut(call, got.turn) for call in got.turn.calls) or (told and (got.turn.calls or talk.is_demo)):
            talk.judge("arguments.cut", told, f"A turn that was cut in a call ends as {got.turn.finish!r}.", got)
        else:
            talk.unseen("arguments.cut", "no call was cut")


def _is_cut(call: Call, turn: Turn) -> bool:
    """Half a call, or one that was made whole afterwards."""
    at_the_limit = turn.usage is not None and abs(turn.usage.output - FEW) <= 2
    return _is_torn(call) or (LONG.startswith(_saved(call)) and at_the_limit)
