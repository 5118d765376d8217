"""Training on a toy of the SD1 layout: the weights' formula, a falling loss, resuming, and export without loss."""

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import avg_pool2d

from modules.errors import CheckpointError
from modules.sampling.discrete import scaled_linear_alphas_cumprod
from recipes.scenes.diffusion import DiffusionOptions, Trainer, train_diffusion
from recipes.scenes.export import ADAPTERS, export, fit_preview_factors, original_state
from recipes.scenes.loss import (
    GUIDED_TIMESTEPS,
    diffusion_loss,
    draw_guided_timesteps,
    draw_noise,
    draw_timesteps,
    guided_error,
    guided_weights,
    loss_weights,
    rate_factor,
)
from recipes.scenes.model import SceneModel, load_model
from recipes.scenes.pool import SHARD_IMAGES, Pool, encode_shard, images_of_shard, read_shard
from recipes.scenes.preview import decode, karras_sigmas, sample_latents
from recipes.scenes.tokens import tokenize

TINY = Path(__file__).parent.parent / "reference" / "models" / "tiny-sd1.safetensors"


@pytest.fixture
def model() -> SceneModel:
    return load_model(TINY)


def test_schedule_is_that_of_sd1() -> None:
    alphas = scaled_linear_alphas_cumprod()
    assert alphas[0] == pytest.approx(1 - 0.00085)
    assert alphas[-1] == pytest.approx(0.00466, abs=1e-5)


def test_loss_weights_are_those_of_velocity_between_their_limits() -> None:
    alphas = torch.tensor([0.99, 0.5, 0.1, 0.001])
    weights = loss_weights(alphas, weight_limit=50.0, min_snr=5.0)
    assert weights.tolist() == pytest.approx([5 / 99 / 0.99, 2.0, 10.0, 50.0], rel=1e-5)


def test_flat_error_counts_more() -> None:
    flat = torch.full((1, 4, 8, 8), 0.5)
    assert diffusion_loss(flat, torch.ones(1), flat_weight=2.0) == pytest.approx(3 * 0.25)
    zero_mean = flat.clone()
    zero_mean[..., ::2] *= -1
    assert diffusion_loss(zero_mean, torch.ones(1), flat_weight=2.0) == pytest.approx(0.25)


def test_timesteps_favour_the_upper_half() -> None:
    drawn = draw_timesteps(4000, 0.5, torch.Generator().manual_seed(0))
    assert drawn.min() >= 0 and drawn.max() <= 999
    assert (drawn >= 500).float().mean() == pytest.approx(0.75, abs=0.03)


def test_error_under_guidance_is_that_of_the_guided_prediction() -> None:
    generator = torch.Generator().manual_seed(0)
    noise, with_prompt, without = (torch.randn(2, 4, 8, 8, generator=generator) for _ in range(3))
    guidance = torch.tensor([1.0, 6.0])
    found = guided_error(with_prompt - noise, without - noise, guidance)
    assert torch.allclose(found[0], (with_prompt - noise)[0], atol=1e-5)
    assert torch.allclose(found[1], (6 * with_prompt - 5 * without - noise)[1], atol=1e-4)


