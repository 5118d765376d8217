"""Tiny files in the layout of YOLOv8, and its network written down a second time with plain functions."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-3
PROGRAM = "ultralytics.nn"
CHANNELS = {
    0: 4,
    1: 6,
    2: 6,
    3: 8,
    4: 8,
    5: 10,
    6: 10,
    7: 12,
    8: 12,
    9: 12,
    12: 10,
    15: 8,
    16: 6,
    18: 10,
    19: 8,
    21: 12,
}
TAKES = {0: 3, **{n: CHANNELS[n - 1] for n in range(1, 10)}, 12: 22, 15: 18, 16: 8, 18: 16, 19: 10, 21: 20}
DEPTHS = {2: 1, 4: 2, 6: 2, 8: 1, 12: 1, 15: 1, 18: 1, 21: 1}
BINS, CLASSES, MASKS = 16, 2, 4

Tensors = dict[str, Tensor]


def random_tensors(masks: bool = False) -> Tensors:
    """By the names in a file, without the `model.` before them."""
    generator = torch.Generator().manual_seed(1)
    tensors: Tensors = {}

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def conv(name: str, taken: int, made: int, kernel: int) -> None:
        tensors[f"{name}.conv.weight"] = normal(made, taken, kernel, kernel) * 1.7 / (taken * kernel**2) ** 0.5
        for part in ("weight", "running_var"):
            tensors[f"{name}.bn.{part}"] = 0.5 + torch.rand(made, generator=generator)
        for part in ("bias", "running_mean"):
            tensors[f"{name}.bn.{part}"] = normal(made) / 4
        tensors[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)

    def c2f(name: str, taken: int, made: int, depth: int) -> None:
        half = made // 2
        conv(f"{name}.cv1", taken, made, 1)
        conv(f"{name}.cv2", (2 + depth) * half, made, 1)
        for number in range(depth):
            conv(f"{name}.m.{number}.cv1", half, half, 3)
            conv(f"{name}.m.{number}.cv2", half, half, 3)

    for number, made in CHANNELS.items():
        if number in DEPTHS:
            c2f(str(number), TAKES[number], made, DEPTHS[number])
        elif number == 9:
            conv("9.cv1", made, made // 2, 1)
            conv("9.cv2", made * 2, made, 1)
        else:
            conv(str(number), TAKES[number], made, 3)
    branches = {"cv2": BINS * 4, "cv3": CLASSES} | ({"cv4": MASKS} if masks else {})
    for branch, made in branches.items():
        for level, taken in enumerate((CHANNELS[15], CHANNELS[18], CHANNELS[21])):
            conv(f"22.{branch}.{level}.0", taken, 6, 3)
            conv(f"22.{branch}.{level}.1", 6, 6, 3)
            tensors[f"22.{branch}.{level}.2.weight"] = normal(made, 6, 1, 1)
            tensors[f"22.{branch}.{level}.2.bias"] = normal(made)
    tensors["22.dfl.conv.weight"] = torch.arange(BINS, dtype=torch.float32).view(1, BINS, 1, 1)
    if masks:
        conv("22.proto.cv1", CHANNELS[15], 6, 3)
        tensors["22.proto.upsample.weight"], tensors["22.proto.upsample.bias"] = normal(6, 6, 2, 2) / 3, normal(6)
        conv("22.proto.cv2", 6, 6, 3)
        conv("22.proto.cv3", 6, MASKS, 1)
    return tensors


def expected_outputs(tensors: Tensors, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows [1,4+classes(+masks),n] and maps of the network, place by place."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = tensors[f"{name}.conv.weight"]
        mean, variance, scale, shift = (
            tensors[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        made = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        made = functional.batch_norm(made, mean, variance, scale, shift, eps=EPS)
        return made * torch.sigmoid(made)

    def c2f(number: int, x: Tensor) -> Tensor:
        first = conv(f"{number}.cv1", x)
        half = first.shape[1] // 2
        parts = [first[:, :half], first[:, half:]]
        for block in range(DEPTHS[number]):
            made = conv(f"{number}.m.{block}.cv2", conv(f"{number}.m.{block}.cv1", parts[-1]))
            parts.append(made + parts[-1] if number < 10 else made)
        return conv(f"{number}.cv2", torch.cat(parts, 1))

    def branch(name: str, x: Tensor) -> Tensor:
        x = conv(f"{name}.1", conv(f"{name}.0", x))
        return functional.conv2d(x, tensors[f"{name}.2.weight"], tensors[f"{name}.2.bias"])[0]

    made: dict[int, Tensor] = {}
    x = pixels
    for number in range(9):
        x = made[number] = c2f(number, x) if number in DEPTHS else conv(str(number), x, 2)
    pooled = [conv("9.cv1", x)]
    for size in (5, 9, 13):  # filters one after the other are one of a larger size
        pooled.append(functional.max_pool2d(pooled[0], size, 1, size // 2))
    made[9] = conv("9.cv2", torch.cat(pooled, 1))
    made[12] = c2f(12, torch.cat([made[9].repeat_interleave(2, 2).repeat_interleave(2, 3), made[6]], 1))
    made[15] = c2f(15, torch.cat([made[12].repeat_interleave(2, 2).repeat_interleave(2, 3), made[4]], 1))
    made[18] = c2f(18, torch.cat([conv("16", made[15], 2), made[12]], 1))
    made[21] = c2f(21, torch.cat([conv("19", made[18], 2), made[9]], 1))
    masks = "22.cv4.0.2.weight" in tensors
    columns = []
    for level, (number, stride) in enumerate({15: 8, 18: 16, 21: 32}.items()):
        boxes, scores = branch(f"22.cv2.{level}", made[number]), branch(f"22.cv3.{level}", made[number])
        weights = branch(f"22.cv4.{level}", made[number]) if masks else None
        for row in range(boxes.shape[1]):
            for column in range(boxes.shape[2]):
                chances = [torch.softmax(boxes[16 * side : 16 * side + 16, row, column], 0) for side in range(4)]
                sides = [float(sum(n * chance for n, chance in enumerate(some.tolist()))) for some in chances]
                left, top = (column + 0.5 - sides[0]) * stride, (row + 0.5 - sides[1]) * stride
                right, bottom = (column + 0.5 + sides[2]) * stride, (row + 0.5 + sides[3]) * stride
                place = [torch.tensor([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])]
                place.append(1 / (1 + torch.exp(-scores[:, row, column])))
                columns.append(torch.cat([*place, *([] if weights is None else [weights[:, row, column]])]))
    maps = None
    if masks:
        larger = functional.conv_transpose2d(
            conv("22.proto.cv1", made[15]),
            tensors["22.proto.upsample.weight"],
            tensors["22.proto.upsample.bias"],
            stride=2,
        )
        maps = conv("22.proto.cv3", conv("22.proto.cv2", larger))
    return torch.stack(columns, 1)[None], maps


@contextmanager
def program(*names: str) -> Iterator[Mapping[str, type[nn.Module]]]:
    """Classes of a training program that is not installed, by full name, while this is entered."""
    made: dict[str, type[nn.Module]] = {}
    modules: dict[str, ModuleType] = {}
    for full in names:
        module, _, name = full.rpartition(".")
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        made[full] = type(name, (nn.Module,), {"__module__": module})
        setattr(modules[module], name, made[full])
    assert not modules.keys() & sys.modules.keys()
    sys.modules.update(modules)
    try:
        yield made
    finally:
        for module in modules:
            del sys.modules[module]


def as_module(
    tensors: Tensors, classes: Mapping[str, type[nn.Module]], root: str, activation: type[nn.Module] = nn.SiLU
) -> nn.Module:
    """A tree of modules that holds the tensors below `model`, as a training program saves it."""
    conv = classes[f"{PROGRAM}.modules.conv.Conv"]
    whole = classes[root]()
    for full, tensor in tensors.items():
        *path, own = f"model.{full}".split(".")
        place = whole
        for part in path:
            if part not in dict(place.named_children()):
                child: nn.Module = nn.Sequential() if part == "model" else conv()
                if part == "bn":
                    child = nn.BatchNorm2d(tensor.shape[0], eps=EPS)
                    place.add_module("act", activation())
                place.add_module(part, child)
            place = place.get_submodule(part)
        if isinstance(place, nn.BatchNorm2d):
            place.state_dict()[own].copy_(tensor)
        else:
            place.register_parameter(own, nn.Parameter(tensor, requires_grad=False))
    return whole


def save_detector(
    path: Path,
    tensors: Tensors,
    root: str = "tasks.DetectionModel",
    activation: type[nn.Module] = nn.SiLU,
    **beside: Any,
) -> None:
    """A `.pt` file as YOLOv8's training writes it, in float16."""
    names = (f"{PROGRAM}.{root}" if root.startswith("tasks.") else root, f"{PROGRAM}.modules.conv.Conv")
    with program(*names) as classes:
        model = as_module(tensors, classes, names[0], activation).half()
        details: Any = model
        details.names, details.stride = {0: "cat", 1: "hand"}, torch.tensor([8.0, 16.0, 32.0])
        details.yaml = {"nc": CLASSES, "yaml_file": "yolov8n.yaml"}
        torch.save({"epoch": -1, "model": model, "train_args": {"imgsz": 64}} | beside, path)
