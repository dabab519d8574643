"""How an endpoint behaves: streamed and plain, towards clients that leave, ask wrongly or ask in the old way."""

import msgspec

from toolwire.check.apis import Ask, User
from toolwire.check.endpoint import listed
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.probes.scene import BOTH, CITY, FAR, HELLO, ONE, WEATHER
from toolwire.check.talks import BUSY, Talk, turn_in, why_not
from toolwire.check.turns.loose import Json


@probe("leaving", "stream.disconnect")
async def leaving(talk: Talk) -> None:
    """A client that leaves in the middle of a stream, and the next request."""
    left = await talk.ask(Ask((FAR,), BOTH), "slow", leave_after=2)
    if not left.left:
        talk.unseen("stream.disconnect", why_not(left) if not left.ok else "the stream was too short to leave it")
        return
    next = await talk.ask(Ask((ONE,), BOTH, stream=False))
    if "Oslo" in f"{next.turn.text}{next.turn.calls}":
        talk.judge("stream.disconnect", False, "The next answer is that of the request that was left.", next)
    else:
        talk.answered("stream.disconnect", next)


@probe("bad-requests", "errors.status", "errors.form", "errors.fields")
async def bad_requests(talk: Talk) -> None:
    """Requests that cannot be understood."""
    field = "input" if talk.api.name == "responses" else "messages"
    sound = talk.body(Ask((ONE,), (WEATHER,), stream=False))
    bodies: dict[str, bytes] = {
        "no JSON": b'{"model": ',
        f"no {field}": _json({**sound, field: None}),
        f"{field} that are a number": _json({**sound, field: 7}),
        f"{field} that are a number, streamed": _json({**sound, "stream": True, field: 7}),
        "tools that are a text": _json({**sound, "tools": "get_weather"}),
        "a tool without a name": _json({**sound, "tools": [_nameless(talk)]}),
    }
    for name, body in bodies.items():
        talk.refused("errors.status", await talk.post(body), f"A request with {name}")


@probe("unknown-model", "errors.model", "errors.form", "errors.fields")
async def unknown_model(talk: Talk) -> None:
    """A model that is not there."""
    body = talk.body(Ask((ONE,), (WEATHER,), stream=False), "toolwire-check-no-such-model")
    talk.refused("errors.model", await talk.post(_json(body)), "The request")


@probe("unknown-choice", "errors.choice", "errors.form", "errors.fields")
async def unknown_choice(talk: Talk) -> None:
    """A choice of a tool that is not there."""
    body = talk.body(Ask((ONE,), (WEATHER,), named="no_such_tool"))
    talk.refused("errors.choice", await talk.post(_json(body)), "The request")


def _nameless(talk: Talk) -> Json:
    match talk.api.name:
        case "chat":
            return {"type": "function", "function": {"parameters": CITY}}
        case "responses":
            return {"type": "function", "parameters": CITY}
        case _:
            return {"input_schema": CITY}


def _json(value: Json) -> bytes:
    return msgspec.json.encode({name: each for name, each in value.items() if each is not None})


@probe("legacy", "legacy.functions")
async def legacy_functions(talk: Talk) -> None:
    """The contract from before tools."""
    if talk.api.name != "chat":
        return
    inner = {"name": WEATHER.name, "description": WEATHER.description, "parameters": WEATHER.parameters}
    for stream in (True, False):
        more: Json = {"functions": [inner], "function_call": "auto"}
        got = await talk.post(_json(talk.body(Ask((ONE,), stream=stream, more=more))))
        turn = turn_in(got)
        if got.status != 200 or got.trouble or not turn.calls:
            talk.unseen("legacy.functions", "the model called nothing" if turn.is_over else why_not(got))
            continue
        said = got.body.replace(b" ", b"")
        told = b'"finish_reason":"function_call"' in said and b'"tool_calls":[' not in said
        talk.judge("legacy.functions", told, "The call or its finish reason are those of `tools`.", got)


@probe("broken-turn", "stream.failure", TURNS)
async def broken_turn(talk: Talk) -> None:
    """A turn that fails in its middle, where the model can be asked for that."""
    if not talk.is_demo:
        talk.unseen("stream.failure", "the model cannot be asked to fail")
        return
    for stream in (True, False):
        got = await talk.ask(Ask((HELLO,), (), stream=stream), "error-middle")
        if 400 <= got.status < 500:
            talk.unseen("stream.failure", why_not(got))
        elif got.trouble and not talk.was_answered_like(got):
            talk.unseen("stream.failure", "no turn comes whole")
        else:
            told = got.turn.finish == "failed" or (got.status >= 500 and not got.trouble)
            talk.judge("stream.failure", told, f"A turn that failed in its middle is {_end(got)}.", got)
        if got.status >= 500 and not got.trouble:
            talk.check_error(got)


def _end(got: Exchange) -> str:
    return f"told as one that ended: {got.turn.finish}" if got.ok else why_not(got)


@probe("words", TURNS)
async def plain_talk(talk: Talk) -> None:
    """An answer in words, with tools declared."""
    for stream in (True, False):
        await talk.ask(Ask((User("Say hello in three words, and call no tool."),), (WEATHER,), "none", stream=stream))


@probe("models", "models.listed")
async def model_list(talk: Talk) -> None:
    """The list of models."""
    got = await talk.get("/models")
    if got.status in BUSY:
        talk.unseen("models.listed", why_not(got))
    else:
        says = f"The answer is {'a list without models' if got.status == 200 else why_not(got)}."
        talk.judge("models.listed", got.status == 200 and any(listed(got.fields)), says, got)
