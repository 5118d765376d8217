"""The result of a job: images with their infotexts, and the facts about how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from modules.memory.timeline import MemoryRecord


class ImageRole(StrEnum):
    """Why an image is in the result: a sample, or one derived from samples."""

    SAMPLE = "sample"
    GRID = "grid"
    MASK = "mask"  # of inpainting: white is repainted
    CONTROL = "control"  # what a control model was shown
    MASK_COMPOSITE = "mask-composite"  # what was painted, transparent where the mask keeps the image
    BEFORE_COLOR_CORRECTION = "before-color-correction"


@dataclass(frozen=True)
class GeneratedImage:
    """One image (RGB; a mask composite RGBA) with the infotext that describes it; `is_finished` is False for one that
    was stopped on the way and is shown as far as it got. `key` says which of the job's images it is, the same at each
    try of the job."""

    image: Image.Image
    infotext: str
    seed: int
    subseed: int
    path: Path | None = None  # where it was saved; None: not saved
    role: ImageRole = ImageRole.SAMPLE
    is_finished: bool = True
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class GenerationInfo:
    """The facts a client reads from a reply's `info`; lists have one entry a sample, grids excluded."""

    prompts: tuple[str, ...]
    negative_prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    subseeds: tuple[int, ...]
    subseed_strength: float
    width: int
    height: int
    sampler: str
    scheduler: str
    cfg_scale: float
    steps: int
    batch_size: int
    checkpoint_name: str
    checkpoint_hash: str
    vae_name: str | None
    vae_hash: str | None
    seed_resize_from_width: int
    seed_resize_from_height: int
    denoising_strength: float | None
    extra_params: Mapping[str, Any]
    infotexts: tuple[str, ...]
    styles: tuple[str, ...]
    job_timestamp: str  # YYYYMMDDhhmmss, local time
    clip_skip: int
    version: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """All of a job's images, grids first as the reference UI's clients expect."""

    images: tuple[GeneratedImage, ...]
    info: GenerationInfo
    notices: tuple[str, ...] = ()  # sentences for the user: what was ignored, degraded or could not be saved
    timings_s: Mapping[str, float] = field(default_factory=dict)
    # During this job: of the GPU's allocator; on the CPU, of the whole program.
    peak_memory_bytes: int | None = None
    memory: MemoryRecord | None = None  # stage by stage; without what calls took that were replayed
    replayed_calls: int = 0  # of the model, as graphs of the GPU
    interrupted: bool = False
    adapter_retention: Mapping[str, Any] | None = (
        None  # how much of the LoRAs' effect is kept: retention, noise, worst layers
    )

    @property
    def samples(self) -> tuple[GeneratedImage, ...]:
        """The images without grids."""
        return tuple(p for p in self.images if p.role is ImageRole.SAMPLE)
