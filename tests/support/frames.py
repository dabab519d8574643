"""Small builders for what backends send."""

import json
from typing import Any


def sse(event: dict[str, Any]) -> bytes:
    """One SSE block of a Responses server."""
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def rs(type: str, **fields: Any) -> bytes:
    """One Responses event; the `response.` prefix is added."""
    return sse({"type": f"response.{type}", **fields})


def stream(*events: bytes) -> bytes:
    return b"".join(events)


def created(id: str = "resp_1") -> bytes:
    return rs("created", response={"id": id, "status": "in_progress", "model": "m", "output": []})


def completed(output: list[dict[str, Any]] | None = None, usage: dict[str, Any] | None = None, **fields: Any) -> bytes:
    response: dict[str, Any] = {"id": "resp_1", "status": "completed", "output": output or [], **fields}
    if usage is not None:
        response["usage"] = usage
    return rs("completed", response=response)


def text(words: str, item: str = "msg_1", index: int = 0) -> bytes:
    return rs("output_text.delta", item_id=item, output_index=index, content_index=0, delta=words)


def call_item(id: str, name: str, arguments: str, item: str = "fc_1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": item, "call_id": id, "name": name, "arguments": arguments, **fields}


def call(id: str, name: str, *pieces: str, item: str = "", index: int = 0) -> bytes:
    """A whole streamed call: added, deltas, done, item done."""
    item = item or f"fc_{id}"
    arguments = "".join(pieces)
    return stream(
        rs("output_item.added", output_index=index, item=call_item(id, name, "", item)),
        *(rs("function_call_arguments.delta", item_id=item, output_index=index, delta=piece) for piece in pieces),
        rs("function_call_arguments.done", item_id=item, output_index=index, arguments=arguments),
        rs("output_item.done", output_index=index, item=call_item(id, name, arguments, item)),
    )
