"""The request of a caller: frozen, checked for what one object can know about itself, and nothing computed.

The fields carry the rows of the table of parameters (see `request.parameters`): everything that the form,
the API, scripts, the command line and infotexts know about a parameter stands here, once.
Settings are read once at the edge and travel inside the request, so a job keeps what it began with.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import IntEnum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from modules.processing.request.parameters import (
    Choices,
    Control,
    Infotext,
    Option,
    Parameter,
    ParameterAxis,
    Section,
    Slider,
    Tab,
    check_values,
    rows_of,
)
from modules.processing.request.source_images import IMAGE_PARAMETERS, FromImage, FromNoise, RequestStart, SourceImage
from modules.settings.values import Settings

MIN_SIDE_PX = 16
MAX_SIDE_PX = 8192
MAX_STEPS = 1000
MAX_BATCH_SIZE = 64
MAX_BATCH_COUNT = 1000
MAX_SEED = 2**64 - 1
HIRES_PREFIX = "hires_"


def _always(_: object) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class HiresRequest:
    """The second pass of "hires fix". Empty or None means: as in the first pass.

    The order of the fields is their order in an infotext.
    """

    checkpoint: Annotated[
        str | None,
        Parameter(
            nothing="Use same checkpoint",
            choices=Choices.CHECKPOINTS,
            control=Control(
                elem_id="hr_checkpoint",
                help="Another model for the second pass.",
                label="Hires checkpoint",
                section=Section.HIRES,
                line=3,
            ),
            api="hr_checkpoint_name",
            infotext=Infotext(key="Hires checkpoint"),
        ),
    ] = None
    sampler: Annotated[
        str | None,
        Parameter(
            nothing="Use same sampler",
            choices=Choices.SAMPLERS,
            control=Control(
                elem_id="hr_sampler",
                help="Another sampling method for the second pass.",
                label="Hires sampling method",
                section=Section.HIRES,
                line=3,
            ),
            api="hr_sampler_name",
            infotext=Infotext(key="Hires sampler"),
            axis=ParameterAxis(label="Hires sampler"),
        ),
    ] = None
    prompt: Annotated[
        str,
        Parameter(
            control=Control(
                elem_id="hires_prompt",
                help="Another prompt for the second pass.",
                label="Hires prompt",
                section=Section.HIRES,
                line=4,
                text_lines=2,
                placeholder="Empty: the prompt above",
            ),
            api="hr_prompt",
            infotext=Infotext(key="Hires prompt"),
        ),
    ] = ""
    negative_prompt: Annotated[
        str,
        Parameter(
            control=Control(
                elem_id="hires_neg_prompt",
                help="Another negative prompt for the second pass.",
                label="Hires negative prompt",
                section=Section.HIRES,
                line=5,
                text_lines=2,
                placeholder="Empty: as above",
            ),
            api="hr_negative_prompt",
            infotext=Infotext(key="Hires negative prompt"),
        ),
    ] = ""
    scheduler: Annotated[
        str | None,
        Parameter(
            nothing="Use same scheduler",
            choices=Choices.SCHEDULES,
            control=Control(
                elem_id="hr_scheduler",
                help="Another schedule type for the second pass.",
                label="Hires schedule type",
                section=Section.HIRES,
                line=3,
            ),
            api="hr_scheduler",
            infotext=Infotext(key="Hires schedule type"),
        ),
    ] = None
    resize_width: Annotated[
        int,  # pixels; 0: from `scale`, or from the other side with the same aspect
        Parameter(
            low=0,
            high=MAX_SIDE_PX,
            control=Control(
                elem_id="{tab}_hr_resize_x",
                help="The width of the result. 0: it follows from the height, or from Upscale by.",
                label="Resize width to",
                section=Section.HIRES,
                line=2,
                slider=Slider(lowest=0, highest=MAX_SIDE_PX, step=8),
            ),
            api="hr_resize_x",
            infotext=Infotext(key="Hires resize-1", written=lambda hires: hires.has_size),
            needs_memory=True,
        ),
    ] = 0
    resize_height: Annotated[
        int,  # pixels; see resize_width
        Parameter(
            low=0,
            high=MAX_SIDE_PX,
            control=Control(
                elem_id="{tab}_hr_resize_y",
                help="The height of the result. 0: it follows from the width, or from Upscale by.",
                label="Resize height to",
                section=Section.HIRES,
                line=2,
                slider=Slider(lowest=0, highest=MAX_SIDE_PX, step=8),
            ),
            api="hr_resize_y",
            infotext=Infotext(key="Hires resize-2", written=lambda hires: hires.has_size),
            needs_memory=True,
        ),
    ] = 0
    denoising_strength: Annotated[
        float,
        Parameter(
            low=0.0,
            high=1.0,
            title="denoising strength",
            control=Control(
                elem_id="{tab}_denoising_strength",
                help="How much the image changes. 0: not at all; 1: nothing is left of it. 0.3 to 0.7 is usual.",
                label="Denoising strength",
                section=Section.HIRES,
                line=1,
                slider=Slider(lowest=0, highest=1, step=0.01),
            ),
            api="denoising_strength",
            api_default=None,
            api_null=0.75,
            infotext=Infotext(key="Denoising strength", written=_always),
            option=Option(name="--denoising-strength", metavar="SHARE", help="0 to 1, default: 0.7"),
            axis=ParameterAxis(label="Denoising"),
        ),
    ] = 0.7
    scale: Annotated[
        float,
        Parameter(
            low=1.0,
            high=16.0,
            control=Control(
                elem_id="{tab}_hr_scale",
                help="How many times larger the result is. Larger: much more memory and time.",
                label="Upscale by",
                section=Section.HIRES,
                line=1,
                slider=Slider(lowest=1, highest=4, step=0.05),
            ),
            api="hr_scale",
            infotext=Infotext(key="Hires upscale", written=lambda hires: not hires.has_size),
            option=Option(name="--hires-scale", metavar="FACTOR", help="such as 2", default=None),
            needs_memory=True,
        ),
    ] = 2.0
    steps: Annotated[
        int,  # 0: as many as the first pass
        Parameter(
            low=0,
            high=MAX_STEPS,
            control=Control(
                elem_id="{tab}_hires_steps",
                help="Steps of the second pass. More: finer and slower. 0: as many as the first pass.",
                label="Hires steps",
                section=Section.HIRES,
                hint="0: same as above",
                slider=Slider(lowest=0, highest=150, step=1),
            ),
            api="hr_second_pass_steps",
            infotext=Infotext(key="Hires steps", written=lambda hires: hires.steps > 0),
            option=Option(name="--hires-steps", help="default: as many as the first pass"),
            axis=ParameterAxis(label="Hires steps"),
        ),
    ] = 0
    distilled_cfg_scale: Annotated[
        float,  # 0: as in the first pass
        Parameter(
            low=0.0,
            high=100.0,
            title="distilled CFG scale of the second pass",
            control=Control(
                elem_id="{tab}_hr_distilled_cfg",
                help="The guidance of the second pass, for models that take it as an input. 0: that of the first pass.",
                label="Hires Distilled CFG Scale",
                section=Section.HIRES,
                line=3,
                hint="0: as above",
                slider=Slider(lowest=0, highest=30, step=0.1),
            ),
            api="hr_distilled_cfg",
            infotext=Infotext(key="Hires Distilled CFG Scale"),
        ),
    ] = 0.0
    upscaler: Annotated[
        str,
        Parameter(
            choices=Choices.UPSCALERS,
            control=Control(
                elem_id="{tab}_hr_upscaler",
                help="What enlarges the image between the passes. Latent ones need a denoising strength above 0.5; "
                "the others keep more.",
                label="Upscaler",
                section=Section.HIRES,
            ),
            api="hr_upscaler",
            api_default=None,
            infotext=Infotext(key="Hires upscaler", written=_always),
            option=Option(name="--hires-upscaler", metavar="NAME"),
            axis=ParameterAxis(label="Hires upscaler", shows_label=False),
            needs_memory=True,
        ),
    ] = "Latent"

    def __post_init__(self) -> None:
        check_values(self, HIRES_PREFIX)

    @property
    def has_size(self) -> bool:
        """Whether the size is given in pixels; otherwise `scale` says it."""
        return self.resize_width > 0 or self.resize_height > 0


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One job that makes images. Raises `InvalidValueError` for a value that no model could serve."""

    start: RequestStart = field(default_factory=FromNoise)
    prompt: Annotated[
        str,
        Parameter(
            control=Control(
                elem_id="{tab}_prompt",
                help="What the image shows, in English words. (word:1.2) counts more, (word:0.8) less.",
                label="Prompt",
                section=Section.PROMPTS,
                text_lines=3,
                placeholder="What should be in the image",
            ),
            api="prompt",
            infotext=Infotext(key="Prompt"),
            option=Option(name="--prompt"),
        ),
    ] = ""
    negative_prompt: Annotated[
        str,
        Parameter(
            control=Control(
                elem_id="{tab}_neg_prompt",
                help="What to keep out of the image. It needs a CFG scale above 1.",
                label="Negative prompt",
                section=Section.PROMPTS,
                text_lines=2,
                placeholder="What should not be in the image",
            ),
            api="negative_prompt",
            infotext=Infotext(key="Negative prompt"),
            option=Option(name="--negative-prompt"),
        ),
    ] = ""
    styles: Annotated[
        tuple[str, ...],
        Parameter(
            choices=Choices.STYLES,
            control=Control(
                elem_id="{tab}_styles",
                help="Texts saved under a name; they are added to the prompts when the image is made.",
                label="Styles",
                section=Section.PROMPTS,
            ),
            api="styles",
            api_default=None,
        ),
    ] = ()
    sampler: Annotated[
        str,  # a name or alias in SAMPLERS
        Parameter(
            choices=Choices.SAMPLERS,
            control=Control(
                elem_id="{tab}_sampling",
                help="How noise becomes an image, step by step. DPM++ 2M and Euler are good first choices; names with "
                "an a never converge.",
                label="Sampling method",
                section=Section.SAMPLING,
            ),
            api="sampler_name",
            api_default=None,
            infotext=Infotext(key="Sampler"),
            option=Option(name="--sampler"),
            axis=ParameterAxis(label="Sampler", shows_label=False),
        ),
    ] = "DPM++ 2M"
    scheduler: Annotated[
        str,  # a label, name or alias in SCHEDULES
        Parameter(
            choices=Choices.SCHEDULES,
            control=Control(
                elem_id="{tab}_scheduler",
                help="How the noise is spread over the steps. Automatic: what suits the sampling method.",
                label="Schedule type",
                section=Section.SAMPLING,
            ),
            api="scheduler",
            api_default=None,
            infotext=Infotext(key="Schedule type"),
            option=Option(name="--scheduler"),
            axis=ParameterAxis(label="Schedule type"),
        ),
    ] = "Automatic"
    steps: Annotated[
        int,
        Parameter(
            low=1,
            high=MAX_STEPS,
            control=Control(
                elem_id="{tab}_steps",
                help="More steps: more time, finer detail; beyond about 30 little changes. Fewer: faster and rougher.",
                label="Sampling steps",
                section=Section.SAMPLING,
                line=1,
                slider=Slider(lowest=1, highest=150, step=1),
            ),
            api="steps",
            api_default=50,
            infotext=Infotext(key="Steps", written=_always),
            option=Option(name="--steps"),
            axis=ParameterAxis(label="Steps"),
        ),
    ] = 20
    width: Annotated[
        int,  # pixels, cut down to a multiple of 8: see size_px
        Parameter(
            low=MIN_SIDE_PX,
            high=MAX_SIDE_PX,
            control=Control(
                elem_id="{tab}_width",
                help="Wider needs more memory and time. Far from the size of the model's training, motifs repeat.",
                label="Width",
                section=Section.SAMPLING,
                line=2,
                slider=Slider(lowest=64, highest=2048, step=8),
            ),
            api="width",
            infotext=Infotext(key="Size-1"),
            option=Option(name="--width", help="pixels (default: what the model was trained on)", default=None),
            needs_memory=True,
        ),
    ] = 512
    height: Annotated[
        int,
        Parameter(
            low=MIN_SIDE_PX,
            high=MAX_SIDE_PX,
            control=Control(
                elem_id="{tab}_height",
                help="Higher needs more memory and time. Far from the size of the model's training, motifs repeat.",
                label="Height",
                section=Section.SAMPLING,
                line=2,
                slider=Slider(lowest=64, highest=2048, step=8),
            ),
            api="height",
            infotext=Infotext(key="Size-2"),
            option=Option(name="--height", default=None),
            needs_memory=True,
        ),
    ] = 512
    batch_count: Annotated[
        int,  # batches one after the other
        Parameter(
            low=1,
            high=MAX_BATCH_COUNT,
            control=Control(
                elem_id="{tab}_batch_count",
                help="How many batches are made one after the other. More: more images in the same memory, longer.",
                label="Batch count",
                section=Section.SAMPLING,
                line=2,
                slider=Slider(lowest=1, highest=100, step=1),
            ),
            api="n_iter",
            option=Option(name="--batch-count"),
            needs_memory=True,
        ),
    ] = 1
    batch_size: Annotated[
        int,  # images computed together
        Parameter(
            low=1,
            high=MAX_BATCH_SIZE,
            control=Control(
                elem_id="{tab}_batch_size",
                help="How many images are made at once. More: more memory, a little less time per image.",
                label="Batch size",
                section=Section.SAMPLING,
                line=2,
                slider=Slider(lowest=1, highest=8, step=1),
            ),
            api="batch_size",
            option=Option(name="--batch-size"),
            needs_memory=True,
        ),
    ] = 1
    cfg_scale: Annotated[
        float,
        Parameter(
            low=-100.0,
            high=100.0,
            title="CFG scale",
            control=Control(
                elem_id="{tab}_cfg_scale",
                help="How closely the image follows the prompt. Higher: more literal, harsh colors from about 12; "
                "lower: freer. 5 to 8 is usual.",
                label="CFG Scale",
                section=Section.SAMPLING,
                line=3,
                slider=Slider(lowest=1, highest=30, step=0.5),
            ),
            api="cfg_scale",
            infotext=Infotext(key="CFG scale", written=_always),
            option=Option(name="--cfg-scale"),
            axis=ParameterAxis(label="CFG Scale"),
        ),
    ] = 7.0
    distilled_cfg_scale: Annotated[
        float,  # an input of denoisers that were trained with one, see `GuidanceType.DISTILLED`; others do not read it
        Parameter(
            low=0.0,
            high=100.0,
            title="distilled CFG scale",
            control=Control(
                elem_id="{tab}_distilled_cfg_scale",
                help="The guidance that distilled models take as an input; others ignore it. Higher: more literal. "
                "3.5 is usual, with a CFG scale of 1.",
                label="Distilled CFG Scale",
                section=Section.SAMPLING,
                line=3,
                slider=Slider(lowest=0, highest=30, step=0.1),
            ),
            api="distilled_cfg_scale",
            infotext=Infotext(key="Distilled CFG Scale"),
            option=Option(name="--distilled-cfg-scale"),
            axis=ParameterAxis(label="Distilled CFG Scale"),
        ),
    ] = 3.5
    seed: Annotated[
        int,  # -1: drawn when the job is submitted, and reported in the result
        Parameter(
            low=-1,
            high=MAX_SEED,
            control=Control(
                elem_id="{tab}_seed",
                help="The number that the noise begins with: the same seed and parameters give the same image again.",
                label="Seed",
                section=Section.SEED,
                hint="-1: a new seed each time",
            ),
            api="seed",
            is_clamped=True,
            infotext=Infotext(key="Seed", written=_always),
            option=Option(name="--seed"),
            axis=ParameterAxis(label="Seed"),
        ),
    ] = -1
    subseed: Annotated[
        int,
        Parameter(
            low=-1,
            high=MAX_SEED,
            title="variation seed",
            control=Control(
                elem_id="{tab}_subseed",
                help="A second seed that is mixed into the first, for slightly different images.",
                label="Variation seed",
                section=Section.SEED_EXTRAS,
            ),
            api="subseed",
            is_clamped=True,
            infotext=Infotext(key="Variation seed", written=lambda request: request.subseed_strength > 0),
            axis=ParameterAxis(label="Var. seed"),
        ),
    ] = -1
    subseed_strength: Annotated[
        float,
        Parameter(
            low=0.0,
            high=1.0,
            title="variation strength",
            control=Control(
                elem_id="{tab}_subseed_strength",
                help="How much of the second seed is mixed in. 0: only the first seed; 1: only the second.",
                label="Variation strength",
                section=Section.SEED_EXTRAS,
                slider=Slider(lowest=0, highest=1, step=0.01),
            ),
            api="subseed_strength",
            infotext=Infotext(key="Variation seed strength", written=lambda request: request.subseed_strength > 0),
            axis=ParameterAxis(label="Var. strength"),
        ),
    ] = 0.0
    seed_resize_from_width: Annotated[
        int,  # pixels; 0: off
        Parameter(
            low=0,
            high=MAX_SIDE_PX,
            title="seed resize width",
            control=Control(
                elem_id="{tab}_seed_resize_from_w",
                help="The width that the seed was found at: keeps the composition at another width. 0: off.",
                label="Resize seed from width",
                section=Section.SEED_EXTRAS,
                line=1,
                slider=Slider(lowest=0, highest=2048, step=8),
            ),
            api="seed_resize_from_w",
            api_default=-1,
            is_clamped=True,
            infotext=Infotext(key="Seed resize from-1", written=lambda request: request.resizes_seed),
        ),
    ] = 0
    seed_resize_from_height: Annotated[
        int,
        Parameter(
            low=0,
            high=MAX_SIDE_PX,
            title="seed resize height",
            control=Control(
                elem_id="{tab}_seed_resize_from_h",
                help="The height that the seed was found at: keeps the composition at another height. 0: off.",
                label="Resize seed from height",
                section=Section.SEED_EXTRAS,
                line=1,
                slider=Slider(lowest=0, highest=2048, step=8),
            ),
            api="seed_resize_from_h",
            api_default=-1,
            is_clamped=True,
            infotext=Infotext(key="Seed resize from-2", written=lambda request: request.resizes_seed),
        ),
    ] = 0
    tiling: Annotated[
        bool,  # images whose edges fit together; form and infotext: through the setting
        Parameter(
            api="tiling",
            api_default=None,
            infotext=Infotext(key="Tiling", written=lambda request: request.tiling, is_pasted=False),
        ),
    ] = False
    hires: HiresRequest | None = None
    checkpoint: str | None = None  # title, name or hash; None: the one in the settings
    refiner_checkpoint: Annotated[
        str | None,  # takes over in the middle; None: no refiner
        Parameter(
            nothing="None",
            choices=Choices.CHECKPOINTS,
            control=Control(
                elem_id="{tab}_checkpoint",
                help="A second model that makes the last steps, such as a refiner.",
                label="Checkpoint",
                section=Section.REFINER,
                hint="This checkpoint finishes the image",
            ),
            api="refiner_checkpoint",
            infotext=Infotext(key="Refiner"),
            option=Option(name="--refiner", metavar="CHECKPOINT", help="name, title or hash"),
            axis=ParameterAxis(label="Refiner checkpoint", shows_label=False),
        ),
    ] = None
    refiner_switch_at: Annotated[
        float,  # share of the sampling that is done when the refiner takes over
        Parameter(
            low=0.0,
            high=1.0,
            control=Control(
                elem_id="{tab}_switch_at",
                help="Larger: the second model makes fewer of the last steps; at 1 it makes none. Smaller: it makes "
                "more.",
                label="Switch at",
                section=Section.REFINER,
                hint="Share of steps before this checkpoint takes over (0.8: the last 20 %)",
                slider=Slider(lowest=0.01, highest=1, step=0.01),
            ),
            api="refiner_switch_at",
            infotext=Infotext(key="Refiner switch at"),
            option=Option(name="--refiner-switch-at", metavar="SHARE", help="default: 0.8 of the way"),
            axis=ParameterAxis(label="Refiner switch at"),
        ),
    ] = 0.8
    drawn_seed: int = -1  # what was drawn in place of a seed of -1; -1: none was
    drawn_subseed: int = -1
    save_images: bool = True
    save_grid: bool = True
    user: str = ""  # who is logged in; empty without users
    script: str | None = None  # the title of a selectable script that makes the images
    script_args: tuple[Any, ...] = ()
    alwayson_args: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # by title
    runs_scripts: bool = True  # whether scripts that are always on take part
    extra_params: Mapping[str, Any] = field(default_factory=dict)  # what scripts add to the infotext
    override_settings: Mapping[str, Any] = field(default_factory=dict)  # as given by the caller, for the record
    settings: Settings = field(default_factory=Settings)  # overrides already applied

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def size_px(self) -> tuple[int, int]:
        """Width and height of the image that is made: the asked ones cut down to multiples of 8, and what the canvas
        has more than them when outpainting. `cut_to` has those for models that take fewer sizes."""
        more = self._grown_px
        return self.width // 8 * 8 + more[0], self.height // 8 * 8 + more[1]

    def cut_to(self, multiple_px: int) -> "GenerationRequest":
        """Return the request for a model whose images have sides that are multiples of `multiple_px`."""
        width, height = (max(side // multiple_px, 1) * multiple_px for side in self.size_px)
        more = self._grown_px
        return (
            self if (width, height) == self.size_px else replace(self, width=width - more[0], height=height - more[1])
        )

    @property
    def _grown_px(self) -> tuple[int, int]:
        """Return by how much outpainting grows the canvas."""
        return self.start.grown_px if isinstance(self.start, FromImage) else (0, 0)

    @property
    def token_merging_ratio(self) -> float:
        """Return the ratio of the first pass: in img2img that of its own setting, unless the caller gives the general
        one."""
        optimizations = self.settings.optimizations
        has_own = isinstance(self.start, FromImage) and not self.override_settings.get("token_merging_ratio")
        return (optimizations.token_merging_ratio_img2img if has_own else 0.0) or optimizations.token_merging_ratio

    @property
    def requested_seed(self) -> int:
        """The seed that the caller asked for, -1 for a random one."""
        return -1 if self.seed == self.drawn_seed else self.seed

    @property
    def requested_subseed(self) -> int:
        """The variation seed that the caller asked for, -1 for a random one."""
        return -1 if self.subseed == self.drawn_subseed else self.subseed

    @property
    def resizes_seed(self) -> bool:
        """Whether the noise is drawn for another size and fitted to this one."""
        return self.seed_resize_from_width > 0 and self.seed_resize_from_height > 0


REQUEST_ROWS = rows_of(GenerationRequest)
HIRES_ROWS = rows_of(HiresRequest, HIRES_PREFIX, Tab.TXT2IMG)
PARAMETERS = (*REQUEST_ROWS, *HIRES_ROWS)
"""The table of txt2img."""
IMG2IMG_PARAMETERS = (*REQUEST_ROWS, *IMAGE_PARAMETERS)
"""The table of img2img."""


def seed_after(seed: int, count: int) -> int:
    """The seed so many images after another; 0 follows on `MAX_SEED`."""
    return (seed + count) % (MAX_SEED + 1)


def tab_of(request: GenerationRequest) -> str:
    """Whose folders its images go to: txt2img or img2img."""
    return "img2img" if isinstance(request.start, FromImage) else "txt2img"


def request_to_json(
    request: GenerationRequest, text_of: Callable[[SourceImage], str] = SourceImage.to_text
) -> dict[str, Any]:
    """A JSON-ready record of the request, settings included as their differences from the defaults. `text_of` gives
    what stands instead of an image."""
    record: dict[str, Any] = _to_json(request, text_of)
    return record


def request_from_json(
    record: Mapping[str, Any], image_of: Callable[[str], SourceImage] = SourceImage.from_text
) -> GenerationRequest:
    """The inverse of `request_to_json`; fields that an older record does not have get their defaults."""
    request: GenerationRequest = _from_json(GenerationRequest, record, image_of)
    return request


def _to_json(value: Any, text_of: Callable[[SourceImage], str]) -> Any:
    if isinstance(value, Settings):
        return value.differences()
    if isinstance(value, SourceImage):
        return text_of(value)
    if is_dataclass(value):
        return {f.name: _to_json(getattr(value, f.name), text_of) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _to_json(item, text_of) for key, item in value.items()}
    return [_to_json(item, text_of) for item in value] if isinstance(value, tuple | list) else value


def _from_json(hint: Any, value: Any, image_of: Callable[[str], SourceImage]) -> Any:
    """JSON data as the type of a field."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _from_json(get_args(hint)[0], value, image_of)
    if hint is SourceImage:
        return image_of(value)
    if hint == RequestStart:
        return _from_json(FromImage if "images" in value else FromNoise, value, image_of)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint(value)
    if origin in (Union, types.UnionType):
        return (
            None
            if value is None
            else _from_json(next(p for p in get_args(hint) if p is not type(None)), value, image_of)
        )
    if hint is Settings:
        return Settings().with_changes(value)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return hint(**{name: _from_json(hints[name], item, image_of) for name, item in value.items()})
    if origin is tuple:
        return tuple(_from_json(get_args(hint)[0], item, image_of) for item in value)
    if hasattr(origin, "keys"):
        return {key: _from_json(get_args(hint)[1], item, image_of) for key, item in value.items()}
    return value
