"""Probes of limits: a truncated answer and a long request."""

from toolwire.check.apis import ProbeRequest, UserMessage
from toolwire.check.exchange import Exchange
from toolwire.check.probes.fixtures import FEW, HELLO, LONG, PAGE, PAGES
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.sessions import BUSY, ProbeSession

ENOUGH = 0.66
"""The share of the expected tokens that must have been read."""


@probe("cut-text", "limits.output", TURNS)
async def cut_text(session: ProbeSession) -> None:
    """A text that meets the token limit."""
    user = UserMessage(f'Repeat exactly this text, every letter of it, and nothing else: "{LONG}"')
    for stream in (True, False):
        answer = await session.ask(ProbeRequest((user,), stream=stream, max_tokens=FEW), "short")
        if not session.needs_turn("limits.output", answer):
            continue
        is_reported = answer.turn.finish == "length"
        if is_reported or session.is_demo or _was_cut(answer):
            detail = f"A text of {len(answer.turn.text)} characters that was cut ends as {answer.turn.finish!r}."
            session.judge("limits.output", is_reported, detail, answer)
        else:
            session.not_observed("limits.output", "no text was cut")


def _was_cut(answer: Exchange) -> bool:
    """Whether the text is a part of the requested one, or reached the token limit."""
    text = answer.turn.text.strip().strip('"')
    at_the_limit = answer.turn.usage is not None and abs(answer.turn.usage.output - FEW) <= 2
    return len(text) > FEW and LONG not in text and (text in LONG or at_the_limit)


@probe("long-request", "limits.input")
async def long_request(session: ProbeSession) -> None:
    """Requests of one page and of many: token counts show whether all pages were read."""
    turns: list[Exchange] = []
    for pages in (0, 1, PAGES):
        answer = await session.ask(
            ProbeRequest(
                (UserMessage(" ".join([PAGE] * pages)), HELLO) if pages else (HELLO,), stream=False, max_tokens=FEW
            )
        )
        if pages == PAGES and 400 <= answer.status < 500 and answer.status not in BUSY:
            session.judge("limits.input", True, "", answer)  # it says that this is too long
            return
        if not session.needs_turn("limits.input", answer):
            return
        turns.append(answer)
    none, one, many = (answer.turn.usage.input if answer.turn.usage else 0 for answer in turns)
    if not 0 < none < one:
        session.not_observed("limits.input", "the tokens of the input are not reported, or wrong")
        return
    wanted = none + PAGES * (one - none)
    detail = f"{PAGES} pages are {wanted} tokens, as one of them is {one - none}; {many} were read."
    session.judge("limits.input", many >= ENOUGH * wanted, detail, turns[-1])
