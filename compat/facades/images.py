"""Names that extensions import from `modules.images`: saving, resizing, grids, and the infotext in a file."""

from __future__ import annotations

import logging
import math
import re
import string
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from PIL import Image

from compat.callbacks import ImageSaveParams
from compat.facades.refusal import refusing
from compat.host import host_now
from compat.processing import StableDiffusionProcessing, making_of_run
from modules.images.filenames import apply_pattern, next_number, subfolder_of
from modules.images.grid import grid_rows
from modules.images.grid import image_grid as _image_grid
from modules.images.legend import LegendStyle, grid_with_legend
from modules.images.masks import flattened
from modules.images.metadata import png_info, read_metadata
from modules.images.naming import NameContext
from modules.images.patterns import Source
from modules.images.resize import ResizeMode
from modules.images.resize import resize_image as _resize_image
from modules.images.saving import check_folder
from modules.images.saving import save_image as _save_image
from modules.processing.record.output import name_context
from modules.scripts.acting import acting
from modules.scripts.callbacks import Moment
from modules.settings.values import Settings
from modules.system.file_names import sanitize_part

log = logging.getLogger(__name__)

__all__ = [
    "FilenameGenerator",
    "apply_filename_pattern",
    "combine_grid",
    "fix_image",
    "flatten",
    "get_next_sequence_number",
    "image_grid",
    "read",
    "read_info_from_image",
    "resize_image",
    "sanitize_filename_part",
    "save_image",
    "save_image_with_geninfo",
    "split_grid",
]

LANCZOS = Image.Resampling.LANCZOS
NEAREST = Image.Resampling.NEAREST
max_filename_part_length = 128
invalid_filename_chars = '#<>:"/\\|?*\n\r\t'
invalid_filename_prefix = " "
invalid_filename_postfix = " ."
re_nonletters = re.compile(r"[\s" + string.punctuation + "]+")
re_pattern = re.compile(r"(.*?)(?:\[([^\[\]]+)\]|$)")
re_pattern_arg = re.compile(r"(.*)<([^>]*)>$")
max_prompt_words = 8
PARAMETERS = "parameters"
FORMATS = ("png", "jpg", "jpeg", "webp", "avif")


def _settings() -> Settings:
    run = making_of_run()
    return run.settings() if run is not None else host_now().settings.current


def save_image(
    image: Image.Image,
    path: str,
    basename: str = "",
    seed: Any = None,
    prompt: str | None = None,
    extension: str = "png",
    info: str | None = None,
    short_filename: bool = False,
    no_prompt: bool = False,
    grid: bool = False,
    pnginfo_section_name: str = PARAMETERS,
    p: Any = None,
    existing_info: dict[str, Any] | None = None,
    forced_filename: str | None = None,
    suffix: str = "",
    save_to_dirs: bool | None = None,
) -> tuple[str, str | None]:
    """Save an image below the folder `path`, named as the settings say, with its infotext `info`; the path of the file
    and that of its text file (None: there is none). Never over another file."""
    settings = _settings()
    changes: dict[str, Any] = {"grid_format" if grid else "samples_format": extension.lstrip(".")}
    if save_to_dirs is not None:
        changes["grid_save_to_dirs" if grid else "save_to_dirs"] = save_to_dirs
    if short_filename or prompt is None or seed is None:
        changes["samples_filename_pattern"] = "[seed]" if seed is not None else "[datetime]"
    if extension.lstrip(".") not in FORMATS:
        changes.pop("grid_format" if grid else "samples_format")
    settings = settings.with_changes(changes)
    params = ImageSaveParams(image, p, "", {pnginfo_section_name: info} if info else {})
    params.pnginfo.update({key: str(value) for key, value in (existing_info or {}).items() if key != PARAMETERS})
    host = host_now()
    folder = host.paths.data_dir / path
    check_folder(folder, host.history_folders)
    with acting(None):
        host.scripts.callbacks.call(Moment.BEFORE_IMAGE_SAVED, params)
    infotext = params.pnginfo.get(PARAMETERS, params.pnginfo.get(pnginfo_section_name))
    names = (PARAMETERS, pnginfo_section_name)
    items = {str(key): str(value) for key, value in params.pnginfo.items() if key not in names}
    context = _context(p, seed, prompt, params.image)
    stem = forced_filename
    if basename and stem is None:
        folders = settings.saving_folders
        below = subfolder_of(settings, Source(context, params.image, folders.directories_max_prompt_words))
        stem = _stem(
            folder / below if (folders.grid_save_to_dirs if grid else folders.save_to_dirs) else folder, basename
        )
    saved = _save_image(
        params.image,
        folder,
        settings,
        context,
        infotext,
        is_grid=grid,
        suffix=suffix,
        items=items,
        stem=stem,
    )
    params.filename = str(saved)
    with acting(None):
        host.scripts.callbacks.call(Moment.IMAGE_SAVED, params)
    image.already_saved_as = str(saved)  # type: ignore[attr-defined]
    text = saved.with_suffix(".txt")
    return str(saved), str(text) if text.is_file() and settings.infotext.save_txt else None


