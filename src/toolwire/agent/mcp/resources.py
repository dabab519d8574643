"""Tools that let a model list and read the resources of MCP servers."""

from toolwire.agent.mcp.servers import Servers
from toolwire.turns.tools.registry import FunctionTool, Result, tool


def resource_tools(servers: Servers) -> tuple[FunctionTool, FunctionTool]:
    """A tool that lists resources and a tool that reads them."""

    @tool(parallel=True)
    async def list_mcp_resources(server: str) -> Result:
        """List the resources of an MCP server.

        Args:
            server: The name of the server.
        """
        return await servers.get(server).ask(lambda connection: connection.resources())

    @tool(parallel=True)
    async def read_mcp_resource(server: str, uri: str) -> Result:
        """Read a resource of an MCP server.

        Args:
            server: The name of the server.
            uri: The address of the resource, as list_mcp_resources gives it.
        """
        return await servers.get(server).ask(lambda connection: connection.read(uri))

    return list_mcp_resources, read_mcp_resource
