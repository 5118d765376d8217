"""Units of a job in one pass: networks, references, IP-adapters, corrections of the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lib_controlnet.control_settings import ControlNetSettings
from lib_controlnet.files import Kind
from lib_controlnet.latents import correct_predictions, refer
from lib_controlnet.nets import NOT_FITTING, build_net
from lib_controlnet.preprocessors import INPAINTING
from lib_controlnet.running import SOFT_ADAPTER, NetControl, hint_of, put_around, tells_negatives
from lib_controlnet.units import (
    UNION_TAGS,
    UNION_TYPES,
    UNKNOWN_TYPE,
    ControlMode,
    HiresOption,
    check_layer_weights,
)
from modules.errors import CheckpointError, InvalidValueError
from modules.processing.request.model_use import ModelUse
from modules.scripts.program import Program

HIRES_SOFTENED = ("canny", "mlsd")


def begin_pass(prepared: Sequence[Any], p: Any, use: ModelUse, program: Program) -> None:
    """Put the units that take part in a pass around its model, and note the maps of all. Raises `CheckpointError` for
    files that do not fit it."""
    controls: list[NetControl] = []
    flows: list[Any] = []
    fitted: dict[int, Any] = {}
    width, height = use.facts.size_px
    taking_part = [each for each in prepared if each.takes_part(use.facts.is_hires)]
    check_denoiser(taking_part, use)
    for each in prepared:
        if each.map is not None and not (each.kind and each.kind.is_ip):
            fitted[each.number] = pixels = each.map.fitted(width, height)
            each.shown_maps[width * height, use.facts.is_hires] = pixels
    refer(prepared, p, use, fitted)  # inside of the networks, which do not see the reference
    for each in taking_part:
        pixels = fitted.get(each.number)
        if each.kind is None:
            continue
        if each.kind is Kind.IP:
            from lib_controlnet.ip_adapter import put_ip_adapter

            put_ip_adapter(each, use, program)
        elif each.kind is Kind.FLUX_IP:
            from lib_controlnet.flux_ip import put_flux_ip

            put_flux_ip(each, use, program)
        elif each.kind is Kind.FLUX_LORA:
            from lib_controlnet.flux_lora import put_flux_lora

            put_flux_lora(each, pixels, each.unit.control_mode is ControlMode.CONTROL, use)
        elif each.kind is Kind.ANIMA_LLLITE:
            from lib_controlnet.anima_lllite import put_anima_lllite

            put_anima_lllite(each, pixels, use)
        elif each.kind is Kind.LLLITE:
            from lib_controlnet.lllite import put_lllite

            put_lllite(each, pixels, use)
        elif each.kind.is_of_transformer:
            flows.append(_flow_control(each, pixels, use))
        else:
            kept = ControlNetSettings(p.settings).control_net_model_cache_size
            controls.append(_net_control(each, pixels, use, kept, p))
    if controls:
        put_around(use, controls)
    if flows:
        from lib_controlnet.flow_nets import put_around_transformer

        put_around_transformer(use, flows)
    correct_predictions(prepared, use, fitted)


def check_denoiser(prepared: Sequence[Any], use: ModelUse) -> None:
    """Raise `CheckpointError` for files that go into UNets, where the model has none."""
    if hasattr(use.model.unet, "down_blocks"):
        return
    for each in prepared:
        if each.kind is not None and each.kind.is_of_unet:
            raise CheckpointError(f"{each.file.path.name}: {NOT_FITTING.format(family=use.model.family.label)}")


def _flow_control(each: Any, pixels: Any, use: ModelUse) -> Any:
    """The network of a unit for a transformer. Raises `InvalidValueError` where its type of control is not known."""
    from lib_controlnet.flow_nets import flow_control
    from lib_controlnet.flux_nets import MODES, mode_of

    mode = each.unit.control_mode
    control = flow_control(
        each, pixels, region_of(each), mode is not ControlMode.BALANCED, mode is ControlMode.CONTROL, use
    )
    known = control.net.module.config.get("num_mode")
    if known:
        control.control_type = mode_of(each.unit, known)
        if control.control_type is None:
            raise InvalidValueError(
                f"{each.name}: {each.file.name} is for several kinds of control, and must know which one this is. Set "
                f"union_control_type to one of: {', '.join(MODES)}."
            )
    return control


def _net_control(each: Any, pixels: Any, use: ModelUse, kept: int, p: Any) -> NetControl:
    unit = each.unit
    key = use.model.token if each.kind is Kind.LORA else None
    net = use.auxiliary(each.file.path, build_net, key, kept)
    check_layer_weights(unit, output_count(net), each.name)
    is_softened = unit.control_mode is not ControlMode.BALANCED
    if use.facts.is_hires and unit.module.name in HIRES_SOFTENED:
        is_softened = True
    drops = unit.control_mode is ControlMode.CONTROL or net.facts.is_averaged
    # The reference UI keeps the features of T2I-adapters from the first pass: images would not be the same otherwise.
    if use.facts.is_hires and each.kind is Kind.T2I and unit.hires is HiresOption.BOTH:
        pixels = each.map.fitted(*each.size_px)
    hint = hint_of(pixels, unit.module.name in INPAINTING)
    drops = drops and tells_negatives(p, use)
    kind = union_place(each, net) if each.kind is Kind.UNION else None
    # The reference UI puts adapters on a layer when it is called first, and a Control-LoRA's network is called before.
    adapters = use.model.adapters if p.iteration == 0 and not use.facts.is_hires else None
    return NetControl(unit, net, net.facts, hint, region_of(each), is_softened, kind, drops, adapters)


def output_count(net: Any) -> int:
    """Return how many outputs a network adds to the features of a UNet."""
    if net.facts.kind is Kind.T2I:
        return len(SOFT_ADAPTER)
    return len(net.module.controlnet_down_blocks) + 1


def union_place(each: Any, net: Any) -> int:
    """The number of a unit's type of control in a union network. Raises `InvalidValueError` where it is not known."""
    unit = each.unit
    wanted = unit.union_type
    if wanted == UNKNOWN_TYPE:
        wanted = next((UNION_TAGS[tag] for tag in unit.module.tags if tag in UNION_TAGS), UNKNOWN_TYPE)
    known = UNION_TYPES[: net.module.config.num_control_type]
    if wanted not in known:
        raise InvalidValueError(
            f"{each.name}: {each.file.name} is for several kinds of control, and must know which one this is. Set "
            f"union_control_type to one of: {', '.join(known)}."
        )
    return known.index(wanted)


def region_of(each: Any) -> torch.Tensor | None:
    """Where a unit counts, [1,1,h,w] in 0..1."""
    region = each.unit.region
    return None if region is None else torch.from_numpy(region.copy()).float()[None, None] / 255.0
