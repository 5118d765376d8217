"""Tiny checkpoints of every family with random weights, in the original layouts."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from omegaconf import OmegaConf
from safetensors.torch import save
from torch import Tensor

from modules.models.autoencoders.kl import KlAutoencoder
from modules.models.families.architecture import LdmArchitecture
from tests.models.original_keys import FileSizes, Shapes, TextSizes, UNetSizes, even, file_shapes
from tests.models.sd3_keys import Sd3Sizes, sd3_shapes

_TEXT = TextSizes(64, 3, 128)
_WIDE_TEXT = TextSizes(128, 3, 256)
_ONE = even((1, 0), blocks=1)
_TWO = even((0, 2), blocks=1)
_SDXL = FileSizes(
    UNetSizes(4, 32, (1, 2), *(_TWO[0], 2, _TWO[1]), 192, linear=True, vector=128 + 6 * 256),
    clip=("conditioner.embedders.0.transformer", _TEXT),
    open_clip=("conditioner.embedders.1.model", _WIDE_TEXT),
    vae_width=32,
)
_SD1 = FileSizes(
    UNetSizes(4, 32, (1, 2), *(_ONE[0], 1, _ONE[1]), 64), clip=("cond_stage_model.transformer", _TEXT), vae_width=32
)
_SD2 = FileSizes(
    UNetSizes(4, 32, (1, 2), *(_ONE[0], 1, _ONE[1]), 128, linear=True),
    open_clip=("cond_stage_model.model", _WIDE_TEXT),
    vae_width=32,
)
_SD3 = Sd3Sizes(
    *(128, 3, 8, 256), clip_l=_TEXT, clip_g=_WIDE_TEXT, vae_width=32
)  # of 8 x 8 positions: at most 16 latents a side
TINY_FAMILIES = {
    "sd1": _SD1,
    "sd1-inpainting": replace(_SD1, unet=replace(_SD1.unet, in_channels=9)),
    "pix2pix": replace(_SD1, unet=replace(_SD1.unet, in_channels=8)),
    "sd2": _SD2,
    "sd2-inpainting": replace(_SD2, unet=replace(_SD2.unet, in_channels=9)),
    "sd2-v": _SD2,
    "sd-turbo": replace(
        _SD2, open_clip=("conditioner.embedders.0.model", _WIDE_TEXT), extras={"denoiser.sigmas": (1000,)}
    ),
    "sdxl": _SDXL,
    "sdxl-turbo": replace(_SDXL, extras={"denoiser.sigmas": (1000,)}),
    "sdxl-inpainting": replace(_SDXL, unet=replace(_SDXL.unet, in_channels=9)),
    "sdxl-v": replace(_SDXL, extras={"v_pred": (), "ztsnr": ()}),
    "sdxl-pruned": replace(
        _SDXL,
        unet=replace(_SDXL.unet, depths=((0, 0), (2, 2)), middle_depth=0, up_depths=((2, 1, 1), (0, 0, 0))),
    ),
    "sdxl-refiner": FileSizes(
        UNetSizes(4, 32, (1, 2), *(_TWO[0], 2, _TWO[1]), 128, linear=True, vector=128 + 5 * 256),
        open_clip=("conditioner.embedders.0.model", _WIDE_TEXT),
        vae_width=32,
    ),
}
TINY_SD3 = {
    "sd3": _SD3,
    "sd3.5": replace(_SD3, dual=frozenset({0, 1}), head=64),
    "sd3.5-large": replace(_SD3, head=64),  # no block has a second attention
}
FAMILY_NAMES = (*TINY_FAMILIES, "sd3", "sd3.5")
OUT_BIAS = "model.diffusion_model.out.2.bias"
V_BIAS = -3.0  # so that the network's answer to noise lies far below it, as that of one that predicts v


def family_shapes(name: str) -> Shapes:
    """All tensors of a tiny checkpoint."""
    return sd3_shapes(TINY_SD3[name]) if name in TINY_SD3 else file_shapes(TINY_FAMILIES[name])


def family_tensors(name: str) -> dict[str, Tensor]:
    """Random fp16 weights that keep a forward pass finite: norms near 1, weights small."""
    generator = torch.Generator().manual_seed(len(name))
    tensors: dict[str, Tensor] = {}
    for key, shape in family_shapes(name).items():
        if key.endswith("position_ids"):
            tensors[key] = torch.arange(77).expand(1, 77).contiguous()
            continue
        is_norm = len(shape) == 1 and key.endswith(".weight")
        spread = 0.05 if len(shape) < 2 else 1 / torch.Size(shape[1:]).numel() ** 0.5
        values = torch.randn(shape, generator=generator) * spread
        tensors[key] = (values + 1 if is_norm else values).half()
    if name == "sd2-v":
        tensors[OUT_BIAS].fill_(V_BIAS)
    return tensors


def write_family(folder: Path, name: str) -> Path:
    """Write `NAME.safetensors` there: a copy of the one that this process has made."""
    path = folder / f"{name}.safetensors"
    path.write_bytes(_file_of(name))
    return path


@lru_cache(maxsize=4)  # up to 34 MB each
def _file_of(name: str) -> bytes:
    """Return the file of a family."""
    return save(family_tensors(name))


def write_yaml(path: Path, sizes: FileSizes, like: Path, parameterization: str) -> None:
    """A description in the original form: `like` with the sizes of a tiny file, and what its network predicts."""
    config = OmegaConf.load(like)
    params = config.model.params
    params.parameterization = parameterization
    unet = sizes.unet
    params.unet_config.params.update(
        in_channels=unet.in_channels,
        model_channels=unet.width,
        channel_mult=list(unet.multipliers),
        num_res_blocks=len(unet.depths[0]),
        attention_resolutions=[2**level for level, depths in enumerate(unet.depths) if any(depths)],
        context_dim=unet.context,
    )
    params.first_stage_config.params.ddconfig.ch = sizes.vae_width
    OmegaConf.save(config, path)


def kl(architecture: LdmArchitecture) -> KlAutoencoder:
    """The autoencoder of an architecture that has Stable Diffusion's."""
    assert isinstance(architecture.autoencoder, KlAutoencoder)
    return architecture.autoencoder
