"""A tool loop in thirty lines: one completion after the other, until the model calls no more tools.

    python tool_loop.py "What is the weather in Paris?"
    MODEL=qwen3-coder python tool_loop.py "What is the weather in Paris?"

Nothing else has to run: the models are those of your Toolwire settings and of the environment, and `demo`.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from toolwire import completion

MODEL = os.environ.get("MODEL", "demo")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def get_weather(city: str) -> str:
    return f"18 degrees in {city}"


def answer(prompt: str) -> str:
    """The model's last words."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": prompt}]
    while True:
        turn = completion(MODEL, messages, tools=TOOLS)
        for note in turn["toolwire"]["notes"]:
            print("note:", note["code"], note.get("subject", ""), file=sys.stderr)
        message = turn["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            result = get_weather(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    print(answer(" ".join(sys.argv[1:]) or "What is the weather in Paris?"))
