"""Models of full size in separate files, as users have them: a denoiser, text encoders and a VAE with random weights,
in 8 bits where such files have them, written tensor by tensor; and the denoiser of a peer that holds one block of each
type."""

import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.plan_table import CASES, Case, write_case
from modules.models.families.denoiser_context import ModelInputs
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.files.tensor_writer import TensorWriter
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.meta_model import MetaModel, build_meta_model
from tests.models.dit_files import full_header

ROOT = Path(__file__).parent.parent
IN_BLOCKS = re.compile(r"(layers|blocks?|refiner)\.\d+\.")
"""Names of layers in the long row of blocks: the ones that 8-bit files hold in 8 bits."""
DEVIATION = 0.02
CODES_DEVIATION = 40.0
POOL = 1 << 24

NORM_SCALE = re.compile(r"norm.*(weight|scale)$")


def write_parts(root: Path, case: Case) -> Path:
    """The files of a family in the folders that users keep them in, matrices of blocks in int8 with a scale per row;
    returns the denoiser's."""
    for encoder in case.encoders:
        write_part(root / "text_encoder" / f"{encoder}.safetensors", encoder)
    write_part(root / "VAE" / f"{case.vae}.safetensors", case.vae, in_int8=False)
    path = root / "Stable-diffusion" / f"{case.denoiser}.safetensors"
    write_part(path, case.denoiser)
    return path


def write_part(path: Path, key_list: str, in_int8: bool = True) -> None:
    """One file of a full model's names and shapes. Deviation 0.02; norms and variances are ones, so that a forward
    pass stays finite."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for name, entry in full_header(key_list).items():
        is_matrix = len(entry.shape) == 2 and name.endswith(".weight") and IN_BLOCKS.search(name) is not None
        if in_int8 and is_matrix and min(entry.shape) >= 64:
            shapes[name] = (torch.int8, entry.shape)
            shapes[f"{name.removesuffix('weight')}scale_weight"] = (torch.float32, (entry.shape[0], 1))
        else:
            shapes[name] = (torch.bfloat16, entry.shape)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(POOL, generator=generator)
    codes, values = noise.mul(CODES_DEVIATION).clamp(-127, 127).to(torch.int8), noise.mul(DEVIATION).bfloat16()
    with TensorWriter(path, shapes, 1024) as writer:
        for index, (name, (dtype, shape)) in enumerate(shapes.items()):
            if name.endswith("scale_weight"):
                writer.write(name, torch.full(shape, DEVIATION / CODES_DEVIATION))
            elif len(shape) == 1 and (name.endswith("running_var") or NORM_SCALE.search(name)):
                writer.write(name, torch.ones(shape, dtype=dtype))
            else:
                count = math.prod(shape)
                pool = (codes if dtype == torch.int8 else values).roll(index)
                writer.write(name, pool.repeat(-(-count // POOL))[:count].reshape(shape))


def write_denoiser(root: Path, label: str) -> CheckpointInfo:
    """The denoiser of a family of `benchmarks.plan_table` in int8, its other parts as headers alone; what is there
    already stays."""
    case = next(case for case in CASES if case.label == label)
    path = root / "Stable-diffusion" / f"{case.denoiser}.safetensors"
    if not path.exists():
        write_case(root, case)
        path.unlink()
        write_part(path, case.denoiser)
    return info_with_parts(path)


def info_with_parts(path: Path) -> CheckpointInfo:
    """What the program knows of a denoiser's file, with all text encoders and VAEs in the folders beside its own."""
    root = path.parent.parent
    parts = (*sorted((root / "text_encoder").iterdir()), *sorted((root / "VAE").iterdir()))
    return replace(CheckpointCatalogue([path.parent], HashCache(root / "hashes.json")).get(path.name), modules=parts)


def peer_denoiser(case: Case) -> tuple[MetaModel, Any]:
    """That of `peer_of` in bf16."""
    with tempfile.TemporaryDirectory() as folder:
        name = write_case(Path(folder), case)  # headers alone
        return peer_of(info_with_parts(Path(folder) / "Stable-diffusion" / name))


def peer_of(info: CheckpointInfo, dtype: torch.dtype = torch.bfloat16) -> tuple[MetaModel, Any]:
    """What the program knows of a model, and the class of diffusers for its denoiser, with all its blocks. Blocks of
    one shape share their weights, so that it fits into memory: each call reads as many bytes, as a block is larger than
    the caches."""
    model = build_meta_model(info, ROOT / "configs")
    denoiser: Any = model.module("unet")
    share_blocks(denoiser)
    denoiser = denoiser.to(dtype).to_empty(device="cpu").eval().requires_grad_(False)
    for name, tensor in denoiser.named_parameters():
        if tensor.ndim == 1 and NORM_SCALE.search(name):
            tensor.fill_(1)
        else:
            tensor.normal_(std=DEVIATION)
    return model, denoiser


def share_blocks(module: nn.Module) -> None:
    """Have blocks of the same shapes in a list be one block."""
    for part in list(module.modules()):
        if not isinstance(part, nn.ModuleList):
            continue
        first: dict[tuple[object, ...], nn.Module] = {}
        for index, block in enumerate(part):
            shapes = tuple((name, tuple(weight.shape)) for name, weight in block.state_dict().items())
            part[index] = first.setdefault((type(block), shapes), block)


@torch.inference_mode()
def flow_step(
    model: MetaModel | LoadedModel, denoiser: Any, side_px: int, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """One call of a denoiser, ours or the peer's, for an image of so many pixels a side: [1, C, h, w]."""
    side = side_px // model.architecture.autoencoder.downscale
    generator = torch.Generator().manual_seed(0)

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.rand(shape, generator=generator).to(dtype)

    inputs: ModelInputs = model.family.example_inputs(denoiser, (1, side, side), dtype, make)
    return model.family.denoiser.run(denoiser, inputs)
