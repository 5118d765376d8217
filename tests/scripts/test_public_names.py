"""The extensions that ship with the program import only what docs/extensions.md offers to everybody."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.cases import for_each

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extensions.md").read_text(encoding="utf-8")
FILES = sorted((ROOT / "extensions-builtin").rglob("*.py"))
PARTS = ("agent-scheduler", "farm", "openai-images", "remote-workers", "takeover", "training", "workbench")
"""Extensions that are parts of the program: only their `scripts/` keep to the table."""


def offered() -> dict[str, set[str]]:
    """The names by module, of the table."""
    table = TEXT.partition("## What an extension may import")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {module: set(re.findall(r"`(\w+)`", row[2])) for row in rows for module in re.findall(r"`([\w.]+)`", row[1])}


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """Pairs of module and name; of a whole module the name is empty."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            for alias in node.names:
                is_module = node.module == "modules"
                yield (f"modules.{alias.name}", "") if is_module else (str(node.module), alias.name)


def keeps_to_the_table(file: Path) -> bool:
    return file.parent.name == "scripts" or file.relative_to(ROOT / "extensions-builtin").parts[0] not in PARTS


@for_each("file", [file for file in FILES if keeps_to_the_table(file)], ids=lambda file: file.stem)
def test_only_public_names_are_imported(file: Path) -> None:
    table = offered()
    used = [pair for pair in imported(file) if pair[0].split(".")[0] in ("modules", "tests", "webui", "launch")]
    assert used or file.parent.name != "scripts"  # modules of an extension's own may need nothing
    private = [(module, name) for module, name in used if name not in table.get(module, set()) | {""}]
    assert private == []
    assert [module for module, _ in used if module not in table] == []


@for_each("module", [name for name in offered() if name != "modules.scripts.script_callbacks"])
def test_what_is_offered_is_there(module: str) -> None:
    found = import_module(module)
    missing = {name for name in offered()[module] if not hasattr(found, name)}
    assert {name for name in missing if find_spec(f"{module}.{name}") is None} == set()


def test_the_program_does_not_know_the_extension_lora() -> None:
    knows = re.compile(r"featherweight_scripts\.Lora|extensions-builtin.{1,4}Lora")
    files = (ROOT / "modules").rglob("*.py")
    assert [file for file in files if knows.search(file.read_text(encoding="utf-8"))] == []
