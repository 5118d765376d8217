"""Z-Image's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import CheckpointError, InvalidValueError
from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import ModelInputs, text_lengths
from modules.models.families.family import Denoiser, DenoiserInputSizes, UsualSettings, denoiser_alone, usual_by_name
from modules.models.families.z_image.layout import transformer_rows
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, on_meta, reading_sizes
from modules.models.names.row_map import whole_shapes

AXES, POSITIONS = (32, 48, 48), (2048, 512, 512)
HEAD_WIDTH = sum(AXES)
THETA = 256.0
PATCH, CAPTION_MULTIPLE = 2, 32
MOST_TOKENS = POSITIONS[0] - 1 - CAPTION_MULTIPLE
SKIP = (r"^t_embedder\.", r"^cap_embedder\.", r"^all_x_embedder\.", r"^all_final_layer\.")
"""Layers that 8-bit formats leave alone: small ones at the ends, which the image depends on most; diffusers reads the
first one's dtype, too."""
TRAINED_TIMESTEPS = 1000.0


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    shapes = whole_shapes({name: entry.shape for name, entry in header.items() if name.startswith(PREFIX)})
    with reading_sizes():
        width, patched = shapes[f"{PREFIX}{'x_embedder' if f'{PREFIX}x_embedder.weight' in shapes else X}.weight"]
        (caption,) = shapes[f"{PREFIX}cap_embedder.0.weight"]
        layers, refiners = _count(rows.sources, "layers."), _count(rows.sources, "noise_refiner.")
        mlp, _ = shapes[f"{PREFIX}layers.0.feed_forward.w1.weight"]
    if width % HEAD_WIDTH:
        raise CheckpointError(
            f"its transformer is {width} wide, and that of Z-Image is a multiple of {HEAD_WIDTH}. Choose another file."
        )
    module = meta_module(
        "diffusers.ZImageTransformer2DModel",
        in_channels=patched // PATCH**2,
        dim=width,
        n_layers=layers,
        n_refiner_layers=refiners,
        n_heads=width // HEAD_WIDTH,
        n_kv_heads=width // HEAD_WIDTH,
        cap_feat_dim=caption,
        rope_theta=THETA,
        axes_dims=list(AXES),
        axes_lens=list(POSITIONS),
    )
    with on_meta():
        for layer in module.modules():
            if hasattr(layer, "w1") and layer.w1.out_features != mlp:
                layer.w1, layer.w3 = (torch.nn.Linear(width, mlp, bias=False) for _ in range(2))
                layer.w2 = torch.nn.Linear(mlp, width, bias=False)
    return Component("unet", module, rows.keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


X = "all_x_embedder.2-1"


def _count(names: Any, level: str) -> int:
    numbers = {int(name.split(".")[1]) for name in names if name.startswith(level)}
    return max(numbers) + 1 if numbers else 0


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. The transformer counts time from noise to image, and its velocity leads
    there. Latents of an odd side are continued by their last row or column for it.

    Raises `InvalidValueError` for an image that is larger than the model has positions for.
    """
    height, width = inputs.x.shape[-2:]
    most = PATCH * POSITIONS[1]
    if max(height, width) > most:
        raise InvalidValueError(
            f"This model makes images of at most {most} latents a side ({most * 8} pixels), and {max(height, width)} "
            "were asked for. Choose a smaller size."
        )
    x = F.pad(inputs.x, (0, -width % PATCH, 0, -height % PATCH), mode="replicate")
    texts = [tokens[:length] for tokens, length in zip(inputs.crossattn, text_lengths(inputs), strict=True)]
    time = 1.0 - inputs.timesteps.float() / TRAINED_TIMESTEPS
    output: list[Tensor] = transformer(
        list(x.unsqueeze(2)),  # not by name: hooks look at it
        time,
        texts,
        return_dict=False,
        **inputs.extra,
    )[0]
    return -torch.stack(output).squeeze(2)[..., :height, :width]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels, config.cap_feat_dim)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
    usual_settings=usual_by_name(("turbo",), UsualSettings(steps=8), UsualSettings(steps=28, cfg_scale=4.0)),
)