def _stem(folder: Path, basename: str) -> str:
    """A basename with the next free number behind it."""
    return f"{basename}-{get_next_sequence_number(str(folder), basename):04}"


def _context(p: Any, seed: Any, prompt: str | None, image: Image.Image) -> NameContext:
    number = int(seed) if seed is not None and str(seed).lstrip("-").isdigit() else 0
    if isinstance(p, StableDiffusionProcessing):
        now = datetime.now().astimezone()
        context = name_context(p.to_request(), p.sd_model_name, p.sd_model_hash, tuple(p.all_seeds or [number]), now)
        return replace(context, seed=number, prompt=prompt if prompt is not None else context.prompt)
    return NameContext(prompt=prompt or "", seed=number, width=image.width, height=image.height)


def save_image_with_geninfo(
    image: Image.Image,
    geninfo: str | None,
    filename: str,
    extension: str | None = None,
    existing_pnginfo: dict[str, Any] | None = None,
    pnginfo_section_name: str = PARAMETERS,
) -> None:
    """Write an image with its infotext to exactly this file."""
    from modules.images.encode import Quality, encode_image
    from modules.system.atomic_files import write_atomic

    wanted = (extension or Path(filename).suffix).lstrip(".").lower() or "png"
    items = {key: str(value) for key, value in (existing_pnginfo or {}).items() if key != pnginfo_section_name}
    text = geninfo if _settings().infotext.enable_pnginfo else None
    write_atomic(Path(filename), encode_image(image, wanted, text, Quality.of(_settings()), items))


def resize_image(
    resize_mode: int,
    im: Image.Image,
    width: int,
    height: int,
    upscaler_name: str | None = None,
    force_RGBA: bool = False,  # noqa: N803
) -> Image.Image:
    """The image in exactly this size: 0 stretched, 1 cropped, 2 filled up at its edges; enlarged by an upscaler where
    one is named."""
    host = host_now()

    def scale(image: Image.Image, to_width: int, to_height: int) -> Image.Image:
        is_larger = to_width > image.width or to_height > image.height
        if upscaler_name in (None, "", "None") or not is_larger:
            return image.resize((to_width, to_height), LANCZOS)
        assert upscaler_name is not None
        return host.scripts.program.enlarge(image, upscaler_name, (to_width, to_height), _settings())

    if force_RGBA:
        im = im.convert("RGBA")
    return _resize_image(im, int(width), int(height), ResizeMode(int(resize_mode)), scale)


def flatten(img: Image.Image, bgcolor: str) -> Image.Image:
    """The image as RGB, its transparent parts over a color."""
    return flattened(img, bgcolor)


def fix_image(image: Image.Image | None) -> Image.Image | None:
    """The image turned as its EXIF data says, as RGB or RGBA."""
    from PIL import ImageOps

    if image is None:
        return None
    turned = ImageOps.exif_transpose(image)
    has_alpha = turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info
    return turned if turned.mode in ("RGB", "RGBA", "L") else turned.convert("RGBA" if has_alpha else "RGB")


