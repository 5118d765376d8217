"""A job as scripts see it: a mutable object with the reference UI's attribute names, and a way to make its images."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from PIL import Image

from modules.errors import InvalidValueError
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
from modules.sampling.catalog import SAMPLERS, EtaSource
from modules.sampling.names import split_legacy_name, split_names
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from modules.version import PROGRAM_VERSION

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from modules.models.autoencoders.separate_tiles import SeparateTiles

Job = TypeVar("Job", bound="StableDiffusionProcessing")
Make = Callable[["StableDiffusionProcessing"], "Processed"]
"""Makes the images of a job, as it is now."""

SaveGrid = Callable[[GeneratedImage, GenerationRequest, Result], GeneratedImage]
"""Saves a grid and gives it back with its path."""


class SeedDraws:
    """Seeds for -1 in a job: the `recorded` ones, then others that follow from `origin`, so that the job makes the same
    images whenever it is repeated."""

    def __init__(self, origin: object, recorded: Sequence[int] = ()) -> None:
        self._recorded = list(recorded)
        self._chance = random.Random(str(origin))

    def next(self) -> int:
        """The next seed, 0 to 2^32 - 1 where it is drawn."""
        return self._recorded.pop(0) if self._recorded else self._chance.randrange(2**32)


@dataclass(frozen=True)
class Making:
    """What makes the images of jobs that a script builds itself: in a hook the run around it, elsewhere the queue.
    Without `seeds` each -1 draws by chance."""

    make: Make
    settings: Callable[[], Settings]
    save_grid: SaveGrid | None = None
    read_styles: Callable[[], StyleBook] = lambda: StyleBook(())
    model: Callable[[], Any] = lambda: None
    """The model in use as scripts see it."""
    seeds: SeedDraws | None = None


_MAKING: ContextVar[Making | None] = ContextVar("making", default=None)
_ELSEWHERE: list[Making] = []
"""Of this process, where no job runs in the thread that asks."""


@contextmanager
def making(one: Making) -> Iterator[None]:
    """While open, jobs that scripts build in this thread are made by `one`."""
    token = _MAKING.set(one)
    try:
        yield
    finally:
        _MAKING.reset(token)


def make_elsewhere(one: Making) -> None:
    """From now on jobs that are built outside of a run are made by `one`."""
    _ELSEWHERE[:] = [one]


def making_now() -> Making:
    """What makes a job that is built now. Raises `InvalidValueError` where nothing can."""
    found = _MAKING.get() or next(iter(_ELSEWHERE), None)
    if found is None:
        raise InvalidValueError("No images can be made here: no job runs and there is no queue.")
    return found


def making_of_run() -> Making | None:
    """What makes the images of the job that runs in this thread; None: none runs."""
    return _MAKING.get()


@dataclass
class _HiresTexts:
    """What scripts wrote into a list of the second pass's texts; `shown` is what the list held before."""

    kept: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def copied(self) -> _HiresTexts:
        return _HiresTexts(list(self.kept), list(self.shown))

    def texts(self, text: str, own: Sequence[str]) -> list[str]:
        """The list, made anew of the job's one text or the images' own prompts as long as nobody has changed it."""
        if self.kept == self.shown:
            self.shown = [text or prompt for prompt in own]
            self.kept = list(self.shown)
        return self.kept

    def set(self, texts: Sequence[str] | None, text: str, own: Sequence[str]) -> str:
        """Have these texts instead. Returns the job's one text: "" where they are the images' own prompts."""
        texts = list(texts or ())
        if not texts:
            return text
        one = "" if texts == list(own) else texts[0] if len(set(texts)) == 1 else None
        self.kept, self.shown = ([], []) if one is not None else (texts, [])
        return text if one is None else one

    def changed(self, part: slice) -> list[str] | None:
        """The entries of some images; None: nobody has changed the list."""
        return None if self.kept == self.shown else [str(text or "") for text in self.kept[part]]


