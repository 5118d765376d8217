"""Steps of flow models in the benchmark of the CPU, on tiny models: ours beside diffusers' class, and where they go."""

from pathlib import Path

import pytest
import torch

from benchmarks import cpu
from benchmarks.full_size_parts import flow_step, info_with_parts, peer_of
from tests.models.split_models import split_model

SIDE_PX = 128


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.memory.int8_matmul.MIN_PRODUCTS", 0)


@pytest.mark.parametrize("family", cpu.FLOW_FAMILIES)
def test_steps_of_ours_over_those_of_the_peer(family: str, tmp_path: Path) -> None:
    info = cpu.flow_file(tmp_path, family, quick=True)
    earlier = {"cpu_seconds": {"diffusers fp32": 9.0}, "ratios": {"int8 matmul / diffusers fp32": 0.5}}
    found = cpu.measure_flow_steps(info, SIDE_PX, 1, cpu.FLOW_WAYS, 0, earlier)
    assert set(found["cpu_seconds"]) == {*cpu.FLOW_WAYS, "diffusers fp32"}
    assert set(found["ratios"]) == {
        "int8 matmul / diffusers fp32",
        "int8 matmul, bf16 / diffusers bf16",
        "int8 matmul, bf16, streamed / diffusers bf16",
    }


def test_where_a_step_goes(tmp_path: Path) -> None:
    found = cpu.measure_profile(cpu.flow_file(tmp_path, "zimage", quick=True), SIDE_PX, cpu.PROFILED)
    for name, profile in found.items():
        shares = profile["shares"]
        assert sum(shares.values()) == pytest.approx(1, abs=0.01) and min(shares.values()) >= 0
        assert (shares["aten::_int_mm"] > 0) == name.startswith("int8")
        assert shares["norms"] > 0 and shares["other linear layers"] > 0


def test_the_peers_blocks_of_one_shape_are_one(tmp_path: Path) -> None:
    model, denoiser = peer_of(info_with_parts(split_model("flux2_klein").write(tmp_path)), torch.float32)
    blocks = denoiser.single_transformer_blocks
    assert len(blocks) > 1 and all(block is blocks[0] for block in blocks)
    made = flow_step(model, denoiser, SIDE_PX, torch.float32)
    assert made.isfinite().all() and made.shape[2:] == (8, 8)  # a latent of FLUX.2 stands for 16 pixels
