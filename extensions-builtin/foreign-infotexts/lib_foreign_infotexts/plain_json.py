"""Images whose JSON lists the parameters under plain names: spaces of Hugging Face, the sites of Civitai and TensorArt,
diffusers scripts. Names are compared without case, blanks and underscores."""

import re
from collections.abc import Mapping
from typing import Any

from lib_foreign_infotexts.record import ForeignRecord, listed, size_of, stem

PROMPTS = ("prompt", "prompts", "positiveprompt", "positive", "textprompt", "inputs")
NEGATIVES = ("negativeprompt", "negative", "uc", "negativeprompts", "promptneg")
KEYS = {
    **{"steps": "Steps", "numinferencesteps": "Steps", "inferencesteps": "Steps", "samplingsteps": "Steps"},
    **{"cfgscale": "CFG scale", "guidancescale": "CFG scale", "cfg": "CFG scale", "scale": "CFG scale"},
    **{"guidance": "Distilled CFG Scale", "distilledcfgscale": "Distilled CFG Scale"},
    **{"sampler": "Sampler", "samplername": "Sampler", "samplerindex": "Sampler"},
    **{"samplingmethod": "Sampler", "scaletxt": "CFG scale"},
    **{"scheduletype": "Schedule type", "schedule": "Schedule type", "schedulername": "Schedule type"},
    **{"scheduler": "Schedule type", "seed": "Seed", "clipskip": "Clip skip"},
    **{"strength": "Denoising strength", "denoise": "Denoising strength", "denoisingstrength": "Denoising strength"},
    **{"modelhash": "Model hash", "vae": "VAE"},
}
"""Names of theirs -> fields of an infotext."""
MODELS = ("model", "modelname", "modelfilename", "basemodel", "checkpoint", "ckptname", "usestablediffusionmodel")
NAMES_OF_FILES = ("modelFileName", "name", "model_name", "label")
SIZES = ("resolution", "size", "dimensions", "imagesize")
MIN_KNOWN = 2
_PAIR = re.compile(r"(\d{2,5})\s*[,x×*]\s*(\d{2,5})")


def plain_record(given: Mapping[str, Any]) -> ForeignRecord | None:
    """Return the record of JSON with a prompt and at least two parameters; None for other JSON."""
    values = {re.sub(r"[\s_-]", "", key).lower(): value for key, value in given.items()}
    prompt = next((values[name] for name in PROMPTS if isinstance(values.get(name), str)), None)
    if prompt is None or sum(name in values for name in KEYS) < MIN_KNOWN:
        return None
    negative = next((values[name] for name in NEGATIVES if isinstance(values.get(name), str)), "")
    record = ForeignRecord(str(given.get("Software") or given.get("software") or "JSON"), prompt, negative)
    record.take(values, KEYS)
    if isinstance(record.fields.get("Clip skip"), bool):
        record.fields["Clip skip"] = 1 + bool(record.fields["Clip skip"])  # whether one layer is left out
    if record.fields.get("Denoising strength") in (1, 1.0):
        del record.fields["Denoising strength"]
    record.fields["Size"] = size_of(values.get("width", values.get("w")), values.get("height", values.get("h")))
    record.fields["Size"] = record.fields["Size"] or _size(values)
    for name in MODELS:
        model, digest = _file(values.get(name))
        if model:
            record.fields.setdefault("Model", stem(model))
            record.fields.setdefault("Model hash", digest)
    for one in (*listed(values, "models"), *listed(values, "loras")):
        model, digest = _file(one)
        if isinstance(one, dict) and model and "LORA" in str(one.get("type", "LORA")).upper():
            record.loras.append((model, one.get("weight", one.get("strength", 1))))
    known = {*KEYS, *PROMPTS, *NEGATIVES, *MODELS, *SIZES, "width", "height", "w", "h", "models", "loras", "software"}
    record.take_rest(
        {key: value for key, value in given.items() if re.sub(r"[\s_-]", "", key).lower() not in known}, ()
    )
    return record


def _size(values: Mapping[str, Any]) -> str | None:
    found = next((pair for name in SIZES if (pair := _PAIR.search(str(values.get(name, ""))))), None)
    return None if found is None else size_of(found[1], found[2])


def _file(given: object) -> tuple[str, str | None]:
    """The name of a model and its hash, from a text or a table."""
    if isinstance(given, str):
        return given, None
    if not isinstance(given, dict):
        return "", None
    name = next((given[key] for key in NAMES_OF_FILES if isinstance(given.get(key), str)), "")
    digest = given.get("hash")
    return name, digest if isinstance(digest, str) and digest else None
