"""The rows of the matrix and the tests that make them, told from the sources: nothing is imported, nothing is tried.

What a row is called may depend on the parameters of its test, on a loop around it, and on names that are constants of
the module or of another one of the tests. All of these are worked out; anything else in a name is `ANYTHING`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ANYTHING = "\0"  # in a name, for what only a run can tell
_PARAMETERS = "pytest.mark.parametrize"

Binding = tuple[ast.expr, ast.expr]  # target and value of an assignment


@dataclass(frozen=True)
class Made:
    """A row that a test makes.

    Attributes:
      group: key of `matrix.GROUPS`.
      fault: name of the row.
      test: node id of its test, without parameters.
    """

    group: str
    fault: str
    test: str


@functools.cache
def made() -> tuple[Made, ...]:
    """Returns a row for each `fault(...)` and each value that its name can take, in the order of the sources."""
    found = (
        Made(*_named(call, names), f"{_relative(path)}::{test.name}")
        for path, test in _tests()
        for call in _calls(test)
        for names in _scopes(test, call, _Scope(_bindings(_parsed(path).body), _Module(path)))
    )
    return tuple(dict.fromkeys(found))


def every_test() -> set[str]:
    """Returns the node ids of all tests here, without parameters."""
    return {f"{_relative(path)}::{test.name}" for path, test in _tests()}


class _Unknown:
    """Stands for a value that only a run can tell; nothing but text can be made of it."""

    def __str__(self) -> str:
        return ANYTHING

    def __bool__(self) -> bool:
        raise TypeError("only a run can tell")

    def __eq__(self, other: object) -> bool:
        raise TypeError("only a run can tell")

    __hash__ = None  # type: ignore[assignment]


class _Module(dict):
    """What a module imports from other tests, worked out when it is asked for; every other name is unknown."""

    def __init__(self, path: Path) -> None:
        self._from = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in _parsed(path).body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
            for alias in node.names
        }

    def __missing__(self, name: str) -> Any:
        if name in self._from:
            module, original = self._from[name]
            path = ROOT / (module.replace(".", "/") + ".py")
            return _Scope(_bindings(_parsed(path).body), _Module(path))[original] if path.exists() else _Unknown()
        if hasattr(builtins, name):
            raise KeyError(name)
        return _Unknown()


class _Scope(dict):
    """Names with values, and others with sources, which are worked out when they are asked for."""

    def __init__(self, sources: Mapping[str, Binding], around: dict, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values or {})
        self._sources, self._around = sources, around

    def __missing__(self, name: str) -> Any:
        if name not in self._sources:
            return self._around[name]
        target, value = self._sources[name]
        return dict(_spread(target, _value(value, self)))[name]


def _tests() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted(HERE.glob("test_*.py")):
        for node in _parsed(path).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield path, node


def _calls(test: ast.FunctionDef) -> Iterator[ast.Call]:
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fault":
            yield node


def _scopes(test: ast.FunctionDef, call: ast.Call, module: _Scope) -> Iterator[_Scope]:
    """Yields what names stand for at a call: once for each value of the parameters and of the loops around it."""
    choices = []
    for one in test.decorator_list:
        if isinstance(one, ast.Call) and ast.unparse(one.func) == _PARAMETERS:
            names = _value(one.args[0], module)
            targets = [names] if isinstance(names, str) and "," not in names else _split(names)
            target = ast.parse(", ".join(targets), mode="eval").body
            choices.append(_choices(target, _value(one.args[1], module)))
    local = _bindings(test.body)
    for loop in (node for node in ast.walk(test) if isinstance(node, ast.For)):
        if any(node is call for node in ast.walk(loop)):
            choices.append(_choices(loop.target, _value(loop.iter, _Scope(local, module))))
            local |= _bindings(loop.body)
    for chosen in itertools.product(*choices):
        yield _Scope(local, module, {name: value for part in chosen for name, value in part.items()})


def _named(call: ast.Call, names: _Scope) -> tuple[str, str]:
    parts: list[object] = []
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            found = _value(argument.value, names)
            parts += [ANYTHING] if isinstance(found, _Unknown) else found
        else:
            parts.append(_value(argument, names))
    return str(parts[0]), str(parts[1])


def _choices(target: ast.expr, values: Any) -> list[dict[str, Any]]:
    if isinstance(values, _Unknown):
        return [{node.id: values for node in ast.walk(target) if isinstance(node, ast.Name)}]
    return [dict(_spread(target, value)) for value in values]


def _spread(target: ast.expr, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and value of what an assignment assigns."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        parts: Iterable[Any] = itertools.repeat(value) if isinstance(value, _Unknown) else value
        for one, part in zip(target.elts, parts):  # noqa: B905 - what is unknown has no end
            yield from _spread(one, part)


def _value(node: ast.expr, names: _Scope) -> Any:
    code = compile(ast.Expression(node), "<source of a test>", "eval")
    try:
        return eval(code, {}, names)  # of our own tests, whose sources are run anyway
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError):
        return _Unknown()


def _bindings(body: list[ast.stmt]) -> dict[str, Binding]:
    """Returns name -> the assignment that makes it, of those directly in a body."""
    found = {}
    for node in body:
        if isinstance(node, ast.Assign):
            for name in (name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)):
                found[name.id] = (node.targets[0], node.value)
    return found


def _split(names: Any) -> list[str]:
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
