"""Needs of a file on this machine, said by the planner from the header alone.

The header is written into a file that is as large as the announced one and takes no room on the disk (it is sparse),
and `launch.py plan` looks at that: the same dry run as for a file that is here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.downloads.remote_file import RemoteFile
from modules.models.detection.files import CHECKPOINTS, Detected
from modules.models.files.header import Header

PLAN_TIMEOUT_S = 180
GB = 1e9
PLAN = "import sys; from modules.cli.plan import main; sys.exit(main(sys.argv[1:]))"
"""`launch.py plan` in this environment, without looking at what is installed."""


@dataclass(frozen=True)
class Verdict:
    """`fits` is None where it cannot be said before the file is here. `step_seconds`: of a step of an image, about; 0
    where that is not known."""

    fits: bool | None
    text: str
    step_seconds: float = 0.0


def describe(remote: RemoteFile, header: Header, kind: Detected) -> str:
    """Describe the file in one line: what it is, weights, size."""
    size = f"{remote.size_bytes / GB:.2f} GB"
    if not header.tensors:
        return f"{kind.line}, {size}"
    return f"{kind.line}, {header.parameters / 1e9:.2f} B parameters, {size}"


def judge(remote: RemoteFile, header: Header, kind: Detected, root: Path, words: Sequence[str] = ()) -> Verdict:
    """Ask the planner. `words` are further words for `launch.py plan`, such as the folders of this server."""
    if kind.folder != CHECKPOINTS or not header.raw:
        return Verdict(None, "")
    with tempfile.TemporaryDirectory(prefix="featherweight-look-") as folder:
        path = Path(folder) / (Path(remote.name).name or "model.safetensors")
        with path.open("wb") as file:
            file.write(len(header.raw).to_bytes(8, "little") + header.raw)
            file.truncate(remote.size_bytes)
        command = [sys.executable, "-c", PLAN, "--json", "--ckpt", str(path), "--checkpoint", path.name]
        try:
            done = subprocess.run(
                [*command, *words], capture_output=True, text=True, timeout=PLAN_TIMEOUT_S, cwd=root, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(None, "How much memory it needs took too long to work out.")
    return _verdict(done)


def _verdict(done: subprocess.CompletedProcess[str]) -> Verdict:
    try:
        plan: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["the planner said nothing"])[-1].removeprefix("Error: ")
        return Verdict(None, said)
    needs, has = plan["needs"] / GB, plan["available"] / GB
    time = plan["time"] or {"seconds": 0.0, "line": ""}
    speed = f" Here {time['line']}." if time["line"] else ""
    if plan["fits"]:
        return Verdict(True, f"It fits: needs {needs:.1f} of {has:.1f} GB.{speed}", time["seconds"])
    for proposal in plan["proposals"][:1]:
        with_it = f"It fits with: {proposal['title']} ({proposal['needs'] / GB:.1f} GB)."
        return Verdict(True, f"As it is it needs {needs:.1f} of {has:.1f} GB. {with_it}{speed}", time["seconds"])
    return Verdict(False, plan["nothing_fits"] or f"It does not fit: it needs {needs:.1f} of {has:.1f} GB.")
