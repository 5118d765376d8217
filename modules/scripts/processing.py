"""A job as scripts see it: a mutable object with the reference UI's attribute names, and a way to make its images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from PIL import Image

from modules.processing.parameters import Parameter, rows_of
from modules.processing.pipeline.hooks import PassComputing as PassComputing
from modules.processing.pipeline.hooks import PassStart as PassStart
from modules.processing.record.result import GeneratedImage, GenerationInfo, ImageRole, Result
from modules.processing.request import HIRES_ROWS, GenerationRequest, HiresRequest
from modules.processing.start import IMAGE_ROWS, MASK_ROWS, FromImage, Mask, RequestStart, SourceImage
from modules.prompting.styles import StyleBook

Job = TypeVar("Job", bound="StableDiffusionProcessing")
Make = Callable[["StableDiffusionProcessing"], "Processed"]
"""Makes the images of a job, as it is now."""

SaveGrid = Callable[[GeneratedImage, GenerationRequest, Result], GeneratedImage]
"""Saves a grid and gives it back with its path."""


class StableDiffusionProcessing:
    """One job; change it, then give it to `process_images`. `override_settings` hold for this job only.

    Every parameter with a name in the API is an attribute of that name; below are those that the program itself uses.
    """

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
        read_styles: Callable[[], StyleBook] = lambda: StyleBook(()),
    ) -> None:
        self._request = request
        self._make = make
        self._save_grid = save_grid
        self._read_styles = read_styles
        self._listed: tuple[list[Any], ...] = ([], [], [], [])
        self.before_sampling: Callable[[PassStart], None] | None = None
        """Called before each pass, after the hooks of scripts: for a selected script, which has no hooks of its own."""
        self.is_hr_pass = False
        self.iteration = 0
        self.prompts: list[str] = []
        self.negative_prompts: list[str] = []
        self.seeds: list[int] = []
        self.subseeds: list[int] = []
        self.all_prompts: list[str] = []
        self.all_negative_prompts: list[str] = []
        self.all_seeds: list[int] = []
        self.all_subseeds: list[int] = []
        self.enable_hr = request.hires is not None
        self._take(request, rows_of(type(request)))
        self._take(request.hires or HiresRequest(), HIRES_ROWS)
        self.override_settings: dict[str, Any] = {}
        self.extra_generation_params: dict[str, Any] = dict(request.extra_params)
        self.do_not_save_samples = not request.save_images
        self.do_not_save_grid = not request.save_grid

    def _take(self, part: object, rows: Iterable[Parameter]) -> None:
        for row in rows:
            if row.api:
                setattr(self, row.api, getattr(part, row.name))

    def _values(self, rows: Iterable[Parameter]) -> dict[str, Any]:
        return {row.name: getattr(self, row.api) for row in rows if row.api}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a job has no {name!r}; known: {', '.join(sorted(vars(self)))}")

    def __copy__(self) -> Self:
        tied = object.__new__(type(self))
        tied.__dict__.update(self.__dict__)
        tied.override_settings = dict(self.override_settings)
        tied.extra_generation_params = dict(self.extra_generation_params)
        return tied

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
        """Prompts, negative prompts, seeds, variation seeds as scripts changed them; None for those they left."""
        pairs = zip(self._lists(), self._listed, strict=True)
        return tuple(None if list(now) == before else list(now) for now, before in pairs)

    def _lists(self) -> tuple[list[Any], ...]:
        return self.all_prompts, self.all_negative_prompts, self.all_seeds, self.all_subseeds

    def save_grids(self, processed: Processed, count: int = 1) -> None:
        """Save the first `count` images as grids, if the settings and the job say that grids are saved."""
        wanted = self._request.save_grid and self.settings.saving.grid_save
        if not wanted or self._save_grid is None:
            return
        for index in range(count):
            processed.generated[index] = self._save_grid(
                processed.generated[index], self.to_request(), processed.result
            )

    def save_samples(self, processed: Processed) -> None:
        """Save the images that have no file yet, if the settings and the job as it was asked for say so: for scripts
        that put an image together of parts that are not saved."""
        if not (self._request.save_images and self.settings.saving.samples_save) or self._save_grid is None:
            return
        for index, image in enumerate(processed.generated):
            if image.path is None and image.role is ImageRole.SAMPLE:
                processed.generated[index] = self._save_grid(image, self.to_request(), processed.result)

    @property
    def settings(self) -> Any:
        """The job's settings, overrides included."""
        return self._request.settings.with_changes(self.override_settings)

    def to_request(self) -> GenerationRequest:
        """The frozen request. Raises `InvalidValueError` and `SettingsError` for values that are not allowed."""
        values = self._values(rows_of(type(self._request)))
        values["styles"] = tuple(values["styles"] or ())
        hires = self._values(HIRES_ROWS) if self.enable_hr else None
        checkpoint = self.override_settings.get("sd_model_checkpoint") or self._request.checkpoint
        return replace(
            self._request,
            **values,
            start=self._start(),
            hires=HiresRequest(**hires) if hires is not None else None,
            checkpoint=checkpoint,
            settings=self.settings,
            save_images=not self.do_not_save_samples,
            save_grid=not self.do_not_save_grid,
            extra_params=dict(self.extra_generation_params),
            script=None,
        )

    def _start(self) -> RequestStart:
        return self._request.start


