"""Featherweight's one command: `python launch.py` sets everything up, then starts. Standard library only.

This file stays readable for old Pythons, so that it can find a newer one; the set-up itself is in `modules/setup/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 13)


def is_suitable(version: tuple[int, int]) -> bool:
    """Whether PyTorch and the packages exist for this Python."""
    return OLDEST <= version <= NEWEST


def find_python() -> str | None:
    """The oldest suitable Python on the PATH that really starts (shims and aliases may not)."""
    question = "import sys; print(sys.version_info[0], sys.version_info[1])"
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        path = shutil.which("python3." + str(minor))
        candidates = [[path]] if path else []
        if os.name == "nt":
            candidates.append(["py", "-3." + str(minor)])
        for candidate in candidates:
            command = [*candidate, "-c", question + "; print(sys.executable)"]
            try:
                answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
            except OSError:
                continue
            if len(answer) == 2 and answer[0] == "3 " + str(minor):
                return answer[1]
    return None


def main(argv: list[str]) -> int:
    """Set up and start with the words of the command line; returns the exit code."""
    if is_suitable((sys.version_info[0], sys.version_info[1])):
        # Not at the top: these files need a Python that is at least 3.11.
        from pathlib import Path

        from modules.setup.launcher import launch

        return launch(Path(__file__).resolve().parent, argv, os.environ, _foreign)
    python = find_python()
    if python is None:
        print(
            "Featherweight needs Python 3.11, 3.12 or 3.13; this is "
            + sys.version.split()[0]
            + ", and none of them was found. Install Python 3.11 (python.org, or your system's package python3.11 with "
            "python3.11-venv), then run the same command again.",
            file=sys.stderr,
        )
        return 1
    return subprocess.call([python, os.path.abspath(__file__), *argv])  # noqa: PTH100 - see the docstring


def _foreign() -> object:
    """What loads extensions of the reference UI; imported when the program starts, not while it is set up."""
    from compat.foreign import Foreign

    return Foreign()


def __getattr__(name: str) -> object:
    """What install.py of extensions calls: `launch.is_installed`, `launch.run_pip`."""
    if name.startswith("__"):  # asked by Python itself while it imports
        raise AttributeError(name)
    from compat.facades import launch_utils

    return getattr(launch_utils, name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
