"""Recorded requests of the reference UI as ours, and the comparison of images."""

from typing import Any

import numpy as np
from PIL import Image

from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.sampling.catalog import SAMPLERS
from modules.sampling.names import split_legacy_name
from modules.settings.values import Settings
from tests.recordings import REFERENCE, cases

# "infotext" and "styles" are the API's own.
OF_THE_API = ("infotext/", "styles/")
# DPM adaptive chooses its steps chaotically. An upscaler on pixels rounds to 8 bits between the passes, which turns
# the last bits of the first pass into whole levels; `test_the_second_pass_...` holds that case to the full bound.
CHAOTIC = {"sampler/dpm_adaptive/steps20-128x64": 12, "hires/resize-crop-lanczos": 24}


def txt2img_cases() -> list[dict[str, Any]]:
    """The recorded txt2img requests that this module can express."""
    return [
        case
        for case in cases()
        if case["endpoint"] == "/sdapi/v1/txt2img" and case["status"] == 200 and not case["id"].startswith(OF_THE_API)
    ]


def request_of(payload: dict[str, Any]) -> GenerationRequest:
    """A recorded payload as a request."""
    name, suffix = split_legacy_name(payload["sampler_name"])
    settings = Settings().with_changes({"samples_save": False, "return_grid": False, "grid_save": False})
    settings = settings.with_changes({"sd_model_checkpoint": "tiny-sd1.safetensors"})
    settings = settings.with_changes(payload.get("override_settings", {}))
    per_call: dict[str, object] = {
        key: float(payload[key]) for key in ("s_churn", "s_tmin", "s_tmax", "s_noise", "s_min_uncond") if key in payload
    }
    if payload.get("eta") is not None:
        per_call[SAMPLERS.get(name).eta.value or "eta_ancestral"] = float(payload["eta"])
    return GenerationRequest(
        prompt=payload["prompt"],
        negative_prompt=payload.get("negative_prompt", ""),
        width=payload["width"],
        height=payload["height"],
        steps=payload["steps"],
        cfg_scale=float(payload["cfg_scale"]),  # as the API reads it
        sampler=name,
        scheduler=payload.get("scheduler") or suffix or "Automatic",
        seed=payload["seed"],
        subseed=payload.get("subseed", 0),
        subseed_strength=float(payload.get("subseed_strength", 0)),
        seed_resize_from_width=max(payload.get("seed_resize_from_w", 0), 0),
        seed_resize_from_height=max(payload.get("seed_resize_from_h", 0), 0),
        batch_size=payload.get("batch_size", 1),
        batch_count=payload.get("n_iter", 1),
        tiling=payload.get("tiling", False),
        hires=_hires(payload) if payload.get("enable_hr") else None,
        settings=settings.with_changes(per_call),
    )


def _hires(payload: dict[str, Any]) -> HiresRequest:
    return HiresRequest(
        upscaler=payload["hr_upscaler"],
        scale=float(payload.get("hr_scale", 2.0)),
        resize_width=payload.get("hr_resize_x", 0),
        resize_height=payload.get("hr_resize_y", 0),
        steps=payload.get("hr_second_pass_steps", 0),
        denoising_strength=float(payload["denoising_strength"]),
        sampler=payload.get("hr_sampler_name"),
        scheduler=payload.get("hr_scheduler"),
        prompt=payload.get("hr_prompt", ""),
        negative_prompt=payload.get("hr_negative_prompt", ""),
    )


def levels_apart(image: Image.Image, file: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The largest difference of each pixel's three channels, in levels of 255, [height, width]."""
    recorded = np.asarray(Image.open(REFERENCE / file).convert("RGB")).astype(int)
    ours = np.asarray(image).astype(int)
    assert ours.shape == recorded.shape
    apart: np.ndarray[Any, np.dtype[np.int64]] = np.abs(ours - recorded).max(axis=2)
    return apart
