"""ControlNet-LLLite for Anima: what a pass predicts with one is what the model predicts with its formulas around the
layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import PrecisionOptions
from modules.settings.values import Settings
from tests.extensions import built_in
from tests.processing.test_anima import BLOCKS, write_anima
from tests.processing.test_anima import modules as anima_modules
from tests.recordings import CONFIGS, cpu_machine
from tests.scripts.test_transformer_nets import SIDE, controlled, inputs_of, picture, same, with_extra

WIDTH, DEEP, EMBEDDING, INNER = 256, 16, 5, 8
NAMES = ("self_attn_q_proj", "self_attn_k_proj", "self_attn_v_proj", "cross_attn_q_proj", "mlp_layer1")
DILATIONS = (1, 2, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Any]]:
    built_in()
    root = tmp_path_factory.mktemp("anima")
    write_anima(root, anima_modules())
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    modules = ModuleCatalogue([root / "text_encoder", root / "VAE"])
    engine = Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(modules=modules))
    yield engine, engine.model(None, PrecisionOptions.of(Settings()))
    engine.close()


def lite_file(path: Path, channels: int = 3, blocks: int = BLOCKS) -> dict[str, Tensor]:
    """A file with all that the format knows: refining blocks, reaching convolutions, an embedding of each layer."""
    torch.manual_seed(9)
    shapes: dict[str, tuple[int, ...]] = {"conv1": (4, channels, 4, 4), "conv2": (4, 4, 3, 3), "conv3": (DEEP, 4, 4, 4)}
    shapes |= {"resblocks.0.conv1": (DEEP, DEEP, 3, 3), "resblocks.0.conv2": (DEEP, DEEP, 3, 3)}
    shapes["proj"] = (EMBEDDING, DEEP, 1, 1)
    for place, reach in enumerate(DILATIONS):
        shapes[f"aspp.branches.{place}.0"] = (DEEP, DEEP, *(1 if reach == 1 else 3,) * 2)
    shapes |= {"aspp.global_conv.0": (DEEP, DEEP, 1, 1), "aspp.proj.0": (DEEP, DEEP * (len(DILATIONS) + 1), 1, 1)}
    norms = {
        "norm1": 4,
        "norm2": 4,
        "norm3": DEEP,
        "resblocks.0.norm1": DEEP,
        "resblocks.0.norm2": DEEP,
        "out_norm": EMBEDDING,
    }
    norms |= {f"aspp.branches.{place}.1": DEEP for place in range(len(DILATIONS))}
    norms |= {"aspp.global_conv.1": DEEP, "aspp.proj.1": DEEP}
    found = {}
    for name, shape in shapes.items():
        found[f"lllite_conditioning1.{name}.weight"] = torch.randn(shape) / np.prod(shape[1:]) ** 0.5
        found[f"lllite_conditioning1.{name}.bias"] = torch.randn(shape[0]) * 0.1
    for name, width in norms.items():
        found[f"lllite_conditioning1.{name}.weight"] = 1 + 0.1 * torch.randn(width)
        found[f"lllite_conditioning1.{name}.bias"] = torch.randn(width) * 0.1
    layers = {"down": (INNER, WIDTH), "mid": (INNER, INNER + EMBEDDING), "cond_to_film": (2 * INNER, EMBEDDING)}
    for number in range(blocks):
        for name in NAMES:
            stem = f"lllite_dit_blocks_{number}_{name}"
            for layer, shape in {**layers, "up": (WIDTH, INNER)}.items():
                found[f"{stem}.{layer}.weight"] = torch.randn(shape) / shape[1] ** 0.5
                found[f"{stem}.{layer}.bias"] = torch.randn(shape[0]) * 0.1
            found[f"{stem}.depth_embed"] = torch.randn(EMBEDDING)
    told = {"lllite.aspp_dilations": "[1, 2, 3]", "lllite.inpaint_masked_input": "true"}
    save_file(found, path, told)
    return found


def condition(file: Mapping[str, Tensor], image: Tensor) -> Tensor:
    """[1,tokens,E], by functions."""

    def conv(name: str, x: Tensor, **more: Any) -> Tensor:
        stem = f"lllite_conditioning1.{name}"
        return F.conv2d(x, file[f"{stem}.weight"], file[f"{stem}.bias"], **more)

    def norm(name: str, x: Tensor) -> Tensor:
        stem, groups = f"lllite_conditioning1.{name}", {4: 4, DEEP: 8}[x.shape[1]]
        parts = x.reshape(1, groups, -1)
        parts = (parts - parts.mean(2, keepdim=True)) / (parts.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = parts.reshape(x.shape) * file[f"{stem}.weight"][:, None, None] + file[f"{stem}.bias"][:, None, None]
        return x * x.sigmoid()

    x = norm("norm1", conv("conv1", image, stride=4))
    x = norm("norm2", conv("conv2", x, padding=1))
    x = norm("norm3", conv("conv3", x, stride=4))
    inner = conv("resblocks.0.conv1", norm("resblocks.0.norm1", x), padding=1)
    x = x + conv("resblocks.0.conv2", norm("resblocks.0.norm2", inner), padding=1)
    parts = []
    for place, reach in enumerate(DILATIONS):
        more = {} if reach == 1 else {"padding": reach, "dilation": reach}
        parts.append(norm(f"aspp.branches.{place}.1", conv(f"aspp.branches.{place}.0", x, **more)))
    mean = norm("aspp.global_conv.1", conv("aspp.global_conv.0", x.mean((2, 3), keepdim=True)))
    x = norm("aspp.proj.1", conv("aspp.proj.0", torch.cat([*parts, mean.repeat(1, 1, *x.shape[2:])], 1)))
    tokens = conv("proj", x)[0].flatten(1).T[None]
    stem = "lllite_conditioning1.out_norm"
    return F.layer_norm(tokens, (EMBEDDING,), file[f"{stem}.weight"], file[f"{stem}.bias"])


def expected(model: Any, inputs: Any, file: Mapping[str, Tensor], known: Tensor, weight: float) -> Tensor:
    """What the model predicts where each layer gets what the file says beside its input."""

    def change(stem: str) -> Any:
        def linear(name: str, x: Tensor) -> Tensor:
            return x @ file[f"{stem}.{name}.weight"].T + file[f"{stem}.{name}.bias"]

        def add(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x, *rest = given
            own = (known + file[f"{stem}.depth_embed"]).repeat(len(x), 1, 1)
            scale, shift = linear("cond_to_film", own).chunk(2, -1)
            down = linear("down", x)
            inner = linear("mid", torch.cat([own, down * down.sigmoid()], -1)) * (1 + scale) + shift
            return (x + weight * linear("up", inner * inner.sigmoid()), *rest)

        return add

    handles = []
    for number, block in enumerate(model.unet.transformer_blocks):
        own, cross = block.attn1, block.attn2
        layers = (own.to_q, own.to_k, own.to_v, cross.to_q, block.ff.net[0].proj)
        for name, layer in zip(NAMES, layers, strict=True):
            handles.append(layer.register_forward_pre_hook(change(f"lllite_dit_blocks_{number}_{name}")))
    try:
        return with_extra(model, inputs, {})
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("is_inpaint", [False, True])
def test_lllite_of_anima(model: tuple[Engine, Any], tmp_path: Path, is_inpaint: bool) -> None:
    engine, loaded = model
    inputs, path = inputs_of(loaded), tmp_path / "lite.safetensors"
    file = lite_file(path, 4 if is_inpaint else 3)
    image, painted, unit = torch.from_numpy(picture()).permute(2, 0, 1)[None].float() / 127.5 - 1.0, None, {}
    if is_inpaint:
        painted = np.zeros((8 * SIDE, 8 * SIDE, 1), np.uint8)
        painted[: 4 * SIDE] = 255
        mask = torch.from_numpy(painted).permute(2, 0, 1)[None].float() / 255
        image, unit = torch.cat([image * (1 - mask), mask * 2 - 1], dim=1), {"module": "inpaint_global_harmonious"}
        with pytest.raises(CheckpointError, match="is for inpainting and takes a mask"):
            controlled(engine, loaded, path, inputs)
    plain = with_extra(loaded, inputs, {})
    theirs = expected(loaded, inputs, file, condition(file, image), 0.2)
    same(controlled(engine, loaded, path, inputs, painted, weight=0.2, **unit), theirs, plain)
    torch.testing.assert_close(with_extra(loaded, inputs, {}), plain, atol=0, rtol=0)


def test_a_file_for_other_blocks_is_refused(model: tuple[Engine, Any], tmp_path: Path) -> None:
    """As the one of Anima is on Anima 2.9B, whose blocks of these numbers are others."""
    engine, loaded = model
    lite_file(tmp_path / "lite.safetensors", blocks=BLOCKS - 1)
    with pytest.raises(CheckpointError, match="another family"):
        controlled(engine, loaded, tmp_path / "lite.safetensors", inputs_of(loaded))
