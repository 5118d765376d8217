"""Jobs of the reference UI: `modules.scripts.job.Job` with the names that its extensions read, set and build by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from typing import Any, ClassVar, Self, TypeVar

from PIL import Image

from compat.host import PROCESS
from modules.errors import InvalidValueError
from modules.processing.request.parameters import Parameter
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, GenerationInfo, ImageRole, Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SAMPLERS, EtaSource
from modules.sampling.names import split_legacy_name
from modules.scripts.job import ImageJob, Job, Make, Making, SaveGrid, drawn_seed, no_styles
from modules.scripts.job import PassComputing as PassComputing
from modules.scripts.job import PassStart as PassStart
from modules.scripts.job import Processed as OwnProcessed
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from modules.version import PROGRAM_VERSION

J = TypeVar("J", bound=Job)
_MAKING: ContextVar[Making | None] = ContextVar("making", default=None)


@contextmanager
def making_jobs(one: Making) -> Iterator[None]:
    """While open, jobs that scripts build in this thread are made by `one`."""
    token = _MAKING.set(one)
    try:
        yield
    finally:
        _MAKING.reset(token)


def making_now() -> Making:
    """Return what makes a job that is built now: in a hook the run around it, elsewhere the queue. Raises
    `InvalidValueError` where nothing can."""
    found = _MAKING.get() or PROCESS.making
    if found is None:
        raise InvalidValueError("No images can be made here: no job runs and there is no queue.")
    return found


def making_of_run() -> Making | None:
    """Return what makes the images of the job that runs in this thread; None: none runs."""
    return _MAKING.get()


def model_in_use() -> Any:
    """Return `shared.sd_model`."""
    return import_module("compat.facades.shared").sd_model  # which imports this file


@dataclass
class _HiresTexts:
    """Texts that scripts wrote into a list of the second pass; `shown` is what the list held before."""

    kept: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def copied(self) -> _HiresTexts:
        return _HiresTexts(list(self.kept), list(self.shown))

    def texts(self, text: str, own: Sequence[str]) -> list[str]:
        """The list, made again from the job's one text or the images' own prompts as long as nobody has changed it."""
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


class StableDiffusionProcessing(Job):
    """A job with the reference UI's names. Scripts build jobs of their own by keywords:
    `StableDiffusionProcessingTxt2Img(prompt="a cat", steps=20)`. No script takes part in these, unless `scripts` is set
    to those of another job."""

    def __init__(
        self,
        request: GenerationRequest | Any = None,
        make: Make | None = None,
        save_grid: SaveGrid | None = None,
        read_styles: Callable[[], StyleBook] | None = None,
        **keywords: Any,
    ) -> None:
        """Take a request; or keywords, where the first argument is the model, which is not needed."""
        now = _MAKING.get() or PROCESS.making
        self._is_built = not isinstance(request, GenerationRequest)
        self._hires_texts = (_HiresTexts(), _HiresTexts())
        if self._is_built:
            now = making_now()
            request = self._empty(now.settings())
            save_grid = save_grid or now.save_grid
        super().__init__(
            request,
            make or (now.make if now is not None else _unmade),
            save_grid,
            read_styles or (now.read_styles if now is not None else no_styles),
            now.seeds if now is not None else None,
        )
        self.scripts: Any = None
        """Which scripts take part: `alwayson_scripts`, `selectable_scripts`, each with its `args_from` and `args_to` in
        `script_args`. None: for a job that a script built, none does."""
        self.script_args: Sequence[Any] = []
        self.__dict__.update({name: value for name, value in _unused().items() if name not in self.__dict__})
        for name, value in keywords.items():
            if name not in ("sd_model", "do_not_reload_embeddings"):
                setattr(self, name, value)

    @classmethod
    def _empty(cls, settings: Settings) -> GenerationRequest:
        """Return what a job begins with that is built by keywords: the defaults."""
        return GenerationRequest(settings=settings)

    @property
    def sd_model(self) -> Any:
        """The model in use, by its names alone: what is inside of it lies elsewhere here (docs/extensions.md)."""
        return model_in_use()

    @sd_model.setter
    def sd_model(self, model: Any) -> None:
        """Accepted; the checkpoint of a job is `override_settings["sd_model_checkpoint"]`."""

    @property
    def sd_model_name(self) -> str:
        """The checkpoint's name without suffix."""
        return str(getattr(getattr(model_in_use(), "sd_checkpoint_info", None), "model_name", ""))

    @sd_model_name.setter
    def sd_model_name(self, name: Any) -> None:
        """Accepted; infotexts name the model that made the image."""

    @property
    def sd_model_hash(self) -> str:
        """The first 10 digits of its sha256, "" before that is known."""
        return str(getattr(model_in_use(), "sd_model_hash", "") or "")

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
        """Return that of grids."""
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
        """Return those of negative prompts."""
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

    def _value_of(self, row: Parameter) -> Any:
        value = super()._value_of(row)
        return _plain(row, value) if self._is_built else value

    def __getattr__(self, name: str) -> Any:
        if name in NOT_OF_A_JOB:
            raise AttributeError(f"p.{name} is not supported here: {NOT_OF_A_JOB[name]}", name=name, obj=self)
        known = ", ".join(sorted(one for one in vars(self) if not one.startswith("_")))
        raise AttributeError(f"a job has no {name!r}; known: {known}", name=name, obj=self)

    def __copy__(self) -> Self:
        other = super().__copy__()
        other._hires_texts = (self._hires_texts[0].copied(), self._hires_texts[1].copied())
        return other

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


