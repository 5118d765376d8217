"""The architecture of a latent diffusion model, read from a YAML in the original LDM form (OmegaConf).

One YAML describes a family (`configs/`); a `NAME.yaml` next to `NAME.safetensors` describes that one file and wins.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from modules.errors import CheckpointError, first_line
from modules.models.autoencoders.autoencoder import Autoencoder
from modules.models.autoencoders.kl import PREVIEW_BIAS, PREVIEW_FACTORS
from modules.models.autoencoders.registry import read_autoencoder

PARAMETERIZATIONS = {"v": "v_prediction", "flow": "flow"}
CONDITIONER = "conditioner_config"
"""In YAMLs of the later form (Podell et al. 2023): several text models, and no word on the size of images, 1024 px."""


@dataclass(frozen=True)
class UNetArchitecture:
    """Sizes of the denoiser. Levels are counted from the finest resolution.

    `down_depths` says for each level, and `up_depths` for each level from the coarsest up, how many transformer blocks
    follow each of its residual blocks; 0 means no attention. Without `middle_depth` the middle is one residual block;
    without `has_middle` there is none.
    An attention has `heads` heads, or as many as `head_channels` makes of its width.
    """

    in_channels: int
    out_channels: int
    widths: tuple[int, ...]  # channels of each level
    blocks_per_level: int
    down_depths: tuple[tuple[int, ...], ...]
    middle_depth: int
    up_depths: tuple[tuple[int, ...], ...]
    context_width: int
    heads: int | None = None
    head_channels: int | None = None
    linear_projection: bool = False  # around the transformer blocks: a linear layer or a 1x1 convolution
    vector_width: int | None = None  # of the vector that is added to the time embedding, if there is one
    has_middle: bool = True

    @property
    def levels(self) -> int:
        """Number of resolutions."""
        return len(self.widths)

    @property
    def attention_levels(self) -> frozenset[int]:
        """The levels with attention."""
        return frozenset(level for level, depths in enumerate(self.down_depths) if any(depths))

    def heads_at(self, level: int) -> int:
        """Heads of an attention at this level."""
        if self.heads is not None:
            return self.heads
        assert self.head_channels is not None
        return max(self.widths[level] // self.head_channels, 1)


@dataclass(frozen=True)
class NoiseScheduleArchitecture:
    """The training schedule: betas whose square roots are spaced evenly ("scaled linear"), or those of a flow model
    with `flow_shift`; with `shifts_by_size` that stands for a shift that follows the size in the original, and a
    `flow_table` is used in place of one, see `FlowSchedule`.
    `sigma_range`: the model was trained on all noise levels between two sigmas instead."""

    linear_start: float
    linear_end: float
    timesteps: int
    zero_terminal_snr: bool = False  # rescaled so that the last step is pure noise (Lin et al. 2023, arXiv:2305.08891)
    flow_shift: float | None = None  # towards noise, of a flow model (Esser et al. 2024, arXiv:2403.03206)
    shifts_by_size: bool = False
    flow_table: tuple[float, ...] = ()
    sigma_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class LdmArchitecture:
    """Everything a YAML says about a model. `unet` is None where the denoiser is a transformer: its tensors tell."""

    unet: UNetArchitecture | None
    autoencoder: Autoencoder
    noise_schedule: NoiseScheduleArchitecture
    latent_side: int  # the side of the latents the model was trained on
    prediction_type: str  # "epsilon", "v_prediction", "flow", "edm_v_prediction" or "edm"
    text_config_folder: str | None  # a local folder with the text model's config.json, if the YAML names one

    @property
    def unet_sizes(self) -> UNetArchitecture:
        """Return the sizes of the UNet; raises `CheckpointError` for a model that has none."""
        if self.unet is None:
            raise CheckpointError("this needs a model with a UNet, and this one's denoiser is a transformer.")
        return self.unet


def read_architecture(path: Path, usual: Path | None = None) -> LdmArchitecture:
    """Read a YAML; raises `CheckpointError` naming the file and the missing or impossible entry.

    How latents look in previews is taken from `usual`, the family's YAML, where this one does not say it: those of
    other programs do not.
    """
    try:
        params = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        assert isinstance(params, dict)
        model = params["model"]["params"]
        prediction = PARAMETERIZATIONS.get(str(model.get("parameterization")), _scaled_prediction(model))
        unet = None if prediction == "flow" else _unet(_denoiser(model)["params"])
        autoencoder = read_autoencoder(model)
        if usual is not None and autoencoder.preview is None:
            autoencoder = read_autoencoder({**model, **_previews_in(usual, autoencoder.channels)})
        return LdmArchitecture(
            unet=unet,
            autoencoder=autoencoder,
            noise_schedule=NoiseScheduleArchitecture(
                float(model.get("linear_start", 0.00085)),
                float(model.get("linear_end", 0.012)),
                int(model.get("timesteps", 1000)),
                bool(model.get("zero_terminal_snr", False)),
                float(model.get("shift", 3.0)) if prediction == "flow" else None,
                bool(model.get("shifts_by_size", False)),
            ),
            latent_side=int(model.get("image_size", 128 if CONDITIONER in model else 64)),
            prediction_type=prediction,
            text_config_folder=_text_folder(model),
        )
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read ({error.strerror}).") from error
    except (YAMLError, OmegaConfBaseException, AssertionError) as error:
        raise CheckpointError(f"{path.name}: is not a readable YAML: {first_line(error)}") from error
    except KeyError as error:
        raise CheckpointError(
            f"{path.name}: the entry {error} is missing. A model YAML needs model.params with unet_config, "
            "first_stage_config and cond_stage_config; see configs/v1-inference.yaml."
        ) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path.name}: an entry has an unusable value: {error}") from error


def _previews_in(path: Path, channels: int) -> dict[str, Any]:
    """Return what a YAML says of previews of latents with so many channels, unchanged."""
    known = read_architecture(path).autoencoder
    if known.preview is None or known.channels != channels:
        return {}
    return {PREVIEW_FACTORS: known.preview.factors, PREVIEW_BIAS: known.preview.bias}


def _denoiser(model: dict[str, Any]) -> Any:
    return model["network_config"] if "network_config" in model else model["unet_config"]


def _scaled_prediction(model: dict[str, Any]) -> str:
    """Read the prediction from the later form of a YAML: by the class that scales the denoiser's output."""
    denoiser = (model.get("denoiser_config") or {}).get("params") or {}
    scaling = str((denoiser.get("scaling_config") or {}).get("target", ""))
    return "v_prediction" if scaling.rpartition(".")[2] == "VScaling" else "epsilon"


