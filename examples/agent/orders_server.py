"""An MCP server with the orders of a shop, over standard input and output."""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel


class Order(BaseModel):
    """An order of a customer."""

    number: str
    item: str
    euros: float
    refunded: float = 0


ORDERS = {
    "A17": Order(number="A17", item="teapot", euros=32),
    "B42": Order(number="B42", item="bicycle", euros=890),
}
server = MCPServer("orders", instructions="Order numbers are a letter and two digits.")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find_order(number: str) -> Order:
    """Find an order by its number."""
    if number not in ORDERS:
        raise ToolError(f"There is no order {number}.")
    return ORDERS[number]


@server.tool()
def refund(number: str, euros: float) -> Order:
    """Pay back a part of an order, or all of it."""
    order = find_order(number)
    if euros > order.euros - order.refunded:
        raise ToolError(f"Of order {number} only {order.euros - order.refunded} euros are left.")
    ORDERS[number] = order.model_copy(update={"refunded": order.refunded + euros})
    return ORDERS[number]


if __name__ == "__main__":
    server.run("stdio")