class StableDiffusionProcessing:
    """One job; change it, then give it to `process_images`. `override_settings` hold for this job only.

    Every parameter with a name in the API is an attribute of that name; below are those that the program itself uses.
    Scripts build jobs of their own by keywords: `StableDiffusionProcessingTxt2Img(prompt="a cat", steps=20)`. No script
    takes part in these, unless `scripts` is set to those of another job.
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
        request: GenerationRequest | Any = None,
        make: Make | None = None,
        save_grid: SaveGrid | None = None,
        read_styles: Callable[[], StyleBook] | None = None,
        **keywords: Any,
    ) -> None:
        """By a request; or by keywords, where the first argument is the model that scripts for the reference UI give,
        which is not needed."""
        now = _MAKING.get() or next(iter(_ELSEWHERE), None)
        is_built = not isinstance(request, GenerationRequest)
        if is_built:
            now = making_now()
            request = self._empty(now.settings())
        assert isinstance(request, GenerationRequest)
        self._request = request
        self._is_built = is_built
        self._make: Make = make or (now.make if now is not None else _unmade)
        self._save_grid = save_grid or (now.save_grid if now is not None and is_built else None)
        self._model: Callable[[], Any] = now.model if now is not None else lambda: None
        self._read_styles = read_styles or (now.read_styles if now is not None else lambda: StyleBook(()))
        self._listed: tuple[list[Any], ...] = ([], [], [], [])
        self._hires_texts = (_HiresTexts(), _HiresTexts())
        self.hr_prompts: list[str] = []
        self.hr_negative_prompts: list[str] = []
        self.before_sampling: Callable[[PassStart], None] | None = None
        """Called before each pass, after the hooks of scripts: for a selected script, which has no hooks of its own."""
        self.is_hr_pass = False
        self.iteration = 0
        self.batch_index = 0  # of the image that `postprocess_image` is called for, in its batch
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
        self.script_values: dict[str, dict[str, Any]] = {}
        """Values of always-on scripts' fields by title and name, instead of those of the form: an axis's."""
        self.vae_tiles: SeparateTiles | None = None
        """How the VAE runs, instead of in one piece or in the exact tiles of the settings."""
        self.extra_generation_params: dict[str, Any] = dict(request.extra_params)
        self.selected_script = request.script
        """The title of the script that makes the images in the program's place; None: none does."""
        self.do_not_save_samples = not request.save_images
        self.do_not_save_grid = not request.save_grid
        self.scripts: Any = None
        """Which scripts take part: `alwayson_scripts`, `selectable_scripts`, each with its `args_from` and `args_to` in
        `script_args`. None: for a job that a script built, none does."""
        self.script_args: Sequence[Any] = []
        self.requested_seed, self.requested_subseed = request.requested_seed, request.requested_subseed
        """What the job was asked for with: -1 for a random one, in whose place `seed` and `subseed` were drawn. A copy
        of the job with -1 gets a seed of its own, which is the same when the job is repeated."""
        self.user = request.user
        self.__dict__.update({name: value for name, value in _unused().items() if name not in self.__dict__})
        self._take_start(request)
        for name, value in keywords.items():
            if name not in ("sd_model", "do_not_reload_embeddings"):
                setattr(self, name, value)

    @classmethod
    def _empty(cls, settings: Settings) -> GenerationRequest:
        """What a job begins with that is built by keywords: the defaults, nothing saved but what is asked for."""
        return GenerationRequest(settings=settings)

    def _take_start(self, request: GenerationRequest) -> None:
        """What the job starts from, as attributes."""

    @property
    def sd_model(self) -> Any:
        """The model in use, by its names alone: what is inside of it lies elsewhere here (docs/extensions.md)."""
        return self._model()

    @sd_model.setter
    def sd_model(self, model: Any) -> None:
        """Accepted; the checkpoint of a job is `override_settings["sd_model_checkpoint"]`."""

    @property
    def sd_model_name(self) -> str:
        """The checkpoint's name without suffix."""
        return str(getattr(getattr(self._model(), "sd_checkpoint_info", None), "model_name", ""))

    @sd_model_name.setter
    def sd_model_name(self, name: Any) -> None:
        """Accepted; infotexts name the model that made the image."""

    @property
    def sd_model_hash(self) -> str:
        """The first 10 digits of its sha256, "" before that is known."""
        return str(getattr(self._model(), "sd_model_hash", "") or "")

    @sd_model_hash.setter
    def sd_model_hash(self, name: Any) -> None:
        """Accepted; infotexts name the model that made the image."""

    @property
    def outpath_samples(self) -> str:
        """The folder of this job's images, as the settings name it. Setting it has them saved there."""
        return self._folder("outdir_samples", self._tab + "_samples")

    @outpath_samples.setter
    def outpath_samples(self, folder: Any) -> None:
        self._name_folder("outdir_samples", self._tab + "_samples", folder)

    @property
    def outpath_grids(self) -> str:
        """The same of grids."""
        return self._folder("outdir_grids", self._tab + "_grids")

    @outpath_grids.setter
    def outpath_grids(self, folder: Any) -> None:
        self._name_folder("outdir_grids", self._tab + "_grids", folder)

    _tab: ClassVar[str] = "txt2img"

    @property
    def sampler_index(self) -> int:
        """The sampler's place in `sd_samplers.samplers`. Setting it, or a name, sets `sampler_name`."""
        return list(SAMPLERS).index(self._chosen_sampler())

    @sampler_index.setter
    def sampler_index(self, index: Any) -> None:
        names = list(SAMPLERS)
        if isinstance(index, int) and 0 <= index < len(names):
            self.sampler_name = names[index]
        elif isinstance(index, str) and index:
            self.sampler_name = index

    def _folder(self, key: str, tab: str) -> str:
        return str(self.settings.text(key) or self.settings.text(f"outdir_{tab}"))

    def _name_folder(self, key: str, tab: str, folder: Any) -> None:
        if folder and str(folder) != self._folder(key, tab):
            self.override_settings[key if self.settings.text(key) else f"outdir_{tab}"] = str(folder)

    @property
    def all_hr_prompts(self) -> list[str]:
        """The prompts of the second pass, an entry for each image of the job, which may be changed in place. Each image
        gets its own."""
        return self._hires_texts[0].texts(self.hr_prompt, self.all_prompts)

    @all_hr_prompts.setter
    def all_hr_prompts(self, prompts: Sequence[str] | None) -> None:
        self.hr_prompt = self._hires_texts[0].set(prompts, self.hr_prompt, self.all_prompts)

    @property
    def all_hr_negative_prompts(self) -> list[str]:
        """The same of negative prompts."""
        return self._hires_texts[1].texts(self.hr_negative_prompt, self.all_negative_prompts)

    @all_hr_negative_prompts.setter
    def all_hr_negative_prompts(self, prompts: Sequence[str] | None) -> None:
        self.hr_negative_prompt = self._hires_texts[1].set(prompts, self.hr_negative_prompt, self.all_negative_prompts)

    def hires_texts_of(self, part: slice) -> tuple[list[str], list[str]]:
        """The prompts and negative prompts of the second pass of these images of the job, "" for the first pass's."""
        count = len(self.all_prompts[part])
        own = self.hr_prompt or "", self.hr_negative_prompt or ""
        found = [kept.changed(part) for kept in self._hires_texts]
        first, second = (texts if texts is not None else [text] * count for texts, text in zip(found, own, strict=True))
        return first, second

    @property
    def restore_faces(self) -> bool:
        """Whether faces are restored, by the model of the settings."""
        return bool(self.settings.face_restoration.face_restoration)

    @restore_faces.setter
    def restore_faces(self, value: Any) -> None:
        if value is not None:
            self.override_settings["face_restoration"] = bool(value)

    @property
    def main_prompt(self) -> str:
        """The prompt that infotexts show first."""
        return self.all_prompts[0] if self.all_prompts else self.prompt

    @main_prompt.setter
    def main_prompt(self, text: Any) -> None:
        """Accepted; `prompt` and `all_prompts` say what is made."""

    def comment(self, text: str) -> None:
        """A sentence for the user, shown with the result."""
        self.comments[str(text)] = 1

    def close(self) -> None:
        """Nothing is held that would have to be freed."""

    def clear_prompt_cache(self) -> None:
        """Encoded prompts are kept by what they depend on; there is nothing to clear."""

    def get_token_merging_ratio(self, for_hr: bool = False) -> float:
        """The ratio of the settings for a pass."""
        options = self.settings.optimizations
        if hasattr(self, "init_images"):
            own = 0.0 if self.override_settings.get("token_merging_ratio") else options.token_merging_ratio_img2img
        else:
            own = options.token_merging_ratio_hr if for_hr else 0.0
        return float(own or options.token_merging_ratio)

    def setup_prompts(self) -> None:
        """Fill `all_prompts` and the like."""
        self.list_images()

    def takes_script(self, script: Any) -> bool:
        """Whether an always-on script takes part in this job."""
        if self.scripts is None:
            return not self._is_built
        return any(one is script for one in getattr(self.scripts, "alwayson_scripts", ()))

    def changed_args(self, script: Any) -> Sequence[Any] | None:
        """The arguments of a script as they now stand in `script_args`; None where they do not stand there."""
        begin, end = script.args_from, script.args_to
        if self.scripts is None or begin is None or end is None or len(self.script_args or ()) < end:
            return None
        return self.script_args[begin:end]

    def for_queue(self) -> GenerationRequest:
        """The request as it is put in line: with the scripts that take part in it, and their arguments."""
        taking_part = list(getattr(self.scripts, "alwayson_scripts", ()))
        args = {script.title(): tuple(self.changed_args(script) or ()) for script in taking_part}
        return replace(self.to_request(), alwayson_args=args, runs_scripts=self.scripts is not None)

    def fix_seeds(self) -> None:
        """Draw seeds where none is given (-1, None or "")."""
        self.seed = fixed_seed(self.seed)
        self.subseed = fixed_seed(self.subseed)

    def _take(self, part: object, rows: Iterable[Parameter]) -> None:
        for row in rows:
            if row.api:
                setattr(self, row.api, getattr(part, row.name))

    def _values(self, rows: Iterable[Parameter]) -> dict[str, Any]:
        values = {row.name: getattr(self, row.api) for row in rows if row.api}
        return values if not self._is_built else {row.name: _plain(row, values[row.name]) for row in rows if row.api}

    def __getattr__(self, name: str) -> Any:
        if name in NOT_OF_A_JOB:
            raise AttributeError(f"p.{name} is not supported here: {NOT_OF_A_JOB[name]}", name=name, obj=self)
        known = ", ".join(sorted(one for one in vars(self) if not one.startswith("_")))
        raise AttributeError(f"a job has no {name!r}; known: {known}", name=name, obj=self)

    def __copy__(self) -> Self:
        tied = object.__new__(type(self))
        tied.__dict__.update(self.__dict__)
        tied._hires_texts = (self._hires_texts[0].copied(), self._hires_texts[1].copied())
        tied.override_settings = dict(self.override_settings)
        tied.script_values = {title: dict(values) for title, values in self.script_values.items()}
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
        overrides: Mapping[str, Any] = self.override_settings or {}
        if self._is_built:  # scripts for the reference UI name settings that there are not
            overrides = {key: value for key, value in overrides.items() if key in SETTINGS}
        own = {key: getattr(self, key) for key in PER_JOB_SETTINGS if getattr(self, key) is not None}
        if self.eta is not None and (source := SAMPLERS.get(self._chosen_sampler()).eta) is not EtaSource.NONE:
            own[source.value] = self.eta
        return self._request.settings.with_changes({**overrides, **own})

    @settings.setter
    def settings(self, values: Any) -> None:
        """Accepted, for scripts that write back every attribute they read; `override_settings` changes settings."""

    def _chosen_sampler(self) -> str:
        name = self.sampler_name or self._request.sampler
        return name if name in SAMPLERS else split_legacy_name(name)[0]

    def as_values(self) -> dict[str, Any]:
        """What the request's own parameters are now, by name and unchecked."""
        return split_names(self._values(rows_of(type(self._request))))

    def to_request(self) -> GenerationRequest:
        """The frozen request. Raises `InvalidValueError` and `SettingsError` for values that are not allowed."""
        values = self.as_values()
        values["styles"] = tuple(values["styles"] or ())
        hires = split_names(self._values(HIRES_ROWS)) if self.enable_hr else None
        checkpoint = (self.override_settings or {}).get("sd_model_checkpoint") or self._request.checkpoint
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


