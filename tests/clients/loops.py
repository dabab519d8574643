"""Two turns with a tool between them, for clients of the Responses endpoint."""

from typing import Any

from tests.sdk.turns import turn
from tests.support.frames import call, rs, stream, text
from tests.support.upstream import Asked, Reply

SEAL = "signed by the model"


def signed(id: str) -> bytes:
    """Reasoning that only the model itself can read again."""
    item = {"type": "reasoning", "id": id, "summary": [{"type": "summary_text", "text": "Let me look."}]}
    return stream(
        rs("output_item.added", output_index=0, item={**item, "summary": []}),
        rs("reasoning_summary_text.delta", item_id=id, output_index=0, summary_index=0, delta="Let me "),
        rs("reasoning_summary_text.delta", item_id=id, output_index=0, summary_index=0, delta="look."),
        rs("output_item.done", output_index=0, item={**item, "encrypted_content": SEAL}),
    )


def loop(name: str, tool: str, arguments: str, answer: str) -> list[Reply]:
    """A turn that thinks and calls a tool, and one that answers. Ids are the loop's own, as a server's are."""
    pieces = (arguments[:5], arguments[5:])
    asking = turn(signed(f"rs_{name}"), call(f"call_{name}", tool, *pieces, item=f"fc_{name}", index=1))
    return [asking, turn(text(answer, f"msg_{name}"))]


def types(asked: Asked) -> list[str]:
    """The types of the items that a request has, messages by their role."""
    return [item.get("role") or item["type"] for item in asked.body["input"]]


def item(asked: Asked, type: str) -> dict[str, Any]:
    """The one item of this type."""
    [found] = [item for item in asked.body["input"] if item.get("type") == type]
    return found
