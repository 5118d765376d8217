"""A small stand-in for torchvision, which is never installed next to the program's PyTorch: what extensions use of it
between PIL images and tensors. Everything else of it raises one sentence."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn import functional as nn

from compat.facades.refusal import refused_module
from modules.scripts.acting import acting

SENTENCE = (
    "torchvision is not installed next to the program's PyTorch. Its functions between PIL images and tensors are "
    "there (compat/README.md has their names); models, data sets and video are not."
)
Pixels = Any
"""A PIL image, or a tensor [..., H, W]."""


class InterpolationMode(Enum):
    """How `resize` reads between pixels."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_PIL = {
    InterpolationMode.NEAREST: Image.Resampling.NEAREST,
    InterpolationMode.NEAREST_EXACT: Image.Resampling.NEAREST,
    InterpolationMode.BILINEAR: Image.Resampling.BILINEAR,
    InterpolationMode.BICUBIC: Image.Resampling.BICUBIC,
    InterpolationMode.BOX: Image.Resampling.BOX,
    InterpolationMode.HAMMING: Image.Resampling.HAMMING,
    InterpolationMode.LANCZOS: Image.Resampling.LANCZOS,
}
_TENSOR = ("nearest", "nearest-exact", "bilinear", "bicubic")


def pil_to_tensor(pic: Image.Image) -> Tensor:
    """An image as [C, H, W] with the values that it has."""
    values = np.array(pic)
    return torch.from_numpy(values if values.ndim == 3 else values[:, :, None]).permute(2, 0, 1).contiguous()


def to_tensor(pic: Any) -> Tensor:
    """An image, or an array [H, W, C], as [C, H, W]; bytes become 0 to 1."""
    if isinstance(pic, Image.Image):
        found = pil_to_tensor(pic.convert("L") if pic.mode == "1" else pic)
    else:
        values = np.asarray(pic)
        found = torch.from_numpy(values if values.ndim == 3 else values[:, :, None]).permute(2, 0, 1).contiguous()
    return found.to(torch.get_default_dtype()).div(255) if found.dtype is torch.uint8 else found


def to_pil_image(pic: Any, mode: str | None = None) -> Image.Image:
    """A tensor [C, H, W] or [H, W], or an array [H, W, C], as an image; tensors of floats are 0 to 1."""
    if isinstance(pic, Tensor):
        tensor = pic if pic.ndim == 3 else pic[None]
        if tensor.is_floating_point() and mode != "F":
            tensor = tensor.mul(255).byte()
        values = tensor.detach().cpu().permute(1, 2, 0).numpy()
    else:
        values = np.asarray(pic)
        values = values if values.ndim == 3 else values[:, :, None]
    return Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values).convert(mode)


