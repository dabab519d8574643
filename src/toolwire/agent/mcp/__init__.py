"""Tools of MCP servers. The `mcp` package is an extra. It is imported only when a server is used: that takes 0.7 s."""

from toolwire.agent.mcp.servers import McpTool, Say, Servers, require_package
from toolwire.agent.mcp.settings import BadConfig, Server, read_config

__all__ = ["BadConfig", "McpTool", "Say", "Server", "Servers", "read_config", "require_package"]
