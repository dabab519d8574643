"""What the real services refuse: one pure function for each kind of backend, from a request to the reasons against it.

Every reason reads `rule: sentence`. The rules are those that the services answer with a 400, beyond the shape of the
body, which `shapes.request_errors` judges.
"""

import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.support.scripts import Name
from tests.support.shapes import request_errors

Json = dict[str, Any]
Issued = Mapping[str, str]
"""The signatures a service has issued, with the texts they signature."""

NAME_64 = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME_128 = re.compile(r"[a-zA-Z0-9_-]{1,128}")
"""OpenAI's document says so of Responses too, but Open Responses says 64, and that is what servers keep to."""
MESSAGES_ID = re.compile(r"[a-zA-Z0-9_-]+")
CHAT_ID_LENGTH = 40
RESPONSES_ID_LENGTH = 64
LEAST_OUTPUT = 16
"""The fewest output tokens that the Responses API takes as a limit."""


def refusals(kind: Name, body: Json, issued: Issued) -> list[str]:
    """All reasons against a request, and what the published types say against its shape."""
    shape = _without_reasoning(body) if kind == "chat" else body
    faults = request_errors(kind, shape) if kind != "gemini" else ()  # it has no published schema
    return [*RULES[kind](body, issued), *(f"shape: {fault}" for fault in faults)]


def _without_reasoning(body: Json) -> Json:
    """A chat request without the field that its service writes, and takes back, beyond the published types."""
    bare = [{name: message[name] for name in message if name != "reasoning_content"} for message in body["messages"]]
    return {**body, "messages": bare}