def convert_image_dtype(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes as 0 to 1, and the way back."""
    if image.dtype is torch.uint8 and dtype.is_floating_point:
        return image.to(dtype) / 255
    if image.is_floating_point() and dtype is torch.uint8:
        return image.mul(255 + 1 - 1e-3).to(dtype)
    return image.to(dtype)


def normalize(tensor: Tensor, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> Tensor:
    """Less a mean, by a standard deviation, for each channel of [..., C, H, W]."""
    shape = (-1, 1, 1)
    middle = torch.as_tensor(mean, dtype=tensor.dtype, device=tensor.device).view(shape)
    spread = torch.as_tensor(std, dtype=tensor.dtype, device=tensor.device).view(shape)
    return (tensor if inplace else tensor.clone()).sub_(middle).div_(spread)


def get_image_size(img: Pixels) -> list[int]:
    """Width and height."""
    return [*img.size] if isinstance(img, Image.Image) else [img.shape[-1], img.shape[-2]]


def get_dimensions(img: Pixels) -> list[int]:
    """Channels, height and width."""
    channels = len(img.getbands()) if isinstance(img, Image.Image) else (1 if img.ndim == 2 else img.shape[-3])
    return [channels, *reversed(get_image_size(img))]


def resize(
    img: Pixels,
    size: int | Sequence[int],
    interpolation: InterpolationMode | str | int = InterpolationMode.BILINEAR,
    max_size: int | None = None,
    antialias: bool | None = True,
) -> Pixels:
    """To a size [height, width]; of one number the shorter side becomes it, the longer one at most `max_size`."""
    mode = _mode(interpolation)
    width, height = get_image_size(img)
    if isinstance(size, int) or len(size) == 1:
        short = size if isinstance(size, int) else size[0]
        long = int(short * max(width, height) / min(width, height))
        if max_size is not None and long > max_size:
            short, long = int(max_size * short / long), max_size
        wanted = (short, long) if width >= height else (long, short)
    else:
        wanted = (int(size[0]), int(size[1]))
    if isinstance(img, Image.Image):
        return img.resize((wanted[1], wanted[0]), _PIL[mode])
    if mode.value not in _TENSOR:
        raise ValueError(f"A tensor cannot be resized by {mode.value}; take {', '.join(_TENSOR)}.")
    smooth = mode in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
    keywords: dict[str, Any] = {"align_corners": False, "antialias": bool(antialias)} if smooth else {}
    flat = img.reshape(-1, *img.shape[-3:]) if img.ndim > 2 else img[None, None]
    found = nn.interpolate(flat if img.is_floating_point() else flat.float(), wanted, mode=mode.value, **keywords)
    if not img.is_floating_point():
        found = found.round().clamp(0, 255).to(img.dtype)
    return found.reshape(*img.shape[:-2], *wanted)


def _mode(interpolation: InterpolationMode | str | int) -> InterpolationMode:
    if isinstance(interpolation, int):
        return next(mode for mode, number in _PIL.items() if int(number) == interpolation)
    return InterpolationMode(interpolation)


def crop(img: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    """A part; what lies outside of the image is 0."""
    if isinstance(img, Image.Image):
        return img.crop((left, top, left + width, top + height))
    whole_width, whole_height = get_image_size(img)
    outside = (max(-left, 0), max(-top, 0), max(left + width - whole_width, 0), max(top + height - whole_height, 0))
    img, top, left = (pad(img, outside), max(top, 0), max(left, 0)) if any(outside) else (img, top, left)
    return img[..., top : top + height, left : left + width]


def center_crop(img: Pixels, output_size: int | Sequence[int]) -> Pixels:
    """The middle, [height, width]; smaller images get a black border."""
    height, width = (output_size, output_size) if isinstance(output_size, int) else (output_size[0], output_size[-1])
    whole_width, whole_height = get_image_size(img)
    return crop(img, round((whole_height - height) / 2.0), round((whole_width - width) / 2.0), height, width)


def resized_crop(
    img: Pixels, top: int, left: int, height: int, width: int, size: int | Sequence[int], *args: Any, **keywords: Any
) -> Pixels:
    """A part, resized."""
    return resize(crop(img, top, left, height, width), size, *args, **keywords)


def pad(img: Pixels, padding: int | Sequence[int], fill: Any = 0, padding_mode: str = "constant") -> Pixels:
    """Add borders: one number, (left and right, top and bottom), or (left, top, right, bottom)."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (sides * 4)[:4] if len(sides) < 4 else sides
    if isinstance(img, Image.Image) and padding_mode == "constant":
        return ImageOps.expand(img, (left, top, right, bottom), fill)
    tensor = pil_to_tensor(img) if isinstance(img, Image.Image) else img
    mode = {"edge": "replicate", "symmetric": "reflect"}.get(padding_mode, padding_mode)
    flat = tensor.reshape(-1, *tensor.shape[-2:]) if tensor.ndim > 2 else tensor[None]
    values = flat if mode == "constant" else flat.float()
    extra: dict[str, Any] = {"value": fill} if mode == "constant" else {}
    found = nn.pad(values, (left, right, top, bottom), mode=mode, **extra).to(tensor.dtype)
    found = found.reshape(*tensor.shape[:-2], *found.shape[-2:])
    return to_pil_image(found) if isinstance(img, Image.Image) else found


def hflip(img: Pixels) -> Pixels:
    """Left and right swapped."""
    return ImageOps.mirror(img) if isinstance(img, Image.Image) else img.flip(-1)


def vflip(img: Pixels) -> Pixels:
    """Top and bottom swapped."""
    return ImageOps.flip(img) if isinstance(img, Image.Image) else img.flip(-2)


def gaussian_blur(img: Pixels, kernel_size: int | Sequence[int], sigma: Any = None) -> Pixels:
    """Blurred by a kernel [width, height] of odd sizes, which is as wide as `sigma` (0.15 of it and 0.35) says."""
    sizes = [kernel_size] * 2 if isinstance(kernel_size, int) else [kernel_size[0], kernel_size[-1]]
    if sigma is None:
        spreads = [0.15 * size + 0.35 for size in sizes]
    else:
        spreads = [float(sigma)] * 2 if isinstance(sigma, (int, float)) else [float(sigma[0]), float(sigma[-1])]
    tensor = pil_to_tensor(img) if isinstance(img, Image.Image) else img
    dtype = tensor.dtype if tensor.is_floating_point() else torch.float32
    across, down = (_bell(size, spread, dtype, tensor.device) for size, spread in zip(sizes, spreads, strict=True))
    kernel = torch.outer(down, across)[None, None]
    flat = tensor.reshape(-1, 1, *tensor.shape[-2:]).to(dtype)
    edges = (sizes[0] // 2, sizes[0] // 2, sizes[1] // 2, sizes[1] // 2)
    found = nn.conv2d(nn.pad(flat, edges, mode="reflect"), kernel).reshape(tensor.shape)
    if not tensor.is_floating_point():
        found = found.round().to(tensor.dtype)
    return to_pil_image(found) if isinstance(img, Image.Image) else found


def _bell(size: int, sigma: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    half = (size - 1) * 0.5
    values = torch.exp(-0.5 * (torch.linspace(-half, half, size, dtype=dtype, device=device) / sigma) ** 2)
    return values / values.sum()


def rgb_to_grayscale(img: Pixels, num_output_channels: int = 1) -> Pixels:
    """The luminance, in one channel or in three that are the same."""
    if isinstance(img, Image.Image):
        gray = img.convert("L")
        return gray if num_output_channels == 1 else Image.merge("RGB", (gray,) * 3)
    weights = torch.tensor([0.2989, 0.587, 0.114], device=img.device).view(3, 1, 1)
    light = (img[..., :3, :, :].float() * weights).sum(-3, keepdim=True).to(img.dtype)
    return light.expand(*img.shape[:-3], num_output_channels, *img.shape[-2:])


to_grayscale = rgb_to_grayscale


def _blended(img: Tensor, other: Any, ratio: float) -> Tensor:
    limit = 1.0 if img.is_floating_point() else 255.0
    mixed: Tensor = ratio * img + (1.0 - ratio) * other
    return mixed.clamp(0, limit).to(img.dtype)


def adjust_brightness(img: Pixels, brightness_factor: float) -> Pixels:
    """0: black, 1: as it is."""
    if isinstance(img, Image.Image):
        return ImageEnhance.Brightness(img).enhance(brightness_factor)
    return _blended(img, 0.0, brightness_factor)


def adjust_contrast(img: Pixels, contrast_factor: float) -> Pixels:
    """0: gray, 1: as it is."""
    if isinstance(img, Image.Image):
        return ImageEnhance.Contrast(img).enhance(contrast_factor)
    mean = rgb_to_grayscale(img).float().mean((-3, -2, -1), keepdim=True)
    return _blended(img, mean, contrast_factor)


def adjust_saturation(img: Pixels, saturation_factor: float) -> Pixels:
    """0: without color, 1: as it is."""
    if isinstance(img, Image.Image):
        return ImageEnhance.Color(img).enhance(saturation_factor)
    return _blended(img, rgb_to_grayscale(img), saturation_factor)


def adjust_sharpness(img: Image.Image, sharpness_factor: float) -> Image.Image:
    """0: blurred, 1: as it is. Of PIL images."""
    return ImageEnhance.Sharpness(img).enhance(sharpness_factor)


def invert(img: Pixels) -> Pixels:
    """The negative."""
    if isinstance(img, Image.Image):
        return ImageOps.invert(img)
    return (1.0 if img.is_floating_point() else 255) - img


def rotate(img: Image.Image, angle: float, *args: Any, expand: bool = False, fill: Any = None, **rest: Any) -> Any:
    """Turned to the left by degrees. Of PIL images."""
    return img.rotate(angle, _PIL[_mode(rest.get("interpolation", InterpolationMode.NEAREST))], expand, fillcolor=fill)


class _Transform:
    """A function with its arguments, to be called with an image."""

    function: Callable[..., Any]

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self._args, self._keywords = args, keywords

    def __call__(self, img: Any) -> Any:
        return type(self).function(img, *self._args, **self._keywords)

    forward = __call__


def _transform(name: str, function: Callable[..., Any]) -> type[_Transform]:
    return type(name, (_Transform,), {"function": staticmethod(function), "__doc__": function.__doc__})


class Compose:
    """Transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, img: Any) -> Any:
        for one in self.transforms:
            img = one(img)
        return img


class Lambda:
    """A function as a transform."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, img: Any) -> Any:
        return self.lambd(img)


class GaussianBlur:
    """`gaussian_blur` with a `sigma` drawn from a range."""

    def __init__(self, kernel_size: int | Sequence[int], sigma: Any = (0.1, 2.0)) -> None:
        self.kernel_size = kernel_size
        self.sigma = (sigma, sigma) if isinstance(sigma, (int, float)) else tuple(sigma)

    def __call__(self, img: Pixels) -> Pixels:
        return gaussian_blur(img, self.kernel_size, random.uniform(*self.sigma))

    forward = __call__


class RandomHorizontalFlip:
    """`hflip` for a part of the images."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, img: Pixels) -> Pixels:
        return hflip(img) if random.random() < self.p else img


def make_grid(
    tensor: Tensor | Sequence[Tensor],
    nrow: int = 8,
    padding: int = 2,
    normalize: bool = False,
    value_range: tuple[float, float] | None = None,
    scale_each: bool = False,
    pad_value: float = 0.0,
    **_: Any,
) -> Tensor:
    """Images [B, C, H, W] as one [3, H, W], `nrow` in a row; with `normalize` their values become 0 to 1."""
    images = tensor if isinstance(tensor, Tensor) else torch.stack(list(tensor))
    images = images[None, None] if images.ndim == 2 else images[None] if images.ndim == 3 else images
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    if normalize:
        parts = images if scale_each else images[None]
        spans = [value_range or (float(part.min()), float(part.max())) for part in parts]
        scaled = [
            (part.clamp(low, high) - low) / max(high - low, 1e-5)
            for part, (low, high) in zip(parts, spans, strict=True)
        ]
        images = torch.stack(scaled) if scale_each else scaled[0]
    if len(images) == 1:
        return images[0]
    across = min(nrow, len(images))
    height, width = images.shape[2] + padding, images.shape[3] + padding
    size = (images.shape[1], height * math.ceil(len(images) / across) + padding, width * across + padding)
    grid = images.new_full(size, pad_value)
    for index, image in enumerate(images):
        top, left = index // across * height + padding, index % across * width + padding
        grid[:, top : top + height - padding, left : left + width - padding] = image
    return grid


def save_image(tensor: Tensor | Sequence[Tensor], fp: Any, format: str | None = None, **keywords: Any) -> None:
    """`make_grid` as a file."""
    values = make_grid(tensor, **keywords).mul(255).add(0.5).clamp(0, 255).permute(1, 2, 0)
    target = str(fp) if isinstance(fp, Path) else fp
    Image.fromarray(values.to("cpu", torch.uint8).numpy()).save(target, format=format)


def box_area(boxes: Tensor) -> Tensor:
    """Areas of boxes [N, 4] (left, top, right, bottom)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Shared part of the joined area, [N, M]."""
    corner = torch.max(boxes1[:, None, :2], boxes2[:, :2])
    size = (torch.min(boxes1[:, None, 2:], boxes2[:, 2:]) - corner).clamp(min=0)
    shared = size[..., 0] * size[..., 1]
    return shared / (box_area(boxes1)[:, None] + box_area(boxes2) - shared)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indexes of the boxes that are kept, the best first: of those that share more than `iou_threshold` only one."""
    order = scores.argsort(descending=True).tolist()
    shared = box_iou(boxes, boxes)
    kept: list[int] = []
    for index in order:
        if not kept or not bool((shared[index, kept] > iou_threshold).any()):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.long, device=boxes.device)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """`nms` for the boxes of each index by themselves."""
    if not len(boxes):
        return torch.empty(0, dtype=torch.long, device=boxes.device)
    apart = idxs.to(boxes)[:, None] * (boxes.max() + 1)
    return nms(boxes + apart, scores, iou_threshold)


_FUNCTIONS: tuple[Callable[..., Any], ...] = (pil_to_tensor, to_tensor, to_pil_image, convert_image_dtype, normalize)
_FUNCTIONS += (get_image_size, get_dimensions, resize, crop, center_crop, resized_crop, pad, hflip, vflip)
_FUNCTIONS += (gaussian_blur, rgb_to_grayscale, adjust_brightness, adjust_contrast, adjust_saturation)
_FUNCTIONS += (adjust_sharpness, invert, rotate)
_FUNCTIONAL = {function.__name__: function for function in _FUNCTIONS}
_FUNCTIONAL |= {"to_grayscale": to_grayscale, "InterpolationMode": InterpolationMode}
_OF_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ToTensor": to_tensor,
    "PILToTensor": pil_to_tensor,
    "ToPILImage": to_pil_image,
    "Pad": pad,
}
_OF_FUNCTIONS |= {"Normalize": normalize, "Resize": resize, "CenterCrop": center_crop, "Grayscale": rgb_to_grayscale}
_OF_FUNCTIONS |= {"ConvertImageDtype": convert_image_dtype}
_CLASSES: dict[str, Any] = {name: _transform(name, function) for name, function in _OF_FUNCTIONS.items()}
_CLASSES |= {one.__name__: one for one in (Compose, Lambda, GaussianBlur, RandomHorizontalFlip)}
_OPS = {one.__name__: one for one in (nms, batched_nms, box_area, box_iou)}

NAMES_BY_MODULE: dict[str, dict[str, Any]] = {
    "torchvision": {"__version__": "0.0", "IS_STAND_IN": True},
    "torchvision.transforms": {**_CLASSES, "InterpolationMode": InterpolationMode},
    "torchvision.transforms.functional": _FUNCTIONAL,
    "torchvision.transforms.transforms": _CLASSES,
    "torchvision.transforms.functional_tensor": _FUNCTIONAL,  # its name until 0.17, which older packages use
    "torchvision.utils": {"make_grid": make_grid, "save_image": save_image},
    "torchvision.ops": _OPS,
    "torchvision.ops.boxes": _OPS,
}
"""What each module of the stand-in has."""


def stand_in(name: str) -> ModuleType:
    """The module `torchvision` or one below it. What it has not can be imported, and says so when it is used."""
    if name == "torchvision":
        _settle()
    module = refused_module(name, SENTENCE)
    module.__dict__.update(NAMES_BY_MODULE.get(name, {}))
    return module


def _settle() -> None:
    """Have transformers look for torchvision now, before the stand-in is there: what it finds it keeps."""
    with acting(None):  # the stand-in is for extensions alone
        from transformers.utils import import_utils

        for look in (import_utils.is_torchvision_available, import_utils.is_torchvision_v2_available):
            look()
