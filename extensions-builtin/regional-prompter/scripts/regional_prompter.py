"""Regional Prompter: parts of the image with prompts of their own.

BREAK, ADDCOL, ADDROW, ADDBASE and ADDCOMM divide the prompt; ratios, a painted mask, or where words of the base prompt
appear (divide mode "Prompt") divide the image. "Attention": each
cross-attention runs once per region, and each region takes its part of the output. "Latent": the denoiser runs once
per region, and its predictions are put together. Arguments and infotexts are those of the extension of this name.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

FOLDER = str(Path(__file__).parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from lib_regional.words import SeenWords, places_of  # noqa: E402
from modules.errors import InvalidValueError  # noqa: E402
from modules.images.masks import blur_mask, grown_to_aspect, masked_area  # noqa: E402
from modules.memory.hook_chain import HookOrder  # noqa: E402
from modules.processing.request.model_use import rows_of_context  # noqa: E402
from modules.scripts.fields import Field, FieldScript, switch, truths  # noqa: E402

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

    from modules.processing.request.model_use import ConditionedDenoise, ModelCall, ModelUse

TITLE = "Regional Prompter"
KEYS = ("BREAK", "ADDCOL", "ADDROW", "ADDBASE", "ADDCOMM")
KEY = re.compile(r"\b(BREAK|ADDCOL|ADDROW|ADDBASE|ADDCOMM)\b")
AND = re.compile(r"\bAND\b")
KEEP_AND = "disable convert 'AND' to 'BREAK'"
LINES = {"Horizontal": "lines are columns", "Vertical": "lines are rows"}
FIRST_IS_BASE, LAST_IS_BASE = "the first line is the base", "the last line is the base"
"""Options of Forge Couple's arguments, by its own words: each line of the prompt is a region."""
FORGE_COUPLE = "Forge Couple"
WHOLE_IMAGE = "mask of the whole image"
"""The mask of regions is one of the image that a job starts from: of an inpainted part it gets the same part."""
MATRIX, MASK, PROMPT = "Matrix", "Mask", "Prompt"
COLUMNS, ROWS = ("Columns", "Horizontal"), ("Rows", "Vertical")
SHARED, COVERED = "Prompt", "Prompt-Ex"
"""What becomes of regions of words that overlap."""
ATTENTION, LATENT = "Attention", "Latent"
ARGUMENTS = 20
MAX_REGIONS = 64
MASK_CHARS = 64_000_000  # of base64
HUE_TOLERANCE = 1 / 512
LEAST_SATURATION = 0.1
BLOCK = "BasicTransformerBlock"
"""Blocks whose `attn2` is attention over the prompt."""
ORDER = {
    **{"enabled": 0, "divide": 2, "matrix": 3, "ratios": 6, "base_ratios": 7, "base": 8, "common": 9},
    **{"negative_common": 10, "calc": 11, "mask": 16, "flip": 19, "words": 5, "threshold": 15},
}
"""Where the extension's arguments have the rows."""
UNUSED = {
    13: "RP LoRA Neg Te Ratios",
    14: "RP LoRA Neg U Ratios",
    17: "RP LoRA Stop Step",
    18: "RP LoRA Hires Stop Step",
}


