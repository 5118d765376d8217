"""Imports go down only and never in a ring; those for type checkers and those inside functions count too."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ROOT / "modules"
ORDER = (
    ("setup", "ui"),
    ("api", "cli"),
    ("assembly",),
    ("services",),
    ("jobs",),
    ("scripts", "history"),
    ("postprocessing",),
    ("processing", "model_cards", "model_shelf", "detection"),
    ("adapters", "faces", "captioning"),
    ("downloads",),
    ("models", "images", "upscalers"),
    ("prompting", "sampling", "access"),
    ("settings",),
    ("memory",),
    ("flags",),
    ("system",),
    ("errors", "version", "plots"),
)
"""The rooms of `modules/`, from the top down. A room imports itself and what is below its own row."""
ROW = {room: row for row, rooms in enumerate(ORDER) for room in rooms}
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "models": (
        ("loading",),
        ("placing", "opening"),
        ("families",),
        ("text_encoders", "autoencoders"),
        ("names",),
        ("detection",),
        ("files", "libraries"),
    ),
    "jobs": (
        ("workers", "batch"),
        ("work",),
        ("restart",),
        ("computing", "dispatch", "needed_models", "editing", "ownership"),
        ("line",),
        ("turns",),
        ("images", "waiting", "repeats", "when_done"),
        ("known",),
        ("store", "order", "lanes"),
        ("input_files", "tasks"),
        ("job",),
    ),
    "ui": (("list_texts",), ("app",), ("page", "routes"), ("tabs",), ("form",), ("common",)),
    "api": (("app",), ("program", "jobs"), ("history", "generation"), ("access",), ("schema",)),
    "processing": (("memory_estimate", "comparison"), ("pipeline",), ("record",), ("engine",), ("request",)),
}
"""The subfolders and files of a room, from the top down, where they are floors."""


def dotted(path: Path, base: Path = ROOT) -> str:
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(folder: Path = MODULES) -> dict[str, dict[str, int]]:
    """By file of a folder, which other files of it are imported anywhere in its text, and in which line first."""
    files = {
        dotted(path, folder.parent): path
        for path in folder.rglob("*.py")
        if path.parent != folder or path.stem != "__init__"
    }
    return {name: dict(imported_by(path, files, name)) for name, path in files.items()}


def imported_by(path: Path, files: dict[str, Path], own: str) -> Iterator[tuple[str, int]]:
    for node in reversed(list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0 and node.module, f"{path}: a relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in files else node.module for name in full]
        for name in names:
            if name in files and name != own:
                yield name, node.lineno


def test_the_program_knows_nothing_of_what_hangs_on_it() -> None:
    """`compat` and the extensions import the program, never the other way round."""
    names = {path.stem for path in (ROOT / "extensions-builtin").glob("*/*") if path.is_dir()} | {"compat"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        if name.partition(".")[0] in names
    ]
    assert found == []


def room(name: str) -> str:
    return name.split(".")[1]


def test_every_room_has_its_row() -> None:
    assert {room(name) for name in imports()} == set(ROW)


def test_imports_go_down() -> None:
    upward = [
        f"{name}:{line} imports {other}"
        for name, others in imports().items()
        for other, line in others.items()
        if room(other) != room(name) and ROW[room(other)] <= ROW[room(name)]
    ]
    assert upward == []


def floor(name: str) -> str:
    """The subfolder that a file of a room is in; for a file outside of all its own name."""
    return name.split(".")[2]


@pytest.mark.parametrize("inside", FLOORS)
def test_subfolders_import_down_only(inside: str) -> None:
    row = {folder: number for number, folders in enumerate(FLOORS[inside]) for folder in folders}
    own = {name: others for name, others in imports().items() if room(name) == inside and name != f"modules.{inside}"}
    assert {floor(name) for name in own} <= set(row)
    upward = [
        f"{name}:{line} imports {other}"
        for name, others in own.items()
        for other, line in others.items()
        if other in own and floor(other) != floor(name) and row[floor(other)] <= row[floor(name)]
    ]
    assert upward == []


PACKAGES = sorted(ROOT.glob("extensions-builtin/*/lib_*"))


@pytest.mark.parametrize("folder", [MODULES, ROOT / "compat", *PACKAGES], ids=lambda folder: folder.name)
def test_no_files_import_each_other_in_a_ring(folder: Path) -> None:
    """Files that import only what is known to be in no ring are in none either; what is left over is."""
    left = {name: set(others) for name, others in imports(folder).items()}
    while free := {name for name, others in left.items() if not others}:
        left = {name: others - free for name, others in left.items() if name not in free}
    assert sorted(left) == []


HEAVY = ("torch", "diffusers", "transformers")
SERVER = (
    *(
        "webui.py",
        "modules/ui/app.py",
        "modules/api/app.py",
        "modules/api/program/extensions.py",
        "modules/api/access/guard.py",
    ),
    *(f"extensions-builtin/training/lib_training/{name}.py" for name in ("work", "routes", "tab")),
    *(f"extensions-builtin/workbench/lib_workbench/{name}.py" for name in ("precision_work", "merge_work", "routes")),
    *(f"extensions-builtin/workbench/lib_workbench/{name}_tab.py" for name in ("precision", "merger")),
)


def imported_at_once(statements: list[ast.stmt]) -> Iterator[str]:
    """What these import when they run, without functions and what is for type checkers."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.If):
            is_checked = "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imported_at_once(node.orelse if is_checked else [*node.body, *node.orelse])
        elif isinstance(node, ast.Try | ast.With):
            yield from imported_at_once(node.body)


def test_the_server_starts_without_torch() -> None:
    """It holds no model: PyTorch would be 200 MB of its memory, and seconds of its start."""
    files = {dotted(path): path for path in MODULES.rglob("*.py")}
    files |= {dotted(path, folder.parent): path for folder in PACKAGES for path in folder.rglob("*.py")}
    scripts = ROOT.glob("extensions-builtin/*/scripts/*.py")
    found, left, heavy = set[str](), [*(ROOT / name for name in SERVER), *scripts], list[str]()
    while left:
        path = left.pop()
        for name in imported_at_once(ast.parse(path.read_text(encoding="utf-8")).body):
            if name.split(".")[0] in HEAVY:
                heavy.append(f"{path.relative_to(ROOT)} imports {name}")
            elif name in files and name not in found:
                found.add(name)
                left.append(files[name])
    assert heavy == [] and len(found) > 200
