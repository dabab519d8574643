"""Counts what code does instead of how long it takes, so that cost which grows too fast shows on small inputs.

The package is imported once more with a count in it: one step for every call, round of a loop and element that is
made, and one for every character or item that an operation in C goes through: a slice, a sum of texts, a search, `in`
on a list, reading JSON. What such an operation does inside is a model, and it is on the safe side.
"""

# ruff: noqa: N815 (the visitors of `ast` have the names of its classes)

import ast
import importlib
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec

_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset, deque, msgspec.Raw)
_TEXT = (str, bytes, bytearray)
_STRIPS = frozenset(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"))
_AT_ONCE = frozenset(("startswith", "endswith", "isascii", "append"))
_OVER_ALL = frozenset(("index", "count", "remove", "sort", "copy", "reverse", "union", "intersection"))
_OVER_NEW = frozenset(("extend", "update"))


class Meter:
    """The steps so far, and the functions that code with a count in it calls."""

    def __init__(self) -> None:
        self.steps = 0

    def tick(self, value: Any = None) -> Any:
        self.steps += 1
        return value

    def made(self, value: Any) -> Any:
        """Something new was made of others."""
        self.steps += _length(value)
        return value

    def grown(self, value: Any) -> None:
        """Something was added to this: text is made anew for it."""
        self.steps += len(value) if isinstance(value, str | bytes | tuple) else 0

    def contains(self, one: Any, all: Any) -> bool:
        if isinstance(all, str | bytes):
            place = all.find(one)
            self.steps += len(all) if place < 0 else place
        elif isinstance(all, list | tuple | deque):
            place = next((place for place, each in enumerate(all) if each is one or each == one), len(all))
            self.steps += place
        return one in all

    def equal(self, one: Any, other: Any) -> bool:
        if isinstance(one, _SIZED) and type(one) is type(other) and _length(one) == _length(other):
            self.steps += _length(one)
        return bool(one == other)

    def spliced(self, value: Any, start: Any) -> None:
        """Items move because others before them come or go."""
        if isinstance(value, list):
            self.steps += len(value) - (start if isinstance(start, int) and start >= 0 else 0)

    def call(self, function: Any, /, *args: Any, **named: Any) -> Any:
        self.steps += 1
        if isinstance(function, FunctionType | MethodType):
            result = function(*args, **named)
            if not function.__module__.startswith("toolwire"):
                self.steps += _length(result)
            return result
        try:
            result = function(*args, **named)
        except Exception:
            self.steps += sum(_length(arg) for arg in args if isinstance(arg, (*_TEXT, msgspec.Raw)))
            raise
        self.steps += _cost(function, args, result)
        if getattr(function, "__name__", "") == "finditer":
            return self._found(result, args[0], args[1] if len(args) > 1 else 0)
        return result

    def _found(self, matches: Iterator[re.Match[str]], text: str, place: int) -> Iterator[re.Match[str]]:
        for match in matches:
            self.steps += match.end() - place
            place = match.end()
            yield match
        self.steps += len(text) - place


def _length(value: Any) -> int:
    if isinstance(value, msgspec.Raw):
        return len(bytes(value))
    return len(value) if isinstance(value, _SIZED) else 0


def _cost(function: Any, args: tuple[Any, ...], result: Any) -> int:
    """What a function in C went through, beside the step for the call."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if owner is None and args and getattr(function, "__objclass__", None) is type(args[0]):
        owner, args = args[0], args[1:]  # a method without its object, as in `bytes.removesuffix`
    if isinstance(owner, _TEXT):
        return _cost_on_text(owner, name, args, result)
    if isinstance(owner, re.Pattern):
        return _cost_of_match(name, args, result)
    if isinstance(owner, list) and name in ("pop", "insert"):
        place = args[0] if args else len(owner)
        return len(owner) - place if place >= 0 else 0
    if isinstance(owner, list | deque | dict | set | frozenset):
        new = sum(map(_length, args)) if name in _OVER_ALL | _OVER_NEW else 0
        return len(owner) + new if name in _OVER_ALL else new
    if isinstance(function, type):
        return (
            _length(result)
            if function in (*_SIZED, Counter) or isinstance(result, _SIZED)
            else sum(map(_length, args[1:]))
        )
    if name in ("sum", "any", "all", "max", "min", "sorted", "hash", "sha256"):
        return _length(args[0]) if len(args) == 1 else 0
    if name in ("decode", "encode", "format", "convert", "dumps", "loads"):
        return max(_length(args[0]), _length(result))
    return 0


def _cost_on_text(text: Any, name: str, args: tuple[Any, ...], result: Any) -> int:
    if name in _AT_ONCE:
        return 1
    if name in ("find", "index"):
        start, end = _bounds(args[1:], len(text))
        return (end if result < 0 else result) - start
    if name in ("rfind", "rindex"):
        return len(text) - max(result, 0)
    if name in _STRIPS:
        return 0 if len(result) == len(text) else len(text)
    if name in ("isspace", "isdigit", "isdecimal", "isalnum"):
        return len(text) if result else 1
    if name == "join":
        return 0 if _length(args[0]) == 1 else _length(result)  # of a single text it is that text
    return max(len(text), _length(result))


def _cost_of_match(name: str, args: tuple[Any, ...], result: Any) -> int:
    if name in ("search", "match", "fullmatch"):
        start, end = _bounds(args[1:], len(args[0]))
        return (result.end() if result is not None else end) - start
    return 0 if name == "finditer" else max(map(_length, args)) + _length(result)


def _bounds(given: Sequence[Any], length: int) -> tuple[int, int]:
    start = given[0] if given and given[0] is not None else 0
    end = given[1] if len(given) > 1 and given[1] is not None else length
    return min(start, length), max(min(end, length), min(start, length))


class _Counting(ast.NodeTransformer):
    """Puts the count into the bodies of functions."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: Any) -> Any:
        inside, self._inside = self._inside, True
        node.body = [_tick(), *self._all(node.body)]
        self._inside = inside
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        inside, self._inside = self._inside, True
        node.body = self.visit(node.body)
        self._inside = inside
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        inside, self._inside = self._inside, False
        node.body = self._all(node.body)
        self._inside = inside
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_For(self, node: Any) -> Any:
        return self._loop(node)

    visit_While = visit_AsyncFor = visit_For

    def _loop(self, node: Any) -> Any:
        self.generic_visit(node)
        if self._inside:
            node.body = [_tick(), *node.body]
        return node

    def _comprehension(self, node: Any) -> Any:
        self.generic_visit(node)
        if self._inside:
            part = "key" if isinstance(node, ast.DictComp) else "elt"
            setattr(node, part, _meter("tick", getattr(node, part)))
        return node

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        plain = isinstance(node.func, ast.Name) and node.func.id in ("super", "isinstance", "len", "cast")
        if not self._inside or plain:
            return node
        return ast.Call(_method("call"), [node.func, *node.args], node.keywords)

    def _made(self, node: Any) -> Any:
        self.generic_visit(node)
        return _meter("made", node) if self._inside else node

    visit_BinOp = visit_JoinedStr = _made

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        node.value = self.visit(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        is_slice = isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load)
        return _meter("made", node) if self._inside and is_slice else node

    def _display(self, node: Any) -> Any:
        self.generic_visit(node)
        parts = node.keys if isinstance(node, ast.Dict) else node.elts
        spreads = any(part is None or isinstance(part, ast.Starred) for part in parts)
        loads = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        return _meter("made", node) if self._inside and spreads and loads else node

    visit_List = visit_Tuple = visit_Set = visit_Dict = _display

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if not self._inside or len(node.ops) != 1:
            return node
        names = {ast.In: "contains", ast.NotIn: "contains", ast.Eq: "equal", ast.NotEq: "equal"}
        name = names.get(type(node.ops[0]))
        if name is None:
            return node
        found = _meter(name, node.left, node.comparators[0])
        return ast.UnaryOp(ast.Not(), found) if isinstance(node.ops[0], ast.NotIn | ast.NotEq) else found

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        node.value = self.visit(node.value)
        if not self._inside:
            return node
        node.value = _meter("made", node.value)
        return [node, ast.Expr(_meter("grown", _loaded(node.target)))]

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        return [*self._splices(node.targets), node]

    def visit_Delete(self, node: ast.Delete) -> Any:
        return [*self._splices(node.targets), node]

    def _splices(self, targets: list[ast.expr]) -> Iterator[ast.stmt]:
        for target in targets:
            if not self._inside or not isinstance(target, ast.Subscript):
                continue
            place = target.slice
            if isinstance(place, ast.Slice) or isinstance(target.ctx, ast.Del):
                start = place.lower if isinstance(place, ast.Slice) else place
                yield ast.Expr(_meter("spliced", target.value, start or ast.Constant(0)))

    def _all(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for each in body:
            new = self.visit(each)
            out += new if isinstance(new, list) else [new]
        return out


def _method(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("_meter_", ast.Load()), name, ast.Load())


def _meter(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(_method(name), list(args), [])


def _tick() -> ast.stmt:
    return ast.Expr(_meter("tick"))


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, meter: Meter) -> None:
        super().__init__(name, path)
        self._meter = meter

    def get_code(self, fullname: str) -> Any:
        tree = _Counting().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_meter_"] = self._meter
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not _is_ours(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._meter)
        return spec


def _is_ours(name: str) -> bool:
    return name == "toolwire" or name.startswith("toolwire.")


def metered(names: Sequence[str]) -> tuple[Meter, dict[str, Any]]:
    """These modules of the package with a count in them, beside those that everybody else uses."""
    meter = Meter()
    finder = _Finder(meter)
    usual = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    for name in usual:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        return meter, {name: importlib.import_module(f"toolwire.{name}") for name in names}
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(usual)


def counted(meter: Meter, work: Callable[[], object]) -> int:
    """The steps of some work."""
    before = meter.steps
    work()
    return meter.steps - before