class RegionalPrompter(FieldScript):
    """The script."""

    rows = (
        switch("regional_prompter"),
        Field(
            name="divide", label="Divide mode", default=MATRIX, elem_id="rp_divide_mode",
            choices=(MATRIX, MASK, PROMPT),
            infotext="RP Divide mode",
        ),
        Field(
            name="matrix", label="Main splitting", default="Columns", elem_id="rp_main_splitting",
            choices=(*COLUMNS, *ROWS), infotext="RP Matrix submode",
        ),
        Field(
            name="ratios", label="Divide ratio", default="1,1", elem_id="rp_divide_ratio", infotext="RP Ratios",
            hint="1,2,1 or for rows of columns 1,2,1;2,1,1, where each row begins with its own share",
        ),
        Field(
            name="base_ratios", label="Base ratio", default="0.2", elem_id="rp_base_ratio", infotext="RP Base Ratios"
        ),
        Field(name="base", label="Use base prompt", default=False, elem_id="rp_base", infotext="RP Use Base"),
        Field(name="common", label="Use common prompt", default=False, elem_id="rp_common", infotext="RP Use Common"),
        Field(
            name="negative_common", label="Use common negative prompt", default=False, elem_id="rp_ncommon",
            infotext="RP Use Ncommon",
        ),
        Field(
            name="calc", label="Generation mode", default=ATTENTION, elem_id="rp_generation_mode",
            choices=(ATTENTION, LATENT), infotext="RP Calc Mode",
        ),
        Field(name="flip", label="Flip , and ;", default=False, elem_id="rp_flip", infotext="RP Flip"),
        Field(
            name="options", label="Regional Prompter options", default="", elem_id="rp_options",
            infotext="RP Options",
        ),
        Field(
            name="mask", label="Mask of regions as data URL", default="", elem_id="rp_mask",
            hint="An image whose region k has the hue 0, 1/2, 1/4, 3/4, 1/8 ...",
        ),
        Field(
            name="words", label="Regions of words", default=SHARED, elem_id="rp_words", choices=(SHARED, COVERED),
            infotext="RP Prompt submode",
            hint="Divide mode Prompt: where regions overlap they share, or the later one counts (Prompt-Ex)",
        ),
        Field(
            name="threshold", label="Threshold", default="0.4", elem_id="rp_threshold", infotext="RP threshold",
            hint="Divide mode Prompt: 0 to 1, one for all regions or one each; lower is larger",
        ),
    )  # fmt: skip
    hidden = ("options",)
    infotext_switch = "RP Active"
    other_titles = (FORGE_COUPLE,)

    def title(self) -> str:
        return TITLE

    def pasting(self, row: Field) -> Callable[[Mapping[str, Any]], Any] | None:
        if row.name != "options":
            return None
        return lambda parsed: str(parsed.get(row.infotext, "")).replace("No Options", "")

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """The extension's twenty, of which the last may be missing; or this script's own."""
        args = truths(args)
        if title.lower() == FORGE_COUPLE.lower():
            return self.checked(_of_forge_couple(args, title), title)
        if len(args) > 2 and isinstance(args[1], bool):
            return self.checked(_of_extension(args, title), title)
        return self.checked(args, title)

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        prompts = [p.prompt, *p.all_prompts, *([p.hr_prompt] if p.enable_hr else [])]
        if values is None or not any(has_regions(text, values) for text in prompts):
            return
        mask = mask_image(values["mask"]) if values["divide"] == MASK else None
        for text in dict.fromkeys(prompts):
            if has_regions(text, values):
                regions = Regions.of(text, p.negative_prompt, values, mask)
                if regions.targets:
                    seen_words(regions, values)
        own = {row.infotext: values[row.name] for row in self.rows if row.infotext}
        p.extra_generation_params |= {
            "RP Active": True,
            "RP Divide mode": values["divide"],
            "RP Matrix submode": values["matrix"],
            "RP Mask submode": "Mask",
            "RP Prompt submode": SHARED,
            "RP Calc Mode": values["calc"],
            **own,
            "RP Options": values["options"] or "No Options",
            "RP LoRA Neg Te Ratios": 0,
            "RP LoRA Neg U Ratios": 0,
            "RP LoRA Stop Step": 0,
            "RP LoRA Hires Stop Step": 0,
            "RP Flip": values["flip"],
        }

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        mask = mask_image(values["mask"]) if values["divide"] == MASK else None
        if mask is not None and WHOLE_IMAGE in values["options"]:
            mask = part_of(mask, p)
        texts = zip(use.facts.prompts, use.facts.negative_prompts, strict=True)
        regions = [Regions.of(*pair, values, mask) if has_regions(pair[0], values) else None for pair in texts]
        if not any(regions):
            return
        seen = [seen_words(one, values) if one is not None and one.targets else None for one in regions]
        Encoded(use, regions, mask, seen).put_on(ATTENTION if any(seen) else values["calc"])


