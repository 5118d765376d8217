"""ControlNets of Qwen-Image in diffusers' names (InstantX: a union network for several kinds of control, and one for
inpainting, which sees a mask beside the latents)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lib_controlnet.files import Kind
from lib_controlnet.flow_family import Call, Hint, Rest, blocks_of, for_all, inpaint_hint, placed, spread, tokens_of
from lib_controlnet.nets import NOT_FITTING, NetFacts, OwnNames
from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts
from modules.models.names.component import Component, on_meta

PATCH = 2
SKIP = (r"^img_in$", r"^txt_in$", r"^time_text_embed\.", r"^controlnet_x_embedder$")
"""Layers that 8-bit formats leave alone, as in the transformer itself."""


class QwenNets:
    """A `FlowNets`."""

    kind = Kind.QWEN
    denoiser = "QwenImageTransformer2DModel"

    def build(self, file: TensorSource, model: Any) -> AuxiliaryParts:
        from diffusers import QwenImageControlNetModel

        config, shapes = model.unet.config, {key: entry.shape for key, entry in file.entries.items()}
        width, channels = shapes["controlnet_x_embedder.weight"]
        extra = channels - config.in_channels
        if (width, shapes["txt_norm.weight"]) != (model.unet.inner_dim, (config.joint_attention_dim,)) or extra not in (
            0,
            PATCH**2,
        ):
            raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
        with on_meta():
            net = QwenImageControlNetModel(
                in_channels=config.in_channels,
                out_channels=config.out_channels,
                num_layers=blocks_of(shapes, "transformer_blocks."),
                attention_head_dim=config.attention_head_dim,
                num_attention_heads=config.num_attention_heads,
                joint_attention_dim=config.joint_attention_dim,
                axes_dims_rope=config.axes_dims_rope,
                extra_condition_channels=extra,
            )
        net.pos_embed = type(model.unet.pos_embed)()
        component = Component("control", net, OwnNames(), ("",), "", skip=SKIP)
        return AuxiliaryParts(component, facts=NetFacts(self.kind))

    def hint(self, net: Auxiliary, color: Tensor, mask: Tensor | None, model: Any) -> Hint:
        values = color * 2.0 - 1.0
        if net.module.config.extra_condition_channels:
            return inpaint_hint(net, values, mask, model)
        return Hint(model.encode(values))

    def outputs(
        self, net: Auxiliary, hint: Tensor, call: Call, control_type: int | None, weight: float, model: Any
    ) -> list[Tensor]:
        rest, hint = call.rest, tokens_of(hint, PATCH)
        mask = rest["encoder_hidden_states_mask"]
        found = net.module(
            placed(call.x[:, : hint.shape[1]], net),  # without images that are shown beside
            hint,
            encoder_hidden_states=placed(rest["encoder_hidden_states"], net),
            encoder_hidden_states_mask=None if mask is None else mask.to(net.device),
            timestep=rest["timestep"].to(net.device),
            img_shapes=[shapes[:1] for shapes in rest["img_shapes"]],
            return_dict=False,
        )
        return [for_all(output, call.x) for output in found]

    def places(self, net: Auxiliary, denoiser: Any) -> list[list[int]]:
        return spread(len(net.module.transformer_blocks), len(denoiser.transformer_blocks), 0)

    def add(self, found: Mapping[int, Tensor], denoiser: Any, rest: Rest) -> None:
        nothing = next(iter(found.values())).new_zeros(())
        blocks = range(len(denoiser.transformer_blocks))
        rest["controlnet_block_samples"] = [found.get(block, nothing) for block in blocks]

    def rows_of(self, call: Call, rows: Sequence[int]) -> Call:
        chosen, rest = list(rows), dict(call.rest)
        for name in ("encoder_hidden_states", "encoder_hidden_states_mask", "timestep"):
            rest[name] = None if rest[name] is None else rest[name][chosen]
        rest["img_shapes"] = [rest["img_shapes"][row] for row in chosen]
        return Call(call.x[chosen], call.args, rest)


QWEN = QwenNets()
