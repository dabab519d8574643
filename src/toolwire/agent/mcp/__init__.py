"""Tools of MCP servers. The `mcp` package is an extra. Its import takes 0.7 s and waits until a server is used."""

from toolwire.agent.mcp.servers import McpTool, Say, Servers, require_package
from toolwire.agent.mcp.settings import BadConfig, Server, read_config

__all__ = ["BadConfig", "McpTool", "Say", "Server", "Servers", "read_config", "require_package"]
