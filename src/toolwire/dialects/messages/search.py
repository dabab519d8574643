"""A search for tools that the gateway has run, as a server of this dialect shows it.

{"type":"server_tool_use","id":"srvtoolu_1","name":"tool_search_tool_bm25","input":{"query":"mail"}}
{"type":"tool_search_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"tool_search_tool_search_result",…}}
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from toolwire.core.events import RawFrame
from toolwire.core.raw import as_object, to_json
from toolwire.core.request import CallEntry, ResultEntry, SearchOutcome, TextPart, ToolPart
from toolwire.dialects.messages.history import SERVER_ID


def search_frames(call: CallEntry, result: ResultEntry, outcome: SearchOutcome, *, stream: bool) -> list[RawFrame]:
    """The two blocks of a search. In a stream the input of the first comes in a delta, as clients expect it."""
    id, input = f"{SERVER_ID}{call.id}", as_object(call.arguments) or msgspec.Raw(b"{}")
    use: dict[str, Any] = {"type": "server_tool_use", "id": id, "name": call.name, "input": {} if stream else input}
    found = {"type": "tool_search_tool_result", "tool_use_id": id, "content": _content(result, outcome)}
    return [*_block(id, use, bytes(input).decode() if stream else ""), *_block(f"{id}_result", found)]


def _block(item: str, block: dict[str, Any], input: str = "") -> Iterator[RawFrame]:
    yield RawFrame("content_block_start", item, to_json({"content_block": block}), is_unknown=True)
    if input:
        delta = {"type": "input_json_delta", "partial_json": input}
        yield RawFrame("content_block_delta", item, to_json({"delta": delta}))
    yield RawFrame("content_block_stop", item, b"{}")


def _content(result: ResultEntry, outcome: SearchOutcome) -> dict[str, Any]:
    if outcome != "found":
        text = "".join(part.text for part in result.parts if isinstance(part, TextPart))
        code = "execution_time_exceeded" if outcome == "timed_out" else "invalid_tool_input"
        return {"type": "tool_search_tool_result_error", "error_code": code, "error_message": text}
    names = [part.name for part in result.parts if isinstance(part, ToolPart)]
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    return {"type": "tool_search_tool_search_result", "tool_references": references}
