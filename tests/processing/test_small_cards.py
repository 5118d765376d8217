"""Plans for GPUs with 4, 6 and 8 GB, and for a Mac with 8: each family in full size, from files that hold names and
shapes alone, with two LoRAs and, where there are some for it, a control net."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from modules.flags.flags import parse_flags
from modules.memory.streaming.groups import MAX_BLOCK_BYTES
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import machine_of
from modules.processing.memory_estimate import estimate as under_test
from modules.processing.memory_estimate.estimate import PROGRAM_BYTES, MemoryEstimator
from modules.processing.memory_estimate.proposals import propose
from modules.processing.memory_estimate.words import why_nothing_fits
from modules.processing.request.request import GenerationRequest
from modules.processing.request.stages import Stage
from modules.settings.values import Settings
from modules.system.devices import shares_main_memory
from tests.extensions import adapters_of
from tests.fake_gpu import CardFacts, fake_gpu
from tests.models.full_size import write_full, write_header
from tests.recordings import CONFIGS, cpu_machine
from tests.thorough import thoroughly

GB, GIB = 1_000_000_000, 1 << 30
SIZES_PX, MEMORY_GB = (512, 768, 1024), (4, 6, 8)


@dataclass(frozen=True)
class Case:
    """A family: the CFG scale that is usual, and the sizes of a LoRA and of a control net as people have them, in MB
    (0: there is none that the program runs)."""

    name: str
    cfg_scale: float
    lora_mb: int
    control_mb: int = 0


CASES = {
    case.name: case
    for case in (
        Case("sd1", 7.0, 151, 723),
        Case("sdxl", 7.0, 228, 2502),
        Case("z-image", 1.0, 170, 3100),
        Case("flux2-klein-4b", 1.0, 80),
        Case("flux1-dev", 1.0, 306, 6600),
        Case("qwen-image", 4.0, 590),
    )
}


def engine_for(root: Path, case: Case) -> Engine:
    """An engine with the files of a family."""
    write_full(root, case.name)
    for number in (1, 2):
        write_header(root / "Lora" / f"style{number}.safetensors", {"a": ("F16", (case.lora_mb * 500_000,))})
    write_header(root / "control.safetensors", {"a": ("F16", (case.control_mb * 500_000,))})
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    models = ExtraModels(
        adapters=adapters_of(root / "Lora"), modules=ModuleCatalogue([root / "text_encoder", root / "VAE"])
    )
    engine = Engine(catalogue, CONFIGS, cpu_machine, models=models)
    engine.auxiliaries.wanted = lambda request: [root / "control.safetensors"] if case.control_mb else []
    return engine


def request_for(case: Case, side_px: int, **settings: object) -> GenerationRequest:
    chosen = Settings().with_changes({"live_previews_enable": False, **settings})
    return GenerationRequest(
        prompt="a cat <lora:style1:1> <lora:style2:1>",
        width=side_px,
        height=side_px,
        cfg_scale=case.cfg_scale,
        settings=chosen,
    )


SAVING = {"vae_tile_size": 512, "split_feed_forward": "8", "fp8_storage": "Enable", "stream_weights": "Layers"}


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> MemoryEstimator:
    """One estimator for SDXL on a GPU, which remembers its dry runs."""
    return MemoryEstimator(engine_for(tmp_path_factory.mktemp("sdxl"), CASES["sdxl"]), CONFIGS).with_gpu()


@pytest.mark.parametrize("name", ["sdxl", *(thoroughly(name) for name in CASES if name != "sdxl")])
def test_each_size_fits_in_4_gb(
    name: str, sdxl: MemoryEstimator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that saves memory; so there is an answer for 6 and 8 GB too."""
    monkeypatch.setattr(under_test, "available", lambda device: 64 * GIB)
    case = CASES[name]
    estimator = sdxl if name == "sdxl" else MemoryEstimator(engine_for(tmp_path, case), CONFIGS).with_gpu()
    for side_px in SIZES_PX:
        request = request_for(case, side_px, **SAVING)
        there = estimator.bytes_of_gpu(4 * GIB, request.settings)
        plan = estimator.plan(request, there)
        by_stage = {need.stage: need for need in plan.stages}
        assert plan.fits and there < 3.8 * GB and plan.main_available_bytes == 64 * GIB
        adapters = 4 * case.lora_mb * 1_000_000
        assert by_stage[Stage.SAMPLE].needs_bytes > adapters + min(2 * MAX_BLOCK_BYTES, case.control_mb * 500_000)
        assert by_stage[Stage.SAMPLE].main_bytes > case.control_mb * 500_000


def test_what_does_not_fit_is_said(sdxl: MemoryEstimator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "available", lambda device: 3 * GIB)
    case = CASES["sdxl"]
    request, there = request_for(case, 512, **SAVING), sdxl.bytes_of_gpu(4 * GIB, Settings())
    plan = sdxl.plan(request, there)
    assert plan.needs_bytes < there and not plan.fits
    assert f"{plan.main_bytes / GB:.1f} of 3.2 GB of main memory" in why_nothing_fits(plan)
    tiny = sdxl.plan(request, 100_000_000)
    assert f"at the stage '{tiny.worst}'" in why_nothing_fits(tiny)


def test_the_first_proposal_for_each_amount_fits(sdxl: MemoryEstimator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "available", lambda device: 64 * GIB)
    request = request_for(CASES["sdxl"], 512, vae_tile_size=512, split_feed_forward="8")
    needs = []
    for memory_gb in MEMORY_GB:
        there = sdxl.bytes_of_gpu(memory_gb * GIB, request.settings)
        plan = sdxl.plan(request, there)
        proposals = propose(request, plan, partial(sdxl.plan, available_bytes=there))
        chosen = proposals[0].plan if proposals else plan
        assert chosen.fits and plan.weights_bytes + 2_502_000_000 < plan.needs_bytes
        needs.append(chosen.needs_bytes)
    assert needs == sorted(needs)


# -- main memory that is the GPU's too -----------------------------------------------------------------------------


def test_sdxl_fits_in_8_gb_of_unified_memory_and_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["sdxl"]
    stored = {"fp8_storage": "Enable", "vae_tile_size": 512}
    with fake_gpu("mps", 8):
        estimator = MemoryEstimator(
            engine_for(tmp_path, replace(case, control_mb=0)), CONFIGS, machine=machine_of(parse_flags([]))
        )
        request = replace(request_for(case, 1024, **stored), prompt="a cat")
        there = estimator.bytes_of_gpu(8 * GIB, request.settings)
        plan = estimator.plan(request, there)
        assert plan.fits and plan.main_available_bytes is None and there < 6.1 * GB
        assert all(need.needs_bytes == need.main_bytes for need in plan.stages)
        assert plan.weights_bytes + PROGRAM_BYTES < plan.needs_bytes < 1.6 * plan.weights_bytes + PROGRAM_BYTES
        streamed = estimator.plan(replace(request, settings=request_for(case, 1024, **SAVING).settings), there)
        assert streamed.needs_bytes < plan.needs_bytes - 2 * GB, "weights rest on disk, not in the same memory"
    with fake_gpu("cuda", 8, CardFacts("AMD Radeon(TM) 8060S", (11, 5), is_unified=True)):
        assert shares_main_memory(torch.device("cuda"))
        own = MemoryEstimator(estimator._engine, CONFIGS, machine=machine_of(parse_flags([])))
        on_apu = own.plan(request, there)
        assert on_apu.main_available_bytes is None and on_apu.fits
