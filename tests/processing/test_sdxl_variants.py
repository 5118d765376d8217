"""SDXL's relatives: those that were trained on all noise levels and say so in small tensors, and the pruned ones."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.autoencoders.kl import KlAutoencoder
from modules.models.families.architecture import read_architecture
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.ldm.denoiser import unet_component
from modules.models.families.registry import FAMILIES
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import PrecisionOptions
from modules.sampling.denoisers import edm_denoise
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.models.dit_files import HeaderOnly, full_header, with_whole_names
from tests.models.family_files import family_tensors
from tests.processing.test_flux_families import made, pixels
from tests.recordings import CONFIGS, cpu_machine

MEAN, DEVIATION = (-1.6574, 1.886, -1.383, 2.5155), (8.4927, 5.9022, 6.5498, 5.2299)
COS = {"edm_vpred.sigma_max": torch.tensor(120.0), "edm_vpred.sigma_min": torch.tensor(0.002)}
PLAYGROUND = {"edm_mean": torch.tensor(MEAN).view(1, 4, 1, 1), "edm_std": torch.tensor(DEVIATION).view(1, 4, 1, 1)}
SIZE = {"width": 64, "height": 64, "cfg_scale": 1.0, "prompt": "a fox"}


def engine_of(
    root: Path, extra: dict[str, Tensor], name: str = "model", metadata: dict[str, str] | None = None
) -> Engine:
    folder = root / "Stable-diffusion"
    folder.mkdir()
    save_file({**family_tensors("sdxl"), **extra}, folder / f"{name}.safetensors", metadata)
    return Engine(
        CheckpointCatalogue([folder], HashCache(root / "h.json")),
        CONFIGS,
        cpu_machine,
        models=ExtraModels(adapters=adapters_of()),
    )


def image_of(model: Any, latents: Tensor) -> Any:
    decoded = model.vae.decode(latents, return_dict=False)[0][0]
    return ((decoded.permute(1, 2, 0) + 1) / 2).clamp(0, 1).mul(255).numpy().astype(np.uint8).astype(np.int64)


@pytest.mark.parametrize("name", ["cos", "playground"])
@torch.no_grad()
def test_images_follow_the_models_own_levels_and_preconditioning(name: str, tmp_path: Path) -> None:
    """Euler by hand (Karras et al. 2022, equations 1 and 7), on levels evenly spaced in log sigma."""
    engine = engine_of(tmp_path, COS if name == "cos" else PLAYGROUND)
    found = pixels(made(engine, tmp_path, scheduler="Exponential", **SIZE))
    model = engine.model(None, PrecisionOptions.of(Settings()))
    top, data = (120.0, 1.0) if name == "cos" else (80.0, 0.5)
    sigmas = torch.linspace(math.log(top), math.log(0.002), 4, dtype=torch.float64).exp().tolist()
    encoded = engine.conditioner(None).encode(["a fox"], [""], 4, Settings(), (64, 64))
    ((cond, _),) = encoded.prompts[0].at(0)
    assert cond.vector is not None
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1234)) * top
    for sigma, after in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        scale = math.sqrt(sigma**2 + data**2)
        output = model.unet(
            x / scale,
            torch.tensor([math.log(sigma) / 4]),
            encoder_hidden_states=cond.crossattn[None],
            class_labels=cond.vector[None],
            return_dict=False,
        )[0]
        sign = -1 if name == "cos" else 1
        denoised = x * data**2 / scale**2 + sign * output * sigma * data / scale
        x = x + (after - sigma) * (x - denoised) / sigma
    mean, deviation = (torch.tensor(values).view(1, 4, 1, 1) for values in (MEAN, DEVIATION))
    own = x / 0.13025 if name == "cos" else x * deviation / 0.5 + mean
    difference = np.abs(found - image_of(model, own))
    assert difference.max() <= 1 and difference.mean() < 0.01
    assert pixels(made(engine, tmp_path, sampler="DDIM", **SIZE)).std() > 1


@pytest.mark.parametrize("told", ["name", "metadata"])
@torch.no_grad()
def test_rectified_flow_is_followed(told: str, tmp_path: Path) -> None:
    """Euler by hand on a straight flow (Esser et al. 2024, equation 23, shift 3)."""
    metadata = {"modelspec.prediction_type": "rectified_flow"} if told == "metadata" else None
    engine = engine_of(tmp_path, {}, "My-XL-Rectified" if told == "name" else "model", metadata)
    found = pixels(made(engine, tmp_path, scheduler="SGM Uniform", **SIZE))
    model = engine.model(None, PrecisionOptions.of(Settings()))
    times = [(999 * (4 - step) / 4 + 1) / 1000 for step in range(4)]
    sigmas = [3 * time / (1 + 2 * time) for time in times]
    encoded = engine.conditioner(None).encode(["a fox"], [""], 4, Settings(), (64, 64))
    ((cond, _),) = encoded.prompts[0].at(0)
    assert cond.vector is not None
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1234))
    for sigma, after in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        velocity = model.unet(
            x,
            torch.tensor([1000 * sigma]),
            encoder_hidden_states=cond.crossattn[None],
            class_labels=cond.vector[None],
            return_dict=False,
        )[0]
        x = x + (after - sigma) * velocity
    difference = np.abs(found - image_of(model, x / 0.13025))
    assert difference.max() <= 1 and difference.mean() < 0.01


def test_latents_go_there_and_back() -> None:
    known = read_architecture(CONFIGS / "sd_xl_base.yaml").autoencoder
    assert isinstance(known, KlAutoencoder)
    vae = KlAutoencoder(known.sizes, 0.5, by_channel=(MEAN, DEVIATION))
    own = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    mean, std = vae.moments(None, torch.cat([own, torch.zeros_like(own)], dim=1))
    torch.testing.assert_close(vae.to_own(None, mean), own)
    torch.testing.assert_close(std[0, :, 0, 0], 0.5 / torch.tensor(DEVIATION))


def test_a_perfect_model_is_inverted() -> None:
    """For data of deviation 0.5 around 0 the best answer is the skip alone, which needs nothing of the network."""
    x, sigma = torch.randn(2, 4, 3, 3), torch.tensor([0.3, 7.0])
    found = edm_denoise(lambda x, time: torch.zeros_like(x))(x, sigma)
    torch.testing.assert_close(found, x * (0.25 / (0.25 + sigma**2)).view(-1, 1, 1, 1))


def test_statistics_that_cannot_be_are_refused(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, {**PLAYGROUND, "edm_std": torch.zeros(1, 4, 1, 1)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors: edm_mean and edm_std hold 4 and 4 values"):
        made(engine, tmp_path, **SIZE)


@pytest.mark.parametrize(
    ("name", "millions"), [("ssd-1b", 1331), ("segmind-vega", 745), ("koala-1b", 1161), ("koala-700m", 783)]
)
def test_pruned_ones_are_told_by_their_tensors(name: str, millions: int) -> None:
    family = FAMILIES.get("sdxl")
    file = with_whole_names(HeaderOnly(full_header(f"sdxl-{name}")))
    assert family.signs.has_denoiser(file.entries)
    component = unet_component(
        sized_by_header(file.entries, read_architecture(CONFIGS / family.config_name)).unet_sizes
    )
    ours = {key: tuple(tensor.shape) for key, tensor in component.module.state_dict().items()}
    theirs = {
        str(component.keymap.to_ours(key)): component.keymap.shape_to_ours(key, entry.shape)
        for key, entry in file.entries.items()
        if key.startswith(component.prefixes)
    }
    assert theirs == ours
    assert round(sum(tensor.numel() for tensor in component.module.state_dict().values()) / 1e6) == millions
