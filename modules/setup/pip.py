"""pip in the virtual environment, and what to tell the user when it fails."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.setup.process import Outcome, Run, SetupError

TAIL_LINES = 12
# pip prints this one for every package whenever an index is configured as a local folder; it says nothing of use.
_NOISE = re.compile(r"^WARNING: Location .* is ignored|^\s*$")

_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"No space left|Errno 28|not enough space", "The disk is full: free at least 3 GB (7 GB for CUDA or ROCm)."),
    (
        r"Permission denied|Errno 13|Access is denied",
        "The folder cannot be written to: run this as the user who owns it, or clone it to another place.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The certificate of the package server is not trusted: behind a company proxy, set PIP_CERT to its file.",
    ),
    (
        r"Temporary failure in name resolution|getaddrinfo failed|NewConnectionError|ConnectionError|Read timed out"
        r"|Network is unreachable|Connection (?:refused|reset|aborted)|ProxyError|NameResolutionError",
        "The package server could not be reached: check the network or the proxy (HTTPS_PROXY).",
    ),
    (
        r"No matching distribution|Could not find a version|is not a supported wheel",
        "The package server has no build for this Python and system (launch.py doctor says whether glibc is too old): "
        "use Python 3.11, or for PyTorch another --torch build, TORCH_INDEX_URL or TORCH_COMMAND.",
    ),
    (r"hash(?:es)? (?:do|does|did) not match|IncompleteRead|BadZipFile", "A download was damaged: try again."),
)


@dataclass(frozen=True)
class Pip:
    """pip of one Python. Its configuration files and variables stay in force: mirrors and local wheels are theirs."""

    python: Path
    run: Run

    def install(self, step: str, words: Sequence[str]) -> None:
        """`pip install` with `words`; raises `SetupError` that names `step`."""
        outcome = self._pip("install", *words)
        if not outcome.ok:
            raise SetupError(failure_message(step, outcome))

    def uninstall(self, name: str) -> None:
        """Remove a package; raises `SetupError`."""
        outcome = self._pip("uninstall", "-y", name)
        if not outcome.ok:
            raise SetupError(failure_message(f"removing {name}", outcome))

    def finds_locally(self, requirement: str) -> bool:
        """Whether a local folder of wheels provides `requirement`; downloads nothing and asks no server."""
        return self._pip("install", "--no-index", "--dry-run", "--no-deps", "--ignore-installed", requirement).ok

    def _pip(self, command: str, *words: str) -> Outcome:
        options = ("--quiet", "--disable-pip-version-check", "--no-input")
        return self.run([str(self.python), "-m", "pip", command, *options, *words])


def failure_message(step: str, outcome: Outcome) -> str:
    """Which step failed, the end of the tool's output, what to do, and how to go on."""
    lines = [line for line in outcome.output.splitlines() if not _NOISE.match(line)]
    tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:]) or "    (it said nothing)"
    remedies = [text for pattern, text in _REMEDIES if re.search(pattern, outcome.output, re.IGNORECASE)]
    advice = " ".join(remedies[:2])
    return (
        f"Set-up failed at: {step} (exit status {outcome.returncode}). The last lines were:\n{tail}\n"
        f"{advice + ' ' if advice else ''}What is installed so far is kept: run the same command again to go on."
    )
