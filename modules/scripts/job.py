"""A job as scripts see it: a request whose values may be changed, and a way to make its images."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from PIL import Image

from modules.processing.request.hooks import PassComputing as PassComputing
from modules.processing.request.hooks import PassStart as PassStart
from modules.processing.request.parameters import Parameter, rows_of
from modules.processing.request.request import HIRES_ROWS, GenerationRequest, HiresRequest
from modules.processing.request.result import GeneratedImage, GenerationInfo, ImageRole, Result
from modules.processing.request.source_images import (
    IMAGE_ROWS,
    MASK_ROWS,
    FromImage,
    FromNoise,
    Mask,
    RequestStart,
    SourceImage,
)
from modules.prompting.styles import StyleBook
from modules.sampling.names import split_names
from modules.settings.values import Settings

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from modules.models.autoencoders.separate_tiles import SeparateTiles

Make = Callable[["Job"], "Processed"]
"""Makes the images of a job, as it is now."""
SaveGrid = Callable[[GeneratedImage, GenerationRequest, Result], GeneratedImage]
"""Saves a grid and gives it back with its path."""


def no_styles() -> StyleBook:
    """Return a book without styles."""
    return StyleBook(())


class SeedDraws:
    """Seeds for -1 in a job: the `recorded` ones, then others that follow from `origin`, so that the job makes the same
    images whenever it is repeated."""

    def __init__(self, origin: object, recorded: Sequence[int] = ()) -> None:
        self._recorded = list(recorded)
        self._chance = random.Random(str(origin))

    def next(self) -> int:
        """Return the next seed, 0 to 2^32 - 1 where it is drawn."""
        return self._recorded.pop(0) if self._recorded else self._chance.randrange(2**32)


@dataclass(frozen=True)
class Making:
    """The way in which jobs are made: by a run, or by the queue. Without `seeds` each -1 draws by chance."""

    make: Make
    settings: Callable[[], Settings]
    save_grid: SaveGrid | None = None
    read_styles: Callable[[], StyleBook] = no_styles
    seeds: SeedDraws | None = None


class Processed:
    """Images of a job with their infotexts; grids first. `generated` may be changed."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.generated: list[GeneratedImage] = list(result.images)

    @classmethod
    def joined(cls, runs: Sequence[Processed]) -> Processed:
        """Put the images, notices and the end of several runs together; at least one is needed."""
        notices = dict.fromkeys(note for run in runs for note in run.result.notices)
        interrupted = any(run.interrupted for run in runs)
        whole = cls(replace(runs[0].result, notices=tuple(notices), interrupted=interrupted))
        whole.generated = [image for run in runs for image in run.taken()]
        return whole

    def put_grid(self, grid: Image.Image) -> None:
        """Put a grid of the images in front of them; it has the infotext of the first."""
        first = self.taken()[0]
        self.generated.insert(0, GeneratedImage(grid, first.infotext, first.seed, first.subseed, role=ImageRole.GRID))

    @property
    def images(self) -> list[Image.Image]:
        """The images' pixels."""
        return [image.image for image in self.generated]

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.result.interrupted

    def taken(self) -> list[GeneratedImage]:
        """Return the images as scripts left them."""
        return self.generated

    def to_result(self) -> Result:
        """Return the frozen result; its facts follow the images."""
        images = self.taken()
        samples = [image for image in images if image.role is ImageRole.SAMPLE]
        info = _info_of(self.result.info, samples, [image.infotext for image in images])
        return replace(self.result, images=tuple(images), info=info)


