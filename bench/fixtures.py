#!/usr/bin/env python3
"""Render the SSE/JSON fixtures served by the mock upstream.

usage: fixtures.py OUTDIR

Files: <dialect>.<kind>.sse and <dialect>.<kind>.json with
dialect in {responses, chat, messages}, kind in {text, tool, tiny, big}.
Every delta carries a fixed-width marker ``@@T0000000000000000@@``; in paced mode the
mock upstream overwrites the 16 digits with CLOCK_MONOTONIC ns at the moment of the
write, and the load generator reads it back: per-event latency through the gateway.
"""

import json
import os
import random
import string
import sys

MARK = "@@T0000000000000000@@"
rnd = random.Random(7)
WORDS = (
    "the quick brown fox jumps over a lazy dog while streaming tokens through "
    "gateways that must never drop or merge an event because tools depend on it"
).split()


noise = random.Random(11)
LETTERS = string.ascii_letters + string.digits


def obfuscate(text):
    """Random letters that pad a delta, of another content and length in every frame, as the real API sends them."""
    return "".join(noise.choices(LETTERS, k=16 - len(text) % 16))


def j(o):
    return json.dumps(o, separators=(",", ":"), ensure_ascii=False)


def words(n):
    return [" " + rnd.choice(WORDS) for _ in range(n)]


def args_pieces(n, piece=14):
    """n string pieces which concatenate to one valid JSON object."""
    out = ['{"path":"src/']
    for _ in range(n - 2):
        out.append(MARK + rnd.choice(WORDS)[:piece])
    out.append('.py","depth":3}')
    return out


KINDS = {
    "text": dict(text=200, reason=0, tools=[]),
    "tool": dict(text=0, reason=40, tools=[60, 60]),
    "tiny": dict(text=3, reason=0, tools=[]),
    "big": dict(text=0, reason=0, tools=["big"]),
}


def material(kind):
    k = KINDS[kind]
    text = [w + MARK for w in words(k["text"])]
    reason = [w + MARK for w in words(k["reason"])]
    tools = []
    for i, t in enumerate(k["tools"]):
        if t == "big":
            body = ("x" * 63 + " ") * 64  # 4096 bytes a delta
            pieces = ['{"content":"'] + [MARK + body[len(MARK) :]] * 256 + ['"}']
        else:
            pieces = args_pieces(t)
        json.loads("".join(pieces))
        tools.append((f"call_{i}abcdefghijklmnopqrstuv", ["read_file", "list_dir"][i % 2], pieces))
    return text, reason, tools


