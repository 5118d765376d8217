"""BLIP writes a sentence about an image. Li et al. 2022 (arXiv:2201.12086), through transformers, from a folder or from
a file of BLIP's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.errors import CheckpointError

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Of the images that CLIP was trained with, which BLIP took over."""


class BlipCaptioner:
    """A model on a device. Nothing is looked up on the network."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """`folder`: in the layout of transformers, or a file of BLIP's own. Raises `CheckpointError` that names it."""
        from transformers import AutoTokenizer, BlipForConditionalGeneration

        self.folder = folder
        self._device = device
        self._tokenizer: Any
        if folder.is_file():
            from modules.captioning.blip_file import load_blip_file

            model, self._tokenizer = load_blip_file(folder)
        else:
            model = loaded(BlipForConditionalGeneration, folder, "BLIP")
            self._tokenizer = loaded(AutoTokenizer, folder, "BLIP's tokenizer")
        self._model = model.to(device).eval()

    @torch.inference_mode()
    def caption(self, image: Image.Image, *, beams: int, min_tokens: int, max_tokens: int) -> str:
        """A sentence of at least `min_tokens` and at most `max_tokens` tokens."""
        side = self._model.config.vision_config.image_size
        tokens = self._model.generate(
            pixel_values=pixel_values(image, side).to(self._device),
            num_beams=beams,
            min_length=min_tokens,
            max_length=max_tokens,
        )
        text: str = self._tokenizer.decode(tokens[0], skip_special_tokens=True)
        return " ".join(text.split())


def pixel_values(image: Image.Image, side_px: int) -> Tensor:
    """[1,3,side,side], as CLIP's vision models take it; the image is stretched to a square."""
    square = image.convert("RGB").resize((side_px, side_px), Image.Resampling.BICUBIC)
    unit = torch.from_numpy(np.array(square, np.float32) / 255.0)
    normal = (unit - torch.tensor(MEAN)) / torch.tensor(STD)
    return normal.permute(2, 0, 1)[None].contiguous()


def loaded(model_class: Any, folder: Path, what: str) -> Any:
    """`model_class.from_pretrained` of files alone; raises `CheckpointError`."""
    try:
        return model_class.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"{what} cannot be read from {folder}: {reason} The folder must be complete, in the layout of transformers."
        ) from error
