"""Which lines of text files fit an image best, by CLIP: Radford et al. 2021 (arXiv:2103.00020)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from modules.captioning.blip import loaded, pixel_values
from modules.system.decoding import decode_text

BATCH = 256
_TOP = re.compile(r"\.top(\d+)$")


class ClipRanks:
    """A model of a folder on a device."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Raises `CheckpointError` that names the folder."""
        from transformers import AutoTokenizer, CLIPModel

        self.folder = folder
        self._device = device
        self._model = loaded(CLIPModel, folder, "CLIP").to(device).eval()
        self._tokenizer = loaded(AutoTokenizer, folder, "CLIP's tokenizer")

    @torch.inference_mode()
    def best(self, image: Image.Image, lists: Path, skip: Collection[str], limit: int) -> Iterator[tuple[str, float]]:
        """The best lines of each list, with the percentage that CLIP gives them among the lines of their list.

        A list is a text file `NAME.txt`, or `NAME.topN.txt` for its N best lines. `limit`: lines that are read of
        each; 0: all.
        """
        side = self._model.config.vision_config.image_size
        seen = self._unit(self._model.get_image_features(pixel_values=pixel_values(image, side).to(self._device)))
        for file in sorted(lists.glob("*.txt")):
            top = _TOP.search(file.stem)
            if _TOP.sub("", file.stem) in skip:
                continue
            lines = [line.strip() for line in decode_text(file.read_bytes()).splitlines()]
            lines = [line for line in lines if line][: limit or None]
            if lines:
                shares = (100.0 * seen @ self._texts(lines).T).softmax(-1)[0]
                found = shares.topk(min(int(top.group(1)) if top else 1, len(lines)))
                for share, index in zip(found.values.tolist(), found.indices.tolist(), strict=True):
                    yield lines[index], share * 100

    def _texts(self, lines: list[str]) -> Tensor:
        parts = []
        for start in range(0, len(lines), BATCH):
            tokens = self._tokenizer(
                lines[start : start + BATCH], padding=True, truncation=True, max_length=77, return_tensors="pt"
            ).to(self._device)
            features = self._model.get_text_features(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            )
            parts.append(self._unit(features))
        return torch.cat(parts)

    @staticmethod
    def _unit(features: object) -> Tensor:
        """Vectors [n,d] of length 1; transformers 5 wraps them."""
        found = features if isinstance(features, Tensor) else features.pooler_output  # type: ignore[attr-defined]
        unit: Tensor = found / found.norm(dim=-1, keepdim=True)
        return unit
