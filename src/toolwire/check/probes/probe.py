"""What a probe is, and the tools and prompts that probes use."""

from collections.abc import Awaitable, Callable

import msgspec

from toolwire.check.apis import ProbeTool, UserMessage
from toolwire.check.rules import RULES, is_applicable
from toolwire.check.sessions import ProbeSession
from toolwire.check.turns.loose import Json
from toolwire.core.events import Dialect

TURNS = "*"
"""Stands for all rules that a single turn can break."""


class Probe(msgspec.Struct, frozen=True):
    """One short conversation, and the rules that it tests."""

    name: str
    rules: tuple[str, ...]
    run: Callable[[ProbeSession], Awaitable[None]]

    def is_for(self, api: Dialect) -> bool:
        """Whether it can be run on an API: its first rule applies there."""
        return self.rules[0] == TURNS or is_applicable(RULES[self.rules[0]], api)


def probe(name: str, *rules: str) -> Callable[[Callable[[ProbeSession], Awaitable[None]]], Probe]:
    """Decorator that turns a function into a probe."""
    return lambda run: Probe(name, rules, run)


def probe_both(name: str, *rules: str) -> Callable[[Callable[[ProbeSession, bool], Awaitable[None]]], Probe]:
    """Decorator that turns a function into a probe that calls it twice: for a stream and for a plain answer."""

    def decorate(run: Callable[[ProbeSession, bool], Awaitable[None]]) -> Probe:
        async def run_both(session: ProbeSession) -> None:
            for stream in (True, False):
                await run(session, stream)

        return Probe(name, rules, run_both)

    return decorate


CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ProbeTool("get_weather", "Get the weather in a city.", CITY)
TIME = ProbeTool("get_time", "Get the local time in a city.", CITY)
PING = ProbeTool("ping", "Check that the connection works. Takes no arguments.", {"type": "object", "properties": {}})
SAVE = ProbeTool(
    "save_text",
    "Save a text, letter by letter.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)

BOTH = (WEATHER, TIME)
ONE = UserMessage('Call the tool get_weather for the city "Paris". Do nothing else.')
TWO = UserMessage('Call the tool get_weather for the city "Paris" and for the city "Rome", both at once in one turn.')
FAR = UserMessage('Call the tool get_weather for the city "Oslo". Do nothing else.')
HELLO = UserMessage("Say hello.")
SUNNY = "18 degrees, sunny"
WORD = "quartzite"
REMEMBER = UserMessage(
    f'Call the tool get_weather for the city "Paris". Do nothing else. The code word of this conversation is {WORD}: '
    "it stays the same however long we talk, nobody else knows it, and I will ask you for it at the end of the day."
)
"""Longer than any result, so that token counts show whether the model read it again."""
ODD = "naïve Zürich 東京 🌦 \\path 'q' <b>&amp;"
LONG = " ".join(f"line-{number}" for number in range(700))
PAGE = " ".join(f"page-{number}" for number in range(400))
PAGES = 8
"""Pages of a request that is too long for a short context."""
FEW = 40
"""A token limit that is too small for the long text."""
