"""A training step on a made-up GPU: with each way of checkpointing, on weights in 16 and in 8 bits, resident and
streamed, the same gradients to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib_training.base_model import load_base
from lib_training.config import config_of
from lib_training.stepping import Batch, Trainer
from lib_training.texts import Caption, CaptionEncoder
from modules.models.loading.loaded import LoadedModel
from modules.system.devices import collect_garbage
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


CASES: list[Any] = [
    ("sd1", "fp8_e4m3fn_row", "layers"),
    ("z-image", None, "layers"),
    thoroughly("sd1", None, "off"),
    thoroughly("flux2", "fp8_e4m3fn_row", "off"),
    thoroughly("sd1", "fp8_e4m3fn_row", "off"),
    thoroughly("sd1", None, "blocks"),
    thoroughly("sd3", None, "layers"),
    thoroughly("z-image", "fp8_e4m3fn_row", "off"),
    thoroughly("flux2", None, "blocks"),
]


def gradients(
    model: LoadedModel, memory: dict[str, Any], batch: Batch, encoder: CaptionEncoder, steps: bool = False
) -> tuple[Sequence[Tensor], float]:
    """Those of a batch, on the CPU, and its loss; the trainer, which makes a whole step after it where `steps` says so,
    is closed again."""
    settings = config_of({"adapter": {"type": "lora", "rank": 2}, "loss": {"min_snr": None}, "memory": memory})
    trainer = Trainer(model, settings, encoder, (8, 8))
    try:
        loss = trainer.gradients([batch], seed=5)
        assert all(part.device.type == CUDA.type for part in trainer.parameters)
        found = [part.grad.cpu() for part in trainer.parameters if part.grad is not None]
        if steps:
            trainer.train_step([batch], seed=6)
        return found, loss
    finally:
        trainer.close()


@pytest.mark.parametrize(("family", "storage", "stream"), CASES)
def test_every_way_of_checkpointing_gives_the_same_gradients(
    root: Path, family: str, storage: str | None, stream: str, tmp_path: Path
) -> None:
    folder = root_of(root, family)
    parts = [path for name in ("text_encoder", "VAE") for path in sorted((folder / name).glob("*.safetensors"))]
    files = list((folder / "Stable-diffusion").glob("*.safetensors"))
    path = files[0] if len(files) == 1 else folder / "Stable-diffusion" / f"{family}.safetensors"
    with fake_gpu("cuda", 8) as card:
        model = load_base(path, CONFIGS, storage, CUDA, stream, offload_dir=tmp_path, modules=parts)
        encoder = CaptionEncoder(model)
        latents = torch.randn(1, model.latent_channels, 8, 8, generator=torch.Generator().manual_seed(1))
        batch = Batch(latents, encoder.encode((Caption("a red toy", (64, 64)),)))
        expected, loss = gradients(model, {}, batch, encoder, steps=True)
        assert loss > 0 and any(bool(gradient.any()) for gradient in expected)
        collect_garbage()
        held = shares(card)
        for memory in WAYS:
            found, again = gradients(model, memory, batch, encoder)
            assert again == loss, memory
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), memory
            collect_garbage()
            assert shares(card) == held, memory
        if model.streaming is not None:
            model.streaming.close()
