"""IP-adapters against diffusers, and ControlNet-LLLite against its definition, on SD1 and SDXL in fp32."""

import base64
import io
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.models.families.denoiser_context import ModelInputs
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from tests.extensions import built_in
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, cpu_machine
from tests.scripts import test_transformer_nets
from tests.scripts.test_control_nets import library
from tests.scripts.test_transformer_nets import ROWS, controlled, inputs_of, picture
from tests.thorough import thoroughly

FAMILIES = ("sd1", "sdxl")
WIDTH, TOKENS, HEAD = 32, 4, 64


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("adapters")
    for name in FAMILIES:
        write_family(folder, name)
    built_in()
    engine = Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)
    yield engine
    engine.close()


def plain(unet: Any, inputs: ModelInputs, **more: Any) -> Tensor:
    """What a UNet predicts by itself."""
    with torch.no_grad():
        found: Tensor = unet(
            inputs.x, inputs.timesteps, inputs.crossattn, class_labels=inputs.vector, return_dict=False, **more
        )[0]
    return found


def random(*shape: int) -> Tensor:
    return torch.randn(*shape) * 0.2


def resampler(context: int) -> dict[str, Tensor]:
    """The projection of a "plus" adapter."""
    inner, width = 2 * HEAD, 48
    found = {
        "latents": random(1, TOKENS, width),
        "proj_in.weight": random(width, WIDTH),
        "proj_in.bias": random(width),
        "proj_out.weight": random(context, width),
        "proj_out.bias": random(context),
        "norm_out.weight": random(context),
        "norm_out.bias": random(context),
    }
    for layer in range(4):
        shapes = {
            **{"0.to_q": (inner, width), "0.to_kv": (2 * inner, width), "0.to_out": (width, inner)},
            **{"1.1": (4 * width, width), "1.3": (width, 4 * width)},
        }
        found |= {f"layers.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        norms = [
            f"layers.{layer}.{norm}.{leaf}" for norm in ("0.norm1", "0.norm2", "1.0") for leaf in ("weight", "bias")
        ]
        found |= {name: random(width) for name in norms}
    return found


def face(context: int) -> dict[str, Tensor]:
    """The projection of a full-face adapter."""
    return {
        "proj.0.weight": random(WIDTH, WIDTH),
        "proj.0.bias": random(WIDTH),
        "proj.2.weight": random(context, WIDTH),
        "proj.2.bias": random(context),
        "proj.3.weight": random(context),
        "proj.3.bias": random(context),
    }


def linear(context: int) -> dict[str, Tensor]:
    """The projection of a plain adapter."""
    return {
        "proj.weight": random(TOKENS * context, WIDTH),
        "proj.bias": random(TOKENS * context),
        "norm.weight": random(context),
        "norm.bias": random(context),
    }


FORMS: dict[str, Callable[[int], dict[str, Tensor]]] = {"plain": linear, "plus": resampler, "face": face}


@pytest.mark.parametrize(("family", "form"), [thoroughly("sd1", "face"), *(("sdxl", form) for form in FORMS)])
def test_an_ip_adapter(engine: Engine, tmp_path: Path, family: str, form: str) -> None:
    model = engine.model(f"{family}.safetensors")
    inputs = inputs_of(model)
    torch.manual_seed(6)
    context = inputs.crossattn.shape[-1]
    projection = FORMS[form](context)
    theirs = deepcopy(model.unet)
    layers = [name for name in theirs.attn_processors if name.endswith("attn2.processor")]
    own: dict[str, Tensor] = {}
    for number, name in enumerate(layers):
        width = theirs.get_submodule(name.removesuffix(".processor")).to_k.out_features
        for part in "kv":
            own[f"{2 * number + 1}.to_{part}_ip.weight"] = random(width, context)
    path = tmp_path / "ip-adapter.safetensors"
    tensors = {f"image_proj.{key}": tensor for key, tensor in projection.items()}
    save_file(tensors | {f"ip_adapter.{key}": tensor for key, tensor in own.items()}, path)

    theirs._load_ip_adapter_weights([{"image_proj": dict(projection), "ip_adapter": own}])
    for processor in theirs.attn_processors.values():
        if hasattr(processor, "scale"):
            processor.scale = [0.7]
    seen = torch.randn(1, WIDTH) if form == "plain" else torch.randn(1, 5, WIDTH)
    images = seen[:, None].expand(ROWS, *seen.shape) if form == "plain" else seen[:, None].expand(ROWS, 1, 5, WIDTH)
    wanted = plain(theirs, inputs, added_cond_kwargs={"image_embeds": [images]})

    file = io.BytesIO()
    torch.save({"image_embeds": seen}, file)
    unit = {"module": "ip-adapter-auto", "ipadapter_input": [base64.b64encode(file.getvalue()).decode()]}
    ours = controlled(engine, model, path, inputs, weight=0.7, **unit)
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
    assert (wanted - plain(model.unet, inputs)).abs().max() > 1e-3


