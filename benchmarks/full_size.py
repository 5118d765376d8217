"""Checkpoints of the full size of Stable Diffusion 1, 2 and XL with random weights, written without ever holding it."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.models.families.architecture import LdmArchitecture, read_architecture
from modules.models.families.ldm.denoiser import build_unet
from modules.models.families.sd2.family import TEXT_PREFIX as OPEN_CLIP_PREFIX
from modules.models.families.sdxl.family import BIG_G_PREFIX, CLIP_L_PREFIX
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.load_model import every, load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from modules.models.names.clip_text import clip_text_keymap, open_clip_keymap
from modules.models.names.fused import LayoutWriter
from modules.models.names.keymap import KeyMap
from modules.models.names.ldm_unet import UNetLayout, unet_keymap
from modules.processing.engine.precision import storage_rules

ROOT = Path(__file__).parent.parent
SD1_YAML = ROOT / "configs" / "v1-inference.yaml"
CPU = torch.device("cpu")
SD2_YAML = ROOT / "configs" / "v2-inference.yaml"
SDXL_YAML = ROOT / "configs" / "sd_xl_base.yaml"


def sd1_modules(architecture: LdmArchitecture) -> list[tuple[nn.Module, KeyMap]]:
    """The three components on the meta device with their key maps."""
    unet, vae = architecture.unet_sizes, architecture.autoencoder.component()
    text = CLIPTextConfig(
        vocab_size=49408,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        hidden_act="quick_gelu",
    )
    with torch.device("meta"):
        return [
            (CLIPTextModel(text), clip_text_keymap()),
            (build_unet(unet), unet_keymap(UNetLayout(unet.levels, unet.blocks_per_level, unet.attention_levels))),
            (vae.module, vae.keymap),
        ]


def sd2_modules(architecture: LdmArchitecture) -> list[tuple[nn.Module, KeyMap]]:
    """The three components of SD 2 on the meta device with their key maps."""
    unet, vae = architecture.unet_sizes, architecture.autoencoder.component()
    text = CLIPTextConfig(
        vocab_size=49408, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16
    )
    with torch.device("meta"):
        return [
            (CLIPTextModel(text), open_clip_keymap(OPEN_CLIP_PREFIX, 24, with_projection=False)),
            (build_unet(unet), unet_keymap(UNetLayout(unet.levels, unet.blocks_per_level, unet.attention_levels))),
            (vae.module, vae.keymap),
        ]


def sdxl_modules(architecture: LdmArchitecture) -> list[tuple[nn.Module, KeyMap]]:
    """The four components of SDXL on the meta device with their key maps."""
    unet, vae = architecture.unet_sizes, architecture.autoencoder.component()
    first = CLIPTextConfig(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    second = CLIPTextConfig(
        vocab_size=49408,
        hidden_size=1280,
        intermediate_size=5120,
        projection_dim=1280,
        num_hidden_layers=32,
        num_attention_heads=20,
    )
    with torch.device("meta"):
        return [
            (CLIPTextModel(first), clip_text_keymap(prefix=CLIP_L_PREFIX)),
            (CLIPTextModelWithProjection(second), open_clip_keymap(BIG_G_PREFIX, 32, with_projection=True)),
            (build_unet(unet), unet_keymap(UNetLayout(unet.levels, unet.blocks_per_level, unet.attention_levels))),
            (vae.module, vae.keymap),
        ]


FAMILIES = {"sd1": (sd1_modules, SD1_YAML), "sd2": (sd2_modules, SD2_YAML), "sdxl": (sdxl_modules, SDXL_YAML)}


def write_full_size_checkpoint(path: Path, family: str = "sd1") -> int:
    """Write fp16 weights of the original layout ("sd1", "sd2", "sdxl"), tensor by tensor.

    Returns the number of weights. Values are small (normal, deviation 0.02) so that a forward pass stays finite.
    """
    shapes = _shapes(family)
    _write_random(path, shapes)
    return sum(math.prod(shape) for shape in shapes.values())


def write_full_size_control_net(path: Path, family: str) -> None:
    """Write fp16 weights of a ControlNet for such a checkpoint, by diffusers' names."""
    from diffusers import ControlNetModel

    with torch.device("meta"):
        unet: Any = build_unet(read_architecture(FAMILIES[family][1]).unet_sizes)
        net: Any = ControlNetModel.from_unet(unet, load_weights_from_unet=False)
    _write_random(path, {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()})


def _write_random(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(1 << 24, generator=generator).mul_(0.02).half()
    with LayoutWriter(path, {name: (torch.float16, shape) for name, shape in shapes.items()}, 1024) as writer:
        for index, (name, shape) in enumerate(shapes.items()):
            writer.write(name, _turned(numbers, index, math.prod(shape)).reshape(shape))


def _turned(numbers: Tensor, by: int, count: int) -> Tensor:
    """The first `count` of `numbers` rolled by `by` and repeated, without rolling them all: most tensors are small."""
    first = numbers[len(numbers) - by :]
    if count <= by:
        return first[:count]
    turned = torch.cat([first, numbers[: min(count, len(numbers)) - by]])
    return turned.repeat(-(-count // len(turned)))[:count] if count > len(turned) else turned


def write_full_size_header(path: Path, family: str) -> None:
    """Write the header of such a checkpoint, with a hole instead of the weights: it takes no room on the disk."""
    _write_header(path, _shapes(family))


def _shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Of the tensors of such a checkpoint, by their names in it."""
    make, yaml = FAMILIES[family]
    shapes: dict[str, tuple[int, ...]] = {}
    for module, keymap in make(read_architecture(yaml)):
        for key, tensor in module.state_dict().items():
            original = keymap.to_original(key)
            assert original is not None
            shapes[original] = tuple(keymap.tensor_to_original(key, tensor).shape)
    return shapes


def _write_header(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def use_every_page(modules: Iterable[nn.Module]) -> None:
    """Read something of each page of the weights: mapped ones come into memory at their first use."""
    for module in modules:
        for weight in module.parameters():
            if not weight.is_meta:
                weight.detach().flatten().view(torch.uint8)[::2048].sum()


def load_through_program(
    path: Path,
    storage: str | None,
    dtype: torch.dtype,
    device: torch.device = CPU,
    streaming: StreamLayout | None = None,
    mode: ComputeMode | None = None,
    modules: tuple[Path, ...] = (),
    reads: Callable[[str], bool] = every,
) -> LoadedModel:
    """Load a checkpoint as a job would: UNet and text encoders in `storage` (None: in `dtype`), computed in `dtype`,
    by a cast in each layer where `mode` says nothing else. `modules`: files with its other parts."""
    info = replace(
        CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).get(path.name), modules=modules
    )
    plan = PrecisionPlan(
        device=device,
        compute_dtype=dtype,
        vae_dtype=dtype,
        mode=mode or (ComputeMode.PLAIN if storage is None else ComputeMode.MANUAL),
        unet_storage=storage,
        text_storage=storage,
        skip=storage_rules(storage).skip.texts if storage else (),
        streaming=streaming,
    )
    return load_model(info, ROOT / "configs", lambda _: plan, reads=reads)
