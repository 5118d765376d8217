"""Tiny random models of the families whose denoiser, text encoders and VAE often are files of their own, by part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.dit_files import recipe_tensors
from tests.models.dit_models import TINY
from tests.processing import test_anima as anima
from tests.processing import test_ernie_image as ernie_image
from tests.processing import test_flux3 as flux3
from tests.processing import test_krea2 as krea2
from tests.processing import test_qwen_image as qwen_image
from tests.processing import test_qwen_image21 as qwen_image21

Tensors = dict[str, Tensor]
DENOISER, VAE = "model.diffusion_model.", "vae."


@dataclass(frozen=True)
class SplitModel:
    """`denoiser` and `vae` by names without a beginning; `texts` by the name of a file, with their beginning in a whole
    checkpoint and the names of a file of their own."""

    denoiser: Mapping[str, Tensor]
    texts: Mapping[str, tuple[str, Mapping[str, Tensor]]]
    vae: Mapping[str, Tensor]

    def write(self, root: Path, name: str = "model") -> Path:
        """All parts in the folders that users keep them in; returns the denoiser's file."""
        for text in self.texts:
            self.write_text(root / "text_encoder", text)
        save(root / "VAE" / "vae.safetensors", self.vae)
        return save(root / "Stable-diffusion" / f"{name}.safetensors", self.denoiser)

    def write_text(self, folder: Path, name: str) -> Path:
        """One text encoder."""
        return save(folder / f"{name}.safetensors", self.texts[name][1])


def save(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    return path


def _recipes(denoiser: Tensors, texts: Mapping[str, str], vae: Tensors) -> SplitModel:
    return SplitModel(denoiser, {name: (prefix, recipe_tensors(name)) for name, prefix in texts.items()}, vae)


def _tiny(name: str) -> SplitModel:
    family = TINY[name]
    return _recipes(family.denoiser(), family.encoders, family.vae())


def _z_image() -> SplitModel:
    texts = {"qwen3_4b_tiny": "text_encoders.qwen3_4b.transformer."}
    return _recipes(recipe_tensors("z_image_tiny"), texts, recipe_tensors("flux_ae_tiny"))


def _anima() -> SplitModel:
    parts = anima.modules()
    text = {f"model.{key}": tensor.bfloat16() for key, tensor in parts["text"].state_dict().items()}
    return SplitModel(
        anima.denoiser_tensors(parts),
        {"qwen3_06b": ("text_encoders.qwen3_06b.transformer.", text)},
        _in_16_bits(parts["vae"].state_dict()),
    )


def _krea2() -> SplitModel:
    parts = krea2.modules()
    text = _in_16_bits(krea2.seeing(parts))
    return SplitModel(
        _in_16_bits(krea2.original(parts["transformer"].state_dict())),
        {"qwen3vl_4b": ("text_encoders.qwen3vl_4b.transformer.", text)},
        _in_16_bits(parts["vae"].state_dict()),
    )


def _qwen_image() -> SplitModel:
    parts = qwen_image.modules()
    text = _in_16_bits(qwen_image.seeing(parts))
    return SplitModel(
        _in_16_bits(parts["transformer"].state_dict()),
        {"qwen_2.5_vl_7b": ("text_encoders.qwen25_7b.transformer.", text)},
        _in_16_bits(parts["vae"].state_dict()),
    )


def _qwen_image21() -> SplitModel:
    parts = qwen_image21.modules()
    return SplitModel(
        _in_16_bits(qwen_image21.fused(parts["transformer"].state_dict())),
        {"qwen3vl_8b": ("text_encoders.qwen3vl_8b.transformer.", _in_16_bits(qwen_image21.seeing(parts)))},
        _in_16_bits(parts["vae"].state_dict()),
    )


def _flux3_klein() -> SplitModel:
    parts = flux3.modules()
    return SplitModel(
        _in_16_bits(flux3.original(parts["transformer"].state_dict())),
        {"qwen3vl_4b": ("text_encoders.qwen3vl_4b.transformer.", _in_16_bits(flux3.seeing(parts)))},
        _in_16_bits(parts["vae"].state_dict()),
    )


def _ernie_image() -> SplitModel:
    parts = ernie_image.modules()
    return SplitModel(
        _in_16_bits(parts["transformer"].state_dict()),
        {"ministral-3-3b": ("text_encoders.ministral3_3b.transformer.", ernie_image.text_tensors(parts))},
        _in_16_bits(parts["vae"].state_dict()),
    )


def _in_16_bits(tensors: Mapping[str, Tensor]) -> Tensors:
    return {key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()}


_MODELS: dict[str, Callable[[], SplitModel]] = {
    "z_image": _z_image,
    "anima": _anima,
    "flux1_dev": lambda: _tiny("dev"),
    "flux2_klein": lambda: _tiny("klein"),
    "chroma1": lambda: _tiny("chroma"),
    "krea2": _krea2,
    "qwen_image": _qwen_image,
    "ernie_image": _ernie_image,
    "qwen_image21": _qwen_image21,
    "flux3_klein": _flux3_klein,
}
SPLIT_FAMILIES = tuple(_MODELS)


@cache
def split_model(family: str) -> SplitModel:
    """The model of a family of `SPLIT_FAMILIES`; its tensors are not to be changed."""
    return _MODELS[family]()