class StableDiffusionProcessingTxt2Img(StableDiffusionProcessing):
    """A job that starts from noise. `reference_images` are shown to models that edit."""

    def _take_start(self, request: GenerationRequest) -> None:
        self.reference_images: list[Image.Image] = [source.image for source in request.start.references]
        self._known = {id(source.image): source for source in request.start.references}

    def __copy__(self) -> Self:
        tied = super().__copy__()
        tied.reference_images = list(self.reference_images)
        return tied

    def _start(self) -> RequestStart:
        return FromNoise(tuple(self._known.get(id(image)) or SourceImage.of(image) for image in self.reference_images))


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

    def __init__(self, request: Any = None, make: Make | None = None, *more: Any, **keywords: Any) -> None:
        if "mask" in keywords:  # the image, as the reference UI's constructor has it; afterwards the latents' mask
            keywords["image_mask"] = keywords.pop("mask") or keywords.get("image_mask")
        super().__init__(request, make, *more, **keywords)

    @classmethod
    def _empty(cls, settings: Settings) -> GenerationRequest:
        return GenerationRequest(settings=settings, start=FromImage(images=(_NO_IMAGE,)))

    def _take_start(self, request: GenerationRequest) -> None:
        start = request.start
        assert isinstance(start, FromImage)
        self.init_images: list[Image.Image] = [] if self._is_built else [source.image for source in start.images]
        self.image_mask: Image.Image | None = start.mask.image.image if start.mask else None
        latent = start.mask.latent if start.mask else None
        self.latent_mask: Image.Image | None = latent.image if latent else None
        self.reference_images: list[Image.Image] = [source.image for source in start.references]
        masks = (*([start.mask.image] if start.mask else []), *([latent] if latent else []))
        given = (*start.images, *start.references, *masks)
        self._known = {id(source.image): source for source in given}
        self._take(start, IMAGE_ROWS)
        self._take(start.mask or Mask(image=start.images[0]), MASK_ROWS)
        self.init_latent: Any = None
        self.nmask: Any = None
        self.mask: Any = None
        self.overlay_images: list[Image.Image] = []
        self.mask_for_overlay: Image.Image | None = None
        self.paste_to: tuple[int, int, int, int] | None = None  # left, top, width, height

    _tab: ClassVar[str] = "img2img"

    def __copy__(self) -> Self:
        tied = super().__copy__()
        tied.init_images, tied.reference_images = list(self.init_images), list(self.reference_images)
        return tied

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
            values = {row.name: _member(row, self._plain_of(row)) for row in MASK_ROWS if row.api}
            latent = self._source(self.latent_mask) if self.latent_mask is not None else None
            mask = Mask(image=self._source(self.image_mask), latent=latent, **values)
        values = {row.name: _member(row, self._plain_of(row)) for row in IMAGE_ROWS if row.api}
        images, references = (
            tuple(self._source(image) for image in found) for found in (self.init_images, self.reference_images)
        )
        return FromImage(images=images, references=references, mask=mask, **values)

    def _plain_of(self, row: Parameter) -> Any:
        value = getattr(self, row.api)
        return _plain(row, value) if self._is_built else value

    def _source(self, image: Image.Image) -> SourceImage:
        """An image with its hash, taken once for those that the job began with."""
        return self._known.get(id(image)) or SourceImage.of(image)


