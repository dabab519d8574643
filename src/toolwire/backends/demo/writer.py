"""Writes the events of a Responses stream for one turn of the demo model."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.core import sse
from toolwire.core.raw import Json
from toolwire.core.request import Request, Tool
from toolwire.core.tokens import estimate_tokens

_json = msgspec.json.encode


class DemoWriter:
    """Writes the events of one turn, and keeps its items for the event that ends the stream."""

    def __init__(self, request: Request, seed: str) -> None:
        self._request = request
        self._seed = seed
        self._output: list[Json] = []
        self._chars = 0

    def write_event(self, type: str, **fields: Any) -> bytes:
        """One event of the stream."""
        return sse.write_named(type, _json({"type": type, **fields}))

    def begin(self) -> bytes:
        """The event that opens the stream."""
        return self.write_event("response.created", response=self._make_response("in_progress"))

    def reason(self, text: str) -> Iterator[bytes]:
        """A reasoning item with this summary."""
        whole = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
        yield from self._write_item(
            "rs", whole, "summary", [], "reasoning_summary_text", _split_words(text), summary_index=0
        )

    def say(self, text: str) -> Iterator[bytes]:
        """A message with this text."""
        self._chars += len(text)
        whole = _message({"type": "output_text", "text": text, "annotations": []})
        yield from self._write_item("msg", whole, "content", [], "output_text", _split_words(text), content_index=0)

    def refuse(self, text: str) -> Iterator[bytes]:
        """A message with this refusal."""
        whole = _message({"type": "refusal", "refusal": text})
        yield from self._write_item("msg", whole, "content", [], "refusal", _split_words(text), content_index=0)

    def call(self, tool: Tool, text: str, step: int = 12) -> Iterator[bytes]:
        """A call of a tool with these arguments, or this input, in deltas of `step` characters."""
        is_function = tool.kind == "function"
        prefix, type, field = ("fc", "function", "arguments") if is_function else ("ctc", "custom_tool", "input")
        delta = "function_call_arguments" if is_function else "custom_tool_call_input"
        self._chars += len(text)
        whole = {"type": f"{type}_call", "name": tool.name}
        if tool.namespace:
            whole["namespace"] = tool.namespace
        whole |= {"call_id": f"call_{self._seed}{len(self._output) + 1:02d}", field: text}
        pieces = [text[start : start + step] for start in range(0, len(text), step)]
        yield from self._write_item(prefix, whole, field, "", delta, pieces)

    def complete(self, status: str = "completed", **fields: Any) -> bytes:
        """The event that ends the stream."""
        return self.write_event(f"response.{status}", response={**self._make_response(status), **fields})

    def run_out(self) -> bytes:
        """The event that ends the stream because the tokens are used up."""
        return self.complete("incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[])

    def _write_item(
        self,
        prefix: str,
        whole: Json,
        filled: str,
        empty: object,
        delta: str,
        pieces: list[str],
        **fields: int,
    ) -> Iterator[bytes]:
        """The events of one item: added with its field empty, filled by deltas, done."""
        index = len(self._output)
        item = {"id": f"{prefix}_{self._seed}{index + 1:02d}", **whole}
        self._output.append(item)
        opened = {**item, filled: empty, "status": "in_progress"}
        yield self.write_event("response.output_item.added", output_index=index, item=opened)
        for piece in pieces:
            yield self.write_event(
                f"response.{delta}.delta", item_id=item["id"], output_index=index, delta=piece, **fields
            )
        yield self.write_event("response.output_item.done", output_index=index, item={**item, "status": "completed"})

    def _make_response(self, status: str) -> Json:
        response: Json = {"id": f"resp_{self._seed}", "model": self._request.model, "status": status}
        if status != "in_progress":
            response["output"] = self._output
            response["usage"] = {
                "input_tokens": estimate_tokens(self._request),
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self._chars // 4 + 1,
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        return response


def _message(part: Json) -> Json:
    return {"type": "message", "role": "assistant", "content": [part]}


def _split_words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)
