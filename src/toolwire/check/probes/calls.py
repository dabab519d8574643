"""Probes of calls: one, two in parallel, with unusual, long, truncated and no arguments, and in histories."""

import html
from collections.abc import Callable, Sequence

import msgspec

from toolwire.check.apis import AssistantCalls, ProbeRequest, ToolResult, UserMessage
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import (
    BOTH,
    FEW,
    HELLO,
    LONG,
    ODD,
    ONE,
    PING,
    SAVE,
    SUNNY,
    TURNS,
    TWO,
    WEATHER,
    probe,
    probe_both,
)
from toolwire.check.sessions import ProbeSession
from toolwire.check.turns.loose import as_object, as_text, quote
from toolwire.check.turns.turn import ObservedCall


@probe_both("one-call", "history.result", TURNS)
async def one_call(session: ProbeSession, stream: bool) -> None:
    """One call and its result."""
    first = await session.ask(ProbeRequest((ONE,), BOTH, stream=stream))
    if session.require_call("history.result", first):
        results = [ToolResult(call, SUNNY) for call in first.turn.calls]
        await _continue(session, "history.result", ONE, first, results, stream=stream)


async def _continue(
    session: ProbeSession, rule: str, user: UserMessage, first: Exchange, results: Sequence[ToolResult], *, stream: bool
) -> None:
    next = await session.ask(ProbeRequest((user, AssistantCalls(first.turn.calls), *results), BOTH, stream=stream))
    if {*_list_calls(first)} & {*_list_calls(next)}:
        session.skip(rule, "the model made the same call again")
    else:
        session.expect_answer(rule, next)


def _list_calls(answer: Exchange) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer.turn.calls]


@probe_both("parallel", "parallel.calls", "history.results", TURNS)
async def parallel_calls(session: ProbeSession, stream: bool) -> None:
    """Two calls in one turn, and their results in reverse order."""
    first = await session.ask(ProbeRequest((TWO,), BOTH, stream=stream))
    calls = _list_calls(first)
    cities = "".join(arguments.lower() for _, arguments in calls)
    are_whole = all(call.value for call in first.turn.calls)
    are_two = len(calls) > 1 and "paris" in cities and "rome" in cities
    if session.require_call("parallel.calls", first):
        if are_two or not are_whole:
            holds = are_whole and len(set(calls)) == len(calls)
            session.judge("parallel.calls", holds, f"The calls are {quote(calls)}.", first)
        else:
            session.skip("parallel.calls", "the model made one call only, or called for something else")
        if are_two and are_whole:
            results = [ToolResult(call, SUNNY) for call in reversed(first.turn.calls)]
            await _continue(session, "history.results", TWO, first, results, stream=stream)
            return
    session.skip("history.results", "the turn did not have two calls")


@probe_both("no-arguments", "arguments.empty", TURNS)
async def no_arguments(session: ProbeSession, stream: bool) -> None:
    """A tool without parameters."""
    answer = await session.ask(ProbeRequest((UserMessage('Call the tool "ping".'),), (PING,), stream=stream))
    if session.require_call("arguments.empty", answer):
        wrong = [call.arguments for call in answer.turn.calls if not isinstance(call.value, dict)]
        session.judge("arguments.empty", not wrong, f"A call without arguments has {wrong!r} as its arguments.", answer)


@probe_both("unicode", "arguments.unicode")
async def unicode_arguments(session: ProbeSession, stream: bool) -> None:
    """Arguments in every script."""
    await _check_text(session, "arguments.unicode", ODD, _is_mangled, stream=stream)


@probe_both("huge", "arguments.huge", "stream.live")
async def huge_arguments(session: ProbeSession, stream: bool) -> None:
    """Arguments of several kilobytes."""
    await _check_text(session, "arguments.huge", LONG, _is_torn, stream=stream)


async def _check_text(
    session: ProbeSession, rule: str, text: str, is_wrong: Callable[[ObservedCall], bool], *, stream: bool
) -> None:
    answer = await session.ask(
        ProbeRequest((_ask_to_save(text),), (SAVE,), named=SAVE.name, stream=stream, max_tokens=8192)
    )
    if not session.require_call(rule, answer):
        return
    if text in map(_read_saved, answer.turn.calls):
        session.judge(rule, True, "", answer)
    elif answer.turn.finish == "length":
        session.skip(rule, "the turn reached its token limit")
    elif any(map(is_wrong, answer.turn.calls)):
        arrived = quote(answer.turn.calls[0].arguments)
        session.judge(rule, False, f"{len(text)} characters arrived as {arrived}.", answer)
    else:
        session.skip(rule, "the model did not repeat the text")


