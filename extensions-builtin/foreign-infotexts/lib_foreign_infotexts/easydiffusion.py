"""Images of Easy Diffusion: each of its fields is a text of its own in the file."""

from collections.abc import Mapping

from lib_foreign_infotexts.record import ForeignRecord, size_of, stem

KEYS = {
    "num_inference_steps": "Steps",
    "guidance_scale": "CFG scale",
    "seed": "Seed",
    "sampler_name": "Sampler",
    "scheduler_name": "Schedule type",
    "prompt_strength": "Denoising strength",
}
MARKS = ("prompt", "num_inference_steps", "guidance_scale")
UNSET = ("None", "False", "[]")


def is_easydiffusion(items: Mapping[str, str]) -> bool:
    """Whether the texts of a file are theirs."""
    return all(mark in items for mark in MARKS)


def easydiffusion_record(items: Mapping[str, str]) -> ForeignRecord:
    """The record of their texts. The last text encoder layer is skipped or not, as nothing else says."""
    given = {key: value for key, value in items.items() if value not in UNSET}
    record = ForeignRecord("Easy Diffusion", items["prompt"], given.get("negative_prompt", ""))
    record.take(given, KEYS)
    record.fields["Size"] = size_of(given.get("width"), given.get("height"))
    if given.get("clip_skip") == "True":
        record.fields["Clip skip"] = 2
    if "use_stable_diffusion_model" in given:
        record.fields["Model"] = stem(given["use_stable_diffusion_model"])
    if "use_lora_model" in given:
        record.loras = [(given["use_lora_model"], given.get("lora_alpha", 1))]
    known = (
        "prompt",
        "negative_prompt",
        "width",
        "height",
        "clip_skip",
        "use_stable_diffusion_model",
        "use_lora_model",
    )
    record.take_rest(given, (*KEYS, *known, "lora_alpha"))
    return record
