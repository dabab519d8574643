"""The outside world, in its small parts."""

import asyncio

import pytest
from yarl import URL

from toolwire.transport.alarm import PERIOD, Alarm, Ticker
from toolwire.transport.http import proxy_for


def test_the_environments_proxy_is_honoured(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for(URL("http://api.example/v1")) is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert proxy_for(URL("http://api.example/v1")) == "http://proxy.example:3128"
    assert proxy_for(URL("http://127.0.0.1:9000/v1")) is None


def waiting(scenario):
    """Run a scenario with an alarm of its own task."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        alarm = Alarm(Ticker(loop), task)
        await scenario(alarm, loop)
        alarm.close()

    asyncio.run(run())


def test_an_alarm_rings_once_its_time_has_come():
    async def scenario(alarm: Alarm, loop: asyncio.AbstractEventLoop) -> None:
        with alarm.at(loop.time() + 10):
            await asyncio.sleep(PERIOD * 2)
        with pytest.raises(TimeoutError), alarm.at(loop.time() + 0.01):
            await asyncio.sleep(5)
        with alarm.at(loop.time() + 0.01):
            await asyncio.sleep(0)
        await asyncio.sleep(PERIOD * 2)  # nobody waits: it must not ring

    waiting(scenario)


def test_a_cancellation_from_outside_is_not_taken_for_the_alarm():
    async def scenario(alarm: Alarm, loop: asyncio.AbstractEventLoop) -> None:
        async def wait() -> None:
            task = asyncio.current_task()
            assert task is not None
            with Alarm(Ticker(loop), task).at(loop.time() + 10):
                await asyncio.sleep(5)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    waiting(scenario)


def test_a_ticker_rests_when_everybody_has_left():
    ticks: list[float] = []

    class Counting:
        def tick(self, now: float) -> None:
            ticks.append(now)

    async def scenario() -> None:
        ticker = Ticker(asyncio.get_running_loop())
        member = Counting()
        ticker.join(member)
        await asyncio.sleep(PERIOD * 3)
        ticker.leave(member)
        seen = len(ticks)
        await asyncio.sleep(PERIOD * 3)
        assert seen == len(ticks) > 0

    asyncio.run(scenario())
