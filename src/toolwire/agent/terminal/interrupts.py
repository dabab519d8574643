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
    """Ctrl-C cancels the task, a second one exits at once; in both cases all child processes are ended."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.cancel: Callable[[], object] = task.cancel
        self.after_cancelling: Callable[[], object] = lambda: None
        self.before_leaving: Callable[[], object] = lambda: None
        self._pressed = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                asyncio.get_running_loop().add_signal_handler(number, self._press)

    def _press(self) -> None:
        if self._pressed:
            self._leave()
        else:
            self._pressed = True
            self.cancel()
            self.after_cancelling()

    def _leave(self) -> None:
        kill_children()
        for task in asyncio.all_tasks():
            task.cancel()  # a command kills what it left behind
        asyncio.get_running_loop().call_later(EXIT_SECONDS, self._exit)

    def _exit(self) -> None:
        """Exit although something has not ended."""
        try:
            self.before_leaving()
        finally:
            os._exit(CANCELLED)


def kill_children() -> None:
    """Kill commands and MCP servers with all their descendants."""
    from toolwire.agent.tools.process_tree import ProcessTree, marked  # noqa: PLC0415 - as the tools

    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            ProcessTree(int(pid)).signal(signal.SIGKILL)
    for pid in marked(f"{os.getpid()}."):  # what has left them
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
