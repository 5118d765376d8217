"""GGUF checkpoints, written by ggml's package: read, kept as they are, streamed, changed by LoRAs; and damaged ones."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.layer import read_weight, stored_state
from modules.memory.streaming.groups import Level
from modules.models.families.family import ModelFamily
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.gguf_file import GgufFile
from modules.models.loading.full_precision import FullPrecisionFile
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from tests.models.family_files import family_tensors
from tests.models.gguf_files import decoded, denoiser_only, write_gguf
from tests.recordings import CONFIGS
from tests.thorough import pairs

KINDS = ("Q8_0", "Q5_1", "Q4_0", "F16")


def plan(streaming: StreamLayout | None = None, storage: str | None = None) -> Callable[[ModelFamily], PrecisionPlan]:
    dtype = torch.float32
    return lambda _: PrecisionPlan(
        device=torch.device("cpu"), compute_dtype=dtype, vae_dtype=dtype, streaming=streaming, unet_storage=storage
    )


def load(path: Path, modules: tuple[Path, ...] = (), **options: object) -> LoadedModel:
    from dataclasses import replace

    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    info = replace(catalogue.get(path.name), modules=modules)
    return load_model(info, CONFIGS, plan(**options))  # type: ignore[arg-type]


def output(model: LoadedModel) -> Tensor:
    sizes = model.family.denoiser.sizes(model.unet)
    generator = torch.Generator().manual_seed(4)

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    inputs = model.family.example_inputs(model.unet, (1, 8, 8), torch.float32, make)
    assert sizes.channels == 4 or sizes.channels == 16
    with torch.no_grad():
        return model.family.denoiser.run(model.unet, inputs)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def tensors() -> dict[str, dict[str, Tensor]]:
    return {name: family_tensors(name) for name in ("sd1", "sdxl", "sd3")}


# How a type of block is decoded is the same in each family, and how a family is built with each type.
@pytest.mark.parametrize(
    ("family", "kind"),
    pairs(("sd1", "sdxl", "sd3"), KINDS, (*(("sd1", kind) for kind in KINDS), ("sdxl", KINDS[0]), ("sd3", KINDS[-1]))),
)
def test_blocks_stay_as_they_are_and_compute_as_ggml_decodes_them(
    family: str, kind: str, tensors: dict[str, dict[str, Tensor]], tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", tensors[family], kind, family)
    model = load(path)
    (tmp_path / "plain").mkdir()
    plain = tmp_path / "plain" / "model.safetensors"
    save_file(
        {
            name: decoded(kind, value)
            if value.ndim == 2 and value.shape[1] % 32 == 0 and kind != "F16" and name.endswith(".weight")
            else value
            for name, value in tensors[family].items()
        },
        plain,
    )
    expected = load(plain)
    assert distance(output(model), output(expected)) < 1e-5
    kept = [layer for layer in model.unet.modules() if (state := stored_state(layer)) and "weight" in state.formats]
    assert bool(kept) == (kind != "F16")
    assert model.parameters == expected.parameters
    assert kind == "F16" or model.stored_bytes < expected.stored_bytes


@pytest.mark.parametrize("family", ["sd1", "sdxl", "sd3"])
def test_a_denoiser_alone_takes_its_other_parts_from_files(
    family: str, tensors: dict[str, dict[str, Tensor]], tmp_path: Path
) -> None:
    whole = tensors[family]
    path = write_gguf(tmp_path / "unet.gguf", denoiser_only(whole), "Q8_0", family)
    (tmp_path / "modules").mkdir()
    modules = split_parts(whole, family, tmp_path / "modules")
    model = load(path, modules)
    together = tmp_path / "whole"
    together.mkdir()
    expected = load(
        write_gguf(
            together / "model.gguf",
            whole,
            "Q8_0",
            family,
            lambda name, tensor: (
                tensor.ndim == 2
                and tensor.shape[1] % 32 == 0
                and name.endswith(".weight")
                and "diffusion_model" in name
            ),
        )
    )
    assert torch.equal(output(model), output(expected))
    for part, encoder in expected.text_encoders.items():
        same = model.text_encoders[part].state_dict()
        assert all(torch.equal(same[key], value) for key, value in encoder.state_dict().items())
    assert all(torch.equal(value, model.vae.state_dict()[key]) for key, value in expected.vae.state_dict().items())


def split_parts(whole: dict[str, Tensor], family: str, folder: Path) -> tuple[Path, ...]:
    """Text encoders with transformers' names, and the VAE, each a file."""
    first = {
        "sd1": "cond_stage_model.transformer.",
        "sdxl": "conditioner.embedders.0.transformer.",
        "sd3": "text_encoders.clip_l.transformer.",
    }[family]
    files = {"first": {k.removeprefix(first): v for k, v in whole.items() if k.startswith(first)}}
    if family == "sd3":
        second = "text_encoders.clip_g.transformer."
        files["second"] = {k.removeprefix(second): v for k, v in whole.items() if k.startswith(second)}
    if family == "sdxl":
        files["second"] = as_transformers(whole, "conditioner.embedders.1.model.")
    vae = "first_stage_model."
    files["vae"] = {k.removeprefix(vae): v for k, v in whole.items() if k.startswith(vae)}
    paths = []
    for name, content in files.items():
        assert content, name
        save_file({key: value.contiguous() for key, value in content.items()}, folder / f"{name}.safetensors")
        paths.append(folder / f"{name}.safetensors")
    return tuple(reversed(paths))


