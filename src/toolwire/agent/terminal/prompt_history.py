"""The prompts of earlier sessions, for the arrow keys: a private file with one JSON string per line."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from prompt_toolkit.history import History

from toolwire.memory.private_files import make_folders, open_private, state_folder

MAX_BYTES = 1024 * 1024
"""Size of the file above which its older half is dropped."""


class PromptHistory(History):
    """The last prompts, newest first. A file that cannot be read or written is ignored."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self._path = path or state_folder() / "prompts.jsonl"

    def load_history_strings(self) -> Iterable[str]:
        """The prompts, newest first."""
        for line in reversed(self._lines()):
            with suppress(msgspec.DecodeError):
                yield msgspec.json.decode(line, type=str)

    def store_string(self, string: str) -> None:
        """Add a prompt."""
        with suppress(OSError, UnicodeEncodeError):
            make_folders(self._path.parent)
            with suppress(FileNotFoundError):
                if self._path.stat().st_size > MAX_BYTES:
                    lines = self._lines()
                    with open_private(self._path, "w") as file:
                        file.write(b"".join(line + b"\n" for line in lines[len(lines) // 2 :]))
            with open_private(self._path, "a") as file:
                file.write(msgspec.json.encode(string) + b"\n")

    def _lines(self) -> list[bytes]:
        with suppress(OSError), self._path.open("rb") as file:
            return file.read(2 * MAX_BYTES).splitlines()
        return []
