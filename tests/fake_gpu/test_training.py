"""A training step on a made-up GPU: with each way of checkpointing, on weights in 16 and in 8 bits, resident and
streamed, the same gradients to the bit."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from modules.models.loading.loaded import LoadedModel
from modules.training.base_model import load_base
from modules.training.config import config_of
from modules.training.stepping import Batch, Trainer
from modules.training.texts import Caption, CaptionEncoder
from tests.fake_gpu import fake_gpu
from tests.fake_gpu.jobs import root_of
from tests.fake_gpu.test_streams import shares
from tests.recordings import CONFIGS
from tests.thorough import thoroughly

CUDA = torch.device("cuda")
WAYS: tuple[dict[str, Any], ...] = (
    {"checkpointing": "all"},
    {"checkpointing": "every 2"},
    {"checkpointing": "all but blocks 0, -1", "offload": "ram"},
    {"checkpointing": "64 MB"},
)


def step(model: LoadedModel, memory: dict[str, Any]) -> tuple[Sequence[Tensor], float]:
    """A step's gradients, on the CPU, and its loss; the trainer is closed again."""
    settings = config_of({"adapter": {"type": "lora", "rank": 2}, "loss": {"min_snr": None}, "memory": memory})
    trainer = Trainer(model, settings, CaptionEncoder(model), (8, 8))
    try:
        latents = torch.randn(1, model.latent_channels, 8, 8, generator=torch.Generator().manual_seed(1))
        batch = Batch(latents, trainer.encoder.encode((Caption("a red toy", (64, 64)),)))
        loss = trainer.gradients([batch], seed=5)
        assert all(part.device.type == CUDA.type for part in trainer.parameters)
        found = [part.grad.cpu() for part in trainer.parameters if part.grad is not None]
        trainer.train_step([batch], seed=6)
        return found, loss
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("family", "storage", "stream"),
    [
        ("sd1", None, "off"),
        ("sd1", "fp8_e4m3fn_row", "layers"),
        thoroughly("sd1", "fp8_e4m3fn_row", "off"),
        thoroughly("sd1", None, "blocks"),
        thoroughly("sd3", None, "layers"),
    ],
)
def test_every_way_of_checkpointing_gives_the_same_gradients(
    root: Path, family: str, storage: str | None, stream: str, tmp_path: Path
) -> None:
    with fake_gpu("cuda", 8) as card:
        path = root_of(root, family) / "Stable-diffusion" / f"{family}.safetensors"
        model = load_base(path, CONFIGS, storage, CUDA, stream, offload_dir=tmp_path)
        expected, loss = step(model, {})
        assert loss > 0 and any(bool(gradient.any()) for gradient in expected)
        gc.collect()
        held = shares(card)
        for memory in WAYS:
            found, again = step(model, memory)
            assert again == loss, memory
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), memory
            gc.collect()
            assert shares(card) == held, memory
        if model.streaming is not None:
            model.streaming.close()
