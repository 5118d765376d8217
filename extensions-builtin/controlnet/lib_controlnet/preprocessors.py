"""The modules that make a control map of an image, by name: what callers may ask for, with which sliders, and those
that need no weights as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lib_controlnet.edges import canny
from lib_controlnet.job import RESOLUTION, UNUSED, Job, Make, Slider
from lib_controlnet.pixels import (
    Pixels,
    as_rgb,
    blurred,
    blurred_8_bit,
    fit_side,
    lightness,
    resize_area,
    resize_cubic,
    resize_nearest,
    sampled_at,
)
from modules.errors import InvalidValueError, UnknownNameError

PAD = 64
WHITE_TO_BLACK = " (from white bg & black line)"


@dataclass(frozen=True)
class Module:
    """A module. `alias` is its other name; `tags` are the control types that list it. `file` is the name of the weights
    that it needs; `make` is None where its network is not known here. `keeps_mask`: the mask belongs to the map, and
    does not take the image's place."""

    name: str
    alias: str = ""
    sliders: tuple[Slider, ...] = (RESOLUTION,)
    tags: tuple[str, ...] = ()
    make: Make | None = None
    file: str = ""
    groups: tuple[tuple[str, ...], ...] = ()  # of the weights that its network reads; of each group one file
    is_model_free: bool = False
    keeps_mask: bool = False
    detector: str = ""  # of the program, whose things it draws
    hidden_resolution: Slider = UNUSED  # what infotexts say of a module without that slider

    @property
    def label(self) -> str:
        """The name that people see."""
        return self.alias or self.name

    @property
    def averages_images(self) -> bool:
        """Whether it takes several images, which count together."""
        return self.name.startswith("ip-adapter")

    @property
    def is_onnx(self) -> bool:
        """Whether its weights are of a form that this program has no runtime for."""
        return self.file.endswith(".onnx")

    @property
    def resolution(self) -> Slider | None:
        return self.sliders[0] if self.sliders and self.sliders[0].name == RESOLUTION.name else None

    @property
    def numbers(self) -> tuple[Slider, Slider]:
        """Numbers of `threshold_a` and `threshold_b`."""
        own = [slider for slider in self.sliders if slider.name != RESOLUTION.name]
        first, second = (*own, UNUSED, UNUSED)[:2]
        return first, second

    def check_files(self, find: Callable[[Sequence[str]], Path]) -> None:
        """Raise `InvalidValueError` where a file of weights is missing."""
        for names in self.groups:
            find(names)

    def run(self, job: Job) -> Pixels:
        """The map [h,w,3]. Raises `InvalidValueError` where its file is missing, or it is not known."""
        if self.make is None:
            why = f" Its weights {self.file} are an ONNX file, which is not computed here." if self.is_onnx else ""
            there = {name: module for name, module in MODULES.items() if module.make is not None}
            alike = [name for name, module in there.items() if set(module.tags) & set(self.tags)]
            raise InvalidValueError(
                f"The preprocessor {self.label} is not there.{why} Make its map elsewhere and use the module none, or "
                f"choose {'one of the same kind' if alike else 'one of'}: {', '.join(sorted(alike or there))}."
            )
        return self.make(job)


def _padded(make: Callable[[Pixels, Job], Pixels], reads_alpha: bool = False) -> Make:
    """Work at the short side asked for, on sides that are multiples of 64, edges repeated; the padding is cut off. What
    is transparent is white, or with `reads_alpha` a fourth channel."""

    def run(job: Job) -> Pixels:
        has_alpha = job.image.ndim == 3 and job.image.shape[2] == 4
        image = fit_side(job.image if reads_alpha and has_alpha else as_rgb(job.image), job.side)
        height, width = image.shape[:2]
        whole = np.pad(image, ((0, -height % PAD), (0, -width % PAD), (0, 0)), mode="edge")
        return as_rgb(np.ascontiguousarray(make(whole, job)[:height, :width]))

    return run


