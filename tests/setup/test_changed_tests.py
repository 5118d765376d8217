"""The tests of a change: those that reach a changed file by imports."""

import subprocess
from pathlib import Path

import pytest

from modules.errors import InvalidValueError
from modules.setup.changed_tests import changed_tests, import_graph, reaching
from modules.setup.checks import chosen

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files = {
        "modules/a.py": "",
        "modules/b.py": "from modules import a\n",
        "modules/scripts/library.py": "",
        "modules/data/table.json": "{}",
        "modules/data/reads.py": "",
        "extensions-builtin/x/scripts/x.py": "",
        "extensions-builtin/x/lib_x/work.py": "",
        "tests/test_work.py": "from lib_x.work import anything\n",
        "tests/test_a.py": "def test():\n    import modules.b\n",
        "tests/test_scripts.py": "from modules.scripts.library import anything\n",
        "tests/test_data.py": "import modules.data.reads\n",
        "modules/rows/catalog.py": 'TARGET = "euler:sample"',
        "modules/rows/euler.py": "",
        "docs/table.md": "",
        "docs/other.md": "",
        "tests/js/a.test.js": "",
        "tests/ui/conftest.py": "",
        "tests/ui/test_page.py": "import modules.rows.catalog\n",
        "tests/test_docs.py": 'TABLE = "table.md"\n',
        "tests/test_node.py": 'FOLDER = "js"\n',
        "tests/test_walk.py": 'FILES = sorted(ROOT.rglob("*.js"))\n',
        "tests/conftest.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_nothing_changed_nothing_to_run(repository: Path) -> None:
    assert changed_tests(repository, "HEAD") == []


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("modules/a.py", ["tests/test_a.py"]),
        ("extensions-builtin/x/scripts/x.py", ["tests/test_scripts.py"]),
        ("extensions-builtin/x/lib_x/work.py", ["tests/test_scripts.py", "tests/test_work.py"]),
        ("modules/data/table.json", ["tests/test_data.py"]),
        ("modules/rows/euler.py", ["tests/ui/test_page.py"]),
        ("docs/table.md", ["tests/test_docs.py"]),
        ("docs/other.md", []),
        ("tests/js/a.test.js", ["tests/test_node.py", "tests/test_walk.py"]),
        ("tests/ui/conftest.py", ["tests/ui/test_page.py"]),
        ("tests/test_new.py", ["tests/test_new.py"]),
        ("tests/conftest.py", ["tests"]),
    ],
)
def test_a_change_is_told_by_those_that_reach_it(repository: Path, file: str, tests: list[str]) -> None:
    (repository / file).write_text("# changed\n")
    assert changed_tests(repository, "HEAD") == tests
    told = tests or ["tests/test_imports.py"]
    assert chosen(repository, ["--changed", "-x"]) == [*told, "-x"]
    assert chosen(repository, ["--changed", "HEAD", "-x"]) == [*told, "-x"]


def test_an_unknown_commit_is_refused(repository: Path) -> None:
    with pytest.raises(InvalidValueError, match="--changed nowhere: git says"):
        changed_tests(repository, "nowhere")


def test_the_graph_of_this_program_reaches_tests() -> None:
    reached = reaching(import_graph(ROOT), {"modules/sampling/brownian.py"})
    assert "tests/sampling/test_brownian.py" in reached and "tests/setup/test_lock.py" not in reached
