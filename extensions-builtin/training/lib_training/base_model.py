"""The frozen model that an adapter is trained on: loaded as the program loads it, in any storage format, on request
streamed from its file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from modules.errors import CheckpointError
from modules.memory.streaming.groups import Level
from modules.models.autoencoders.files import VaeInfo
from modules.models.families.family import LoraBase, ModelFamily
from modules.models.families.registry import FAMILIES, detect_family
from modules.models.files.catalogue import CheckpointInfo, old_hash, sha256_of
from modules.models.files.diffusers_folder import stamp
from modules.models.loading.load_model import every, load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from modules.models.opening.checkpoint import open_checkpoint
from modules.processing.engine.precision import storage_rules
from modules.system.devices import has_float8

PLAIN = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LEVELS = {"blocks": Level.BLOCK, "layers": Level.LAYER}


@dataclass(frozen=True)
class FileHashes:
    """A checkpoint's hashes as LoRA files record them: sha256 of the whole file, and the old one of a part of it."""

    sha256: str  # 64 hex digits
    old: str  # 8 hex digits


def load_base(
    path: Path,
    configs_dir: Path,
    storage: str | None,
    device: torch.device,
    stream: str = "off",
    compute: torch.dtype | None = None,
    vae: VaeInfo | None = None,
    offload_dir: Path | None = None,
    reads: Callable[[str], bool] = every,
    modules: Sequence[Path] = (),
) -> LoadedModel:
    """Load a checkpoint for training, its VAE in fp32, computing in fp32 on the CPU and in bf16 elsewhere.

    `storage` is a name of `modules.memory.formats.FORMATS` for UNet and text encoders, or None for the compute dtype;
    with `stream` ("blocks", "layers") weights are read from the file while they are used. Those that the file does not
    hold in this format are written to `offload_dir` once (None: they stay in main memory). Components of which `reads`
    does not say so are left on the meta device. `modules`: files of text encoders and a VAE that go
    before those near the checkpoint.
    Raises `CheckpointError` for a missing file and for all that cannot be loaded.
    """
    try:
        size, mtime_ns = stamp(path)
    except OSError as error:
        raise CheckpointError(f"{path} does not exist. Name the checkpoint that the LoRA is for.") from error
    dtype = compute or (torch.float32 if device.type == "cpu" else torch.bfloat16)
    if storage in PLAIN and (PLAIN[storage] == dtype or stream in LEVELS):
        storage = None  # streamed weights are read as the file has them
    rules = storage_rules(storage) if storage else None

    def plan(family: ModelFamily) -> PrecisionPlan:
        trained_as(family, path.name)
        return PrecisionPlan(
            device=device,
            compute_dtype=dtype,
            vae_dtype=torch.float32,
            float8=has_float8(device),
            mode=ComputeMode.MANUAL if rules else ComputeMode.PLAIN,
            unet_storage=rules.storage if rules else None,
            text_storage=rules.storage if rules else None,
            skip=rules.skip.texts if rules else (),
            streaming=StreamLayout(level=LEVELS[stream], on_disk=True, folder=offload_dir)
            if stream in LEVELS
            else None,
        )

    info = CheckpointInfo(
        path=path,
        name=path.name,
        size_bytes=size,
        mtime_ns=mtime_ns,
        is_folder=path.is_dir(),
        modules=tuple(modules),
    )
    return load_model(info, configs_dir, plan, vae=vae, reads=reads)


def trained_as(family: ModelFamily, name: str) -> LoraBase:
    """How LoRAs for a checkpoint of this name are made. Raises `CheckpointError` for a family that has none."""
    if family.lora_base is None:
        trained = ", ".join(known.label for _, known in FAMILIES.items() if known.lora_base is not None)
        raise CheckpointError(
            f"{name} is of the family {family.label}; LoRAs are trained for {trained} so far. Choose a checkpoint of "
            "that family."
        )
    return family.lora_base


def encodes_apart(path: Path, modules: Sequence[Path] = ()) -> bool:
    """Whether nothing of the text encoders can be trained: then captions and images are encoded before the denoiser is
    read, and the encoders are read from their files layer by layer."""
    with open_checkpoint(path, modules=modules) as file:
        family = detect_family(file)
    trained_as(family, path.name)
    return not family.texts.embedding_components


def file_hashes(path: Path) -> FileHashes:
    """Read the whole file once."""
    return FileHashes(sha256_of(path), old_hash(path))


def parts_identity(model: LoadedModel) -> str:
    """Return the identity of the files besides the checkpoint that its parts came from; "" where there are none."""
    stamps = [(path, path.stat()) for path in model.part_files]
    return "".join(f"/{path}/{stat.st_size}/{stat.st_mtime_ns}" for path, stat in stamps)
