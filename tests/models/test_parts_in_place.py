"""A denoiser, its text encoder and its VAE in files of their own, streamed: weights are read where they are in these
files, nothing is written, and what is computed is the same."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.memory.formats.format import FORMATS
from modules.memory.streaming.groups import Level
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from tests.models.dit_files import write_split
from tests.recordings import CONFIGS

CASE = "zimage-turbo-cfg1"
SMALLEST_LEFT = 1 << 16


def to_int8(path: Path) -> None:
    """Have the large matrices of a file be in int8 with scales."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(path).items():
        if tensor.ndim != 2 or tensor.numel() < SMALLEST_LEFT or "embed" in name:
            tensors[name] = tensor
            continue
        encoded = FORMATS.get("int8_row").encode(tensor.float())
        assert encoded.scale is not None
        tensors |= {name: encoded.data, f"{name.removesuffix('weight')}scale_weight": encoded.scale}
    save_file(tensors, path)


def load(root: Path, streaming: StreamLayout | None) -> LoadedModel:
    plan = PrecisionPlan(
        device=torch.device("cpu"),
        compute_dtype=torch.float32,
        vae_dtype=torch.float32,
        mode=ComputeMode.MANUAL,
        unet_storage="int8_row",
        text_storage="int8_row",
        streaming=streaming,
    )
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    parts = tuple(path for folder in ("text_encoder", "VAE") for path in (root / folder).iterdir())
    return load_model(replace(catalogue.entries[0], modules=parts), CONFIGS, lambda family: plan)


@torch.no_grad()
def computed(model: LoadedModel) -> tuple[Tensor, Tensor]:
    """The denoiser's output and the text encoder's."""

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.linspace(0, 1, int(torch.Size(shape).numel())).reshape(shape).to(dtype)

    inputs = model.family.example_inputs(model.unet, (1, 8, 8), torch.float32, make)
    text = model.text_encoder(input_ids=torch.arange(9)[None]).last_hidden_state
    return model.family.denoiser.run(model.unet, inputs), text


def test_nothing_is_written_and_the_output_is_the_same(tmp_path: Path) -> None:
    to_int8(write_split(tmp_path, CASE))
    resident = load(tmp_path, None)
    folder = tmp_path / "offload"
    streamed = load(tmp_path, StreamLayout(level=Level.LAYER, on_disk=True, folder=folder))
    assert streamed.streaming is not None
    try:
        assert not [path for path in folder.rglob("*") if path.is_file()]
        assert streamed.stored_bytes < resident.stored_bytes
        table = dict(streamed.text_encoder.named_parameters())["embed_tokens.weight"]
        assert table.is_meta, "rows of the vocabulary are looked up in the file"
        for found, wanted in zip(computed(streamed), computed(resident), strict=True):
            assert torch.equal(found, wanted)
    finally:
        streamed.streaming.close()
