"""The page's scripts without a browser, by Node's own test runner."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
OLDEST = 20
TESTS = sorted((Path(__file__).parent / "js").glob("*.test.mjs"))


def node_version() -> int:
    """Its major version; 0 where there is none."""
    if NODE is None:
        return 0
    said = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"v(\d+)", said)
    return int(match[1]) if match else 0


def test_page_scripts() -> None:
    """All files in one process, to which `node --test` would add one for each; one alone: `node tests/ui/js/FILE`."""
    if NODE is None or node_version() < OLDEST:
        pytest.skip(f"Node {OLDEST} or newer is not installed (https://nodejs.org)")
    program = "\n".join(f'import "{file.as_uri()}";' for file in TESTS)
    run = subprocess.run(
        [NODE, "--test-reporter=spec", "--input-type=module", "--eval", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
