"""Which test files can tell what a change did: those whose imports, followed to their end, reach a changed file."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from modules.errors import InvalidValueError

CODE = ("modules", "compat", "tests", "benchmarks", "recipes", "extensions-builtin")
LOADERS = {"modules.scripts.library": "extensions-builtin/", "modules.ui.app": "modules/ui/"}
"""Modules that read other files than those they import: all below a folder."""
EVERYTHING = ("requirements", "pyproject.toml", "tests/conftest.py", "tests/reference/")
"""Beginnings of files that every test may depend on."""


def changed_tests(root: Path, since: str) -> list[str]:
    """The test files to run for what differs from the commit `since`, uncommitted and new files included.

    Raises `InvalidValueError` where git does not know the commit.
    """
    changed = sorted(set(_changed(root, since)))
    if any(name.startswith(EVERYTHING) for name in changed):
        return ["tests"]
    graph = import_graph(root)
    reached = reaching(graph, set(changed) | set(_read_without_import(root, graph, changed)))
    return sorted(name for name in reached if name.startswith("tests/") and Path(name).name.startswith("test_"))


def _changed(root: Path, since: str) -> Iterator[str]:
    for words in (["diff", "--name-only", since, "--"], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InvalidValueError(f"--changed {since}: git says: {done.stderr.strip().splitlines()[0]}")
        yield from done.stdout.splitlines()


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return by file, relative to `root` with forward slashes, the files that it imports anywhere in its text."""
    files = {
        path.relative_to(root).as_posix(): path
        for folder in CODE
        for path in sorted((root / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    files |= {path.name: path for path in root.glob("*.py")}
    names = {_dotted(name): name for name in files}
    return {name: set(_imports(path, names)) - {name} for name, path in files.items()}


def _dotted(name: str) -> str:
    """Return the name by which a file is imported; packages of extensions are found from the extension's folder."""
    within = re.sub(r"^extensions-builtin/[^/]+/(?=lib_)", "", name)
    return within.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(path: Path, names: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            wanted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (names[name] for name in wanted if name in names)


def _read_without_import(root: Path, graph: Mapping[str, set[str]], changed: Iterable[str]) -> Iterator[str]:
    """The files that depend on changed ones which no import names.

    Scripts and data below a loader's folder have the loader; a conftest.py has the tests of its folder; what else no
    file imports (tables next to the code, modules named in a row) has its neighbours. A file without neighbours, a
    document for one, has the tests that name it or its folder, and for `configs` the modules that do. Tests that walk
    through all files of a kind have each of that kind.
    """
    imported = set[str]().union(*graph.values())
    tests = {file: (root / file).read_text("utf-8") for file in graph if file.startswith("tests/")}
    walks = tuple(f'.rglob("*{Path(name).suffix}")' for name in changed)
    yield from (file for file, text in tests.items() if any(walk in text for walk in walks))
    for name in changed:
        folder, _, own = name.rpartition("/")
        yield from (f"{loader.replace('.', '/')}.py" for loader, below in LOADERS.items() if name.startswith(below))
        near = [file for file in graph if folder and file.startswith(f"{folder}/")]
        if own == "conftest.py" or (name not in imported and not own.startswith("test_")):
            yield from near
        if not near and not name.endswith(".py"):
            named = re.compile(rf"[\"/ ]{re.escape(own)}\b" + (rf'|"{Path(folder).name}"' if folder else ""))
            readers = (file for file in graph if file.startswith("tests/") or folder == "configs")
            yield from (file for file in readers if named.search((root / file).read_text("utf-8")))


def reaching(graph: Mapping[str, set[str]], changed: set[str]) -> set[str]:
    """The changed files and all that import them, directly or not."""
    importers: dict[str, set[str]] = {}
    for name, imported in graph.items():
        for other in imported:
            importers.setdefault(other, set()).add(name)
    found, left = set[str](), list(changed)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(importers.get(name, ()))
    return found