def seen_words(regions: Regions, values: Mapping[str, Any]) -> SeenWords:
    """Prepare what is going to be seen of the words of these regions. Raises `InvalidValueError`."""
    limits = _numbers(values["threshold"], "threshold")
    limits += [limits[-1]] * (len(regions.texts) - len(limits))
    places = [places_of(target, regions.base or "", TITLE) for target in regions.targets]
    return SeenWords(places, limits[: len(places)], values["words"] == COVERED)


def _of_extension(args: Sequence[Any], title: str) -> list[Any]:
    """In the order of the rows. Raises `InvalidValueError`, also for what is not made here."""
    if len(args) > ARGUMENTS:
        raise InvalidValueError(f"{title} takes {ARGUMENTS} arguments, {len(args)} were given.")
    given = [*args, *[None] * (ARGUMENTS - len(args))]
    if given[0]:
        for place, name in UNUSED.items():
            if given[place] not in (None, "", 0, "0"):
                raise InvalidValueError(f"{title}: {name} is {given[place]!r}; only 0 is supported.")
    options = given[12] or []
    if isinstance(options, str):
        options = [options]
    if isinstance(options, list):
        options = [each for each in options if each not in (False, None, "")]
    if not isinstance(options, list) or not all(isinstance(each, str) for each in options):
        raise InvalidValueError(f"{title}: the options are {options!r}; allowed is a list of texts.")
    found: dict[str, Any] = {name: given[place] for name, place in ORDER.items()}
    found["options"] = ", ".join(options)
    for name in ("ratios", "base_ratios", "threshold"):
        if isinstance(found[name], int | float) and not isinstance(found[name], bool):
            found[name] = str(found[name])
        found[name] = found[name] or None  # "" is the default of its own form
    return [found[row.name] for row in RegionalPrompter.rows]


def _of_forge_couple(args: Sequence[Any], title: str) -> list[Any]:
    """Forge Couple's first seven arguments in the order of the rows. Raises `InvalidValueError` for what is not made
    here."""
    given = [*args, *[None] * max(0, 7 - len(args))]
    enabled, _, mode, separator, direction, background, weight = given[:7]
    if enabled and (mode or "Basic") != "Basic":
        raise InvalidValueError(
            f"{title}: the mode {mode!r} is not made here. Take Basic, or Regional Prompter with a mask of regions."
        )
    if enabled and separator not in (None, "", "\\n", "\n"):
        raise InvalidValueError(f"{title}: the separator {separator!r} is not supported: each line is a region.")
    if (direction := direction or "Horizontal") not in LINES:
        raise InvalidValueError(f"{title}: the direction is {direction!r}; allowed is {', '.join(LINES)}.")
    bases = {None: "", "None": "", "First Line": FIRST_IS_BASE, "Last Line": LAST_IS_BASE}
    if background not in bases:
        raise InvalidValueError(f"{title}: the global effect is {background!r}; allowed is {list(bases)[1:]}.")
    found = {
        "enabled": enabled,
        "matrix": "Columns" if direction == "Horizontal" else "Rows",
        "ratios": "1",
        "base": bool(bases[background]),
        "base_ratios": str(0.5 if weight is None else weight),
        "options": ", ".join(filter(None, (LINES[direction], bases[background]))),
    }
    return [found.get(row.name) for row in RegionalPrompter.rows]


def has_regions(prompt: str, values: Mapping[str, Any]) -> bool:
    """Whether the prompt divides the image."""
    return bool(KEY.search(_with_breaks(prompt, values)))


def _with_breaks(text: str, values: Mapping[str, Any]) -> str:
    options = values["options"]
    if any(option in options for option in LINES.values()):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if LAST_IS_BASE in options and lines:
            lines = [lines[-1], *lines[:-1]]
        base = f"{lines.pop(0)} ADDBASE " if len(lines) > 1 and "is the base" in options else ""
        text = base + (" ADDCOL " if LINES["Horizontal"] in options else " ADDROW ").join(lines)
    return text if KEEP_AND in options else AND.sub("BREAK", text)


