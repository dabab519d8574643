"""Runs the Python examples of a page: each block is a program of its own, as a reader would copy it.

    python doc_examples.py docs/aggregator.md

A block without a language, or in `text`, that follows an example with nothing in between is what the example prints.
All examples of a page run in one process and in the working directory, one after the other.
"""

import ast
import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```(?:text)?\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Example:
    """One example: where its code begins, and what it prints, if the page says so."""

    line: int
    code: str
    output: str | None


def examples_of(page: Path) -> Iterator[Example]:
    """The examples of a page, in order."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        yield Example(text.count("\n", 0, found.start()) + 2, found["code"], found["output"])


def run(page: Path, example: Example) -> None:
    """Run an example as the main module, so that a traceback names the page and its line."""
    tree = ast.increment_lineno(ast.parse(example.code, str(page)), example.line - 1)
    main = sys.modules["__main__"] = ModuleType("__main__")
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, str(page), "exec"), main.__dict__)
    if example.output is not None and printed.getvalue() != example.output:
        raise AssertionError(f"{page}:{example.line} prints\n{printed.getvalue()}\ninstead of\n{example.output}")


if __name__ == "__main__":
    for each in examples_of(Path(sys.argv[1])):
        run(Path(sys.argv[1]), each)
