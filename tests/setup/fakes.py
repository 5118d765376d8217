"""Stand-ins for the set-up's surroundings: a virtual environment of empty files, a pip that only leaves dist-info."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from modules.setup.environment import Environment
from modules.setup.hardware import Adapter, Nvidia
from modules.setup.process import Outcome

T = TypeVar("T")
R = TypeVar("R")


def recording(into: list[T], result: R) -> Callable[[T], R]:
    """A function that notes its first argument in `into` and returns `result`."""

    def note(argument: T, *rest: object, **more: object) -> R:
        into.append(argument)
        return result

    return note


@dataclass
class FakeMachine:
    """A machine with what a test gives it; counts nothing and starts nothing."""

    system: str = "Linux"
    architecture: str = "x86_64"
    local_wheel: bool = False
    card: Nvidia | None = None
    amd: bool = False
    arc: bool = False
    gfx: tuple[int, int] | None = None
    cards: tuple[Adapter, ...] = ()

    def has_local_wheel(self, requirement: str) -> bool:
        return self.local_wheel

    def nvidia(self) -> Nvidia | None:
        return self.card

    def has_amd(self) -> bool:
        return self.amd

    def amd_architecture(self) -> tuple[int, int] | None:
        return self.gfx

    def adapters(self) -> tuple[Adapter, ...]:
        return (*self.cards, *((Adapter(0x8086, 0x56A0),) if self.arc else ()))


@dataclass
class FakeRun:
    """Plays venv, pip and python in `environment`; `fail` maps a word to the output it fails with."""

    environment: Environment
    torch_build: str = "+cpu"
    fail: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def __call__(self, command: Sequence[str]) -> Outcome:
        words = list(command)
        self.commands.append(words)
        for word, output in self.fail.items():
            if any(word in given for given in words):
                return Outcome(1, output)
        if words[1:3] == ["-m", "venv"]:
            make_environment(self.environment)
        elif "install" in words:
            self._install(words)
        elif "uninstall" in words:
            self._remove(words[-1])
        return Outcome(0, json.dumps({"version": "2.13.0", "device": "a test", **self.facts}))

    def _install(self, words: list[str]) -> None:
        for name, version in (word.split("==") for word in words if "==" in word):
            self._remove(name)
            add_package(self.environment, name, version + (self.torch_build if name == "torch" else ""))

    def _remove(self, name: str) -> None:
        for info in self.environment.site_packages[0].glob(f"{name}-*.dist-info"):
            (info / "RECORD").unlink()

    def pip_installs(self) -> list[list[str]]:
        """The words after `pip install` and its general options, command by command."""
        return [words[words.index("--no-input") + 1 :] for words in self.commands if "install" in words]


def make_environment(environment: Environment) -> None:
    """The files by which a virtual environment with pip is recognized."""
    environment.python.parent.mkdir(parents=True, exist_ok=True)
    environment.python.touch()
    (environment.folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n", encoding="utf-8")
    packages = "Lib/site-packages" if sys.platform == "win32" else "lib/python3.11/site-packages"
    (environment.folder / packages).mkdir(parents=True, exist_ok=True)
    add_package(environment, "pip", "23.2.1")


def add_package(environment: Environment, name: str, version: str) -> None:
    """What pip leaves behind for a package, without its files."""
    info = environment.site_packages[0] / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "RECORD").touch()


def make_root(root: Path) -> Path:
    """A program folder with tiny requirements files."""
    (root / "requirements.txt").write_text("# needed\nalpha==1.0\nBeta_Pack==2.0\n", encoding="utf-8")
    (root / "requirements-nodeps.txt").write_text("gamma==3.0\n", encoding="utf-8")
    (root / "requirements-kernels.txt").write_text("numba==5.0\n", encoding="utf-8")
    (root / "requirements-test.txt").write_text("delta==4.0\n", encoding="utf-8")
    return root