class StableDiffusionProcessingTxt2Img(StableDiffusionProcessing):
    """A job that starts from noise."""


class StableDiffusionProcessingImg2Img(StableDiffusionProcessing, ImageJob):
    """A job that starts from images."""

    _tab: ClassVar[str] = "img2img"

    def __init__(self, request: Any = None, make: Make | None = None, *more: Any, **keywords: Any) -> None:
        if "mask" in keywords:  # the image, as the reference UI's constructor has it; afterwards the latents' mask
            keywords["image_mask"] = keywords.pop("mask") or keywords.get("image_mask")
        super().__init__(request, make, *more, **keywords)

    @classmethod
    def _empty(cls, settings: Settings) -> GenerationRequest:
        return GenerationRequest(settings=settings, start=FromImage(images=(_NO_IMAGE,)))

    def _take_start(self, request: GenerationRequest) -> None:
        super()._take_start(request)
        if self._is_built:
            self.init_images = []


def job_of(request: GenerationRequest, making: Making) -> StableDiffusionProcessing:
    """Return a request as scripts for the reference UI see it."""
    made = (
        StableDiffusionProcessingImg2Img if isinstance(request.start, FromImage) else StableDiffusionProcessingTxt2Img
    )
    return made(request, making.make, making.save_grid, making.read_styles)


def _unmade(job: Job) -> OwnProcessed:
    raise InvalidValueError("No images can be made here: no job runs and there is no queue.")


def _unused() -> dict[str, Any]:
    """Attributes of the reference UI's jobs that scripts read or set and that decide nothing here."""
    lists: dict[str, Any] = {"cached_c": [None, None, None], "cached_uc": [None, None, None]}
    lists |= {"cached_hr_c": [None, None, None], "cached_hr_uc": [None, None, None]}
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
    """Return the seed as a number; a drawn one for -1, None, "" and what is no number: in a run its next one."""
    now = _MAKING.get()
    return drawn_seed(seed, now.seeds if now is not None else None)


def _plain(row: Parameter, value: Any) -> Any:
    """Return what a script gave by keyword, in the row's type: scripts for the reference UI give None for "as usual",
    numbers as floats, and -1 where 0 is off."""
    if value is None:
        return None if row.is_optional else row.default
    if row.type is int and isinstance(value, float) and value == int(value):
        value = int(value)
    if row.is_clamped and row.low is not None and isinstance(value, int) and value < row.low:
        return int(row.low)
    return value


class Processed(OwnProcessed):
    """Images of a job with their infotexts as the reference UI has them.

    Of a result of the program; or as scripts build it: `Processed(p, images, seed, info)`. `images` and `infotexts` are
    lists that may be changed.
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
            super().__init__(p)
            roles = [image.role for image in p.images]
            self.index_of_first_image = roles.index(ImageRole.SAMPLE) if ImageRole.SAMPLE in roles else 0
            return
        self.job = p
        texts = list(infotexts or ())
        first = fixed_seed(p.seed if seed in (-1, None) else seed)
        lists = (all_seeds or p.all_seeds or p.seeds, all_subseeds or p.all_subseeds or p.subseeds)
        generated = [
            GeneratedImage(
                image,
                texts[index] if index < len(texts) else info,
                fixed_seed(_at(lists[0], index - index_of_first_image, first)),
                fixed_seed(_at(lists[1], index - index_of_first_image, subseed or 0)),
                role=ImageRole.GRID if index < index_of_first_image else ImageRole.SAMPLE,
            )
            for index, image in enumerate(images_list)
        ]
        facts = _facts_of(p, generated, all_prompts, all_negative_prompts)
        super().__init__(Result(images=tuple(generated), info=facts))

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
        """Texts of the images; may be changed as `images`."""
        self._show()
        return self._infotexts

    @infotexts.setter
    def infotexts(self, texts: Sequence[str]) -> None:
        self._show()
        self._infotexts = list(texts)

    def _show(self) -> None:
        """Hand the lists out again where nobody changed them and the images are others by now."""
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
        """Prompt of the first image; so are the next ones."""
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
        """Return what the image at a place says."""
        return self.infotexts[index]

    def js(self) -> str:
        """The facts as JSON, as the API's `info`."""
        facts = {name: getattr(self.result.info, ours) for name, ours in OF_PROCESSED.items()}
        own = {"prompt": self.prompt, "negative_prompt": self.negative_prompt, "seed": self.seed}
        own |= {"subseed": self.subseed, "all_prompts": self.all_prompts, "all_seeds": self.all_seeds}
        own |= {"all_negative_prompts": self.all_negative_prompts, "all_subseeds": self.all_subseeds}
        own |= {"infotexts": self.infotexts, "index_of_first_image": self.index_of_first_image}
        return json.dumps({**facts, **own}, default=list)


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


StableDiffusionProcessing.processed_class = Processed
StableDiffusionProcessing.image_class = StableDiffusionProcessingImg2Img


def process_images(p: Job) -> OwnProcessed:
    """Make the images of a job: in a hook or a script's `run` at once, in a function of the page as a job of the queue,
    which is waited for."""
    return p.make()


def redrawing(p: Job, image: Image.Image, mask: Image.Image) -> ImageJob:
    """See `Job.redrawing`."""
    return p.redrawing(image, mask)


def copy_of(p: J) -> J:
    """Return an independent copy, for changing one thing at a time."""
    return p.replace()
