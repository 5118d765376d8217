"""The architecture of a latent diffusion model, read from a YAML in the original LDM form (OmegaConf).

One YAML describes a family (`configs/`); a `NAME.yaml` beside `NAME.safetensors` describes that one file and wins.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from modules.errors import CheckpointError


@dataclass(frozen=True)
class UNetArchitecture:
    """Sizes of the denoising network. Levels are counted from the finest resolution."""

    in_channels: int
    out_channels: int
    widths: tuple[int, ...]  # channels of each level
    blocks_per_level: int
    attention_levels: frozenset[int]
    heads: int
    transformer_depth: int
    context_width: int

    @property
    def levels(self) -> int:
        """Number of resolutions."""
        return len(self.widths)


@dataclass(frozen=True)
class VaeArchitecture:
    """Sizes of the autoencoder; it halves the picture between levels."""

    in_channels: int
    out_channels: int
    latent_channels: int
    widths: tuple[int, ...]
    blocks_per_level: int

    @property
    def levels(self) -> int:
        """Number of resolutions."""
        return len(self.widths)


@dataclass(frozen=True)
class NoiseScheduleArchitecture:
    """The training schedule: betas whose square roots are spaced evenly ("scaled linear")."""

    linear_start: float
    linear_end: float
    timesteps: int


@dataclass(frozen=True)
class LatentFormat:
    """How latents relate to pictures. `rgb_factors` [channels][3] and `rgb_bias` [3] approximate the decoder for
    previews: red, green and blue in -1..1 from a scaled latent."""

    scale_factor: float
    rgb_factors: tuple[tuple[float, ...], ...] | None
    rgb_bias: tuple[float, ...] | None


@dataclass(frozen=True)
class LdmArchitecture:
    """Everything a YAML says about a model."""

    unet: UNetArchitecture
    vae: VaeArchitecture
    noise_schedule: NoiseScheduleArchitecture
    latent: LatentFormat
    latent_side: int  # the side of the latents the model was trained on
    prediction_type: str  # "epsilon" or "v_prediction"
    text_config_folder: str | None  # a local folder with the text model's config.json, if the YAML names one


def read_architecture(path: Path) -> LdmArchitecture:
    """Read a YAML; raises `CheckpointError` naming the file and the missing or impossible entry."""
    try:
        params = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        assert isinstance(params, dict)
        model = params["model"]["params"]
        return LdmArchitecture(
            unet=_unet(model["unet_config"]["params"]),
            vae=_vae(model["first_stage_config"]["params"]),
            noise_schedule=NoiseScheduleArchitecture(
                float(model.get("linear_start", 0.00085)),
                float(model.get("linear_end", 0.012)),
                int(model.get("timesteps", 1000)),
            ),
            latent=_latent(model),
            latent_side=int(model.get("image_size", 64)),
            prediction_type="v_prediction" if model.get("parameterization") == "v" else "epsilon",
            text_config_folder=(model["cond_stage_config"].get("params") or {}).get("version"),
        )
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror}).") from error
    except (YAMLError, OmegaConfBaseException, AssertionError) as error:
        raise CheckpointError(f"{path.name}: is not a readable YAML: {str(error).splitlines()[0]}") from error
    except KeyError as error:
        raise CheckpointError(
            f"{path.name}: the entry {error} is missing. A model YAML needs model.params with unet_config, "
            "first_stage_config and cond_stage_config; see configs/v1-inference.yaml."
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path.name}: an entry has an unusable value: {error}") from error


def _unet(params: dict[str, Any]) -> UNetArchitecture:
    multipliers = [int(m) for m in params["channel_mult"]]
    width = int(params["model_channels"])
    resolutions = {int(r) for r in params["attention_resolutions"]}
    return UNetArchitecture(
        in_channels=int(params["in_channels"]),
        out_channels=int(params["out_channels"]),
        widths=tuple(width * m for m in multipliers),
        blocks_per_level=int(params["num_res_blocks"]),
        attention_levels=frozenset(level for level in range(len(multipliers)) if 2**level in resolutions),
        heads=int(params["num_heads"]),
        transformer_depth=int(params.get("transformer_depth", 1)),
        context_width=int(params["context_dim"]),
    )


def _vae(params: dict[str, Any]) -> VaeArchitecture:
    config = params["ddconfig"]
    if config.get("attn_resolutions"):
        raise ValueError("attn_resolutions of the autoencoder must be empty")
    width = int(config["ch"])
    return VaeArchitecture(
        in_channels=int(config["in_channels"]),
        out_channels=int(config["out_ch"]),
        latent_channels=int(params["embed_dim"]),
        widths=tuple(width * int(m) for m in config["ch_mult"]),
        blocks_per_level=int(config["num_res_blocks"]),
    )


def _latent(model: dict[str, Any]) -> LatentFormat:
    factors, bias = model.get("preview_rgb_factors"), model.get("preview_rgb_bias")
    return LatentFormat(
        scale_factor=float(model.get("scale_factor", 0.18215)),
        rgb_factors=tuple(tuple(float(v) for v in row) for row in factors) if factors else None,
        rgb_bias=tuple(float(v) for v in bias) if bias else None,
    )
