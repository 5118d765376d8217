"""How large the program is, and what of it is changed from everywhere: limits that may only shrink."""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMITS = {("modules",): 66_751, ("modules", "compat", "extensions-builtin"): 99_014}
"""Lines of code of folders together. The aim is 58,000 and 84,000."""
CHANGING = ("append", "add", "extend", "insert", "update", "setdefault", "remove", "discard", "pop", "popitem", "clear")
CONTAINERS = ("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "WeakKeyDictionary", "WeakSet")
MAX_METHODS, MAX_PARTS = 25, 8
NAMES_OF_STRANGERS = {
    "compat/facades/infotext_utils.py": {"paste_fields", "registered_param_bindings"},
    "compat/facades/patches.py": {"originals"},
}
"""Names of the reference UI that its extensions read and change."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
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


def public_methods(cls: ast.ClassDef) -> int:
    names = (each.name for each in cls.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return len({name for name in names if not name.startswith("_")})


def parts(cls: ast.ClassDef) -> int:
    """What a constructor is given: its arguments, or the fields without a default of a data class that may change.
    Frozen ones are values, as large as what they describe."""
    for each in cls.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return len([*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]) - 1
    decorators = [ast.unparse(each) for each in cls.decorator_list]
    if not any("dataclass" in each and "frozen" not in each for each in decorators):
        return 0
    return sum(isinstance(each, ast.AnnAssign) and each.value is None for each in cls.body)


def test_classes_stay_small() -> None:
    found: dict[str, dict[str, int]] = {}
    for path in sorted((ROOT / "modules").rglob("*.py")):
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            methods, given = public_methods(node), parts(node)
            if methods > MAX_METHODS or given > MAX_PARTS:
                larger = methods if methods > MAX_METHODS else given
                found.setdefault(path.relative_to(ROOT).as_posix(), {})[node.name] = larger
    assert found == {}, "split the class"


@pytest.mark.parametrize(
    ("source", "methods", "given"),
    [
        ("class A:\n def __init__(self, a, *, b): ...\n def c(self): ...\n def _d(self): ...", 1, 2),
        ("@dataclass\nclass A:\n a: int\n b: int = 1\n async def c(self): ...", 1, 1),
        ("@dataclass(frozen=True)\nclass A:\n a: int\n", 0, 0),
        ("class A:\n @property\n def c(self): ...\n @c.setter\n def c(self, value): ...", 1, 0),
    ],
)
def test_methods_and_parts_are_counted(source: str, methods: int, given: int) -> None:
    (cls,) = ast.parse(source).body
    assert isinstance(cls, ast.ClassDef)
    assert (public_methods(cls), parts(cls)) == (methods, given)
