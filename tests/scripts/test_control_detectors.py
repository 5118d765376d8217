"""Preprocessors with weights: the files of their authors fill the networks, and the maps show what they should."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError, InvalidValueError
from modules.scripts.program import Program
from tests.extensions import built_in
from tests.scripts.test_control_nets import library
from tests.thorough import thoroughly


@pytest.fixture(scope="module", autouse=True)
def extensions() -> None:
    built_in()


def part(name: str) -> Any:
    return library(f"detectors.{name}")


def picture(height: int = 64, width: int = 96) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """A white square on black."""
    image = np.zeros((height, width, 3), np.uint8)
    image[16:48, 24:64] = 255
    return image


def random(net: Any) -> Any:
    """A network with weights of such sizes that its outputs are neither 0 nor huge."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim < 2:
                weight.normal_(mean=1.0, std=0.1)
            else:
                weight.normal_(std=(2 / weight[0].numel()) ** 0.5)
    return net.eval()


def written(net: torch.nn.Module, path: Path, prefix: str = "") -> Path:
    """The file of a network, in the form in which it is trained."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(std=0.0 if weight.ndim < 2 else (2 / weight[0].numel()) ** 0.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": {f"{prefix}{key}": tensor for key, tensor in net.state_dict().items()}}, path)
    return path


def run(name: str, folder: Path, image: "np.ndarray[Any, np.dtype[np.uint8]]") -> Any:
    modules, files = library("preprocessors"), library("files")
    program = Program(folders=lambda kind: (folder / kind,))
    module = modules.module_of(name)
    a, b = (slider.value for slider in module.numbers)
    job = modules.Job(image, 64, a, b, find=lambda names: files.preprocessor_file(program, names))
    return module.run(job), job


FILES: dict[str, tuple[str, str, str, int, str]] = {
    "hed": ("soft_edges", "Hed", "hed/ControlNetHED.pth", 14_700_000, "block5.convs.2.weight"),
    "pidinet": ("soft_edges", "PidiNet", "table5_pidinet.pth", 700_000, "block2_1.shortcut.bias"),
    "lineart": ("lineart", "Generator", "sk_model.pth", 4_300_000, "model2.2.conv_block.5.weight"),
    "lineart_anime": ("anime_lines", "AnimeLines", "netG.pth", 54_400_000, "model.model.1.model.3.model.5.weight"),
    "openpose": ("body", "BodyNet", "body_pose_model.pth", 52_000_000, "Mconv7_stage6_L2.bias"),
    "mlsd": ("lines", "LineNet", "mlsd/mlsd_large_512_fp32.pth", 1_534_000, "block23.conv3.bias"),
    "normal_bae": (
        "normals",
        "NormalNet",
        "scannet.pt",
        72_400_000,
        "encoder.original_model.blocks.0.0.conv_dw.weight",
    ),
    "softedge_teed": ("teed", "TeedNet", "7_model.pth", 58_000, "dblock_3.denselayer1.conv2.bias"),
    "depth_leres": ("leres", "DepthNet", "res101.pth", 115_400_000, "decoder.ffm2.ftb1.conv_branch.4.bias"),
    "segmentation": (
        "uniformer",
        "SegmentNet",
        "upernet_global_small.pth",
        50_700_000,
        "backbone.blocks3.7.attn.qkv.bias",
    ),
}
"""By module: file and class of the network, the weights' file, about how many weights it has, a name among them."""


@pytest.mark.parametrize("name", FILES)
def test_a_network_is_that_of_its_authors(name: str, tmp_path: Path) -> None:
    module, kind, file, count, key = FILES[name]
    with torch.device("meta"):
        net = getattr(part(module), kind)()
    assert key in net.state_dict()
    assert sum(weight.numel() for weight in net.parameters()) == pytest.approx(count, rel=0.02)
    with pytest.raises(InvalidValueError, match=rf"{Path(file).name}.*models/ControlNetPreprocessor"):
        run(name, tmp_path, picture())


