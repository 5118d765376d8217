"""Toy checkpoints of a few tensors, named like a model's: a merge into 16 or 32 bits needs no more."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from lib_workbench.merging.merge import MergeResult, Progress, merge
from lib_workbench.merging.request import MergeOptions, MergeRequest, resolve
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.processing.engine.precision import storage_rules
from tests.recordings import CONFIGS

CONV_IN = "model.diffusion_model.input_blocks.0.0.weight"
UNET = "model.diffusion_model.input_blocks.1.1.proj_in.weight"
TEXT = "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
VAE = "first_stage_model.decoder.conv_in.weight"
POSITIONS = "cond_stage_model.transformer.text_model.embeddings.position_ids"
SCHEDULE = "alphas_cumprod"


def toy(seed: int, channels: int = 4, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """Tensors of a model."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {CONV_IN: (8, channels, 3, 3), UNET: (8, 8), TEXT: (16, 4), VAE: (4, 4, 3, 3)}
    tensors = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return {**tensors, POSITIONS: torch.arange(7), SCHEDULE: torch.rand(10, generator=generator)}


class Toys:
    """A folder of toy checkpoints and what merges them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hashes = HashCache(folder / "hashes.json")

    def add(self, name: str, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
        """Write a file."""
        path = self.folder / name
        if path.suffix == ".safetensors":
            save_file(tensors, path, metadata)
        else:
            torch.save({"state_dict": tensors}, path)
        return path

    def add_three(self) -> None:
        """Models a, b and c."""
        for seed, name in enumerate("abc"):
            self.add(f"{name}.safetensors", toy(seed))

    def catalogue(self) -> CheckpointCatalogue:
        """Of what is there now."""
        return CheckpointCatalogue([self.folder], self.hashes)

    def resolve(self, options: MergeOptions) -> MergeRequest:
        """A request for options."""
        return resolve(options, self.catalogue(), VaeCatalogue([self.folder / "VAE"]), self.folder)

    def merge(self, options: MergeOptions, progress: Progress = lambda done, total, phase: None) -> MergeResult:
        """Merge by options."""
        request, catalogue = self.resolve(options), self.catalogue()
        return merge(request, CONFIGS, storage_rules(request.storage), catalogue.with_hash, progress)

    def names(self) -> set[str]:
        """The files in the folder, hidden ones too."""
        return {path.name for path in self.folder.iterdir()} - {"hashes.json", "hashes.json.lock"}


def info_of(path: Path) -> CheckpointInfo:
    """A file's entry in a catalogue."""
    return CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).get(path.name)
