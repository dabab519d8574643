"""Probes of the Gemini API: what its clients make of a turn before they send it back, its arrays, its token counts."""

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from toolwire.check.apis import AssistantCalls, ProbeRequest, ToolResult, UserMessage
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import BOTH, HELLO, LONG, SUNNY, TWO, probe
from toolwire.check.sessions import BUSY, ProbeSession, describe_failure
from toolwire.check.turns.loose import as_number
from toolwire.check.turns.rule import RequestFacts
from toolwire.check.turns.streams import check_answer
from toolwire.check.turns.turn import ObservedCall


@probe("returned-turn", "history.signature", "history.no-id", "history.chunks")
async def returned_turn(session: ProbeSession) -> None:
    """Two calls, as clients return them: with rewritten signatures, without ids, or in a content for each chunk."""
    first = await session.ask(ProbeRequest((TWO,), BOTH))
    rules = ("history.signature", "history.no-id", "history.chunks")
    tested = [rule for rule in rules if session.require_call(rule, first)]
    if not tested:
        return
    calls = first.turn.calls
    if any(call.signature for call in calls):
        rewritten = [msgspec.structs.replace(call, signature=_rewrite(call.signature)) for call in calls]
        await _return(session, "history.signature", [rewritten])
    else:
        session.skip("history.signature", "no call was signed")
    await _return(session, "history.no-id", [[msgspec.structs.replace(call, id="") for call in calls]])
    if len(calls) > 1:
        await _return(session, "history.chunks", [[call] for call in calls])
    else:
        session.skip("history.chunks", "the turn did not have two calls")


def _rewrite(signature: str) -> str:
    """A signature as the Python SDK writes it: in the alphabet for URLs, with padding."""
    bare = signature.rstrip("=").translate(str.maketrans("+/", "-_"))
    return bare + "=" * (-len(bare) % 4)


async def _return(session: ProbeSession, rule: str, contents: Sequence[Sequence[ObservedCall]]) -> None:
    turns = [AssistantCalls(tuple(calls)) for calls in contents]
    results = [ToolResult(call, SUNNY) for calls in contents for call in calls]
    session.expect_answer(rule, await session.ask(ProbeRequest((TWO, *turns, *results), BOTH)))


@probe("array", "stream.array", "stream.live")
async def array_stream(session: ProbeSession) -> None:
    """A long text, as server-sent events and as a JSON array."""
    user = UserMessage(f'Repeat exactly this text, every letter of it, and nothing else: "{LONG}"')
    request = ProbeRequest((user,), max_tokens=8192)
    if not session.require_turn("stream.array", await session.ask(request)):
        return
    path, sent = session.api.split_body(session.make_body(request))
    answer = await session.post(sent, path.partition("?")[0])
    found, turn, received = check_answer(answer.body, RequestFacts(session.api.name), is_stream=False)
    faults = [str(each) for each in found]
    is_array = answer.status == 200 and "json" in answer.content_type and turn.is_over and received and not faults
    what = answer.content_type if answer.status == 200 else describe_failure(answer)
    detail = f"Without `alt=sse` the answer is {what}; {faults[0] if faults else 'it is no array of chunks'}"
    session.judge_unless_busy("stream.array", bool(is_array), detail, answer)


@probe("token-count", "usage.counted")
async def token_count(session: ProbeSession) -> None:
    """The tokens of a short and of a long request."""
    short, long = [await _count(session, text) for text in (HELLO.text, LONG)]
    if any(400 <= answer.status < 500 or answer.status in BUSY for answer in (short, long)):
        session.skip("usage.counted", describe_failure(long))
        return
    counts = [as_number(answer.fields.get("totalTokens")) or 0 for answer in (short, long)]
    detail = f"A short request has {counts[0]} tokens, and a long one {counts[1]}."
    session.judge("usage.counted", 0 < counts[0] < counts[1], detail, long)


async def _count(session: ProbeSession, text: str) -> Exchange:
    body = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    return await session.post(body, f"/models/{quote(session.endpoint.target.model, safe='/:')}:countTokens")
