"""The tools and prompts of the probes."""

from toolwire.check.apis import ProbeTool, UserMessage
from toolwire.check.turns.loose import Json

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
"""Longer than any result, so that token counts show whether it was read again."""
ODD = "naïve Zürich 東京 🌦 \\path 'q' <b>&amp;"
LONG = " ".join(f"line-{number}" for number in range(700))
PAGE = " ".join(f"page-{number}" for number in range(400))
PAGES = 8
"""Pages of a request that is too long for a short context."""
FEW = 40
"""A token limit that is too small for the long text."""
