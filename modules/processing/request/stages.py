"""The stages of a job: which there are, what they are called, and which of them a request has, with their sizes.

The run reports them, and progress, memory estimate, memory timeline and out-of-memory fallbacks read them from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from modules.images.resize import ResizeMode
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.source_images import FromImage, reference_size
from modules.processing.request.texts import prepare_text
from modules.processing.request.upscaling import LATENT_UPSCALE_MODES

OLD_PIXEL_COUNT = 512 * 512


class Stage(StrEnum):
    """The work of a job at a moment. The values are for machines: reports, records, API."""

    LOAD = "load"
    ADAPTERS = "adapters"
    ENCODE_TEXT = "text"
    ENCODE_IMAGE = "encode"
    SAMPLE = "denoise"
    ENLARGE = "enlarge"
    SAMPLE_HIRES = "denoise hires"
    DECODE = "decode"
    FACES = "faces"
    HASH = "hash"
    SAVE = "save"

    @property
    def label(self) -> str:
        """For people, to follow "the job is" or "while"."""
        return LABELS[self]

    @property
    def samples(self) -> bool:
        """Whether the denoiser runs."""
        return self in (Stage.SAMPLE, Stage.SAMPLE_HIRES)


LABELS = {
    Stage.LOAD: "loading the model",
    Stage.ADAPTERS: "applying adapters",
    Stage.ENCODE_TEXT: "encoding the prompts",
    Stage.ENCODE_IMAGE: "encoding the image",
    Stage.SAMPLE: "sampling",
    Stage.ENLARGE: "enlarging the image",
    Stage.SAMPLE_HIRES: "sampling the larger image",
    Stage.DECODE: "decoding the image",
    Stage.FACES: "restoring faces",
    Stage.HASH: "computing the checkpoint's hash",
    Stage.SAVE: "saving the image",
}
IN_MAIN_MEMORY = frozenset({Stage.LOAD, Stage.ADAPTERS, Stage.SAVE})
"""Stages whose temporaries are in main memory, wherever the model computes: files are read, images are made."""


class PartOf(StrEnum):
    """The whole that a part belongs to."""

    RUN = "run"  # one of the runs that a script makes of a job
    TILE = "tile"  # one of the tiles of a stage


@dataclass(frozen=True)
class Part:
    """Part `index` (from 0) of `count`."""

    of: PartOf
    index: int
    count: int


def stage_text(stage: Stage, parts: Sequence[Part] = ()) -> str:
    """A stage for people: "2 of 5: enlarging the image, tile 3 of 4"."""
    places = {part.of: f"{part.index + 1} of {part.count}" for part in parts}
    run = f"{places[PartOf.RUN]}: " if PartOf.RUN in places else ""
    tile = f", tile {places[PartOf.TILE]}" if PartOf.TILE in places else ""
    return f"{run}{stage.label}{tile}"


# -- which stages a request has --------------------------------------------------------------------------------------


class Role(StrEnum):
    """Which of a job's checkpoints is in use."""

    BASE = "base"
    REFINER = "refiner"
    HIRES = "hires"


@dataclass(frozen=True)
class StageOfJob:
    """A stage as a job has it: with which checkpoint, and for an image of which size in pixels."""

    stage: Stage
    role: Role
    width_px: int
    height_px: int


def stages_of(request: GenerationRequest, multiple_px: int) -> tuple[StageOfJob, ...]:
    """The stages of one batch, in their order; `multiple_px` is what sides of its images are multiples of.

    Where checkpoints take turns, the one that was last in use goes on until another one is loaded.
    """
    found: list[StageOfJob] = []
    size, role = request.size_px, Role.BASE

    def add(*stages: Stage) -> None:
        found.extend(StageOfJob(stage, role, *size) for stage in stages)

    def add_pass(stage: Stage) -> None:
        nonlocal role
        add(stage)
        if refines(request, is_hires=stage is Stage.SAMPLE_HIRES):
            role = Role.REFINER
            add(Stage.LOAD, Stage.ENCODE_TEXT, stage)

    add(Stage.LOAD)
    if prepare_text(request.prompt, request.settings).tags:
        add(Stage.ADAPTERS)
    add(Stage.ENCODE_TEXT)
    if isinstance(request.start, FromImage) and enlarges_start(request, request.start):
        add(Stage.ENLARGE)
    if isinstance(request.start, FromImage) or request.start.references:
        found.append(StageOfJob(Stage.ENCODE_IMAGE, role, *encoded_size(request)))
    add_pass(Stage.SAMPLE)
    hires = request.hires
    if hires is not None:
        if enlarges_pixels(hires):
            add(Stage.DECODE)
        target = hires_size(*size, hires).target
        size = target[0] // multiple_px * multiple_px, target[1] // multiple_px * multiple_px
        add(Stage.ENLARGE)
        if hires.checkpoint:
            role = Role.HIRES
            add(Stage.LOAD, Stage.ENCODE_TEXT)
        if enlarges_pixels(hires):
            add(Stage.ENCODE_IMAGE)
        add_pass(Stage.SAMPLE_HIRES)
    add(Stage.DECODE)
    if request.settings.face_restoration.face_restoration:
        add(Stage.FACES)
    add(Stage.HASH, Stage.SAVE)
    return tuple(found)