class StableDiffusionProcessingImg2Img(StableDiffusionProcessing):
    """A job that starts from `init_images`, under `image_mask` where that is set; while sampling, `latent_mask` takes
    its place. Masks and latents of a running batch (`init_latent`, `nmask`, `mask`,
    `overlay_images`, `mask_for_overlay`, `paste_to`) are there from the first `process_before_every_sampling` on."""

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

    def __init__(self, request: GenerationRequest, make: Make, *more: Any) -> None:
        super().__init__(request, make, *more)
        assert isinstance(request.start, FromImage)
        start = request.start
        self.init_images: list[Image.Image] = [source.image for source in start.images]
        self.image_mask: Image.Image | None = start.mask.image.image if start.mask else None
        latent = start.mask.latent if start.mask else None
        self.latent_mask: Image.Image | None = latent.image if latent else None
        given = (*start.images, *([start.mask.image] if start.mask else []), *([latent] if latent else []))
        self._known = {id(source.image): source for source in given}
        self._take(start, IMAGE_ROWS)
        self._take(start.mask or Mask(image=start.images[0]), MASK_ROWS)
        self.init_latent: Any = None
        self.nmask: Any = None
        self.mask: Any = None
        self.overlay_images: list[Image.Image] = []
        self.mask_for_overlay: Image.Image | None = None
        self.paste_to: tuple[int, int, int, int] | None = None  # left, top, width, height

    def __copy__(self) -> Self:
        tied = super().__copy__()
        tied.init_images = list(self.init_images)
        return tied

    @property
    def mask_blur(self) -> int | None:
        """The blur of both directions; None where they differ. Setting it sets both."""
        return self.mask_blur_x if self.mask_blur_x == self.mask_blur_y else None

    @mask_blur.setter
    def mask_blur(self, value: int) -> None:
        self.mask_blur_x = self.mask_blur_y = value

    def _start(self) -> RequestStart:
        mask = None
        if self.image_mask is not None:
            values = {row.name: _member(row, getattr(self, row.api)) for row in MASK_ROWS if row.api}
            latent = self._source(self.latent_mask) if self.latent_mask is not None else None
            mask = Mask(image=self._source(self.image_mask), latent=latent, **values)
        values = {row.name: _member(row, getattr(self, row.api)) for row in IMAGE_ROWS if row.api}
        return FromImage(images=tuple(self._source(image) for image in self.init_images), mask=mask, **values)

    def _source(self, image: Image.Image) -> SourceImage:
        """An image with its hash, taken once for those that the job began with."""
        return self._known.get(id(image)) or SourceImage.of(image)


def _member(row: Parameter, value: Any) -> Any:
    """What a script wrote, as the row's own type: 1 and True are members of an enum or a flag."""
    return row.from_api(int(value)) if row.words else value


def job_of(
    request: GenerationRequest,
    make: Make,
    save_grid: SaveGrid | None = None,
    read_styles: Callable[[], StyleBook] = lambda: StyleBook(()),
) -> StableDiffusionProcessing:
    """A request as scripts see it."""
    made = StableDiffusionProcessingImg2Img if isinstance(request.start, FromImage) else StableDiffusionProcessing
    return made(request, make, save_grid, read_styles)


class Processed:
    """Images of a job with their infotexts; grids first."""

    def __init__(self, result: Result) -> None:
        self.generated: list[GeneratedImage] = list(result.images)
        self.result = result

    @classmethod
    def joined(cls, runs: Sequence[Processed]) -> Processed:
        """The images, notices and the end of several runs as one; at least one is needed."""
        notices = dict.fromkeys(note for run in runs for note in run.result.notices)
        interrupted = any(run.interrupted for run in runs)
        whole = cls(replace(runs[0].result, notices=tuple(notices), interrupted=interrupted))
        whole.generated = [image for run in runs for image in run.generated]
        return whole

    def put_grid(self, grid: Image.Image) -> None:
        """Put a grid of the images in front of them; it has the infotext of the first."""
        first = self.generated[0]
        self.generated.insert(0, GeneratedImage(grid, first.infotext, first.seed, first.subseed, role=ImageRole.GRID))

    @property
    def images(self) -> list[Image.Image]:
        """The images' pixels."""
        return [image.image for image in self.generated]

    @property
    def infotexts(self) -> list[str]:
        """What each image says."""
        return [image.infotext for image in self.generated]

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.result.interrupted

    def to_result(self) -> Result:
        """The frozen result; its facts follow the images."""
        samples = [image for image in self.generated if image.role is ImageRole.SAMPLE]
        info = _info_of(self.result.info, samples, [image.infotext for image in self.generated])
        return replace(self.result, images=tuple(self.generated), info=info)


def process_images(p: StableDiffusionProcessing) -> Processed:
    """Make the images of a job as it is now; the hooks of always-on scripts are called."""
    return p._make(p)


def redrawing(p: StableDiffusionProcessing, image: Image.Image, mask: Image.Image) -> StableDiffusionProcessingImg2Img:
    """A job of one image that paints the white of `mask` ("L") in `image` anew, only the masked area, with the prompts
    and parameters of `p`; it saves nothing. A hook of decoded images may give it to `process_images` while `p` is being
    made: the images come back to it and are none of that job's, their steps are not counted, and the script itself does
    not take part.
    """
    request = p.to_request()
    start = FromImage(images=(SourceImage.of(image),), mask=Mask(image=SourceImage.of(mask), full_resolution=True))
    inner = replace(
        request,
        start=start,
        hires=None,
        batch_count=1,
        batch_size=1,
        seed_resize_from_width=0,
        seed_resize_from_height=0,
        refiner_checkpoint=None,
        settings=request.settings.with_changes(
            {"save_init_img": False, "return_mask": False, "return_mask_composite": False, "face_restoration": False}
        ),
        save_images=False,
        save_grid=False,
        extra_params={},
    )
    return StableDiffusionProcessingImg2Img(inner, p._make)


def copy_of(p: Job) -> Job:
    """An independent copy, for changing one thing at a time."""
    return copy.copy(p)


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
