"""Packages that extensions want: what they are, which cannot be had beside the program's own, and their installation,
which happens only after a yes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

AGREED = "FEATHERWEIGHT_INSTALLS_FOR"
"""The environment variable that is set while an installation runs that the user agreed to: the extension's name."""
ROOT = Path(__file__).resolve().parents[2]
NEVER = {
    "torchvision": "it would bring another PyTorch than the program's; a small stand-in has its "
    "functions between images and tensors.",
    "torchaudio": "it would bring another PyTorch than the program's.",
    "xformers": "it would bring another PyTorch than the program's; set --xformers to use it.",
    "pytorch-lightning": "nothing here uses it, and it holds PyTorch at an older version.",
}
"""Packages that are not installed for extensions, and why."""
OPTIONAL = ("opencv-python-headless", "matplotlib", "piexif", "scikit-image")
"""What many extensions want and the program does not need; offered as one set."""
SAME = {"opencv-python": "opencv-python-headless", "opencv-contrib-python": "opencv-python-headless"}
"""Packages that another one stands for, which needs no display."""
INSTALL_LIMIT_S = 1800
OUTPUT_TAIL = 20


class NotInstalledHere(RuntimeError):  # noqa: N818 - a refusal, which install.py may catch
    """Somebody asked for a package while no installation runs that the user agreed to."""


@dataclass(frozen=True)
class PackagePlan:
    """Packages that an extension wants installed. `missing` are requirements that are not there yet, `refused` those
    that cannot be had, each with a sentence; `installer` is the text of its install.py, "" without one."""

    missing: tuple[str, ...] = ()
    refused: Mapping[str, str] | None = None
    installer: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to install."""
        return not self.missing and not self.installer


def plan_for(folder: Path, pins: Mapping[str, str] | None = None) -> PackagePlan:
    """Read requirements.txt and install.py of an extension's folder; nothing is run."""
    requirements = folder / "requirements.txt"
    lines = requirements.read_text(encoding="utf-8", errors="replace").splitlines() if requirements.is_file() else []
    script = folder / "install.py"
    text = script.read_text(encoding="utf-8", errors="replace") if script.is_file() else ""
    own = program_pins() if pins is None else pins
    refused = {line: reason for line in wanted(lines) if (reason := why_not(line, own))}
    missing = tuple(line for line in missing_of(lines) if line not in refused)
    return PackagePlan(missing, refused, text)


def normal_name(name: str) -> str:
    """A package's name in the form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def program_pins() -> dict[str, str]:
    """The versions that the program runs with: those of requirements.txt and of PyTorch."""
    lines = wanted((ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines())
    pins = {normal_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    for name in ("torch", *pins):
        try:
            pins[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return pins


def wanted(lines: Iterable[str]) -> list[str]:
    """The requirements of a file, without comments, options and blank lines."""
    found = [line.partition(" #")[0].strip() for line in lines]
    return [line for line in found if line and not line.startswith(("#", "-"))]


def _requirement(line: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def missing_of(lines: Iterable[str]) -> list[str]:
    """The requirements that no installed package satisfies."""
    missing = []
    for line in wanted(lines):
        found = _requirement(line)
        if found is None:
            missing.append(line)
            continue
        if found.marker is not None and not found.marker.evaluate():
            continue
        name = SAME.get(normal_name(found.name), found.name)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(line)
            continue
        if not found.specifier.contains(version.partition("+")[0], prereleases=True):
            missing.append(line)
    return missing


def why_not(line: str, pins: Mapping[str, str]) -> str:
    """Why a requirement cannot be had, in one sentence; "" where it can."""
    found = _requirement(line)
    if found is None:
        return "it is an address or a path, which is not installed for extensions; install it by hand if you trust it."
    name = normal_name(found.name)
    if name in NEVER:
        return NEVER[name]
    if found.url:
        return "it is an address, which is not installed for extensions; install it by hand if you trust it."
    own = {normal_name(one): version for one, version in pins.items()}.get(name)
    if own is not None and not found.specifier.contains(own.partition("+")[0], prereleases=True):
        return f"the program runs with {name} {own} and would not start with what {line!r} asks for."
    return ""


def install_packages(requirements: Iterable[str], extension: str) -> str:
    """Install these with pip beside the program's own versions; what pip said at last. Raises `NotInstalledHere` with
    the end of its output where it fails."""
    lines = [_renamed(line) for line in requirements]
    if not lines:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in program_pins().items()))
        words = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        return _run([*words, "--constraint", str(constraints), *lines], extension)


def run_installer(folder: Path) -> str:
    """Run an extension's install.py as the reference UI does, in a process of its own; what it printed at last. Raises
    `NotInstalledHere` where it fails."""
    return _run([sys.executable, "-m", "compat.store.run_installer", str(folder / "install.py")], folder.name, folder)


def install_now(command: str, what: str) -> str:
    """Do what `launch.run_pip` of an install.py asks for: `install NAME ...`. Raises `NotInstalledHere` outside of an
    installation that the user agreed to, and for packages that cannot be had."""
    extension = os.environ.get(AGREED)
    if not extension:
        raise NotInstalledHere(
            f"{what} was not installed: the Extensions tab installs packages of extensions, after a question."
        )
    words = command.split()
    lines = [word.strip("\"'") for word in words if not word.startswith("-") and word not in ("install", "pip")]
    refused = {line: reason for line in lines if (reason := why_not(line, program_pins()))}
    if refused:
        raise NotInstalledHere("; ".join(f"{line}: {reason}" for line, reason in refused.items()))
    return install_packages(lines, extension)


def _renamed(line: str) -> str:
    found = _requirement(line)
    other = SAME.get(normal_name(found.name)) if found is not None else None
    return line if found is None or other is None else f"{other}{found.specifier}"


def _run(words: list[str], extension: str, folder: Path | None = None) -> str:
    environ = {**os.environ, AGREED: extension, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            words, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalledHere(
            f"The installation for {extension} took longer than {INSTALL_LIMIT_S // 60} minutes."
        ) from error
    tail = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-OUTPUT_TAIL:])
    if done.returncode:
        raise NotInstalledHere(f"The installation for {extension} failed (exit status {done.returncode}):\n{tail}")
    return tail
