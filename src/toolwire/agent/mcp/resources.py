"""Tools with which a model finds and reads the resources of MCP servers."""

from toolwire.agent.call import ToolError
from toolwire.agent.mcp.remote import Remote
from toolwire.agent.mcp.servers import Servers
from toolwire.agent.registry import FunctionTool, Result, tool


def resource_tools(servers: Servers) -> tuple[FunctionTool, FunctionTool]:
    """One to list resources, one to read them."""

    def found(server: str) -> Remote:
        remote = servers.get(server)
        if remote is None:
            raise ToolError(f"there is no MCP server {server!r}; there are: {', '.join(servers.names)}")
        return remote

    @tool(parallel=True)
    async def list_mcp_resources(server: str) -> Result:
        """List the resources of an MCP server.

        Args:
            server: The name of the server.
        """
        return await found(server).ask(lambda life: life.resources())

    @tool(parallel=True)
    async def read_mcp_resource(server: str, uri: str) -> Result:
        """Read a resource of an MCP server.

        Args:
            server: The name of the server.
            uri: The address of the resource, as list_mcp_resources gives it.
        """
        return await found(server).ask(lambda life: life.read(uri))

    return list_mcp_resources, read_mcp_resource
