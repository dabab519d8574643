"""Ctrl-C and the signals that end a program."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

CANCELLED = 130
"""The exit code of a run that was cancelled."""
EXIT_SECONDS = 0.1
"""Seconds after a second Ctrl-C until the process exits."""


class Interrupts:
    """The first Ctrl-C cancels the work, a second one exits at once. In both cases all child processes are ended."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.target: Callable[[], object] = task.cancel
        """Cancels the work: at first the main task, later the agent."""
        self.after_cancelling: Callable[[], object] = lambda: None
        self.before_leaving: Callable[[], object] = lambda: None
        self._is_cancelled = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                asyncio.get_running_loop().add_signal_handler(number, self._handle)

    def cancel(self) -> None:
        """Cancel the work."""
        self.target()

    def _handle(self) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            self.cancel()
            self.after_cancelling()
            return
        kill_children()
        for task in asyncio.all_tasks():
            task.cancel()  # the clean-up of a command kills what it has left behind
        asyncio.get_running_loop().call_later(EXIT_SECONDS, self._exit)

    def _exit(self) -> None:
        """Exit even if tasks have not ended."""
        try:
            self.before_leaving()
        finally:
            os._exit(CANCELLED)


def kill_children() -> None:
    """Kill commands and MCP servers with all their descendants."""
    from toolwire.agent.tools.process_tree import ProcessTree, find_marked  # noqa: PLC0415 - only when used

    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            ProcessTree(int(pid)).signal(signal.SIGKILL)
    for pid in find_marked(f"{os.getpid()}."):  # descendants in other sessions
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
