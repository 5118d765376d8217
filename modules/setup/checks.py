"""`python launch.py --test`: lint, format, types and tests, the same everywhere."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.setup.process import say

CHECKS: dict[str, tuple[str, ...]] = {
    "ruff check": ("ruff", "check", "."),
    "ruff format": ("ruff", "format", "--check", "."),
    "mypy": ("mypy",),
    "pytest": ("pytest",),
}
# One process for each core; each file of tests in one of them, in the order of tests/conftest.py. More than four
# processes would need more memory than they save time.
SIDE_BY_SIDE = ("-n", "logical", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder")


def run_checks(python: Path, root: Path, pytest_words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run all checks, one after the other even if one fails; returns the first exit code that is not 0."""
    failed: dict[str, int] = {}
    for name, (module, *words) in CHECKS.items():
        extra = (*side_by_side(pytest_words), *pytest_words) if name == "pytest" else ()
        say(f"== {name}")
        code = subprocess.run(
            [str(python), "-m", module, *words, *extra], cwd=root, env=dict(environ), stdin=subprocess.DEVNULL
        ).returncode
        if code != 0:
            failed[name] = code
    say("== all checks passed" if not failed else f"== failed: {', '.join(failed)}")
    return next(iter(failed.values()), 0)


def side_by_side(pytest_words: Sequence[str]) -> tuple[str, ...]:
    """What has pytest run in several processes: nothing, where its words switch pytest-xdist off.

    Other words of pytest-xdist come after these and win: `-n 0` runs all tests in one process.
    """
    without = {"no:xdist", "-pno:xdist"} & set(pytest_words)
    return () if without else SIDE_BY_SIDE