def _by_weights(name: str, groups: Sequence[Sequence[str]]) -> Make:
    """A module of `detectors.modules`, with one file of weights of each group."""

    def run(image: Pixels, job: Job) -> Pixels:
        paths = [job.find(files) for files in groups]
        from lib_controlnet.detectors.modules import made  # PyTorch, which the server does without

        return made(name, image, job, paths)

    return _padded(run)


def _weighted(
    name: str, alias: str, tag: str, *files: str, sliders: tuple[Slider, ...] = (), also: tuple[str, ...] = ()
) -> Module:
    """One of `files` is needed, and all of `also`."""
    tags = ("Scribble", "SparseCtrl") if tag == "Scribble" else (tag,)
    groups = (files, *((name,) for name in also))
    return Module(name, alias, _with(*sliders), tags, _by_weights(name, groups), file=files[0], groups=groups)


def _with(*sliders: Slider) -> tuple[Slider, ...]:
    return (RESOLUTION, *sliders)


def _unchanged(job: Job) -> Pixels:
    return as_rgb(job.image)


def _canny(image: Pixels, job: Job) -> Pixels:
    return canny(image, job.a, job.b)


def _threshold(image: Pixels, job: Job) -> Pixels:
    return np.where(image.min(axis=2) > job.a, 255, 0).astype(np.uint8)


def _xdog(image: Pixels, job: Job) -> Pixels:
    """Extended differences of Gaussians (Winnemoeller 2011), black where the image is darker than around."""
    fine = image.astype(np.float32)
    difference = (blurred(fine, 5.0) - blurred(fine, 0.5)).min(axis=2).clip(0, 255)
    inverse = (255 - difference.clip(0, 255)).astype(np.uint8)
    twice = 2 * (255 - inverse.astype(np.int64)) % 256
    return np.where(twice > job.a, 255, 0).astype(np.uint8)


def _lineart(image: Pixels, job: Job) -> Pixels:
    fine = image.astype(np.float32)
    dark = (blurred(fine, 6.0) - fine).min(axis=2).clip(0, 255)
    there = dark[dark > 8]
    usual = float(np.median(there)) if there.size else 0.0
    found: Pixels = (dark / max(16.0, usual) * 127).clip(0, 255).astype(np.uint8)
    return found


def _blur(job: Job) -> Pixels:
    return blurred_8_bit(fit_side(as_rgb(job.image), job.side), job.a)


def _tile(job: Job) -> Pixels:
    image = as_rgb(job.image)
    if job.a < 1.1:
        return image
    height, width = image.shape[:2]
    return resize_area(image, int(width / job.a), int(height / job.a))


def _things(name: str, min_score: float) -> Make:
    """Draw each thing that a detector of the program finds in a color of its own, small ones over large ones."""

    def run(job: Job) -> Pixels:
        image = Image.fromarray(fit_side(as_rgb(job.image), job.side))
        found = sorted(job.detect(image, name, min_score), key=lambda item: -item.area_px)
        drawn = np.zeros((image.height, image.width, 3), np.uint8)
        for number, item in enumerate(found):
            drawn[np.asarray(item.mask(image.size)) > 127] = COLORS[number % len(COLORS)]
        return drawn

    return run