def test_guidance_counts_at_low_noise() -> None:
    drawn = draw_guided_timesteps(1000, torch.Generator().manual_seed(0))
    assert drawn.min() >= 0 and drawn.max() < GUIDED_TIMESTEPS
    ends = torch.tensor([0, GUIDED_TIMESTEPS // 2, GUIDED_TIMESTEPS * 9 // 10, GUIDED_TIMESTEPS, 999])
    assert guided_weights(ends).tolist() == pytest.approx([1, 1, 0.5, 0, 0], abs=1e-6)


def test_offset_noise_moves_the_mean_of_half_the_images() -> None:
    noise = draw_noise(torch.Size((400, 4, 16, 16)), 1.0, torch.Generator().manual_seed(0))
    moved = (noise.mean(dim=(2, 3)).abs().amax(dim=1) > 0.25).float().mean()
    assert moved == pytest.approx(0.5, abs=0.1)


def test_rate_warms_up_and_falls() -> None:
    assert rate_factor(0, 0.0, 100, 0.02) == pytest.approx(0.01)
    assert rate_factor(500, 0.0, 100, 0.02) == pytest.approx(1.0)
    assert rate_factor(500, 1.0, 100, 0.02) == pytest.approx(0.02)


def test_tokens_are_those_of_clip() -> None:
    ids = tokenize(["a cat", ""])
    assert ids.shape == (2, 77)
    assert ids[0, :4].tolist() == [49406, 320, 2368, 49407]
    assert ids[1, :2].tolist() == [49406, 49407]


def test_training_lowers_the_loss_and_resumes(model: SceneModel, tmp_path: Path) -> None:
    trainer = Trainer(model, DiffusionOptions(learning_rate=3e-3, warmup_steps=1, minutes=1000))
    latents = torch.randn(8, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    losses = [
        trainer.train_step(latents, ["a red circle"] * 8, torch.Generator().manual_seed(step % 2)) for step in range(12)
    ]
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
    trainer.save(tmp_path / "state.pt")
    other = Trainer(load_model(TINY), trainer.options)
    other.resume(tmp_path / "state.pt")
    assert other.step == 12
    (wanted,) = trainer.averaged()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in other.model.unet.named_parameters())


@pytest.mark.parametrize("train_text", [False, True])
def test_text_model_learns_where_asked(model: SceneModel, train_text: bool) -> None:
    before = {name: tensor.clone() for name, tensor in model.text.state_dict().items()}
    trainer = Trainer(model, DiffusionOptions(warmup_steps=1, minutes=1000, train_text=train_text))
    trainer.train_step(torch.randn(3, 4, 8, 8), ["a red circle"] * 3, torch.Generator().manual_seed(0))
    changed = any(not torch.equal(tensor, before[name]) for name, tensor in model.text.state_dict().items())
    assert changed == train_text and len(trainer.averaged()) == 1 + train_text


def test_run_ends_after_its_steps_and_leaves_its_state(model: SceneModel, tmp_path: Path) -> None:
    _small_shard(tmp_path)
    trainer = Trainer(model, DiffusionOptions(steps=2, batch=2, minutes=1000))
    list(train_diffusion(trainer, Pool(tmp_path), tmp_path / "diffusion.pt", lambda text: None))
    assert trainer.step == 2
    assert (tmp_path / "diffusion.pt").is_file()


def test_export_has_the_names_shapes_and_values_of_the_start(model: SceneModel, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    export(model, TINY, target, ([[0.0] * 3] * 4, [0.0] * 3))
    written, start = load_file(target), load_file(TINY)
    names = {name for name in start if name.startswith(ADAPTERS) and not name.endswith("position_ids")}
    assert names == written.keys() - {"alphas_cumprod"}
    assert all(torch.equal(written[name], start[name].half()) for name in names)
    again = load_model(target)
    assert again.scale_factor == model.scale_factor


def test_export_refuses_another_layout(model: SceneModel, tmp_path: Path) -> None:
    del model.text.final_layer_norm.bias
    model.text.final_layer_norm.bias = None
    assert "cond_stage_model.transformer.text_model.final_layer_norm.bias" not in original_state(model)
    with pytest.raises(ValueError, match=r"final_layer_norm\.bias"):
        export(model, TINY, tmp_path / "model.safetensors", ([[0.0] * 3] * 4, [0.0] * 3))


def test_missing_start_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors does not exist"):
        load_model(tmp_path / "nothing.safetensors")


def test_preview_factors_recover_a_linear_decoder() -> None:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(4, 4, 8, 8, generator=generator)
    factors, bias = torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)
    small = torch.einsum("nchw,cr->nrhw", latents, factors) + bias.view(1, 3, 1, 1)
    images = small.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
    found, found_bias = fit_preview_factors(latents, images)
    assert torch.allclose(torch.tensor(found), factors, atol=1e-3)
    assert torch.allclose(torch.tensor(found_bias), bias, atol=1e-3)


def test_pool_grows_and_images_of_a_shard_can_be_drawn_again(tmp_path: Path) -> None:
    _small_shard(tmp_path)
    pool = Pool(tmp_path)
    assert len(pool) == 0
    pool.refresh()
    pool.refresh()
    assert len(pool) == SHARD_IMAGES
    latents, captions = pool.batch(3, Random(0))
    assert latents.shape[0] == len(captions) == 3
    stored, drawn = read_shard(tmp_path / "pool-00000.safetensors")[0], images_of_shard(0, 2)
    assert torch.allclose(stored[:2, :3].float(), avg_pool2d(drawn, 8), atol=1e-2)
    assert images_of_shard(0, 2).shape == (2, 3, 128, 128)


def test_preview_sampler_ends_in_an_image(model: SceneModel) -> None:
    model.unet.eval()
    sigmas = karras_sigmas(model.alphas_cumprod, 3)
    assert sigmas[0] > sigmas[1] > sigmas[2] > sigmas[3] == 0
    latents = sample_latents(model, ["a red circle"], [5], steps=3)
    assert latents.shape == (1, 4, 16, 16)
    assert torch.isfinite(latents).all()
    assert decode(model.vae, latents).dtype == torch.uint8


class _AveragingVae:
    """Stands in for the autoencoder, which would take most of a minute: a latent is the reduced image."""

    def encode(self, images: torch.Tensor) -> SimpleNamespace:
        small = avg_pool2d(images, 8)
        return SimpleNamespace(latent_dist=SimpleNamespace(mean=torch.cat([small, small[:, :1]], dim=1)))


def _small_shard(folder: Path) -> None:
    """A shard as `encode_shard` writes it."""
    path = encode_shard(_AveragingVae(), folder, 0, batch=64)
    assert read_shard(path)[0].dtype == torch.float16
