"""What `toolwire` exports: complete, explained, in one tree of errors, with a reference that is up to date."""

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import toolwire
import toolwire.agent
from toolwire.agent import AnswerCut, LimitReached, MaxTurnsExceeded, OutputInvalid, SessionError, ToolError
from toolwire.core import errors, order
from toolwire.gateway.memory_budget import Overloaded
from toolwire.gateway.responses.conversation_lock import Locked
from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.store import Overtaken, StoreFailed

ROOT = Path(__file__).parent.parent.parent
NAMES = [name for name in toolwire.__all__ if not name.startswith("__")]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_name_is_there_once():
    assert len(toolwire.__all__) == len({*toolwire.__all__})
    assert [name for name in NAMES if getattr(toolwire, name, None) is None] == []
    assert {*toolwire.__all__} <= {*dir(toolwire)}
    with pytest.raises(AttributeError, match="module 'toolwire' has no attribute 'decode_steam'"):
        toolwire.decode_steam  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


def test_type_checkers_see_what_is_loaded_later():
    """The names that are loaded when they are used, and those that type checkers are told of."""
    tree = ast.parse(text("src/toolwire/__init__.py"))
    [told] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        node.module: tuple(alias.name for alias in node.names) for node in told.body if isinstance(node, ast.ImportFrom)
    }
    [table] = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LOADED_LATER"]  # fmt: skip
    assert imported == ast.literal_eval(table)


def test_every_event_is_exported():
    events = {event for moves in order.TRANSITIONS.values() for event in moves}
    assert {getattr(toolwire, event.__name__) for event in events} == events


EXPLAINED = [name for name in NAMES if inspect.isclass(found := getattr(toolwire, name)) or inspect.isfunction(found)]


@pytest.mark.parametrize("name", EXPLAINED)
def test_everything_public_has_a_docstring(name: str):
    found = getattr(toolwire, name)
    assert found.__doc__
    if inspect.isclass(found):
        own = [each for key, each in vars(found).items() if inspect.isfunction(each) and not key.startswith("_")]
        assert [each.__qualname__ for each in own if not each.__doc__] == []


# The tree of errors


def drawn(page: str) -> set[tuple[str, str]]:
    """The tree as it is drawn: pairs of an error and its base."""
    lines = re.search(r"^ *ToolwireError\n(?:^ *[│├└].*\n)+", page, re.MULTILINE)
    assert lines is not None
    pairs: set[tuple[str, str]] = set()
    above: list[tuple[int, str]] = []
    for line in lines[0].splitlines():
        name = re.search(r"\w+", line)
        assert name is not None
        above = [each for each in above if each[0] < name.start()]
        if above:
            pairs.add((name[0], above[-1][1]))
        above.append((name.start(), name[0]))
    return pairs


@pytest.mark.parametrize("page", ["src/toolwire/core/errors.py", "docs/library.md"])
def test_the_tree_of_errors_is_drawn_as_it_is(page: str):
    known = [*vars(errors).values(), StoreFailed, Overtaken, NotUsable, Locked, Overloaded]
    classes = {each for each in known if inspect.isclass(each) and issubclass(each, toolwire.ToolwireError)}
    actual = {(each.__name__, each.__mro__[1].__name__) for each in classes if each is not toolwire.ToolwireError}
    assert actual <= drawn(text(page))


@pytest.mark.parametrize("package", [toolwire, toolwire.agent])
def test_errors_have_the_name_of_the_package_that_exports_them(package: ModuleType):
    exported = [getattr(package, name) for name in package.__all__]
    raised = [each for each in exported if inspect.isclass(each) and issubclass(each, toolwire.ToolwireError)]
    assert len(raised) > 5
    assert {each.__module__ for each in raised} == {package.__name__}


def test_every_exported_error_is_in_the_tree():
    exported = [getattr(toolwire, name) for name in NAMES]
    raised = [each for each in exported if inspect.isclass(each) and issubclass(each, BaseException)]
    assert [each for each in raised if not issubclass(each, toolwire.ToolwireError)] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (toolwire.WrongDialect("chat", "messages"), "wrong_dialect"),
        (toolwire.FedAfterEnd("StreamDecoder"), "fed_after_end"),
        (toolwire.OutOfOrder("WAITING", "TextDelta"), "out_of_order"),
        (toolwire.SettingsError("tools: no"), "invalid_settings"),
        (ToolError("no"), "tool_failed"),
        (SessionError("no"), "session_unusable"),
        (MaxTurnsExceeded(3), "max_turns_exceeded"),
        (LimitReached("tokens"), "limit_reached"),
        (AnswerCut("length"), "answer_cut"),
        (OutputInvalid("no"), "output_invalid"),
    ],
)
def test_the_failure_of_an_error_says_what_the_error_says(error: toolwire.ToolwireError, code: str):
    assert (error.failure.code, error.failure.message) == (code, str(error))


def test_the_failure_of_a_fault_of_our_own_says_no_more():
    assert toolwire.InternalError("secret").failure.message == "Toolwire met an internal error."


def test_the_reference_is_what_the_docstrings_say():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import api_reference  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    page: str = api_reference.page()  # pyright: ignore
    assert text("docs/api.md") == page, "run: python scripts/api_reference.py"
    assert [name for name in NAMES if f"#### `{name}`" not in text("docs/api.md")] == []


def test_every_option_is_explained():
    options = {name for kind in (toolwire.TranslateOptions, toolwire.ConvertOptions) for name in kind.__optional_keys__}
    assert [name for name in options if f"`{name}" not in text("docs/library.md") and f"{name}=" not in text("docs/library.md")] == []  # fmt: skip