def _unmade(job: StableDiffusionProcessing) -> Processed:
    raise InvalidValueError("No images can be made here: no job runs and there is no queue.")


def _unused() -> dict[str, Any]:
    """Attributes of the reference UI's jobs that scripts read or set and that decide nothing here."""
    lists: dict[str, Any] = {"cached_c": [None, None, None], "cached_uc": [None, None, None]}
    lists |= {"cached_hr_c": [None, None, None], "cached_hr_uc": [None, None, None], "comments": {}}
    names: tuple[str, ...] = (
        "sampler",
        "rng",
        "color_corrections",
        "eta",
        "s_churn",
        "s_tmin",
        "s_tmax",
        "s_noise",
        "s_min_uncond",
    )
    names += ("c", "uc", "hr_c", "hr_uc", "extra_network_data", "prompt_for_display", "image_conditioning")
    names += ("ddim_discretize", "token_merging_ratio", "token_merging_ratio_hr", "modified_noise", "token_counter")
    names += ("latents_after_sampling", "pixels_after_sampling", "firstphase_width", "firstphase_height")
    names += ("sampler_noise_scheduler_override", "refiner_checkpoint_info", "sd_vae_name", "sd_vae_hash")
    flags = ("is_api", "do_not_reload_embeddings", "disable_extra_networks", "is_using_inpainting_conditioning")
    lists |= {"override_settings_restore_afterwards": True, "initial_noise_multiplier": None}
    return {**lists, **dict.fromkeys(names), **dict.fromkeys(flags, False)}


