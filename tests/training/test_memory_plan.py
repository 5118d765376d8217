"""Memory decided for the user: what fits a budget, the quickest way first, on SDXL's full size without its weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.full_size import write_full_size_header
from lib_training.config import TrainingConfig, config_of
from lib_training.memory_plan import GB, MemoryPlan, StepEstimator, Way, plan_memory
from modules.errors import InvalidValueError
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.meta_model import build_meta_model
from tests.models.full_size import write_empty
from tests.recordings import CONFIGS, TINY

CUDA = torch.device("cuda")
ROWS = "fp8_e4m3fn_row"


def info_of(path: Path) -> CheckpointInfo:
    return CheckpointInfo(path, path.name, path.stat().st_size, 1)


def settings(budget_gb: float | None = None, **sections: dict[str, object]) -> TrainingConfig:
    return config_of({"adapter": {"rank": 16}, "memory": {"budget_gb": budget_gb}, **sections})


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> StepEstimator:
    """At 1024 px, batch 1; one for all tests, as it keeps what it measured."""
    path = tmp_path_factory.mktemp("sdxl") / "sdxl.safetensors"
    write_full_size_header(path, "sdxl")
    return StepEstimator(build_meta_model(info_of(path), CONFIGS), settings(), CUDA, torch.bfloat16)


def plan(estimator: StepEstimator, budget_gb: float) -> MemoryPlan:
    return plan_memory(estimator, settings(budget_gb), "bf16")


@pytest.mark.parametrize("budget_gb", [4, 4.4, 6, 8, 12])
def test_a_budget_takes_the_quickest_way_that_fits(sdxl: StepEstimator, budget_gb: float) -> None:
    chosen = plan(sdxl, budget_gb)
    assert chosen.estimate.total <= budget_gb * GB
    assert all(other.total > budget_gb * GB for other in chosen.rejected)
    assert all(other.way.time <= chosen.estimate.way.time for other in chosen.rejected)
    way, config = chosen.estimate.way, chosen.config
    assert (config.model.storage, config.model.stream) == (way.storage, way.stream)
    assert (config.memory.checkpointing, config.memory.split_feed_forward) == (way.checkpointing, way.split)
    assert f"{chosen.estimate.total / GB:.1f} GB by the estimate" in chosen.words


def test_more_memory_is_never_slower(sdxl: StepEstimator) -> None:
    times = [plan(sdxl, budget).estimate.way.time for budget in (4, 6, 8, 12, 16)]
    assert times == sorted(times, reverse=True)
    assert plan(sdxl, 16).estimate.way == Way("bf16")
    assert plan(sdxl, 4).estimate.way.stream != "off"


def test_each_way_of_saving_takes_less(sdxl: StepEstimator) -> None:
    plain, rows = sdxl.estimate(Way("bf16")), sdxl.estimate(Way(ROWS))
    assert rows.weights < 0.55 * plain.weights
    assert rows.activations == plain.activations
    again = sdxl.estimate(Way(ROWS, checkpointing="all"))
    assert again.activations < 0.3 * rows.activations
    assert sdxl.estimate(Way(ROWS, checkpointing="all", split=4)).activations < again.activations
    assert sdxl.estimate(Way(ROWS, "blocks", "all", 4)).weights < 0.3 * again.weights


def test_what_no_way_reaches_is_said_with_the_least(sdxl: StepEstimator) -> None:
    with pytest.raises(InvalidValueError, match=r"0\.5 GB are too few: with .* a step takes \d\.\d GB .* Choose"):
        plan(sdxl, 0.5)  # which CUDA alone takes


def test_the_adapter_and_its_optimizer_count() -> None:
    meta = build_meta_model(info_of(TINY), CONFIGS)
    found = {}
    for optimizer in ("adamw", "prodigy", "adafactor"):
        config = settings(training={"optimizer": optimizer})
        estimator = StepEstimator(meta, config, torch.device("cpu"), torch.float32)
        found[optimizer] = estimator.estimate(Way("fp32")).adapter / estimator.adapter_values
    assert found == pytest.approx({"adamw": 16, "prodigy": 24, "adafactor": 8.5}, abs=0.01)
    bf16 = replace(config, adapter=replace(config.adapter, dtype="bf16"))
    estimator = StepEstimator(meta, bf16, torch.device("cpu"), torch.float32)
    assert estimator.estimate(Way("fp32")).adapter == pytest.approx(4.5 * estimator.adapter_values, rel=0.001)


def test_the_model_has_its_own_attention_again_when_it_was_measured() -> None:
    meta = build_meta_model(info_of(TINY), CONFIGS)
    layers = [part for part in meta.module("unet").modules() if hasattr(part, "processor")]
    before = [part.processor for part in layers]
    estimator = StepEstimator(meta, settings(), torch.device("cpu"), torch.float32)
    assert estimator.estimate(Way("fp32")).activations > 0
    assert layers and all(part.processor is own for part, own in zip(layers, before, strict=True))


def test_a_step_of_a_large_transformer_takes_its_denoiser_alone(tmp_path: Path) -> None:
    """Encoders are as large as the denoiser, and not there while it steps."""
    path = tmp_path / "Stable-diffusion" / "z-image.safetensors"
    write_empty(path, "z-image")
    write_empty(tmp_path / "text_encoder" / "te-qwen3-4b.safetensors", "te-qwen3-4b")
    write_empty(tmp_path / "VAE" / "vae-flux1.safetensors", "vae-flux1")
    small = settings(5, data={"resolution": 512})
    estimator = StepEstimator(build_meta_model(info_of(path), CONFIGS), small, CUDA, torch.bfloat16)
    resident = estimator.estimate(Way(ROWS, checkpointing="all"))
    assert resident.weights == pytest.approx(6.2 * GB, rel=0.05)
    streamed = estimator.estimate(Way(ROWS, "blocks", "all", 4))
    assert streamed.total < 0.5 * resident.total
    width, hidden, blocks = 3840, 10240, 30  # of four projections and three layers of the feed-forward each
    assert estimator.adapter_values == 16 * blocks * (4 * 2 * width + 3 * (width + hidden))
