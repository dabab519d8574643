"""Completions of the input line: commands and their arguments, and files after an `@`."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from toolwire.agent.tools.walk import walk
from toolwire.core.display import clean

MAX_FILES = 20_000
MAX_SHOWN = 50
FRESH_SECONDS = 5.0
"""How long a list of files is reused."""

_FILE = re.compile(r'(?:^|\s)@("?)([^\s"]*)$')
_COMMAND = re.compile(r"/(\S*)$")
_ARGUMENT = re.compile(r"(/\S+)\s+(\S*)$")


class LineCompleter(Completer):
    """Completes commands, their arguments, and files of a directory.

    `commands` are names with their meaning; `arguments` returns the words that may follow one, with their meaning.
    `cwd` returns the directory.
    """

    def __init__(
        self, cwd: Callable[[], Path], commands: dict[str, str], arguments: Callable[[str], Iterable[tuple[str, str]]]
    ) -> None:
        self._cwd = cwd
        self._commands = commands
        self._arguments = arguments
        self._files = Files(cwd())

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """The completions of the text before the cursor."""
        before = document.text_before_cursor
        if file := _FILE.search(before):
            quote, typed = file.groups()
            if self._files.cwd != self._cwd():
                self._files = Files(self._cwd())
            for name in self._files.matching(typed):
                word = f'"{name}"' if " " in name else name
                yield Completion(f"{word} ", -len(quote + typed), display=name)
        elif command := _COMMAND.fullmatch(before):
            for name, meaning in self._commands.items():
                if name.startswith(f"/{command[1]}"):
                    yield Completion(name, -len(before), display_meta=meaning)
        elif argument := _ARGUMENT.fullmatch(before):
            for word, meaning in self._arguments(argument[1]):
                if word.startswith(argument[2]):
                    yield Completion(word, -len(argument[2]), display_meta=meaning)


class Files:
    """The files of a directory that are not ignored."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._names: list[str] = []
        self._read = float("-inf")

    def matching(self, typed: str) -> list[str]:
        """The best matches: by prefix of the path, prefix of the name, substring, then characters in order."""
        if time.monotonic() - self._read > FRESH_SECONDS:
            self._names = ["/".join(parts) for parts in islice(walk(self.cwd), MAX_FILES)]
            self._read = time.monotonic()
        typed = typed.lower()

        def is_match(name: str) -> bool:
            rest = iter(name.lower())
            has_in_order = all(character in rest for character in typed)  # each is searched for after the one before
            return has_in_order and clean(name) == name and '"' not in name and "\n" not in name

        def rank(name: str) -> tuple[int, int, str]:
            name = name.lower()
            kinds = (name.startswith(typed), name.rpartition("/")[2].startswith(typed), typed in name)
            return kinds.index(True) if True in kinds else len(kinds), len(name), name

        return sorted(filter(is_match, self._names), key=rank)[:MAX_SHOWN]
