"""`python launch.py --test`: lint, format, types and tests, the same everywhere."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.setup.changed_tests import changed_tests
from modules.setup.process import say

CHANGED = "--changed"
"""`--test --changed [COMMIT]`: the tests of what differs from a commit."""
CHECKS: dict[str, tuple[str, ...]] = {
    "ruff check": ("ruff", "check", "."),
    "ruff format": ("ruff", "format", "--check", "."),
    "mypy": ("mypy",),
    "pytest": ("pytest", "-p", "hypothesispytest"),
}
# One process for each core; each file of tests in one of them, in the order of tests/conftest.py. More than four
# processes would need more memory than they save time.
SIDE_BY_SIDE = ("-p", "xdist", "-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder")
TESTS_FAILED = 1
"""pytest's exit code where tests ran and some failed."""
ALONE = ("-n", "0", "--last-failed", "--last-failed-no-failures", "none", "--maxfail", "20")
"""Only the tests that failed, in one process: more than 20 failures are no matter of what ran beside them."""


def run_checks(python: Path, root: Path, pytest_words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run all checks even if one fails; returns the exit code of the first in `CHECKS` that is not 0.

    Types are checked while the tests run; what mypy says is shown after them, so that the lines do not mix. Tests that
    fail side by side run once more, alone and after all others: what a test waits for comes late on a machine with
    more to do than cores, and that is no fault of the program. Which ones they were is said.
    """
    commands = {name: [str(python), "-m", *words] for name, words in CHECKS.items()}
    pytest_words = chosen(root, pytest_words)
    beside = side_by_side(pytest_words)
    commands["pytest"] += [*beside, *pytest_words]
    codes: dict[str, int] = {}

    def code_of(command: Sequence[str], own: Mapping[str, str]) -> int:
        return subprocess.run(command, cwd=root, env=dict(own), stdin=subprocess.DEVNULL).returncode

    def run(name: str) -> None:
        say(f"== {name}")
        codes[name] = code_of(commands[name], tests_environ(environ) if name == "pytest" else environ)

    run("ruff check")
    run("ruff format")
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
        run("pytest")
        said, _ = mypy.communicate()
    say(f"== mypy\n{said.rstrip()}")
    codes["mypy"] = mypy.returncode
    if codes["pytest"] == TESTS_FAILED and beside:
        say("== pytest: the tests that failed, once more and alone")
        if code_of([*commands["pytest"], *ALONE], tests_environ(environ)) == 0:
            say("== they pass alone: they fail only beside others (the summary above has the reason of each)")
            codes["pytest"] = 0
    failed = [name for name in CHECKS if codes[name] != 0]
    say("== all checks passed" if not failed else f"== failed: {', '.join(failed)}")
    return codes[failed[0]] if failed else 0


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

    pytest loads the plugins that `CHECKS` and `SIDE_BY_SIDE` name, not all that are installed: Schemathesis' imports
    300 modules for one test. What Python has compiled is kept for the next process.
    """
    kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def side_by_side(pytest_words: Sequence[str]) -> tuple[str, ...]:
    """What has pytest run in several processes: nothing, where its words switch pytest-xdist off.

    Other words of pytest-xdist come after these and win: `-n 0` runs all tests in one process.
    """
    without = {"no:xdist", "-pno:xdist"} & set(pytest_words)
    return () if without else SIDE_BY_SIDE
