"""Saving an image: where, under which name, in which format, and never half of it or over another."""

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from itertools import count
from pathlib import Path

from PIL import Image

from modules.errors import OutputError
from modules.flags.flags import Flags
from modules.images.claims import claim_number
from modules.images.encode import Quality, encode_image, format_of, holds, loses_alpha
from modules.images.filenames import apply_pattern, image_pattern, next_number, numbered_stem, subfolder_of
from modules.images.metadata import writable
from modules.images.naming import NameContext
from modules.images.patterns import Source
from modules.images.stealth import with_hidden_text
from modules.settings.definitions import DIRECTORY_KEYS
from modules.settings.sections.saving import SavingPathSettings
from modules.settings.values import Settings
from modules.system.atomic_files import (
    fingerprint_of,
    output_error,
    rename_without_replacing,
    sync_folder,
    write_and_sync,
    write_atomic,
)
from modules.system.file_names import lies_in, sanitize_name
from modules.system.paths import Paths

log = logging.getLogger(__name__)

SAMPLES_FOLDERS = {
    "txt2img": SavingPathSettings.outdir_txt2img_samples,
    "img2img": SavingPathSettings.outdir_img2img_samples,
    "extras": SavingPathSettings.outdir_extras_samples,
}
GRIDS_FOLDERS = {
    "txt2img": SavingPathSettings.outdir_txt2img_grids,
    "img2img": SavingPathSettings.outdir_img2img_grids,
}
"""The folder settings by tab."""

OnPath = Callable[[Path, str], None]
"""Told of the path and the `fingerprint` of a file before it appears there."""


def samples_folder(settings: Settings, data_dir: Path, tab: str = "txt2img") -> Path:
    """Where images of a tab ("txt2img", "img2img", "extras") go; relative settings count from `data_dir`."""
    return data_dir / (settings.saving_paths.outdir_samples or SAMPLES_FOLDERS[tab].of(settings))


def grids_folder(settings: Settings, data_dir: Path, tab: str = "txt2img") -> Path:
    """Where grids of a tab ("txt2img", "img2img") go; relative settings count from `data_dir`."""
    return data_dir / (settings.saving_paths.outdir_grids or GRIDS_FOLDERS[tab].of(settings))


def save_image(
    image: Image.Image,
    folder: Path,
    settings: Settings,
    context: NameContext,
    infotext: str | None = None,
    *,
    is_grid: bool = False,
    suffix: str = "",
    items: Mapping[str, str] | None = None,
    on_path: OnPath = lambda path, fingerprint: None,
    stem: str | None = None,
) -> Path:
    """Write an image below `folder` and return its path.

    Subfolder, name and format follow from the settings, e.g. `2024-05-01/00000-SEED.png`; `suffix` ("-before-x") ends
    the name; grids are named `grid-0000`. `items` are further text chunks of a PNG. `stem` names the file instead of
    the settings, with a further number where that is taken; an empty one gives the number alone. What the chosen format
    cannot hold is written as PNG. `on_path` receives where the file is about to appear. The file
    appears complete or not at all. Raises OutputError (full disk, read-only folder).
    """
    target_folder, decoration, extension = _place(image, folder, settings, context, infotext, is_grid=is_grid)
    written_infotext = infotext if settings.infotext.enable_pnginfo else None
    hiding = settings.infotext.stealth_pnginfo
    if hiding != "None" and written_infotext and format_of(extension) == "PNG":
        image = with_hidden_text(image, writable(written_infotext), hiding.lower())
    data = encode_image(image, extension, written_infotext, Quality.of(settings), items)
    decoration = decoration if stem is None else ""
    found = fingerprint_of(data)

    def before(path: Path) -> None:
        on_path(path, found)

    try:
        target_folder.mkdir(parents=True, exist_ok=True)
        if stem and sanitize_name(stem):
            path = _save_named(target_folder, sanitize_name(stem) + suffix, extension, data, before, replace=False)
        elif settings.saving.save_images_add_number or is_grid or not sanitize_name(decoration):
            path = _save_numbered(target_folder, decoration, suffix, extension, data, before, "grid" if is_grid else "")
        else:
            replace = settings.saving.save_images_replace_action == "Replace"
            path = _save_named(
                target_folder, sanitize_name(decoration) + suffix, extension, data, before, replace=replace
            )
    except OSError as error:
        raise output_error("The image", target_folder, error) from error
    _save_companions(path, image, settings, infotext, len(data))
    return path


def expected_path(
    image: Image.Image,
    folder: Path,
    settings: Settings,
    context: NameContext,
    infotext: str | None,
    *,
    is_grid: bool = False,
    suffix: str = "",
) -> Path:
    """Return where `save_image` would write now; another image may take its number before."""
    place, decoration, extension = _place(image, folder, settings, context, infotext, is_grid=is_grid)
    name = sanitize_name(decoration)
    if settings.saving.save_images_add_number or is_grid or not name:
        basename = "grid" if is_grid else ""
        number = next_number([one.name for one in place.iterdir()] if place.is_dir() else [], basename)
        name = numbered_stem(number, decoration, basename)
    return place / f"{name}{suffix}.{extension}"


