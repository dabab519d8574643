"""Writes docs/api.md from the docstrings of what is public, without importing it: `python scripts/api_reference.py`.

Public is what `__all__` of the modules in `PUBLIC` names. A name is followed to the module that defines it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "api.md"
PUBLIC = [
    "toolwire",
    "toolwire.agent",
    "toolwire.testing",
]
"""One module in each line; those that are not there are left out."""

FIRST = ["toolwire.library.streams", "toolwire.library.bodies", "toolwire.library.requests", "toolwire.library.options"]
"""The modules whose names come first; the others follow in the order of their names."""

HEAD = """# API reference

All public names, with their signatures and docstrings.
[Toolwire as a library](library.md) and [agents in your program](agent-library.md) explain how to use it.
This page is written by `scripts/api_reference.py`, and a test compares it with the code.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Defined:
    """A name and where it is defined."""

    name: str
    module: str
    node: ast.stmt
    doc: str


def file_of(module: str) -> Path | None:
    """The file of a module of ours."""
    path = SOURCE.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def tree_of(module: str) -> ast.Module:
    file = file_of(module)
    assert file is not None, module
    return ast.parse(file.read_text())


def public_names(tree: ast.Module) -> list[str]:
    """What `__all__` lists."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def define(module: str, name: str) -> Defined | None:
    """Where a name of a module is defined; None if that is not ours."""
    body = [node for node in tree_of(module).body if not is_overload(node)]
    for index, node in enumerate(body):
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return Defined(name, module, node, ast.get_docstring(node) or "")
        if name in assigned(node):
            return Defined(name, module, node, doc_behind(body, index))
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module.startswith("toolwire"):
                    return define(node.module, alias.name)
    return None


def assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    return [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []


def doc_behind(body: list[ast.stmt], index: int) -> str:
    """The docstring that stands behind an assignment."""
    following = body[index + 1] if index + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        value = following.value.value
        return value if isinstance(value, str) else ""
    return ""


def text(doc: str) -> str:
    """A docstring as paragraphs, each on one line, and with code as it stands there."""
    parts = re.split(r"\n[ \t]*\n", doc.strip())
    blocks = [(is_code, "\n\n".join(each)) for is_code, each in groupby(parts, is_code_block)]
    return "\n\n".join(f"```python\n{dedent(block)}\n```" if is_code else joined(block) for is_code, block in blocks)


def joined(paragraphs: str) -> str:
    return "\n\n".join(" ".join(map(str.strip, each.splitlines())) for each in paragraphs.split("\n\n"))


def is_code_block(paragraph: str) -> bool:
    """Whether a paragraph is code: its first line is indented, or opens a block of lines that are."""
    first, *others = paragraph.splitlines() or [""]
    return first.startswith("    ") or (first.endswith(":") and any(line.startswith("    ") for line in others))


def is_overload(node: ast.stmt) -> bool:
    """Whether this is one of several signatures of a function; the function itself follows them."""
    return isinstance(node, Function) and any(ast.unparse(each) == "overload" for each in node.decorator_list)


def signature(node: Function, name: str) -> str:
    """A call of a function, as it is declared."""
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^self(, )?", "", re.sub(r"^cls(, )?", "", arguments))
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None and name != "__init__" else ""
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{prefix}{name}({arguments}){returned}"


def is_property(node: Function) -> bool:
    return any(ast.unparse(each).endswith("property") for each in node.decorator_list)


def written(defined: Defined) -> Iterator[str]:
    """The section of a name."""
    node = defined.node
    if isinstance(node, ast.ClassDef):
        yield from written_class(defined, node)
    elif isinstance(node, Function):
        yield f"#### `{defined.name}`\n\n```\n{signature(node, defined.name)}\n```\n\n{text(defined.doc)}\n"
    else:
        value = node.value if isinstance(node, ast.AnnAssign | ast.Assign) else None
        shown = ast.unparse(value) if value is not None else ""
        form = f"\n\n```\n{defined.name} = {shown}\n```" if len(shown) < 200 and "{" not in shown else ""
        yield f"#### `{defined.name}`{form}\n\n{text(defined.doc)}\n"


def written_class(defined: Defined, node: ast.ClassDef) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith(("msgspec", "TypedDict"))]
    bases = [base for base in bases if not base.startswith(("_", "Once", "Exception"))]
    init = next((each for each in node.body if isinstance(each, Function) and each.name == "__init__"), None)
    form = f"\n\n```\n{signature(init, '__init__').replace('__init__', defined.name, 1)}\n```" if init else ""
    base = f" ({', '.join(f'`{each}`' for each in bases)})" if bases else ""
    yield f"#### `{defined.name}`{base}{form}\n\n{text(defined.doc)}\n"
    rows = [*fields(node.body), *(fields(init.body) if init is not None else ()), *methods(node)]
    if rows:
        yield "\n".join(rows) + "\n"


def fields(body: list[ast.stmt]) -> Iterator[str]:
    """The public fields of a class, or those that its constructor sets and explains."""
    for index, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign):
            continue
        name = ast.unparse(node.target).removeprefix("self.")
        kind, doc = ast.unparse(node.annotation), text(doc_behind(body, index))
        is_own = not ast.unparse(node.target).startswith("self.") or bool(doc)
        if name.startswith("_") or not is_own or kind.startswith("ClassVar"):
            continue
        default = node.value if not ast.unparse(node.target).startswith("self.") else None
        given = f" = {ast.unparse(default)}" if default is not None else ""
        yield f"- `{name}: {kind}{given}`" + (f"  \n  {doc}" if doc else "")


def methods(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, Function) and not each.name.startswith("_") and not is_overload(each):
            shown = signature(each, each.name)
            if is_property(each):
                returned = f": {ast.unparse(each.returns)}" if each.returns is not None else ""
                shown = f"{each.name}{returned}"
            doc = text(ast.get_docstring(each) or "")
            yield f"- `{shown}`" + (f"  \n  {doc}" if doc else "").replace("\n\n", "\n\n    ")


def page() -> str:
    """The whole page."""
    out = [HEAD]
    for module in PUBLIC:
        if file_of(module) is None:
            continue
        found = [define(module, name) for name in public_names(tree_of(module)) if not name.startswith("__")]
        names = [each for each in found if each is not None]
        out.append(f"\n## `{module}`\n")
        places = sorted(dict.fromkeys(each.module for each in names))
        for place in sorted(places, key=lambda each: FIRST.index(each) if each in FIRST else len(FIRST)):
            about = text((ast.get_docstring(tree_of(place)) or "").split("\n\n")[0])
            out.append(f"\n### From `{place}`\n\n{about}\n")
            for each in names:
                if each.module == place:
                    out += ["", *written(each)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)} is written.", file=sys.stderr)
