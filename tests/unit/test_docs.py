"""The documents are true."""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from toolwire.assembly import ToolRules
from toolwire.backends.demo import MODELS
from toolwire.cli import app
from toolwire.config.flags import FLAGS
from toolwire.config.settings import DERIVED, Backend, Debug, GatewayTools, Server, Settings, Store
from toolwire.core.order import TRANSITIONS
from toolwire.note_texts import NOTE_TEXTS
from toolwire.upstream.reply import Timeouts

ROOT = Path(__file__).parent.parent.parent


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_note_is_explained_with_the_advice_that_the_console_gives():
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", text("docs/notes.md"), re.MULTILINE)
    assert dict(rows) == {code: note.advice for code, note in NOTE_TEXTS.items()}


def test_every_flag_is_in_the_example_and_explained():
    for name in ("docs/configuration.md", ".env.example"):
        assert [flag for flag in FLAGS if flag not in text(name)] == []


@pytest.mark.parametrize("table", [Server, Store, Debug, GatewayTools, Backend, Timeouts, ToolRules, Settings])
def test_every_setting_is_explained(table: type[msgspec.Struct]):
    page = text("docs/configuration.md")
    settings = [field for field in table.__struct_fields__ if field not in DERIVED]
    assert [
        each for each in settings if not any(form in page for form in (f"`{each}`", f"[{each}]", f"[[{each}]]"))
    ] == []


def test_every_demo_model_is_explained():
    assert [model for model in MODELS if f"`{model}`" not in text("docs/demo.md")] == []


def test_every_event_is_explained():
    events = {event.__name__ for moves in TRANSITIONS.values() for event in moves}
    assert [event for event in events if event not in text("docs/events.md")] == []


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the documentation site make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"\]\([^)]*\)", "", title) for title in re.findall(r"^#+ +(.*?) *$", prose, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_between_documents_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in anchors_of(target), f"{page}: {link}#{anchor}"


@pytest.fixture
def build_docs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("build_docs")


def test_the_site_has_every_page_in_its_navigation_and_every_file_that_a_page_links_to(build_docs: Any, tmp_path: Path):
    build_docs.copy_pages(tmp_path / "pages")
    assert build_docs.find_faults(tmp_path / "pages") == []


def test_a_page_outside_the_navigation_and_a_link_out_of_the_site_are_faults(build_docs: Any, tmp_path: Path):
    build_docs.copy_pages(tmp_path / "pages")
    (tmp_path / "pages/docs/new.md").write_text("[the tests](../tests/conftest.py)")
    (tmp_path / "pages/docs/demo.md").unlink()
    faults = build_docs.find_faults(tmp_path / "pages")
    assert "docs/new.md: not in the navigation" in faults
    assert "docs/new.md: ../tests/conftest.py is not a file of the site" in faults
    assert "zensical.toml: docs/demo.md does not exist" in faults


PAGES = sorted(
    str(page.relative_to(ROOT)) for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
)
SOURCES = (ROOT, ROOT / "src" / "toolwire", ROOT / "src", ROOT / "tests")
FOLDERS = ("src/", "tests/", "docs/", "scripts/", "bench/")
MODULE_FILES = {path.name for top in ("src", "tests", "scripts", "bench") for path in (ROOT / top).rglob("*.py")}
NO_MODULES = ("toolwire.toml", "toolwire.db", "toolwire.example.toml", "toolwire.signature", "toolwire.tools")
"""What only looks like a module: files, the beginning of packed reasoning, and the group of entry points."""


def code(page: str, languages: str = r"\w*") -> list[str]:
    """The code of a page: spans between backticks, and the lines of blocks in some languages."""
    blocks = re.findall(rf"^```{languages}\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE))
    return [*spans, *(line for block in blocks for line in block.splitlines())]


def missing_paths(page: str) -> list[str]:
    """Paths of our own files that are not there: `gateway/app.py`, `tests/unit`, or a file `app.py` by its name alone."""
    named = {path for line in code(page) for path in re.findall(r"(?<![\w/.~*-])[\w./-]+", line)}
    paths = {path for path in named if path.startswith(FOLDERS) or ("/" in path and path.endswith(".py"))}
    missing = {path for path in paths if not any((top / path).exists() for top in (*SOURCES, (ROOT / page).parent))}
    alone = {path for path in named - paths if re.fullmatch(r"\w+\.py", path)}
    return sorted(missing | (alone - MODULE_FILES - {"mytools.py"}))


def missing_modules(page: str) -> list[str]:
    """Modules of ours that are not there, and names that a line of code imports from one in vain."""
    named = {
        name for line in code(page) for name in re.findall(r"(?<![\w./-])toolwire(?:\.[A-Za-z_]\w*)+(?![\w/-])", line)
    }
    for line in code(page, "python"):
        for module, names in re.findall(r"^from (toolwire[\w.]*) import ([\w, ]+)$", line):
            named |= {f"{module}.{name.strip()}" for name in names.split(",")}
    return sorted(name for name in named if name not in NO_MODULES and not resolves(name))


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def flags_of(command: Any) -> set[str]:
    """The options of a command and of those below it."""
    below = (flags_of(each) for each in getattr(command, "commands", {}).values())
    own = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts, "--help")}
    return own.union(*below)


def missing_commands(page: str) -> list[str]:
    """Commands and options of `toolwire`, and targets of make, that are not there."""
    context = click.Context(app)
    options = {name: flags_of(app.resolve_command(context, [name])[1]) for name in app.commands}
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    missing: list[str] = []
    for line in code(page, "sh"):
        for name, rest in re.findall(r"(?:^|[ /`(])toolwire (?!ready on)([a-z][\w-]*)([^|;`]*)", line):
            if name in options:
                flags = re.findall(r"(?<!\S)--[a-z-]+", re.sub(r"'[^']*'|\"[^\"]*\"", "", rest))
                missing += [f"toolwire {name} {flag}" for flag in flags if flag not in options[name]]
            elif re.match(r"(?:\S*/)?toolwire ", line):
                missing.append(f"toolwire {name}")
        missing += [f"make {name}" for name in re.findall(r"^make ([a-z-]+)", line) if name not in targets]
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_every_path_module_and_command_in_a_document_exists(page: str):
    assert [*missing_paths(page), *missing_modules(page), *missing_commands(page)] == []
