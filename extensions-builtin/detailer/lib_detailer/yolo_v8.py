"""The network of YOLOv8 detectors and segmenters, in every width and depth.

The files' names give its structure: layers 0 to 9 reduce the image to 1/32, 10 to 21 bring the levels of 1/8, 1/16 and
1/32 together (arXiv:1803.01534), and layer 22 finds boxes as distributions over distances (arXiv:2006.04388) without
anchors, and in segmenters the weights of prototype masks (arXiv:1904.02689). All channel counts come from the shapes
of the tensors. Batch norms are folded into the convolutions.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

STRIDES_PX = (8, 16, 32)  # of the three levels of the head
HEAD = "22"
EPS = 1e-3  # of the batch norms that YOLOv8 is trained with
NORM = ("weight", "bias", "running_mean", "running_var")
UNUSED = ("num_batches_tracked", "dfl.conv.weight")  # the second is 0, 1, 2, ...

Shapes = Mapping[str, tuple[int, ...]]


class YoloV8(nn.ModuleDict):
    """Layers by their numbers; those that only enlarge or join have none here."""

    def __init__(self, shapes: Shapes) -> None:
        """`shapes` of the file's tensors by name, such as `0.conv.weight`. Raises `KeyError` or `ValueError` where
        they are those of another network."""
        layers: dict[str, nn.Module] = {number: Conv(shapes, number, 2) for number in ("0", "1", "3", "5", "7")}
        layers |= {number: C2f(shapes, number, adds=True) for number in ("2", "4", "6", "8")}
        layers |= {"9": Sppf(shapes, "9")}
        layers |= {number: C2f(shapes, number, adds=False) for number in ("12", "15", "18", "21")}
        layers |= {number: Conv(shapes, number, 2) for number in ("16", "19")}
        super().__init__(layers | {HEAD: Head(shapes, HEAD)})

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute of [B,3,h,w] in 0 to 1, both sides multiples of 32, the rows [B,4+classes(+masks),n]: middle, width
        and height of n boxes in pixels, a score for each class in 0 to 1, and with a segmenter the weights of its maps
        [B,masks,h/4,w/4]."""
        eighth = self._through(pixels, 0, 1, 2, 3, 4)
        sixteenth = self._through(eighth, 5, 6)
        last = self._through(sixteenth, 7, 8, 9)
        middle = self._through(torch.cat([_doubled(last), sixteenth], 1), 12)
        small = self._through(torch.cat([_doubled(middle), eighth], 1), 15)
        middle = self._through(torch.cat([self._through(small, 16), middle], 1), 18)
        large = self._through(torch.cat([self._through(middle, 19), last], 1), 21)
        found: tuple[Tensor, Tensor | None] = self[HEAD]([small, middle, large])
        return found

    def _through(self, x: Tensor, *numbers: int) -> Tensor:
        for number in numbers:
            x = self[str(number)](x)
        return x


class Conv(nn.Module):
    """Convolution with the batch norm folded in, and SiLU."""

    def __init__(self, shapes: Shapes, name: str, stride: int = 1) -> None:
        super().__init__()
        made, taken, height, width = shapes[f"{name}.conv.weight"]
        if height != width or height not in (1, 3):
            raise ValueError(f"{name}.conv has a kernel of {height}x{width}")
        self.conv = nn.Conv2d(taken, made, height, stride, height // 2)

    def forward(self, x: Tensor) -> Tensor:
        """[B,c,h,w] to [B,c',h/stride,w/stride]."""
        return functional.silu(self.conv(x))


class Bottleneck(nn.Module):
    """Two convolutions, added to their input where `adds`."""

    def __init__(self, shapes: Shapes, name: str, adds: bool) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(shapes, f"{name}.cv1"), Conv(shapes, f"{name}.cv2")
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        """[B,c,h,w] to the same."""
        made: Tensor = self.cv2(self.cv1(x))
        return x + made if self.adds else made


class C2f(nn.Module):
    """Halves the channels; the second half goes through the bottlenecks, and all that is made on the way is joined."""

    def __init__(self, shapes: Shapes, name: str, adds: bool) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(shapes, f"{name}.cv1"), Conv(shapes, f"{name}.cv2")
        self.m = nn.ModuleList()
        while f"{name}.m.{len(self.m)}.cv1.conv.weight" in shapes:
            self.m.append(Bottleneck(shapes, f"{name}.m.{len(self.m)}", adds))

    def forward(self, x: Tensor) -> Tensor:
        """[B,c,h,w] to [B,c',h,w]."""
        parts = [*self.cv1(x).chunk(2, 1)]
        for block in self.m:
            parts.append(block(parts[-1]))
        made: Tensor = self.cv2(torch.cat(parts, 1))
        return made


class Sppf(nn.Module):
    """Joins what three maximum filters of 5x5, one after the other, make of its input."""

    def __init__(self, shapes: Shapes, name: str) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(shapes, f"{name}.cv1"), Conv(shapes, f"{name}.cv2")

    def forward(self, x: Tensor) -> Tensor:
        """[B,c,h,w] to [B,c',h,w]."""
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, stride=1, padding=2))
        made: Tensor = self.cv2(torch.cat(parts, 1))
        return made