def _text_folder(model: dict[str, Any]) -> str | None:
    if CONDITIONER in model:
        return None
    version = (model["cond_stage_config"].get("params") or {}).get("version")
    return None if version is None else str(version)


def _unet(params: dict[str, Any]) -> UNetArchitecture:
    multipliers = [int(m) for m in params["channel_mult"]]
    width = int(params["model_channels"])
    resolutions = {int(r) for r in params["attention_resolutions"]}
    blocks = int(params["num_res_blocks"])
    depth = params.get("transformer_depth", 1)
    depths = [int(d) for d in depth] if isinstance(depth, list) else [int(depth)] * len(multipliers)
    if len(depths) != len(multipliers):
        raise ValueError("transformer_depth and channel_mult must have equally many entries")
    at_level = [depths[level] if 2**level in resolutions else 0 for level in range(len(multipliers))]
    heads = int(params.get("num_heads", -1))
    adm = params.get("adm_in_channels")
    return UNetArchitecture(
        in_channels=int(params["in_channels"]),
        out_channels=int(params["out_channels"]),
        widths=tuple(width * m for m in multipliers),
        blocks_per_level=blocks,
        down_depths=tuple((depth,) * blocks for depth in at_level),
        middle_depth=int(params.get("transformer_depth_middle") or depths[-1]),
        up_depths=tuple((depth,) * (blocks + 1) for depth in reversed(at_level)),
        heads=heads if heads > 0 else None,
        head_channels=None if heads > 0 else int(params["num_head_channels"]),
        context_width=_context_width(params["context_dim"], at_level),
        linear_projection=bool(params.get("use_linear_in_transformer", False)),
        vector_width=None if adm is None else int(adm),
    )


def _context_width(value: object, depths: list[int]) -> int:
    """One width, or as the YAMLs of several text models have it, one for each transformer block of a level, all
    equal. Raises `ValueError` for widths that differ, and for fewer than the deepest level has blocks."""
    widths = [int(width) for width in value] if isinstance(value, list) else [int(str(value))]
    if not widths or len(set(widths)) != 1:
        raise ValueError(f"context_dim must be one number, or a list of equal ones, and is {value}")
    if isinstance(value, list) and len(widths) < max(depths):
        raise ValueError(f"context_dim has {len(widths)} numbers, and a level has {max(depths)} transformer blocks")
    return widths[0]
