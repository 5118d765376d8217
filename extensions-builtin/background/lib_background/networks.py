"""Networks that tell a foreground from its background, from the user's files: which one a file is, and what it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from lib_background import birefnet, nested_u
from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.keymap import KeyMap

Floats = npt.NDArray[np.float32]
SIGNS = (birefnet.SIGN, nested_u.FIRST)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Sight:
    """How a network sees an image: the side of its square in pixels, the norm of its values, and whether what it says
    counts between its own extremes. `by_brightest`: values are shares of the largest one."""

    side: int
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    is_stretched: bool = False
    by_brightest: bool = False


OF_BIREFNET = Sight(1024)
OF_ISNET = Sight(1024, (0.5, 0.5, 0.5), (1.0, 1.0, 1.0), is_stretched=True)
OF_U2NET = Sight(320, is_stretched=True, by_brightest=True)


class Prefixed(KeyMap):
    """Names of a file with a prefix."""

    def __init__(self, prefix: str) -> None:
        super().__init__(())
        self._prefix = prefix

    def to_ours(self, key: str) -> str | None:
        return key.removeprefix(self._prefix)

    def to_original(self, key: str) -> str | None:
        return self._prefix + key


def build_network(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder`. Raises `CheckpointError` for files of other models."""
    sign = next((sign for sign in SIGNS if any(key.endswith(sign) for key in file.entries)), "")
    if not sign:
        raise CheckpointError(
            f"{file.path.name} is no model that removes backgrounds: it is neither BiRefNet, RMBG, IS-Net nor U-2-Net. "
            "Choose another file."
        )
    prefix = next(key for key in file.entries if key.endswith(sign)).removesuffix(sign)
    shapes = {key.removeprefix(prefix): entry.shape for key, entry in file.entries.items() if key.startswith(prefix)}
    if sign == nested_u.FIRST:
        with on_meta():
            net = nested_u.NestedU(shapes)
        sight = OF_ISNET if net.is_isnet else OF_U2NET
        return AuxiliaryParts(Component("background", net, Prefixed(prefix), (prefix,), ""), facts=sight)
    rows = birefnet.rows_of(shapes, prefix)
    with on_meta():
        whole = birefnet.BiRefNet(shapes)
    birefnet.fill_indices(whole, model.plan.device)
    component = Component("background", whole, rows.keymap(), (prefix,), "")
    return AuxiliaryParts(component, lambda key: bool(birefnet.TRAINING_ONLY.search(key)), OF_BIREFNET, rows)


def square_of(image: Image.Image, sight: Sight, side: int) -> Tensor:
    """An image as the network sees it, [1,3,side,side]."""
    small = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.asarray(small, np.float32)) / 255.0
    if sight.by_brightest:
        values = values / values.max().clamp_min(1e-6)
    return ((values - torch.tensor(sight.mean)) / torch.tensor(sight.std)).permute(2, 0, 1)[None]


@torch.inference_mode()
def foreground(net: Auxiliary, image: Image.Image, side: int = 0) -> Image.Image:
    """How much each pixel belongs to the foreground ("L", in the size of the image); `side` of the square in which the
    network sees it, a multiple of 32; 0: as it was trained. Raises `CheckpointError` for one that computes no
    numbers."""
    sight: Sight = net.facts
    square = square_of(image, sight, side or sight.side)
    found = net.module(square.to(net.device, net.dtype))[0, 0].float()
    if not found.isfinite().all():  # beyond the range of 16 bits
        back = net.compute_on(net.device, torch.float32)
        try:
            found = net.module(square.to(net.device))[0, 0].float()
        finally:
            back()
    if not found.isfinite().all():
        raise CheckpointError(f"{net.path.name} computes no numbers: it is damaged. Get it again.")
    shares = found.sigmoid()
    if sight.is_stretched:
        shares = (shares - shares.min()) / (shares.max() - shares.min()).clamp_min(1e-6)
    mask = Image.fromarray((shares.clamp(0, 1) * 255).round().to("cpu", torch.uint8).numpy())
    return mask.resize(image.size, Image.Resampling.BILINEAR)