PER_JOB_SETTINGS = ("s_min_uncond", "s_churn", "s_tmin", "s_tmax", "s_noise")
"""Settings that scripts may set at the job itself."""
NOT_OF_A_JOB = {
    "sample": "a pass is not called by scripts; change p and give it to process_images(p).",
    "init": "images are encoded by the program; set p.init_images and give p to process_images(p).",
    "setup_conds": "prompts are encoded by the program; p.prompts may be changed in before_process_batch.",
    "get_conds": "prompts are encoded by the program; on_cfg_denoiser has them as text_cond and text_uncond.",
    "txt2img_image_conditioning": "on_cfg_denoiser has what an inpainting model sees, as image_cond.",
    "img2img_image_conditioning": "on_cfg_denoiser has what an inpainting model sees, as image_cond.",
    "sample_hr_pass": "the second pass is not called by scripts; set p.enable_hr.",
}
"""What scripts for the reference UI ask of a job and cannot have, with what to do instead."""
_NO_IMAGE = SourceImage.of(Image.new("RGB", (64, 64)))


def fixed_seed(seed: Any) -> int:
    """The seed as a number; a drawn one for -1, None, "" and what is no number: in a run the next of its seeds."""
    try:
        number = int(seed)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number >= 0:
        return number
    now = _MAKING.get()
    return now.seeds.next() if now is not None and now.seeds is not None else random.SystemRandom().randrange(2**32)


