"""More than fits: an answer that is cut, and a request that is long."""

from toolwire.check.apis import Ask, User
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.probes.scene import FEW, HELLO, LONG, PAGE, PAGES
from toolwire.check.talks import BUSY, Talk

ENOUGH = 0.66
"""The part of the expected tokens from which on a request counts as read."""


@probe("cut-text", "limits.output", TURNS)
async def cut_text(talk: Talk) -> None:
    """A text that meets the token limit."""
    user = User(f'Repeat exactly this text, every letter of it, and nothing else: "{LONG}"')
    for stream in (True, False):
        got = await talk.ask(Ask((user,), stream=stream, most=FEW), "short")
        if not talk.needs_turn("limits.output", got):
            continue
        told = got.turn.finish == "length"
        if told or talk.is_demo or _was_cut(got):
            says = f"A text of {len(got.turn.text)} letters that was cut ends as {got.turn.finish!r}."
            talk.judge("limits.output", told, says, got)
        else:
            talk.unseen("limits.output", "no text was cut")


def _was_cut(got: Exchange) -> bool:
    """The text is the beginning of what was asked for, or took all tokens that it might."""
    text = got.turn.text.strip().strip('"')
    at_the_limit = got.turn.usage is not None and abs(got.turn.usage.output - FEW) <= 2
    return len(text) > FEW and LONG not in text and (text in LONG or at_the_limit)


@probe("long-request", "limits.input")
async def long_request(talk: Talk) -> None:
    """A request of one page and one of many: their tokens tell whether all pages were read."""
    turns: list[Exchange] = []
    for pages in (0, 1, PAGES):
        got = await talk.ask(
            Ask((User(" ".join([PAGE] * pages)), HELLO) if pages else (HELLO,), stream=False, most=FEW)
        )
        if pages == PAGES and 400 <= got.status < 500 and got.status not in BUSY:
            talk.judge("limits.input", True, "", got)  # it says that this is too long
            return
        if not talk.needs_turn("limits.input", got):
            return
        turns.append(got)
    none, one, many = (got.turn.usage.input if got.turn.usage else 0 for got in turns)
    if not 0 < none < one:
        talk.unseen("limits.input", "the tokens of the input are not told, or not as they are")
        return
    wanted = none + PAGES * (one - none)
    says = f"{PAGES} pages are {wanted} tokens, as one of them is {one - none}; {many} were read."
    talk.judge("limits.input", many >= ENOUGH * wanted, says, turns[-1])
