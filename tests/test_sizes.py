"""How large the program is, and what of it is changed from everywhere: limits that may only shrink."""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMITS = {("modules",): 66_200, ("modules", "compat", "extensions-builtin"): 91_600}
"""Lines of code of folders together. The aim is 58,000 and 84,000."""
CHANGING = ("append", "add", "extend", "insert", "update", "setdefault", "remove", "discard", "pop", "popitem", "clear")
CONTAINERS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "WeakKeyDictionary", "WeakSet")
NAMES_OF_STRANGERS = {"compat/facades/infotext_utils.py": {"paste_fields", "registered_param_bindings"}}
"""Names of the reference UI that its extensions read and change."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def code_lines(path: Path) -> int:
    """The lines of a file that are neither blank nor comments nor parts of docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = set[int]()
    for node in ast.walk(tree(path)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) and isinstance(node, documented) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                    texts.update(range(first, (last or first) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    held = {line for one in tokens if one.type not in skipped for line in range(one.start[0], one.end[0] + 1)}
    return len(held - texts)


@pytest.mark.parametrize("folders", LIMITS, ids=" ".join)
def test_the_program_does_not_grow(folders: tuple[str, ...]) -> None:
    lines = sum(code_lines(path) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert lines <= LIMITS[folders], f"{lines} lines of code in {', '.join(folders)}: make room before you add"


def test_code_lines_are_those_that_do_something(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""A module.\n\nMore."""\n\n# a comment\nx = """a\nb"""  # two lines\ndef f():\n    """Do."""\n    return 1\n'
    )
    assert code_lines(file) == 4


def changed_containers(path: Path) -> Iterator[str]:
    """The module's own lists, dicts and sets that one of its functions changes."""
    own = {
        target.id
        for node in tree(path).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_container(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from sorted(own & set(changed_in(function)))


def is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        called = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return ast.unparse(called).rpartition(".")[2] in CONTAINERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def changed_in(function: ast.AST) -> Iterator[str]:
    """The names that a function changes in place, or binds anew with `global`."""
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        match node:
            case ast.Global(names=names):
                yield from names
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in CHANGING:
                yield name
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                pass
            case ast.AugAssign(target=changed):
                targets = [changed]
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                yield target.value.id


def test_no_function_changes_what_its_module_holds() -> None:
    """Objects that live as long as the program are in `Services` or `Computing`, entries in a `Registry`."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("modules", "compat", "extensions-builtin")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in changed_containers(path)
        if name not in NAMES_OF_STRANGERS.get(path.relative_to(ROOT).as_posix(), ())
    ]
    assert found == []
