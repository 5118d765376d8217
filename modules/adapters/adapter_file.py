"""A file of the LoRA family: its tensors by layer. Never runs code that a file brings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.algorithms import full, glora, ia3, loha, lokr, lora, oft
from modules.adapters.algorithms.adapter import COMMON_ENDS, Adapter, Factors
from modules.errors import CheckpointError, InvalidValueError
from modules.models.detection.kinds import ADAPTERS, row_of
from modules.models.files.tensor_file import TensorFile

BUNDLE = "bundle_emb."
NAMED_FACTOR = re.compile(r"\.(lora_[AB])\.[^.]+\.weight$")
"""PEFT puts the name of an adapter ("default") between."""
STREAM_FACTOR = re.compile(r"^(.*(?:double|single)_blocks\.\d+)\.processor\.(qkv|proj)_lora([12]?)\.(down|up)\.weight$")
"""XLabs names the attention processors of a transformer of two streams: 1 is the image's, 2 the text's; without a
number both are one."""
STREAM_LAYERS = {
    ("qkv", "1"): "img_attn.qkv",
    ("proj", "1"): "img_attn.proj",
    ("qkv", "2"): "txt_attn.qkv",
    ("proj", "2"): "txt_attn.proj",
    ("qkv", ""): "linear1",
    ("proj", ""): "linear2",
}
"""Layers of the original layout that they mean."""
PROCESSOR_FACTOR = re.compile(r"^(.*\.processor\.to_(?:q|k|v|out)_lora)\.(down|up)\.weight$")
"""Attention processors of diffusers before PEFT."""
FLAT_STARTS = ("lora_", "oft_", "lycoris_")
ALGORITHMS: tuple[tuple[Callable[[Factors], Adapter | None], frozenset[str]], ...] = (
    (lora.read_lora, lora.ENDS),
    (loha.read_loha, loha.ENDS),
    (ia3.read_ia3, ia3.ENDS),
    (lokr.read_lokr, lokr.ENDS),
    (glora.read_glora, glora.ENDS),
    (oft.read_oft, oft.ENDS),
    (full.read_full, full.ENDS),  # last: a change of the bias may be next to any other algorithm
)
"""How each is read, and the ends of its tensors' names. A new one is a file in `algorithms` and a line here."""


@dataclass(frozen=True)
class AdapterFile:
    """Contents of a file: one `Adapter` a layer, by the layer's name in the file, and bundled embeddings."""

    adapters: Mapping[str, Adapter]
    embeddings: Mapping[str, Mapping[str, Tensor]]


def read_adapter_file(path: Path) -> AdapterFile:
    """Read a whole file into main memory. Raises `AdapterError` that says what is wrong with it."""
    tensors = read_tensors(path)
    other = row_of(tensors, ADAPTERS)
    if other is not None:
        said = f"{other.name}, which belongs into models/{other.folder}" if other.is_read else other.sentence
        raise AdapterError(f"{path.name}: is {said}. Choose a file of the LoRA family.")
    layers: dict[str, dict[str, Tensor]] = {}
    bundled: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.element_size() == 1:
            tensor = tensor.to(torch.float16)  # which has every number of the 8-bit formats
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise AdapterError(f"{path.name}: {key} holds NaN or infinite values. The file is damaged: get it again.")
        if key.startswith(BUNDLE):
            name, _, rest = key.removeprefix(BUNDLE).partition(".")
            bundled.setdefault(name, {})[rest] = tensor
            continue
        layer, end = split_key(key)
        layers.setdefault(layer, {})[end] = tensor
    if not layers:
        raise AdapterError(f"{path.name}: no adapter in it. Choose a LoRA, LoHa, LoKr, IA3, OFT or GLoRA file.")
    adapters: dict[str, Adapter] = {}
    unknown = []
    for layer, factors in layers.items():
        try:
            adapter = read_adapter(factors)
        except InvalidValueError as error:
            raise AdapterError(
                f"{path.name}: {layer}: {error}. The file is damaged, or its algorithm is not known here."
            ) from error
        if adapter is None:
            unknown.append(f"{layer} ({', '.join(sorted(factors))})")
            continue
        if adapter.rank == 0:
            raise AdapterError(f"{path.name}: {layer} has rank 0. The file is damaged: get it again.")
        adapters[layer] = adapter
    if unknown:
        raise AdapterError(
            f"{path.name}: {len(unknown)} layers are of no known algorithm: {'; '.join(unknown[:3])}. "
            "It may be a ControlNet or a checkpoint: choose an adapter of the LoRA family."
        )
    return AdapterFile(adapters, bundled)


def split_key(key: str) -> tuple[str, str]:
    """A tensor's name as layer and end: at the first dot for kohya's names, before the known ends for dotted ones."""
    key = NAMED_FACTOR.sub(r".\1.weight", key)
    stream = STREAM_FACTOR.match(key)
    if stream is not None:
        return f"{stream[1]}.{STREAM_LAYERS[stream[2], stream[3]]}", f"lora_{stream[4]}.weight"
    processor = PROCESSOR_FACTOR.match(key)
    if processor is not None:
        return processor[1], f"lora.{processor[2]}.weight"
    if "." not in key or key.startswith(FLAT_STARTS):
        layer, _, end = key.partition(".")
        return layer, end
    for end in DOTTED_ENDS:
        if key.endswith(f".{end}"):
            return key.removesuffix(f".{end}"), end
    layer, _, end = key.rpartition(".")
    return layer, end


DOTTED_ENDS = (
    "lora_magnitude_vector.weight",
    *("lora_up.weight", "lora_down.weight", "lora_mid.weight", "lora_A.weight", "lora_B.weight"),
    *("lora.up.weight", "lora.down.weight", "lora_linear_layer.up.weight", "lora_linear_layer.down.weight"),
    *("a1.weight", "a2.weight", "b1.weight", "b2.weight"),
)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file by name; pickles are read with PyTorch's weights-only loader."""
    try:
        if path.suffix.lower() == ".safetensors":
            with TensorFile(path) as file:
                return {name: file.read(name) for name in file.entries}
    except CheckpointError as error:
        raise AdapterError(str(error)) from error
    except OSError as error:
        raise AdapterError(f"{path.name}: cannot be read ({error.strerror}). Refresh the list of adapters.") from error
    loaded = read_pickle(path, " Files of this kind can run programs; get a .safetensors file.")
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise AdapterError(f"{path.name}: no table of tensors in it. Choose an adapter of the LoRA family.")
    return {str(name): tensor for name, tensor in loaded.items()}


def read_adapter(factors: Factors) -> Adapter | None:
    """The change that a layer's tensors describe, or None for tensors of no known algorithm.

    Raises `InvalidValueError` for factors that cannot be, and for tensors next to a known algorithm that mean nothing
    here: without them the change would be another one than was trained.
    """
    for read, ends in ALGORITHMS:
        adapter = read(factors)
        if adapter is None:
            continue
        unread = sorted(factors.keys() - ends - COMMON_ENDS)
        if unread:
            raise InvalidValueError(f"{', '.join(unread)} beside it means nothing here")
        return adapter
    return None


def read_pickle(path: Path, advice: str = "") -> Any:
    """Read a file of PyTorch by its weights-only loader. Raises `AdapterError`, with `advice` at its end where
    the file is refused."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise AdapterError(f"{path.name}: cannot be read ({error.strerror}). Refresh the list of adapters.") from error
    except Exception as error:  # the loader raises whatever the pickle makes it raise
        raise AdapterError(
            f"{path.name}: refused: it holds more than tensors, or is damaged ({type(error).__name__}).{advice}"
        ) from error
