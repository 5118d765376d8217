"""Names of the package basicsr, which cannot be installed next to the program's PyTorch: its functions for downloads
and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from compat.facades.util import load_file_from_url

__all__ = ["img2tensor", "load_file_from_url", "tensor2img"]


def img2tensor(image: Any, bgr2rgb: bool = True, float32: bool = True) -> Any:
    """Return an image [H,W,C] as a tensor [C,H,W]; a list of them as a list."""
    if isinstance(image, list):
        return [img2tensor(one, bgr2rgb, float32) for one in image]
    found = np.ascontiguousarray((image[..., ::-1] if bgr2rgb and image.shape[-1] == 3 else image).transpose(2, 0, 1))
    tensor = torch.from_numpy(found)
    return tensor.float() if float32 else tensor


def tensor2img(tensor: Tensor, rgb2bgr: bool = True, out_type: Any = np.uint8, min_max: Any = (0, 1)) -> Any:
    """Return a tensor [C,H,W] or [1,C,H,W] with values of `min_max` as an image [H,W,C] in 0 to 255."""
    low, high = min_max
    found = (tensor.squeeze(0).float().cpu().clamp(low, high) - low) / (high - low)
    image = found.permute(1, 2, 0).numpy()
    image = image[..., ::-1] if rgb2bgr and image.shape[-1] == 3 else image
    return (image * 255).round().astype(out_type) if out_type is np.uint8 else image.astype(out_type)