def _repeated(values: Iterable[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def _parts(content: Any) -> list[Json]:
    """The parts of what may be text, which has none."""
    return [] if content is None or isinstance(content, str) else content


# Chat


def refusals_of_chat(body: Json, issued: Issued | None = None) -> list[str]:
    """The reasons of a Chat Completions service. It signatures nothing, so it has issued nothing."""
    names = [tool[tool["type"]]["name"] for tool in body.get("tools", ())]
    return [
        *_tool_fields("chat", body, names),
        *_schemas([tool[tool["type"]] for tool in body.get("tools", ())], "parameters"),
        *_names(names, NAME_64),
        *_chat_options(body),
        *(reason for place, message in enumerate(body["messages"]) for reason in _chat_message(place, message)),
        *_chat_pairs(body["messages"]),
    ]


def _schemas(tools: list[Json], field: str) -> Iterator[str]:
    """What cannot be the schema of a tool."""
    for tool in tools:
        if field in tool and not isinstance(tool[field], dict):
            yield f"schema: {tool['name']!r} has {tool[field]!r} for its {field}."


def _tool_fields(kind: Name, body: Json, names: list[str]) -> Iterator[str]:
    """What must not be there without tools, and the name that a choice gives."""
    if body.get("tools") == []:
        yield "tools: the list is empty."
    for field in ("tool_choice", "parallel_tool_calls"):
        # Responses takes the flag alone: it is part of every response object.
        if (
            body.get(field) is not None
            and not body.get("tools")
            and (kind, field) != ("responses", "parallel_tool_calls")
        ):
            yield f"tools: {field} is only allowed when tools are given."
    choice: Any = body.get("tool_choice") or ""
    named = "" if isinstance(choice, str) else choice.get("name") or choice.get("function", {}).get("name")
    if named and named not in names:
        yield f"tools: tool_choice names {named!r}, which is not declared."


def _names(names: list[str], allowed: re.Pattern[str]) -> Iterator[str]:
    for name in names:
        if not allowed.fullmatch(name):
            yield f"name: a tool is called {name!r}."
    for name in _repeated(names):
        yield f"name: two tools are called {name!r}."


def _chat_options(body: Json) -> Iterator[str]:
    if "stream_options" in body and not body.get("stream"):
        yield "stream-options: they are only allowed when the request streams."
    if len(body.get("stop") or ()) > 4 and isinstance(body["stop"], list):
        yield "stop: there are more than four stop sequences."
    if not 0 <= (body.get("temperature") or 0) <= 2:
        yield "temperature: it is not between 0 and 2."


def _chat_message(place: int, message: Json) -> Iterator[str]:
    where = f"messages[{place}]"
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls")
    parts = _parts(content)
    if calls == []:
        yield f"calls: {where}.tool_calls is empty."
    if role == "assistant" and content is None and not calls and message.get("refusal") is None:
        yield f"content: {where} has neither content nor calls."
    if role != "assistant" and content is None:
        yield f"content: {where} has no content."
    if role == "tool" and any(part["type"] != "text" for part in parts):
        yield f"content: {where} is a result with more than text."
    for call in calls or ():
        yield from _chat_call(where, call)


def _chat_call(where: str, call: Json) -> Iterator[str]:
    if not 0 < len(call["id"]) <= CHAT_ID_LENGTH:
        yield f"id: {where} has the id {call['id']!r}, longer than {CHAT_ID_LENGTH}."
    inner = call[call["type"]]
    if not NAME_64.fullmatch(inner["name"]):
        yield f"name: {where} calls {inner['name']!r}."
    if not isinstance(inner.get("arguments", inner.get("input")), str):
        yield f"arguments: {where} has arguments that are no string."


def _chat_pairs(messages: list[Json]) -> Iterator[str]:
    """Results follow at once on the message with their calls, all of them, and nothing else is a result."""
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"pairs: messages[{place}] answers no call of the message before it."
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"pairs: no result for {waiting} before messages[{place}]."
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if _repeated(waiting):
            yield f"pairs: messages[{place}] has an id twice."
    if waiting:
        yield f"pairs: no result for {waiting} at the end."


# Responses

OWNERS = {"function_call": "fc_", "custom_tool_call": "ctc_", "reasoning": "rs_", "message": "msg_"}
OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
OF_THE_MODEL = ("reasoning", "function_call", "custom_tool_call", "message")


def refusals_of_responses(body: Json, issued: Issued | None = None) -> list[str]:
    """The reasons of a Responses service that stores nothing for us."""
    items: list[Json] = [{"type": "message", **item} for item in _parts(body["input"])]
    added = [tool for item in items if item["type"] == "additional_tools" for tool in item["tools"]]
    groups = [tool["tools"] for tool in (*body.get("tools", ()), *added) if "tools" in tool]
    groups.append([tool for tool in (*body.get("tools", ()), *added) if "tools" not in tool])
    flat = [tool for group in groups for tool in group]
    named = [[tool["name"] for tool in group if tool["type"] in ("function", "custom")] for group in groups]
    names = [name for group in named for name in group]
    return [
        *_tool_fields("responses", body if not added else {**body, "tools": [*body.get("tools", added)]}, names),
        *_schemas(flat, "parameters"),
        *(reason for group in named for reason in _names(group, NAME_64)),
        *_responses_options(body),
        *(reason for place, item in enumerate(items) for reason in _responses_item(place, item)),
        *_responses_pairs(items, chained=bool(body.get("previous_response_id"))),
        *_responses_thoughts(items, {} if issued is None else issued),
    ]


def _responses_options(body: Json) -> Iterator[str]:
    if body["input"] in ([], ""):
        yield "input: it is empty."
    limit = body.get("max_output_tokens")
    if limit is not None and limit < LEAST_OUTPUT:
        yield f"limit: max_output_tokens is {limit}, below {LEAST_OUTPUT}."
    if not 0 <= (body.get("temperature") or 0) <= 2:
        yield "temperature: it is not between 0 and 2."


def _responses_item(place: int, item: Json) -> Iterator[str]:
    where, id = f"input[{place}]", item.get("id")
    prefix = OWNERS.get(item["type"])
    if id is not None and prefix and not (id.startswith(prefix) and len(id) <= RESPONSES_ID_LENGTH):
        yield f"item-id: {where} is a {item['type']} with the id {id!r}."
    if "call_id" in item and not 0 < len(item["call_id"]) <= RESPONSES_ID_LENGTH:
        yield f"id: {where} has the call id {item['call_id']!r}, longer than {RESPONSES_ID_LENGTH}."
    if "name" in item and not NAME_64.fullmatch(item["name"]):
        yield f"name: {where} calls {item['name']!r}."
    if item["type"] == "message":
        own = ("output_text", "refusal") if item["role"] == "assistant" else ("input_text", "input_image", "input_file")
        for part in _parts(item["content"]):
            if part["type"] not in own:
                yield f"content: {where} of role {item['role']} holds {part['type']!r}."


def _responses_pairs(items: list[Json], *, chained: bool) -> Iterator[str]:
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for place, item in enumerate(items):
        id = item.get("call_id", "")
        if item["type"] in OUTPUTS.values():
            if id in calls and id not in answered:
                yield f"pairs: input[{place}] has the call id {id!r} of another call."
            answered.discard(id)
            calls[id] = item["type"]
        elif item["type"] in OUTPUTS:
            if not chained and calls.get(id) != OUTPUTS[item["type"]]:
                yield f"pairs: No tool call found for input[{place}] with call_id {id}."
            answered.add(id)
    for id in calls:
        if id not in answered:
            yield f"pairs: No tool output found for function call {id}."
    for id in _repeated(item["id"] for item in items if item.get("id")):
        yield f"item-id: two items have the id {id!r}."


def _responses_thoughts(items: list[Json], issued: Issued) -> Iterator[str]:
    for place, item in enumerate(items):
        if item["type"] != "reasoning":
            continue
        signature = item.get("encrypted_content")
        if not signature:
            yield f"thoughts: input[{place}] has no encrypted content and is stored nowhere."
        elif signature not in issued:
            yield f"thoughts: the encrypted content of input[{place}] could not be verified."
        following = items[place + 1] if place + 1 < len(items) else {"type": "nothing"}
        by_model = following["type"] in OF_THE_MODEL and following.get("role", "assistant") == "assistant"
        if not by_model:
            yield f"thoughts: input[{place}] was provided without its required following item."


# Messages


def refusals_of_messages(body: Json, issued: Issued | None = None) -> list[str]:
    """The reasons of a Messages service."""
    messages = [{**message, "content": _blocks(message["content"])} for message in body["messages"]]
    names = [tool["name"] for tool in body.get("tools", ()) if "input_schema" in tool]
    if nulls := [*_schemas(body.get("tools", []), "input_schema")]:
        return nulls
    return [
        *_names(names, NAME_128),
        *_messages_options(body, names),
        *_messages_schemas(body),
        *_thinking_options(body),
        *_messages_roles(messages),
        *(reason for place, message in enumerate(messages) for reason in _messages_content(place, message)),
        *_messages_pairs(messages),
        *_messages_thoughts(messages, {} if issued is None else issued, body.get("thinking") or {}),
        *_tools_for_history(body, messages),
    ]


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _messages_options(body: Json, names: list[str]) -> Iterator[str]:
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 1:
        yield f"limit: max_tokens is {body.get('max_tokens')!r}."
    choice = body.get("tool_choice")
    if choice is not None and not body.get("tools"):
        yield "tools: tool_choice is only allowed when tools are given."
    if choice is not None and choice["type"] == "tool" and choice["name"] not in names:
        yield f"tools: tool_choice names {choice['name']!r}, which is not declared."
    if not 0 <= (body.get("temperature") or 0) <= 1:
        yield "temperature: it is not between 0 and 1."
    for block in _blocks(body.get("system") or []):
        if not block["text"].strip():
            yield "empty-text: a block of the system prompt has no text."
    if json.dumps(body).count('"cache_control": {') > 4:
        yield "cache: there are more than four cache markers."


def _messages_schemas(body: Json) -> Iterator[str]:
    for tool in body.get("tools", ()):
        schema = tool.get("input_schema", {"type": "object"})
        if schema.get("type") != "object" or {"anyOf", "oneOf", "allOf"} & set(schema):
            yield f"schema: the input of {tool['name']!r} is no plain object."


def _thinking_options(body: Json) -> Iterator[str]:
    thinking: Json = body.get("thinking") or {}
    if thinking.get("type") not in ("enabled", "adaptive"):
        return
    if body.get("temperature") not in (None, 1):
        yield "thinking: temperature may only be 1 when thinking is enabled."
    if (body.get("top_p") or 1) < 0.95:
        yield "thinking: top_p must be at least 0.95 when thinking is enabled."
    choice: Json = body.get("tool_choice") or {}
    if choice.get("type") in ("any", "tool"):
        yield "thinking: it may not be enabled when tool_choice forces tool use."
    if thinking["type"] == "enabled" and not 1024 <= thinking["budget_tokens"] < body.get("max_tokens", 0):
        yield "thinking: budget_tokens is below 1024 or not below max_tokens."


def _messages_roles(messages: list[Json]) -> Iterator[str]:
    if not messages or messages[0]["role"] != "user":
        yield "roles: the first message is not the user's."
    if messages and messages[-1]["role"] == "assistant":
        yield "roles: the conversation does not end with a user message, and this model takes no prefill."


def _messages_content(place: int, message: Json) -> Iterator[str]:
    where = f"messages[{place}]"
    if not message["content"]:
        yield f"empty: {where} has no content."
    for block in message["content"]:
        if block["type"] == "text" and not block["text"].strip():
            yield f"empty-text: {where} has a block without text."
        if block["type"] == "tool_use":
            yield from _messages_call(where, block)
        if block["type"] == "tool_result":
            yield from _messages_result(where, block)


def _messages_call(where: str, block: Json) -> Iterator[str]:
    if not MESSAGES_ID.fullmatch(block["id"]):
        yield f"id: {where} has the id {block['id']!r}."
    if not NAME_128.fullmatch(block["name"]):
        yield f"name: {where} calls {block['name']!r}."
    if not isinstance(block["input"], dict):
        yield f"arguments: {where} has an input that is no object."


def _messages_result(where: str, block: Json) -> Iterator[str]:
    content: Any = block.get("content") or []
    if block.get("is_error") and not content:
        yield f"empty: {where} has an error without words."
    if any(part["type"] == "text" and not part["text"].strip() for part in _parts(content)):
        yield f"empty-text: {where} has a result with a block without text."


def _messages_pairs(messages: list[Json]) -> Iterator[str]:
    """Results stand first in the very next message, all of them, and nothing else is a result."""
    waiting: list[str] = []
    for place, message in enumerate(messages):
        kinds = [block["type"] == "tool_result" for block in message["content"]]
        given = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if sorted(given) != sorted(waiting):
            yield f"pairs: messages[{place}] has the results {given} where {waiting} were called."
        if kinds != sorted(kinds, reverse=True):
            yield f"pairs: the results do not stand first in messages[{place}]."
        if given and message["role"] != "user":
            yield f"pairs: messages[{place}] has results and is not the user's."
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    if waiting:
        yield f"pairs: no result for {waiting}."
    ids = [block["id"] for message in messages for block in message["content"] if block["type"] == "tool_use"]
    for id in _repeated(ids):
        yield f"pairs: tool_use ids must be unique, and {id!r} is not."


def _messages_thoughts(messages: list[Json], issued: Issued, thinking: Json) -> Iterator[str]:
    for place, message in enumerate(messages):
        for block in message["content"]:
            if block["type"] == "thinking" and issued.get(block["signature"]) != block["thinking"]:
                yield f"thoughts: messages[{place}] has an invalid signature in a thinking block."
            if block["type"] == "redacted_thinking" and block["data"] not in issued:
                yield f"thoughts: messages[{place}] has invalid data in a redacted_thinking block."
    if thinking.get("type") == "enabled" and not _begins_with_a_thought(messages):
        yield "thoughts: the last turn of the model does not start with a thinking block."


def _begins_with_a_thought(messages: list[Json]) -> bool:
    """Whether the loop of tools that is going on, if one is, begins with a thought."""
    results = bool(messages) and any(block["type"] == "tool_result" for block in messages[-1]["content"])
    turns = [message for message in messages if message["role"] == "assistant"]
    return not (results and turns) or turns[-1]["content"][0]["type"] in ("thinking", "redacted_thinking")


def _tools_for_history(body: Json, messages: list[Json]) -> Iterator[str]:
    used = any(block["type"] == "tool_use" for message in messages for block in message["content"])
    if used and not body.get("tools"):
        yield "tools: requests which include tool_use blocks must define tools."


# Gemini

GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
GEMINI_FIELDS = {
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
}
GEMINI_DATA = {"text", "inlineData", "fileData", "functionCall", "functionResponse"}
UNKNOWN_SIGNATURE = "skip_thought_signature_validator"


def refusals_of_gemini(body: Json, issued: Issued | None = None) -> list[str]:
    """The reasons of a Gemini service with a model of the third generation."""
    contents: list[Json] = body["contents"]
    declared = [tool for each in body.get("tools", ()) for tool in each.get("functionDeclarations", ())]
    names = [tool["name"] for tool in declared]
    return [
        *(f"shape: Unknown name {name!r}: Cannot find field." for name in body.keys() - GEMINI_FIELDS),
        *_names(names, GEMINI_NAME),
        *_gemini_schemas(declared),
        *_gemini_options(body, names),
        *_gemini_roles(contents),
        *(reason for place, content in enumerate(contents) for reason in _gemini_content(place, content)),
        *_gemini_pairs(contents),
        *_gemini_signatures(contents, {} if issued is None else issued),
    ]


def _gemini_schemas(declared: list[Json]) -> Iterator[str]:
    for tool in declared:
        schema = tool.get("parametersJsonSchema", {"type": "object", "properties": {"x": {}}})
        if not isinstance(schema, dict) or ("properties" in schema and not schema["properties"]) or len(schema) < 2:
            yield f"schema: the parameters of {tool['name']!r} should be non-empty for OBJECT type."


def _gemini_options(body: Json, names: list[str]) -> Iterator[str]:
    config, calling = body.get("generationConfig", {}), body.get("toolConfig", {}).get("functionCallingConfig", {})
    allowed = calling.get("allowedFunctionNames", ())
    if body.get("tools") == [] or any(not tool for tool in body.get("tools", ())):
        yield "tools: there is an empty tool."
    if calling and not names:
        yield "tools: Function calling config is set without function_declarations."
    if allowed and calling["mode"] not in ("ANY", "VALIDATED"):
        yield "tools: allowed_function_names needs the mode ANY."
    if not set(allowed) <= set(names):
        yield f"tools: {allowed} are not all declared."
    if config.get("responseMimeType") and calling.get("mode") == "ANY":
        yield "format: Forced function calling (ANY mode) with a response mime type is unsupported."
    if {"thinkingBudget", "thinkingLevel"} <= config.get("thinkingConfig", {}).keys():
        yield "thinking: You can only set only one of thinking budget and thinking level."
    if not 0 <= config.get("temperature", 0) <= 2 or len(config.get("stopSequences", ())) > 5:
        yield "config: a value is out of its range."


def _gemini_roles(contents: list[Json]) -> Iterator[str]:
    if not contents or contents[0]["role"] != "user":
        yield "roles: the first content is not the user's."
    for place, content in enumerate(contents):
        if content["role"] not in ("user", "model") or not content["parts"]:
            yield f"roles: contents[{place}] has no parts, or the role {content['role']!r}."


def _gemini_content(place: int, content: Json) -> Iterator[str]:
    for part in content["parts"]:
        if len(GEMINI_DATA & part.keys()) != 1 or part.keys() - GEMINI_DATA - {"thought", "thoughtSignature"}:
            yield f"part: contents[{place}] has a part with {[*part]}."
        call, result = part.get("functionCall"), part.get("functionResponse")
        if call is not None and not (isinstance(call["args"], dict) and GEMINI_NAME.fullmatch(call["name"])):
            yield f"call: contents[{place}] has the call {call}."
        if result is not None and not isinstance(result["response"], dict):
            yield f"result: contents[{place}] has a response that is no object."


def _gemini_pairs(contents: list[Json]) -> Iterator[str]:
    """All results of a content with calls are in the next one, and nothing else but media is there."""
    waiting: list[Json] = []
    for place, content in enumerate(contents):
        given = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if sorted(map(_gemini_key, given)) != sorted(map(_gemini_key, waiting)):
            yield f"pairs: contents[{place}] has not as many function response parts as there were function call parts."
        if given and any("text" in part for part in content["parts"]):
            yield f"pairs: contents[{place}] has results and text."
        waiting = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        if waiting and (content["role"] != "model" or place == 0 or contents[place - 1]["role"] != "user"):
            yield f"pairs: contents[{place}] does not come immediately after a user turn."
    if waiting:
        yield "pairs: there are calls without results at the end."


def _gemini_key(part: Json) -> tuple[str, str]:
    return part["name"], part.get("id", "")


def _gemini_signatures(contents: list[Json], issued: Issued) -> Iterator[str]:
    for place, content in enumerate(contents):
        calls = [part for part in content["parts"] if "functionCall" in part]
        if calls and not calls[0].get("thoughtSignature"):
            yield f"thoughts: Function call is missing a thought_signature in functionCall parts, contents[{place}]."
        for part in content["parts"]:
            signature = part.get("thoughtSignature", UNKNOWN_SIGNATURE)
            if signature != UNKNOWN_SIGNATURE and b64decode(signature).decode() not in issued:
                yield f"thoughts: Corrupted thought signature, contents[{place}]."


RULES: dict[Name, Callable[[Json, Issued], list[str]]] = {
    "chat": refusals_of_chat,
    "responses": refusals_of_responses,
    "messages": refusals_of_messages,
    "gemini": refusals_of_gemini,
}