def as_transformers(whole: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """OpenCLIP's text model with transformers' names."""
    found: dict[str, Tensor] = {}
    parts = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    parts["attn.out_proj"] = "self_attn.out_proj"
    outer = {
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "ln_final.weight": "text_model.final_layer_norm.weight",
        "ln_final.bias": "text_model.final_layer_norm.bias",
    }
    for key, value in whole.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        if name in outer:
            found[outer[name]] = value
        elif name == "text_projection":
            found["text_projection.weight"] = value.T
        elif name.startswith("transformer.resblocks."):
            _, _, number, inner = name.split(".", 3)
            level = f"text_model.encoder.layers.{number}"
            if inner.startswith("attn.in_proj_"):
                leaf = inner.removeprefix("attn.in_proj_")
                for letter, part in zip("qkv", value.chunk(3), strict=True):
                    found[f"{level}.self_attn.{letter}_proj.{leaf}"] = part
            else:
                stem, _, leaf = inner.rpartition(".")
                found[f"{level}.{parts[stem]}.{leaf}"] = value
    return found


def test_the_names_of_stable_diffusion_cpp_are_understood(
    tensors: dict[str, dict[str, Tensor]], tmp_path: Path
) -> None:
    whole = tensors["sdxl"]
    first, second = "conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."
    theirs = {k: v for k, v in whole.items() if not k.startswith((first, second))}
    theirs |= {
        f"cond_stage_model.transformer.{k.removeprefix(first)}": v for k, v in whole.items() if k.startswith(first)
    }
    for key, value in as_transformers(whole, second).items():
        name = key.replace("text_projection.weight", "text_model.text_projection")
        theirs[f"cond_stage_model.1.transformer.{name}"] = value.T if "text_projection" in key else value
    ours = load(write_gguf(tmp_path / "theirs.gguf", theirs, "F16", "none"))
    expected = load(write_gguf(tmp_path / "plain.gguf", whole, "F16", "none"))
    for part, encoder in expected.text_encoders.items():
        same = ours.text_encoders[part].state_dict()
        assert all(torch.equal(same[key], value) for key, value in encoder.state_dict().items())


def test_streamed_and_resident_give_the_same(tensors: dict[str, dict[str, Tensor]], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tensors["sd1"], "Q4_0", "sd1")
    resident = output(load(path))
    for on_disk in (False, True):
        layout = StreamLayout(level=Level.LAYER, on_disk=on_disk, folder=tmp_path / "blobs" if on_disk else None)
        model = load(path, streaming=layout)
        assert torch.equal(output(model), resident)
        assert model.streaming is not None
        model.streaming.close()
    with GgufFile(path) as file:
        in_blocks = {entry.size_bytes for entry in file.entries.values() if entry.packed}
    written = {blob.stat().st_size for blob in (tmp_path / "blobs").rglob("*") if blob.is_file()}
    assert max(in_blocks) > 1 << 16 and not written & {size for size in in_blocks if size >= 1 << 16}


def test_the_full_precision_of_a_kept_weight_is_what_it_decodes_to(
    tensors: dict[str, dict[str, Tensor]], tmp_path: Path
) -> None:
    model = load(write_gguf(tmp_path / "model.gguf", tensors["sd1"], "Q5_1", "sd1"))
    path, layer = next(
        (path, layer)
        for path, layer in model.unet.named_modules()
        if (state := stored_state(layer)) is not None and "weight" in state.formats
    )
    file = FullPrecisionFile(model)
    assert torch.equal(file.read("unet", f"{path}.weight"), read_weight(layer, "weight"))
    assert not file.is_source("unet", f"{path}.weight")
    file.close()


def test_other_types_and_families_are_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"double_blocks.0.img_attn.qkv.weight": torch.ones(32, 32)}, "Q8_0", "flux")
    with pytest.raises(
        CheckpointError, match=r"a\.gguf: of no known model family: it is a checkpoint of the architecture flux"
    ):
        load(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"img_attn.qkv.weight") + len(b"img_attn.qkv.weight") + 4 + 16
    data[at : at + 4] = struct.pack("<I", 17)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"GGUF type IQ2_XS, which is not decoded\. Known are F32.*Q8_0"):
        GgufFile(path)
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(32))
    with pytest.raises(CheckpointError, match=r"big-endian files are not"):
        GgufFile(path)


def test_a_thousand_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"a.weight": torch.ones(4, 64), "b.bias": torch.ones(8)}, "Q4_0", "sd1")
    whole, draw = path.read_bytes(), random.Random(1)
    refused = 0
    for number in range(1000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data) if number % 2 else 200)] = draw.choice((0, 1, 127, 255, draw.randrange(256)))
        if number % 5 == 0:
            data = data[: draw.randrange(len(data))]
        path.write_bytes(data)
        try:
            with GgufFile(path) as file:
                for name in file.entries:
                    assert file.read(name).numel() * 4 <= 8 * len(whole)
        except CheckpointError as error:
            assert str(error).startswith("a.gguf: ")
            refused += 1
    assert 200 < refused < 1000
