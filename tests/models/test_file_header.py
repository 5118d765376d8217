"""Headers of pickles, of GGUF files, of files in pieces and of folders, read without running or loading anything."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modules.models.detection.files import detected, detected_at
from modules.models.detection.kinds import Kind
from modules.models.files.file_header import HEAD_BYTES, head_of, header_of
from modules.models.files.header import Stored
from modules.models.files.other_files import is_adapter_or_embedding
from tests.models.diffusers_folders import write_folder
from tests.models.gguf_files import write_gguf

LORA = {
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight": torch.zeros(4, 768).half(),
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_up.weight": torch.zeros(320, 4).half(),
}


@pytest.mark.parametrize("is_zipped", [True, False], ids=["zip", "old"])
@pytest.mark.parametrize("level", ["", "state_dict", "params_ema", "model"])
def test_names_shapes_and_types_in_pickles_are_read(level: str, is_zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    content = {level: LORA, "step": 3} if level else LORA
    torch.save(content, path, _use_new_zipfile_serialization=is_zipped)
    header = header_of(path)
    assert header.is_whole and header.tensors == {name: Stored(tuple(one.shape), "F16") for name, one in LORA.items()}
    assert detected(header).line == "a LoRA for SD 1.x, kohya names, fp16"
    assert is_adapter_or_embedding(path)


def test_the_forms_of_old_embeddings_and_hypernetworks_are_known(tmp_path: Path) -> None:
    torch.save({"string_to_token": {"*": 265}, "string_to_param": {"*": torch.zeros(2, 768)}}, tmp_path / "e.pt")
    layers = nn.Sequential(nn.Linear(768, 1536), nn.Linear(1536, 768)).state_dict()
    named = {f"linear.{name}": value for name, value in layers.items()}
    torch.save({768: (named, named), "name": "h", "layer_structure": [1, 2, 1]}, tmp_path / "h.pt")
    torch.save({"<cat>": torch.zeros(768)}, tmp_path / "learned_embeds.bin")
    kinds = {name: detected_at(tmp_path / name).kind for name in ("e.pt", "h.pt", "learned_embeds.bin")}
    assert kinds == {
        "e.pt": Kind.EMBEDDING,
        "h.pt": Kind.HYPERNETWORK,
        "learned_embeds.bin": Kind.EMBEDDING,
    }


class Runs:
    """What would make a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_nothing_of_a_pickle_is_run_and_one_that_is_cut_off_says_what_it_has(tmp_path: Path) -> None:
    made, path = tmp_path / "made", tmp_path / "a.ckpt"
    torch.save({"bad": Runs(made), "state_dict": LORA}, path)
    assert set(header_of(path).tensors) == set(LORA) and not made.exists()
    many = {f"lora_unet_{number}.lora_down.weight": torch.zeros(1, 8) for number in range(2000)}
    torch.save(many, path)
    cut = head_of(path.read_bytes()[:60_000], path.stat().st_size)
    assert not cut.is_whole and 100 < len(cut.tensors) < 2000 and detected(cut).kind is Kind.LORA


def test_pickles_that_are_none_have_no_tensors(tmp_path: Path) -> None:
    deep: list[object] = []
    for _ in range(20):
        deep = [deep] * 20
    for number, data in enumerate((b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"\x80\x04.", pickle.dumps(deep))):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(data)
        assert header_of(path).tensors == {}
    with zipfile.ZipFile(tmp_path / "other.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps({}))
    assert header_of(tmp_path / "other.pt").tensors == {}


def test_a_denoiser_in_gguf_is_known_by_its_tensors(tmp_path: Path) -> None:
    names = ("double_blocks.0.img_attn.norm.key_norm.scale", "vector_in.in_layer.weight", "guidance_in.in_layer.weight")
    tensors = {name: torch.zeros(64, 64) for name in names}
    path = write_gguf(tmp_path / "x.gguf", tensors, "Q8_0", "flux")
    found = detected_at(path)
    assert found.line == "a denoiser of FLUX.1 dev, original names, GGUF Q8_0"
    assert [need.type for need in found.missing] == ["clip", "t5", "AutoencoderKL"]


def test_pieces_are_one_file(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(LORA.items(), start=1):
        save_file({name: tensor}, tmp_path / f"x-0000{number}-of-00002.safetensors")
    assert set(header_of(tmp_path / "x-00001-of-00002.safetensors").tensors) == set(LORA)
    (tmp_path / "x-00002-of-00002.safetensors").unlink()
    assert detected_at(tmp_path / "x-00001-of-00002.safetensors").refusal


def test_a_folder_of_diffusers_is_a_checkpoint(tmp_path: Path) -> None:
    found = detected_at(write_folder(tmp_path, "sd1"))
    assert found.kind is Kind.CHECKPOINT and found.layout == "diffusers" and not found.missing
    assert found.family is not None and found.family.name == "sd1"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model_index.json").write_text('{"_class_name": "WanPipeline"}')
    assert detected_at(tmp_path / "other").refusal.startswith("is Wan, a video model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model_index.json").write_text("{}")
    assert detected_at(tmp_path / "empty").refusal == "is a folder without its unet."


def test_a_head_costs_a_megabyte_at_most(tmp_path: Path) -> None:
    assert HEAD_BYTES <= 1 << 20
