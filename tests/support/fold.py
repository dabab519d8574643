"""A chat stream folded the way official clients do it: strings are appended, by index."""

from typing import Any


def fold_chat(frames: list[tuple[str, Any]]) -> dict[str, Any]:
    """The message, finish reason, usage and error that frames add up to, with the rules checked on the way."""
    message: dict[str, Any] = {"role": None, "content": None}
    calls: list[dict[str, Any]] = []
    finishes: list[str] = []
    usage = error = None
    data = [value for kind, value in frames if kind == "data"]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    chunks = [chunk for chunk in data[:-1] if "error" not in chunk]
    error = next((chunk["error"] for chunk in data[:-1] if "error" in chunk), None)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) <= 1
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        if chunk.get("usage"):
            assert chunk["choices"] == []
            usage = chunk["usage"]
            continue
        [choice] = chunk["choices"]
        assert not finishes, "nothing may follow the finish"
        delta = choice["delta"]
        if "role" in delta:
            assert message["role"] is None
            message["role"] = delta["role"]
        else:
            assert message["role"] == "assistant", "the role comes first"
        for key in ("content", "refusal", "reasoning_content", "reasoning"):
            if delta.get(key) is not None:
                message[key] = (message.get(key) or "") + delta[key]
        if delta.get("reasoning_details") is not None:
            message.setdefault("reasoning_details", []).extend(delta["reasoning_details"])
        if "function_call" in delta:
            legacy = message.setdefault("function_call", {"name": "", "arguments": ""})
            for key, value in delta["function_call"].items():
                legacy[key] += value
        for part in delta.get("tool_calls", ()):
            _fold_call(calls, part)
        if choice["finish_reason"] is not None:
            finishes.append(choice["finish_reason"])
    if calls:
        message["tool_calls"] = calls
    assert len(finishes) == (0 if error else 1)
    return {"message": message, "finish": finishes[0] if finishes else None, "usage": usage, "error": error}


def _fold_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part["index"]
    if index == len(calls):
        kind = part["type"]
        assert part["id"]
        assert part[kind]["name"]
        calls.append({"id": part["id"], "type": kind, kind: dict(part[kind])})
        return
    assert index == len(calls) - 1, "calls do not interleave"
    assert set(part) == {"index", calls[index]["type"]}, "id and type are sent once"
    for key, value in part[calls[index]["type"]].items():
        assert key in ("arguments", "input"), "a name is sent once"
        calls[index][calls[index]["type"]][key] += value
