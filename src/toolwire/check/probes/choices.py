"""What the client chooses about tools."""

import msgspec

from toolwire.check.apis import Ask
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import probe
from toolwire.check.probes.scene import BOTH, HELLO, ONE, TWO
from toolwire.check.talks import Talk
from toolwire.check.turns.loose import Json


@probe("choice-none", "choice.none")
async def choice_none(talk: Talk) -> None:
    """No call is allowed where the model would make one."""
    for stream in (True, False):
        got = await talk.ask(Ask((ONE,), BOTH, "none", stream=stream))
        if not talk.needs_turn("choice.none", got):
            continue
        if got.turn.calls or await talk.calls_made(Ask((ONE,), BOTH)):
            talk.judge("choice.none", not got.turn.calls, f"There are {len(got.turn.calls)} calls.", got)
        else:
            talk.unseen("choice.none", "the model makes no call anyway")


@probe("choice-required", "choice.required")
async def choice_required(talk: Talk) -> None:
    """A call is demanded where the model would make none."""
    for stream in (True, False):
        got = await talk.ask(Ask((HELLO,), BOTH, "required", stream=stream))
        if _was_free("choice.required", talk, got):
            talk.judge("choice.required", bool(got.turn.calls), "There is no call.", got)


@probe("choice-named", "choice.named")
async def choice_named(talk: Talk) -> None:
    """A call is demanded other than the one that the model would make."""
    for stream in (True, False):
        got = await talk.ask(Ask((ONE,), BOTH, named="get_time", stream=stream))
        if _was_free("choice.named", talk, got):
            names = sorted({call.name for call in got.turn.calls})
            talk.judge("choice.named", names == ["get_time"], f"Called was {', '.join(names) or 'nothing'}.", got)


def _was_free(rule: str, talk: Talk, got: Exchange) -> bool:
    """Whether the model could make its call: it may have met its token limit before, or have refused."""
    if not talk.needs_turn(rule, got):
        return False
    if not got.turn.calls and got.turn.finish in ("length", "filter"):
        talk.unseen(rule, f"the turn ended before its call: {got.turn.finish}")
        return False
    return True


@probe("one-at-a-time", "choice.parallel")
async def one_at_a_time(talk: Talk) -> None:
    """Two things are asked for, and parallel calls are off."""
    for stream in (True, False):
        got = await talk.ask(Ask((TWO,), BOTH, parallel=False, stream=stream))
        if not talk.needs_call("choice.parallel", got):
            continue
        calls = len(got.turn.calls)
        if calls > 1 or await talk.calls_made(Ask((TWO,), BOTH)) > 1:
            talk.judge("choice.parallel", calls == 1, f"There are {calls} calls.", got)
        else:
            talk.unseen("choice.parallel", "the model makes one call anyway")


@probe("allowed", "choice.allowed")
async def allowed_tools(talk: Talk) -> None:
    """A choice that allows one of two tools, while the prompt asks for the other."""
    if talk.api.name == "messages":
        return
    chat = talk.api.name == "chat"
    tool: Json = {"type": "function", **({"function": {"name": "get_time"}} if chat else {"name": "get_time"})}
    inner: Json = {"mode": "auto", "tools": [tool]}
    choice: Json = {"type": "allowed_tools", **({"allowed_tools": inner} if chat else inner)}
    for stream in (True, False):
        got = await talk.ask(Ask((ONE,), BOTH, stream=stream, more={"tool_choice": choice}))
        if not talk.needs_turn("choice.allowed", got):
            continue
        others = [call.name for call in got.turn.calls if call.name != "get_time"]
        if got.turn.calls or await talk.calls_made(Ask((ONE,), BOTH)):
            talk.judge("choice.allowed", not others, f"Called was {', '.join(others)}.", got)
        else:
            talk.unseen("choice.allowed", "the model makes no call anyway")


@probe("same", "stream.same")
async def same_turn(talk: Talk) -> None:
    """The same forced call, streamed and plain."""
    ask = Ask((ONE,), BOTH, named="get_weather")
    turns = [await talk.ask(ask), await talk.ask(msgspec.structs.replace(ask, stream=False))]
    if all(_was_free("stream.same", talk, got) for got in turns):
        seen = [(got.turn.finish, sorted({call.name for call in got.turn.calls})) for got in turns]
        talk.judge("stream.same", seen[0] == seen[1], f"Streamed it is {seen[0]}, plain {seen[1]}.", turns[1])
