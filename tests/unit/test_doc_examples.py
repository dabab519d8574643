"""The examples in the documents run, and print what the documents say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import doc_examples
from tests.support.gateway import PROXIES

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    "docs/agent-library.md",
    "docs/aggregator.md",
    "docs/check.md",
    "docs/library.md",
]
"""One page in each line."""
HIDDEN = (*PROXIES, "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PYTHONPATH")


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run all examples of a page in an empty directory, which is also the home."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    home = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    command = [sys.executable, "-P", doc_examples.__file__, str(page)]
    return subprocess.run(
        command, cwd=folder, env={**kept, **home}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_example_of_a_page_runs(page: str, tmp_path: Path):
    assert [*doc_examples.examples_of(ROOT / page)]
    done = run(ROOT / page, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Page\n\n```python\nx = 1\n\nraise ValueError('lost')\n```\n", 'page.md", line 6'),
        ("```python\nprint(1)\n```\n\n```\n2\n```\n", "page.md:2 prints"),
        ("```python\nx = 1\n```\n\n```python\nprint(x)\n```\n", "name 'x' is not defined"),
    ],
    ids=["it fails", "it prints something else", "it needs another example"],
)
def test_a_wrong_example_fails_and_is_named(text: str, said: str, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(text)
    done = run(page, tmp_path)
    assert done.returncode
    assert said in done.stderr