class Prototypes(nn.Module):
    """The maps that masks are mixed of."""

    def __init__(self, shapes: Shapes, name: str) -> None:
        super().__init__()
        taken, made, *kernel = shapes[f"{name}.upsample.weight"]
        if kernel != [2, 2]:
            raise ValueError(f"{name}.upsample has a kernel of {kernel}")
        self.cv1, self.cv2, self.cv3 = (Conv(shapes, f"{name}.{part}") for part in ("cv1", "cv2", "cv3"))
        self.upsample = nn.ConvTranspose2d(taken, made, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[B,c,h,w] to [B,masks,2h,2w]."""
        made: Tensor = self.cv3(self.cv2(self.upsample(self.cv1(x))))
        return made


class Head(nn.Module):
    """Boxes, scores and, where the file has them, masks of three levels."""

    def __init__(self, shapes: Shapes, name: str) -> None:
        super().__init__()
        self.cv2, self.cv3 = _branches(shapes, f"{name}.cv2"), _branches(shapes, f"{name}.cv3")
        masks = f"{name}.proto.upsample.weight" in shapes
        self.cv4 = _branches(shapes, f"{name}.cv4") if masks else None
        self.proto = Prototypes(shapes, f"{name}.proto") if masks else None
        boxes = {shapes[f"{name}.cv2.{level}.2.weight"][0] for level in range(len(STRIDES_PX))}
        if len(boxes) != 1 or min(boxes) % 4:
            raise ValueError(f"{name}.cv2 gives no boxes")

    def forward(self, levels: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The detector's raw output for a batch of images, see `YoloV8.forward`."""
        distances, scores = _distances(_joined(self.cv2, levels)), _joined(self.cv3, levels).sigmoid()
        middles, strides = _grid(levels)
        first, second = (middles - distances[:, :2]) * strides, (middles + distances[:, 2:]) * strides
        rows = [(first + second) / 2, second - first, scores]
        if self.cv4 is None or self.proto is None:
            return torch.cat(rows, 1), None
        return torch.cat([*rows, _joined(self.cv4, levels)], 1), self.proto(levels[0])


def fold(tensors: Mapping[str, Tensor], eps: Mapping[str, float]) -> dict[str, Tensor]:
    """The state of a `YoloV8` (float32) out of a file's tensors. `eps` by the name of the batch norm, else `EPS`."""
    folded = {}
    for name, tensor in tensors.items():
        if name.endswith(UNUSED) or ".bn." in name:
            continue
        folded[name] = tensor.float()
        norm = name.removesuffix("conv.weight") + "bn"
        if f"{norm}.weight" in tensors:
            weight, bias, mean, variance = (tensors[f"{norm}.{part}"].double() for part in NORM)
            scale = weight / (variance + eps.get(norm, EPS)).sqrt()
            folded[name] = (tensor.double() * scale[:, None, None, None]).float()
            folded[name.removesuffix("weight") + "bias"] = (bias - mean * scale).float()
    return folded


def matching(shapes: Shapes) -> YoloV8:
    """The network, on the meta device, to which tensors of these shapes belong. Raises `ValueError` that says what does
    not fit."""
    try:
        with torch.device("meta"):
            network = YoloV8(shapes).eval().requires_grad_(False)
            network(torch.zeros(1, 3, 64, 64))
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from error
    except RuntimeError as error:
        raise ValueError(f"its layers do not fit together: {str(error).splitlines()[0]}") from error
    expected: dict[str, tuple[int, ...]] = {}
    for name, parameter in network.state_dict().items():
        norm = name.removesuffix("conv.bias") + "bn"
        if name.endswith(".conv.bias") and f"{norm}.weight" in shapes:
            expected |= {f"{norm}.{part}": tuple(parameter.shape) for part in NORM}
        else:
            expected[name] = tuple(parameter.shape)
    for name in sorted(expected.keys() | shapes.keys()):
        if name not in shapes:
            raise ValueError(f"{name} is missing")
        if name not in expected and not name.endswith(UNUSED):
            raise ValueError(f"it has {name}")
        if expected.get(name, shapes[name]) != shapes[name]:
            raise ValueError(f"{name} has the shape {list(shapes[name])}")
    return network


def _branches(shapes: Shapes, name: str) -> nn.ModuleList:
    """Two convolutions and a plain one for each level."""
    return nn.ModuleList(
        nn.Sequential(
            Conv(shapes, f"{name}.{level}.0"), Conv(shapes, f"{name}.{level}.1"), _plain(shapes, f"{name}.{level}.2")
        )
        for level in range(len(STRIDES_PX))
    )


def _plain(shapes: Shapes, name: str) -> nn.Conv2d:
    made, taken, *kernel = shapes[f"{name}.weight"]
    if kernel != [1, 1]:
        raise ValueError(f"{name} has a kernel of {kernel}")
    return nn.Conv2d(taken, made, 1)


def _doubled(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="nearest")


def _joined(branches: nn.ModuleList, levels: list[Tensor]) -> Tensor:
    """[B,c,n], the places of all levels one after the other, each level row by row."""
    return torch.cat([branch(level).flatten(2) for branch, level in zip(branches, levels, strict=True)], 2)


def _distances(logits: Tensor) -> Tensor:
    """The expectations [B,4,n] of distributions over the distances 0, 1, 2, ... to left, top, right and bottom:
    arXiv:2006.04388, equation 3, over logits [B,4*distances,n]."""
    chances = logits.reshape(logits.shape[0], 4, -1, logits.shape[2]).softmax(2)
    expected: Tensor = (chances * torch.arange(chances.shape[2], device=logits.device)[:, None]).sum(2)
    return expected


def _grid(levels: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The middles [2,n] of all places in places of their level, x first, and the sizes [n] of a place in pixels."""
    middles, strides = [], []
    for level, stride in zip(levels, STRIDES_PX, strict=True):
        height, width = level.shape[2:]
        rows, columns = torch.arange(height, device=level.device), torch.arange(width, device=level.device)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        middles.append(torch.stack([x.flatten(), y.flatten()]) + 0.5)
        strides.append(torch.full((height * width,), float(stride), device=level.device))
    return torch.cat(middles, 1), torch.cat(strides)