@pytest.mark.parametrize(
    "names", [thoroughly(("hed_safe", "scribble_hed")), ("pidinet", "pidinet_sketch"), ("lineart",)]
)
def test_a_file_makes_a_map(names: tuple[str, ...], tmp_path: Path) -> None:
    module, kind, file, _, _ = FILES[{"hed_safe": "hed"}.get(names[0], names[0])]
    path = written(getattr(part(module), kind)(), tmp_path / "ControlNetPreprocessor" / file, "module.")
    for name in names:
        made, _ = run(name, tmp_path, picture())
        assert made.shape == (64, 96, 3) and made.dtype == np.uint8
        levels = len(np.unique(made))
        assert levels <= 3 if name in ("hed_safe", "scribble_hed", "pidinet_sketch") else levels > 3
    torch.save({"other": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match=r"is missing, and .* another network's file"):
        run(names[0], tmp_path, picture())


def conv(tensors: dict[str, torch.Tensor], name: str, x: torch.Tensor, **more: Any) -> torch.Tensor:
    return torch.nn.functional.conv2d(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"), **more)


def test_teed_computes_as_its_paper_says(tmp_path: Path) -> None:
    """By functions over a file of its authors, and the map of it in steps."""
    net = random(part("teed").TeedNet())
    tensors, image = net.state_dict(), torch.rand(1, 3, 64, 96) * 255

    def smish(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tanh(torch.log(1 + 1 / (1 + torch.exp(-x))))

    def grown(name: str, x: torch.Tensor, padding: int) -> torch.Tensor:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return torch.nn.functional.conv_transpose2d(x, weight, bias, stride=2, padding=padding)

    one = smish(conv(tensors, "block_1.conv1", image, stride=2, padding=1))
    one = smish(conv(tensors, "block_1.conv2", one, padding=1))
    two = conv(tensors, "block_2.conv2", smish(conv(tensors, "block_2.conv1", one, padding=1)), padding=1)
    down = torch.nn.functional.max_pool2d(two, 3, 2, 1)
    three = smish(down + conv(tensors, "side_1.conv", one, stride=2))
    three = smish(conv(tensors, "dblock_3.denselayer1.conv1", three, padding=2))
    three = (conv(tensors, "dblock_3.denselayer1.conv2", three) + conv(tensors, "pre_dense_3.conv", down)) / 2
    outs = []
    for name, x in (("up_block_1", one), ("up_block_2", two)):
        outs.append(grown(f"{name}.features.2", smish(conv(tensors, f"{name}.features.0", x)), 0))
    x = grown("up_block_3.features.2", smish(conv(tensors, "up_block_3.features.0", three)), 1)
    outs.append(grown("up_block_3.features.5", smish(conv(tensors, "up_block_3.features.3", x)), 1))
    whole = torch.cat(outs, 1)
    inner = conv(tensors, "block_cat.DWconv1", smish(whole), padding=1, groups=3)
    inner = inner + conv(tensors, "block_cat.DWconv2", inner, padding=1, groups=24)
    wanted = torch.stack([*outs, smish(inner.sum(1, keepdim=True))]).mean(0)
    with torch.no_grad():
        torch.testing.assert_close(net(image), 1 / (1 + torch.exp(-wanted)), atol=1e-4, rtol=1e-4)
    written(part("teed").TeedNet(), tmp_path / "ControlNetPreprocessor" / "7_model.pth")
    made, _ = run("softedge_teed", tmp_path, picture())
    assert made.shape == (64, 96, 3) and len(np.unique(made)) <= 4


def test_leres_computes_as_its_paper_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few channels, by functions over a file of its authors; near is white, and what is too near or far is left
    out."""
    leres = part("leres")
    for name, value in {"STEM": 4, "DEPTHS": (1, 2, 1, 1), "GROUPS": 2, "JOINED": (6, 4, 4, 4)}.items():
        monkeypatch.setattr(leres, name, value)
    net = random(leres.DepthNet())
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    tensors = net.state_dict()

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        mean, var, weight, bias = (
            tensors[f"{name}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
        )
        found: torch.Tensor = (x - mean) / (var + 1e-5).sqrt() * weight + bias
        return found

    def transferred(name: str, x: torch.Tensor) -> torch.Tensor:
        x = conv(tensors, f"{name}.conv1", x, padding=1).relu()  # its inner ReLU works in place
        inner = norm(f"{name}.conv_branch.2", conv(tensors, f"{name}.conv_branch.1", x, padding=1)).relu()
        return (x + conv(tensors, f"{name}.conv_branch.4", inner, padding=1)).relu()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)

    image = torch.randn(1, 3, 64, 96)
    x = norm("encoder.bn1", conv(tensors, "encoder.conv1", image, stride=2, padding=3)).relu()
    x, levels = torch.nn.functional.max_pool2d(x, 3, 2, 1), []
    for level, depth in enumerate((1, 2, 1, 1), start=1):
        for place in range(depth):
            name, stride = f"encoder.layer{level}.{place}", 2 if level > 1 and place == 0 else 1
            inner = norm(f"{name}.bn1", conv(tensors, f"{name}.conv1", x)).relu()
            inner = conv(tensors, f"{name}.conv2", inner, stride=stride, padding=1, groups=2)
            inner = norm(f"{name}.bn3", conv(tensors, f"{name}.conv3", norm(f"{name}.bn2", inner).relu()))
            if place == 0:
                x = norm(f"{name}.downsample.1", conv(tensors, f"{name}.downsample.0", x, stride=stride))
            x = (x + inner).relu()
        levels.append(x)
    x = twice(conv(tensors, "decoder.conv1", transferred("decoder.conv", levels[3]), padding=1))
    for level in (2, 1, 0):
        x = transferred(f"decoder.ffm{level}.ftb1", levels[level]) + x
        x = twice(transferred(f"decoder.ffm{level}.ftb2", x))
    name = "decoder.outconv.adapt_conv"
    x = norm(f"{name}.1", conv(tensors, f"{name}.0", x, padding=1)).relu()
    wanted = twice(conv(tensors, f"{name}.3", x, padding=1))
    with torch.no_grad():
        torch.testing.assert_close(net(image), wanted, atol=1e-4, rtol=1e-4)
    path = tmp_path / "ControlNetPreprocessor" / "res101.pth"
    path.parent.mkdir(parents=True)
    names = {"encoder.": "module.encoder_modules.encoder.", "decoder.": "module.decoder_modules."}
    others = {"shift_model": {"other": torch.zeros(1)}}  # as the authors' file has
    torch.save(
        {**others, "depth_model": {f"{names[key[:8]]}{key[8:]}": tensor for key, tensor in tensors.items()}}, path
    )
    made, _ = run("depth_leres", tmp_path, picture())
    assert made.shape == (64, 96, 3) and made.min() == 0 and made.max() == 255
    cut = leres.depth_map(picture(), path, near=20, far=30)
    whole = leres.depth_map(picture(), path, near=0, far=0)
    kept = (255 - whole > 51) & (whole > 76)
    assert (cut[kept] == whole[kept]).all() and set(np.unique(cut[~kept])) <= {0, 255}


def test_a_module_that_is_not_there_names_those_of_its_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"depth_hand_refiner is not there.*same kind: depth, depth_any"):
        run("depth_hand_refiner", tmp_path, picture())
    with pytest.raises(InvalidValueError, match=r"an ONNX file.*same kind: .*openpose_full"):
        run("dw_openpose_full", tmp_path, picture())


@pytest.mark.parametrize("kind", ["central", "angular", "radial"])
def test_differences_of_pixels(kind: str) -> None:
    """Their definition: weights times differences of two pixels, held against the kernel that is computed with."""
    layer = part("soft_edges").DifferenceConv(kind, 1, 1)
    torch.manual_seed(2)
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(1, 1, 5, 5)
    weights, at = layer.weight.detach()[0, 0], x[0, 0]
    circle = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    if kind == "central":
        wanted = sum(weights[i, j] * (at[1 + i, 1 + j] - at[2, 2]) for i, j in circle)
    elif kind == "angular":
        before = zip(circle, circle[-1:] + circle[:-1], strict=True)
        wanted = sum(weights[i, j] * (at[1 + i, 1 + j] - at[1 + k, 1 + m]) for (k, m), (i, j) in before)
    else:  # along eight rays, the far pixel less the near one; its weights are numbered row by row without the first
        places = [(i, j) for i in range(3) for j in range(3)][1:]
        rays = [(-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]
        wanted = sum(
            weights[place] * (at[2 + 2 * i, 2 + 2 * j] - at[2 + i, 2 + j])
            for place, (i, j) in zip(places, rays, strict=True)
        )
    torch.testing.assert_close(layer(x)[0, 0, 2, 2].detach(), wanted)


TINY_DEPTH: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "neck_hidden_sizes": [8, 16, 16, 16],
    "fusion_hidden_size": 8,
    "backbone_featmap_shape": [1, 32, 4, 4],
    "backbone_config": {
        **{"model_type": "bit", "global_padding": "same", "layer_type": "bottleneck", "depths": [1, 2, 1]},
        **{"out_features": ["stage1", "stage2", "stage3"], "embedding_dynamic_padding": True},
        **{"embedding_size": 8, "hidden_sizes": [8, 16, 32], "num_groups": 2},
    },
}


def test_midas_from_a_file_of_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small size, whose tensors get the authors' names: a square as transformers' class computes it, and maps."""
    from transformers import DPTConfig, DPTForDepthEstimation

    midas = part("midas")
    monkeypatch.setattr(midas, "SIZES", TINY_DEPTH)
    monkeypatch.setattr(midas, "SIDE", 64)
    config = DPTConfig(
        is_hybrid=True, reassemble_factors=[1, 1, 1, 0.5], image_size=64, layer_norm_eps=1e-6, **TINY_DEPTH
    )
    theirs = random(DPTForDepthEstimation(config))
    path = tmp_path / "ControlNetPreprocessor" / "midas" / "dpt_hybrid-midas-501f0c75.pt"
    path.parent.mkdir(parents=True)
    torch.save(midas_authors_names(theirs.state_dict()), path)
    net, image = midas.net_of(path), torch.rand(1, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        wanted = theirs(image).predicted_depth[0]
        assert wanted.std() > 0
        torch.testing.assert_close(midas.depth_of(net, image), wanted)
        assert midas.depth_of(net, torch.cat([image, image], dim=3)).shape == (64, 128)
    depth, _ = run("depth_midas", tmp_path, picture())
    assert depth.shape == (64, 96, 3) and depth.max() > 200
    normal, _ = run("normal_midas", tmp_path, picture())
    assert normal.shape == (64, 96, 3) and normal[..., 2].min() >= 127


def test_normals_of_a_plane() -> None:
    """Sobel's differences of a slope of 3 a pixel are 24; what is flat faces the eye."""
    slope = 3.0 * np.broadcast_to(np.arange(8, dtype=np.float32), (6, 8))
    is_flat = np.zeros((6, 8), bool)
    is_flat[0] = True
    normal = part("midas").normals_of(slope, is_flat)
    length = np.hypot(24, 2 * np.pi)
    wanted = [int(127.5 * (1 + 24 / length)), 127, int(127.5 * (1 + 2 * np.pi / length))]
    assert (normal[1:, 1:-1] == wanted).all() and (normal[0] == [127, 127, 255]).all()


def midas_authors_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of the authors' files, written from their program's structure."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        words = key.split(".")
        leaf = words[-1]
        if key.startswith("dpt.embeddings.backbone.bit.embedder."):
            found[f"pretrained.model.patch_embed.backbone.stem.{words[5].replace('convolution', 'conv')}.{leaf}"] = (
                tensor
            )
        elif key.startswith("dpt.embeddings.backbone.bit.encoder.stages."):
            stage = f"pretrained.model.patch_embed.backbone.stages.{words[6]}.blocks.{words[8]}"
            found[".".join([stage, *words[9:]])] = tensor
        elif key.startswith("dpt.embeddings."):
            short = {"projection": f"patch_embed.proj.{leaf}", "position_embeddings": "pos_embed"}
            found[f"pretrained.model.{short.get(words[2], words[2])}"] = tensor
        elif key.startswith("dpt.encoder.layer."):
            block, rest = f"pretrained.model.blocks.{words[3]}", ".".join(words[4:-1])
            names = {
                **{"attention.output.dense": "attn.proj", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2"},
                **{"layernorm_before": "norm1", "layernorm_after": "norm2"},
            }
            if rest == "attention.attention.query":
                parts = [tensors[key.replace("query", word)] for word in ("query", "key", "value")]
                found[f"{block}.attn.qkv.{leaf}"] = torch.cat(parts)
            elif rest in names:
                found[f"{block}.{names[rest]}.{leaf}"] = tensor
        elif key.startswith("dpt.layernorm."):
            found[f"pretrained.model.norm.{leaf}"] = tensor
        elif key.startswith("neck.reassemble_stage.readout_projects."):
            found[f"pretrained.act_postprocess{int(words[3]) + 1}.0.project.0.{leaf}"] = tensor
        elif key.startswith("neck.reassemble_stage.layers."):
            place = {"projection": 3, "resize": 4}[words[4]]
            found[f"pretrained.act_postprocess{int(words[3]) + 1}.{place}.{leaf}"] = tensor
        elif key.startswith("neck.convs."):
            found[f"scratch.layer{int(words[2]) + 1}_rn.{leaf}"] = tensor
        elif key.startswith("neck.fusion_stage.layers."):
            rest = ".".join(words[4:]).replace("projection", "out_conv").replace("residual_layer", "resConfUnit")
            found[f"scratch.refinenet{4 - int(words[3])}.{rest.replace('convolution', 'conv')}"] = tensor
        elif key.startswith("head.head."):
            found[f"scratch.output_conv.{words[2]}.{leaf}"] = tensor
    return {key: tensor.contiguous() for key, tensor in found.items()}


EFFICIENT = {"conv_dw": "depthwise_conv.depthwise_conv", "se": "squeeze_excite", "conv_pwl": "projection.project_conv"}
EFFICIENT_NORMS = ("expansion.expand_bn", "depthwise_conv.depthwise_norm", "projection.project_bn")


def test_the_encoder_of_normals_is_an_efficientnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small widths, against transformers' class with the same weights; and the map that such a network makes."""
    from transformers import EfficientNetConfig, EfficientNetModel

    normals = part("normals")
    stages = (
        (16, 2, 3, 1, 1),
        (24, 1, 5, 2, 6),
        (32, 2, 5, 2, 6),
        (40, 1, 3, 2, 6),
        (48, 1, 3, 1, 6),
        (56, 1, 3, 2, 6),
    )
    for name, value in {"STEM": 8, "TOP": 320, "FIRST_DECODED": 32, "STAGES": stages, "HIDDEN": 8}.items():
        monkeypatch.setattr(normals, name, value)
    ours = random(normals.NormalNet())
    encoder = ours.encoder["original_model"]
    # its stem of 32 times the width coefficient has 8 channels
    config = EfficientNetConfig(
        width_coefficient=0.25, depth_coefficient=1.0, hidden_dim=32,
        in_channels=[32, 64, 96, 128, 160, 192], out_channels=[64, 96, 128, 160, 192, 224],
        strides=[1, 2, 2, 2, 1, 2], kernel_sizes=[3, 5, 5, 3, 3, 3], num_block_repeats=[2, 1, 2, 1, 1, 1],
        expand_ratios=[1, 6, 6, 6, 6, 6], depthwise_padding=[], drop_connect_rate=0.0,
    )  # fmt: skip
    theirs = EfficientNetModel(config).eval()
    blocks = [block for stage in encoder.blocks for block in stage]
    weights = {
        "embeddings.convolution.weight": encoder.conv_stem.weight,
        "encoder.top_conv.weight": encoder.conv_head.weight,
    }
    weights |= {f"embeddings.batchnorm.{key}": value for key, value in encoder.bn1.state_dict().items()}
    for number, block in enumerate(blocks):
        names = {**EFFICIENT, "conv_pw": "expansion.expand_conv"} | {
            f"bn{place}": norm for place, norm in enumerate(EFFICIENT_NORMS, start=1)
        }
        if not block.widens:
            names |= {"conv_pw": "projection.project_conv", "bn1": EFFICIENT_NORMS[1], "bn2": EFFICIENT_NORMS[2]}
        for key, value in block.state_dict().items():
            layer, _, rest = key.partition(".")
            rest = rest.replace("conv_reduce", "reduce").replace("conv_expand", "expand")
            weights[f"encoder.blocks.{number}.{names[layer]}.{rest}"] = value
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys and all("top_bn" in key for key in missing.missing_keys)
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        *levels, last = encoder(image)
        x = theirs.embeddings(image)
        found = [x := layer(x) for layer in theirs.encoder.blocks]
        for level, wanted in zip(levels, (found[1], found[2], found[4], found[6]), strict=True):
            torch.testing.assert_close(level, wanted)
        torch.testing.assert_close(last, theirs.encoder.top_conv(x))
        length = ours(image)[:, :3].square().sum(1).sqrt()
    assert length.shape == (1, 64, 96)
    torch.testing.assert_close(length, torch.ones_like(length))
    path = tmp_path / "ControlNetPreprocessor" / "normal_bae" / "scannet.pt"
    path.parent.mkdir(parents=True)
    torch.save({"model": {f"module.{key}": value for key, value in ours.state_dict().items()}}, path)
    made, _ = run("normal_bae", tmp_path, picture())
    assert made.shape == (64, 96, 3) and len(np.unique(made)) > 3


def test_segments_against_parts_of_other_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head as transformers' UPerNet, a block of attention as PyTorch's; and every pixel has a color of a class."""
    from transformers import UperNetConfig
    from transformers.models.upernet.modeling_upernet import UperNetHead

    uniformer, palettes = part("uniformer"), part("palettes")
    for name, value in {"WIDTHS": (4, 6, 16, 16), "DEPTHS": (1, 1, 1, 1), "HEAD_WIDTH": 8, "CHANNELS": 8}.items():
        monkeypatch.setattr(uniformer, name, value)
    ours = random(uniformer.SegmentNet())
    config = UperNetConfig(hidden_size=8, num_labels=150, pool_scales=[1, 2, 3, 6])
    head = UperNetHead(config, [4, 6, 16, 16]).eval()
    head.load_state_dict(
        {
            key.replace(".bn.", ".batch_norm.").replace("conv_seg", "classifier"): value
            for key, value in ours.decode_head.state_dict().items()
        }
    )
    block, layer = ours.backbone.blocks3[0], torch.nn.TransformerEncoderLayer(
        16, 2, 64, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).eval()  # fmt: skip
    names = {"attn.qkv.": "self_attn.in_proj_", "attn.proj.": "self_attn.out_proj.", "mlp.fc1.": "linear1."}
    names |= {"mlp.fc2.": "linear2.", "norm1.": "norm1.", "norm2.": "norm2."}
    weights = block.state_dict()
    layer.load_state_dict(
        {new + leaf: weights[old + leaf] for old, new in names.items() for leaf in ("weight", "bias")}
    )
    with torch.no_grad():
        levels = ours.backbone(torch.randn(1, 3, 64, 96))
        assert [level.shape[2:] for level in levels] == [(16, 24), (8, 12), (4, 6), (2, 3)]
        torch.testing.assert_close(ours.decode_head(levels), head(levels))
        x = torch.randn(1, 16, 4, 6)
        places = (x + block.pos_embed(x)).flatten(2).transpose(1, 2)
        wanted = layer.linear2(torch.nn.functional.gelu(layer.linear1(layer.norm2(
            places := places + layer.self_attn(*[layer.norm1(places)] * 3, need_weights=False)[0]
        )))) + places  # fmt: skip
        torch.testing.assert_close(block(x), wanted.transpose(1, 2).reshape(x.shape))
    path = tmp_path / "ControlNetPreprocessor" / "uniformer" / "upernet_global_small.pth"
    path.parent.mkdir(parents=True)
    torch.save({"state_dict": ours.state_dict(), "meta": {"epoch": 1}}, path)
    made, _ = run("seg_ufade20k", tmp_path, picture())
    colors = {tuple(color) for color in palettes.ADE20K.tolist()}
    assert made.shape == (64, 96, 3) and {tuple(color) for color in made.reshape(-1, 3).tolist()} <= colors
    assert len(palettes.ADE20K) == 150


ONEFORMER = {
    "pixel_level_module.encoder.swin.embeddings.patch_embeddings.projection": "backbone.patch_embed.proj",
    "pixel_level_module.encoder.swin.embeddings.norm": "backbone.patch_embed.norm",
    "pixel_level_module.encoder.swin.encoder.layers": "backbone.layers",
    "pixel_level_module.decoder.level_embed": "sem_seg_head.pixel_decoder.transformer.level_embed",
    "pixel_level_module.decoder.encoder": "sem_seg_head.pixel_decoder.transformer.encoder",
    "pixel_level_module.decoder.input_projections": "sem_seg_head.pixel_decoder.input_proj",
    "pixel_level_module.decoder.mask_projection": "sem_seg_head.pixel_decoder.mask_features",
    "pixel_level_module.decoder": "sem_seg_head.pixel_decoder",
    "transformer_module.queries_embedder": "sem_seg_head.predictor.query_embed",
    "transformer_module.level_embed": "sem_seg_head.predictor.level_embed",
    "transformer_module.decoder.query_input_projection": "sem_seg_head.predictor.class_input_proj",
    "transformer_module.decoder.query_transformer": "sem_seg_head.predictor.class_transformer",
    "transformer_module.decoder": "sem_seg_head.predictor",
    "task_encoder.task_mlp": "task_mlp",
}
"""What names of transformers' class begin with, and those of the authors' files; the first that fits counts."""


def oneformer_authors_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of the authors' files, as transformers' script that converts these reads them."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        begin, leaf = next((word for word in ONEFORMER if key.startswith(word)), ""), key.rpartition(".")[2]
        name = f"{ONEFORMER.get(begin, '')}{key.removeprefix(begin)}"
        if key.startswith("pixel_level_module.encoder.hidden_states_norms.stage"):
            name = f"backbone.norm{int(key.split('.')[3][-1]) - 1}.{leaf}"
        for ours, theirs in (
            ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("attention.o_proj", "attn.proj"),
            ("attention.relative_position_bias.relative", "attn.relative"), ("self_attn_layer_norm", "norm1"),
            ("final_layer_norm", "norm2"), ("adapter_1.0", "adapter_1"), ("adapter_1.1", "adapter_1.norm"),
            ("layer_1.0", "layer_1"), ("layer_1.1", "layer_1.norm"),
        ):  # fmt: skip
            name = name.replace(ours, theirs)
        if name.startswith("sem_seg_head.pixel_decoder.transformer.encoder"):
            name = name.replace(".fc", ".linear")
        words = name.split(".")
        if name.startswith("sem_seg_head.predictor.layers."):
            kind = {"cross_attn": "cross_attention", "self_attn": "self_attention", "ffn": "ffn"}[words[4]]
            name = ".".join(["sem_seg_head.predictor", f"transformer_{kind}_layers", words[3], *words[5:]])
        if "mask_embed.layers" in name or name.startswith("task_mlp.layers"):
            name = name.replace(".0.weight", ".weight").replace(".0.bias", ".bias")
            name = name if words[-2] == "0" else ".".join(words)
        if "_proj." in name and words[-2] in ("q_proj", "k_proj", "v_proj"):
            if words[-2] != "q_proj":
                continue
            whole = torch.cat([tensors[key.replace("q_proj", f"{letter}_proj")] for letter in "qkv"])
            own = f"attn.qkv.{leaf}" if "blocks" in key else f"in_proj_{leaf}"
            found[name.replace(f"attention.q_proj.{leaf}", own).replace(f"q_proj.{leaf}", own)] = whole
            continue
        found[name] = tensor
    return {key: tensor.contiguous() for key, tensor in found.items()}


def test_oneformer_from_a_file_of_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small size: as transformers' class computes and post-processes it; and every pixel has a class's color."""
    from transformers import OneFormerConfig, OneFormerForUniversalSegmentation, SwinConfig

    oneformer, palettes = part("oneformer"), part("palettes")
    backbone = {"embed_dim": 4, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 2, "image_size": 64}
    backbone |= {"drop_path_rate": 0.0, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    sizes = {"hidden_dim": 32, "mask_dim": 32, "conv_dim": 32, "encoder_layers": 1, "decoder_layers": 3}
    sizes |= {"encoder_feedforward_dim": 16, "dim_feedforward": 16, "query_dec_layers": 1, "num_attention_heads": 8}
    classes = oneformer.Classes(palettes.ADE20K, 6, 64, 128)
    for name, value in {"BACKBONE": backbone, "SIZES": sizes, "OF_ADE20K": classes}.items():
        monkeypatch.setattr(oneformer, name, value)
    config = OneFormerConfig(
        backbone_config=SwinConfig(**backbone), num_labels=150, num_queries=6, is_training=False, **sizes
    )
    torch.manual_seed(5)
    theirs = OneFormerForUniversalSegmentation(config).eval()
    tensors = {
        key.removeprefix("model."): value for key, value in theirs.state_dict().items() if "criterion" not in key
    }
    tensors = {key: value for key, value in tensors.items() if "swin.layernorm" not in key}
    path = tmp_path / "ControlNetPreprocessor" / "oneformer" / "250_16_swin_l_oneformer_ade20k_160k.pth"
    path.parent.mkdir(parents=True)
    written = oneformer_authors_names(tensors)
    assert all(key.startswith(("backbone.", "sem_seg_head.", "task_mlp.")) for key in written)
    torch.save({"model": written}, path)
    image = torch.randn(1, 3, 64, 96)
    task = torch.zeros(1, 77)
    task[0, :7] = torch.tensor([49406.0, 518, 10549, 533, 29119, 1550, 49407])
    with torch.no_grad():
        found = theirs(image, task)
        masks = torch.nn.functional.interpolate(found.masks_queries_logits, size=(64, 96), mode="bilinear").sigmoid()
        wanted = torch.einsum("bqc,bqhw->bchw", found.class_queries_logits.softmax(-1)[..., :-1], masks)
        torch.testing.assert_close(oneformer.class_shares(oneformer.net_of(path, classes), image), wanted)
    made, _ = run("seg_ofade20k", tmp_path, picture())
    colors = {tuple(color) for color in palettes.ADE20K.tolist()}
    assert made.shape == (64, 96, 3) and {tuple(color) for color in made.reshape(-1, 3).tolist()} <= colors
    assert len(palettes.COCO) == 133


def test_lines_by_their_middles_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with a sure middle; one that is not sure, and one that is too short, do not count. Then a map of the
    network on a small square."""
    maps = torch.zeros(1, 9, 32, 32)
    maps[:, 0] = -20.0
    for score, x, y, ends in (
        (4.0, 16, 8, (-10, -2, 10, 2)),
        (-4.0, 6, 20, (-4, 0, 4, 0)),
        (5.0, 26, 26, (0, 0, 1, 0)),
    ):
        maps[0, 0, y, x] = score
        maps[0, 1:5, y, x] = torch.tensor([float(value) for value in ends])
    assert part("lines").lines_of(maps, 0.1, 2.0) == [(6.0, 6.0, 26.0, 10.0)]
    monkeypatch.setattr(part("lines"), "SIDE", 64)
    monkeypatch.setattr(part("lines"), "MAP_SIDE", 32)
    net = random(part("lines").LineNet())
    with torch.no_grad():  # a sure line of 16 cells at every place
        net.block23.conv3.weight.zero_()
        net.block23.conv3.bias[7:12] = torch.tensor([3.0, -8.0, 0.0, 8.0, 0.0])
    path = tmp_path / "ControlNetPreprocessor" / "mlsd" / "mlsd_large_512_fp32.pth"
    path.parent.mkdir(parents=True)
    torch.save(net.state_dict(), path)
    made, _ = run("mlsd", tmp_path, picture())
    assert made.shape == (64, 96, 3) and set(np.unique(made)) == {0, 255}


def at(points: int, places: dict[int, tuple[int, int]]) -> Any:
    """A network that sees these points, in cells of its maps of an image of 368 pixels (46 cells a side)."""

    def net(x: torch.Tensor) -> torch.Tensor:
        side = x.shape[-1] // 8
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        maps = torch.zeros(1, points + 1, side, side)
        for number, (column, row) in places.items():
            away = (columns - column * side / 46) ** 2 + (rows - row * side / 46) ** 2
            maps[0, number] = torch.exp(-away / 2 / (side / 46) ** 2)
        return maps

    return net


def test_hands_and_faces_of_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the body says, a network finds the points; they are in the JSON, and drawn."""
    body, parts = part("body"), part("parts")
    values = [number for x, y in JOINTS for number in (float(4 * x), float(4 * y), 1.0)]
    monkeypatch.setattr(
        body,
        "bodies",
        lambda image, path: {
            "people": [{"pose_keypoints_2d": values}], "canvas_width": image.shape[1], "canvas_height": image.shape[0]
        },
    )  # fmt: skip
    joints = parts.joints_of({"pose_keypoints_2d": values})
    square = parts.hand_square(joints, True, (384, 384))
    elbow, wrist = np.array([216.0, 128.0]), np.array([224.0, 176.0])
    middle, side = wrist + 0.33 * (wrist - elbow), 1.5 * float(np.hypot(8, 48))
    assert (square.left, square.top) == tuple((middle - side / 2).astype(int)) and square.side == int(side)
    face = parts.face_square(joints, (384, 384))
    assert (face.left, face.top, face.side) == (160 - 30, 40 - 30, 60)  # ears are 20 pixels away, times 1.5, both ways
    assert parts.hand_square([None] * 18, True, (384, 384)) is None

    with pytest.raises(InvalidValueError, match=r"body_pose_model.pth"):
        run("openpose_full", tmp_path, picture(384, 384))
    folder = tmp_path / "ControlNetPreprocessor"
    folder.mkdir()
    (folder / "body_pose_model.pth").touch()
    with pytest.raises(InvalidValueError, match=r"hand_pose_model.pth.*models/ControlNetPreprocessor"):
        run("openpose_full", tmp_path, picture(384, 384))
    for name in ("hand_pose_model.pth", "facenet.pth"):
        (folder / name).touch()
    hand_net, face_net = at(21, {0: (23, 40), 8: (10, 5)}), at(70, {30: (23, 23)})
    monkeypatch.setattr(parts, "SCALES", (0.5, 1.0))
    monkeypatch.setattr(parts, "filled", lambda net, path: hand_net if path.stem == "hand_pose_model" else face_net)
    modules, files = library("preprocessors"), library("files")
    program = Program(folders=lambda kind: (tmp_path / kind,))
    job = modules.Job(picture(384, 384), 384, 0.5, 0.5, find=lambda names: files.preprocessor_file(program, names))
    made = modules.module_of("openpose_full").run(job)
    person = job.poses[0]["people"][0]
    hand = np.array(person["hand_left_keypoints_2d"]).reshape(21, 3)
    assert hand[:, 2].nonzero()[0].tolist() == [0, 8]
    wanted = np.array([square.left, square.top]) + np.array([[23, 40], [10, 5]]) * square.side / 46
    assert np.abs(hand[[0, 8], :2] - wanted).max() <= 2.5
    assert len(person["face_keypoints_2d"]) == 210
    assert np.abs(np.array(person["face_keypoints_2d"][90:92]) - (160, 40)).max() <= 2
    x, y = (int(value) for value in hand[8, :2])
    assert made[y, x].tolist() == [0, 0, 255]
    assert (modules.module_of("openpose_faceonly").run(job) == 255).any(axis=2).sum() in range(20, 60)


def test_depth_from_a_file_of_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small size, whose tensors get the authors' names; what is read is what transformers' class computes."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    depth = part("depth")
    monkeypatch.setitem(depth.SIZES, 16, {"layers": 12, "heads": 2, "neck": [4, 8, 8, 8], "fusion": 8})
    monkeypatch.setattr(depth, "SIDE", 56)
    encoder = Dinov2Config(
        hidden_size=16,
        num_hidden_layers=12,
        num_attention_heads=2,
        image_size=56,
        out_indices=[3, 6, 9, 12],
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(
        backbone_config=encoder, reassemble_hidden_size=16, neck_hidden_sizes=[4, 8, 8, 8], fusion_hidden_size=8
    )
    torch.manual_seed(3)
    theirs = DepthAnythingForDepthEstimation(config).eval()
    path = tmp_path / "ControlNetPreprocessor" / "depth_anything_v2_vits.safetensors"
    path.parent.mkdir()
    save_file(authors_names(theirs.state_dict()), path)
    net = depth.net_of(path, is_second=True)
    image = torch.rand(1, 3, 56, 84)
    with torch.no_grad():
        torch.testing.assert_close(net(image).predicted_depth, theirs(image).predicted_depth)
    made, _ = run("depth_anything_v2", tmp_path, picture())
    assert made.shape == (64, 96, 3) and made.min() == 0 and made.max() > 200


def authors_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of the authors' files, written from their program's structure."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        words = key.split(".")
        if key.startswith("backbone.encoder.layer."):
            block, rest = f"pretrained.blocks.{words[3]}", ".".join(words[4:])
            if ".q_proj." in key:
                parts = [tensors[key.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
                found[f"{block}.attn.qkv.{words[-1]}"] = torch.cat(parts)
            elif ".k_proj." not in key and ".v_proj." not in key:
                rest = rest.replace("attention.o_proj", "attn.proj").replace("layer_scale", "ls")
                found[f"{block}.{rest.replace('lambda1', 'gamma')}"] = tensor
        elif key.startswith("backbone."):
            short = key.removeprefix("backbone.").replace("embeddings.patch_embeddings.projection", "patch_embed.proj")
            short = short.replace("embeddings.position_embeddings", "pos_embed").replace("embeddings.", "")
            found[f"pretrained.{short.replace('layernorm', 'norm')}"] = tensor
        elif key.startswith("neck.reassemble_stage.layers."):
            kind = {"projection": "projects", "resize": "resize_layers"}[words[4]]
            found[f"depth_head.{kind}.{words[3]}.{words[5]}"] = tensor
        elif key.startswith("neck.convs."):
            found[f"depth_head.scratch.layer{int(words[2]) + 1}_rn.weight"] = tensor
        elif key.startswith("neck.fusion_stage.layers."):
            rest = ".".join(words[4:]).replace("projection", "out_conv").replace("residual_layer", "resConfUnit")
            found[f"depth_head.scratch.refinenet{4 - int(words[3])}.{rest.replace('convolution', 'conv')}"] = tensor
        else:
            place = {"conv1": "output_conv1", "conv2": "output_conv2.0", "conv3": "output_conv2.2"}[words[1]]
            found[f"depth_head.scratch.{place}.{words[2]}"] = tensor
    return {key: tensor.contiguous() for key, tensor in found.items()}


def test_depth_in_meters_from_a_file_of_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small size, whose tensors get the authors' names, and those of older versions of transformers; images are
    prepared and depth is put together as transformers' own processor does it."""
    from transformers import BeitConfig, ZoeDepthConfig, ZoeDepthForDepthEstimation
    from transformers.models.zoedepth.image_processing_pil_zoedepth import ZoeDepthImageProcessorPil

    zoe = part("zoe")
    tiny: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "intermediate_size": 32,
        "num_attention_heads": 2,
    }
    tiny |= {"image_size": 32, "out_features": [f"stage{place}" for place in (1, 2, 3, 4)]}
    sizes: dict[str, Any] = {"neck_hidden_sizes": [4, 8, 16, 16], "fusion_hidden_size": 8, "bottleneck_features": 8}
    sizes |= {"num_relative_features": 4, "bin_embedding_dim": 8, "bin_configurations": [
        {"name": "nyu", "n_bins": 8, "min_depth": 1e-3, "max_depth": 10.0}]}  # fmt: skip
    monkeypatch.setattr(zoe, "BACKBONE", zoe.BACKBONE | tiny)
    monkeypatch.setattr(zoe, "SIZES", sizes)
    monkeypatch.setattr(zoe, "HEIGHT", 96)
    monkeypatch.setattr(zoe, "WIDTH", 128)
    theirs = random(ZoeDepthForDepthEstimation(ZoeDepthConfig(backbone_config=BeitConfig(**zoe.BACKBONE), **sizes)))
    path = tmp_path / "ControlNetPreprocessor" / "zoedepth" / "ZoeD_M12_N.pt"
    path.parent.mkdir(parents=True)
    older = zoe_older_names(theirs.state_dict())
    torch.save({"model": zoe_authors_names(older)}, path)
    net, image = zoe.net_of(path), torch.rand(1, 3, 64, 96)
    save_file(older, path.with_suffix(".safetensors"))
    again = zoe.net_of(path.with_suffix(".safetensors"))
    for key, tensor in theirs.state_dict().items():
        torch.testing.assert_close(net.state_dict()[key], tensor)
        torch.testing.assert_close(again.state_dict()[key], tensor)

    processor = ZoeDepthImageProcessorPil(size={"height": 96, "width": 128}, ensure_multiple_of=32)
    prepared = processor((image[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy(), return_tensors="pt")
    seen: list[torch.Tensor] = []
    with torch.no_grad():
        hook = net.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        found = zoe.depth_of(net, image)
        hook.remove()
        mean = (theirs(seen[0]).predicted_depth + theirs(seen[0].flip(3)).predicted_depth.flip(2)) / 2
    torch.testing.assert_close(seen[0], prepared.pixel_values, atol=0.01, rtol=0)  # of pixels in 8 bits
    whole = torch.nn.functional.interpolate(mean[None], (64 + 2 * 16, 96 + 2 * 20), mode="bicubic")[0, 0]
    torch.testing.assert_close(found, whole[16:-16, 20:-20])
    assert found.std() > 0
    made, _ = run("depth_zoe", tmp_path, picture())
    assert made.shape == (64, 96, 3) and made.min() == 0 and made.max() > 200


def zoe_older_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of files of older versions of transformers."""
    found = {}
    for key, tensor in tensors.items():
        words = key.split(".")
        if key.startswith("backbone.beit.layers."):
            rest = ".".join(words[4:]).replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")
            rest = rest.replace("attention.o_proj", "attention.output.dense")
            for word in ("query", "key", "value"):
                rest = rest.replace(f"attention.{word[0]}_proj", f"attention.attention.{word}")
            rest = rest.replace("relative_position_bias.rel", "attention.attention.relative_position_bias.rel")
            found[f"backbone.encoder.layer.{words[3]}.{rest}"] = tensor.contiguous()
        else:
            found[key.replace("backbone.beit.", "backbone.")] = tensor.contiguous()
    return found


def zoe_authors_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of the authors' files, from the older names of transformers, by its script that converted them."""
    pairs = (
        *(("intermediate.dense", "mlp.fc1"), ("attention.output.dense", "attn.proj"), ("output.dense", "mlp.fc2")),
        *(("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("lambda_", "gamma_")),
        ("attention.attention.relative_position_bias.relative", "attn.relative"),
    )
    found: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        words = key.split(".")
        if key.startswith("backbone.encoder.layer."):
            block, rest = f"core.core.pretrained.model.blocks.{words[3]}", ".".join(words[4:])
            if ".attention.query." in key or ".attention.value." in key:
                if words[-1] == "bias":
                    found[f"{block}.attn.{words[-2][0]}_bias"] = tensor
                elif "query" in key:
                    parts = [tensors[key.replace("query", word)] for word in ("query", "key", "value")]
                    found[f"{block}.attn.qkv.weight"] = torch.cat(parts)
                continue
            if ".attention.key." in key:
                continue
            for ours, theirs in pairs:
                rest = rest.replace(ours, theirs)
            found[f"{block}.{rest}"] = tensor
        elif key.startswith("backbone."):
            short = key.removeprefix("backbone.embeddings.").replace("patch_embeddings.projection", "patch_embed.proj")
            found[f"core.core.pretrained.model.{short}"] = tensor
        elif key.startswith("neck.reassemble_stage.readout_projects."):
            found[f"core.core.pretrained.act_postprocess{int(words[3]) + 1}.0.project.{'.'.join(words[4:])}"] = tensor
        elif key.startswith("neck.reassemble_stage.layers."):
            place = {"projection": 3, "resize": 4}[words[4]]
            found[f"core.core.pretrained.act_postprocess{int(words[3]) + 1}.{place}.{words[5]}"] = tensor
        elif key.startswith("neck.convs."):
            found[f"core.core.scratch.layer{int(words[2]) + 1}_rn.weight"] = tensor
        elif key.startswith("neck.fusion_stage.layers."):
            rest = ".".join(words[4:]).replace("projection", "out_conv").replace("residual_layer", "resConfUnit")
            rest = rest.replace("convolution", "conv")
            found[f"core.core.scratch.refinenet{4 - int(words[3])}.{rest}"] = tensor
        elif key.startswith("relative_head."):
            found[f"core.core.scratch.output_conv.{2 * int(words[1][-1]) - 2}.{words[2]}"] = tensor
        else:
            short = key.removeprefix("metric_head.")
            if not short.startswith("conv"):
                short = short.replace(".conv1.", "._net.0.").replace(".conv2.", "._net.2.")
            found[short] = tensor
    return found


JOINTS = [(40, 10), (40, 20), (30, 20), (26, 32), (24, 44), (50, 20), (54, 32), (56, 44), (34, 46), (33, 60), (32, 74),
          (46, 46), (47, 60), (48, 74), (38, 8), (42, 8), (35, 9), (45, 9)]  # fmt: skip


def test_people_are_put_together() -> None:
    """Two people in maps as a perfect network would draw them."""
    body = part("body")
    joints, limbs = np.zeros((19, 80, 160), np.float32), np.zeros((38, 80, 160), np.float32)
    y, x = np.mgrid[:80, :160]
    people = [JOINTS, [(left + 70, top) for left, top in JOINTS]]
    for points in people:
        for number, (left, top) in enumerate(points):
            joints[number] = np.maximum(joints[number], np.exp(-((x - left) ** 2 + (y - top) ** 2) / 2 / 2.0**2))
        for first, second, maps in body.LIMBS:
            (ax, ay), (bx, by) = points[first], points[second]
            length = np.hypot(bx - ax, by - ay)
            for step in np.linspace(0, 1, 80):
                row, column = round(ay + step * (by - ay)), round(ax + step * (bx - ax))
                limbs[maps : maps + 2, row - 1 : row + 2, column - 1 : column + 2] = (
                    np.array([bx - ax, by - ay])[:, None, None] / length
                )
    found = body.people_of(limbs, joints)
    assert len(found) == 2
    places = sorted([(person.joints[n].x, person.joints[n].y) for n in range(18)] for person in found)
    assert places == sorted([(float(left), float(top)) for left, top in points] for points in people)
    drawn = library("poses").drawn({"people": [{"pose_keypoints_2d": found[0].keypoints()}], "canvas_width": 160,
                                    "canvas_height": 80}, "pose")  # fmt: skip
    assert drawn.any()
