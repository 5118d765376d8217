"""Images made by NovelAI: their own PNG chunks, turned into infotext."""

from collections.abc import Mapping
from typing import Any

from modules.images.infotext import quote
from modules.sampling.names import AUTOMATIC, schedule_named
from modules.system.bounded import read_json

SOFTWARE = "NovelAI"
_SAMPLERS = {
    "ddim": "DDIM",
    "ddim_v3": "DDIM",
    "plms": "PLMS",
    "k_lms": "LMS",
    "k_euler": "Euler",
    "k_euler_ancestral": "Euler a",
    "k_heun": "Heun",
    "k_dpm_2": "DPM2",
    "k_dpm_2_ancestral": "DPM2 a",
    "k_dpm_fast": "DPM fast",
    "k_dpm_adaptive": "DPM adaptive",
    "k_dpmpp_2m": "DPM++ 2M",
    "k_dpmpp_2m_sde": "DPM++ 2M SDE",
    "k_dpmpp_2s_ancestral": "DPM++ 2S a",
    "k_dpmpp_sde": "DPM++ SDE",
}
_NAMED = {
    **{"strength": "Denoising strength", "noise": "Added noise", "cfg_rescale": "CFG rescale", "sm": "SMEA"},
    **{"sm_dyn": "SMEA DYN", "dynamic_thresholding": "Decrisper", "controlnet_model": "ControlNet"},
}


def novelai_infotext(items: Mapping[str, object], width: int = 0, height: int = 0) -> str | None:
    """Infotext from the chunks "Software", "Description" and "Comment" (JSON); None if they are not NovelAI's. The
    same stands in a JSON object in WebP and in pixels; without the size of the image that which was asked for counts.

    Their models skip the last text encoder layer and use an ENSD of 31337.
    """
    if items.get("Software") != SOFTWARE:
        return None
    try:
        comment = read_json(str(items["Comment"]))
        sampler = _SAMPLERS.get(comment["sampler"], "Euler a")
        schedule = schedule_named(str(comment.get("noise_schedule", "native")))
        fields = (
            f"Steps: {comment['steps']}, Sampler: {sampler}, CFG scale: {comment['scale']}, Seed: {comment['seed']}, "
            f"Size: {width or comment['width']}x{height or comment['height']}, Clip skip: 2, ENSD: 31337"
        )
        if schedule not in (None, AUTOMATIC):
            fields += f", Schedule type: {schedule}"
        fields += "".join(f", {key}: {quote(value)}" for key, value in _more(comment).items())
        prompt = str(items.get("Description") or comment["prompt"]).strip("\0")
        return f"{prompt}\nNegative prompt: {comment.get('uc', '')}\n{fields}"
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # chunks of another version of theirs: shown as they are


def _more(comment: Mapping[str, Any]) -> dict[str, object]:
    """List what changed the image and has no field in a form: named to the user when it is pasted."""
    found: dict[str, object] = {key: comment[name] for name, key in _NAMED.items() if comment.get(name)}
    characters = ((comment.get("v4_prompt") or {}).get("caption") or {}).get("char_captions") or ()
    captions = [str(one.get("char_caption", "")) for one in characters]
    return {**found, "Character prompts": " | ".join(captions)} if captions else found
