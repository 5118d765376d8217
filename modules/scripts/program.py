"""Questions that an extension may ask the running program: which files and names there are, looked up when it asks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from modules.adapters.preset_file import FILE as PRESETS_OF_BLOCK_WEIGHTS
from modules.captioning.captioners import Captioners
from modules.detection.detection import AllDetectors, Detection, Detectors
from modules.errors import InvalidValueError, UnknownNameError
from modules.faces.face import Face
from modules.models.files.catalogue import CheckpointCatalogue
from modules.processing.comparison.series import Measured, SeriesReport
from modules.processing.engine.adapter_files import AdapterFiles
from modules.processing.engine.engine import Engine
from modules.processing.request.result import Result
from modules.processing.request.stages import Stage
from modules.processing.request.upscaling import PIXEL_UPSCALERS, hires_upscalers, upscale_image
from modules.prompting.styles import StyleBook
from modules.settings.store import SettingsStore
from modules.settings.values import Settings
from modules.system.paths import Paths

BROUGHT_ALONG = ("wildcards", "tags", PRESETS_OF_BLOCK_WEIGHTS)
"""What extensions have in their folders, or beside their scripts."""
Names = Callable[[], list[str]]


Enlarge = Callable[[Image.Image, str, tuple[int, int], Settings], Image.Image]
"""(image, name of an upscaler, width and height in pixels, settings) -> the image in that size."""


def _stretched(image: Image.Image, name: str, size_px: tuple[int, int], settings: Settings) -> Image.Image:
    """The upscalers that need no file."""
    return upscale_image(image, PIXEL_UPSCALERS.canonical(name), *size_px)


def _without_files() -> list[str]:
    return list(PIXEL_UPSCALERS)


def _none() -> list[str]:
    return []


def _no_models(path: Path, *more: object) -> Any:
    raise InvalidValueError(f"{path.name} cannot be loaded: no program is running.")


def _no_work(name: str, values: Mapping[str, Any], user: str = "") -> Mapping[str, Any]:
    raise UnknownNameError.of("work of extensions", name, [])


@dataclass(frozen=True)
class Program:
    """The names that a user can choose from; empty for a library that was loaded without a program."""

    checkpoints: Names = _none  # titles
    checkpoint: Callable[[str], str] = str  # the title of a name, title or hash; raises `UnknownNameError`
    vaes: Names = _none  # as the setting sd_vae takes them: Automatic, None, file names
    upscalers: Names = _none  # for hires fix, latent modes included
    pixel_upscalers: Names = _without_files  # without latent modes; "None" first
    enlarge: Enlarge = _stretched  # an image by one of these; raises `UnknownNameError`
    loras: Names = _none
    styles: Callable[[], StyleBook] = lambda: StyleBook(())
    adapters: Callable[[], AdapterFiles] = AdapterFiles  # what finds, reads and applies LoRA files and their like
    folders: Callable[[str], tuple[Path, ...]] = lambda name: ()  # of a folder of models, as below models/: "Lora"
    settings: Callable[[], Settings] = Settings  # as they now are; those of a job are `p.settings`
    caption: Callable[[Image.Image, str, Settings], str] = lambda image, name, settings: ""
    """What an image shows, by "clip" (a sentence) or "deepbooru" (tags)."""
    find_faces: Callable[..., list[Face]] = lambda image, min_score=0.9: []
    """(image, least score 0 to 1) -> its faces, the largest first."""
    detectors: Names = _none  # of faces and eyes, then the user's files
    detector: Callable[[str], str] = str
    """The name of one that can be used now, of any of its names. Raises `UnknownNameError`, and `CheckpointError` that
    says what to put where."""
    detect: Callable[[Image.Image, str, float], list[Detection]] = AllDetectors().find
    """(image, name of a detector, least score 0 to 1) -> what it finds, the best first. Raises as `detector` does."""
    compute: Callable[[str, Mapping[str, Any], str], Mapping[str, Any]] = _no_work
    """(name, values, user) -> values: work that an extension registered by `script_callbacks.on_work`, done where
    images are computed, in its turn among them. Waits for it, and raises what it raises."""
    compute_alone: Callable[[Path, Any, Callable[[Any], Any]], Any] = _no_models
    """(file, `Builder`, what to do with the model) -> what that returns: see `Engine.compute_alone`."""
    measured: Callable[[Result], Measured] = lambda result: Measured()
    """What a job took, to be asked when it has just ended."""
    report: Callable[[SeriesReport], str] = lambda report: ""
    """Write a comparison of images among the reports; its page's name, empty where there are no reports. Raises
    `OutputError`."""


def one_of(what: str, text: str, names: list[str]) -> str:
    """The name that is meant, in its own case; raises `InvalidValueError` that lists what there is."""
    for name in names:
        if name.lower() == text.lower():
            return name
    raise InvalidValueError(f"{what}: {text!r} is none of: {', '.join(names)}.")


def program_of(
    paths: Paths,
    catalogue: CheckpointCatalogue,
    engine: Engine,
    settings: SettingsStore,
    captioners: Captioners,
    compute: Callable[[str, Mapping[str, Any], str], Mapping[str, Any]],
    report: Callable[[SeriesReport], str],
    detectors: Callable[[], Detectors],
) -> Program:
    """The names that extensions may ask for, looked up when they ask."""
    return Program(
        checkpoints=lambda: [info.title for info in catalogue.entries],
        checkpoint=lambda name: catalogue.get(name).title,
        vaes=engine.vaes.choices,
        upscalers=lambda: list(hires_upscalers(engine.upscalers.catalogue.names)),
        pixel_upscalers=lambda: [*PIXEL_UPSCALERS, *engine.upscalers.catalogue.names],
        enlarge=lambda image, name, size_px, settings: _enlarged(engine, image, name, size_px, settings),
        loras=lambda: [info.name for info in engine.adapters.files.catalogue.entries],
        styles=lambda: StyleBook.read(paths.styles_files),
        adapters=lambda: engine.adapters.files,
        folders=folders_of(paths),
        settings=lambda: settings.current,
        caption=captioners.caption,
        find_faces=engine.faces.find,
        detectors=lambda: list(detectors().names),
        detector=lambda name: detectors().check(name),
        detect=partial(_detected, detectors),
        compute=compute,
        compute_alone=engine.compute_alone,
        measured=partial(measured, engine),
        report=report,
    )


def _detected(
    detectors: Callable[[], Detectors], image: Image.Image, name: str, min_score: float = 0.3
) -> list[Detection]:
    return detectors().find(image, name, min_score)


def measured(engine: Engine, result: Result) -> Measured:
    """Return what a job that has just ended took."""
    model, info = engine.status.model, result.info
    sampled = len(result.samples) // max(info.batch_size, 1) * info.steps
    seconds = result.timings_s.get(Stage.SAMPLE, 0.0)
    return Measured(
        storage=model.storage if model else "",
        weight_bytes=model.stored_bytes + model.streamed_bytes if model else 0,
        fp16_bytes=model.fp16_bytes if model else 0,
        seconds_per_step=seconds / sampled if sampled else 0.0,
        peak_memory_bytes=result.peak_memory_bytes,
    )


def _enlarged(
    engine: Engine, image: Image.Image, name: str, size_px: tuple[int, int], settings: Settings
) -> Image.Image:
    for known in PIXEL_UPSCALERS:
        if known.lower() == name.lower():
            return upscale_image(image, known, *size_px)
    return engine.upscalers.enlarge(image, name, size_px, settings, lambda index, count: None)


def folders_of(paths: Paths) -> Callable[[str], tuple[Path, ...]]:
    """The folders by their names below models/; for other names a folder of that name next to them. Wildcards and
    tags lie in the data folder, among the models, or in folders of extensions."""
    known = {
        "Stable-diffusion": paths.checkpoint_dirs,
        "VAE": paths.vae_dirs,
        "Lora": paths.lora_dirs,
        "embeddings": paths.embeddings_dirs,
        "hypernetworks": paths.hypernetwork_dirs,
        "ControlNet": tuple(dict.fromkeys((paths.models_dir / "ControlNet", paths.root / "models" / "ControlNet"))),
    }

    def folders(name: str) -> tuple[Path, ...]:
        if name in BROUGHT_ALONG:
            patterns = (f"*/{name}", f"*/scripts/{name}")
            found = [sorted(place.glob(pattern)) for place in paths.extension_dirs for pattern in patterns]
            brought = (path for each in found for path in each)
            return (paths.data_dir / name, paths.models_dir / name, *brought)
        return known.get(name, (paths.models_dir / Path(name).name,))

    return folders
