"""Toolwire carries LLM tool calls between any client and any model: whole, once, in order."""

from toolwire.aggregator import CallDelta, Ingested, ToolCallAggregator, extract_use_tool_blocks
from toolwire.core.collect import Call
from toolwire.notations.use_tool import to_obsidian_xml

__version__ = "0.1.0"

__all__ = [
    "Call",
    "CallDelta",
    "Ingested",
    "ToolCallAggregator",
    "__version__",
    "extract_use_tool_blocks",
    "to_obsidian_xml",
]
