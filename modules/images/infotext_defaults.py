"""Facts that an infotext leaves unsaid: defaults of missing fields, fields of old versions, behaviour of old
versions."""

import math
import re
from collections.abc import MutableMapping
from typing import Final

DEFAULTS: Final[dict[str, str | int | bool]] = {
    "Clip skip": "1",
    "Hires resize-1": 0,
    "Hires resize-2": 0,
    "Hires sampler": "Use same sampler",
    "Hires schedule type": "Use same scheduler",
    "Hires checkpoint": "Use same checkpoint",
    "Hires prompt": "",
    "Hires negative prompt": "",
    "Mask mode": "Inpaint masked",
    "Masked content": "original",
    "Inpaint area": "Whole picture",
    "Masked area padding": 32,
    "RNG": "GPU",
    "Schedule type": "Automatic",
    "Schedule max sigma": 0,
    "Schedule min sigma": 0,
    "Schedule rho": 0,
    "VAE Encoder": "Full",
    "VAE Decoder": "Full",
    "FP8 weight": "Disable",
    "Compute dtype": "Automatic",
    "Compute mode": "Automatic",
    "LoRA mode": "Automatic",
    "Refiner switch by sampling steps": False,
}
"""Values of fields that are only written when they differ from these."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-(\d+))?")
_WHOLE = re.compile(r"[0-9]{1,9}")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_WEIGHT_OF_ONE = re.compile(r"\(([^()\[\]:]*):\s*\+?1(?:\.0*)?\s*\)")
_LORA_TAG = re.compile(r"<(?:lora|lyco):")
_BRACKETED_TEXT = re.compile(r"[(\[][^()\[\]]")


def add_defaults(fields: MutableMapping[str, str | int | bool], *, backward_compatible: bool) -> None:
    """Fill in missing fields in place; with `backward_compatible` also what the recorded version implies."""
    if fields.get("FP8 weight", "Disable") != "Disable":
        _add_fp8(fields)
    for key, value in DEFAULTS.items():
        fields.setdefault(key, value)
    prompts = (str(fields.get("Prompt", "")), str(fields.get("Negative prompt", "")))
    if any(map(uses_emphasis, prompts)):
        fields.setdefault("Emphasis", "Original")
    if backward_compatible:
        _add_old_behaviour(fields)


def _add_fp8(fields: MutableMapping[str, str | int | bool]) -> None:
    """Add what images made in fp8 leave out. Those of programs that have one format only do not say which it is, nor
    that a LoRA is merged into it, or into the 16-bit cache if there is one."""
    fields.setdefault("Cache FP16 weight for LoRA", "False")
    fields.setdefault("FP8 skip", "")
    fields.setdefault("FP8 text encoder", "True")
    if "FP8 format" in fields:
        return
    fields["FP8 format"] = "fp8_e4m3fn"
    prompts = (str(fields.get(name, "")) for name in ("Prompt", "Hires prompt"))
    if "Lora hashes" in fields or any(map(_LORA_TAG.search, prompts)):
        cached = str(fields["Cache FP16 weight for LoRA"]) == "True"
        fields.setdefault("LoRA mode", "merge from full precision" if cached else "merge into fp8")


def uses_emphasis(prompt: str) -> bool:
    """True if any text of the prompt stands in brackets that change its weight."""
    text = _WEIGHT_OF_ONE.sub(r"\1", _ESCAPED.sub("", prompt))
    return _BRACKETED_TEXT.search(text) is not None


def parse_version(text: str) -> tuple[int, int, int, int] | None:
    """ "v1.7.0-225-gabc" as (1, 7, 0, 225); None for text that is no version of the reference UI."""
    match = _VERSION.match(text)
    if match is None:
        return None
    major, minor, patch, commits = match.groups()
    return int(major), int(minor), int(patch), int(commits or 0)


def _add_old_behaviour(fields: MutableMapping[str, str | int | bool]) -> None:
    """Options under which versions before a change behaved as the image's version did."""
    version = parse_version(str(fields.get("Version", "")))
    if version is None:
        return
    if version < (1, 6, 0, 0) and "[" in str(fields.get("Prompt", "")):
        fields["Old prompt editing timelines"] = True
    if version < (1, 6, 0, 0) and fields.get("Sampler") in ("DDIM", "PLMS"):
        fields["Pad conds v0"] = True
    if version < (1, 7, 0, 225):
        fields["Downcast alphas_cumprod"] = True
    if version < (1, 8, 0, 0) and fields.get("Refiner"):
        fields["Refiner switch by sampling steps"] = True


def convert_old_fields(fields: MutableMapping[str, str | int | bool], *, old_hires_sizes: bool) -> None:
    """Turn fields that are no longer written into today's, in place."""
    hypernetwork = fields.get("Hypernet")
    if hypernetwork is not None:
        strength = fields.get("Hypernet strength", "1.0")
        fields["Prompt"] = f"{fields.get('Prompt', '')}<hypernet:{hypernetwork}:{strength}>"
    _convert_first_pass_size(fields, old_hires_sizes=old_hires_sizes)


def _convert_first_pass_size(fields: MutableMapping[str, str | int | bool], *, old_hires_sizes: bool) -> None:
    """ "First pass size" was written when "Size" meant the final image of hires fix; 0x0 meant automatic."""
    width, height = _size(fields, "Size", 512)
    first_width, first_height = _size(fields, "First pass size", -1)
    if first_width < 0 or first_height < 0:
        hires_width, hires_height = _size(fields, "Hires resize", 0)
        if old_hires_sizes and hires_width and hires_height:
            fields["Size-1"], fields["Size-2"] = hires_width, hires_height
        return
    if first_width == 0 or first_height == 0:
        first_width, first_height = _automatic_first_pass(width, height)
    fields["Size-1"], fields["Size-2"] = first_width, first_height
    fields["Hires resize-1"], fields["Hires resize-2"] = width, height


def _size(fields: MutableMapping[str, str | int | bool], key: str, default: int) -> tuple[int, int]:
    """Both sides of a size in pixels; `default` for one that is missing or no number."""
    width, height = (str(fields.get(f"{key}-{part}", "")) for part in (1, 2))
    return (
        int(width) if _WHOLE.fullmatch(width) else default,
        int(height) if _WHOLE.fullmatch(height) else default,
    )


def _automatic_first_pass(width: int, height: int) -> tuple[int, int]:
    """About as many pixels as 512x512, in the given aspect, rounded up to multiples of 64."""
    if width == 0 or height == 0:
        return 512, 512
    scale = math.sqrt(512 * 512 / (width * height))
    return math.ceil(scale * width / 64) * 64, math.ceil(scale * height / 64) * 64
