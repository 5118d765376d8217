"""YAMLs in the forms that the original repositories have, for each of their layouts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from modules.errors import CheckpointError
from modules.models.families.architecture import LdmArchitecture, read_architecture
from modules.models.families.registry import FAMILIES
from tests.recordings import CONFIGS

AUTOENCODER = {
    "target": "AutoencoderKL",
    "params": {
        "embed_dim": 4,
        "monitor": "val/rec_loss",
        "ddconfig": {
            **{"double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128},
            **{"ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0},
        },
        "lossconfig": {"target": "torch.nn.Identity"},
    },
}
LINEAR: dict[str, Any] = {"linear_start": 0.00085, "linear_end": 0.012, "timesteps": 1000, "scale_factor": 0.18215}
UNET: dict[str, Any] = {"image_size": 32, "in_channels": 4, "out_channels": 4, "num_res_blocks": 2, "legacy": False}


def unet(**entries: Any) -> dict[str, Any]:
    return {"target": "UNetModel", "params": {**UNET, "use_spatial_transformer": True, **entries}}


def earlier(text: dict[str, Any], prediction: str | None = None, **entries: Any) -> dict[str, Any]:
    """The form of SD1 and SD2."""
    spoken = {} if prediction is None else {"parameterization": prediction}
    depths = {"attention_resolutions": [4, 2, 1], "channel_mult": [1, 2, 4, 4], "model_channels": 320}
    return {
        **LINEAR,
        **spoken,
        **{"image_size": 64, "channels": 4, "cond_stage_key": "txt", "conditioning_key": "crossattn"},
        "unet_config": unet(**depths, transformer_depth=1, **entries),
        "first_stage_config": AUTOENCODER,
        "cond_stage_config": text,
    }


def later(scaling: str = "EpsScaling", **entries: Any) -> dict[str, Any]:
    """The form of SDXL and its refiner."""
    return {
        **{"scale_factor": 0.13025, "disable_first_stage_autocast": True},
        "denoiser_config": {
            "target": "sgm.modules.diffusionmodules.denoiser.DiscreteDenoiser",
            "params": {
                "num_idx": 1000,
                "scaling_config": {"target": f"sgm.modules.diffusionmodules.denoiser_scaling.{scaling}"},
            },
        },
        "network_config": unet(
            **{"attention_resolutions": [4, 2], "num_head_channels": 64, "use_linear_in_transformer": True},
            **{"num_classes": "sequential", **entries},
        ),
        "conditioner_config": {"target": "GeneralConditioner", "params": {"emb_models": []}},
        "first_stage_config": AUTOENCODER,
    }


XL_UNET: dict[str, Any] = {
    **{"model_channels": 320, "channel_mult": [1, 2, 4], "transformer_depth": [1, 2, 10], "context_dim": 2048},
    "adm_in_channels": 2816,
}
REFINER_UNET: dict[str, Any] = {
    **{"model_channels": 384, "channel_mult": [1, 2, 4, 4], "transformer_depth": 4, "adm_in_channels": 2560},
    "context_dim": [1280, 1280, 1280, 1280],
}
OPEN_CLIP = {"target": "FrozenOpenCLIPEmbedder", "params": {"freeze": True, "layer": "penultimate"}}
WIDE: dict[str, Any] = {"num_head_channels": 64, "use_linear_in_transformer": True, "context_dim": 1024}
YAMLS: dict[str, tuple[str, dict[str, Any]]] = {
    "sd1": ("sd1", earlier({"target": "FrozenCLIPEmbedder"}, num_heads=8, context_dim=768)),
    "sd1 inpainting": ("sd1", earlier({"target": "FrozenCLIPEmbedder"}, num_heads=8, context_dim=768, in_channels=9)),
    "sd2": ("sd2", earlier(OPEN_CLIP, **WIDE)),
    "sd2 v": ("sd2", earlier(OPEN_CLIP, "v", **WIDE)),
    "sdxl": ("sdxl", later(**XL_UNET)),
    "sdxl v": ("sdxl", later("VScaling", **XL_UNET)),
    "sdxl, width by block": ("sdxl", later(**{**XL_UNET, "context_dim": [2048] * 10})),
    "refiner": ("sdxl_refiner", later(**REFINER_UNET)),
}


def read(path: Path, params: dict[str, Any]) -> LdmArchitecture:
    path.write_text(yaml.safe_dump({"model": {"target": "LatentDiffusion", "params": params}}), encoding="utf-8")
    return read_architecture(path)


@pytest.mark.parametrize("name", YAMLS)
def test_a_yaml_of_the_original_form_says_what_ours_does(name: str, tmp_path: Path) -> None:
    family, params = YAMLS[name]
    found = read(tmp_path / "a.yaml", params)
    ours = read_architecture(CONFIGS / FAMILIES.get(family).config_name)
    channels = 9 if "inpainting" in name else 4
    assert found.unet_sizes.in_channels == channels
    assert ours.unet_sizes == found.unet_sizes if channels == 4 else ours.unet_sizes.widths == found.unet_sizes.widths
    assert (found.noise_schedule, found.latent_side) == (ours.noise_schedule, ours.latent_side)
    assert found.autoencoder == replace(ours.autoencoder, preview=None)  # type: ignore[type-var]
    previewed = read_architecture(tmp_path / "a.yaml", CONFIGS / FAMILIES.get(family).config_name)
    assert previewed == replace(found, autoencoder=ours.autoencoder)
    assert found.prediction_type == ("v_prediction" if name.endswith(" v") else "epsilon")


@pytest.mark.parametrize(
    ("width", "said"),
    [([1280, 1024], "equal ones"), ([], "equal ones"), ([1280], "4 transformer blocks"), ("wide", "invalid literal")],
)
def test_impossible_widths_are_refused(width: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"a\.yaml: an entry has an unusable value: .*{said}"):
        read(tmp_path / "a.yaml", later(**{**REFINER_UNET, "context_dim": width}))
