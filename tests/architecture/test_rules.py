"""
The house's rules about source text: sizes, docstrings, and words that have no place where they would stand.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_layers import ROOMS
from tests.conftest import ROOT

LONGEST_MODULE = 500
LONGEST_FUNCTION = 50
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
EVERYWHERE = sorted([*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])
USE_CASES = [
    path
    for room in sorted(ROOMS)
    for path in sorted((ROOT / "src" / "controlplane" / room).glob("*.py"))
    if path.name not in {"__init__.py", "models.py"} and not path.stem.endswith("routes")
]
OWN_TRANSACTIONS = {"authenticating"}
"""A credential is looked up before there is a request's transaction, and behind another wall."""
NAMES = re.compile(r"^(utils?|helpers?|common|base|misc|manager)$")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
WORKPLACE = re.compile("/work" + "/|/tmp/" + "brief")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(path: Path) -> ast.Module:
    """The module's tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function at any depth."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def show(path: Path, line: int = 0) -> str:
    """Where something was found."""
    return f"{path.relative_to(ROOT)}:{line}"


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every call as (dotted name, line)."""
    return ((ast.unparse(node.func), node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_modules_end_in_time() -> None:
    """No module is longer than 500 lines."""
    long = [show(path, n) for path in SOURCES if (n := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_MODULE]
    assert long == []


def test_functions_end_in_time() -> None:
    """No function's body is longer than 50 lines, its docstring and what is nested in it included."""
    long = [
        f"{show(path, one.lineno)} {one.name}"
        for path in SOURCES
        for one in functions(parse(path))
        if (one.end_lineno or 0) - one.body[0].lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == []


def test_use_cases_never_commit() -> None:
    """Transactions end at the edge and in the driver: nothing in a room commits or rolls back, but for what runs outside of both."""
    found = [
        f"{show(path, line)} {name}"
        for path in USE_CASES
        if path.stem not in OWN_TRANSACTIONS
        for name, line in calls(parse(path))
        if name in {"session.commit", "session.rollback", "session.begin", "call.session.commit"}
    ]
    assert found == []


def test_use_cases_read_no_clock() -> None:
    """Rooms tell time by the database: none reads this process's clock for a fact."""
    clocks = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time", "utc_now", "time.time_ns"}
    found = [f"{show(path, line)} {name}" for path in USE_CASES for name, line in calls(parse(path)) if name in clocks]
    assert found == []


def test_imports_stand_at_the_top() -> None:
    """No function or class imports anything."""
    found = [
        show(path, inner.lineno)
        for path in SOURCES
        for outer in ast.walk(parse(path))
        if isinstance(outer, Function | ast.ClassDef)
        for inner in ast.walk(outer)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert found == []


def test_nothing_is_left_for_later() -> None:
    """No note promises work, and no path of the machine it was written on is left."""
    found = [
        show(path, number)
        for path in EVERYWHERE
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line) or WORKPLACE.search(line)
    ]
    assert found == []


def test_modules_have_names_that_say_something() -> None:
    """No module is called after what everything could be called."""
    assert [show(path) for path in SOURCES if NAMES.match(path.stem)] == []


def test_everything_public_has_a_docstring() -> None:
    """Modules, classes and functions that others use have docstrings with the quotes on their own lines."""
    wrong = [f"{show(path, line)} {name}" for path in SOURCES for name, line in _badly_documented(path)]
    assert wrong == []


def test_every_field_is_explained() -> None:
    """Each field of a dataclass and each column has a line of its own below it, or a comment."""
    wrong = [
        f"{show(path, line)} {name}"
        for path in SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and _has_fields(node)
        for name, line in _unexplained(node, path.read_text(encoding="utf-8").splitlines())
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["unit", "integration", "contract", "architecture", "e2e", "migration"])
def test_every_test_says_what_it_shows(folder: str) -> None:
    """Each test has a docstring."""
    found = [
        f"{show(path, one.lineno)} {one.name}"
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        for one in functions(parse(path))
        if one.name.startswith("test_") and not ast.get_docstring(one)
    ]
    assert found == []


def _badly_documented(path: Path) -> Iterator[tuple[str, int]]:
    text = path.read_text(encoding="utf-8")
    tree = parse(path)
    for node, name in _public(tree):
        if not isinstance(node, ast.Module) and name.startswith("_"):
            continue
        first = node.body[0] if node.body else None
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        if not documented:
            yield name, getattr(node, "lineno", 1)
            continue
        assert first is not None
        source = text.splitlines()[first.lineno - 1 : first.end_lineno]
        if source[0].strip() not in {'"""', 'r"""'} or source[-1].strip() != '"""':
            yield f"{name} (form)", first.lineno


def _public(tree: ast.Module) -> Iterator[tuple[ast.Module | ast.ClassDef | Function, str]]:
    yield tree, "module"
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        yield node, node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.ClassDef | Function) and not inner.name.startswith("_") and not _overloads(inner):
                    yield inner, f"{node.name}.{inner.name}"


def _overloads(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(one).rpartition(".")[2] in {"overload", "setter"} for one in node.decorator_list)


def _has_fields(node: ast.ClassDef) -> bool:
    decorated = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    return decorated or any(ast.unparse(one) == "Base" for one in node.bases)


def _unexplained(node: ast.ClassDef, lines: list[str]) -> Iterator[tuple[str, int]]:
    for one, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(one, ast.AnnAssign):
            continue
        name = ast.unparse(one.target)
        explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        commented = "#" in lines[(one.end_lineno or one.lineno) - 1] or lines[one.lineno - 2].lstrip().startswith("#")
        if not name.startswith("_") and not explained and not commented:
            yield f"{node.name}.{name}", one.lineno
