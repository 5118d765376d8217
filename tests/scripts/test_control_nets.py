"""Control networks of SD1, SD2 and SDXL in both layouts, union networks and T2I-adapters: what they compute is what
diffusers computes with the same weights, in fp32."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel, ControlNetUnionModel, T2IAdapter, UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_controlnet_checkpoint
from safetensors.torch import load_file, save_file

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.tensor_source import open_tensors
from modules.processing.engine.engine import Engine
from tests.extensions import built_in
from tests.models.diffusers_folders import UNET, UNETS
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, cpu_machine
from tests.thorough import pairs, thoroughly

FAMILIES = ("sd1", "sd2", "sdxl")
BATCH, SIDE = 2, 8


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("control-nets")
    for name in FAMILIES:
        write_family(folder, name)
    built_in()
    engine = Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)
    yield engine
    engine.close()


def library(name: str) -> Any:
    """A module of the extension ControlNet."""
    __import__(f"lib_controlnet.{name}")
    return sys.modules[f"lib_controlnet.{name}"]


def random_weights(net: Any, seed: int = 5) -> Any:
    """Also where training begins at 0."""
    torch.manual_seed(seed)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    return net.eval()


def controlnet(family: str) -> Any:
    torch.manual_seed(3)
    unet = UNet2DConditionModel(**{**UNET, **UNETS[family]})
    return random_weights(ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(16, 32, 96, 256)))


def inputs_of(net: Any) -> dict[str, Any]:
    """What a denoiser's call gives to a network, in the words of diffusers."""
    torch.manual_seed(9)
    given: dict[str, Any] = {
        "sample": torch.randn(BATCH, 4, SIDE, SIDE),
        "timestep": torch.tensor([500.0, 500.0]),
        "encoder_hidden_states": torch.randn(BATCH, 77, net.config.cross_attention_dim),
    }
    if net.config.addition_embed_type == "text_time":
        width = net.config.projection_class_embeddings_input_dim - 6 * net.config.addition_time_embed_dim
        ids = torch.tensor([[64.0, 64, 0, 0, 64, 64]] * BATCH)
        given["added_cond_kwargs"] = {"text_embeds": torch.randn(BATCH, width), "time_ids": ids}
    return given


def vector_of(net: Any, given: dict[str, Any]) -> Any:
    """The same additions as one vector for each row."""
    added = given.get("added_cond_kwargs")
    if added is None:
        return None
    return torch.cat([added["text_embeds"], net.add_time_proj(added["time_ids"].flatten()).reshape(BATCH, -1)], dim=1)


def our_outputs(loaded: Any, net: Any, given: dict[str, Any], hint: Any, **more: Any) -> list[Any]:
    down, middle = loaded.module(
        given["sample"], given["timestep"], given["encoder_hidden_states"], hint,
        class_labels=vector_of(net, given), return_dict=False, **more,
    )  # fmt: skip
    return [*down, middle]


