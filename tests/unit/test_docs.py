"""The documents are true."""

import re
from pathlib import Path

import msgspec
import pytest

from toolwire.assembly import ToolRules
from toolwire.backends.demo import MODELS
from toolwire.core.notes import CODES
from toolwire.core.order import TRANSITIONS
from toolwire.runs.flags import FLAGS
from toolwire.runs.settings import Backend, Debug, Own, Server, Settings, Store
from toolwire.transport.reply import Timeouts

ROOT = Path(__file__).parent.parent.parent


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_note_is_explained():
    assert [code for code in CODES if f"`{code}`" not in text("docs/notes.md")] == []


def test_every_flag_is_in_the_example_and_explained():
    for name in ("docs/configuration.md", ".env.example"):
        assert [flag for flag in FLAGS if flag not in text(name)] == []


@pytest.mark.parametrize("table", [Server, Store, Debug, Own, Backend, Timeouts, ToolRules, Settings])
def test_every_setting_is_explained(table: type[msgspec.Struct]):
    assert [field for field in table.__struct_fields__ if f"`{field}`" not in text("docs/configuration.md") and f"[{field}]" not in text(
        "docs/configuration.md") and f"[[{field}]]" not in text("docs/configuration.md")] == []  # fmt: skip


def test_every_demo_model_is_explained():
    assert [model for model in MODELS if f"`{model}`" not in text("docs/demo.md")] == []


def test_every_event_is_explained():
    events = {event.__name__ for moves in TRANSITIONS.values() for event in moves}
    assert [event for event in events if event not in text("docs/events.md")] == []


def test_every_link_between_documents_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"
