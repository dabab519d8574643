"""A model that does as it is told: it calls the tool it may call, answers in the form that is asked for, and says so else.

What it fills a form with it takes from the question: the number in it, or the name in quotes. It is as strict about its
history as the servers it stands for, and refuses a request that one of them would refuse.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.clients.histories import calls, history, parts, results
from tests.clients.servers import Json, Refusal, Turn, Use, Words, kind_of
from tests.support.upstream import Asked

PARTS = {
    "responses": {"input_text", "input_image", "input_file", "input_audio", "output_text", "refusal"},
    "chat": {"text", "image_url", "file", "input_audio", "refusal"},
    "messages": {"text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"},
}


def oblige(asked: Asked) -> Turn:
    fault = next(faults(asked), None)
    if fault is not None:
        return Refusal(400, "invalid_request_error", fault)
    if is_answered(asked):
        return [Words(f"The tool says {results(asked)[-1][1]}.")]
    tool = chosen_tool(asked)
    if tool is not None:
        return [Use(f"call_{len(calls(asked))}", tool["name"], json.dumps(filled(tool["schema"], question(asked))))]
    form = wanted_form(asked)
    return [Words("Hello, here I am." if form is None else json.dumps(form))]


# What servers refuse


def faults(asked: Asked) -> Iterator[str]:
    made, answered = [id for id, _, _ in calls(asked)], [id for id, _ in results(asked)]
    if made != answered:
        yield f"The calls {made} have the results {answered}."
    if not history(asked):
        yield "There is no message."
    shown = [part for entry in history(asked) for part in parts(entry.get("content", entry.get("output")))]
    unknown = {part["type"] for part in shown} - PARTS[kind_of(asked)]
    if unknown:
        yield f"Nobody knows parts of the types {unknown}."
    if kind_of(asked) == "messages" and "max_tokens" not in asked.body:
        yield "There is no max_tokens."


# What is asked


def is_answered(asked: Asked) -> bool:
    """Whether the last word was a tool's."""
    last = history(asked)[-1]
    if kind_of(asked) == "messages":
        return [part["type"] for part in parts(last["content"])][-1:] == ["tool_result"]
    return last.get("type") == "function_call_output" or last.get("role") == "tool"


def question(asked: Asked) -> str:
    """All text of the user's last message."""
    content = [entry["content"] for entry in history(asked) if entry.get("role") == "user"][-1]
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def chosen_tool(asked: Asked) -> Json | None:
    """The tool that must be called, or else the first that may be."""
    tools = [declared(tool) for tool in asked.body.get("tools", ())]
    choice: Any = asked.body.get("tool_choice") or "auto"
    if choice in ("none", {"type": "none"}):
        return None
    named = "" if isinstance(choice, str) else choice.get("function", choice).get("name", "")
    return next((tool for tool in tools if named in ("", tool["name"])), None)


def declared(tool: Json) -> Json:
    function = tool.get("function", tool)
    return {"name": function["name"], "schema": function.get("parameters", function.get("input_schema"))}


def wanted_form(asked: Asked) -> Any:
    """An answer in the form that is asked for, if one is."""
    body = asked.body
    format = {
        "responses": body.get("text", {}).get("format"),
        "chat": body.get("response_format"),
        "messages": body.get("output_config", {}).get("format"),
    }[kind_of(asked)]
    if format is None or format["type"] == "text":
        return None if "one JSON object" not in str(body.get("system")) else named_keys(asked)
    if format["type"] == "json_object":
        return named_keys(asked)
    return filled(format.get("schema") or format["json_schema"]["schema"], question(asked))


def named_keys(asked: Asked) -> Json:
    """JSON mode has no schema: the keys are those that the question puts in quotes."""
    return dict.fromkeys(re.findall(r"'(\w+)'", question(asked)), "cats")


# How a form is filled


def filled(schema: Json, about: str) -> Any:
    if "anyOf" in schema:
        return filled(schema["anyOf"][0], about)
    match schema.get("type"):
        case "object":
            return {name: filled(each, about) for name, each in schema.get("properties", {}).items()}
        case "integer" | "number":
            return int(found[0]) if (found := re.findall(r"\d+", about)) else 1
        case "array":
            return [filled(schema.get("items", {}), about)]
        case "boolean":
            return True
        case _:
            return found[0] if (found := re.findall(r"'([^']+)'", about)) else about