def _plain(row: Parameter, value: Any) -> Any:
    """What a script gave by keyword, in the row's type: scripts for the reference UI give None for "as usual", numbers
    as floats, and -1 where 0 is off."""
    if value is None:
        return None if row.is_optional else row.default
    if row.type is int and isinstance(value, float) and value == int(value):
        value = int(value)
    if row.is_clamped and row.low is not None and isinstance(value, int) and value < row.low:
        return int(row.low)
    return value


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
    made = (
        StableDiffusionProcessingImg2Img if isinstance(request.start, FromImage) else StableDiffusionProcessingTxt2Img
    )
    return made(request, make, save_grid, read_styles)


class Processed:
    """Images of a job with their infotexts; grids first.

    Of a result of the program; or as scripts for the reference UI build it: `Processed(p, images, seed, info)`.
    `images` and `infotexts` are lists that may be changed.
    """

    def __init__(
        self,
        p: Result | StableDiffusionProcessing,
        images_list: Sequence[Image.Image] = (),
        seed: Any = -1,
        info: str = "",
        subseed: Any = None,
        all_prompts: Sequence[str] | None = None,
        all_negative_prompts: Sequence[str] | None = None,
        all_seeds: Sequence[int] | None = None,
        all_subseeds: Sequence[int] | None = None,
        index_of_first_image: int = 0,
        infotexts: Sequence[str] | None = None,
        comments: str = "",
        **unused: Any,
    ) -> None:
        self.index_of_first_image = index_of_first_image
        self.comments = comments
        self.extra_images: list[Image.Image] = []
        self.job: StableDiffusionProcessing | None = None
        self._images: list[Image.Image] = []
        self._infotexts: list[str] = []
        self._shown: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())  # what was handed out
        if isinstance(p, Result):
            self.result = p
            self.generated: list[GeneratedImage] = list(p.images)
            roles = [image.role for image in p.images]
            self.index_of_first_image = roles.index(ImageRole.SAMPLE) if ImageRole.SAMPLE in roles else 0
            return
        self.job = p
        texts = list(infotexts or ())
        first = fixed_seed(p.seed if seed in (-1, None) else seed)
        lists = (all_seeds or p.all_seeds or p.seeds, all_subseeds or p.all_subseeds or p.subseeds)
        self.generated = [
            GeneratedImage(
                image,
                texts[index] if index < len(texts) else info,
                fixed_seed(_at(lists[0], index - index_of_first_image, first)),
                fixed_seed(_at(lists[1], index - index_of_first_image, subseed or 0)),
                role=ImageRole.GRID if index < index_of_first_image else ImageRole.SAMPLE,
            )
            for index, image in enumerate(images_list)
        ]
        facts = _facts_of(p, self.generated, all_prompts, all_negative_prompts)
        self.result = Result(images=tuple(self.generated), info=facts)

    @classmethod
    def joined(cls, runs: Sequence[Processed]) -> Processed:
        """The images, notices and the end of several runs as one; at least one is needed."""
        notices = dict.fromkeys(note for run in runs for note in run.result.notices)
        interrupted = any(run.interrupted for run in runs)
        whole = cls(replace(runs[0].result, notices=tuple(notices), interrupted=interrupted))
        whole.generated = [image for run in runs for image in run.taken()]
        return whole

    def put_grid(self, grid: Image.Image) -> None:
        """Put a grid of the images in front of them; it has the infotext of the first."""
        self.taken()
        first = self.generated[0]
        self.generated.insert(0, GeneratedImage(grid, first.infotext, first.seed, first.subseed, role=ImageRole.GRID))

    @property
    def images(self) -> list[Image.Image]:
        """The images' pixels; what is put into the list or taken out of it holds."""
        self._show()
        return self._images

    @images.setter
    def images(self, images: Sequence[Image.Image]) -> None:
        self._show()
        self._images = list(images)

    @property
    def infotexts(self) -> list[str]:
        """What each image says; may be changed as `images`."""
        self._show()
        return self._infotexts

    @infotexts.setter
    def infotexts(self, texts: Sequence[str]) -> None:
        self._show()
        self._infotexts = list(texts)

    def _show(self) -> None:
        """Hand the lists out anew where nobody changed them and the images are others by now."""
        now = self._standing()
        if self._shown != now and self._shown == (tuple(map(id, self._images)), tuple(self._infotexts)):
            self._images[:] = [image.image for image in self.generated]
            self._infotexts[:] = [image.infotext for image in self.generated]
            self._shown = now

    def _standing(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        images = self.generated
        return tuple(id(image.image) for image in images), tuple(image.infotext for image in images)

    def taken(self) -> list[GeneratedImage]:
        """The images as scripts left them: what they changed in `images` and `infotexts` is taken over."""
        if self._shown != (tuple(map(id, self._images)), tuple(self._infotexts)):
            known = {id(image.image): image for image in self.generated}
            before = list(self.generated)
            self.generated = [self._taken(known, before, place) for place in range(len(self._images))]
            self._shown = self._standing()
            self._infotexts[:] = [image.infotext for image in self.generated]
        return self.generated

    def _taken(
        self, known: Mapping[int, GeneratedImage], before: Sequence[GeneratedImage], place: int
    ) -> GeneratedImage:
        image = self._images[place]
        found = known.get(id(image))
        fits = len(self._infotexts) == len(self._images)
        if found is not None:
            return replace(found, infotext=self._infotexts[place]) if fits else found
        near = before[min(place, len(before) - 1)] if before else None
        text = self._infotexts[place] if fits else near.infotext if near else ""
        if near is not None and len(self._images) == len(before):  # put in its place
            return replace(near, image=image, infotext=text, path=None)
        role = ImageRole.GRID if place < self.index_of_first_image else ImageRole.SAMPLE
        return GeneratedImage(image, text, near.seed if near else 0, near.subseed if near else 0, role=role)

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.result.interrupted

    def __setattr__(self, name: str, value: Any) -> None:
        """Scripts for the reference UI write some of the facts below; who reads them gets what was written."""
        if name in FACTS_OF_PROCESSED:
            self.__dict__.setdefault("_written", {})[name] = value
        else:
            object.__setattr__(self, name, value)

    def _fact(self, name: str, value: Any) -> Any:
        return self.__dict__.get("_written", {}).get(name, value)

    @property
    def info(self) -> str:
        """The infotext of the first image."""
        return str(self._fact("info", self.generated[0].infotext if self.generated else ""))

    @property
    def all_prompts(self) -> list[str]:
        """The prompt of each image, grids excluded; the next ones are the same of their attributes."""
        return list(self._fact("all_prompts", self.result.info.prompts))

    @property
    def all_negative_prompts(self) -> list[str]:
        return list(self._fact("all_negative_prompts", self.result.info.negative_prompts))

    @property
    def all_seeds(self) -> list[int]:
        return list(self._fact("all_seeds", self.result.info.seeds))

    @property
    def all_subseeds(self) -> list[int]:
        return list(self._fact("all_subseeds", self.result.info.subseeds))

    @property
    def prompt(self) -> str:
        """Of the first image, as the next ones."""
        return str(self._fact("prompt", next(iter(self.result.info.prompts), "")))

    @property
    def negative_prompt(self) -> str:
        return str(self._fact("negative_prompt", next(iter(self.result.info.negative_prompts), "")))

    @property
    def seed(self) -> int:
        return int(self._fact("seed", next(iter(self.result.info.seeds), 0)))

    @property
    def subseed(self) -> int:
        return int(self._fact("subseed", next(iter(self.result.info.subseeds), 0)))

    def __getattr__(self, name: str) -> Any:
        """Facts of the job under the reference UI's names."""
        ours = OF_PROCESSED.get(name)
        if ours is None or "result" not in self.__dict__:
            raise AttributeError(f"Processed has no {name!r}; known: {', '.join(OF_PROCESSED)}", name=name, obj=self)
        return getattr(self.result.info, ours)

    def infotext(self, p: Any, index: int) -> str:
        """What the image at a place says."""
        return self.infotexts[index]

    def js(self) -> str:
        """The facts as JSON, as the API's `info`."""
        facts = {name: getattr(self.result.info, ours) for name, ours in OF_PROCESSED.items()}
        own = {"prompt": self.prompt, "negative_prompt": self.negative_prompt, "seed": self.seed}
        own |= {"subseed": self.subseed, "all_prompts": self.all_prompts, "all_seeds": self.all_seeds}
        own |= {"all_negative_prompts": self.all_negative_prompts, "all_subseeds": self.all_subseeds}
        own |= {"infotexts": self.infotexts, "index_of_first_image": self.index_of_first_image}
        return json.dumps({**facts, **own}, default=list)

    def to_result(self) -> Result:
        """The frozen result; its facts follow the images."""
        self.taken()
        samples = [image for image in self.generated if image.role is ImageRole.SAMPLE]
        info = _info_of(self.result.info, samples, [image.infotext for image in self.generated])
        return replace(self.result, images=tuple(self.generated), info=info)


_LISTS_OF_PROCESSED = ("all_prompts", "all_negative_prompts", "all_seeds", "all_subseeds")
FACTS_OF_PROCESSED = frozenset(("info", "prompt", "negative_prompt", "seed", "subseed", *_LISTS_OF_PROCESSED))
"""Attributes of `Processed` that are read from the result until a script writes them."""
OF_PROCESSED = {
    **{name: name for name in ("subseed_strength", "width", "height", "cfg_scale", "steps", "batch_size", "styles")},
    **{name: name for name in ("denoising_strength", "job_timestamp", "clip_skip", "version")},
    "sampler_name": "sampler",
    "seed_resize_from_w": "seed_resize_from_width",
    "seed_resize_from_h": "seed_resize_from_height",
    "sd_model_name": "checkpoint_name",
    "sd_model_hash": "checkpoint_hash",
    "sd_vae_name": "vae_name",
    "sd_vae_hash": "vae_hash",
    "extra_generation_params": "extra_params",
}
"""Attributes of `Processed` that are facts of the result, under our names for them."""


def _at(values: Sequence[Any], index: int, default: Any) -> Any:
    return values[index] if 0 <= index < len(values) else default


def _facts_of(
    p: StableDiffusionProcessing,
    images: Sequence[GeneratedImage],
    prompts: Sequence[str] | None,
    negatives: Sequence[str] | None,
) -> GenerationInfo:
    """The facts of images that a script made itself, as far as its job has them."""
    values = p.as_values()  # unchecked: scripts set the counts to 0 when they are done
    samples = [image for image in images if image.role is ImageRole.SAMPLE]
    return GenerationInfo(
        prompts=tuple(prompts or p.all_prompts or (p.prompt,)),
        negative_prompts=tuple(negatives or p.all_negative_prompts or (p.negative_prompt,)),
        seeds=tuple(image.seed for image in samples),
        subseeds=tuple(image.subseed for image in samples),
        subseed_strength=values["subseed_strength"],
        width=values["width"],
        height=values["height"],
        sampler=values["sampler"],
        scheduler=values["scheduler"],
        cfg_scale=values["cfg_scale"],
        steps=values["steps"],
        batch_size=values["batch_size"],
        checkpoint_name=p.sd_model_name,
        checkpoint_hash=p.sd_model_hash,
        vae_name=None,
        vae_hash=None,
        seed_resize_from_width=values["seed_resize_from_width"],
        seed_resize_from_height=values["seed_resize_from_height"],
        denoising_strength=getattr(p, "denoising_strength", None),
        extra_params=dict(p.extra_generation_params),
        infotexts=tuple(image.infotext for image in images),
        styles=tuple(values["styles"] or ()),
        job_timestamp=datetime.now().astimezone().strftime("%Y%m%d%H%M%S"),
        clip_skip=p.settings.stable_diffusion.CLIP_stop_at_last_layers,
        version=PROGRAM_VERSION,
    )


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
    job = StableDiffusionProcessingImg2Img(inner, p._make)
    job.script_values = p.script_values
    return job


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