def test_weights_of_an_ip_adapter_are_those_of_blocks(engine: Engine) -> None:
    """However many layers a block has, and not below 0, as in the reference UI; another number of them is refused."""
    unet = engine.model("sdxl.safetensors").unet
    blocks = [*unet.down_blocks[1].attentions, *unet.mid_block.attentions, *unet.up_blocks[0].attentions]
    assert max(len(block.transformer_blocks) for block in blocks) > 1
    read_unit, weights_of = library("reading").read_unit, library("ip_adapter").layer_weights
    given = [0.1 * number for number in range(len(blocks) - 1)]
    unit = read_unit({"advanced_weighting": [-1.0, *given]}, "unit 0")
    found = weights_of(unit, unet, "unit 0")
    for block, weight in zip(blocks, [0.0, *given], strict=True):
        assert {found[each.attn2] for each in block.transformer_blocks} == {weight}
    assert set(weights_of(read_unit({"weight": 0.5}, "unit 0"), unet, "unit 0").values()) == {0.5}
    for count in (len(blocks) - 1, len(blocks) + 1):
        unit = read_unit({"advanced_weighting": [1.0] * count}, "unit 0")
        with pytest.raises(InvalidValueError, match=f"has {count} weights, and the model takes {len(blocks)}"):
            weights_of(unit, unet, "unit 0")


@pytest.mark.parametrize("side", [8, 9])
def test_lllite(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """Before a layer, its tokens get what two layers make of them and of the image at their level: of 9 cells a side
    the level below has 5, the image scaled down 4."""
    monkeypatch.setattr(test_transformer_nets, "SIDE", side)
    model = engine.model("sdxl.safetensors")
    inputs = inputs_of(model)
    names = library("lllite").layers_by_name(model)
    chosen = [name for name in names if name.endswith("transformer_blocks_0_attn1_to_q")][:2]
    assert len(chosen) == 2 and chosen[0] == "lllite_unet_input_blocks_3_1_transformer_blocks_0_attn1_to_q"
    torch.manual_seed(7)
    tensors: dict[str, Tensor] = {}
    for name in chosen:
        width = names[name].in_features
        shapes = {
            **{"conditioning1.0": (8, 3, 4, 4), "conditioning1.2": (16, 8, 4, 4)},
            **{"down.0": (6, width), "mid.0": (6, 22), "up.0": (width, 6)},
        }
        for part, shape in shapes.items():
            tensors[f"{name}.{part}.weight"], tensors[f"{name}.{part}.bias"] = random(*shape), random(shape[0])
    path = tmp_path / "lllite.safetensors"
    save_file(tensors, path)

    theirs = deepcopy(model.unet)
    image = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 127.5 - 1.0
    paths = {id(layer): place for place, layer in model.unet.named_modules()}

    def before(name: str) -> Any:
        own = {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}

        def apply(part: str, x: Tensor) -> Tensor:
            return nn.functional.linear(x, own[f"{part}.weight"], own[f"{part}.bias"])

        def hook(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (x, *rest) = args
            seen = nn.functional.conv2d(image, own["conditioning1.0.weight"], own["conditioning1.0.bias"], 4).relu()
            seen = nn.functional.conv2d(seen, own["conditioning1.2.weight"], own["conditioning1.2.bias"], 4)
            if side % 2:
                seen = seen[:, :, [0, 0, 1, 2, 3]][..., [0, 0, 1, 2, 3]]
            tokens = seen.reshape(1, 16, -1).permute(0, 2, 1).repeat(len(x), 1, 1)
            both = torch.cat([tokens, apply("down.0", x).relu()], dim=2)
            return (x + 0.7 * apply("up.0", apply("mid.0", both).relu()), *rest)

        return hook

    for name in chosen:
        theirs.get_submodule(paths[id(names[name])]).register_forward_pre_hook(before(name))
    wanted = plain(theirs, inputs)
    ours = controlled(engine, model, path, inputs, weight=0.7)
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
    assert (wanted - plain(model.unet, inputs)).abs().max() > 1e-3


def test_a_control_lora_of_sdxl(engine: Engine, tmp_path: Path) -> None:
    """Its network is that of the model's own layers with changes of low rank: a full ControlNet of the same weights."""
    model = engine.model("sdxl.safetensors")
    inputs, nets = inputs_of(model), library("nets")
    torch.manual_seed(8)
    full = nets.controlnet_for(model.unet).eval()
    names = nets.original_names(model, "")
    base = dict(model.unet.named_modules())
    tensors: dict[str, Tensor] = {"lora_controlnet": torch.tensor([])}
    state = {}
    for key, weight in full.state_dict().items():
        path, _, leaf = key.rpartition(".")
        original = names.to_original(key)
        layer = base.get(path)
        if leaf == "weight" and isinstance(layer, nn.Linear | nn.Conv2d):
            up, down = random(weight.shape[0], 3), random(3, *weight.shape[1:])
            stem = original.removesuffix(".weight")
            tensors[f"{stem}.up"], tensors[f"{stem}.down"] = up, down
            state[key] = layer.weight.detach() + (up @ down.flatten(1)).reshape(weight.shape)
        else:
            state[key] = tensors[original] = random(*weight.shape)
    full.load_state_dict(state)
    path = tmp_path / "control-lora.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    hint = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 255.0
    with torch.no_grad():
        down_blocks, middle = full(
            inputs.x,
            inputs.timesteps,
            inputs.crossattn,
            hint.expand(ROWS, -1, -1, -1),
            0.7,
            class_labels=inputs.vector,
            return_dict=False,
        )
    wanted = plain(
        model.unet, inputs, down_block_additional_residuals=down_blocks, mid_block_additional_residual=middle
    )
    ours = controlled(engine, model, path, inputs, weight=0.7)
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
