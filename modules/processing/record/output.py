"""Where finished images go: the folders the settings name, below one data folder. A failed write loses no image."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from PIL import Image

from modules.errors import OutputError
from modules.images.encode import encode_image
from modules.images.naming import NameContext
from modules.images.saving import OnPath, check_folder, grids_folder, samples_folder
from modules.processing.record.recordings import Recordings
from modules.processing.record.spool import Spool, Unsaved
from modules.processing.request.hooks import NO_HOOKS, FileToSave, Hooks
from modules.processing.request.request import GenerationRequest, tab_of
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.processing.request.source_images import FromImage, SourceImage
from modules.system.atomic_files import fingerprint, output_error, write_atomic

INFOTEXT = "parameters"  # the entry of an image's texts that says how it was made


KEPT_HERE = "The image is kept here until the page is closed: save it by hand."


@dataclass(frozen=True)
class Output:
    """The folder that relative output folders of the settings start from; a caller may name another one for samples.

    `allowed`: the folders that images may go into; None: any, as where only this machine reaches the program.
    """

    data_dir: Path
    samples_dir: Path | None = None
    allowed: tuple[Path, ...] | None = None
    spool: Spool | None = None  # keeps what cannot be saved; None: it is only in the result
    recordings: Recordings | None = None  # where an image that is cut off is gone on with; None: it starts again
    task_id: str = ""  # of the job that is computed

    def save(
        self,
        image: GeneratedImage,
        request: GenerationRequest,
        context: NameContext,
        suffix: str = "",
        hooks: Hooks = NO_HOOKS,
        on_path: OnPath = lambda path, fingerprint: None,
    ) -> tuple[GeneratedImage, str | None]:
        """The image with its path, or without one and a sentence that says why it could not be saved.

        What hooks change on the way goes into the file alone. `on_path`: see `save_image`.
        """
        is_grid = image.role is ImageRole.GRID
        folder = self._folder(request, is_grid)
        unsaved = Unsaved(folder, request.settings, context, image.infotext, is_grid, suffix, {}, self.task_id)
        file = FileToSave(
            image.image, {INFOTEXT: image.infotext}, is_grid, expected=partial(unsaved.expected_path, image.image)
        )
        hooks.before_saving(file)
        items = {name: text for name, text in file.infos.items() if name != INFOTEXT}
        unsaved = replace(unsaved, infotext=file.infos.get(INFOTEXT, ""), items=items)
        path, problem = self.put(file.image, unsaved, on_path)
        if problem is None:
            file.path = path
            hooks.saved(file)
        return (image if path is None else replace(image, path=path)), problem

    def _folder(self, request: GenerationRequest, is_grid: bool) -> Path:
        if is_grid:
            return grids_folder(request.settings, self.data_dir, tab_of(request))
        return self.samples_dir or samples_folder(request.settings, self.data_dir, tab_of(request))

    def put(self, image: Image.Image, unsaved: Unsaved, on_path: OnPath) -> tuple[Path | None, str | None]:
        """Write one file: where it is now (None: only in the result), and a sentence where it is not where it belongs.

        This is what a worker in another process has done for it.
        """
        try:
            check_folder(unsaved.folder, self.allowed)
        except OutputError as error:
            return None, f"{error} {KEPT_HERE}"
        try:
            path = unsaved.save(image, on_path)
        except OutputError as error:
            if self.spool is None:
                return None, f"{error} {KEPT_HERE}"
            kept, sentence = self.spool.keep(image, unsaved)
            if kept is None:
                return None, f"{error} {sentence}"
            on_path(kept, fingerprint(kept))
            return kept, f"{error} {sentence}"
        return path, None

    def save_source(self, source: SourceImage, request: GenerationRequest) -> str | None:
        """Save an image that a job starts from as PNG, named by the md5 of its pixels as in the reference UI, unless it
        is there; else a sentence that says why it could not be saved."""
        folder = self.data_dir / request.settings.saving_paths.outdir_init_images
        name = hashlib.md5(source.image.tobytes(), usedforsecurity=False).hexdigest()
        path = folder / f"{name}.png"
        try:
            check_folder(folder, self.allowed)
            if not path.exists():
                folder.mkdir(parents=True, exist_ok=True)
                write_atomic(path, encode_image(source.image))
        except OutputError as error:
            return str(error)
        except OSError as error:
            return str(output_error("The init image", folder, error))
        return None


def name_context(
    request: GenerationRequest, checkpoint_name: str, checkpoint_hash: str, seeds: tuple[int, ...], began: datetime
) -> NameContext:
    """Return what file name patterns may show, as far as it is the same for all images of a job."""
    width, height = request.size_px
    return NameContext(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        seeds=seeds,
        steps=request.steps,
        cfg_scale=request.cfg_scale,
        width=width,
        height=height,
        styles=request.styles,
        sampler=request.sampler,
        scheduler=request.scheduler,
        model_hash=checkpoint_hash,
        model_name=checkpoint_name,
        clip_skip=request.settings.stable_diffusion.CLIP_stop_at_last_layers,
        denoising_strength=denoising_strength_of(request),
        batch_size=request.batch_size,
        n_iter=request.batch_count,
        user=request.user,
        job_timestamp=began,
    )


def denoising_strength_of(request: GenerationRequest) -> float | None:
    """How far the image that a pass starts from is noised, 0 to 1; None where there is none."""
    if isinstance(request.start, FromImage):
        return request.start.denoising_strength
    return request.hires.denoising_strength if request.hires else None
