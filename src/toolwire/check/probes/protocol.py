"""Probes of the protocol: disconnects, invalid requests, legacy functions, failures, the list of models."""

import msgspec

from toolwire.check.apis import ProbeRequest, UserMessage
from toolwire.check.endpoint import listed_models
from toolwire.check.exchange import Exchange
from toolwire.check.probes.fixtures import BOTH, CITY, FAR, HELLO, ONE, WEATHER
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.sessions import BUSY, ProbeSession, failure_reason, read_turn
from toolwire.check.turns.loose import Json


@probe("leaving", "stream.disconnect")
async def leaving(session: ProbeSession) -> None:
    """A client that disconnects during a stream, and the next request."""
    left = await session.ask(ProbeRequest((FAR,), BOTH), "slow", leave_after=2)
    if not left.left:
        session.not_observed(
            "stream.disconnect", failure_reason(left) if not left.ok else "the stream was too short to leave it"
        )
        return
    next = await session.ask(ProbeRequest((ONE,), BOTH, stream=False))
    if "Oslo" in f"{next.turn.text}{next.turn.calls}":
        session.judge("stream.disconnect", False, "The next answer is that of the request that was left.", next)
    else:
        session.answered("stream.disconnect", next)


@probe("bad-requests", "errors.status", "errors.form", "errors.fields")
async def bad_requests(session: ProbeSession) -> None:
    """Invalid requests."""
    field = "input" if session.api.name == "responses" else "messages"
    sound = session.body(ProbeRequest((ONE,), (WEATHER,), stream=False))
    bodies: dict[str, bytes] = {
        "no JSON": b'{"model": ',
        f"no {field}": _json({**sound, field: None}),
        f"{field} that are a number": _json({**sound, field: 7}),
        f"{field} that are a number, streamed": _json({**sound, "stream": True, field: 7}),
        "tools that are a text": _json({**sound, "tools": "get_weather"}),
        "a tool without a name": _json({**sound, "tools": [_unnamed_tool(session)]}),
    }
    for name, body in bodies.items():
        session.refused("errors.status", await session.post(body), f"A request with {name}")


@probe("unknown-model", "errors.model", "errors.form", "errors.fields")
async def unknown_model(session: ProbeSession) -> None:
    """A model that is not there."""
    body = session.body(ProbeRequest((ONE,), (WEATHER,), stream=False), "toolwire-check-no-such-model")
    session.refused("errors.model", await session.post(_json(body)), "The request")


@probe("unknown-choice", "errors.choice", "errors.form", "errors.fields")
async def unknown_choice(session: ProbeSession) -> None:
    """A choice of a tool that is not there."""
    body = session.body(ProbeRequest((ONE,), (WEATHER,), named="no_such_tool"))
    session.refused("errors.choice", await session.post(_json(body)), "The request")


def _unnamed_tool(session: ProbeSession) -> Json:
    match session.api.name:
        case "chat":
            return {"type": "function", "function": {"parameters": CITY}}
        case "responses":
            return {"type": "function", "parameters": CITY}
        case _:
            return {"input_schema": CITY}


def _json(value: Json) -> bytes:
    return msgspec.json.encode({name: each for name, each in value.items() if each is not None})


@probe("legacy", "legacy.functions")
async def legacy_functions(session: ProbeSession) -> None:
    """The legacy `functions` fields."""
    if session.api.name != "chat":
        return
    inner = {"name": WEATHER.name, "description": WEATHER.description, "parameters": WEATHER.parameters}
    for stream in (True, False):
        more: Json = {"functions": [inner], "function_call": "auto"}
        answer = await session.post(_json(session.body(ProbeRequest((ONE,), stream=stream, more=more))))
        turn = read_turn(answer)
        if answer.status != 200 or answer.failure or not turn.calls:
            session.not_observed(
                "legacy.functions", "the model called nothing" if turn.is_over else failure_reason(answer)
            )
            continue
        body = answer.body.replace(b" ", b"")
        is_legacy = b'"finish_reason":"function_call"' in body and b'"tool_calls":[' not in body
        session.judge("legacy.functions", is_legacy, "The call or its finish reason are those of `tools`.", answer)


@probe("broken-turn", "stream.failure", TURNS)
async def broken_turn(session: ProbeSession) -> None:
    """A turn that fails in its middle, where the model can be asked for that."""
    if not session.is_demo:
        session.not_observed("stream.failure", "the model cannot be asked to fail")
        return
    for stream in (True, False):
        answer = await session.ask(ProbeRequest((HELLO,), (), stream=stream), "error-middle")
        if 400 <= answer.status < 500:
            session.not_observed("stream.failure", failure_reason(answer))
        elif answer.failure and not session.was_answered_like(answer):
            session.not_observed("stream.failure", "no turn comes whole")
        else:
            is_reported = answer.turn.finish == "failed" or (answer.status >= 500 and not answer.failure)
            session.judge("stream.failure", is_reported, f"A turn that failed in its middle is {_end(answer)}.", answer)
        if answer.status >= 500 and not answer.failure:
            session.check_error(answer)


def _end(answer: Exchange) -> str:
    return f"reported as one that ended: {answer.turn.finish}" if answer.ok else failure_reason(answer)


@probe("words", TURNS)
async def text_answer(session: ProbeSession) -> None:
    """A text answer, with tools declared."""
    for stream in (True, False):
        await session.ask(
            ProbeRequest(
                (UserMessage("Say hello in three words, and call no tool."),), (WEATHER,), "none", stream=stream
            )
        )


@probe("models", "models.listed")
async def model_list(session: ProbeSession) -> None:
    """The list of models."""
    answer = await session.get("/models")
    if answer.status in BUSY:
        session.not_observed("models.listed", failure_reason(answer))
    else:
        detail = f"The answer is {'a list without models' if answer.status == 200 else failure_reason(answer)}."
        session.judge("models.listed", answer.status == 200 and any(listed_models(answer.fields)), detail, answer)