# ---------------------------------------------------------------- Responses
def responses(kind):
    text, reason, tools = material(kind)
    seq = 0
    ev = []

    def emit(type_, **kw):
        nonlocal seq
        ev.append((type_, {"type": type_, "sequence_number": seq, **kw}))
        seq += 1

    def resp(status, output, usage):
        return {
            "id": "resp_0123456789abcdef0123456789abcdef0123456789abcdef01",
            "object": "response",
            "created_at": 1760000000,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": "You are a coding agent. " * 8,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "model": "mock-" + kind,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "safety_identifier": None,
            "service_tier": "auto",
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": [
                {
                    "type": "function",
                    "name": n,
                    "description": "A tool of the mock.",
                    "parameters": {
                        "type": "object",
                        "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}},
                        "required": ["path"],
                        "additionalProperties": False,
                    },
                    "strict": True,
                }
                for n in ("read_file", "list_dir")
            ],
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "metadata": {},
        }

    out = []
    emit("response.created", response=resp("in_progress", [], None))
    emit("response.in_progress", response=resp("in_progress", [], None))
    oi = 0
    if reason:
        rid = "rs_0123456789abcdef0123456789abcdef0123456789abcdef01"
        emit("response.output_item.added", output_index=oi, item={"id": rid, "type": "reasoning", "summary": []})
        emit(
            "response.reasoning_summary_part.added",
            item_id=rid,
            output_index=oi,
            summary_index=0,
            part={"type": "summary_text", "text": ""},
        )
        for w in reason:
            emit(
                "response.reasoning_summary_text.delta",
                item_id=rid,
                output_index=oi,
                summary_index=0,
                delta=w,
                obfuscation=obfuscate(w),
            )
        full = "".join(reason)
        emit("response.reasoning_summary_text.done", item_id=rid, output_index=oi, summary_index=0, text=full)
        emit(
            "response.reasoning_summary_part.done",
            item_id=rid,
            output_index=oi,
            summary_index=0,
            part={"type": "summary_text", "text": full},
        )
        item = {"id": rid, "type": "reasoning", "summary": [{"type": "summary_text", "text": full}]}
        emit("response.output_item.done", output_index=oi, item=item)
        out.append(item)
        oi += 1
    if text:
        mid = "msg_0123456789abcdef0123456789abcdef0123456789abcdef01"
        emit(
            "response.output_item.added",
            output_index=oi,
            item={"id": mid, "type": "message", "status": "in_progress", "content": [], "role": "assistant"},
        )
        emit(
            "response.content_part.added",
            item_id=mid,
            output_index=oi,
            content_index=0,
            part={"type": "output_text", "annotations": [], "logprobs": [], "text": ""},
        )
        for w in text:
            emit(
                "response.output_text.delta",
                item_id=mid,
                output_index=oi,
                content_index=0,
                delta=w,
                logprobs=[],
                obfuscation=obfuscate(w),
            )
        full = "".join(text)
        emit("response.output_text.done", item_id=mid, output_index=oi, content_index=0, text=full, logprobs=[])
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": full}
        emit("response.content_part.done", item_id=mid, output_index=oi, content_index=0, part=part)
        item = {"id": mid, "type": "message", "status": "completed", "content": [part], "role": "assistant"}
        emit("response.output_item.done", output_index=oi, item=item)
        out.append(item)
        oi += 1
    for n, (cid, name, pieces) in enumerate(tools):
        fid = f"fc_{n}123456789abcdef0123456789abcdef0123456789abcdef01"
        emit(
            "response.output_item.added",
            output_index=oi,
            item={
                "id": fid,
                "type": "function_call",
                "status": "in_progress",
                "arguments": "",
                "call_id": cid,
                "name": name,
            },
        )
        for p in pieces:
            emit(
                "response.function_call_arguments.delta",
                item_id=fid,
                output_index=oi,
                delta=p,
                obfuscation=obfuscate(p),
            )
        full = "".join(pieces)
        emit("response.function_call_arguments.done", item_id=fid, output_index=oi, arguments=full)
        item = {
            "id": fid,
            "type": "function_call",
            "status": "completed",
            "arguments": full,
            "call_id": cid,
            "name": name,
        }
        emit("response.output_item.done", output_index=oi, item=item)
        out.append(item)
        oi += 1
    usage = {
        "input_tokens": 321,
        "input_tokens_details": {"cached_tokens": 128},
        "output_tokens": 210,
        "output_tokens_details": {"reasoning_tokens": 40},
        "total_tokens": 531,
    }
    final = resp("completed", out, usage)
    emit("response.completed", response=final)
    return [f"event: {t}\ndata: {j(d)}\n\n" for t, d in ev], j(final)


