"""The outside world, in its small parts."""

import asyncio

import pytest
from yarl import URL

from toolwire.transport.alarm import Alarm
from toolwire.transport.http import proxy_for


def test_the_environments_proxy_is_honoured(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_for(URL("http://api.example/v1")) is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert proxy_for(URL("http://api.example/v1")) == "http://proxy.example:3128"
    assert proxy_for(URL("http://127.0.0.1:9000/v1")) is None


def test_an_alarm_rings_once_its_time_has_come():
    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        alarm = Alarm(loop)
        with alarm.at(loop.time() + 10):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError), alarm.at(loop.time() + 0.01):
            await asyncio.sleep(5)
        with alarm.at(loop.time() + 0.02):
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # nobody waits: it must not ring
        alarm.close()
        return "calm"

    assert asyncio.run(scenario()) == "calm"


def test_an_alarm_that_rings_too_early_is_set_anew():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        alarm = Alarm(loop)
        with alarm.at(loop.time() + 0.02):
            await asyncio.sleep(0)
        with alarm.at(loop.time() + 0.2):
            await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError), alarm.at(loop.time() + 0.05):
            await asyncio.sleep(5)
        alarm.close()

    asyncio.run(scenario())


def test_a_cancellation_from_outside_is_not_taken_for_the_alarm():
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        alarm = Alarm(loop)

        async def wait() -> None:
            with alarm.at(loop.time() + 10):
                await asyncio.sleep(5)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
