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


def run_checks(python: Path, root: Path, pytest_words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run all checks, one after the other even if one fails; returns the first exit code that is not 0."""
    failed: dict[str, int] = {}
    for name, (module, *words) in CHECKS.items():
        extra = pytest_words if name == "pytest" else ()
        say(f"== {name}")
        code = subprocess.run(
            [str(python), "-m", module, *words, *extra], cwd=root, env=dict(environ), stdin=subprocess.DEVNULL
        ).returncode
        if code != 0:
            failed[name] = code
    say("== all checks passed" if not failed else f"== failed: {', '.join(failed)}")
    return next(iter(failed.values()), 0)