def fix_png_transparency(image: Image.Image) -> Image.Image:
    """A palette with transparency as RGBA."""
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


def read(fp: Any, **kwargs: Any) -> Image.Image:
    """Open an image file, turned as its EXIF data says."""
    with Image.open(fp, **kwargs) as image:
        image.load()
        fixed = fix_image(image)
    assert fixed is not None
    return fixed


def read_info_from_image(image: Image.Image) -> tuple[str | None, dict[str, Any]]:
    """The infotext in an image, and its other texts."""
    return read_metadata(image)


def image_data(data: bytes) -> tuple[str | None, dict[str, Any] | None]:
    """The infotext in the bytes of an image file; (None, None) for what is no image."""
    import io

    try:
        with Image.open(io.BytesIO(data)) as image:
            return read_metadata(image)[0], None
    except OSError:
        return None, None


def get_next_sequence_number(path: str, basename: str) -> int:
    """One more than the largest number of the files of this name in a folder; 0 for the first."""
    folder = Path(path)
    return next_number([file.name for file in folder.iterdir()] if folder.is_dir() else (), basename)


def sanitize_filename_part(text: str | None, replace_spaces: bool = True) -> str | None:
    """A text that can be part of a file's name."""
    return None if text is None else sanitize_part(text, keep_spaces=not replace_spaces)


def image_grid(imgs: Sequence[Image.Image], batch_size: int = 1, rows: int | None = None) -> Image.Image:
    """The images side by side, in as many rows as asked or as the settings say."""
    return _image_grid(list(imgs), rows or grid_rows(len(imgs), _settings(), batch_size))


class Grid(tuple[Any, ...]):
    """An image cut into tiles: `tiles` (rows of [x, width, image] at y, height), `tile_w`, `tile_h`, `image_w`,
    `image_h`, `overlap`."""

    tiles = property(lambda self: self[0])
    tile_w = property(lambda self: self[1])
    tile_h = property(lambda self: self[2])
    image_w = property(lambda self: self[3])
    image_h = property(lambda self: self[4])
    overlap = property(lambda self: self[5])


def split_grid(image: Image.Image, tile_w: int = 512, tile_h: int = 512, overlap: int = 64) -> Grid:
    """Cut an image into tiles that overlap by at least `overlap` pixels."""
    width, height = image.size
    columns = math.ceil((width - overlap) / (tile_w - overlap))
    rows = math.ceil((height - overlap) / (tile_h - overlap))
    step_x = (width - tile_w) / (columns - 1) if columns > 1 else 0
    step_y = (height - tile_h) / (rows - 1) if rows > 1 else 0
    tiles = []
    for row in range(rows):
        y = min(int(row * step_y), max(height - tile_h, 0))
        line = []
        for column in range(columns):
            x = min(int(column * step_x), max(width - tile_w, 0))
            line.append([x, tile_w, image.crop((x, y, x + tile_w, y + tile_h))])
        tiles.append([y, tile_h, line])
    return Grid((tiles, tile_w, tile_h, width, height, overlap))


def combine_grid(grid: Grid) -> Image.Image:
    """Put the tiles of `split_grid` together again, blended where they overlap."""
    whole = Image.new("RGB", (grid.image_w, grid.image_h))
    fade_x = _fade(grid.overlap, grid.tile_h, is_vertical=False)
    fade_y = _fade(grid.overlap, grid.image_w, is_vertical=True)
    for y, height, line in grid.tiles:
        strip = Image.new("RGB", (grid.image_w, height))
        for x, _, tile in line:
            if x == 0:
                strip.paste(tile, (0, 0))
                continue
            strip.paste(tile.crop((0, 0, grid.overlap, height)), (x, 0), mask=fade_x)
            strip.paste(tile.crop((grid.overlap, 0, tile.width, height)), (x + grid.overlap, 0))
        if y == 0:
            whole.paste(strip, (0, 0))
            continue
        whole.paste(strip.crop((0, 0, strip.width, grid.overlap)), (0, y), mask=fade_y)
        whole.paste(strip.crop((0, grid.overlap, strip.width, height)), (0, y + grid.overlap))
    return whole


