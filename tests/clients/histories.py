"""The history in a request, whichever kind of server it is written for: calls, results and thoughts, in their order."""

import json
from typing import Any, cast

from tests.clients.servers import Json, kind_of
from tests.support.upstream import Asked


def history(asked: Asked) -> list[Json]:
    return asked.body["input" if kind_of(asked) == "responses" else "messages"]


def parts(content: Any) -> list[Json]:
    """The parts of a content that is not plain text."""
    return cast("list[Json]", content) if isinstance(content, list) else []


def blocks(asked: Asked, type: str) -> list[Json]:
    """All blocks of a type in a Messages history."""
    found = [part for message in history(asked) for part in parts(message["content"])]
    return [part for part in found if part["type"] == type]


def calls(asked: Asked) -> list[tuple[str, str, Any]]:
    """Id, name and arguments of each call."""
    match kind_of(asked):
        case "responses":
            items = [item for item in history(asked) if item["type"] == "function_call"]
            return [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in items]
        case "chat":
            made = [call for message in history(asked) for call in message.get("tool_calls", ())]
            functions = [(call["id"], call["function"]) for call in made]
            return [(id, function["name"], json.loads(function["arguments"])) for id, function in functions]
        case _:
            return [(block["id"], block["name"], block["input"]) for block in blocks(asked, "tool_use")]


def results(asked: Asked) -> list[tuple[str, Any]]:
    """The content of each result, by the id of its call."""
    match kind_of(asked):
        case "responses":
            items = [item for item in history(asked) if item["type"] == "function_call_output"]
            return [(item["call_id"], item["output"]) for item in items]
        case "chat":
            messages = [message for message in history(asked) if message["role"] == "tool"]
            return [(message["tool_call_id"], message["content"]) for message in messages]
        case _:
            return [(block["tool_use_id"], block["content"]) for block in blocks(asked, "tool_result")]


def thoughts(asked: Asked) -> list[Any]:
    """The thoughts as their server is given them."""
    match kind_of(asked):
        case "responses":
            return [item for item in history(asked) if item["type"] == "reasoning"]
        case "chat":
            return [message["reasoning_content"] for message in history(asked) if "reasoning_content" in message]
        case _:
            return [*blocks(asked, "thinking"), *blocks(asked, "redacted_thinking")]
