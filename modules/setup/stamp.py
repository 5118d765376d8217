"""The record of finished set-up steps, kept in the virtual environment: equal keys mean there is nothing to do."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from modules.setup.torch_choice import TORCH_VERSION, TorchRequest
from modules.setup.xformers import XFORMERS_PIN
from modules.system.bounded import read_json_file

STAMP_NAME = "setup-stamp.json"
TORCH, PACKAGES, NODEPS, IMPORTS, TESTS = "torch", "packages", "nodeps", "imports", "tests"
XFORMERS, KERNELS = "xformers", "kernels"
RUN_STEPS = (TORCH, PACKAGES, NODEPS, IMPORTS, KERNELS)
REQUIREMENTS = {
    PACKAGES: "requirements.txt",
    NODEPS: "requirements-nodeps.txt",
    KERNELS: "requirements-kernels.txt",
    TESTS: "requirements-test.txt",
}


@dataclass(frozen=True)
class Stamp:
    """Finished steps with the key of what they did, and the request that PyTorch was chosen by."""

    done: dict[str, str] = field(default_factory=dict)
    request: TorchRequest = field(default_factory=TorchRequest)

    @classmethod
    def read(cls, folder: Path) -> "Stamp":
        """The stamp of an environment; a missing or damaged one is an empty one, and the steps are checked again."""
        try:
            data = read_json_file(folder / STAMP_NAME)
            return cls(dict(data["done"]), TorchRequest(**data["request"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self, folder: Path) -> None:
        """Replace the stamp on disk in one piece."""
        path = folder / STAMP_NAME
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"done": self.done, "request": self.request.as_dict()}, indent=1), "utf-8")
        fresh.replace(path)

    def with_step(self, step: str, key: str, request: TorchRequest) -> "Stamp":
        """A stamp that also knows `step` to be finished."""
        return replace(self, done=self.done | {step: key}, request=request)

    def without_step(self, step: str) -> "Stamp":
        """A stamp that asks for `step` again."""
        return replace(self, done={name: key for name, key in self.done.items() if name != step})


def step_keys(root: Path, request: TorchRequest, python_version: str) -> dict[str, str]:
    """The key of each step: a hash of what it depends on, the keys of the steps before it included."""
    keys = {TORCH: _digest(TORCH_VERSION, python_version, json.dumps(request.as_dict(), sort_keys=True))}
    for step, before in ((PACKAGES, TORCH), (NODEPS, PACKAGES), (KERNELS, NODEPS), (TESTS, NODEPS)):
        keys[step] = _digest(keys[before], (root / REQUIREMENTS[step]).read_text(encoding="utf-8"))
    keys[IMPORTS] = _digest(keys[NODEPS], IMPORTS)
    keys[XFORMERS] = _digest(keys[TORCH], XFORMERS_PIN)
    return keys


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