class Job:
    """One job from noise: change it or a copy (`replace`), then `make` its images.

    Every parameter with a name in the API is an attribute of that name; `override_settings` hold for this job only.
    `reference_images` are shown to models that edit.
    """

    processed_class: ClassVar[type[Processed]] = Processed
    image_class: ClassVar[type[ImageJob]]
    prompt: str
    negative_prompt: str
    styles: tuple[str, ...]
    seed: int
    subseed: int
    subseed_strength: float
    sampler_name: str
    scheduler: str
    batch_size: int
    n_iter: int
    steps: int
    cfg_scale: float
    width: int
    height: int
    hr_prompt: str
    hr_negative_prompt: str

    def __init__(
        self,
        request: GenerationRequest,
        make: Make,
        save_grid: SaveGrid | None = None,
        read_styles: Callable[[], StyleBook] = no_styles,
        seeds: SeedDraws | None = None,
    ) -> None:
        self._request = request
        self._make = make
        self._save_grid = save_grid
        self._read_styles = read_styles
        self._seeds = seeds
        self._listed: tuple[list[Any], ...] = ([], [], [], [])
        self.before_sampling: Callable[[PassStart], None] | None = None
        """Called before each pass, after the hooks of scripts: for a selected script, which has no hooks of its own."""
        self.is_hr_pass = False
        self.iteration = 0
        self.batch_index = 0  # of the image that `postprocess_image` is called for, in its batch
        self.prompts: list[str] = []
        self.negative_prompts: list[str] = []
        self.hr_prompts: list[str] = []
        self.hr_negative_prompts: list[str] = []
        self.seeds: list[int] = []
        self.subseeds: list[int] = []
        self.all_prompts: list[str] = []
        self.all_negative_prompts: list[str] = []
        self.all_seeds: list[int] = []
        self.all_subseeds: list[int] = []
        self.requested_seed, self.requested_subseed = request.requested_seed, request.requested_subseed
        """What the job was asked for with: -1 for a random one, in whose place `seed` and `subseed` were drawn. A copy
        of the job with -1 gets a seed of its own, which is the same when the job is repeated."""
        self.enable_hr = request.hires is not None
        self._take(request, rows_of(type(request)))
        self._take(request.hires or HiresRequest(), HIRES_ROWS)
        self.override_settings: dict[str, Any] = {}
        self.script_values: dict[str, dict[str, Any]] = {}
        """Values of always-on scripts' fields by title and name, instead of those of the form: an axis's."""
        self.vae_tiles: SeparateTiles | None = None
        """How the VAE runs, instead of in one piece or in the exact tiles of the settings."""
        self.extra_generation_params: dict[str, Any] = dict(request.extra_params)
        self.selected_script = request.script
        """The title of the script that makes the images in the program's place; None: none does."""
        self.do_not_save_samples = not request.save_images
        self.do_not_save_grid = not request.save_grid
        self.user = request.user
        self.comments: dict[str, int] = {}
        """Sentences for the user, shown with the result."""
        self._take_start(request)

    def _take(self, part: object, rows: Iterable[Parameter]) -> None:
        for row in rows:
            if row.api:
                setattr(self, row.api, getattr(part, row.name))

    def _take_start(self, request: GenerationRequest) -> None:
        """Take what the job starts from, as attributes."""
        self.reference_images: list[Image.Image] = [source.image for source in request.start.references]
        self._known = {id(source.image): source for source in request.start.references}

    def replace(self, **changes: Any) -> Self:
        """Return an independent copy with these attributes."""
        other = copy.copy(self)
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.override_settings = dict(self.override_settings)
        other.script_values = {title: dict(values) for title, values in self.script_values.items()}
        other.extra_generation_params = dict(self.extra_generation_params)
        other.reference_images = list(self.reference_images)
        return other

    def make(self) -> Processed:
        """Make the images of the job as it is now; the hooks of always-on scripts are called."""
        return self._make(self)

    def takes_script(self, script: Any) -> bool:
        """Whether an always-on script takes part in this job."""
        return True

    def changed_args(self, script: Any) -> Sequence[Any] | None:
        """Return arguments of a script that are others than the request's; None where they are not."""
        return None

    def fix_seeds(self) -> None:
        """Draw seeds where none is given (-1, None or "")."""
        self.seed = self.drawn_seed(self.seed)
        self.subseed = self.drawn_seed(self.subseed)

    def drawn_seed(self, seed: Any) -> int:
        """Return the seed; for -1, None and "" one that follows from the job's recorded seeds."""
        return drawn_seed(seed, self._seeds)

    def comment(self, text: str) -> None:
        """Show a sentence to the user with the result."""
        self.comments[str(text)] = 1

    def list_images(self) -> None:
        """Fill `all_prompts`, `all_seeds` and so on, an entry for each image of the job."""
        count = self.n_iter * self.batch_size
        self.all_prompts = [self.prompt] * count
        self.all_negative_prompts = [self.negative_prompt] * count
        fixed = self.subseed_strength > 0
        self.all_seeds = [self.seed + (0 if fixed else number) for number in range(count)]
        self.all_subseeds = [self.subseed + number for number in range(count)]
        self._listed = tuple(list(entries) for entries in self._lists())

    def changed_lists(self) -> tuple[list[Any] | None, ...]:
        """Return prompts, negative prompts, seeds, variation seeds as scripts changed them; None for those left."""
        pairs = zip(self._lists(), self._listed, strict=True)
        return tuple(None if list(now) == before else list(now) for now, before in pairs)

    def _lists(self) -> tuple[list[Any], ...]:
        return self.all_prompts, self.all_negative_prompts, self.all_seeds, self.all_subseeds

    def hires_texts_of(self, part: slice) -> tuple[list[str], list[str]]:
        """Return prompts and negative prompts of the second pass of these images, "" for the first pass's."""
        count = len(self.all_prompts[part])
        return [self.hr_prompt or ""] * count, [self.hr_negative_prompt or ""] * count

    def apply_styles(self, names: Sequence[str]) -> None:
        """Put these styles around the prompts, and into the record. Raises `UnknownNameError`."""
        book = self._read_styles()
        self.prompt = book.apply_to_prompt(self.prompt, names)
        self.negative_prompt = book.apply_to_negative(self.negative_prompt, names)
        if self.hr_prompt:
            self.hr_prompt = book.apply_to_prompt(self.hr_prompt, names)
        if self.hr_negative_prompt:
            self.hr_negative_prompt = book.apply_to_negative(self.hr_negative_prompt, names)
        self.styles = (*self.styles, *names)

    def save_grids(self, processed: Processed, count: int = 1) -> None:
        """Save the first `count` images as grids, if the settings and the job say that grids are saved."""
        if self._request.save_grid and self.settings.saving.grid_save:
            self._save(processed, range(count))

    def save_samples(self, processed: Processed) -> None:
        """Save the images that have no file yet, if the settings and the job as it was asked for say so: for scripts
        that put an image together of parts that are not saved."""
        if self._request.save_images and self.settings.saving.samples_save:
            new = (at for at, one in enumerate(processed.generated) if not one.path and one.role is ImageRole.SAMPLE)
            self._save(processed, new)

    def _save(self, processed: Processed, places: Iterable[int]) -> None:
        if self._save_grid is not None:
            for place in places:
                image = processed.generated[place]
                processed.generated[place] = self._save_grid(image, self.to_request(), processed.result)

    @property
    def settings(self) -> Any:
        """The job's settings, overrides included."""
        return self._request.settings.with_changes(self.override_settings)

    def _value_of(self, row: Parameter) -> Any:
        return getattr(self, row.api)

    def as_values(self) -> dict[str, Any]:
        """Return what the request's own parameters are now, by name and unchecked."""
        return split_names({row.name: self._value_of(row) for row in rows_of(type(self._request)) if row.api})

    def to_request(self) -> GenerationRequest:
        """Return the frozen request. Raises `InvalidValueError` and `SettingsError` for values that are not allowed."""
        values = self.as_values()
        values["styles"] = tuple(values["styles"] or ())
        hires = None
        if self.enable_hr:
            values_of_pass = {row.name: self._value_of(row) for row in HIRES_ROWS if row.api}
            hires = HiresRequest(**split_names(values_of_pass))
        checkpoint = (self.override_settings or {}).get("sd_model_checkpoint") or self._request.checkpoint
        return replace(
            self._request,
            **values,
            start=self._start(),
            hires=hires,
            checkpoint=checkpoint,
            settings=self.settings,
            save_images=not self.do_not_save_samples,
            save_grid=not self.do_not_save_grid,
            extra_params=dict(self.extra_generation_params),
            script=None,
        )

    def _source(self, image: Image.Image) -> SourceImage:
        """Return an image with its hash, taken once for those that the job began with."""
        return self._known.get(id(image)) or SourceImage.of(image)

    def _start(self) -> RequestStart:
        return FromNoise(tuple(self._source(image) for image in self.reference_images))

    def redrawing(self, image: Image.Image, mask: Image.Image) -> ImageJob:
        """Return a job of one image that repaints the white of `mask` ("L") in `image`, only the masked area, with
        the prompts and parameters of this one; it saves nothing. A hook of decoded images may make it while this job is
        being made: the images come back to it and are none of that job's, their steps are not counted, and the script
        itself does not take part.
        """
        request = self.to_request()
        start = FromImage(images=(SourceImage.of(image),), mask=Mask(image=SourceImage.of(mask), full_resolution=True))
        unsaved = {"save_init_img": False, "return_mask": False, "return_mask_composite": False}
        inner = replace(
            request,
            start=start,
            hires=None,
            batch_count=1,
            batch_size=1,
            seed_resize_from_width=0,
            seed_resize_from_height=0,
            refiner_checkpoint=None,
            settings=request.settings.with_changes({**unsaved, "face_restoration": False}),
            save_images=False,
            save_grid=False,
            extra_params={},
        )
        job = self.image_class(inner, self._make, seeds=self._seeds)
        job.script_values = self.script_values
        return job