def _place(
    image: Image.Image,
    folder: Path,
    settings: Settings,
    context: NameContext,
    infotext: str | None,
    *,
    is_grid: bool,
) -> tuple[Path, str, str]:
    """Return the folder of a file, what follows the number in its name, and its extension."""
    saving, folders = settings.saving, settings.saving_folders
    source = Source(context, image, folders.directories_max_prompt_words)
    in_subfolder = folders.grid_save_to_dirs if is_grid else folders.save_to_dirs
    return (
        folder / subfolder_of(settings, source) if in_subfolder else folder,
        _decoration(settings, source, is_grid=is_grid, in_subfolder=in_subfolder),
        _fitting_extension(image, infotext, saving.grid_format if is_grid else saving.samples_format),
    )


def _fitting_extension(image: Image.Image, infotext: str | None, wanted: str) -> str:
    if loses_alpha(wanted, image):
        return "png"
    if holds(wanted, image.size, infotext):
        return wanted
    log.warning("An image of %dx%d does not fit into %s with its infotext; saved as PNG.", *image.size, wanted)
    return "png"


def _decoration(settings: Settings, source: Source, *, is_grid: bool, in_subfolder: bool) -> str:
    """Return what follows the number in the name."""
    if is_grid and not settings.saving.grid_extended_filename:
        return ""
    return apply_pattern(image_pattern(settings, in_subfolder=in_subfolder), source)


def _save_numbered(
    folder: Path,
    decoration: str,
    suffix: str,
    extension: str,
    data: bytes,
    before: Callable[[Path], None],
    basename: str,
) -> Path:
    while True:
        with claim_number(folder, basename) as claim:
            name = f"{numbered_stem(claim.number, decoration, basename)}{suffix}.{extension}"
            try:
                return claim.publish(name, data, before)
            except FileExistsError:
                continue


def _save_named(
    folder: Path, stem: str, extension: str, data: bytes, before: Callable[[Path], None], *, replace: bool
) -> Path:
    """Save without a number; an existing file is replaced, or the name gets the first free "-1", "-2" ..."""
    if replace:
        path = folder / f"{stem}.{extension}"
        before(path)
        write_atomic(path, data)
        return path
    temporary = folder / f".{secrets.token_hex(8)}.saving"
    try:
        write_and_sync(temporary, data)
        for number in count():
            path = folder / f"{stem}{f'-{number}' if number else ''}.{extension}"
            if path.exists():
                continue
            before(path)
            try:
                rename_without_replacing(temporary, path)
            except FileExistsError:
                continue
            sync_folder(folder)
            return path
        raise AssertionError("count() does not end")
    finally:
        temporary.unlink(missing_ok=True)


def _save_companions(path: Path, image: Image.Image, settings: Settings, infotext: str | None, size_bytes: int) -> None:
    """The text file and the small JPG next to an image. The image is safe by now, so a failure is only logged."""
    try:
        if settings.infotext.save_txt and infotext:
            write_atomic(path.with_suffix(".txt"), f"{writable(infotext)}\n".encode())
        copy = large_copy(image, path.suffix, size_bytes, infotext, settings)
        if copy is not None:
            write_atomic(path.with_suffix(".jpg"), copy)
    except OSError as error:
        log.error("%s", output_error(f"The companion of {path.name}", path.parent, error))


_BYTES_PER_MB = 1024 * 1024


def large_copy(
    image: Image.Image, extension: str, size_bytes: int, infotext: str | None, settings: Settings
) -> bytes | None:
    """The bytes of the copy; None if none is wanted, or the image is small enough, or a JPG already.

    The copy keeps its aspect; its longer side is at most the setting `target_side_length` in pixels.
    """
    limit_px = settings.saving.target_side_length
    too_wide = max(image.size) > limit_px
    too_heavy = size_bytes > settings.saving.img_downscale_threshold * _BYTES_PER_MB
    if not settings.saving.export_for_4chan or not (too_wide or too_heavy) or format_of(extension) == "JPEG":
        return None
    if too_wide:
        scale = limit_px / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    infotext = infotext if settings.infotext.enable_pnginfo and holds("jpg", image.size, infotext) else None
    return encode_image(image, "jpg", infotext, Quality.of(settings)) if holds("jpg", image.size, None) else None


_OUTPUT_KEYS = frozenset(key for key in DIRECTORY_KEYS if key.startswith("outdir_"))


def output_folders(flags: Flags, paths: Paths, settings: Settings) -> tuple[Path, ...]:
    """Where images may go when other machines reach the server: the data folder, those of the command line, and what
    the settings named before the start."""
    named = (paths.data_dir / settings.text(key) for key in _OUTPUT_KEYS if settings.text(key))
    given = (Path(folder).expanduser().absolute() for folder in flags.gradio_allowed_path)
    return tuple(dict.fromkeys((paths.data_dir, *given, *named)))


def check_output_folders(
    settings: Settings, changed: Collection[str], data_dir: Path, allowed: tuple[Path, ...] | None
) -> None:
    """Refuse a change that would have images saved elsewhere; raising takes it back."""
    for key in _OUTPUT_KEYS.intersection(changed):
        check_folder(data_dir / settings.text(key), allowed)


def check_folder(folder: Path, allowed: tuple[Path, ...] | None) -> None:
    """Raise `OutputError` for a folder outside of the allowed ones, links followed."""
    if allowed is None or lies_in(folder, allowed):
        return
    raise OutputError(
        f"Images may not be saved in {folder}: other machines reach this server, so that its outputs stay in "
        f"{', '.join(map(str, allowed))}. Start it with --gradio-allowed-path FOLDER to allow another folder."
    )