def _ask_to_save(text: str) -> UserMessage:
    return UserMessage(f'Call the tool save_text with exactly this text, every letter of it: "{text}"')


def _read_saved(call: ObservedCall) -> str:
    return as_text(as_object(call.value).get("text"))


def _is_mangled(call: ObservedCall) -> bool:
    """Whether the text was encoded, escaped or replaced wrongly, which no model does by itself."""
    escaped = msgspec.json.encode(ODD).decode()[1:-1]
    wrong = {
        ODD.encode().decode("latin-1"),
        ODD.encode().decode("cp1252", "replace"),
        *(ODD.encode("ascii", how).decode() for how in ("replace", "ignore", "backslashreplace")),
        *(html.escape(ODD, quote=quote) for quote in (True, False)),
        escaped,
    }
    return "\ufffd" in call.arguments or _read_saved(call) in wrong


def _is_torn(call: ObservedCall) -> bool:
    return not isinstance(call.value, dict) or is_torn(_read_saved(call), LONG)


def is_torn(arrived: str, text: str) -> bool:
    """Whether part of a text is missing or doubled inside a word, where no model would cut."""

    def is_inside_word(position: int) -> bool:
        return " " not in f" {text} "[position : position + 2]

    def count_common(one: str, other: str) -> int:
        pairs = enumerate(zip(one, other, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))

    more = len(text) - len(arrived)
    head, tail = count_common(arrived, text), count_common(arrived[::-1], text[::-1])
    seams = range(len(arrived) - tail, head + 1)
    is_missing = bool(arrived and more and seams)
    return is_missing and all(is_inside_word(seam) or is_inside_word(seam + more) for seam in seams)


@probe_both("cut", "arguments.cut", TURNS)
async def cut_call(session: ProbeSession, stream: bool) -> None:
    """A call that reaches the token limit."""
    answer = await session.ask(ProbeRequest((_ask_to_save(LONG),), (SAVE,), stream=stream, max_tokens=FEW), "length")
    if not session.require_turn("arguments.cut", answer):
        return
    turn = answer.turn
    is_reported = turn.finish == "length"
    is_at_limit = turn.usage is not None and abs(turn.usage.output - FEW) <= 2
    # A server may complete the JSON of a truncated call, or drop the call. Only the demo model is sure to make one.
    is_cut = any(_is_torn(call) or (is_at_limit and LONG.startswith(_read_saved(call))) for call in turn.calls)
    if is_cut or (is_reported and (turn.calls or session.is_demo)):
        detail = f"A turn that was truncated in a call ends as {turn.finish!r}."
        session.judge("arguments.cut", is_reported, detail, answer)
    else:
        session.skip("arguments.cut", "no call was cut")


@probe("failed-tool", "history.error-result")
async def failed_tool(session: ProbeSession) -> None:
    """A result that reports a failed tool. Its id has nine characters because Mistral accepts no others."""
    calls = (ObservedCall("callcheck", "get_weather", '{"city":"Paris"}'),)
    result = ToolResult(calls[0], "Error: the weather service is down", failed=True)
    answer = await session.ask(ProbeRequest((ONE, AssistantCalls(calls), result), BOTH))
    session.expect_answer("history.error-result", answer)


@probe("orphans", "history.orphan-call", "history.orphan-result", "errors.form", "errors.fields")
async def orphans(session: ProbeSession) -> None:
    """Histories of interrupted agents, and shortened histories."""
    calls = (ObservedCall("callchec2", "get_weather", '{"city":"Paris"}'),)
    never_mind = UserMessage("Never mind. Say hello.")
    open_call = await session.ask(ProbeRequest((ONE, AssistantCalls(calls), never_mind), (WEATHER,)))
    session.expect_refusal_or_answer("history.orphan-call", open_call)
    lone = ObservedCall("callchec3", "get_weather", "{}")
    alone = await session.ask(ProbeRequest((ONE, ToolResult(lone, SUNNY), HELLO), (WEATHER,)))
    session.expect_refusal_or_answer("history.orphan-result", alone)
