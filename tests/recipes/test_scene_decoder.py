"""The decoder's fine-tuning: it lowers its loss and leaves the encoder alone."""

from pathlib import Path

import pytest
import torch

from modules.errors import CheckpointError
from recipes.scenes.model import load_model
from recipes.scenes.vae import DecoderOptions, DecoderTuner, image_loss, tune_decoder

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


def test_empty_pool_is_said(tmp_path: Path) -> None:
    tuner = DecoderTuner(load_model(TINY).vae, DecoderOptions(steps=1))
    with pytest.raises(CheckpointError, match="no encoded images"):
        list(tune_decoder(tuner, tmp_path, tmp_path / "decoder.pt"))
