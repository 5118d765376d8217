"""The results of a job while it runs: images with infotext, hashes and files, the grid, and in the end the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from PIL import Image
from torch import Tensor

from modules.adapters.applying import Retention
from modules.images.grid import fits_grid, grid_rows, image_grid
from modules.memory.timeline import MemoryRecord
from modules.models.files.catalogue import CheckpointInfo
from modules.models.files.pieces import first_piece
from modules.processing.engine.adapters import ActiveAdapters
from modules.processing.engine.engine import Engine
from modules.processing.engine.lease import ModelInUse
from modules.processing.engine.pixels import to_images
from modules.processing.record.describe import Facts, extra_fields, infotext, main_fields, of_image, schedule_label
from modules.processing.record.made import GRID_KEY, Made, sample_key
from modules.processing.record.output import Output, denoising_strength_of, name_context
from modules.processing.request.batch import Batch, draft_of
from modules.processing.request.events import Events
from modules.processing.request.hooks import Grid, Hooks
from modules.processing.request.pass_settings import Used
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, GenerationInfo, ImageRole, Result
from modules.processing.request.source_images import FromImage
from modules.processing.request.stages import Stage
from modules.sampling.catalog import SAMPLERS
from modules.system.texts import page_text
from modules.version import PROGRAM_VERSION


class Finishing(Protocol):
    """The part of a start that a recorder uses; see `Start`."""

    def finish(self, image: Image.Image, index: int, hooks: Hooks) -> Image.Image:
        """The finished image."""

    def by_products(self, image: Image.Image, index: int) -> Iterator[tuple[ImageRole, Image.Image]]:
        """Yield the other images of an image as it was decoded."""


class Recorder:
    """The recorder of one job. It computes nothing of the images; it receives what happened and what was decoded.

    `made`: what an earlier try has finished. Such an image is in the result as it was, and nothing is saved again.
    """

    def __init__(
        self,
        request: GenerationRequest,
        engine: Engine,
        in_use: ModelInUse,
        output: Output,
        events: Events,
        hooks: Hooks,
        made: Made,
    ) -> None:
        self._made = made
        self._request = request
        self._engine = engine
        self._in_use = in_use
        self._output = output
        self._events = events
        self._hooks = hooks
        self._began = datetime.now().astimezone()
        self._batches: dict[int, Batch] = {}  # by number: those that have begun
        self._facts = Facts(extra=dict(request.extra_params))
        self._titled: dict[str, CheckpointInfo] = {}  # named in the infotext, by field
        self._retention: Retention | None = None
        self._notices: dict[str, None] = {}  # in order
        self._images: list[GeneratedImage] = []
        self._added_tags = ""  # of adapters in the settings, as they would be typed
        self.interrupted = False

    # -- what happened -------------------------------------------------------------------------------------------------

    def note(self, *notices: str) -> None:
        """Sentences for the user, each said once."""
        self._notices |= dict.fromkeys(notice for notice in notices if notice)

    def fields(self, fields: Mapping[str, object]) -> None:
        """Add fields to the infotext of all images."""
        self._facts.extra |= fields

    def begin(self, batch: Batch) -> None:
        """A batch is as it is given here from now on."""
        self._batches[batch.number] = batch

    def adapters(self, active: ActiveAdapters, texts: list[str]) -> None:
        """Adapters are on the model, for a batch with these texts."""
        self._retention = active.retention
        self._added_tags = self._added_tags or active.added_tags  # a second pass may have its own tags
        self._facts.extra |= active.fields
        self.note(*active.notices)
        if not self._request.settings.extra_networks.textual_inversion_add_hashes_to_infotext:
            return
        found = self._in_use.conditioner.embeddings_in(*texts)
        used = [item for item in found if not (item.bundled_in and item.name in active.unrecorded)]
        if used:
            self._facts.extra["TI hashes"] = ", ".join(f"{item.name}: {item.short_hash}" for item in used)

    def checkpoint(self, field: str, fields: Mapping[str, object]) -> None:
        """The checkpoint now in use takes part and is named in `field`; `fields` follow it."""
        info = self._in_use.model.info
        self._titled[field] = info
        self._facts.extra |= {field: info.short_title, **fields}

    def used(self, used: Used) -> None:
        """Guidance made use of this."""
        self._facts.used |= used

    # -- images --------------------------------------------------------------------------------------------------------

    def image(self, decoded: Tensor, batch: Batch, index: int, start: Finishing, is_finished: bool = True) -> None:
        """An image [1,3,H,W] in -1..1 of a batch: pixels, infotext, file. One that is not finished is saved only where
        a setting says so."""
        if self.restore(batch.number, index):
            return
        self._events.stage(Stage.SAVE)
        (image,) = self._in_use.model.recovery.run(Stage.SAVE, lambda: to_images(decoded))
        if self._request.settings.face_restoration.face_restoration and is_finished:
            image = self._with_restored_faces(image, batch, index)
        image = self._hooks.image(image, index)
        raw, image = image, start.finish(image, index, self._hooks)
        image = self._hooks.composited(image, index)
        key = sample_key(batch.number, index)
        generated = replace(self._described(image, batch, index), is_finished=is_finished, key=key)
        settings = self._request.settings
        is_wanted = is_finished or settings.saving.save_incomplete_images
        saves = is_wanted and self._request.save_images and settings.saving.samples_save
        if saves:
            generated = self._saved(generated, batch.number, index)
        self._images.append(generated)
        self._events.finished_image(generated)
        self._by_products(raw, generated, batch, index, start, saves)

    def _by_products(
        self, raw: Image.Image, finished: GeneratedImage, batch: Batch, index: int, start: Finishing, saves: bool
    ) -> None:
        """Mask and the like of an image, where settings want them saved or shown."""
        saving, settings = self._request.settings.saving, self._request.settings.img2img
        wanted = {  # saved, shown
            ImageRole.MASK: (saving.save_mask, settings.return_mask),
            ImageRole.MASK_COMPOSITE: (saving.save_mask_composite, settings.return_mask_composite),
            ImageRole.BEFORE_COLOR_CORRECTION: (saving.save_images_before_color_correction, False),
        }
        if not any(any(pair) for pair in wanted.values()):
            return
        for role, image in start.by_products(raw, index):
            is_saved, is_shown = wanted[role]
            key = sample_key(batch.number, index, f"-{role}")
            extra = replace(finished, image=image, role=role, path=None, key=key)
            if is_saved and saves:
                extra = self._saved(extra, batch.number, index, f"-{role}")
            if is_shown:
                self._images.append(extra)

    def sources(self) -> None:
        """Save the images that the job starts from, where a setting says so: once each, named by their content."""
        start = self._request.start
        if not self._request.settings.saving.save_init_img or not isinstance(start, FromImage):
            return
        for source in dict.fromkeys(start.images):
            self.note(self._output.save_source(source, self._request) or "")

    def has_all(self, batch: Batch) -> bool:
        """Whether an earlier try has finished all images of this batch."""
        return all(sample_key(batch.number, index) in self._made for index in range(len(batch.seeds)))

    def restore(self, batch: int, index: int) -> bool:
        """Take an image of an earlier try into the result. False where there is none."""
        found = self._made.get(sample_key(batch, index))
        if found is None:
            return False
        image = found.read()
        if image is None:
            self.note(page_text(f"An earlier try of this job has made {found.path.name}, which is no longer there."))
        else:
            self._images.append(image)
        return True

    def _with_restored_faces(self, image: Image.Image, batch: Batch, index: int) -> Image.Image:
        """Faces restored as the settings say, and a copy of the image before saved where they want that."""
        settings = self._request.settings
        if settings.saving.save_images_before_face_restoration and self._request.save_images:
            described = self._described(image, batch, index)
            self._saved(described, batch.number, index, "-before-face-restoration")
        self._events.stage(Stage.FACES)

        def on_face(_: int, __: int) -> None:
            self._events.check()

        options = settings.face_restoration

        def restored() -> Image.Image:
            return self._engine.faces.restore(
                image,
                options.face_restoration_model,
                options.code_former_weight,
                on_face,
                unload=options.face_restoration_unload,
            )

        result = self._in_use.model.recovery.run(Stage.FACES, restored)
        self._events.stage(Stage.SAVE)
        return result

    def before_hires(self, decoded: Tensor, batch: Batch, index: int) -> None:
        """Save an image [1,3,H,W] of the first pass, before the second."""
        suffix = "-before-highres-fix"
        key = sample_key(batch.number, index, suffix)
        if key in self._made:
            return
        (image,) = self._in_use.model.recovery.run(Stage.SAVE, lambda: to_images(decoded))
        self._saved(replace(self._described(image, batch, index), key=key), batch.number, index, suffix)

    def add_grid(self) -> None:
        """A grid of several samples, first in the list."""
        settings = self._request.settings
        images = [image.image for image in self._images if image.role is ImageRole.SAMPLE]
        wanted = settings.gallery.return_grid or settings.saving.grid_save
        if not self._request.save_grid or not wanted or not images:
            return
        if (len(images) < 2 and settings.saving.grid_only_if_multiple) or not fits_grid(images, settings):
            return
        made = self._made.get(GRID_KEY)
        if made is not None:
            self._insert_grid(made.read())
            return
        sheet = Grid(images, grid_rows(len(images), settings, self._request.batch_size))
        self._hooks.sheet(sheet)
        first = self._images[0]
        grid = GeneratedImage(
            image_grid(sheet.images, sheet.rows),
            first.infotext,
            first.seed,
            first.subseed,
            role=ImageRole.GRID,
            key=GRID_KEY,
        )
        if settings.saving.grid_save:
            grid = self._saved(grid, 0, 0)
        self._insert_grid(grid)

    def _insert_grid(self, grid: GeneratedImage | None) -> None:
        if grid is not None and self._request.settings.gallery.return_grid:
            self._images.insert(0, grid)

    def _described(self, image: Image.Image, batch: Batch, index: int) -> GeneratedImage:
        """An image with its infotext; where hooks made more images than there were seeds, those begin again."""
        index %= len(batch.seeds)
        seed, subseed = batch.seeds[index], batch.subseeds[index]
        facts, model = self._facts, self._in_use.model
        facts.extra |= self._hooks.extra_params()
        self._take_hashes()
        recovered = self._in_use.recovered
        if recovered:
            facts.extra["Memory recovery"] = recovered
        optional = model.family.texts.optional
        if optional is not None and model.has_optional:
            facts.extra[optional.field] = True
        if self._in_use.has_merged_tokens:
            facts.used |= Used.MERGED_TOKENS
        prompt, negative = batch.prompts[index].shown + self._added_tags, batch.negatives[index].shown
        size_px, request = self._request.size_px, of_image(self._request, batch, index)
        main = main_fields(
            request,
            model.info,
            size_px,
            seed,
            subseed,
            model.plan,
            model.vae_info,
            facts.used,
            tuple(dict.fromkeys(map(first_piece, model.part_files))),
        )
        extra = extra_fields(request, prompt, negative, facts)
        return GeneratedImage(image, infotext(prompt, negative, main, extra), seed, subseed)

    def _take_hashes(self) -> None:
        """Have the hashes of the models that took part. They are computed while the image is made; who needs them
        waits here, with the image in hand."""
        model, engine = self._in_use.model, self._engine
        if model.info.sha256 is None:
            self._events.stage(Stage.HASH)
            model.info = replace(engine.hashed(model.info), modules=model.info.modules)
            self._events.stage(Stage.SAVE)
        if model.vae_info is not None:
            model.vae_info = engine.vaes.hashed(model.vae_info)
        for name, info in self._titled.items():
            self._facts.extra[name] = engine.hashed(info).short_title

    def _saved(self, image: GeneratedImage, batch: int, index: int, suffix: str = "") -> GeneratedImage:
        info, vae = self._in_use.model.info, self._in_use.model.vae_info
        seeds = tuple(seed for item in self._all_batches() for seed in item.seeds)
        context = replace(
            name_context(self._request, info.model_name, info.shorthash or "", seeds, self._began),
            seed=image.seed,
            batch_index=index,
            iteration=batch,
            vae_filename=vae.name.partition(".")[0] if vae else "",
        )

        def on_path(path: Path, fingerprint: str) -> None:
            self._events.saving(image, path, fingerprint)

        saved, problem = self._output.save(image, self._request, context, suffix, self._hooks, on_path)
        self.note(problem or "")
        return saved

    # -- the result ----------------------------------------------------------------------------------------------------

    def result(self, memory: MemoryRecord, timings_s: Mapping[str, float], notices: tuple[str, ...]) -> Result:
        """All of the job; `notices` are said last."""
        peak = memory.peak()
        return Result(
            images=tuple(self._images),
            info=self._info(),
            notices=(*self._in_use.notices, *self._notices, *notices),
            timings_s=timings_s,
            peak_memory_bytes=peak.rss if self._engine.machine.device.type == "cpu" else peak.allocated,
            memory=memory,
            replayed_calls=self._in_use.model.graphs.replays,
            interrupted=self.interrupted,
            adapter_retention=asdict(self._retention) if self._retention is not None else None,
        )

    def _info(self) -> GenerationInfo:
        request, model = self._request, self._in_use.model
        info, vae = model.info, model.vae_info
        batches = self._all_batches()
        asked = Batch.of(draft_of(request, 0), request)
        extra = extra_fields(request, asked.prompts[0].shown, asked.negatives[0].shown, self._facts)
        label = schedule_label(request.sampler, request.scheduler)
        width, height = request.size_px
        return GenerationInfo(
            prompts=tuple(text.shown + self._added_tags for batch in batches for text in batch.prompts),
            negative_prompts=tuple(text.shown + self._added_tags for batch in batches for text in batch.negatives),
            seeds=tuple(seed for batch in batches for seed in batch.seeds),
            subseeds=tuple(seed for batch in batches for seed in batch.subseeds),
            subseed_strength=request.subseed_strength,
            width=width,
            height=height,
            sampler=SAMPLERS.get(request.sampler).name,
            scheduler=label,
            cfg_scale=request.cfg_scale,
            steps=request.steps,
            batch_size=request.batch_size,
            checkpoint_name=info.model_name,
            checkpoint_hash=info.shorthash or "",
            vae_name=vae.name if vae else None,
            vae_hash=vae.shorthash if vae else None,
            seed_resize_from_width=request.seed_resize_from_width,
            seed_resize_from_height=request.seed_resize_from_height,
            denoising_strength=denoising_strength_of(request),
            extra_params={**({} if label == "Automatic" else {"Schedule type": label}), **extra},
            infotexts=tuple(image.infotext for image in self._images),
            styles=request.styles,
            job_timestamp=self._began.strftime("%Y%m%d%H%M%S"),
            clip_skip=request.settings.stable_diffusion.CLIP_stop_at_last_layers,
            version=PROGRAM_VERSION,
        )

    def _all_batches(self) -> list[Batch]:
        """Return the batches that have begun as they were made, the others as they were requested."""
        request = self._request
        numbers = range(request.batch_count)
        return [self._batches.get(number) or Batch.of(draft_of(request, number), request) for number in numbers]
