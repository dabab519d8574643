"""An event loop with a clock that a test can move on, so that a timeout takes no time and comes when the test says."""

import asyncio


class ClockLoop(asyncio.SelectorEventLoop):
    """The loop of asyncio; `ahead` is how many seconds its clock is ahead of the real one."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def skip(seconds: float) -> None:
    """Move on the clock of the running loop. What the loop has already received is handled first."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ClockLoop)
    loop.ahead += seconds