class ImageJob(Job):
    """One job from `init_images`, under `image_mask` where that is set; while sampling, `latent_mask` takes its place.

    Masks and latents of a running batch (`init_latent`, `nmask`, `mask`, `overlay_images`, `mask_for_overlay`,
    `paste_to`) are there from the first `process_before_every_sampling` on."""

    denoising_strength: float
    initial_noise_multiplier: float | None
    resize_mode: int
    mask_blur_x: int
    mask_blur_y: int
    mask_round: bool
    inpainting_fill: int
    inpaint_full_res: bool
    inpaint_full_res_padding: int
    inpainting_mask_invert: int

    def _take_start(self, request: GenerationRequest) -> None:
        super()._take_start(request)
        start = request.start
        assert isinstance(start, FromImage)
        self.init_images: list[Image.Image] = [source.image for source in start.images]
        self.image_mask: Image.Image | None = start.mask.image.image if start.mask else None
        latent = start.mask.latent if start.mask else None
        self.latent_mask: Image.Image | None = latent.image if latent else None
        masks = (*([start.mask.image] if start.mask else []), *([latent] if latent else []))
        self._known |= {id(source.image): source for source in (*start.images, *masks)}
        self._take(start, IMAGE_ROWS)
        self._take(start.mask or Mask(image=start.images[0]), MASK_ROWS)
        self.init_latent: Any = None
        self.nmask: Any = None
        self.mask: Any = None
        self.overlay_images: list[Image.Image] = []
        self.mask_for_overlay: Image.Image | None = None
        self.paste_to: tuple[int, int, int, int] | None = None  # left, top, width, height

    def __copy__(self) -> Self:
        other = super().__copy__()
        other.init_images = list(self.init_images)
        return other

    @property
    def mask_blur(self) -> int | None:
        """The blur of both directions; None where they differ. Setting it sets both."""
        return self.mask_blur_x if self.mask_blur_x == self.mask_blur_y else None

    @mask_blur.setter
    def mask_blur(self, value: int | None) -> None:
        if value is not None:
            self.mask_blur_x = self.mask_blur_y = value

    def _start(self) -> RequestStart:
        mask = None
        if self.image_mask is not None:
            values = {row.name: _member(row, self._value_of(row)) for row in MASK_ROWS if row.api}
            latent = self._source(self.latent_mask) if self.latent_mask is not None else None
            mask = Mask(image=self._source(self.image_mask), latent=latent, **values)
        values = {row.name: _member(row, self._value_of(row)) for row in IMAGE_ROWS if row.api}
        images, references = (
            tuple(self._source(image) for image in found) for found in (self.init_images, self.reference_images)
        )
        return FromImage(images=images, references=references, mask=mask, **values)


