"""A support desk: an agent that looks orders up, refunds small amounts, and files a ticket."""

import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

from toolwire.agent import Agent, AgentError, Server, Tool, ToolCall

SMALL = 50.0
"""Euros that the agent may refund without a person."""


class Ticket(msgspec.Struct):
    """What is left to do about a message of a customer."""

    order: str
    topic: Literal["refund", "delivery", "question"]
    reply: str
    needs_person: bool = False


def approve(tool: Tool, call: ToolCall) -> bool | str:
    """Refunds of small amounts are allowed."""
    if call.arguments.get("euros", 0) <= SMALL:
        return True
    return f"More than {SMALL:g} euros need a person: file the ticket with needs_person."


ORDERS = Server(
    name="orders",
    command=sys.executable,
    args=(str(Path(__file__).with_name("orders_server.py")),),
    start_timeout=120,
    trusted=True,  # it is ours: what it says only reads needs no approval
)

desk = Agent(
    os.environ.get("MODEL", "demo"),
    mcp_servers=[ORDERS],
    instructions="You are the support desk of a shop. Look orders up before you answer. Reply in two sentences.",
    output_type=Ticket,
    approver=approve,
    max_turns=12,
)


def main() -> None:
    """File a ticket for the message on the command line."""
    try:
        result = desk.run_sync(" ".join(sys.argv[1:]))
    except AgentError as error:
        sys.exit(f"no ticket: {error}")
    print(msgspec.json.encode(result.output).decode())
    print(f"{result.turns} turns, {result.usage.total} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