# SDXL adds a vector, SD1 does not; of the layouts the original one has all names changed.
@pytest.mark.parametrize(
    ("family", "layout"),
    pairs(FAMILIES, ("diffusers", "original"), (("sd1", "diffusers"), ("sdxl", "original"))),
)
def test_a_controlnet(engine: Engine, tmp_path: Path, family: str, layout: str) -> None:
    net = controlnet(family)
    path = tmp_path / f"{family}-{layout}.safetensors"
    tensors = dict(net.state_dict())
    model = engine.model(f"{family}.safetensors")
    if layout == "original":
        names = library("nets").original_names(model, "control_model")
        ours = {key.replace("add_embedding.", "class_embedding."): tensor for key, tensor in tensors.items()}
        tensors = {names.to_original(key): tensor for key, tensor in ours.items()}
        assert None not in tensors and len(tensors) == len(ours)
        converted = convert_controlnet_checkpoint(dict(tensors), dict(net.config))
        for place, number in (("0", "1"), ("2", "2")):  # which the converter does not know
            for part in ("weight", "bias"):
                if (tensor := tensors.get(f"control_model.label_emb.0.{place}.{part}")) is not None:
                    converted[f"add_embedding.linear_{number}.{part}"] = tensor
        assert set(converted) == set(net.state_dict())
        assert all(torch.equal(converted[key], tensor) for key, tensor in net.state_dict().items())
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    loaded = engine.auxiliary(path, library("nets").build_net)
    given, hint = inputs_of(net), torch.rand(BATCH, 3, 8 * SIDE, 8 * SIDE)
    with torch.no_grad():
        down, middle = net(**given, controlnet_cond=hint, return_dict=False)
        for ours_one, theirs in zip(our_outputs(loaded, net, given, hint), [*down, middle], strict=True):
            torch.testing.assert_close(ours_one, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("types", [thoroughly(6), 8])
def test_a_union_network(engine: Engine, tmp_path: Path, types: int) -> None:
    config = {key: value for key, value in {**UNET, **UNETS["sdxl"]}.items() if "up_block" not in key}
    for key in ("sample_size", "out_channels"):
        config.pop(key)
    net = random_weights(
        ControlNetUnionModel(**config, num_control_type=types, num_trans_channel=32, num_proj_channel=32)
    )
    path = tmp_path / "union.safetensors"
    save_file(net.state_dict(), path)
    engine.model("sdxl.safetensors")
    loaded = engine.auxiliary(path, library("nets").build_net)
    given, hint = inputs_of(net), torch.rand(BATCH, 3, 8 * SIDE, 8 * SIDE)
    chosen = torch.zeros(BATCH, types)
    chosen[:, 3] = 1.0
    kinds = {"control_type": chosen, "control_type_idx": [3]}
    with torch.no_grad():
        down, middle = net(**given, controlnet_cond=[hint], return_dict=False, **kinds)
        ours = our_outputs(loaded, net, given, [hint], **kinds)
        for ours_one, theirs in zip(ours, [*down, middle], strict=True):
            torch.testing.assert_close(ours_one, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["diffusers", "original"])
def test_a_t2i_adapter_of_sdxl(tmp_path: Path, layout: str) -> None:
    """Its widths are fixed by four features over three levels, so the denoiser is only described."""
    widths = [32, 64, 96]
    theirs = random_weights(
        T2IAdapter(3, [*widths, widths[-1]], num_res_blocks=2, downscale_factor=16, adapter_type="full_adapter_xl")
    )
    tensors = theirs.state_dict()
    if layout == "original":
        tensors = {original_adapter_key(key): tensor for key, tensor in tensors.items()}
    path = tmp_path / "t2i.safetensors"
    save_file({key.removeprefix("adapter."): tensor for key, tensor in tensors.items()}, path)
    config = SimpleNamespace(block_out_channels=widths)
    described = SimpleNamespace(unet=SimpleNamespace(config=config), family=SimpleNamespace(label="SDXL"))
    with open_tensors(path) as file:
        parts = library("nets").build_net(file, described)
    component = parts.component
    found = {component.keymap.to_ours(key): tensor for key, tensor in load_file(path).items()}
    component.module.to_empty(device="cpu").load_state_dict(found)
    image = torch.rand(1, 3, 128, 96)
    with torch.no_grad():
        for ours, wanted in zip(component.module(image), theirs(image), strict=True):
            torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


def original_adapter_key(key: str) -> str:
    """A name of diffusers in the original layout: blocks are counted through all levels."""
    key = key.removeprefix("adapter.")
    if not key.startswith("body."):
        return key
    _, level, rest = key.split(".", 2)
    if rest.startswith("in_conv"):
        return f"body.{2 * int(level)}.{rest}"
    _, place, rest = rest.split(".", 2)
    return f"body.{2 * int(level) + int(place)}.{rest}"


@pytest.mark.parametrize(
    "name",
    ["scenes_canny", "Scenes_Canny.safetensors", "scenes_canny [00000000]", "scenes_canny.pth [00000000]", "canny"],
)
def test_a_file_is_found_by_the_names_that_requests_have(engine: Engine, tmp_path: Path, name: str) -> None:
    for file in ("scenes_canny.safetensors", "scenes_canny_large.pth"):
        (tmp_path / file).write_bytes(b"weights")
    program = SimpleNamespace(folders=lambda kind: [tmp_path])
    assert library("files").find_model(program, name).path.name == "scenes_canny.safetensors"