@dataclass(frozen=True)
class Box:
    """A part of the image, in portions of its sides."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Regions:
    """The regions of one image: a text each, its negative text, and how much of the base prompt is in it. `boxes` are
    None where a mask divides the image, or words do: `targets`, those of each region."""

    texts: tuple[str, ...]
    negatives: tuple[str, ...]
    shares: tuple[float, ...]
    boxes: tuple[Box, ...] | None
    base: str | None
    targets: tuple[str, ...] = ()

    @classmethod
    def of(cls, prompt: str, negative: str, values: Mapping[str, Any], mask: Image.Image | None) -> Regions:
        """Divide a prompt. Raises `InvalidValueError` where prompt and ratios do not fit."""
        sections = _sections(_with_breaks(prompt, values))
        common = base = None
        if values["common"] or any(key == "ADDCOMM" for _, key in sections):
            common, sections = _first(sections, "ADDCOMM")
        by_words = values["divide"] == PROMPT
        if by_words or values["base"] or any(key == "ADDBASE" for _, key in sections):
            base, sections = _first(sections, "ADDBASE")
        if not sections:
            raise InvalidValueError(f"{TITLE}: the prompt has no regions behind its common and base parts.")
        if mask is not None or by_words:
            boxes, texts = None, [text for text, _ in sections]
        else:
            boxes, texts = _divided(sections, values)
        if len(texts) > MAX_REGIONS:
            raise InvalidValueError(f"{TITLE}: the prompt has {len(texts)} regions; at most {MAX_REGIONS} are allowed.")
        if common is not None:
            texts = [f"{common}, {text}" for text in texts]
            base = None if base is None else f"{common}, {base}"
        shares = _numbers(values["base_ratios"].replace(";", ","), "base ratio")
        shares += [shares[-1]] * (len(texts) - len(shares))
        negatives = _negatives(negative, len(texts), base is not None, values["negative_common"])
        targets = tuple(text.rpartition(",")[2].strip() for text in texts) if by_words else ()
        return cls(tuple(texts), negatives, tuple(shares[: len(texts)]), boxes, base, targets)


def _sections(prompt: str) -> list[tuple[str, str]]:
    """The texts between the key words, each with the word behind it ("" at the end)."""
    parts = KEY.split(prompt)
    return [(text.strip(), key) for text, key in zip(parts[::2], [*parts[1::2], ""], strict=True)]


def _first(sections: list[tuple[str, str]], key: str) -> tuple[str, list[tuple[str, str]]]:
    """The text up to a key word, or where it does not stand there up to the first one."""
    end = next((place for place, (_, word) in enumerate(sections) if word == key), 0)
    text = " BREAK ".join(part for part, _ in sections[: end + 1])
    return text, sections[end + 1 :]


def _numbers(text: str, what: str) -> list[float]:
    """Numbers between commas. Raises `InvalidValueError`."""
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidValueError(f"{TITLE}: the {what} {text!r} is no list of numbers. Write 1,2,1.") from error
    if not found or not all(math.isfinite(number) and number >= 0 for number in found):
        raise InvalidValueError(f"{TITLE}: the {what} {text!r} is no list of positive numbers. Write 1,2,1.")
    return found


def _divided(sections: list[tuple[str, str]], values: Mapping[str, Any]) -> tuple[tuple[Box, ...], list[str]]:
    """The boxes of the regions, and their texts. Rows of columns, or with "Rows" columns of rows."""
    is_rows = values["matrix"] in ROWS
    outer_key, inner_key = ("ADDCOL", "ADDROW") if is_rows else ("ADDROW", "ADDCOL")
    ratios = values["ratios"].translate(str.maketrans(",;", ";,")) if values["flip"] else values["ratios"]
    given = [_numbers(part, "ratio") for part in ratios.split(";") if part.strip()]
    if any(key in (outer_key, inner_key) for _, key in sections):
        lines, texts = _lines_of_prompt(sections, given, outer_key, inner_key)
    else:
        lines = [(1.0, given[0])] if len(given) == 1 else [(row[0], row[1:] or [1.0]) for row in given]
        texts = _texts_for(sections, sum(len(cells) for _, cells in lines))
    boxes, total, at = [], sum(size for size, _ in lines), 0.0
    if total <= 0 or any(sum(cells) <= 0 for _, cells in lines):
        raise InvalidValueError(f"{TITLE}: the ratios {ratios!r} leave no room.")
    for size, cells in lines:
        across = 0.0
        for cell in cells:
            place = (across, at / total, across + cell / sum(cells), (at + size) / total)
            boxes.append(Box(place[1], place[0], place[3], place[2]) if is_rows else Box(*place))
            across += cell / sum(cells)
        at += size
    return tuple(boxes), texts


def _texts_for(sections: list[tuple[str, str]], count: int) -> list[str]:
    """A text for each of `count` cells; what is left over is part of the last one."""
    texts = [text for text, _ in sections]
    if len(texts) < count:
        raise InvalidValueError(
            f"{TITLE}: the ratios divide the image into {count} regions, and the prompt has {len(texts)}. Divide it "
            "with BREAK, or change the ratios."
        )
    return [*texts[: count - 1], " BREAK ".join(texts[count - 1 :])]


def _lines_of_prompt(
    sections: list[tuple[str, str]], given: list[list[float]], outer_key: str, inner_key: str
) -> tuple[list[tuple[float, list[float]]], list[str]]:
    """The division that ADDCOL and ADDROW say, with sizes as far as there are any."""
    texts: list[str] = []
    counts = [1]
    open_text = ""
    for text, key in sections:
        open_text = f"{open_text} BREAK {text}" if open_text else text
        if key == "BREAK":
            continue
        texts.append(open_text)
        open_text = ""
        if key == outer_key:
            counts.append(1)
        elif key == inner_key:
            counts[-1] += 1
    if len(counts) == 1:
        lines = [(1.0, given[0])]
    elif len(given) == 1 and counts == [1] * len(counts):
        lines = [(size, [1.0]) for size in given[0]]
    else:
        lines = [(row[0], row[1:]) for row in given]
    lines += [(1.0, [])] * (len(counts) - len(lines))
    filled = [
        (size, [*cells[:count], *[1.0] * (count - len(cells))])
        for (size, cells), count in zip(lines, counts, strict=False)
    ]
    return filled, texts


def _negatives(negative: str, count: int, has_base: bool, has_common: bool) -> tuple[str, ...]:
    """One for each region: those of a divided negative prompt, or the same for all."""
    texts = [text for text, _ in _sections(negative)]
    if len(texts) > 1 and has_common:
        texts = [f"{texts[0]}, {text}" for text in texts[1:]]
    if has_base and len(texts) == count + 1:
        texts = texts[1:]
    return tuple(texts) if len(texts) == count and count > 1 else ()


def mask_image(text: str) -> Image.Image:
    """The mask in a text: base64, or a data URL. Raises `InvalidValueError`."""
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    if not encoded or len(encoded) > MASK_CHARS:
        raise InvalidValueError(f"{TITLE}: the divide mode {MASK} needs a picture of the regions, as base64.")
    try:
        image = Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)))
        return image.convert("RGB")
    except (binascii.Error, ValueError, OSError) as error:
        raise InvalidValueError(f"{TITLE}: the mask is no picture in base64 ({error}).") from error


def part_of(mask: Image.Image, p: Any) -> Image.Image:
    """Where a job paints only the masked area, what the mask of regions shows of that area; else the whole."""
    painted = getattr(p, "image_mask", None)
    if painted is None or not p.inpaint_full_res:
        return mask
    painted = painted.convert("L")
    if int(p.inpainting_mask_invert):
        painted = painted.point(lambda value: 255 - value)
    area = masked_area(blur_mask(painted, p.mask_blur_x, p.mask_blur_y), p.inpaint_full_res_padding)
    if area is None:
        return mask
    area = grown_to_aspect(area, (p.width, p.height), painted.size)
    return mask.resize(painted.size, Image.Resampling.NEAREST).crop(area)


def hue_of(region: int) -> float:
    """0, 1/2, 1/4, 3/4, 1/8, 3/8 ..."""
    if region == 0:
        return 0.0
    parts = 1 << region.bit_length()
    return (2 * (region - parts // 2) + 1) / parts


def region_map(mask: Image.Image, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which region each pixel of a mask belongs to, [H,W]; -1 where it has none of their colors."""
    pixels = np.asarray(mask.convert("RGB")).astype(float) / 255
    high, low = pixels.max(axis=2), pixels.min(axis=2)
    spread = np.where(high > low, high - low, 1.0)
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    hue = np.where(high == red, (green - blue) / spread, 0.0)
    hue = np.where((high == green) & (high != red), (blue - red) / spread + 2, hue)
    hue = np.where((high == blue) & (high != red) & (high != green), (red - green) / spread + 4, hue) / 6 % 1.0
    hues = np.array([hue_of(region) for region in range(count)])
    distance = np.abs(hue[..., None] - hues)
    distance = np.minimum(distance, 1 - distance)
    nearest = distance.argmin(axis=2)
    tolerance = max(HUE_TOLERANCE, 1 / (4 * 2 ** max(count - 1, 1).bit_length()))
    is_colored = (high - low > LEAST_SATURATION * np.maximum(high, 1e-6)) & (distance.min(axis=2) < tolerance)
    return np.where(is_colored, nearest, -1).astype(np.int64)


