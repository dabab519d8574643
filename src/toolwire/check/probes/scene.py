"""The tools and the words of the probes."""

from toolwire.check.apis import Tool, User
from toolwire.check.turns.loose import Json

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("get_weather", "Get the weather in a city.", CITY)
TIME = Tool("get_time", "Get the local time in a city.", CITY)
PING = Tool("ping", "Check that the connection works. Takes no arguments.", {"type": "object", "properties": {}})
SAVE = Tool(
    "save_text",
    "Save a text, letter by letter.",
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)

BOTH = (WEATHER, TIME)
ONE = User('Call the tool get_weather for the city "Paris". Do nothing else.')
TWO = User('Call the tool get_weather for the city "Paris" and for the city "Rome", both at once in one turn.')
FAR = User('Call the tool get_weather for the city "Oslo". Do nothing else.')
HELLO = User("Say hello.")
SUNNY = "18 degrees, sunny"
WORD = "quartzite"
REMEMBER = User(
    f'Call the tool get_weather for the city "Paris". Do nothing else. The code word of this conversation is {WORD}: '
    "it stays the same however long we talk, nobody else knows it, and I will ask you for it at the end of the day."
)
"""Longer than any result, so that the tokens tell whether it was read again."""
ODD = "naïve Zürich 東京 🌦 \\path 'q' <b>&amp;"
LONG = " ".join(f"line-{number}" for number in range(700))
PAGE = " ".join(f"page-{number}" for number in range(400))
PAGES = 8
"""How many pages a request has that is too long for a short context."""
FEW = 40
"""Tokens in which no such text can be called for."""
