"""Probes of `tool_choice` and parallel calls."""

import msgspec

from toolwire.check.apis import ProbeRequest
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import BOTH, HELLO, ONE, TWO, probe, probe_both
from toolwire.check.sessions import ProbeSession


@probe_both("choice-none", "choice.none")
async def choice_none(session: ProbeSession, stream: bool) -> None:
    """Calls are forbidden although the model would make one."""
    answer = await session.ask(ProbeRequest((ONE,), BOTH, "none", stream=stream))
    if await _could_break("choice.none", session, answer):
        session.judge("choice.none", not answer.turn.calls, _count(len(answer.turn.calls)), answer)


@probe_both("choice-required", "choice.required")
async def choice_required(session: ProbeSession, stream: bool) -> None:
    """A call is required although the model would make none."""
    answer = await session.ask(ProbeRequest((HELLO,), BOTH, "required", stream=stream))
    if _could_call("choice.required", session, answer):
        session.judge("choice.required", bool(answer.turn.calls), "There is no call.", answer)


@probe_both("choice-named", "choice.named")
async def choice_named(session: ProbeSession, stream: bool) -> None:
    """A call is required to a tool that the model would not choose."""
    answer = await session.ask(ProbeRequest((ONE,), BOTH, named="get_time", stream=stream))
    if _could_call("choice.named", session, answer):
        names = sorted({call.name for call in answer.turn.calls})
        session.judge("choice.named", names == ["get_time"], f"Tools called: {', '.join(names) or 'nothing'}.", answer)


def _could_call(rule: str, session: ProbeSession, answer: Exchange) -> bool:
    """Whether the turn ended normally, so that a missing call is a fault."""
    if not session.require_turn(rule, answer):
        return False
    if not answer.turn.calls and answer.turn.finish in ("length", "filter"):
        session.skip(rule, f"the turn ended before its call: {answer.turn.finish}")
        return False
    return True


@probe_both("one-at-a-time", "choice.parallel")
async def one_at_a_time(session: ProbeSession, stream: bool) -> None:
    """Two calls are asked for, and parallel calls are off."""
    answer = await session.ask(ProbeRequest((TWO,), BOTH, parallel=False, stream=stream))
    if not session.require_call("choice.parallel", answer):
        return
    calls = len(answer.turn.calls)
    if calls > 1 or await session.count_calls(ProbeRequest((TWO,), BOTH)) > 1:
        session.judge("choice.parallel", calls == 1, _count(calls), answer)
    else:
        session.skip("choice.parallel", "the model makes one call anyway")


@probe_both("allowed", "choice.allowed")
async def allowed_tools(session: ProbeSession, stream: bool) -> None:
    """A choice that allows one of two tools, while the prompt asks for the other."""
    more = session.api.make_allowed("get_time")
    answer = await session.ask(ProbeRequest((ONE,), BOTH, stream=stream, more=more))
    if await _could_break("choice.allowed", session, answer):
        others = [call.name for call in answer.turn.calls if call.name != "get_time"]
        session.judge("choice.allowed", not others, f"Tools called: {', '.join(others)}.", answer)


async def _could_break(rule: str, session: ProbeSession, answer: Exchange) -> bool:
    """Whether the model would make a call by itself, so that the choice is tested."""
    if not session.require_turn(rule, answer):
        return False
    if answer.turn.calls or await session.count_calls(ProbeRequest((ONE,), BOTH)):
        return True
    session.skip(rule, "the model makes no call anyway")
    return False


@probe("same", "stream.same")
async def same_turn(session: ProbeSession) -> None:
    """The same forced call, streamed and plain."""
    request = ProbeRequest((ONE,), BOTH, named="get_weather")
    turns = [await session.ask(request), await session.ask(msgspec.structs.replace(request, stream=False))]
    if all(_could_call("stream.same", session, answer) for answer in turns):
        seen = [(answer.turn.finish, sorted({call.name for call in answer.turn.calls})) for answer in turns]
        session.judge("stream.same", seen[0] == seen[1], f"Stream: {seen[0]}, plain answer: {seen[1]}.", turns[1])


def _count(calls: int) -> str:
    return "There is one call." if calls == 1 else f"There are {calls} calls."
