"""An MCP server over stdin and stdout with 60 tools, in plain JSON-RPC: `bird_0` … `bird_58`, and `count_herons`."""

import json
import sys
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "The name of a lake, a river or a marsh, as the map has it."},
        "month": {"type": "integer", "description": "The month of the year, from 1 for January to 12 for December."},
        "observer": {"type": "string", "description": "Whose observations count; those of all observers if empty."},
    },
    "required": ["place"],
}
TEXT = (
    "Looks up the entry of bird number {} in the register of the county, with its habitat, its calls and its ringing."
)
TOOLS: list[dict[str, Any]] = [
    *({"name": f"bird_{n}", "description": TEXT.format(n), "inputSchema": SCHEMA} for n in range(59)),
    {"name": "count_herons", "description": "Counts the herons at a place.", "inputSchema": SCHEMA},
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "shed", "version": "1"}
            version = params.get("protocolVersion", "2025-06-18")
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            place = params.get("arguments", {}).get("place", "nowhere")
            return {"content": [{"type": "text", "text": f"{params['name']}: 17 at {place}"}]}
        case _:
            return {}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            result = answer(request["method"], request.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
