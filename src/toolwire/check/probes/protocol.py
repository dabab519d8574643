"""Probes of the protocol: limits, disconnects, invalid requests, legacy functions, failures, the list of models."""

import msgspec

from toolwire.check.apis import ProbeRequest, UserMessage
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import (
    BOTH,
    CITY,
    FAR,
    FEW,
    HELLO,
    LONG,
    ONE,
    PAGE,
    PAGES,
    TURNS,
    WEATHER,
    probe,
    probe_both,
)
from toolwire.check.sessions import BUSY, ProbeSession, describe_failure, read_turn
from toolwire.check.turns.loose import Json

ENOUGH = 0.66
"""The share of the expected tokens that must have been read."""


@probe_both("cut-text", "limits.output", TURNS)
async def cut_text(session: ProbeSession, stream: bool) -> None:
    """A text that reaches the token limit."""
    user = UserMessage(f'Repeat exactly this text, every letter of it, and nothing else: "{LONG}"')
    answer = await session.ask(ProbeRequest((user,), stream=stream, max_tokens=FEW), "short")
    if not session.require_turn("limits.output", answer):
        return
    is_reported = answer.turn.finish == "length"
    text = answer.turn.text.strip().strip('"')
    is_at_limit = answer.turn.usage is not None and abs(answer.turn.usage.output - FEW) <= 2
    is_cut = len(text) > FEW and LONG not in text and (text in LONG or is_at_limit)
    if is_reported or session.is_demo or is_cut:
        detail = f"A text of {len(answer.turn.text)} characters that was cut ends as {answer.turn.finish!r}."
        session.judge("limits.output", is_reported, detail, answer)
    else:
        session.skip("limits.output", "no text was cut")


@probe("long-request", "limits.input")
async def long_request(session: ProbeSession) -> None:
    """Requests of one page and of many: token counts show whether all pages were read."""
    turns: list[Exchange] = []
    for pages in (0, 1, PAGES):
        users = (UserMessage(" ".join([PAGE] * pages)), HELLO) if pages else (HELLO,)
        answer = await session.ask(ProbeRequest(users, stream=False, max_tokens=FEW))
        if pages == PAGES and 400 <= answer.status < 500 and answer.status not in BUSY:
            session.judge("limits.input", True, "", answer)  # it reports that the request is too long
            return
        if not session.require_turn("limits.input", answer):
            return
        turns.append(answer)
    none, one, many = (answer.turn.usage.input if answer.turn.usage else 0 for answer in turns)
    if not 0 < none < one:
        session.skip("limits.input", "the input tokens are not reported, or wrong")
        return
    wanted = none + PAGES * (one - none)
    detail = f"{PAGES} pages have {wanted} tokens if each has {one - none}; {many} were read."
    session.judge("limits.input", many >= ENOUGH * wanted, detail, turns[-1])


@probe("leaving", "stream.disconnect")
async def leaving(session: ProbeSession) -> None:
    """A client that disconnects during a stream, and the next request."""
    left = await session.ask(ProbeRequest((FAR,), BOTH), "slow", leave_after=2)
    if not left.left:
        reason = "the stream was too short to disconnect in it" if left.ok else describe_failure(left)
        session.skip("stream.disconnect", reason)
        return
    next = await session.ask(ProbeRequest((ONE,), BOTH, stream=False))
    if "Oslo" in f"{next.turn.text}{next.turn.calls}":
        session.judge("stream.disconnect", False, "The next answer is that of the abandoned request.", next)
    else:
        session.expect_answer("stream.disconnect", next)


