"""Ids that nobody can foretell. The system is asked for many at a time, because each question costs a system call."""

import os
from secrets import token_hex

AT_ONCE = 8192
"""Bytes that the system is asked for."""


class RandomHex:
    """Random hexadecimal digits, each given out once."""

    def __init__(self) -> None:
        self._digits = ""
        self._used = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)  # two processes must not give out the same

    def take(self, count: int) -> str:
        start = self._used
        self._used = start + count
        if self._used > len(self._digits):
            self._digits, start, self._used = token_hex(max(AT_ONCE, count)), 0, count
        return self._digits[start : self._used]

    def forget(self) -> None:
        self._digits, self._used = "", 0


random_hex = RandomHex()
