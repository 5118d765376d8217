"""Each autoencoder gives what diffusers' class and the constants of its pipelines give; every tensor has its place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.models.autoencoders.autoencoder import Autoencoder
from modules.models.autoencoders.kl import KlAutoencoder, KlSizes
from modules.models.autoencoders.packed_kl import PackedKlAutoencoder
from modules.models.autoencoders.qwen_image import QwenImageAutoencoder
from modules.models.autoencoders.registry import autoencoder_type, holds_autoencoder, read_autoencoder
from modules.models.autoencoders.running import VaeRules, VaeRunner
from modules.models.autoencoders.source import open_vae
from modules.models.files.tensor_source import open_tensors
from modules.models.loading.matching import assign_tensors
from tests.rounding import rounding_of

CPU = torch.device("cpu")
SIZES = KlSizes(3, 3, 4, (32, 32, 64), 1)
KINDS: dict[str, Autoencoder] = {
    "kl": KlAutoencoder(SIZES, 0.5, 0.25),
    "kl without a convolution": KlAutoencoder(replace(SIZES, has_quant_conv=False), 0.3611, 0.1159),
    "packed": PackedKlAutoencoder(replace(SIZES, latent_channels=8)),
    "packed with a small decoder": PackedKlAutoencoder(replace(SIZES, latent_channels=8), (32, 32, 32)),
    "qwen image": QwenImageAutoencoder(widths=(16, 32, 32), in_time=(False, True), blocks_per_level=1),
    "qwen image in depth": QwenImageAutoencoder(widths=(16, 32, 64, 64)),
}
UNSIZED: dict[str, Autoencoder] = {
    "kl": KlAutoencoder(KlSizes(3, 3, 4, (128, 256, 512, 512), 2), 0.5, 0.25),
    "kl without a convolution": KlAutoencoder(KlSizes(3, 3, 16, (128,), 2), 0.3611, 0.1159),
    "packed": PackedKlAutoencoder(KlSizes(3, 3, 32, (128, 256), 2)),
    "packed with a small decoder": PackedKlAutoencoder(KlSizes(3, 3, 32, (128, 256), 2)),
    "qwen image": QwenImageAutoencoder(),
    "qwen image in depth": QwenImageAutoencoder(),
}


def filled(autoencoder: Autoencoder) -> Any:
    """The module with small random weights, in eval mode."""
    module: nn.Module = autoencoder.component().module.to_empty(device="cpu").eval().requires_grad_(False)
    torch.manual_seed(0)
    for name, tensor in module.state_dict().items():
        if name == "bn.running_var":
            tensor.uniform_(0.5, 2.0)
        elif tensor.is_floating_point():
            tensor.normal_(std=0.05)
    return module


def diffusers_scaling(name: str, vae: Any, latent: Tensor) -> Tensor:
    """What the pipelines of diffusers make of a VAE's latent [B,C,h,w]."""
    if name.startswith("packed"):
        batch, channels, height, width = latent.shape
        cut = latent.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
        packed: Tensor = cut.reshape(batch, channels * 4, height // 2, width // 2)
        mean, var = vae.bn.running_mean[None, :, None, None], vae.bn.running_var[None, :, None, None]
        spread: Tensor = torch.sqrt(var + vae.config.batch_norm_eps)
        normalised: Tensor = (packed - mean) / spread
        return normalised
    if name.startswith("qwen"):
        mean, std = (
            torch.tensor(item)[None, :, None, None] for item in (vae.config.latents_mean, vae.config.latents_std)
        )
        return (latent - mean) / std
    shift, scale = (0.25, 0.5) if name == "kl" else (0.1159, 0.3611)
    return (latent - shift) * scale


@pytest.mark.parametrize("name", KINDS)
def test_images_and_scaled_latents_are_those_of_the_pipelines(name: str) -> None:
    autoencoder = KINDS[name]
    vae, runner = filled(autoencoder), VaeRunner(CPU, torch.float32)
    images = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    given = images.unsqueeze(2) if name.startswith("qwen") else images
    posterior = vae.encode(given).latent_dist
    own = posterior.mode().squeeze(2) if name.startswith("qwen") else posterior.mode()
    expected = diffusers_scaling(name, vae, own)
    mean, std = autoencoder.moments(vae, runner.moments(autoencoder, vae, images))
    scale = autoencoder.downscale
    assert mean.shape == std.shape == (2, autoencoder.channels, 32 // scale, 48 // scale)
    most = rounding_of(vae)
    torch.testing.assert_close(mean, expected, atol=most, rtol=most)
    decoded = runner.decode(autoencoder, vae, autoencoder.to_own(vae, expected))
    truth = vae.decode(posterior.mode()).sample
    truth = truth.squeeze(2) if name.startswith("qwen") else truth
    torch.testing.assert_close(decoded, truth, atol=most, rtol=most)


def test_a_margin_is_mirrored_and_cut_off() -> None:
    autoencoder = replace(KlAutoencoder(SIZES), margin=1)
    vae, runner = filled(autoencoder), VaeRunner(CPU, torch.float32)
    own = torch.randn(1, 4, 3, 5, generator=torch.Generator().manual_seed(1))
    mirrored = torch.cat([own[..., 1:2], own], dim=3)
    mirrored = torch.cat([mirrored, mirrored[:, :, 1:2]], dim=2)
    truth = vae.decode(mirrored).sample[..., :12, 4:]
    torch.testing.assert_close(runner.decode(autoencoder, vae, own), truth)
    single = own[..., :1]  # nothing to mirror
    torch.testing.assert_close(runner.decode(autoencoder, vae, single), vae.decode(single).sample)


@pytest.mark.parametrize("name", KINDS)
def test_the_spread_is_that_of_drawn_latents(name: str) -> None:
    """A latent one standard deviation from the mean, scaled, is one scaled deviation from the scaled mean."""
    autoencoder = KINDS[name]
    vae = filled(autoencoder)
    parameters = torch.randn(1, *_doubled(autoencoder.own_shape(4, 4)), generator=torch.Generator().manual_seed(2))
    own_mean, log_variance = parameters.chunk(2, dim=1)
    mean, std = autoencoder.moments(vae, parameters)
    moved = own_mean + torch.exp(0.5 * log_variance)
    torch.testing.assert_close(autoencoder.to_own(vae, mean + std), moved, atol=1e-4, rtol=1e-4)


def _doubled(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0] * 2, *shape[1:])


@pytest.mark.parametrize("layout", ["original", "diffusers"])
@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_either_layout_gives_sizes_and_all_weights(name: str, layout: str, tmp_path: Path) -> None:
    component = KINDS[name].component()
    vae = filled(KINDS[name])
    tensors = {}
    for key, tensor in vae.state_dict().items():
        original = str(component.keymap.to_original(key)).removeprefix("first_stage_model.")
        there = component.keymap.tensor_to_original(key, tensor).contiguous() if layout == "original" else tensor
        tensors[original if layout == "original" else key] = there
    path = tmp_path / "vae.safetensors"
    save_file(tensors, path)
    with open_tensors(path) as file:
        found = autoencoder_type(file.entries)
        assert holds_autoencoder(file.entries) and found is not None and found[1] == (layout == "diffusers")
    with open_vae(path) as source:
        sized = UNSIZED[name].sized_by(source.entries)
        again = sized.component()
        assert {key: value.shape for key, value in again.module.state_dict().items()} == {
            key: value.shape for key, value in vae.state_dict().items()
        }
        assert (sized.channels, sized.downscale) == (KINDS[name].channels, KINDS[name].downscale)
        assigned = assign_tensors(source, [again], lambda key: False)
        assert len(assigned) == len(tensors)


@pytest.mark.parametrize("name", KINDS)
def test_tiles_give_the_image_of_the_whole(name: str) -> None:
    autoencoder = KINDS[name]
    vae, side = filled(autoencoder), 96
    latents = torch.randn(
        1, autoencoder.channels, *(side // autoencoder.downscale,) * 2, generator=torch.Generator().manual_seed(3)
    )
    images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(4)) * 2 - 1
    whole, tiled = VaeRunner(CPU, torch.float32), VaeRunner(CPU, torch.float32, VaeRules(tile_px=64))
    own = autoencoder.to_own(vae, latents)
    expected = whole.decode(autoencoder, vae, own)
    torch.testing.assert_close(tiled.decode(autoencoder, vae, own), expected, atol=1e-4, rtol=1e-4)
    moments = whole.moments(autoencoder, vae, images)
    torch.testing.assert_close(tiled.moments(autoencoder, vae, images), moments, atol=1e-4, rtol=1e-4)


def test_a_yaml_names_the_type() -> None:
    stage: dict[str, Any] = {
        "ddconfig": {"in_channels": 3, "out_ch": 3, "ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1}
    }
    params = {"embed_dim": 32, **stage}
    kinds: dict[str, type] = {
        "some.models.AutoencoderKLFlux2": PackedKlAutoencoder,
        "AutoencoderKLQwenImage": QwenImageAutoencoder,
        "ldm.models.autoencoder.AutoencoderKL": KlAutoencoder,
        "sgm.models.autoencoder.AutoencoderKLInferenceWrapper": KlAutoencoder,
    }
    for target, kind in kinds.items():
        assert isinstance(read_autoencoder({"first_stage_config": {"target": target, "params": params}}), kind)