def _color(job: Job) -> Pixels:
    image = as_rgb(job.image)
    scale = job.side / min(image.shape[:2])
    height, width = (int(np.round(side * scale)) for side in image.shape[:2])
    cells = resize_cubic(resize_area(image, width, height), max(1, width // PAD), max(1, height // PAD))
    return resize_nearest(cells, width, height)


def _luminance(job: Job) -> Pixels:
    return _to_power(lightness(as_rgb(job.image)[:, :, ::-1]), job.a)


def _intensity(job: Job) -> Pixels:
    return _to_power(as_rgb(job.image).max(axis=2), job.a)


def _to_power(level: Pixels, gamma: float) -> Pixels:
    return as_rgb(((level.astype(np.float32) / 255.0) ** gamma * 255.0).clip(0, 255).astype(np.uint8))


def _invert(job: Job) -> Pixels:
    return 255 - as_rgb(job.image)


COLORS = [
    [round(255 * part) for part in hsv_to_rgb(number * 0.618 % 1, 0.7, 1 - number % 3 / 4)] for number in range(64)
]
"""Hues far apart from each other, one after the other."""
SHUFFLED_SIDE = 512
CELL = 256


def _shuffle(job: Job) -> Pixels:
    """The image with its pixels moved by two smooth fields of noise."""
    image = fit_side(as_rgb(job.image), SHUFFLED_SIDE)
    height, width = image.shape[:2]
    random = np.random.RandomState(job.seed % 2**32)
    x = smooth_noise(random, height, width) * (width - 1)
    y = smooth_noise(random, height, width) * (height - 1)
    return sampled_at(image, x, y)


def smooth_noise(random: np.random.RandomState, height: int, width: int) -> npt.NDArray[Any]:
    """A field [height,width] that fills the range from 0 to 1."""
    cells = random.uniform(low=0, high=1, size=(height // CELL + 2, width // CELL + 2, 1)).astype(np.float32)
    large = resize_cubic(cells, width + 2 * CELL, height + 2 * CELL)[:, :, 0]
    middle = large[CELL : CELL + height, CELL : CELL + width]
    low, high = middle.min(), middle.max()
    found: npt.NDArray[Any] = (middle - low) / (high - low)
    return found


PIDINET, HED = "table5_pidinet.pth", "ControlNetHED.pth"
BODY, HANDS, FACES = "body_pose_model.pth", "hand_pose_model.pth", "facenet.pth"
MIDAS = "dpt_hybrid-midas-501f0c75.pt"
THRESHOLDS = (Slider("Low Threshold", 1, 255, 100, 1), Slider("High Threshold", 1, 255, 200, 1))
FIDELITY = Slider("Style Fidelity (only for Balanced mode)", 0.0, 1.0, 0.5)
GAMMA = Slider("Gamma Correction", 0.1, 2.0, 1.0, 0.001)
VARIATION, SHARPNESS = Slider("Variation", 3.0, 32.0, 8.0, 1.0), Slider("Sharpness", 0.0, 2.0, 1.0)
NOISE = Slider("Noise Augmentation", 0.0, 1.0, 0.0)
SAFE = Slider("Safe Steps", 0, 10, 2, 1)
BACKGROUND = Slider("Normal Background Threshold", 0.0, 1.0, 0.4)
LINE_LIMITS = (
    Slider("MLSD Value Threshold", 0.01, 2.0, 0.1),
    Slider("MLSD Distance Threshold", 0.01, 20.0, 0.1),
)
NEAR, FAR = Slider("Remove Near %", 0, 100, 0, 0.1), Slider("Remove Background %", 0, 100, 0, 0.1)

REFERENCES = ("reference_only", "reference_adain", "reference_adain+attn")
INPAINTING = ("inpaint", "inpaint_only", "inpaint_only+lama")
RECOLORING = ("recolor_luminance", "recolor_intensity")
IP_ADAPTERS = ("ip-adapter-auto", "ip-adapter_clip_sd15", "ip-adapter_clip_sdxl", "ip-adapter_clip_sdxl_plus_vith")
"""By name, for those who treat them alike."""


def _reference(name: str) -> Module:
    return Module(name, sliders=_with(FIDELITY), tags=("Reference",), make=_unchanged, is_model_free=True)


def _ip(name: str, alias: str = "") -> Module:
    return Module(name, alias, tags=("IP-Adapter",), make=_unchanged, keeps_mask=True)


_ALL = (
    Module("none", make=_unchanged),
    _ip("ip-adapter-auto"),
    Module(
        "tile_resample",
        sliders=_with(Slider("Down Sampling Rate", 1.0, 8.0, 1.0)),
        tags=("Tile",),
        make=_tile,
    ),
    _weighted("pidinet", "softedge_pidinet", "SoftEdge", PIDINET),
    _weighted("oneformer_ade20k", "seg_ofade20k", "Segmentation", "250_16_swin_l_oneformer_ade20k_160k.pth"),
    _weighted("pidinet_scribble", "scribble_pidinet", "Scribble", PIDINET),
    Module("revision_clipvision", sliders=_with(NOISE), tags=("Revision",), is_model_free=True),
    _reference("reference_only"),
    Module("recolor_luminance", sliders=_with(GAMMA), tags=("Recolor",), make=_luminance),
    _weighted("openpose_full", "", "OpenPose", BODY, also=(HANDS, FACES)),
    _weighted("normal_bae", "", "NormalMap", "scannet.pt"),
    _weighted("mlsd", "", "MLSD", "mlsd_large_512_fp32.pth", sliders=LINE_LIMITS),
    Module("lineart_standard", f"lineart_standard{WHITE_TO_BLACK}", tags=("Lineart",), make=_padded(_lineart)),
    _ip("ip-adapter_clip_sd15", "ip-adapter_clip_h"),
    Module("inpaint_only", sliders=(), tags=("Inpaint",), make=_unchanged, keeps_mask=True),
    _weighted("depth", "depth_midas", "Depth", MIDAS),
    Module("canny", sliders=_with(*THRESHOLDS), tags=("Canny",), make=_padded(_canny, reads_alpha=True)),
    Module(
        "invert",
        f"invert{WHITE_TO_BLACK}",
        sliders=(),
        tags=("Canny", "Lineart", "Scribble", "MLSD"),
        make=_invert,
    ),
    Module("tile_colorfix+sharp", sliders=_with(VARIATION, SHARPNESS), tags=("Tile",), make=_unchanged),
    Module("tile_colorfix", sliders=_with(VARIATION), tags=("Tile",), make=_unchanged),
    Module("threshold", sliders=_with(Slider("Binarization Threshold", 0, 255, 127)), make=_padded(_threshold)),
    Module("clip_vision", "t2ia_style_clipvision", tags=("T2I-Adapter",), file="clip_vision"),
    _weighted("pidinet_sketch", "t2ia_sketch_pidi", "T2I-Adapter", PIDINET),
    Module("color", "t2ia_color_grid", tags=("T2I-Adapter",), make=_color),
    _weighted("softedge_teed", "", "SoftEdge", "7_model.pth", sliders=(SAFE,)),
    _weighted("pidinet_safe", "softedge_pidisafe", "SoftEdge", PIDINET),
    _weighted("hed_safe", "softedge_hedsafe", "SoftEdge", HED),
    _weighted("hed", "softedge_hed", "SoftEdge", HED),
    Module(
        "softedge_anyline",
        sliders=(Slider("Resolution", 64, 2048, 1280, 8), SAFE),
        tags=("SoftEdge",),
        file="MTEED.pth",
    ),
    Module("shuffle", sliders=(), tags=("Shuffle",), make=_shuffle, hidden_resolution=RESOLUTION),
    _weighted("segmentation", "seg_ufade20k", "Segmentation", "upernet_global_small.pth"),
    _weighted("oneformer_coco", "seg_ofcoco", "Segmentation", "150_16_swin_l_oneformer_coco_100ep.pth"),
    Module("anime_face_segment", "seg_anime_face", tags=("Segmentation",), file="UNet.pth"),
    Module(
        "scribble_xdog",
        sliders=_with(Slider("XDoG Threshold", 1, 64, 32)),
        tags=("Scribble", "SparseCtrl"),
        make=_padded(_xdog),
    ),
    _weighted("scribble_hed", "", "Scribble", HED),
    Module("revision_ignore_prompt", sliders=_with(NOISE), tags=("Revision",), is_model_free=True),
    _reference("reference_adain+attn"),
    _reference("reference_adain"),
    Module("recolor_intensity", sliders=_with(GAMMA), tags=("Recolor",), make=_intensity),
    _weighted("openpose_hand", "", "OpenPose", BODY, also=(HANDS,)),
    _weighted("openpose_faceonly", "", "OpenPose", BODY, also=(FACES,)),
    _weighted("openpose_face", "", "OpenPose", BODY, also=(FACES,)),
    _weighted("openpose", "", "OpenPose", BODY),
    _weighted("normal_map", "normal_midas", "NormalMap", MIDAS, sliders=(BACKGROUND,)),
    Module(
        "normal_dsine",
        sliders=_with(Slider("Fov", 0, 360, 60, 0.1), Slider("Iterations", 1, 20, 5, 1)),
        tags=("NormalMap",),
        file="dsine.pt",
    ),
    Module("mobile_sam", tags=("Segmentation",), make=_things("segment:*", 0.7), detector="segment:*"),
    Module(
        "mediapipe_face",
        sliders=_with(Slider("Max Faces", 1, 10, 1, 1), Slider("Min Face Confidence", 0.01, 1.0, 0.5)),
        file="face_landmarker.task",
    ),
    _weighted("lineart", "lineart_realistic", "Lineart", "sk_model.pth"),
    _weighted("lineart_coarse", "", "Lineart", "sk_model2.pth"),
    Module("lineart_anime_denoise", tags=("Lineart",), file="erika.pth"),
    _weighted("lineart_anime", "", "Lineart", "netG.pth"),
    Module("ip-adapter_pulid", sliders=(), tags=("IP-Adapter",), file="eva02_clip_l_336.pt"),
    Module("ip-adapter_face_id_plus", tags=("IP-Adapter",), file="insightface"),
    Module("ip-adapter_face_id", tags=("IP-Adapter",), file="insightface"),
    _ip("ip-adapter_clip_sdxl_plus_vith"),
    _ip("ip-adapter_clip_sdxl", "ip-adapter_clip_g"),
    Module("instant_id_face_keypoints", tags=("Instant-ID",), file="insightface"),
    Module("instant_id_face_embedding", tags=("Instant-ID",), file="insightface"),
    Module("inpaint_only+lama", sliders=(), tags=("Inpaint",), file="ControlNetLama.pth", keeps_mask=True),
    Module("inpaint", "inpaint_global_harmonious", sliders=(), tags=("Inpaint",), make=_unchanged, keeps_mask=True),
    Module("facexlib", sliders=(), file="facexlib"),
    Module("dw_openpose_full", tags=("OpenPose",), file="dw-ll_ucoco_384.onnx"),
    _weighted("depth_zoe", "", "Depth", "ZoeD_M12_N.pt"),
    Module("depth_leres++", sliders=_with(NEAR, FAR), tags=("Depth",), file="res101.pth"),
    _weighted("depth_leres", "", "Depth", "res101.pth", sliders=(NEAR, FAR)),
    Module("depth_hand_refiner", tags=("Depth",), file="hand_landmarker.task"),
    _weighted("depth_anything_v2", "", "Depth", *(f"depth_anything_v2_vit{size}.pth" for size in "lbs")),
    _weighted("depth_anything", "", "Depth", *(f"depth_anything_vit{size}14.pth" for size in "lbs")),
    Module(
        "densepose_parula",
        "densepose_parula (black bg & blue torso)",
        tags=("OpenPose",),
        file="densepose_r50_fpn_dl.torchscript",
    ),
    Module(
        "densepose", "densepose (pruple bg & purple torso)", tags=("OpenPose",), file="densepose_r50_fpn_dl.torchscript"
    ),
    Module("blur_gaussian", sliders=_with(Slider("Sigma", 0.01, 64.0, 9.0)), tags=("Tile",), make=_blur),
    Module(
        "animal_openpose",
        tags=("OpenPose",),
        file="rtmpose-m_simcc-ap10k_pt-aic-coco_210e-256x256-7a041aa1_20230206.onnx",
    ),
)
MODULES: Mapping[str, Module] = {module.name: module for module in _ALL}
"""By their own names, in the order in which lists show them."""
_BY_ANY_NAME = {name.lower(): module for module in _ALL for name in (module.alias, module.name) if name}


def module_of(name: str) -> Module:
    """The module of a name or alias, in any case. Raises `UnknownNameError` that lists them."""
    found = _BY_ANY_NAME.get(name.strip().lower())
    if found is None:
        raise UnknownNameError.of("ControlNet module", name, [module.label for module in _ALL])
    return found
