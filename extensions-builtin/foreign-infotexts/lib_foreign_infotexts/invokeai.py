"""Images of InvokeAI: the PNG chunks `invokeai_metadata` (version 3 on), `sd-metadata` (version 2) and `Dream`."""

import shlex
from collections.abc import Mapping
from typing import Any

from lib_foreign_infotexts.record import ForeignRecord, listed, size_of, stem

KEYS = {
    "steps": "Steps",
    "cfg_scale": "CFG scale",
    "seed": "Seed",
    "scheduler": "Sampler",
    "strength": "Denoising strength",
    "clip_skip": "Clip skip",
    "guidance": "Distilled CFG Scale",
}
OLD_KEYS = {"steps": "Steps", "cfg_scale": "CFG scale", "seed": "Seed", "sampler": "Sampler"}
MAX_LINE_CHARS = 20_000  # of a command: it is read letter by letter
DREAM = {"-s": "Steps", "-S": "Seed", "-C": "CFG scale", "-A": "Sampler", "-f": "Denoising strength"}


def is_invokeai(given: Mapping[str, Any]) -> bool:
    """Whether JSON is that of version 3 or later."""
    return "positive_prompt" in given and ("generation_mode" in given or "app_version" in given)


def invokeai_record(given: Mapping[str, Any]) -> ForeignRecord:
    """The record of the JSON of version 3 or later. Their "clip skip" counts the layers that are left out."""
    record = ForeignRecord(
        f"InvokeAI {given.get('app_version', '')}".strip(),
        str(given.get("positive_prompt") or ""),
        str(given.get("negative_prompt") or ""),
    )
    record.take(given, KEYS)
    if isinstance(given.get("clip_skip"), int):
        record.fields["Clip skip"] = given["clip_skip"] + 1
    record.fields["Size"] = size_of(given.get("width"), given.get("height"))
    for theirs, ours in (("model", "Model"), ("vae", "VAE"), ("refiner_model", "Refiner")):
        name = _model_name(given.get(theirs))
        if name:
            record.fields[ours] = stem(name)
    if "Refiner" in record.fields:
        record.fields["Refiner switch at"] = given.get("refiner_start", 0.8)
    for one in listed(given, "loras"):
        if isinstance(one, dict):
            name = _model_name(one.get("model") or one.get("lora"))
            record.loras += [(name, one.get("weight", 1))] if name else []
    if given.get("rand_device") in ("cpu", "cuda"):
        record.fields["RNG"] = "CPU" if given["rand_device"] == "cpu" else "GPU"
    known = (*KEYS, "positive_prompt", "negative_prompt", "width", "height", "model", "vae", "refiner_model")
    record.take_rest(given, (*known, "refiner_start", "loras", "rand_device", "app_version", "generation_mode"))
    return record


def old_invokeai_record(given: Mapping[str, Any]) -> ForeignRecord:
    """The record of the JSON of version 2: the negative prompt stands in square brackets in the prompt."""
    image = given.get("image")
    if not isinstance(image, dict):
        image = {}
    said = image.get("prompt", "")
    if isinstance(said, list):
        said = ", ".join(str(part.get("prompt", "")) for part in said if isinstance(part, dict))
    prompt, negative = _in_brackets(str(said))
    record = ForeignRecord(f"InvokeAI {given.get('app_version', '2')}", prompt, negative)
    record.take(image, OLD_KEYS)
    record.take(given, {"model_weights": "Model"})
    record.fields["Size"] = size_of(image.get("width"), image.get("height"))
    record.take_rest(image, (*OLD_KEYS, "prompt", "width", "height", "type"))
    return record


def dream_record(text: str) -> ForeignRecord | None:
    """The record of a command line of version 1: `"a cat" -s 50 -S 1 -W 512 -H 512 -C 7.5 -A k_lms`."""
    if len(text) > MAX_LINE_CHARS:
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if not words:
        return None
    options = {words[at][:2]: words[at][2:] or "".join(words[at + 1 : at + 2]) for at in range(1, len(words))}
    prompt, negative = _in_brackets(words[0])
    record = ForeignRecord("InvokeAI", prompt, negative)
    record.take(options, DREAM)
    record.fields["Size"] = size_of(options.get("-W"), options.get("-H"))
    return record


def _in_brackets(prompt: str) -> tuple[str, str]:
    """A prompt without its parts in square brackets, and those."""
    kept: list[str] = []
    left_out: list[str] = []
    for part in prompt.replace("[", "\0[").replace("]", "]\0").split("\0"):
        (left_out if part.startswith("[") and part.endswith("]") else kept).append(part)
    return "".join(kept).strip(), ", ".join(part[1:-1].strip() for part in left_out)


def _model_name(model: object) -> str:
    if isinstance(model, dict):
        return str(model.get("name") or model.get("model_name") or "")
    return str(model or "")