# ---------------------------------------------------------------- Chat Completions
def chat(kind):
    text, reason, tools = material(kind)
    ev = []
    base = {
        "id": "chatcmpl-0123456789abcdefghijklmnopqrs",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "mock-" + kind,
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
    }

    def emit(delta, finish=None, usage=None, choices=True):
        d = dict(base)
        d["choices"] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}] if choices else []
        d["usage"] = usage
        d["obfuscation"] = obfuscate(j(delta))
        ev.append(d)

    emit({"role": "assistant", "content": None if tools else "", "refusal": None})
    for w in reason:
        emit({"reasoning_content": w})
    for w in text:
        emit({"content": w})
    for i, (cid, name, pieces) in enumerate(tools):
        emit({"tool_calls": [{"index": i, "id": cid, "type": "function", "function": {"name": name, "arguments": ""}}]})
        for p in pieces:
            emit({"tool_calls": [{"index": i, "function": {"arguments": p}}]})
    emit({}, "tool_calls" if tools else "stop")
    usage = {
        "prompt_tokens": 321,
        "completion_tokens": 210,
        "total_tokens": 531,
        "prompt_tokens_details": {"cached_tokens": 128},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    emit({}, None, usage, choices=False)
    msg = {"role": "assistant", "content": "".join(text) or None, "refusal": None}
    if tools:
        msg["tool_calls"] = [
            {"id": c, "type": "function", "function": {"name": n, "arguments": "".join(p)}} for c, n, p in tools
        ]
    full = {
        **base,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": msg, "logprobs": None, "finish_reason": "tool_calls" if tools else "stop"}],
        "usage": usage,
    }
    return [f"data: {j(d)}\n\n" for d in ev] + ["data: [DONE]\n\n"], j(full)


# ---------------------------------------------------------------- Anthropic Messages
def messages(kind):
    text, reason, tools = material(kind)
    ev = []
    usage = {"input_tokens": 321, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 128, "output_tokens": 1}

    def emit(type_, **kw):
        ev.append((type_, {"type": type_, **kw}))

    mid = "msg_0123456789abcdefghijklmn"
    emit(
        "message_start",
        message={
            "id": mid,
            "type": "message",
            "role": "assistant",
            "model": "mock-" + kind,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        },
    )
    i = 0
    blocks = []

    def block(start, deltas, stop):
        nonlocal i
        emit("content_block_start", index=i, content_block=start)
        if i == 0:
            emit("ping")
        for d in deltas:
            emit("content_block_delta", index=i, delta=d)
        emit("content_block_stop", index=i)
        blocks.append(stop)
        i += 1

    if reason:
        block(
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": w} for w in reason]
            + [{"type": "signature_delta", "signature": "c2ln" * 40}],
            {"type": "thinking", "thinking": "".join(reason), "signature": "c2ln" * 40},
        )
    if text:
        block(
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": w} for w in text],
            {"type": "text", "text": "".join(text)},
        )
    for c, n, p in tools:
        tid = c.replace("call_", "toolu_01")
        block(
            {"type": "tool_use", "id": tid, "name": n, "input": {}},
            [{"type": "input_json_delta", "partial_json": s} for s in p],
            {"type": "tool_use", "id": tid, "name": n, "input": json.loads("".join(p))},
        )
    stop = "tool_use" if tools else "end_turn"
    emit("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={**usage, "output_tokens": 210})
    emit("message_stop")
    full = {
        "id": mid,
        "type": "message",
        "role": "assistant",
        "model": "mock-" + kind,
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 210},
    }
    return [f"event: {t}\ndata: {j(d)}\n\n" for t, d in ev], j(full)


# ---------------------------------------------------------------- request bodies
TOOL_PARAMS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}
SYSTEM = "You are a coding agent working in a repository. " * 20
USER = "Look at the source tree and read the main module, please."


def requests(model, stream):
    tools = ("read_file", "list_dir")
    chat_req = {
        "model": model,
        "stream": stream,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}],
        "tools": [
            {
                "type": "function",
                "function": {"name": n, "description": "A tool of the mock.", "parameters": TOOL_PARAMS},
            }
            for n in tools
        ],
        "tool_choice": "auto",
    }
    if stream:
        chat_req["stream_options"] = {"include_usage": True}
    resp_req = {
        "model": model,
        "stream": stream,
        "instructions": SYSTEM,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": USER}]}],
        "tools": [
            {
                "type": "function",
                "name": n,
                "description": "A tool of the mock.",
                "parameters": TOOL_PARAMS,
                "strict": True,
            }
            for n in tools
        ],
        "tool_choice": "auto",
        "store": False,
    }
    msg_req = {
        "model": model,
        "stream": stream,
        "max_tokens": 4096,
        "system": SYSTEM,
        "messages": [{"role": "user", "content": USER}],
        "tools": [{"name": n, "description": "A tool of the mock.", "input_schema": TOOL_PARAMS} for n in tools],
    }
    return {"chat": chat_req, "responses": resp_req, "messages": msg_req}


if __name__ == "__main__":
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    meta = {}
    for dialect, fn in (("responses", responses), ("chat", chat), ("messages", messages)):
        for kind in KINDS:
            ev, full = fn(kind)
            with open(f"{out}/{dialect}.{kind}.sse", "w") as f:
                f.write("".join(ev))
            with open(f"{out}/{dialect}.{kind}.json", "w") as f:
                f.write(full)
            meta[f"{dialect}.{kind}"] = {
                "events": len(ev),
                "bytes": sum(map(len, ev)),
                "median_event": sorted(map(len, ev))[len(ev) // 2],
            }
    with open(f"{out}/meta.json", "w") as f:
        json.dump(meta, f, indent=1)
    print(json.dumps(meta, indent=1))