@probe("bad-requests", "errors.status", "errors.form", "errors.fields")
async def bad_requests(session: ProbeSession) -> None:
    """Invalid requests."""
    field = session.api.history_field
    sound = session.make_body(ProbeRequest((ONE,), (WEATHER,), stream=False))
    bodies: dict[str, Json | bytes] = {
        "invalid JSON": b'{"model": ',
        f"no {field}": {name: value for name, value in sound.items() if name != field},
        f"a number as {field}": {**sound, field: 7},
        f"a number as {field}, streamed": {**sound, "stream": True, field: 7},
        "a text as tools": {**sound, "tools": "get_weather"},
        "a tool without a name": {**sound, "tools": [session.api.make_function({"parameters": CITY})]},
    }
    for name, body in bodies.items():
        session.expect_refusal("errors.status", await session.post(body), f"A request with {name}")


@probe("unknown-model", "errors.model", "errors.form", "errors.fields")
async def unknown_model(session: ProbeSession) -> None:
    """A model that does not exist."""
    body = session.make_body(ProbeRequest((ONE,), (WEATHER,), stream=False), "toolwire-check-no-such-model")
    session.expect_refusal("errors.model", await session.post(body), "The request")


@probe("unknown-choice", "errors.choice", "errors.form", "errors.fields")
async def unknown_choice(session: ProbeSession) -> None:
    """A choice of a tool that is not declared."""
    body = session.make_body(ProbeRequest((ONE,), (WEATHER,), named="no_such_tool"))
    session.expect_refusal("errors.choice", await session.post(body), "The request")


@probe_both("legacy", "legacy.functions")
async def legacy_functions(session: ProbeSession, stream: bool) -> None:
    """The legacy `functions` fields."""
    more: Json = {"functions": [msgspec.structs.asdict(WEATHER)], "function_call": "auto"}
    answer = await session.post(session.make_body(ProbeRequest((ONE,), stream=stream, more=more)))
    turn = read_turn(answer)
    if answer.status != 200 or answer.failure or not turn.calls:
        reason = "the model called nothing" if turn.is_over else describe_failure(answer)
        session.skip("legacy.functions", reason)
        return
    body = answer.body.replace(b" ", b"")
    is_legacy = b'"finish_reason":"function_call"' in body and b'"tool_calls":[' not in body
    session.judge("legacy.functions", is_legacy, "The call or its finish reason is in the form of `tools`.", answer)


@probe_both("broken-turn", "stream.failure", TURNS)
async def broken_turn(session: ProbeSession, stream: bool) -> None:
    """A turn that fails halfway; only the demo model can be asked for one."""
    if not session.is_demo:
        session.skip("stream.failure", "the model cannot be asked to fail")
        return
    judge_failure(session, await session.ask(ProbeRequest((HELLO,), (), stream=stream), "error-middle"))


def judge_failure(session: ProbeSession, answer: Exchange) -> None:
    """Judge whether the answer reports the failure of a turn."""
    has_refused = answer.status >= 500 and not answer.failure
    if 400 <= answer.status < 500:
        session.skip("stream.failure", describe_failure(answer))
    elif answer.failure and not session.has_answered_like(answer):
        session.skip("stream.failure", "no turn is complete")
    else:
        end = f"reported as finished: {answer.turn.finish}" if answer.ok else describe_failure(answer)
        is_reported = answer.turn.finish == "failed" or has_refused
        session.judge("stream.failure", is_reported, f"A turn that failed halfway is {end}.", answer)
    if has_refused:
        session.check_error(answer)


@probe_both("words", TURNS)
async def text_answer(session: ProbeSession, stream: bool) -> None:
    """A text answer, with tools declared."""
    words = UserMessage("Say hello in three words, and call no tool.")
    await session.ask(ProbeRequest((words,), (WEATHER,), "none", stream=stream))


@probe("models", "models.listed")
async def model_list(session: ProbeSession) -> None:
    """The list of models."""
    answer = await session.get("/models")
    detail = f"The answer is {'a list without models' if answer.status == 200 else describe_failure(answer)}."
    is_listed = answer.status == 200 and any(session.api.list_models(answer.fields))
    session.judge_unless_busy("models.listed", is_listed, detail, answer)
