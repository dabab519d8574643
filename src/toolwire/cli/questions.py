"""Questions on the terminal, each with a default."""

import sys
from collections.abc import Callable

from toolwire.core.display import clean


class Declined(Exception):
    """Nothing was written; the message is one line for the user."""


class Questions:
    """Asks on stdout and reads answers from stdin, which may be a pipe. At its end the defaults are used."""

    def __init__(self, *, asks: bool) -> None:
        self._asks = asks

    def ask(self, question: str, default: str, find_fault: Callable[[str], str] = lambda _: "", given: str = "") -> str:
        """The given answer, or the first one without a fault. Raises `Declined` if there is none."""
        if fault := given and find_fault(given):
            if not self._asks:
                raise Declined(f"{question}: {fault}")
            print(clean(f"  {fault}"))
        elif given:
            return given
        while self._asks:
            print(f"{question} [{default}]: " if default else f"{question}: ", end="", flush=True)
            line = sys.stdin.readline() if sys.stdin is not None else ""
            if sys.stdin is None or not sys.stdin.isatty():  # a terminal has ended the line itself
                print()
            self._asks = bool(line)
            answer = line.strip() or default
            fault = find_fault(answer)
            if not fault:
                return answer
            print(clean(f"  {fault}"))
        if fault := find_fault(default):
            raise Declined(f"{question}: {fault}")
        return default

    def confirm(self, question: str) -> bool:
        return self.ask(f"{question} (y/n)", "n").lower() in ("y", "yes")
