"""Turns of the demo model without a gateway."""

import json
from typing import Any

from toolwire.backends import demo
from toolwire.core.collect import Turn, collect
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.dialects import chat
from toolwire.turns.validate import validate

Json = dict[str, Any]


def function(name: str, about: str = "", required: str | None = None, /, **properties: Any) -> Json:
    """A tool. All properties are required, unless some are named."""
    names = list(properties) if required is None else required.split()
    schema = {"type": "object", "properties": properties, "required": names}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def asking(text: str, model: str = "demo", **fields: Any) -> Request:
    """A request with one prompt."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return chat.decode_request(json.dumps(body).encode())


def converse(request: Request, seed: str = "S") -> demo.Conversation:
    return demo.Conversation(request, seed, validate)


def turn(request: Request, seed: str = "S") -> Turn:
    """What the model makes of it."""
    conversation = converse(request, seed)
    line = Pipeline(FrameReader(), conversation, TurnOrder())
    steps = [step for step in conversation.start().steps if isinstance(step, bytes)]
    return collect([event for step in steps for event in line.feed(step)] + list(line.end()))


def calls(request: Request) -> list[tuple[str, Json]]:
    """The names and arguments of its calls."""
    return [(call.name, json.loads(call.arguments)) for call in turn(request).calls]


def arguments(request: Request) -> list[Json]:
    return [arguments for _, arguments in calls(request)]
