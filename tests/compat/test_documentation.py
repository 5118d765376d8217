"""compat/README.md has the table of the names that extensions of the reference UI can import, made from the facades;
each function and class of a facade says what it stands for. `python -m tests.compat.test_documentation` writes it."""

import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import compat.facades
from compat.finder import SHARED
from tests.cases import for_each

DOCUMENT = Path(__file__).parents[2] / "compat" / "README.md"
BEGIN, END = "<!-- the table of names begins -->", "<!-- the table of names ends -->"
INNER: tuple[str, ...] = (
    "refusal",
    "option_info",
    "options",
    "model_view",
    "style_book",
    "shared_state",
    "unsupported",
)
INNER += ("clip_view", "vision", "networks")
"""Files that hold parts of facades."""


def facades() -> Iterator[tuple[str, ModuleType]]:
    for found in pkgutil.walk_packages(compat.facades.__path__, "compat.facades."):
        name = found.name.removeprefix("compat.facades.")
        if name not in INNER:
            yield name, import_module(found.name)


def offered(module: ModuleType) -> list[str]:
    """The public names of a facade: its own and those it takes over, but not modules and types."""
    own = set(getattr(module, "__all__", ()))
    for name, value in vars(module).items():
        home = getattr(value, "__module__", module.__name__)
        is_own = home == module.__name__ and not inspect.ismodule(value)
        if is_own and not name.startswith("_") and name not in ("annotations", "REASONS", "NAMES", "INSIDE"):
            own.add(name)
    return sorted(own | set(vars(module).get("_LAZY", ())), key=lambda name: (name.lower(), name))


def table() -> str:
    rows = ["| module | names |", "|---|---|"]
    for name, module in facades():
        names = ", ".join(f"`{one}`" for one in offered(module))
        if names:
            rows.append(f"| `modules.{name}` | {names} |")
    return "\n".join(rows)


def test_the_table_is_that_of_the_facades() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    written = text.partition(BEGIN)[2].partition(END)[0].strip()
    # In a process of its own: facades keep what they looked up for others.
    words = [sys.executable, "-c", "from tests.compat.test_documentation import table; print(table())"]
    found = subprocess.run(words, cwd=DOCUMENT.parents[1], capture_output=True, text=True, check=True).stdout
    assert written == found.strip(), "run python -m tests.compat.test_documentation"


@for_each("name", [name for name, _ in facades()])
def test_each_name_says_what_it_stands_for(name: str) -> None:
    module = import_module(f"compat.facades.{name}")
    assert module.__doc__
    silent = []
    for one, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or one.startswith("_"):
            continue
        if (inspect.isfunction(value) or inspect.isclass(value)) and not value.__doc__:
            silent.append(one)
    assert silent == []


def test_no_file_of_ours_stands_before_a_facade() -> None:
    """Python finds our file first; it must ask the facade for the names that it has not."""
    ours = Path(__file__).parents[2] / "modules"
    hidden = []
    for name, _ in facades():
        path = ours.joinpath(*name.split("."))
        found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
        hidden += [str(file) for file in found if name not in SHARED]
    assert hidden == []


def test_reasons_are_sentences() -> None:
    reasons: dict[str, str] = dict(import_module("compat.facades.unsupported").MODULES)
    for name, module in facades():
        found = {**vars(module).get("_REASONS", {}), **vars(module).get("REASONS", {})}
        reasons |= {f"{name}.{one}": text for one, text in found.items()}
    assert [name for name, text in reasons.items() if not re.fullmatch(r"\S.*\.", text, re.DOTALL)] == []


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
