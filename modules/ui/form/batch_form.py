"""The sub tab Batch of img2img as items of a batch: files that were sent, or those of folders of the server's machine.

Results in a folder of their own are named after their inputs, and never replace a file. No Gradio in here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from modules.errors import FeatherweightError, InvalidValueError
from modules.images.infotext import parse_infotext
from modules.images.metadata import read_metadata
from modules.images.reading import read_image
from modules.jobs.batch import BatchItem
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import SourceImage
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from modules.system.file_names import given_path, lies_in
from modules.ui.common.uploads import Uploads
from modules.ui.form.form import parse_overrides, request_of, show_override
from modules.ui.form.start_form import SentFile, from_images, sized

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".avif", ".tif", ".tiff", ".gif", ".bmp")
INFO_FIELDS = ("Prompt", "Negative prompt", "Seed", "CFG scale", "Sampler", "Steps", "Model hash")
"""What the PNG info of an input may set for its image."""

Complete = Callable[[GenerationRequest], GenerationRequest]


@dataclass(frozen=True)
class Source:
    """An input: its name, what reads it, and what reads its infotext."""

    name: str
    read: Callable[[], Image.Image]
    infotext: Callable[[], str]


class BatchForm:
    """The items of one filled form. `references` go with each. `allowed`: folders that may be read; None: any."""

    def __init__(
        self,
        form: Mapping[str, Any],
        files: tuple[SentFile, ...],
        services: Services,
        uploads: Uploads,
        complete: Complete,
        allowed: tuple[Path, ...] | None = None,
        references: tuple[SourceImage, ...] = (),
    ) -> None:
        self._form = form
        self._references = references
        self._services = services
        self._complete = complete
        self._allowed = allowed
        self._uploads = uploads
        self._masks = self._found_masks()
        self._infos = self._folder("batch_png_info_dir", "The PNG info directory") if self._uses_info else None
        self._output = str(form.get("batch_output_dir") or "").strip()
        if self._output and allowed is not None:
            self._check(Path(self._output), "The output directory")
        from_folder = str(form.get("batch_source")) == "directory"
        self.sources = self._of_folder() if from_folder else tuple(self._sent(file) for file in files)

    @property
    def items(self) -> list[BatchItem]:
        """An item for each input, in the order of names or as they were chosen."""
        return [BatchItem(source.name, partial(self._request, source)) for source in self.sources]

    @property
    def _uses_info(self) -> bool:
        return bool(self._form.get("batch_png_info"))

    def _sent(self, file: SentFile) -> Source:
        def read() -> Image.Image:
            if file.error:
                raise InvalidValueError(file.error)
            return self._uploads.image(file.key, file.name)

        return Source(file.name, read, lambda: file.infotext)

    def _of_folder(self) -> tuple[Source, ...]:
        folder = self._folder("batch_input_dir", "The input directory")
        if folder is None:
            raise InvalidValueError("The input directory is empty: enter a folder on the server's machine.")
        paths = images_in(folder)
        if not paths:
            raise InvalidValueError(f"{folder} holds no images; supported formats: {', '.join(SUFFIXES)}.")
        return tuple(
            Source(path.name, partial(read_image, path, path.name), partial(infotext_of, path)) for path in paths
        )

    def _folder(self, field: str, what: str) -> Path | None:
        text = str(self._form.get(field) or "").strip()
        if not text:
            return None
        folder = given_path(text)
        self._check(folder, what)
        if not folder.is_dir():
            raise InvalidValueError(f"{what} {folder} is not a folder on the server's machine.")
        return folder

    def _check(self, folder: Path, what: str) -> None:
        if self._allowed is None or lies_in(folder, self._allowed):
            return
        raise InvalidValueError(
            f"{what} {folder} may not be used: other machines reach this server. Start it with "
            "--gradio-allowed-path FOLDER to allow a folder."
        )

    def _found_masks(self) -> dict[str, Path] | None:
        """Masks by the names of their images; one for all under "". None: without masks."""
        folder = self._folder("batch_mask_dir", "The mask directory")
        if folder is None:
            return None
        paths = images_in(folder)
        if not paths:
            raise InvalidValueError(f"The mask directory {folder} holds no images.")
        return {"": paths[0]} if len(paths) == 1 else {path.stem: path for path in paths}

    def _mask_of(self, name: str) -> Image.Image | None:
        if self._masks is None:
            return None
        path = self._masks.get("") or self._masks.get(Path(name).stem)
        if path is None:
            raise InvalidValueError("there is no mask of its name in the mask directory; it was skipped.")
        return read_image(path, f"The mask {path.name}")

    def _request(self, source: Source) -> GenerationRequest:
        image = source.read()
        form = self._with_info(source) if self._uses_info else self._form
        start = replace(from_images(form, (image,), self._mask_of(source.name)), references=self._references)
        request = self._complete(request_of(sized(form, image.size), self._services, start))
        if not self._output:
            return request
        is_several = request.batch_size * request.batch_count > 1
        folder = given_path(self._output)
        settings = named_after(source.name, folder, request.settings, is_several)
        return replace(request, settings=settings, save_grid=False)  # a grid would lie among the results

    def _with_info(self, source: Source) -> dict[str, Any]:
        """The form with what the PNG info of the input says, of the fields that were chosen."""
        infotext = source.infotext() if self._infos is None else self._info_beside(source.name)
        parsed = parse_infotext(infotext) if infotext else {}
        wanted = {name: parsed[name] for name in self._form.get("batch_png_info_fields") or () if name in parsed}
        form = dict(self._form)
        for key, field in (("Prompt", "prompt"), ("Negative prompt", "negative_prompt")):
            if wanted.get(key):
                form[field] = " ".join(part for part in (str(form.get(field) or ""), str(wanted[key])) if part)
        for key, field, number_type in (
            ("Seed", "seed", int),
            ("CFG scale", "cfg_scale", float),
            ("Steps", "steps", int),
        ):
            if key in wanted:
                form[field] = number_type(wanted[key])
        if "Sampler" in wanted:
            form["sampler"] = str(wanted["Sampler"])
        if "Model hash" in wanted:
            line = show_override(SETTINGS.get("sd_model_checkpoint"), wanted["Model hash"])
            others = [one for one in form.get("overrides") or [] if "sd_model_checkpoint" not in parse_overrides([one])]
            form["overrides"] = [*others, line]
        return form

    def _info_beside(self, name: str) -> str:
        assert self._infos is not None
        by_name = {path.stem: path for path in images_in(self._infos)}
        path = by_name.get(Path(name).stem)
        return infotext_of(path) if path else ""


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder by name, without hidden ones; raises `InvalidValueError` if it cannot be read."""
    try:
        found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    except OSError as error:
        raise InvalidValueError(f"{folder} cannot be read: {error.strerror}.") from error
    return sorted(path for path in found if not path.name.startswith("."))


def infotext_of(path: Path) -> str:
    """The infotext of a file, empty where it has none or is no image."""
    try:
        return read_metadata(path)[0] or ""
    except FeatherweightError:
        return ""


def named_after(name: str, folder: Path, settings: Settings, is_several: bool) -> Settings:
    """Settings with which results lie in `folder` under the name of their input, numbered where they are several or
    a file of that name is there."""
    stem = Path(name).stem.replace("[", "(").replace("]", ")")  # brackets would be patterns
    return settings.changed(
        outdir_samples=str(folder.absolute()),
        save_to_dirs=False,
        samples_filename_pattern=f"{stem}-[generation_number]" if is_several else stem,
        save_images_add_number=False,
        save_images_replace_action="Add number suffix",
    )
