"""Where an extension's folder came from: its clone of git, or what was written down when it was installed. git
itself is not run for this."""

import configparser
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file

FILE = ".featherweight-origin.json"


@dataclass(frozen=True)
class Origin:
    """`address` of a repository, an archive or a folder; "" for a folder that was put there by hand."""

    address: str = ""
    branch: str = ""
    commit: str = ""

    @property
    def version(self) -> str:
        """A few characters for people."""
        return self.commit[:8]


def origin_of(folder: Path) -> Origin:
    """Return what is known; an empty origin where nothing is."""
    try:
        stored = read_json_file(folder / FILE)
        return Origin(**{name: str(stored.get(name, "")) for name in asdict(Origin())})
    except (OSError, ValueError, AttributeError):
        return _of_git(folder / ".git")


def remember(folder: Path, origin: Origin) -> None:
    """Write down where a folder came from. Raises OSError."""
    write_atomic(folder / FILE, json.dumps(asdict(origin)).encode())


def _of_git(git: Path) -> Origin:
    config = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        config.read(git / "config", encoding="utf-8")
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
    except (OSError, ValueError, configparser.Error):
        return Origin()
    address = config.get('remote "origin"', "url", fallback="")
    if not head.startswith("ref:"):
        return Origin(address, "", head)
    reference = head.removeprefix("ref:").strip()
    return Origin(address, reference.rpartition("/")[2], _commit(git, reference))


def _commit(git: Path, reference: str) -> str:
    try:
        return (git / reference).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        pass
    try:
        lines = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    return next((line.split()[0] for line in lines if line.endswith(f" {reference}")), "")
