"""Scripts that work between the blocks of a UNet: Kohya Hires.fix against blocks that are called one after the other,
and against its rule for the steps; FreeU over two passes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import Tensor
from torch.nn import functional as F

from modules.processing.request.model_use import ModelCall, ModelUse, PassFacts
from tests.extensions import built_in
from tests.models.diffusers_folders import UNET, UNETS
from tests.scripts.test_guidance_scripts import module

STEPS = 20
SIDES = (12, 20)


def values_of(**given: Any) -> list[Any]:
    rows = built_in().find_alwayson("Kohya Hires.fix").rows  # type: ignore[attr-defined]
    return [({"enabled": True, **given}).get(row.name, row.default) for row in rows]


def unet() -> Any:
    torch.manual_seed(4)
    config = {**UNET, **UNETS["sd1"], "block_out_channels": [32, 64], "layers_per_block": 2}
    return UNet2DConditionModel(**config).eval()


def joined(x: Tensor, skip: Tensor) -> Tensor:
    """As the reference UI joins features of two sizes."""
    if x.shape[-2:] != skip.shape[-2:]:
        x = F.interpolate(x, size=skip.shape[-2:], mode="nearest")
    return torch.cat([x, skip], dim=1)


def added(x: Tensor, more: Tensor | None) -> Tensor:
    """As the reference UI adds what a control network gives."""
    if more is None:
        return x
    return x + (F.interpolate(more, size=x.shape[-2:], mode="nearest") if more.shape[-1] > 1 else more)


def by_hand(
    net: Any,
    x: Tensor,
    context: Tensor,
    scales: dict[int, tuple[float, float]],
    early: bool,
    control: Sequence[Tensor | None] = (None,) * 7,
    adapter: Sequence[Tensor | None] = (None,) * 2,
) -> Tensor:
    """What a UNet predicts whose block at a place works on features that are scaled before it, and again later; with
    what a ControlNet adds to the skips and the middle, and a T2I-adapter to the ends of the levels."""
    embedding = net.time_embedding(net.time_proj(torch.tensor([500] * len(x))))
    blocks: list[Any] = [lambda h: net.conv_in(h)]

    def pair(resnet: Any, attention: Any) -> Any:
        def run(h: Tensor) -> Tensor:
            h = resnet(h, embedding)
            return h if attention is None else attention(h, encoder_hidden_states=context, return_dict=False)[0]

        return run

    def pairs(level: Any) -> list[Any]:
        attentions = getattr(level, "attentions", None) or [None] * len(level.resnets)
        return [pair(*both) for both in zip(level.resnets, attentions, strict=True)]

    for level in net.down_blocks:
        blocks += [*pairs(level), *(level.downsamplers or ())]
    outputs: list[Any] = []
    for level in net.up_blocks:
        own = pairs(level)
        for sampler in level.upsamplers or ():
            last = own[-1]
            own[-1] = lambda h, last=last, sampler=sampler: sampler(last(h))
        outputs += own
    skips = []
    for place, block in enumerate(blocks):
        if place in scales:
            x = F.interpolate(x, scale_factor=scales[place][0], mode="bicubic")
        x = block(x)
        if place in (2, 5):
            x = added(x, adapter[place // 3])
        skips.append(x)
    skips = [added(*both) for both in zip(skips, control[:-1], strict=True)]
    x = added(net.mid_block(x, embedding, encoder_hidden_states=context), control[-1])
    later = {place if early else len(outputs) - 1 - place: scale[1] for place, scale in scales.items()}
    for number, block in enumerate(outputs):
        x = joined(x, skips.pop())
        if number in later:
            x = F.interpolate(x, scale_factor=later[number], mode="bicubic")
        x = block(x)
    found: Tensor = net.conv_out(net.conv_act(net.conv_norm_out(x)))
    return found


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("call", [0, 2, 4, 6, 9])
def test_the_prediction_is_that_of_scaled_blocks(call: int, early: bool) -> None:
    """Also where the scales do not give whole sizes, and no scale is the inverse of the other."""
    script: Any = built_in().find_alwayson("Kohya Hires.fix")
    net = unet()
    use = use_of(net, STEPS)
    scales: dict[int, tuple[float, float]] = {}
    step = max(call - 1, 0)
    if step < 0.15 * STEPS:
        shrunk = 0.5 + 0.5 * step / (0.15 * STEPS)
        scales[2] = (shrunk, 2.0 * 0.5 / shrunk)
    elif step < 0.3 * STEPS:
        shrunk = 0.5 if call == 4 else 0.5 + 0.5 * step / (0.3 * STEPS)
        scales[3] = (shrunk, 2.0 * 0.5 / shrunk)
    x, context = torch.randn(1, 4, *SIDES), torch.randn(1, 7, 64)
    with use.undo, torch.no_grad(), use.calling(module_call(call)):
        script.on_model(SimpleNamespace(script_values={}, steps=STEPS), use, *values_of(early=early))
        ours = net(x, torch.tensor([500]), encoder_hidden_states=context, return_dict=False)[0]
    with torch.no_grad():
        theirs = by_hand(net, x, context, scales, early)
        plain = by_hand(net, x, context, {}, early)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.allclose(ours, plain, atol=1e-4) is not bool(scales)


@pytest.mark.parametrize("title", ["Kohya Hires.fix", "Kohya HRFix Integrated"])
def test_what_control_networks_add_fits_smaller_features(title: str) -> None:
    script: Any = built_in().find_alwayson(title)
    net = unet()
    sides = [SIDES] * 3 + [tuple(side // 2 for side in SIDES)] * 3
    widths = [32, 32, 32, 32, 64, 64, 64]
    control = [torch.randn(1, width, *side) for width, side in zip(widths, [*sides, sides[-1]], strict=True)]
    control[1] = control[1].mean(dim=(2, 3), keepdim=True)  # of a network whose outputs are averaged
    adapter = [torch.randn(1, 32, *sides[2]), torch.randn(1, 64, *sides[5])]
    x, context = torch.randn(1, 4, *SIDES), torch.randn(1, 7, 64)
    use = use_of(net, STEPS)

    def predicted(**residuals: Any) -> Tensor:
        found: Tensor = net(x, torch.tensor([500]), encoder_hidden_states=context, return_dict=False, **residuals)[0]
        return found

    with use.undo, torch.no_grad(), use.calling(module_call(0)):
        args = values_of() if title == "Kohya Hires.fix" else [True, 2]
        script.on_model(SimpleNamespace(script_values={}, steps=STEPS), use, *args)
        nets = predicted(down_block_additional_residuals=tuple(control[:-1]), mid_block_additional_residual=control[-1])
        adapters = predicted(down_intrablock_additional_residuals=list(adapter))
    if title == "Kohya Hires.fix":
        with torch.no_grad():
            wanted = by_hand(net, x, context, {2: (0.5, 2.0)}, False, control=control)
            torch.testing.assert_close(nets, wanted, rtol=1e-5, atol=1e-5)
            wanted = by_hand(net, x, context, {2: (0.5, 2.0)}, False, adapter=adapter)
            torch.testing.assert_close(adapters, wanted, rtol=1e-5, atol=1e-5)


def use_of(net: Any, steps: int, is_hires: bool = False) -> ModelUse:
    facts = PassFacts(("",), ("",), (8 * SIDES[1], 8 * SIDES[0]), steps, 1.0, is_hires)
    model = SimpleNamespace(unet=net, unet_runner=SimpleNamespace(part=(0, 1), rows=1))
    return ModelUse(model, facts, lambda *_: None, lambda _: None)


def module_call(step: int) -> ModelCall:
    return ModelCall((0,), (False,), step, STEPS)


def scales_of(steps: int, calls: int, state: Any = None, **given: Any) -> list[dict[int, tuple[float, float]]]:
    """What works in each call of a pass."""
    script = module("kohya-hires-fix", "kohya_hires_fix")
    names = [row.name for row in script.KohyaHiresFix.rows]
    facts = PassFacts(("",), ("",), (64, 64), steps, 1.0)
    use: Any = SimpleNamespace(facts=facts, call=None, reported_at=lambda call: max(call - 1, 0))
    found = []
    shrinking = script.Shrinking(
        dict(zip(names, values_of(**given), strict=True)), use, script.State() if state is None else state
    )
    for call in range(calls):
        use.call = module_call(call)
        found.append({place: scales for place in range(12) if (scales := shrinking._scales(place)) is not None})
    return found


def test_places_that_are_the_same_hand_over() -> None:
    """The second part goes on where the first one is, and without a smooth change at its scale."""
    found = scales_of(20, 9, d1=3, d2=3, smooth=False)
    assert found[:7] == [{2: (0.5, 2.0)}] * 7 and found[7:] == [{}, {}]


def test_a_later_pass_begins_where_the_first_has_ended() -> None:
    state = module("kohya-hires-fix", "kohya_hires_fix").State()
    assert scales_of(6, 6, state)[1:3] == [{2: (0.5, 2.0)}, {3: (0.5, 2.0)}]
    assert state.limit == 4 and scales_of(10, 10, state) == [{}] * 10
    state = module("kohya-hires-fix", "kohya_hires_fix").State()
    assert scales_of(6, 6, state, one=False)[0] and scales_of(6, 6, state, one=False)[0] == {2: (0.5, 2.0)}


def test_answers_that_were_kept_do_not_change_the_scale() -> None:
    """A job that goes on in the middle of a pass calls the model later for the first time."""
    script = module("kohya-hires-fix", "kohya_hires_fix")
    names = [row.name for row in script.KohyaHiresFix.rows]
    facts = PassFacts(("",), ("",), (64, 64), 20, 1.0)
    use: Any = SimpleNamespace(facts=facts, call=module_call(6), reported_at=lambda call: max(call - 1, 0))
    shrinking = script.Shrinking(dict(zip(names, values_of(), strict=True)), use, script.State())
    assert shrinking._scales(3) == scales_of(20, 7)[6][3]


def test_free_u_counts_calls_over_both_passes() -> None:
    """A second pass of fewer steps than the first pass had lies behind the end; also in a job that goes on there."""
    script: Any = built_in().find_alwayson("FreeU")
    net = unet()
    x, context = torch.randn(1, 4, *SIDES), torch.randn(1, 7, 64)

    def predicted(p: Any, use: ModelUse, call: int) -> Tensor:
        with use.undo, torch.no_grad(), use.calling(module_call(call)):
            script.on_model(p, use, True, 1.5, 1.5, 0.5, 0.5)
            found: Tensor = net(x, torch.tensor([500]), encoder_hidden_states=context, return_dict=False)[0]
            return found

    plain = by_hand(net, x, context, {}, False)
    job = SimpleNamespace(script_values={}, steps=6)
    for p in (job, SimpleNamespace(script_values={}, steps=6)):
        if p is job:
            assert not torch.allclose(predicted(p, use_of(net, 6), 5), plain, atol=1e-4)
        torch.testing.assert_close(predicted(p, use_of(net, 4, True), 0), plain, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(predicted(p, use_of(net, 12, True), 2), plain, atol=1e-4)
