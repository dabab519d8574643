"""Requests of app-server that nobody here serves, each declined in its own way, so that the turn continues at once."""

from typing import Any

from toolwire.core import jsonrpc
from toolwire.core.jsonrpc import Id

CALL = "item/tool/call"

_ANSWERS: dict[str, Any] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
}


def declined(method: str, id: Id, why: str = "This conversation is over.") -> bytes:
    """The answer to a request of app-server's. A call is answered with a text that its model can read."""
    if method == CALL:
        return jsonrpc.answer(id, failed_call(why))
    if method in _ANSWERS:
        return jsonrpc.answer(id, _ANSWERS[method])
    return jsonrpc.refusal(id, jsonrpc.NO_SUCH_METHOD, f"Toolwire does not serve {method}.")


def failed_call(why: str) -> Any:
    return {"contentItems": [{"type": "inputText", "text": why}], "success": False}
