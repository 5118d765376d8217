"""The set-up as a list of steps: environment, PyTorch first and alone, packages that may not replace it, a check."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from modules.setup.environment import LOCK_NAME, Environment
from modules.setup.hardware import Machine, ThisMachine
from modules.setup.installed import read_pins, unsatisfied
from modules.setup.lock import exclusive
from modules.setup.pip import Pip, failure_message
from modules.setup.process import Run, Runner, Say, SetupError, say
from modules.setup.stamp import (
    IMPORTS,
    KERNELS,
    NODEPS,
    PACKAGES,
    REQUIREMENTS,
    RUN_STEPS,
    TESTS,
    TORCH,
    XFORMERS,
    Stamp,
    step_keys,
)
from modules.setup.torch_choice import TorchRequest, choose_torch
from modules.setup.torch_question import ASK_TORCH, gains_by_kernels
from modules.setup.xformers import install_xformers

CONSTRAINT_NAME = "torch-constraint.txt"
KERNELS_SIZE = "64 MB to download, 210 MB on disk"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Needs of a launch: which PyTorch, whether to install it again, the test tools and xformers too, and words on the
    device."""

    request: TorchRequest = field(default_factory=TorchRequest)
    reinstall_torch: bool = False
    tests: bool = False
    xformers: bool = False
    reinstall_xformers: bool = False
    name_device: bool = True

    @property
    def steps(self) -> tuple[str, ...]:
        more = ((TESTS, self.tests), (XFORMERS, self.xformers))
        return (*RUN_STEPS, *(step for step, is_wanted in more if is_wanted))


def is_ready(root: Path, environment: Environment, wanted: Wanted) -> bool:
    """Whether the stamp says that every wanted step is done; reads a few small files and starts nothing."""
    if wanted.reinstall_torch or wanted.reinstall_xformers or not environment.python.exists():
        return False
    stamp = Stamp.read(environment.folder)
    keys = step_keys(root, _effective(wanted.request, stamp), environment.python_version)
    return all(stamp.done.get(step) == keys[step] for step in wanted.steps)


def _effective(request: TorchRequest, stamp: Stamp) -> TorchRequest:
    """Who asked for a build once need not ask again: "auto" keeps what the environment was made with."""
    return stamp.request if request.is_auto else request


def prepare(
    root: Path,
    environment: Environment,
    wanted: Wanted,
    environ: Mapping[str, str],
    run: Run | None = None,
    machine: Machine | None = None,
    tell: Say = say,
) -> None:
    """Do what is not done yet; returns at once when the stamp is equal. Raises `SetupError`.

    Each finished step is stamped, so a failed or interrupted set-up goes on where it stopped.
    `run` and `machine` stand in for the real ones in tests.
    """
    if is_ready(root, environment, wanted):
        return
    run = run or Runner({**environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}, tell)
    with exclusive(environment.folder / LOCK_NAME, tell):
        if is_ready(root, environment, wanted):  # the launch we waited for did it
            return
        if not environment.is_usable:
            tell(f"making the virtual environment {environment.folder}")
            environment.create(run)
        pip = Pip(environment.python, run)
        _Setup(root, environment, wanted, run, pip, machine or ThisMachine(run, pip), tell).do()