Job.image_class = ImageJob


def job_of(request: GenerationRequest, making: Making) -> Job:
    """Return a request as scripts see it."""
    made = ImageJob if isinstance(request.start, FromImage) else Job
    return made(request, making.make, making.save_grid, making.read_styles, making.seeds)


def drawn_seed(seed: Any, draws: SeedDraws | None = None) -> int:
    """Return the seed as a number; a drawn one for -1, None, "" and what is no number."""
    try:
        number = int(seed)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number >= 0:
        return number
    return draws.next() if draws is not None else random.SystemRandom().randrange(2**32)


def _member(row: Parameter, value: Any) -> Any:
    """Return what a script wrote as the row's own type: 1 and True are members of an enum or a flag."""
    return row.from_api(int(value)) if row.words else value


def _info_of(info: GenerationInfo, samples: list[GeneratedImage], infotexts: list[str]) -> GenerationInfo:
    count = len(samples)
    if not count:
        return replace(info, infotexts=tuple(infotexts))
    return replace(
        info,
        prompts=_resized(info.prompts, count),
        negative_prompts=_resized(info.negative_prompts, count),
        seeds=tuple(image.seed for image in samples),
        subseeds=tuple(image.subseed for image in samples),
        infotexts=tuple(infotexts),
    )


def _resized(texts: tuple[str, ...], count: int) -> tuple[str, ...]:
    return (texts * count)[:count] if texts else texts
