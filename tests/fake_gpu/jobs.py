"""Whole jobs with every family's tiny files, on a GPU that is made up or on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from modules.flags.flags import parse_flags
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import machine_of
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.settings.values import Settings
from modules.system.devices import collect_garbage
from tests.extensions import adapters_of
from tests.fake_gpu.card import NARROW, FakeCard
from tests.fake_gpu.tensor import CardTensor
from tests.models.dit_files import write_split
from tests.models.dit_models import TINY, write_parts
from tests.models.family_files import write_family
from tests.processing.test_anima import BLOCKS
from tests.processing.test_anima import modules as anima_modules
from tests.recordings import CONFIGS

UNETS = ("sd1", "sd1-inpainting", "sd2", "sdxl", "sdxl-refiner", "sd3")
TRANSFORMERS = {"flux1": "dev", "flux2": "klein", "chroma": "chroma"}
FAMILIES = ("sd1", "sd2", "sdxl", "sd3", *TRANSFORMERS, "z-image", "anima")
USUAL_FAMILIES = ("sd1", "flux1", "z-image")
"""One of each kind of denoiser: a UNet, a transformer with joint streams, and one with one stream."""
PRODUCTS = NARROW | {"_int_mm", "_scaled_mm"}
TABLES_BYTES = 1 << 20  # of formats that look values up, 0.6 MB to encode code4: they are kept for the next model
LORAS = {
    "unet": ("lora_unet_middle_block_1_transformer_blocks_0_attn1_to_q", 64),
    "sd3": ("lora_unet_transformer_blocks_0_attn_to_q", 128),
    "z-image": ("diffusion_model.layers.0.attention.to_q", 256),
    "flux2": ("lora_unet_double_blocks_0_img_attn_proj", 128),
}
"""One layer's name and width, by the family."""
FEW_LAYERS = 3


def write_loras(root: Path) -> None:
    """The files of LoRAs, of which those of a family are named after it."""
    loras = root / "loras"
    loras.mkdir()
    for name, (key, width) in LORAS.items():
        torch.manual_seed(1)
        factors = {"lora_down": torch.randn(4, width) / width**0.5, "lora_up": torch.randn(width, 4)}
        save_file({f"{key}.{part}.weight": tensor for part, tensor in factors.items()}, loras / f"{name}.safetensors")


def _leave_few_layers(path: Path) -> None:
    """Of a language model of which one hidden state is used, so that any number of layers does."""
    layers = tuple(f"model.layers.{number}." for number in range(FEW_LAYERS))
    few = {key: tensor for key, tensor in load_file(path).items() if key.startswith(layers) or ".layers." not in key}
    save_file(few, path)


def _write_anima(root: Path) -> None:
    from modules.models.families.anima.layout import adapter_keymap, transformer_keymap

    parts, tensors = anima_modules(), {}
    for part, keymap in (("transformer", transformer_keymap(BLOCKS)), ("adapter", adapter_keymap())):
        for key, tensor in parts[part].state_dict().items():
            name = str(keymap.to_original(key)).replace("model.diffusion_model.", "net.")
            tensors[name] = tensor.bfloat16().contiguous()
    text = {f"model.{key}": tensor.bfloat16() for key, tensor in parts["text"].state_dict().items()}
    vae = {key: tensor.bfloat16() for key, tensor in parts["vae"].state_dict().items()}
    for folder, name, state in (
        ("Stable-diffusion", "anima", tensors),
        ("text_encoder", "qwen", text),
        ("VAE", "vae", vae),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        save_file(state, root / folder / f"{name}.safetensors")


def root_of(root: Path, family: str) -> Path:
    """The folder of a family's files, which are written when they are first asked for; a transformer has its parts in a
    folder of its own."""
    folder = root / ("unets" if family in UNETS else family)
    if family in UNETS:
        models = folder / "Stable-diffusion"
        models.mkdir(parents=True, exist_ok=True)
        for name in (family, *(["sdxl-refiner"] if family == "sdxl" else [])):
            if not (models / f"{name}.safetensors").exists():
                write_family(models, name)
    elif folder.is_dir():
        pass
    elif family in TRANSFORMERS:
        write_parts(folder, TINY[TRANSFORMERS[family]], family)
    elif family == "z-image":
        write_split(folder, "zimage-turbo-cfg1")
        _leave_few_layers(folder / "text_encoder" / "qwen3_4b_tiny.safetensors")
    else:
        _write_anima(folder)
    return folder


def engine_of(root: Path, family: str, *flags: str, checkpoints: Path | None = None) -> Engine:
    """An engine for a family's files, on the device that these flags choose."""
    folder = root_of(root, family)
    catalogue = CheckpointCatalogue([checkpoints or folder / "Stable-diffusion"], HashCache(root / "hashes.json"))
    modules = ModuleCatalogue([folder / "text_encoder", folder / "VAE"])
    parsed = parse_flags(list(flags))
    return Engine(
        catalogue,
        CONFIGS,
        lambda: machine_of(parsed, root / "off"),
        models=ExtraModels(adapters=adapters_of(root / "loras"), modules=modules),
    )


def request_of(family: str, settings: dict[str, Any] | None = None, **changes: Any) -> GenerationRequest:
    """A small job."""
    is_unet = family in UNETS
    fields: dict[str, Any] = {
        **{"prompt": "a red cat", "negative_prompt": "blurry" if is_unet else "", "seed": 1, "subseed": 0},
        **{"steps": 2, "width": 64, "height": 64, "sampler": "Euler", "save_images": False},
        **{"cfg_scale": 5.0 if is_unet else 1.0, "settings": Settings().changed(**(settings or {}))},
    }
    if is_unet:
        fields["checkpoint"] = family
    return GenerationRequest(**{**fields, **changes})


def made(engine: Engine, family: str, settings: dict[str, Any] | None = None, **changes: Any) -> Result:
    """The job's result."""
    return generate(request_of(family, settings, **changes), engine, Output(Path()), Silent())


def pixels(result: Result) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of all its images, one above the other."""
    return np.concatenate([np.asarray(sample.image.convert("RGB")).astype(np.int64) for sample in result.samples])


def leave(engine: Engine) -> None:
    """Let go of everything an engine holds."""
    engine.unload()
    collect_garbage()


@dataclass
class Dtypes:
    """Which dtypes products had, by component: of what was multiplied, and of the result."""

    seen: dict[str, set[tuple[torch.dtype, torch.dtype]]] = field(default_factory=lambda: defaultdict(set))
    stack: list[str] = field(default_factory=list)

    def __call__(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        if name in PRODUCTS and self.stack and isinstance(result, CardTensor):
            given = next(value.dtype for value in args if isinstance(value, CardTensor))
            self.seen[self.stack[-1]].add((given, result.dtype))


@contextmanager
def watching_dtypes(card: FakeCard, engine: Engine) -> Iterator[Dtypes]:
    """What the components of the engine's model multiply while this is open."""
    found = Dtypes()
    model = engine._model
    assert model is not None
    parts: dict[str, nn.Module] = {"unet": model.unet, "vae": model.vae, **model.text_encoders}
    hooks = []
    card.watches.append(found)
    for name, part in parts.items():
        for layer in part.modules():
            hooks.append(layer.register_forward_pre_hook(lambda *_, name=name: found.stack.append(name)))
            hooks.append(layer.register_forward_hook(lambda *_: found.stack.pop() and None, always_call=True))
    try:
        yield found
    finally:
        card.watches.remove(found)
        for hook in hooks:
            hook.remove()
