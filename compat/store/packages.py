"""Packages that extensions want: what they are, which cannot be had beside the program's own, and their installation,
which happens only after a yes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json

if TYPE_CHECKING:
    from packaging.requirements import Requirement

AGREED = "FEATHERWEIGHT_INSTALLS_FOR"
"""The environment variable that is set while an installation runs that the user agreed to: the extension's name."""
ROOT = Path(__file__).resolve().parents[2]
GUARDED = Path(__file__).resolve().parent / "guarded"
"""A folder with a module pip, which Python finds before the real one."""
RECORD = "packages-before.json"
"""A file in the cache: what the last installation of packages changed."""
NEVER = {
    "torchvision": "it would bring another PyTorch than the program's; a small stand-in has its "
    "functions between images and tensors.",
    "torchaudio": "it would bring another PyTorch than the program's.",
    "xformers": "it would bring another PyTorch than the program's; set --xformers to use it.",
    "pytorch-lightning": "nothing here uses it, and it holds PyTorch at an older version.",
}
"""Packages that are not installed for extensions, and why."""
REFERENCE_SET = (
    *("GitPython", "blendmodes", "clip-anytorch", "ftfy", "kornia", "matplotlib", "open_clip_torch"),
    *("opencv-python-headless", "piexif", "scikit-image", "timm"),
)
"""Packages that the reference UI brings itself, so that its extensions import them without asking; offered as one set.
Names of basicsr and of pkg_resources are facades."""
ALONE = frozenset({"clip-anytorch", "open-clip-torch", "timm", "segment-anything", "segment-anything-hq", "facexlib"})
"""Packages that name torchvision as a requirement and work over its stand-in; installed without what they require."""
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
    there = installed()
    return pins | {name: there[name] for name in ("torch", *pins) if name in there}


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


def installed() -> Mapping[str, str]:
    """Return the versions of the packages of this environment by their normal names, read once for each state of it."""
    return _installed(tuple((path, Path(path).stat().st_mtime_ns) for path in sys.path if Path(path).is_dir()))