def upscaler_of(request: GenerationRequest) -> str:
    """The upscaler of the stage that enlarges images: of hires fix, or for images to start from."""
    return request.hires.upscaler if request.hires is not None else request.settings.upscaling.upscaler_for_img2img


def enlarges_start(request: GenerationRequest, start: FromImage) -> bool:
    """Whether an image to start from is smaller than what is made, and an upscaler is set for that."""
    if (request.settings.upscaling.upscaler_for_img2img or "None") == "None":
        return False
    width, height = request.size_px
    return any(width > source.image.width or height > source.image.height for source in start.images)


def computes(stage: Stage, component: str) -> bool:
    """Whether a component of the model computes in a stage; all do while adapters are applied, and none while the model
    loads."""
    if stage in (Stage.LOAD, Stage.ADAPTERS):
        return stage is Stage.ADAPTERS
    if stage is Stage.ENCODE_TEXT:
        return component.startswith("text_encoder")
    return component == ("unet" if stage.samples else "vae")


def encoded_size(request: GenerationRequest) -> tuple[int, int]:
    """Width and height in pixels of the largest image that is encoded: one to start from has those of the request, or
    its own where it is its latents that are resized; a reference image those that it is shown with."""
    sizes = [reference_size(*source.image.size) for source in request.start.references]
    start = request.start
    if isinstance(start, FromImage):
        is_whole = start.mask is None or not start.mask.full_resolution
        if start.resize_mode is ResizeMode.LATENT_UPSCALE and is_whole:
            own = [source.image.size for source in start.images]
            sizes.append((max(width for width, _ in own), max(height for _, height in own)))
        else:
            sizes.append(request.size_px)
    return max(sizes, key=lambda size: size[0] * size[1])


def checkpoint_of(request: GenerationRequest, role: Role) -> str | None:
    """The name of a checkpoint that takes the base's place in the middle of a job."""
    if role is Role.REFINER:
        return request.refiner_checkpoint
    assert role is Role.HIRES and request.hires is not None, "the base is chosen by wanted_checkpoint"
    return request.hires.checkpoint


def refines(request: GenerationRequest, is_hires: bool) -> bool:
    """Whether the refiner takes part in this pass: of hires fix, in the passes that the setting names."""
    if not request.refiner_checkpoint:
        return False
    if request.hires is None:
        return True
    passes = request.settings.stable_diffusion.hires_fix_refiner_pass
    return passes == "both passes" or (passes == "second pass") == is_hires


def encodes_images(request: GenerationRequest) -> bool:
    """Whether an image becomes a latent on the way."""
    has_images = isinstance(request.start, FromImage) or bool(request.start.references)
    return has_images or (request.hires is not None and enlarges_pixels(request.hires))


def enlarges_pixels(hires: HiresRequest) -> bool:
    """Whether there is an image, not a latent, between the two passes."""
    return hires.upscaler not in LATENT_UPSCALE_MODES


# -- sizes of the second pass, by the reference UI's rules -----------------------------------------------------------


@dataclass(frozen=True)
class HiresSize:
    """`upscale_to` is what the first image is enlarged to; `target` what is left after the overhang is cut off.

    All in pixels; `cut` is the overhang in latent units (width, height).
    """

    upscale_to: tuple[int, int]
    target: tuple[int, int]
    cut: tuple[int, int]


def hires_size(width: int, height: int, hires: HiresRequest, downscale: int = 8) -> HiresSize:
    """The rule: no resize values: times `scale`; one: the other keeps the aspect; both: cover the box, then crop."""
    want_w, want_h = hires.resize_width, hires.resize_height
    if want_w == 0 and want_h == 0:
        size = (int(width * hires.scale), int(height * hires.scale))
        return HiresSize(size, size, (0, 0))
    if want_h == 0:
        size = (want_w, want_w * height // width)
        return HiresSize(size, size, (0, 0))
    if want_w == 0:
        size = (want_h * width // height, want_h)
        return HiresSize(size, size, (0, 0))
    if width / height < want_w / want_h:
        covering = (want_w, want_w * height // width)
    else:
        covering = (want_h * width // height, want_h)
    cut = ((covering[0] - want_w) // downscale, (covering[1] - want_h) // downscale)
    return HiresSize(covering, (want_w, want_h), cut)


def old_first_pass_size(width: int, height: int) -> tuple[int, int]:
    """The first pass's size under "use width/height sliders to set final resolution": about 512x512 pixels."""
    scale = math.sqrt(OLD_PIXEL_COUNT / (width * height))
    return math.ceil(scale * width / 64) * 64, math.ceil(scale * height / 64) * 64
