"""One step at Stable Diffusion 1's full size, 256x256 pixels with guidance: ours alongside diffusers' own pipeline
step.

Run `python -m benchmarks.unet_step`. Both take turns on the same random weights. The second goal, 16-bit compute
alongside diffusers in fp32, is measured only where the CPU has native bf16 or there is a GPU: elsewhere
the program computes in fp32 on purpose.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler, UNet2DConditionModel
from torch import Tensor

from benchmarks.full_size import SD1_YAML
from benchmarks.report import print_table, write_result
from modules.models.families.architecture import read_architecture
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.families.ldm.denoiser import build_unet
from modules.processing.pipeline.guidance import Guidance, GuidanceOptions, GuidedDenoiser, conditioned
from modules.prompting.conditioning import ComposedConditioning, Conditioning, ScheduledConditioning
from modules.sampling.catalog import SAMPLERS
from modules.sampling.denoisers import denoise_for
from modules.sampling.discrete import DiscreteSchedule, scaled_linear_alphas_cumprod
from modules.system.devices import native_bf16_cpu

PAIRS = 10
CFG = 7.0
GOAL_SAME_DTYPE = 1.05
GOAL_16_BIT = 0.6


def random_unet(dtype: torch.dtype, device: torch.device) -> UNet2DConditionModel:
    """The full-size UNet with small random weights."""
    torch.manual_seed(0)
    unet = build_unet(read_architecture(SD1_YAML).unet_sizes)
    return unet.to(device, dtype).eval().requires_grad_(False)


def our_step(unet: UNet2DConditionModel, x: Tensor, cond: Tensor, uncond: Tensor) -> Callable[[], Tensor]:
    """Guidance around the model, and one Euler step, as txt2img does it."""
    schedule = DiscreteSchedule(scaled_linear_alphas_cumprod())
    dtype = unet.conv_in.weight.dtype

    def predict(scaled: Tensor, t: Tensor, context: DenoiserContext) -> Tensor:
        text = context.crossattn.to(dtype)
        output: Tensor = unet(scaled.to(dtype), t, encoder_hidden_states=text, return_dict=False)[0]
        return output.to(scaled.dtype)

    make: Any = partial(denoise_for, SAMPLERS.get("Euler"), schedule=schedule)
    prompt = ComposedConditioning(((ScheduledConditioning(((20, Conditioning(cond[0])),)), 1.0),))
    negative = ScheduledConditioning(((20, Conditioning(uncond[0])),))
    options = GuidanceOptions(cfg_scale=CFG, total_model_calls=20)
    guidance = Guidance(GuidedDenoiser(conditioned(make, predict), [prompt], [negative], lambda: uncond[0]), options)
    sigma, sigma_next = torch.tensor([7.0]), 6.0

    def step() -> Tensor:
        denoised = guidance(x, sigma)
        return x + (x - denoised) / 7.0 * (sigma_next - 7.0)

    return step


def diffusers_step(unet: UNet2DConditionModel, x: Tensor, cond: Tensor, uncond: Tensor) -> Callable[[], Tensor]:
    """What StableDiffusionPipeline does in its loop: scale, one call for both prompts, guidance, scheduler step."""
    scheduler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    dtype = unet.conv_in.weight.dtype
    context = torch.cat([uncond, cond]).to(dtype)

    def step() -> Tensor:
        scheduler.set_timesteps(20)
        t = scheduler.timesteps[4]
        both = scheduler.scale_model_input(torch.cat([x, x]).to(dtype), t)
        noise = unet(both, t, encoder_hidden_states=context, return_dict=False)[0]
        without, with_prompt = noise.chunk(2)
        guided = without + CFG * (with_prompt - without)
        result: Tensor = scheduler.step(guided, t, x.to(dtype), return_dict=False)[0]
        return result

    return step


def timed(step: Callable[[], Tensor], device: torch.device) -> float:
    """Seconds of one step."""
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def ratio(
    first: Callable[[], Tensor], second: Callable[[], Tensor], device: torch.device
) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the pairwise ratios; one round to warm up."""
    timed(first, device), timed(second, device)
    pairs = [(timed(first, device), timed(second, device)) for _ in range(PAIRS)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


@torch.inference_mode()
def main() -> None:
    """Measure, print, write."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(1, 4, 32, 32, device=device) * 7
    cond, uncond = torch.randn(2, 1, 77, 768, device=device).unbind(0)
    full = random_unet(torch.float32, device)
    reference = diffusers_step(full, x, cond, uncond)
    ours, theirs, same = ratio(our_step(full, x, cond, uncond), reference, device)
    rows = [("fp32", f"{ours:.2f}", f"{theirs:.2f}", f"{same:.3f}", f"<= {GOAL_SAME_DTYPE}")]
    result: dict[str, Any] = {"fp32": {"ours_s": ours, "diffusers_s": theirs, "ratio": same}, "goal": GOAL_SAME_DTYPE}
    has_16_bit = device.type == "cuda" or native_bf16_cpu()
    if has_16_bit:
        low = random_unet(torch.float16 if device.type == "cuda" else torch.bfloat16, device)
        ours, theirs, faster = ratio(our_step(low, x, cond, uncond), reference, device)
        rows.append(("16 bit / diffusers fp32", f"{ours:.2f}", f"{theirs:.2f}", f"{faster:.3f}", f"<= {GOAL_16_BIT}"))
        result["16_bit"] = {"ours_s": ours, "diffusers_fp32_s": theirs, "ratio": faster, "met": faster <= GOAL_16_BIT}
    else:
        reason = "this processor has no native bf16, so the program computes in fp32 here"
        rows.append(("16 bit / diffusers fp32", "-", "-", "-", f"does not apply: {reason}"))
        result["16_bit"] = {"applies": False, "reason": reason, "goal": GOAL_16_BIT}
    print_table(["dtype", "ours, s", "diffusers, s", "ratio", "goal"], rows)
    suffix = "" if device.type == "cpu" else "-" + torch.cuda.get_device_name().replace(" ", "-").lower()
    write_result(f"unet-step{suffix}", {**result, "met": same <= GOAL_SAME_DTYPE})


if __name__ == "__main__":
    main()
