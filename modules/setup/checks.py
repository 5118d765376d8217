"""`python launch.py --test`: lint, format, types and tests, the same everywhere."""

import os
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.setup.changed_tests import changed_tests
from modules.setup.process import say
from modules.system.cores import usable_cores

CHANGED = "--changed"
"""`--test --changed [COMMIT]`: the tests of what differs from a commit."""
CHECKS: dict[str, tuple[str, ...]] = {
    "ruff check": ("ruff", "check", "."),
    "ruff format": ("ruff", "format", "--check", "."),
    "mypy": ("mypy",),
    "pytest": ("pytest", "-p", "hypothesispytest", "--costs"),
}
BUDGET = "cpu seconds"
"""The last check of a run of all tests: what all checks may take, by pyproject.toml."""
OVER_BUDGET = 4 / 3
"""More than this times the budget fails: growth does, another load hardly."""
MAX_PROCESSES = 4
"""More would need more memory than they save time."""


def run_checks(python: Path, root: Path, pytest_words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run all checks even if one fails; returns the exit code of the first that is not 0.

    Types are checked while the tests run; what mypy says is shown after them, so that the lines do not mix. A run of
    all tests must keep to the budget of CPU seconds.
    """
    commands = {name: [str(python), "-m", *words] for name, words in CHECKS.items()}
    is_whole = not pytest_words
    pytest_words = chosen(root, pytest_words)
    commands["pytest"] += [*side_by_side(pytest_words), *pytest_words]
    codes: dict[str, int] = {}
    slowness = _slowness(python, root) if is_whole else 1.0
    used_before_s = _used_s()

    def run(name: str, own: Mapping[str, str]) -> None:
        say(f"== {name}")
        codes[name] = subprocess.run(commands[name], cwd=root, env=dict(own), stdin=subprocess.DEVNULL).returncode

    run("ruff check", environ)
    run("ruff format", environ)
    with subprocess.Popen(
        commands["mypy"],
        cwd=root,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as mypy:
        run("pytest", tests_environ(environ))
        said, _ = mypy.communicate()
    say(f"== mypy\n{said.rstrip()}")
    codes["mypy"] = mypy.returncode
    if is_whole and (used_s := _used_s() - used_before_s):  # 0 on Windows, which does not tell
        slowness = max(slowness, _slowness(python, root))
        budget_s = slowness * _described(root)["checks_cpu_seconds"]
        most_s = budget_s * OVER_BUDGET
        say(f"== {BUDGET}\n{used_s:.0f} of {budget_s:.0f} on this CPU; more than {most_s:.0f} fail (pyproject.toml)")
        codes[BUDGET] = int(used_s > most_s)
    failed = [name for name in (*CHECKS, BUDGET) if codes.get(name, 0) != 0]
    say("== all checks passed" if not failed else f"== failed: {', '.join(failed)}")
    return codes[failed[0]] if failed else 0


def _used_s() -> float:
    """Return the CPU seconds of all processes that this one has started and waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _slowness(python: Path, root: Path) -> float:
    """Return how many times as long this CPU takes as the one that the budget was measured on; 1 for a faster one."""
    words = [str(python), "-m", "tests.costs"]
    said = subprocess.run(words, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    return max(1.0, float(said) / _described(root)["checks_yardstick_seconds"])


def _described(root: Path) -> dict[str, float]:
    """Return what pyproject.toml says of checks."""
    described: dict[str, float] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "featherweight"
    ]
    return described


def chosen(root: Path, words: Sequence[str]) -> Sequence[str]:
    """pytest's words, with the tests of a change in place of `--changed [COMMIT]` (HEAD where none is named)."""
    if CHANGED not in words:
        return words
    at = list(words).index(CHANGED)
    named = words[at + 1 : at + 2]
    since = named[0] if named and not named[0].startswith("-") and not (root / named[0]).exists() else "HEAD"
    rest = [*words[:at], *words[at + 1 + (since in named) :]]
    tests = changed_tests(root, since)
    say(f"== {len(tests)} files of tests can tell what differs from {since}")
    return [*(tests or ["tests/test_imports.py"]), *rest]


def tests_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the tests, in which each process starts sooner.

    pytest loads the plugins that `CHECKS` and `side_by_side` name, not all that are installed: Schemathesis' imports
    300 modules for one test. What Python has compiled is kept for the next process.
    """
    kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def side_by_side(pytest_words: Sequence[str]) -> tuple[str, ...]:
    """The words that have pytest run in a process for each core: none, where its words switch pytest-xdist off.

    Each process begins with its share of the folders, so that most of what is made once for a process is made in one;
    one that is done takes files from another (`tests/whole_files.py`). Other words of pytest-xdist come after these and
    win: `-n 0` runs all tests in one process.
    """
    if {"no:xdist", "-pno:xdist"} & set(pytest_words):
        return ()
    processes = min(len(usable_cores()), MAX_PROCESSES)
    return ("-p", "xdist", "-n", str(processes), "--dist", "worksteal")
