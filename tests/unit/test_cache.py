"""What is kept of clients' bytes between requests has bounds in bytes."""

import gc
import importlib
import pkgutil
import tracemalloc
from collections.abc import Callable, Iterator
from functools import _lru_cache_wrapper, partial  # pyright: ignore[reportPrivateUsage]
from typing import Any, TypeAlias

import msgspec
import pytest

import toolwire
from toolwire.backends import chat as chat_backend
from toolwire.backends import codex
from toolwire.backends import messages as messages_backend
from toolwire.core.cache import MAX_CACHE_BYTES, MAX_ENTRY_BYTES, Cache
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.dialects import chat, messages, responses
from toolwire.turns.schemas import find_problems

Fields: TypeAlias = dict[str, Any]

NOT_CLIENTS_BYTES = {
    "_compile_specials",
    "_compile_markers",
    "_sort_markers",
    "_find_routes",
    "_limit",
    "_encode_passed_name",
    "_compile_key",
    "_hash_key",
    "bytes_of",
    "find_fault",
    "load_token",
    "compose_save",
    "dialects",
}
"""Functions whose arguments are our own, the operator's, or headers, whose size the server bounds."""

MB = 1024 * 1024


def _chat(tools: list[Fields]) -> Request:
    declared = [{"type": "function", "function": tool} for tool in tools]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": declared}
    return chat.decode_request(msgspec.json.encode(body))


def _messages(tools: list[Fields]) -> Request:
    declared = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": declared}
    return messages.decode_request(msgspec.json.encode(body))


def _responses(tools: list[Fields]) -> Request:
    body = {"model": "m", "input": "x", "tools": [{"type": "function", **tool} for tool in tools]}
    request = responses.decode_request(msgspec.json.encode(body))
    responses.StreamEncoder(request, "resp_1", 0, TurnStats())
    return request


def _schemas(tools: list[Fields]) -> None:
    for tool in tools:
        find_problems(msgspec.json.encode(tool["parameters"]), "{}")


def _everywhere(request: Request) -> None:
    chat_backend.Conversation(request, "s").start()
    messages_backend.Conversation(request, "s").start()
    codex.Conversation(request, "s").start()


def _one_large(number: int) -> Iterator[list[Fields]]:
    """A list of tools as large as a body may be, another one each time."""
    for place in range(number):
        schema = {"type": "object", "properties": {f"p{place}": {"type": "string", "const": "x" * 2 * MB}}}
        yield [{"name": f"{place}.{'n' * MB}", "parameters": schema}]


def _many_small(number: int) -> Iterator[list[Fields]]:
    """Lists that are small enough to be kept, another one each time."""
    for place in range(number):
        schema = {"type": "object", "properties": {f"p{place}": {"type": "string", "const": "x" * 20_000}}}
        yield [{"name": f"{place}.{each}.{'n' * 200}", "parameters": schema} for each in range(4)]


def _pinned(work: Callable[[], None]) -> int:
    """Bytes that are still there after some work."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [_chat, _messages, _responses])
@pytest.mark.parametrize("tools", [partial(_one_large, 15), partial(_many_small, 150)])
def test_requests_with_other_tools_each_time_leave_little_behind(
    read: Callable[[list[Fields]], Request], tools: Callable[[], Iterator[list[Fields]]]
) -> None:
    def ask() -> None:
        for declared in tools():
            _everywhere(read(declared))

    assert _pinned(ask) < 6 * MAX_CACHE_BYTES


@pytest.mark.parametrize("tools", [partial(_one_large, 15), partial(_many_small, 150)])
def test_schemas_that_arguments_were_held_against_leave_little_behind(
    tools: Callable[[], Iterator[list[Fields]]],
) -> None:
    def check() -> None:
        for declared in tools():
            _schemas(declared)

    assert _pinned(check) < 6 * MAX_CACHE_BYTES


def test_a_cache_of_small_entries_stays_within_its_bytes() -> None:
    known = Cache[bytes, bytes](bytes.upper)

    def fill() -> None:
        for number in range(100_000):
            assert known[b"%08d" % number] == b"%08d" % number

    assert _pinned(fill) < MAX_CACHE_BYTES


def test_a_large_input_is_not_kept() -> None:
    made: list[int] = []
    known = Cache[bytes, int](lambda data: made.append(len(data)) or len(data))
    data = b"x" * MAX_ENTRY_BYTES
    assert known[data] == known[data] == len(data)
    assert made == [len(data), len(data)]


def test_a_small_input_with_a_large_result_is_not_kept() -> None:
    made: list[int] = []
    known = Cache[bytes, bytes](lambda data: made.append(1) or data * MAX_ENTRY_BYTES)
    assert known[b"x"] == known[b"x"]
    assert made == [1, 1]


def test_what_is_asked_for_again_and_again_is_made_once() -> None:
    made: list[bytes] = []
    known = Cache[bytes, bytes](lambda data: made.append(data[:5]) or data)
    for number in range(1000):
        assert known[b"often"] == b"often"
        known[b"%05d" % number * 1000]
    assert made.count(b"often") == 1


def test_a_failure_is_not_kept() -> None:
    known = Cache[str, int](int)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            known["x"]
    assert known["1"] == 1


def test_nothing_else_keeps_what_clients_send() -> None:
    found = set[str]()
    for module in pkgutil.walk_packages(toolwire.__path__, "toolwire."):
        if not module.name.endswith("__main__"):
            found |= {
                name
                for name, value in vars(importlib.import_module(module.name)).items()
                if isinstance(value, _lru_cache_wrapper) and value.__module__.startswith("toolwire")
            }
    assert found <= NOT_CLIENTS_BYTES
