"""Images with and without what is being trained, made by the model in training, in the precision that it has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from lib_training.stepping import Trainer, guided
from lib_training.texts import Caption, batched
from modules.models.families.family import UsualSettings
from modules.prompting.conditioning import Conditioning
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.denoisers import Prediction, denoise_for
from modules.sampling.flow import FlowSchedule
from modules.sampling.noise import GaussianNoise, ImageNoise, NoiseRequest
from modules.sampling.plan import txt2img_run

PREDICTIONS = {
    "epsilon": Prediction.EPS,
    "v_prediction": Prediction.V,
    "flow": Prediction.FLOW,
    "edm_v_prediction": Prediction.EDM_V,
    "edm": Prediction.EDM,
}


UNUSUAL = UsualSettings(20, 6.0, sampler="DPM++ 2M", scheduler="Karras")
"""For models whose family says nothing of its own."""


@dataclass(frozen=True)
class SamplePair:
    """One prompt, drawn twice from the same noise, with these settings."""

    caption: Caption
    seed: int = 1
    settings: UsualSettings = UNUSUAL


@torch.no_grad()
def draw_pairs(
    trainer: Trainer,
    pairs: Sequence[SamplePair],
    empty: Caption,
    conditionings: Sequence[Conditioning] | None = None,
) -> Image.Image:
    """A row for each pair: without what is trained, and with it. `conditionings` are those of the captions and, last,
    of the empty one, where they were encoded ahead."""
    images = []
    for is_on in (False, True):
        off = trainer.attached.disabled() if trainer.attached is not None and not is_on else nullcontext()
        with off:
            captions = [*(pair.caption for pair in pairs), empty]
            known = trainer.encoder.encode(captions) if conditionings is None or trainer.trains_text else conditionings
            images.append([_draw(trainer, pair, known[index], known[-1]) for index, pair in enumerate(pairs)])
    width, height = images[0][0].size
    grid = Image.new("RGB", (2 * width, height * len(pairs)), "white")
    for column, row_images in enumerate(images):
        for row, image in enumerate(row_images):
            grid.paste(image, (column * width, row * height))
    return grid


def _draw(trainer: Trainer, pair: SamplePair, positive: Conditioning, negative: Conditioning) -> Image.Image:
    """Draw with classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598), or at a scale of 1 by single
    calls."""
    model, levels, chosen = trainer.model, trainer.objective.levels, pair.settings
    is_flow = isinstance(levels, FlowSchedule)
    spec, schedule = SAMPLERS.get(chosen.sampler), SCHEDULES.get("simple" if is_flow else chosen.scheduler.lower())
    run = txt2img_run(spec, schedule, chosen.steps, levels)
    is_single = chosen.cfg_scale == 1.0
    context = batched([positive] if is_single else [positive, negative])
    if chosen.distilled_cfg_scale is not None:
        context = guided(context, chosen.distilled_cfg_scale)

    def predict(x: Tensor, times: Tensor) -> Tensor:
        if is_single:
            return model.predict_once(x, times, context)
        both = model.predict_once(torch.cat([x, x]), torch.cat([times, times]), context)
        with_prompt, without = both.chunk(2)
        return without + chosen.cfg_scale * (with_prompt - without)

    denoise = denoise_for(spec, predict, levels, PREDICTIONS[trainer.objective.prediction])
    shape = (model.latent_channels, *model.latent_size(pair.caption.size_px))
    noise = ImageNoise(NoiseRequest(shape=shape, seeds=(pair.seed,)))
    x = run.start(noise.first()).to(model.device)
    latent = run.run(denoise, x, GaussianNoise(noise), lambda info: None)
    pixels = model.decode_full(latent)[0].clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())