def _fade(overlap: int, length: int, *, is_vertical: bool) -> Image.Image:
    """A mask that grows from 0 to 255 over `overlap` pixels."""
    ramp = Image.linear_gradient("L")
    ramp = ramp if is_vertical else ramp.transpose(Image.Transpose.ROTATE_90).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    size = (length, max(overlap, 1)) if is_vertical else (max(overlap, 1), length)
    return ramp.resize(size)


class FilenameGenerator:
    """Text that a pattern of file names becomes for an image."""

    def __init__(
        self, p: Any, seed: Any, prompt: str, image: Image.Image, zip: bool = False, basename: str = ""
    ) -> None:
        self.p, self.seed, self.prompt, self.image = p, seed, prompt, image

    def apply(self, x: str) -> str:
        """The pattern `x` with its words in square brackets filled in."""
        return apply_pattern(
            x, Source(_context(self.p, self.seed, self.prompt, self.image), self.image, max_prompt_words)
        )


def apply_filename_pattern(x: str, p: Any, seed: Any, prompt: str) -> str:
    """A pattern of file names for a job."""
    return FilenameGenerator(p, seed, prompt, Image.new("RGB", (1, 1))).apply(x)


def get_font(fontsize: int) -> Any:
    """The font of captions."""
    return _legend_style().font(fontsize)


def _legend_style() -> LegendStyle:
    style = LegendStyle.of(_settings())
    if style.notice:
        log.warning("%s", style.notice)
    return style


class GridAnnotation:
    """A caption of a grid."""

    def __init__(self, text: str = "", is_active: bool = True) -> None:
        self.text = text
        self.is_active = is_active


def draw_grid_annotations(
    im: Image.Image, width: int, height: int, hor_texts: Any, ver_texts: Any, margin: int = 0
) -> Image.Image:
    """A grid with captions above its columns and left of its rows."""
    columns, rows = max(len(hor_texts), 1), max(len(ver_texts), 1)
    cells = [
        im.crop(
            (x * (width + margin), y * (height + margin), x * (width + margin) + width, y * (height + margin) + height)
        )
        for y in range(rows)
        for x in range(columns)
    ]
    columns_text, rows_text = (
        ["\n".join(one.text for one in texts) for texts in both] for both in (hor_texts, ver_texts)
    )
    lines = [cells[row * columns : (row + 1) * columns] for row in range(rows)]
    return grid_with_legend(lines, columns_text, rows_text, margin, style=_legend_style())


def draw_prompt_matrix(
    im: Image.Image, width: int, height: int, all_prompts: list[str], margin: int = 0
) -> Image.Image:
    """A grid of all combinations of a prompt's parts, with the parts above and beside it; those of the grid's own
    are grey."""
    parts = all_prompts[1:]
    across = math.ceil(len(parts) / 2)
    columns = [
        [GridAnnotation(part, number & (1 << at) != 0) for at, part in enumerate(parts[:across])]
        for number in range(1 << across)
    ]
    rows = [
        [GridAnnotation(part, number & (1 << at) != 0) for at, part in enumerate(parts[across:])]
        for number in range(1 << len(parts[across:]))
    ]
    return draw_grid_annotations(im, width, height, columns, rows, margin)


def check_grid_size(imgs: Sequence[Image.Image]) -> bool:
    """Whether a grid of these images is not too large to be made."""
    return sum(image.width * image.height for image in imgs) < 200_000_000


def png_chunks(infotext: str) -> Any:
    """An infotext as the text chunks of a PNG."""
    return png_info(infotext)


__getattr__ = refusing("images", {"UiConfig": "there is none."})
