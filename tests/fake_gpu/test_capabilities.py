"""Each row of the GPUs that people have, through the doctor, the precision plan and the installer's choice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from modules.flags.flags import parse_flags
from modules.models.families.registry import FAMILIES
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.precision import PrecisionOptions, machine_of, resolve
from modules.settings.values import Settings
from modules.setup import doctor
from modules.setup.environment import Environment
from modules.setup.process import Outcome
from modules.setup.torch_choice import PIN, TORCH_VERSION, WHEELS, TorchRequest, choose_torch
from modules.system.devices import choose_device, describe, list_devices, memory_info
from modules.system.paths import resolve_paths
from tests.fake_gpu import fake_gpu
from tests.fake_gpu.capabilities import ROWS, Row
from tests.setup.fakes import add_package, make_environment, make_root

rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@rows
def test_the_plan_follows_what_the_card_can(row: Row, tmp_path: Path) -> None:
    with fake_gpu(row.device_type, row.memory_gb, row.facts) as card:
        machine = machine_of(parse_flags([]), tmp_path)
        assert machine.device.type == row.device_type and machine.dtype is torch.float16
        assert machine.wide_dtype is row.wide
        assert (not machine.no_autocast) is (row.autocast or row.device_type != "cuda")
        assert machine.fp8_matmul is row.fp8_matmul
        for family in map(FAMILIES.get, FAMILIES):
            for word in ("Disable", "Enable"):
                options = PrecisionOptions.of(Settings().changed(fp8_storage=word, fp8_format="fp8_e4m3fn"))
                plan = resolve(options, machine, family)
                wanted = row.wide if family.leaves_fp16 else torch.float16
                assert plan.compute_dtype is wanted, family.label
                if word == "Enable":
                    assert plan.unet_storage == "fp8_e4m3fn" and plan.float8 is (row.device_type != "mps")
                    autocasts = row.autocast and row.device_type == "cuda" and wanted is not torch.float32
                    assert plan.mode is (ComputeMode.AUTOCAST if autocasts else ComputeMode.MANUAL)
        assert describe(machine.device) == row.name and list_devices() == [f"0: {row.name} ({row.device_type})"]
        told = memory_info(machine.device)["cuda"]
        assert "error" in told if row.device_type == "mps" else told["system"]["total"] == card.memory.total_bytes  # type: ignore[index]
        assert choose_device(parse_flags(["--use-cpu", "all"])).type == "cpu"


@rows
def test_the_installer_takes_the_build_for_it(row: Row) -> None:
    words = choose_torch(TorchRequest(), row.machine).words
    assert words == ((PIN, "--index-url", WHEELS + row.build) if row.build else (PIN,))


@rows
def test_the_doctor_names_it_and_says_where_pytorch_leaves_it_unused(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(tmp_path / ".venv")
    make_environment(environment)
    add_package(environment, "torch", f"{TORCH_VERSION}+cpu")
    is_nvidia = row.machine.card is not None
    monkeypatch.setattr(doctor, "nvidia_smi", lambda: "nvidia-smi" if is_nvidia else None)
    paths = resolve_paths(parse_flags([]), make_root(tmp_path))
    for device_type in (row.device_type, "cpu"):

        def run(command: object, device_type: str = device_type) -> Outcome:
            if isinstance(command, list) and command[0] == "nvidia-smi":
                return Outcome(0, f"{row.name}, {row.memory_gb * 1024:.0f} MiB, 900 MiB, 580.1\n")
            device = row.name if device_type != "cpu" else "the CPU"
            return Outcome(0, json.dumps({"version": TORCH_VERSION, "type": device_type, "device": device}))

        found = doctor.examine(paths, environment, run)
        assert (row.name in "\n".join(found.lines)) is (is_nvidia or device_type != "cpu")
        assert any("does not use it" in fault for fault in found.faults) is (is_nvidia and device_type == "cpu")