def weights_of(regions: Regions, mask: Image.Image | None, height: int, width: int) -> list[Any]:
    """How much each region counts in each cell, [h,w] in 0 to 1; without the share of the base prompt."""
    count = len(regions.texts)
    if regions.boxes is None:
        assert mask is not None
        whole = region_map(mask, count)
        rows = (np.arange(height) * whole.shape[0] / height).astype(int)
        columns = (np.arange(width) * whole.shape[1] / width).astype(int)
        cells = whole[rows][:, columns]
        if regions.base is None:
            cells = np.where(cells < 0, 0, cells)
        return [(cells == region).astype(np.float32) for region in range(count)]
    found = []
    for box in regions.boxes:
        cells = np.zeros((height, width), np.float32)
        bottom = height if box.bottom > 1 - 1e-6 else int(height * box.bottom + 1e-6)
        right = width if box.right > 1 - 1e-6 else int(width * box.right + 1e-6)
        cells[int(height * box.top + 1e-6) : bottom, int(width * box.left + 1e-6) : right] = 1.0
        found.append(cells)
    return found


@dataclass
class Encoded:
    """The regions of a batch with their encoded texts, on a model for one pass."""

    use: ModelUse
    regions: list[Regions | None]  # for each image
    mask: Image.Image | None
    seen: list[SeenWords | None]  # for each image; where it is divided by words
    prompts: dict[str, Any] = field(default_factory=dict)
    negatives: dict[str, Any] = field(default_factory=dict)
    _sample: tuple[int, int] = (0, 0)
    _weights: dict[tuple[int, int, int], Any] = field(default_factory=dict)

    def put_on(self, calc: str) -> None:
        """Put the regions on, by attention or by whole predictions. Raises `InvalidValueError` for a denoiser without
        cross-attention."""
        use = self.use
        wanted = [text for one in self.regions if one for text in (*one.texts, *([one.base] if one.base else []))]
        negatives = [text for one in self.regions if one for text in one.negatives]
        texts, negative_texts = list(dict.fromkeys(wanted)), list(dict.fromkeys(negatives)) or [""]
        encoded = use.encode(texts, negative_texts)
        self.prompts = dict(zip(texts, encoded.prompts, strict=True))
        self.negatives = dict(zip(negative_texts, encoded.negatives, strict=True))
        if calc == LATENT:
            use.around_denoiser(lambda denoise: partial(self.denoise, denoise))
            return
        layers = [
            module.get_submodule("attn2")
            for module in use.model.unet.modules()
            if any(each.__name__ == BLOCK for each in type(module).__mro__)
            and getattr(module, "attn2", None) is not None
        ]
        if not layers:
            raise InvalidValueError(
                f"{TITLE}: {use.model.family.label} has no cross-attention to divide. Choose the mode {LATENT}."
            )
        use.before_call.append(self._set_vectors)
        use.hook(use.model.unet, self._watch, HookOrder.OBSERVE)
        for layer in layers:
            use.hook(layer, self.attend, HookOrder.PART)

    def _conditioning(self, text: str, is_negative: bool, step: int) -> Any:
        return self.negatives[text].at(step) if is_negative else self.prompts[text].at(step)[0][0]

    def _set_vectors(self, inputs: Any) -> None:
        """Models that know a whole text by a vector get that of the base prompt, or of the first region."""
        if inputs.vector is None:
            return
        count, images = len(inputs.text_cond), len(self.regions)
        parts = count // images
        inputs.vector = inputs.vector.clone()
        for row in range(count):
            regions = self.regions[min(row // parts, images - 1)]
            if regions is not None:
                first = self._conditioning(regions.base or regions.texts[0], False, inputs.step)
                inputs.vector[row] = first.vector.to(inputs.vector)

    def _watch(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Around the denoiser: notes the size of the latents that it works on."""
        sample = args[0] if args else kwargs["sample"]
        self._sample = (sample.shape[-2], sample.shape[-1])
        return inner(*args, **kwargs)

    def _weights_at(self, image: int, height: int, width: int, like: Tensor) -> Tensor:
        """[R,h,w] of one image, for feature maps of this size of the whole image."""
        import torch

        seen = self.seen[image]
        if seen is not None:
            regions = self.regions[image]
            assert regions is not None
            divided = seen.weights(self.use.call.step, height, width)
            return like.new_zeros(len(regions.texts), height, width) if divided is None else divided.to(like)
        key = (image, height, width)
        if key not in self._weights:
            regions = self.regions[image]
            assert regions is not None
            self._weights[key] = torch.from_numpy(np.stack(weights_of(regions, self.mask, height, width)))
        found: Tensor = self._weights[key].to(like.device, like.dtype)
        return found

    def _in_window(self, call: ModelCall, row: int, weights: Callable[[int, int], Tensor], depth: int) -> Tensor:
        """The part of the weights that a row shows; each level below has half the size."""
        height, width = self._sample
        if call.windows is None:
            for _ in range(depth):
                height, width = -(-height // 2), -(-width // 2)
            return weights(height, width)
        window, (whole_height, whole_width) = call.windows[row], self.use.latent_size
        whole = weights(whole_height, whole_width)
        cut = whole[:, window.top : window.top + window.height, window.left : window.left + window.width]
        step = 2**depth
        return cut[:, ::step, ::step]

    def _depth(self, tokens: int) -> int | None:
        height, width = self._sample
        for depth in range(6):
            if height * width == tokens:
                return depth
            height, width = -(-height // 2), -(-width // 2)
        return None

    def attend(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Around a cross-attention over tokens [N,T,C]: each region attends to its own text."""
        import torch

        tokens: Tensor = args[0] if args else kwargs.pop("hidden_states")
        context: Any = args[1] if len(args) > 1 else kwargs.pop("encoder_hidden_states", None)
        call, depth = self.use.call, self._depth(tokens.shape[1])
        if depth is None or len(call.images) != len(tokens):
            return inner(tokens, context, *args[2:], **kwargs)
        wanted: list[tuple[int, Tensor]] = []  # row and what it attends to
        for row, text in self._asked(call):
            found = (
                context[row] if text is None else self._conditioning(text, call.is_negative[row], call.step).crossattn
            )
            wanted.append((row, found.to(tokens)))
            if text is not None:
                self._look(module, call, row, text, tokens[row], wanted[-1][1], depth)
        outputs: dict[int, Tensor] = {}  # by place in `wanted`
        for length in dict.fromkeys(len(found) for _, found in wanted):
            places = [place for place, (_, found) in enumerate(wanted) if len(found) == length]
            rows, texts = [wanted[place][0] for place in places], torch.stack([wanted[place][1] for place in places])
            with self.use.calling(call.rows(rows), is_inside=True):
                outputs |= dict(zip(places, inner(tokens[rows], texts, *args[2:], **kwargs), strict=True))
        parts = {row: [outputs[at] for at, (own, _) in enumerate(wanted) if own == row] for row in range(len(tokens))}
        return torch.stack([self._joined(call, row, parts[row], depth) for row in range(len(tokens))])

    def _look(
        self, module: nn.Module, call: ModelCall, row: int, text: str, tokens: Tensor, context: Tensor, depth: int
    ) -> None:
        """Note where the base prompt's words are seen. Tiles of an image are left out."""
        regions, seen = self.regions[call.images[row]], self.seen[call.images[row]]
        if regions is None or seen is None or text != regions.base or call.windows is not None:
            return
        height, width = self._sample
        for _ in range(depth):
            height, width = -(-height // 2), -(-width // 2)
        seen.look(module, tokens, context, (height, width), self._sample)

    def _asked(self, call: ModelCall) -> Iterator[tuple[int, str | None]]:
        """Each row with the texts that it needs, the base prompt last; None where it keeps its own."""
        for row, (image, is_negative) in enumerate(zip(call.images, call.is_negative, strict=True)):
            regions = self.regions[image]
            texts = () if regions is None else regions.negatives if is_negative else regions.texts
            if not texts:
                yield row, None
            else:
                yield from ((row, text) for text in texts)
                if regions is not None and regions.base and not is_negative:
                    yield row, regions.base

    def _joined(self, call: ModelCall, row: int, parts: Sequence[Tensor], depth: int) -> Tensor:
        """Return what a row becomes, tokens [T,C] or latents [C,h,w]: each region's part where its weights are 1, with
        as much of the base prompt as its share says, which also fills what no region has."""
        if len(parts) == 1 and not self._has_texts(call, row):
            return parts[0]
        regions = self.regions[call.images[row]]
        assert regions is not None
        weights = self._in_window(call, row, partial(self._weights_at, call.images[row], like=parts[0]), depth)
        weights = weights.flatten(1)[..., None] if parts[0].ndim == 2 else weights[:, None]
        count = len(regions.texts)
        base = parts[count] if len(parts) > count else None
        total = parts[0] * 0
        for part, weight, share in zip(parts[:count], weights, regions.shares, strict=True):
            total = total + (part if base is None else part * (1 - share) + base * share) * weight
        return total if base is None else total + base * (1 - weights.sum(0))

    def _has_texts(self, call: ModelCall, row: int) -> bool:
        regions = self.regions[call.images[row]]
        return regions is not None and bool(regions.negatives if call.is_negative[row] else regions.texts)

    def denoise(self, denoise: ConditionedDenoise, x: Tensor, sigma: Tensor, context: Any) -> Tensor:
        """Around the denoiser: a prediction for each region, put together."""
        import torch

        call = self.use.call
        self._sample = (x.shape[-2], x.shape[-1])
        outputs: dict[int, list[Tensor]] = {}
        for row, text in self._asked(call):
            own = rows_of_context(context, [row], len(x))
            if text is not None:
                found = self._conditioning(text, call.is_negative[row], call.step)
                own = replace(
                    own,
                    crossattn=found.crossattn[None].to(own.crossattn),
                    vector=None if found.vector is None else found.vector[None].to(x),
                    mask=None if found.mask is None else found.mask[None],
                )
            with self.use.calling(call.rows([row])):
                outputs.setdefault(row, []).append(denoise(x[row : row + 1], sigma[row : row + 1], own)[0])
        return torch.stack([self._joined(call, row, outputs[row], 0) for row in range(len(x))])


RegionalPrompter().add_axes("divide", "ratios", "base_ratios", "calc")
