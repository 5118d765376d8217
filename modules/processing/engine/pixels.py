"""Between latents, tensors of images and PIL images."""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from modules.models.autoencoders.autoencoder import PreviewFactors


def to_images(images: Tensor) -> list[Image.Image]:
    """Images [B,3,H,W] in -1..1 to RGB images; values are clamped and rounded down, as the reference UI does."""
    scaled = ((images.float() + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0
    array = scaled.permute(0, 2, 3, 1).cpu().numpy().astype(np.uint8)
    return [Image.fromarray(image) for image in array]


def from_images(images: list[Image.Image]) -> Tensor:
    """RGB images of one size to images [B,3,H,W] float32 in -1..1."""
    array = np.stack([np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0 for image in images])
    return torch.from_numpy(array).permute(0, 3, 1, 2) * 2.0 - 1.0


def cheap_images(latents: Tensor, preview: PreviewFactors, scale: int) -> list[Image.Image]:
    """A cheap look at denoised latents [B,C,h,w]: a linear map to RGB, enlarged `scale` times.

    Costs a matrix product on a few thousand numbers instead of the decoder.
    """
    factors, bias = torch.tensor(preview.factors), torch.tensor(preview.bias)
    if preview.patch > 1:
        latents, scale = F.pixel_shuffle(latents, preview.patch), scale // preview.patch
    rgb = torch.einsum("bchw,cr->brhw", latents.float().cpu(), factors) + bias[None, :, None, None]
    size = (latents.shape[3] * scale, latents.shape[2] * scale)
    return [image.resize(size, Image.Resampling.BICUBIC) for image in to_images(torch.nan_to_num(rgb))]


def side_by_side(images: list[Image.Image]) -> Image.Image:
    """Images of one size in a grid that is about as wide as high."""
    if len(images) == 1:
        return images[0]
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    width, height = images[0].size
    sheet = Image.new("RGB", (columns * width, rows * height))
    for index, image in enumerate(images):
        sheet.paste(image, (index % columns * width, index // columns * height))
    return sheet
