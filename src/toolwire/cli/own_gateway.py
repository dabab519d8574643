"""A gateway for one program, and the program that runs on it."""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from types import FrameType
from typing import IO, cast

from toolwire.cli.options import say
from toolwire.memory.private import open_private

READY = "toolwire ready on "
PATIENCE = 60.0
"""Seconds for a gateway to start."""
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


class NotStarted(Exception):
    """One line that says why nothing was started."""


class OwnGateway:
    """A gateway on a free port, for as long as the context lasts."""

    def __init__(self, file: str, log: Path | None) -> None:
        try:
            self._log: IO[bytes] | None = open_private(log, "a") if log is not None else None
        except OSError as error:
            raise NotStarted(f"--log: {log}: {error.strerror}") from None
        self._last: deque[str] = deque(maxlen=1)
        self._ready: Queue[str] = Queue()
        config = (str(Path(file).absolute()),) if file else ()
        # A session of its own: Ctrl-C in the terminal is for the program. Its input ends when this process does.
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "toolwire.cli.background", *config],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "OwnGateway":
        try:
            self.url = self._ready.get(timeout=PATIENCE)
        except Empty:
            self.url = ""
        if not self.url:
            self._stop()
            raise NotStarted(f"the gateway did not start: {''.join(self._last) or 'it said nothing'}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is not None:
            say(f"the gateway had ended by itself: {''.join(self._last)}")
        self._stop()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a program; signals that this process gets are passed on to it. Returns its exit code, as a shell does."""
        child = subprocess.Popen(command, env=environment)  # noqa: S603 - it is what was asked for

        def forward(number: int, frame: FrameType | None) -> None:
            child.send_signal(number)

        for name in _FORWARDED:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), forward)
        # In the foreground of a terminal the program gets Ctrl-C from there, as we do.
        signal.signal(signal.SIGINT, signal.SIG_IGN if _is_in_foreground() else forward)
        code = child.wait()
        return code if code >= 0 else 128 - code

    def _read(self) -> None:
        """Wait for the address, and read on, so that the gateway can write."""
        for line in cast("IO[bytes]", self._process.stderr):
            text = line.decode(errors="replace").rstrip()
            self._last.append(text.removeprefix("toolwire: "))
            if text.startswith(READY):
                self._ready.put(text.removeprefix(READY))
            if self._log is not None:
                self._log.write(line)
                self._log.flush()
        self._ready.put("")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _is_in_foreground() -> bool:
    """Whether a terminal sends its signals to this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
