"""Other forms of classifier-free guidance, each a script: CFG-Zero*, adaptive projected guidance, rescaled CFG.

They change the two predictions or what becomes of them, and cost no calls of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.scripts.fields import Field, FieldScript, portion, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import Guided, ModelUse

ZERO, PROJECTED, RESCALED = "CFG-Zero*", "Adaptive Projected Guidance", "Rescaled CFG"
NEVER_ZERO = 1e-8
FLOW = "flow"


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The product of each image's values, [B,1,1,1]."""
    return (a.float() * b.float()).sum(dim=(1, 2, 3), keepdim=True)


class CfgZero(FieldScript):
    """Fan et al. 2025 (arXiv:2503.18886): the negative prediction gets the length that fits best, and in flow models
    the first steps do nothing."""

    rows = (
        switch("cfg_zero"),
        Field(
            name="steps", label="Zero steps", default=1, elem_id="cfg_zero_steps", low=0, high=20, step=1,
            infotext="cfg_zero_steps", hint="Flow models only: number of first steps that do nothing",
        ),
    )  # fmt: skip
    infotext_switch = "cfg_zero_enabled"

    def title(self) -> str:
        return ZERO

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"cfg_zero_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        is_flow = use.model.architecture.prediction_type == FLOW

        def fit(guided: Guided) -> None:
            if guided.has_uncond:
                guided.uncond = fitted_uncond(guided.x, guided.cond, guided.uncond)

        def begin(guided: Guided) -> None:
            if is_flow and guided.step < values["steps"]:
                guided.denoised = guided.x

        use.before_guidance.append(fit)
        use.after_guidance.append(begin)


def fitted_uncond(x: Tensor, cond: Tensor, uncond: Tensor) -> Tensor:
    """The negative prediction [B,C,h,w] whose direction from `x` is as long as comes nearest to the positive one's."""
    toward_cond, toward_uncond = x - cond, x - uncond
    length = _dot(toward_cond, toward_uncond) / (_dot(toward_uncond, toward_uncond) + NEVER_ZERO)
    return x - length.to(x.dtype) * toward_uncond


class ProjectedGuidance(FieldScript):
    """Sadat et al. 2024 (arXiv:2410.02416): of the difference of both predictions the part that points along the
    positive one, which saturates colors, counts less; its length is limited, and it has a momentum."""

    rows = (
        switch("apg"),
        Field(
            name="eta", label="Parallel part", default=0.0, elem_id="apg_eta", low=-1.0, high=1.0, step=0.05,
            infotext="apg_eta",
        ),
        Field(
            name="norm", label="Norm threshold", default=15.0, elem_id="apg_norm", low=0.0, high=100.0, step=0.5,
            infotext="apg_norm",
        ),
        Field(
            name="momentum", label="Momentum", default=-0.5, elem_id="apg_momentum", low=-1.0, high=0.95,
            step=0.05, infotext="apg_momentum",
        ),
    )  # fmt: skip
    infotext_switch = "apg_enabled"

    def title(self) -> str:
        return PROJECTED

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"apg_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        average: list[Tensor] = []

        def project(guided: Guided) -> None:
            if not guided.has_uncond:
                return
            difference = guided.cond - guided.uncond
            if average and average[0].shape == difference.shape:
                difference = difference + average[0] * values["momentum"]
            average[:] = [difference]
            guided.uncond = guided.cond - projected(difference, guided.cond, values["eta"], values["norm"])

        use.before_guidance.append(project)


def projected(difference: Tensor, cond: Tensor, eta: float, norm: float) -> Tensor:
    """A difference [B,C,h,w] no longer than `norm`, with only `eta` of the part that points along `cond`."""
    import torch

    if norm > 0:
        length = torch.sqrt(_dot(difference, difference)).clamp_min(NEVER_ZERO)
        difference = difference * (norm / length).clamp_max(1.0).to(difference.dtype)
    along = _dot(difference, cond) / (_dot(cond, cond) + NEVER_ZERO)
    parallel = along.to(cond.dtype) * cond
    return difference - parallel + eta * parallel


class RescaledCfg(FieldScript):
    """Lin et al. 2023 (arXiv:2305.08891), section 3.4: the guided prediction gets the contrast of the positive one, in
    velocities."""

    rows = (
        switch("rescale_cfg"),
        portion("phi", "Rescale phi", 0.7, "rescale_cfg_phi", infotext="rescale_cfg_phi"),
    )
    infotext_switch = "rescale_cfg_enabled"
    other_titles = ("RescaleCFG Integrated", "RescaleCFG")

    def title(self) -> str:
        return RESCALED

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"rescale_cfg_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        is_flow = use.model.architecture.prediction_type == FLOW

        def rescale(guided: Guided) -> None:
            assert guided.denoised is not None
            if guided.has_uncond:
                guided.denoised = rescaled(guided, guided.denoised, values["phi"], is_flow)

        use.after_guidance.append(rescale)


def rescaled(guided: Guided, denoised: Tensor, phi: float, is_flow: bool) -> Tensor:
    """The guided prediction [B,C,h,w], `phi` of it with the deviation of the positive one's velocity."""
    sigma = guided.sigma.reshape(-1, 1, 1, 1)
    size = (1 + sigma**2).sqrt()

    def velocity(prediction: Tensor) -> Tensor:
        return (guided.x - prediction) / sigma if is_flow else (guided.x / size**2 - prediction) * size / sigma

    cond, whole = velocity(guided.cond), velocity(denoised)
    ratio = cond.std(dim=(1, 2, 3), keepdim=True) / whole.std(dim=(1, 2, 3), keepdim=True).clamp_min(NEVER_ZERO)
    changed = whole * (phi * ratio + 1 - phi)
    return guided.x - sigma * changed if is_flow else guided.x / size**2 - changed * sigma / size


CfgZero().add_axes("steps")
ProjectedGuidance().add_axes("eta", "norm", "momentum")
RescaledCfg().add_axes("phi")
