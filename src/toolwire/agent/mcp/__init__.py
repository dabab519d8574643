"""Tools of MCP servers. The `mcp` package is imported only when a server is needed: that takes 0.7 s."""

from toolwire.agent.mcp.resources import resource_tools
from toolwire.agent.mcp.servers import McpTool, Say, Servers
from toolwire.agent.mcp.settings import BadConfig, Server, read_config

__all__ = ["BadConfig", "McpTool", "Say", "Server", "Servers", "read_config", "resource_tools"]
