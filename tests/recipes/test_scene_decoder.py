"""The decoder's fine-tuning: it lowers its loss and leaves the encoder alone."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError
from recipes.scenes.model import load_model
from recipes.scenes.pool import SHARD_IMAGES, shard_path
from recipes.scenes.vae import (
    DecoderOptions,
    DecoderTuner,
    Outliers,
    border_weights,
    denoised,
    image_loss,
    tune_decoder,
)

TINY = Path(__file__).parent.parent / "reference" / "models" / "tiny-sd1.safetensors"


def test_loss_of_a_constant_error_is_that_error_at_every_scale() -> None:
    wanted = torch.zeros(1, 3, 16, 16)
    assert image_loss(wanted + 0.5, wanted, gradient_weight=1.0) == pytest.approx(1.5)
    assert image_loss(wanted, wanted, gradient_weight=1.0) == 0


def test_decoder_learns_and_the_encoder_stays(tmp_path: Path) -> None:
    vae = load_model(TINY).vae
    encoder = {name: tensor.clone() for name, tensor in vae.encoder.state_dict().items()}
    tuner = DecoderTuner(vae, DecoderOptions(learning_rate=1e-3))
    generator = torch.Generator().manual_seed(0)
    latents, images = torch.randn(2, 4, 4, 4, generator=generator), torch.rand(2, 3, 32, 32, generator=generator)
    losses = [tuner.train_step(latents, images) for _ in range(8)]
    assert losses[-1] < losses[0]
    assert all(torch.equal(tensor, encoder[name]) for name, tensor in vae.encoder.state_dict().items())
    tuner.save(tmp_path / "decoder.pt")
    other = DecoderTuner(load_model(TINY).vae, tuner.options)
    other.resume(tmp_path / "decoder.pt")
    assert other.step == 8


def test_corners_and_borders_weigh_more() -> None:
    weights = border_weights(64, 96, extra=1.0)
    assert weights.shape == (64, 96)
    assert [float(weights[row, column]) for row, column in ((32, 48), (0, 48), (20, 20), (3, 40))] == [1, 2, 2, 2]
    assert all(float(weights[row, column]) == 11 for row in (0, -1) for column in (0, -1))


def test_values_that_stand_out_of_a_group_count() -> None:
    norm = torch.nn.GroupNorm(1, 2)
    outliers = Outliers(norm, limit=5.0)
    flat = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    norm(flat)
    assert float(outliers.take()) == 0
    spot = flat.clone().requires_grad_()
    with torch.no_grad():
        spot[..., 15, 0] = 50
    norm(spot)
    found = outliers.take()
    deviation, mean = torch.std_mean(spot.detach())
    excess = 2 * float((50 - mean) / deviation - 5)  # the spot is in both channels
    assert float(found.detach()) == pytest.approx(excess / spot.numel(), rel=1e-3)
    torch.autograd.backward(found)
    assert spot.grad is not None
    assert float(spot.grad[0, 0, 15, 0]) == pytest.approx(1 / float(deviation) / spot.numel(), rel=1e-3)


def test_it_learns_from_latents_as_the_unet_restores_them(tmp_path: Path) -> None:
    model = load_model(TINY)
    latents = torch.randn(SHARD_IMAGES, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    restored = denoised(model, latents[:2], ["a red circle", ""], DecoderOptions(), Random(0))
    assert restored.shape == (2, 4, 16, 16) and not torch.equal(restored, latents[:2]) and restored.isfinite().all()
    captions = json.dumps([["a red circle"]] * SHARD_IMAGES)
    save_file({"latents": latents.half()}, shard_path(tmp_path, 0), metadata={"captions": captions})
    tuner = DecoderTuner(model.vae, DecoderOptions(steps=1, batch=2))
    list(tune_decoder(tuner, model, tmp_path, tmp_path / "decoder.pt"))
    assert tuner.step == 1 and (tmp_path / "decoder.pt").is_file()


def test_empty_pool_is_said(tmp_path: Path) -> None:
    model = load_model(TINY)
    tuner = DecoderTuner(model.vae, DecoderOptions(steps=1))
    with pytest.raises(CheckpointError, match="no encoded images"):
        list(tune_decoder(tuner, model, tmp_path, tmp_path / "decoder.pt"))