@dataclass(frozen=True)
class _Setup:
    """One run of the steps, under the lock."""

    root: Path
    environment: Environment
    wanted: Wanted
    run: Run
    pip: Pip
    machine: Machine
    tell: Say

    def do(self) -> None:
        stamp = Stamp.read(self.environment.folder)
        request = _effective(self.wanted.request, stamp)
        if self.wanted.reinstall_torch:
            stamp = stamp.without_step(TORCH).without_step(IMPORTS).without_step(KERNELS)
            # On disk as well, or an interruption now would leave a stamp that calls the old PyTorch the new one.
            stamp.write(self.environment.folder)
        if self.wanted.reinstall_xformers:
            stamp = stamp.without_step(XFORMERS)
        keys = step_keys(self.root, request, self.environment.python_version)
        for step in self.wanted.steps:
            if stamp.done.get(step) != keys[step]:
                self._do_step(step, request)
                stamp = stamp.with_step(step, keys[step], request)
                stamp.write(self.environment.folder)

    def _do_step(self, step: str, request: TorchRequest) -> None:
        if step == TORCH:
            self._install_torch(request)
        elif step == IMPORTS:
            self._check_imports()
        elif step == XFORMERS:
            torch = self.environment.installed()["torch"]
            install_xformers(torch, self.machine, self.pip, self.run, self.tell)
        elif step == KERNELS:
            self._install_kernels(REQUIREMENTS[step])
        else:
            self._install_packages(REQUIREMENTS[step], ("--no-deps",) if step == NODEPS else ())

    def _install_torch(self, request: TorchRequest) -> None:
        present = self.environment.installed().get("torch")
        if request.is_met_by(present) and not self.wanted.reinstall_torch:
            return
        choice = choose_torch(request, self.machine)
        self.tell(f"installing PyTorch ({choice.reason}); this takes a while")
        # Without force pip would call another build of the same version satisfied and do nothing.
        force = () if present is None else ("--force-reinstall",)
        self.pip.install(f"installing PyTorch ({choice.reason})", (*force, *choice.words))
        if "torch" not in self.environment.installed():
            raise SetupError("pip reported success, but PyTorch is not installed: check TORCH_COMMAND.")

    def _install_packages(self, file_name: str, options: tuple[str, ...]) -> None:
        path = self.root / file_name
        pins, installed = read_pins(path.read_text(encoding="utf-8")), self.environment.installed()
        if "triton" in installed:  # PyTorch for GPUs brings its own version
            pins.pop("triton", None)
        missing = unsatisfied(pins, installed)
        if not missing:
            return
        self.tell(f"installing {len(missing)} packages of {file_name}")
        wanted = (f"{name}=={version}" for name, version in pins.items())
        self.pip.install(f"installing {file_name}", (*options, *wanted, "-c", str(self._write_constraint())))

    def _install_kernels(self, file_name: str) -> None:
        """Install the compiler of the CPU's kernels where they pay. A failure is reported, and the start goes on."""
        if not gains_by_kernels(self._facts):
            return
        self.tell(f"this CPU computes faster with compiled kernels: their compiler is numba ({KERNELS_SIZE})")
        try:
            self._install_packages(file_name, ("-c", str(self.root / REQUIREMENTS[PACKAGES])))
            tried = self.run([str(self.environment.python), "-c", "import numba"])
            if tried.ok:
                return
            for name in read_pins((self.root / file_name).read_text(encoding="utf-8")):
                self.pip.uninstall(name)
            reason = f"numba cannot be imported and was removed: {(tried.output.strip().splitlines() or [''])[-1]}"
        except SetupError as error:
            reason = str(error)
        self.tell(
            f"{reason}\nThe start goes on: PyTorch computes instead, and images take longer. To try again: "
            f"{self.environment.python} -m pip install -r {file_name}"
        )

    def _write_constraint(self) -> Path:
        """A pip constraint that pins PyTorch to the very build that is installed."""
        path = self.environment.folder / CONSTRAINT_NAME
        path.write_text(f"torch=={self.environment.installed()['torch']}\n", encoding="utf-8")
        return path

    def _check_imports(self) -> None:
        self._remove_broken_torchvision()
        facts = self._facts
        if self.wanted.name_device:
            self.tell(f"PyTorch {facts['version']} is ready; it computes on {facts['device']}")

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """The answer of the installed PyTorch. Raises `SetupError` where it cannot be imported."""
        outcome = self.run([str(self.environment.python), "-c", ASK_TORCH])
        if not outcome.ok:
            message = failure_message("importing PyTorch", outcome)
            raise SetupError(f"{message} If it stays so: --reinstall-torch, or another build with --torch.")
        facts: dict[str, Any] = json.loads(outcome.output.splitlines()[-1])
        return facts

    def _remove_broken_torchvision(self) -> None:
        """A torchvision of another build than PyTorch makes transformers unusable; none at all does no harm."""
        if "torchvision" not in self.environment.installed():
            return
        if not self.run([str(self.environment.python), "-c", "import torchvision"]).ok:
            self.tell("removing torchvision: it does not fit this PyTorch and would break other packages")
            self.pip.uninstall("torchvision")
