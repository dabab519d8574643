"""Requests of every dialect with all their fields, and each of those fields with something else in it."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.support.scripts import Name

Json = dict[str, Any]

SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string", "enum": ["a"]}, "list": {"type": "array", "items": {"anyOf": [{}]}}},
    "required": ["q"],
    "additionalProperties": False,
}
_SIMPLE = {"type": "object", "properties": {}}
_FORMAT = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
_FUNCTION = {"name": "find", "description": "Finds.", "parameters": SCHEMA, "strict": True}
_PICTURE = "data:image/png;base64,AA=="

CHAT: Json = {
    "messages": [
        {"role": "system", "content": "Be kind.", "name": "s", "cache_control": {"type": "ephemeral"}},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": _PICTURE, "detail": "low"}},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,AA==", "filename": "a.txt"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        },
        {
            "role": "assistant",
            "content": "Hm.",
            "refusal": None,
            "reasoning_content": "Let me see.",
            "reasoning": "Let me see.",
            "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "find", "arguments": '{"q":"a"}'},
                    "extra_content": {"google": {"thought_signature": "s"}},
                },
                {"id": "c2", "type": "custom", "custom": {"name": "write", "input": "x"}},
            ],
            "audio": {"id": "a"},
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "written"},
        {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}},
        {"role": "function", "name": "find", "content": "found"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"type": "function", "function": _FUNCTION, "cache_control": {"type": "ephemeral"}},
        {
            "type": "custom",
            "custom": {
                "name": "write",
                "description": "Writes.",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a/"}},
            },
        },
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "find"}}]},
    },
    "parallel_tool_calls": True,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "description": "d", "schema": _SIMPLE, "strict": True},
    },
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "temperature": 0.5,
    "top_p": 0.5,
    "max_tokens": 99,
    "max_completion_tokens": 99,
    "stop": ["x"],
    "reasoning_effort": "low",
    "verbosity": "low",
    "service_tier": "auto",
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "metadata": {"a": "b"},
    "n": 1,
    "seed": 1,
    "logit_bias": {"1": 1},
    "logprobs": False,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "store": False,
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {"search_context_size": "low", "user_location": {"type": "approximate", "approximate": {}}},
    "audio": {"voice": "v", "format": "wav"},
    "instructions": "Be kind.",
}
LEGACY: Json = {
    "messages": [{"role": "user", "content": "Go."}],
    "functions": [_FUNCTION],
    "function_call": {"name": "find"},
}
RESPONSES: Json = {
    "input": [
        {"type": "message", "id": "msg_1", "role": "developer", "content": "Be kind.", "status": "completed"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look."},
                {"type": "input_image", "image_url": _PICTURE, "detail": "low", "file_id": None},
                {"type": "input_file", "file_data": "data:text/plain;base64,AA==", "filename": "a.txt"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "x"}],
            "content": [{"type": "reasoning_text", "text": "y"}],
            "encrypted_content": "e",
            "status": "completed",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "Hm.", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "No."},
            ],
            "phase": "commentary",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "find",
            "namespace": "n",
            "arguments": '{"q":"a"}',
            "status": "completed",
        },
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "write", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "found"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "written", "status": "completed"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "toolwire.1.AAAA"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "later"}]},
        {"role": "user", "content": "And now?"},
    ],
    "instructions": "Be kind.",
    "tools": [
        {"type": "function", "name": "find", "description": "Finds.", "parameters": SCHEMA},
        {"type": "function", "name": "open", "parameters": _SIMPLE, "strict": True},
        {"type": "custom", "name": "write", "description": "Writes.", "format": _FORMAT},
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "find", "parameters": _SIMPLE, "strict": False}],
        },
        {"type": "web_search", "filters": {"allowed_domains": ["a"]}, "user_location": {"type": "approximate"}},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "find"}]},
    "parallel_tool_calls": True,
    "text": {
        "format": {"type": "json_schema", "name": "n", "description": "d", "schema": _SIMPLE, "strict": True},
        "verbosity": "low",
    },
    "reasoning": {"effort": "low", "summary": "auto", "generate_summary": None},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "truncation": "disabled",
    "temperature": 0.5,
    "top_p": 0.5,
    "max_output_tokens": 99,
    "max_tool_calls": 9,
    "top_logprobs": 0,
    "service_tier": "auto",
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "previous_response_id": None,
    "conversation": None,
    "prompt": {"id": "p", "variables": {}, "version": "1"},
    "background": False,
    "store": False,
    "n": 1,
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "client_metadata": {"a": "b"},
}
MESSAGES: Json = {
    "max_tokens": 99,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                {"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}, "title": "t"},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                {
                    "type": "search_result",
                    "source": "https://a",
                    "title": "t",
                    "content": [{"type": "text", "text": "x"}],
                    "citations": {"enabled": True},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "Hm.", "citations": None},
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
                {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "a"}, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "found"}, {"type": "tool_reference", "tool_name": "find"}],
                    "is_error": False,
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ],
    "tools": [
        {
            "name": "find",
            "type": "custom",
            "description": "Finds.",
            "input_schema": SCHEMA,
            "strict": False,
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 1},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "stop_sequences": ["x"],
    "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": _SIMPLE}},
    "output_format": {"type": "json_schema", "schema": _SIMPLE},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "container": None,
    "context_management": {"edits": []},
    "mcp_servers": [],
    "thread": None,
    "n": 1,
}

BODIES: dict[str, tuple[Name, Json]] = {
    "chat": ("chat", CHAT),
    "legacy": ("chat", LEGACY),
    "responses": ("responses", RESPONSES),
    "messages": ("messages", MESSAGES),
}

OTHERS: tuple[Any, ...] = (None, True, 0, -1, 1.5, "", "x", [], [None], [[]], {}, {"x": None}, {"type": None})
"""What is put into each field."""


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value inside this one."""
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def changed(body: Json, path: tuple[str | int, ...], value: Any) -> Json:
    """The body with another value at this path."""
    copy = deepcopy(body)
    holder: Any = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return copy


def written(path: tuple[str | int, ...], value: Any) -> str:
    """What was changed, in one line."""
    return ".".join(map(str, path)) + " = " + json.dumps(value)
