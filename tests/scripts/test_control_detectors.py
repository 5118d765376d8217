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


def written(net: torch.nn.Module, path: Path, prefix: str = "") -> Path:
    """The file of a network, in the form in which it is trained."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            weight.normal_(std=0.0 if weight.ndim < 2 else (2 / weight[0].numel()) ** 0.5)
            assert name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": {f"{prefix}{key}": tensor for key, tensor in net.state_dict().items()}}, path)
    return path


def run(name: str, folder: Path, image: "np.ndarray[Any, np.dtype[np.uint8]]") -> Any:
    modules, files = library("preprocessors"), library("files")
    program = Program(folders=lambda kind: (folder / kind,))
    job = modules.Job(image, 64, 0.5, 0.5, find=lambda names: files.preprocessor_file(program, names))
    return modules.module_of(name).run(job), job


FILES: dict[str, tuple[str, str, str, int, str]] = {
    "hed": ("soft_edges", "Hed", "hed/ControlNetHED.pth", 14_700_000, "block5.convs.2.weight"),
    "pidinet": ("soft_edges", "PidiNet", "table5_pidinet.pth", 700_000, "block2_1.shortcut.bias"),
    "lineart": ("lineart", "Generator", "sk_model.pth", 4_300_000, "model2.2.conv_block.5.weight"),
    "lineart_anime": ("anime_lines", "AnimeLines", "netG.pth", 54_400_000, "model.model.1.model.3.model.5.weight"),
    "openpose": ("body", "BodyNet", "body_pose_model.pth", 52_000_000, "Mconv7_stage6_L2.bias"),
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


@pytest.mark.parametrize("name", ["hed_safe", "scribble_hed", "pidinet", "lineart"])
def test_a_file_makes_a_map(name: str, tmp_path: Path) -> None:
    module, kind, file, _, _ = FILES[{"hed_safe": "hed", "scribble_hed": "hed"}.get(name, name)]
    path = written(getattr(part(module), kind)(), tmp_path / "ControlNetPreprocessor" / file, "module.")
    made, _ = run(name, tmp_path, picture())
    assert made.shape == (64, 96, 3) and made.dtype == np.uint8
    levels = len(np.unique(made))
    assert levels <= 3 if name in ("hed_safe", "scribble_hed") else levels > 3
    torch.save({"other": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match=r"is missing, and .* another network's file"):
        run(name, tmp_path, picture())


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
