"""Distilling a tiny autoencoder: it learns, can be stopped and gone on with, and what it writes is read."""

from pathlib import Path

import pytest
import torch

from modules.models.autoencoders.running import VaeRunner
from modules.models.autoencoders.tiny_vae import read_tiny
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER
from modules.models.families.architecture import read_architecture
from recipes.scenes.images import draw
from recipes.scenes.model import load_model
from recipes.scenes.pool import scene_of_seed, to_tensor
from recipes.scenes.tiny_vae import TinyOptions, TinyTrainer, measure_tiny, psnr, write_tiny

ROOT = Path(__file__).parent.parent.parent
SHIPPED = ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
CORNER = slice(4), slice(-4, None)
OPTIONS = TinyOptions(steps=30, width=4, learning_rate=3e-3)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 4, 2, 2, generator=generator)
    images = torch.rand(2, 3, 16, 16, generator=generator) * 2 - 1
    return latents, images, latents, images


def test_both_halves_learn(tmp_path: Path) -> None:
    trainer = TinyTrainer(4, OPTIONS)
    losses = [trainer.train_step(*batch()) for _ in range(30)]
    assert losses[-1][0] < losses[0][0] and losses[-1][1] < losses[0][1]
    assert trainer.progress() == 1


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    trainer = TinyTrainer(4, OPTIONS)
    for _ in range(3):
        trainer.train_step(*batch())
    trainer.save(tmp_path / "state.pt")
    other = TinyTrainer(4, OPTIONS)
    other.resume(tmp_path / "state.pt")
    assert other.step == 3 and other.train_step(*batch()) == pytest.approx(trainer.train_step(*batch()))


def test_what_is_written_is_read_and_computes_the_same_in_fp16(tmp_path: Path) -> None:
    trainer = TinyTrainer(4, OPTIONS)
    latents, images, _, _ = batch()
    decoder_path, encoder_path = write_tiny(trainer, tmp_path / "mine")
    assert (decoder_path.name, encoder_path.name) == ("mine_decoder.safetensors", "mine_encoder.safetensors")
    runner = VaeRunner(torch.device("cpu"), torch.float32)
    made = read_tiny(decoder_path, DECODER, 4, 8).run(latents, runner)
    torch.testing.assert_close(made, trainer.decoder(latents).detach(), rtol=1e-2, atol=1e-2)
    found = read_tiny(encoder_path, ENCODER, 4, 8).run(images, runner)
    torch.testing.assert_close(found, trainer.encoder(images).detach(), rtol=1e-2, atol=1e-2)


def test_psnr_of_a_known_error() -> None:
    zeros = torch.zeros(1, 3, 4, 4)
    assert psnr(zeros + 0.2, zeros) == pytest.approx(20.0)
    assert psnr(zeros + 3.0, zeros + 1.0) == float("inf")


def test_the_shipped_ones_stand_in_for_the_vae() -> None:
    folder = ROOT / "models" / "VAE-taesd"
    decoder, encoder = (
        read_tiny(folder / f"featherweight-scenes_{half}.safetensors", half, 4, 8) for half in (DECODER, ENCODER)
    )
    found = measure_tiny(load_model(SHIPPED), decoder, encoder, images=4)
    assert found.decoded_db > 25 and found.round_trip_db > 22


@torch.inference_mode()
def test_the_shipped_vae_leaves_no_spot_in_a_corner() -> None:
    vae, autoencoder = load_model(SHIPPED).vae, read_architecture(SHIPPED.with_suffix(".yaml")).autoencoder
    images = to_tensor([draw(scene_of_seed(seed)[0]) for seed in range(4)])
    decoded = autoencoder.decode(vae, vae.encode(images).latent_dist.mode())
    assert decoded.shape == images.shape
    off = (decoded - images).abs().mean((0, 1))
    assert max(float(off[rows, columns].mean()) for rows in CORNER for columns in CORNER) < 3 * float(off.mean())
