"""What a caller asks for: frozen, checked for what one object can know about itself, and nothing computed.

Settings are read once at the edge and travel inside the request, so a job keeps what it began with.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from modules.errors import InvalidValueError
from modules.processing.start import FromNoise, RequestStart
from modules.settings.values import Settings

MIN_SIDE_PX = 16
MAX_SIDE_PX = 8192
MAX_STEPS = 1000
MAX_BATCH_SIZE = 64
MAX_BATCH_COUNT = 1000
MAX_PROMPT_CHARS = 200_000
MAX_SEED = 2**64 - 1


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and low <= value <= high):
        raise InvalidValueError(f"{name} is {value!r}; allowed is {low} to {high}.")


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise InvalidValueError(f"{name} holds a null character at position {text.index(chr(0))}; remove it.")
    if len(text) > MAX_PROMPT_CHARS:
        raise InvalidValueError(f"{name} is {len(text)} characters long; allowed are {MAX_PROMPT_CHARS}. Shorten it.")


@dataclass(frozen=True, kw_only=True)
class HiresRequest:
    """The second pass of "hires fix". Empty or None means: as in the first pass."""

    upscaler: str = "Latent"
    scale: float = 2.0
    resize_width: int = 0  # pixels; 0: from `scale`, or from the other side with the same aspect
    resize_height: int = 0  # pixels; see resize_width
    steps: int = 0  # 0: as many as the first pass
    denoising_strength: float = 0.7
    sampler: str | None = None
    scheduler: str | None = None
    checkpoint: str | None = None
    prompt: str = ""
    negative_prompt: str = ""

    def __post_init__(self) -> None:
        _check_range("hires scale", self.scale, 1.0, 16.0)
        _check_range("hires resize width", self.resize_width, 0, MAX_SIDE_PX)
        _check_range("hires resize height", self.resize_height, 0, MAX_SIDE_PX)
        _check_range("hires steps", self.steps, 0, MAX_STEPS)
        _check_range("denoising strength", self.denoising_strength, 0.0, 1.0)
        _check_text("hires prompt", self.prompt)
        _check_text("hires negative prompt", self.negative_prompt)


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One job that makes images. Raises `InvalidValueError` for a value that no model could serve."""

    start: RequestStart = field(default_factory=FromNoise)
    prompt: str = ""
    negative_prompt: str = ""
    styles: tuple[str, ...] = ()
    width: int = 512  # pixels, cut down to a multiple of 8: see size_px
    height: int = 512
    steps: int = 20
    cfg_scale: float = 7.0
    sampler: str = "DPM++ 2M"  # a name or alias in SAMPLERS
    scheduler: str = "Automatic"  # a label, name or alias in SCHEDULES
    seed: int = -1  # -1: drawn when the job is submitted, and reported in the result
    subseed: int = -1
    subseed_strength: float = 0.0  # 0 to 1
    seed_resize_from_width: int = 0  # pixels; 0: off
    seed_resize_from_height: int = 0
    batch_size: int = 1  # images computed together
    batch_count: int = 1  # batches one after the other
    tiling: bool = False
    hires: HiresRequest | None = None
    checkpoint: str | None = None  # title, name or hash; None: the one in the settings
    refiner_checkpoint: str | None = None  # takes over in the middle; None: no refiner
    refiner_switch_at: float = 0.8  # share of the way that is behind when it does
    save_images: bool = True
    save_grid: bool = True
    user: str = ""  # who is logged in; empty without users
    script: str | None = None  # the title of a selectable script that makes the images
    script_args: tuple[Any, ...] = ()
    alwayson_args: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # by title
    extra_params: Mapping[str, Any] = field(default_factory=dict)  # what scripts add to the infotext
    override_settings: Mapping[str, Any] = field(default_factory=dict)  # as given by the caller, for the record
    settings: Settings = field(default_factory=Settings)  # overrides already applied

    def __post_init__(self) -> None:
        _check_text("prompt", self.prompt)
        _check_text("negative prompt", self.negative_prompt)
        _check_range("width", self.width, MIN_SIDE_PX, MAX_SIDE_PX)
        _check_range("height", self.height, MIN_SIDE_PX, MAX_SIDE_PX)
        _check_range("steps", self.steps, 1, MAX_STEPS)
        _check_range("CFG scale", self.cfg_scale, -100.0, 100.0)
        _check_range("seed", self.seed, -1, MAX_SEED)
        _check_range("variation seed", self.subseed, -1, MAX_SEED)
        _check_range("variation strength", self.subseed_strength, 0.0, 1.0)
        _check_range("seed resize width", self.seed_resize_from_width, 0, MAX_SIDE_PX)
        _check_range("seed resize height", self.seed_resize_from_height, 0, MAX_SIDE_PX)
        _check_range("refiner switch at", self.refiner_switch_at, 0.0, 1.0)
        _check_range("batch size", self.batch_size, 1, MAX_BATCH_SIZE)
        _check_range("batch count", self.batch_count, 1, MAX_BATCH_COUNT)

    @property
    def size_px(self) -> tuple[int, int]:
        """Width and height of the image that is made: the asked ones cut down to multiples of 8."""
        return self.width // 8 * 8, self.height // 8 * 8


def request_to_json(request: GenerationRequest) -> dict[str, Any]:
    """A JSON-ready record of the request, settings included as their differences from the defaults."""
    record = {f.name: getattr(request, f.name) for f in fields(request) if f.name not in ("settings", "hires", "start")}
    record["styles"] = list(request.styles)
    record["override_settings"] = dict(request.override_settings)
    record["script_args"] = list(request.script_args)
    record["alwayson_args"] = {title: list(args) for title, args in request.alwayson_args.items()}
    record["extra_params"] = dict(request.extra_params)
    record["hires"] = asdict(request.hires) if request.hires else None
    record["settings"] = request.settings.differences()
    return record


def request_from_json(record: Mapping[str, Any]) -> GenerationRequest:
    """The inverse of `request_to_json`."""
    values = dict(record)
    values["styles"] = tuple(values.get("styles", ()))
    values["script_args"] = tuple(values.get("script_args", ()))
    values["alwayson_args"] = {title: tuple(args) for title, args in values.get("alwayson_args", {}).items()}
    values["hires"] = HiresRequest(**values["hires"]) if values.get("hires") else None
    values["settings"] = Settings().with_changes(values.get("settings", {}))
    return GenerationRequest(**values)
