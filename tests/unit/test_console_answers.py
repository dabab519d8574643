"""Answers of the console count as bytes in flight, once for all viewers that share them."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
from starlette.responses import Response

from toolwire.gateway.console.http import SharedAnswers
from toolwire.gateway.memory_budget import MemoryBudget, Overloaded

BODY = b"x" * 600


async def build() -> Response:
    await asyncio.sleep(0)
    return Response(BODY)


async def discard(message: Any) -> None:
    pass


def test_an_answer_that_exceeds_the_memory_budget_is_refused():
    budget = MemoryBudget(len(BODY) - 1)
    with pytest.raises(Overloaded):
        asyncio.run(SharedAnswers(budget).send("key", build, discard))
    assert budget.reserved == 0


def test_viewers_of_one_answer_reserve_its_bytes_once_and_release_them():
    async def main() -> tuple[list[int], int]:
        budget = MemoryBudget(2 * len(BODY) - 1)
        answers = SharedAnswers(budget)
        reserved: list[int] = []

        async def send(message: Any) -> None:
            reserved.append(budget.reserved)
            await asyncio.sleep(0)

        await asyncio.gather(*(answers.send("key", build, send) for _ in range(3)))
        return reserved, budget.reserved

    reserved, after = asyncio.run(main())
    assert set(reserved) == {len(BODY)}
    assert after == 0


def test_an_answer_is_freed_with_its_last_viewer():
    built: list[weakref.ref[Response]] = []

    async def build_once() -> Response:
        response = Response(BODY)
        built.append(weakref.ref(response))
        return response

    async def main() -> SharedAnswers:
        answers = SharedAnswers(MemoryBudget(2 * len(BODY)))
        for _ in range(2):
            await answers.send("key", build_once, discard)
        return answers

    answers = asyncio.run(main())
    gc.collect()
    assert [each() for each in built] == [None, None], answers
