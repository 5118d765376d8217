"""Between latents, tensors of pictures and PIL images."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.models.architecture import LatentFormat


def to_images(pictures: Tensor) -> list[Image.Image]:
    """Pictures [B,3,H,W] in -1..1 to RGB images; values are clamped and rounded down, as the reference UI does."""
    scaled = ((pictures.float() + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0
    array = scaled.permute(0, 2, 3, 1).cpu().numpy().astype(np.uint8)
    return [Image.fromarray(picture) for picture in array]


def from_images(images: list[Image.Image]) -> Tensor:
    """RGB images of one size to pictures [B,3,H,W] float32 in -1..1."""
    array = np.stack([np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0 for image in images])
    return torch.from_numpy(array).permute(0, 3, 1, 2) * 2.0 - 1.0


def preview_image(latents: Tensor, latent_format: LatentFormat, scale: int) -> Image.Image:
    """A cheap look at denoised latents [B,C,h,w]: a linear map to RGB, pictures side by side, enlarged `scale` times.

    Costs a matrix product on a few thousand numbers in place of the decoder.
    """
    assert latent_format.rgb_factors is not None, "this latent format has no preview factors"
    factors = torch.tensor(latent_format.rgb_factors)
    bias = torch.tensor(latent_format.rgb_bias or (0.0, 0.0, 0.0))
    rgb = torch.einsum("bchw,cr->brhw", latents.float().cpu(), factors) + bias[None, :, None, None]
    images = to_images(torch.nan_to_num(rgb))
    columns = int(np.ceil(np.sqrt(len(images))))
    rows = int(np.ceil(len(images) / columns))
    width, height = images[0].size
    sheet = Image.new("RGB", (columns * width, rows * height))
    for index, image in enumerate(images):
        sheet.paste(image, (index % columns * width, index // columns * height))
    return sheet.resize((sheet.width * scale, sheet.height * scale), Image.Resampling.BICUBIC)