@lru_cache(maxsize=1)
def _installed(state: tuple[tuple[str, int], ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for one in metadata.distributions(path=[path for path, _ in state]):
        # The name of the folder says both, without its file METADATA being read.
        name, _, version = Path(str(getattr(one, "_path", ""))).name.removesuffix(".dist-info").partition("-")
        if not version or version.endswith(".egg-info"):
            name, version = one.metadata["Name"] or "", one.version or ""
        found.setdefault(normal_name(name), version)
    return found


def missing_of(lines: Iterable[str]) -> list[str]:
    """The requirements that no installed package satisfies."""
    missing, there = [], installed()
    for line in wanted(lines):
        found = _requirement(line)
        if found is None:
            missing.append(line)
            continue
        if found.marker is not None and not found.marker.evaluate():
            continue
        name = normal_name(found.name)
        version = there.get(normal_name(SAME.get(name, name)))
        if version is None or not found.specifier.contains(version.partition("+")[0], prereleases=True):
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


def install_packages(requirements: Iterable[str], extension: str, *, alone: bool = False) -> str:
    """Install these with pip beside the program's own versions; what pip said at last. `alone`: without what they
    require. Raises `NotInstalledHere` with the end of its output where it fails, or where it changed a version that the
    program runs with, which is put back."""
    lines = [_renamed(line) for line in requirements]
    by_themselves = [line for line in lines if alone or normal_name(_name_of(line)) in ALONE]
    said = ""
    with constraints() as file:
        for given, more in ((by_themselves, ["--no-deps"]), ([x for x in lines if x not in by_themselves], [])):
            if given:
                said = _run([*PIP, "install", *QUIET, "--constraint", str(file), *more, *given], extension)
    return said


def _name_of(line: str) -> str:
    found = _requirement(line)
    return found.name if found is not None else line


PIP = (sys.executable, "-m", "pip")
QUIET = ("--no-input", "--disable-pip-version-check")


@contextmanager
def constraints() -> Iterator[Path]:
    """Give a file of constraints for pip while open: the program's own versions, and none of what it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        lines = [f"{name}=={version}" for name, version in program_pins().items()]
        file.write_text("\n".join([*lines, *(f"{name}<0" for name in NEVER)]) + "\n", encoding="utf-8")
        yield file


def run_installer(folder: Path) -> str:
    """Run an extension's install.py as the reference UI does, in a process of its own; what it printed at last. Each
    pip that it starts, by whatever way, is the one of `GUARDED`. Raises `NotInstalledHere` where it fails."""
    words = [sys.executable, "-m", "compat.store.run_installer", str(folder / "install.py")]
    with constraints() as file:
        commands = file.parent / "bin"
        commands.mkdir()
        for name in ("pip", "pip3", f"pip3.{sys.version_info[1]}"):
            _write_command(commands / name)
        environ = {
            "PIP_CONSTRAINT": str(file),
            "UV_CONSTRAINT": str(file),
            "PATH": os.pathsep.join([str(commands), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(GUARDED), str(ROOT)]),
        }
        return _run(words, folder.name, folder, environ)


def _write_command(place: Path) -> None:
    """Write a command that runs pip as a module of this Python, so that the guard is before it."""
    if os.name == "nt":
        place.with_suffix(".bat").write_text(f'@"{sys.executable}" -m pip %*\n', encoding="utf-8")
        return
    place.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m pip \"$@\"\n", encoding="utf-8")
    place.chmod(0o755)


def install_now(command: str, what: str, folder: Path | None = None) -> str:
    """Do what `launch.run_pip` of an install.py asks for: `install NAME ...`, `-r FILE`, `--no-deps`. Raises
    `NotInstalledHere` outside of an installation that the user agreed to, and for packages that cannot be had."""
    extension = os.environ.get(AGREED)
    if not extension:
        raise NotInstalledHere(
            f"{what} was not installed: the Extensions tab installs packages of extensions, after a question."
        )
    asked = PipWords.of(shlex.split(command, posix=os.name != "nt"), folder or Path.cwd())
    asked.check(program_pins())
    return install_packages(asked.requirements, extension, alone=asked.is_alone)


@dataclass(frozen=True)
class PipWords:
    """Words of a pip command."""

    command: str
    requirements: tuple[str, ...]
    is_alone: bool  # without what they require

    @classmethod
    def of(cls, words: Sequence[str], folder: Path) -> PipWords:
        """Read them; files of requirements are looked for in `folder`. Raises `NotInstalledHere` for one that cannot be
        read."""
        rest = [word.strip("\"'") for word in words]
        found: list[str] = []
        while rest:
            word, _, value = rest.pop(0).partition("=") if rest[0].startswith("--") else (rest.pop(0), "", "")
            if word.startswith("-r") and not word.startswith("--") and len(word) > 2:
                word, value = "-r", word[2:]
            if word in VALUED and not value and rest:
                value = rest.pop(0)
            if word in ("-r", "--requirement"):
                found += _file_of(folder / value)
            elif not word.startswith("-"):
                found.append(word)
        command = found.pop(0) if found and found[0] in ("install", "uninstall", "download", "wheel") else ""
        return cls(command, tuple(found), "--no-deps" in words)

    def check(self, pins: Mapping[str, str]) -> None:
        """Raise `NotInstalledHere` for what cannot be had, and where the program's own packages would be taken away."""
        if self.command == "uninstall":
            refused = {name: "the program runs with it." for name in self.requirements if normal_name(name) in pins}
        else:
            refused = {line: reason for line in self.requirements if (reason := why_not(line, pins))}
        if refused:
            raise NotInstalledHere("; ".join(f"{line}: {reason}" for line, reason in refused.items()))


VALUED: tuple[str, ...] = (
    "-r",
    "--requirement",
    "-c",
    "--constraint",
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
)
VALUED += ("-t", "--target", "--timeout", "--retries", "--cache-dir", "--progress-bar")
"""Options of pip with a value of their own; of those the first alone counts here: packages come from the server that
pip is set up for."""


def _file_of(path: Path) -> list[str]:
    try:
        return wanted(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError as error:
        raise NotInstalledHere(f"{path.name}: the requirements cannot be read ({error.strerror}).") from error


@dataclass(frozen=True)
class Change:
    """Difference that an installation made: packages that are new, and versions that were there before."""

    added: tuple[str, ...] = ()
    before: Mapping[str, str] | None = None

    @classmethod
    def since(cls, earlier: Mapping[str, str]) -> Change:
        """Compare the environment with an earlier state."""
        now = installed()
        before = {name: version for name, version in earlier.items() if now.get(name) != version}
        return cls(tuple(name for name in now if name not in earlier), before)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not self.added and not self.before

    def undo(self) -> str:
        """Take away what is new, and put back the earlier versions; what pip said at last."""
        said = ""
        if self.before:
            lines = [f"{name}=={version}" for name, version in self.before.items()]
            said = _run([*PIP, "install", *QUIET, "--no-deps", *lines], "what was there before")
        if self.added:
            said = _run([*PIP, "uninstall", "--yes", *self.added], "what was there before")
        return said


def install_checked(work: Callable[[], str], record: Path) -> str:
    """Do an installation, then look at the environment: where a version that the program runs with is another one or is
    missing, everything is put back and `NotInstalledHere` says so. What it changed is kept in `record`, for
    `undo_last`."""
    earlier, pins = dict(installed()), program_pins()
    try:
        said = work()
    finally:
        change = Change.since(earlier)
        if not change.is_empty:
            write_atomic(record, json.dumps({"added": change.added, "before": change.before}).encode())
    broken = [name for name in pins if name in (change.before or {})]
    if broken:
        change.undo()
        raise NotInstalledHere(
            f"It replaced packages that the program runs with ({', '.join(broken)}); everything was put back."
        )
    return said


def undo_last(record: Path) -> str:
    """Take back what the last installation changed. Raises `NotInstalledHere` where none is known."""
    if not record.is_file():
        raise NotInstalledHere("No installation of packages is known that could be taken back.")
    found = read_json(record.read_bytes())
    said = Change(tuple(found["added"]), found["before"]).undo()
    record.unlink()
    return said


def missing_packages() -> list[str]:
    """Return those of the set that are not installed."""
    there = installed()
    return [name for name in REFERENCE_SET if normal_name(name) not in there]


def _renamed(line: str) -> str:
    found = _requirement(line)
    other = SAME.get(normal_name(found.name)) if found is not None else None
    return line if found is None or other is None else f"{other}{found.specifier}"


def _run(words: list[str], extension: str, folder: Path | None = None, more: Mapping[str, str] | None = None) -> str:
    environ = {**os.environ, AGREED: extension, "PYTHONPATH": str(ROOT), **(more or {})}
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
