"""The stand-in for torchvision: numbers against PIL's and PyTorch's own, and who gets it."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from transformers.utils import is_torchvision_available

from compat.finder import install
from modules.scripts.acting import Acting, acting
from modules.scripts.extension import Extension


@pytest.fixture
def theirs() -> Iterator[Acting]:
    """Somebody whose code it is; what they import is taken away at the end."""
    install()
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}
    for name in before:  # what a test before had an extension import
        del sys.modules[name]
    is_torchvision_available.cache_clear()
    yield Acting("mine/mine.py", owner=Extension("mine", Path()))
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def picture() -> Image.Image:
    values = np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((40, 24), Image.Resampling.BICUBIC)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="the real one is taken where it is")
def test_extensions_get_it_and_nobody_else(theirs: Acting) -> None:
    with pytest.raises(ModuleNotFoundError):
        import torchvision  # type: ignore[import-not-found] # noqa: F401
    names: dict[str, object] = {}
    source = (
        "import torchvision, torchvision.transforms.functional as TF\n"
        "from torchvision import transforms\n"
        "from torchvision.ops.boxes import batched_nms\n"
        "from torchvision.models import resnet18\n"
        "from transformers.utils import is_torchvision_available\n"
        "steps = transforms.Compose([transforms.Resize(8), transforms.CenterCrop((8, 8)), transforms.ToTensor(),\n"
        "    transforms.Normalize([0.5] * 3, [0.5] * 3)])\n"
        "is_there = is_torchvision_available()\n"
    )
    with acting(theirs):
        exec(source, names)
        assert names["is_there"] is False  # what transformers thinks does not change
        assert names["steps"](Image.new("RGB", (32, 16), "white")).eq(1).all()  # type: ignore[operator]
        for call in ("resnet18()", "torchvision.io.read_image('a.png')", "transforms.RandAugment()"):
            with pytest.raises(AttributeError, match="not installed next to the program's PyTorch"):
                exec(call, names)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="the real one is taken where it is")
def test_transformers_that_an_extension_imports_first_finds_none(theirs: Acting) -> None:
    with acting(theirs):
        assert not is_torchvision_available()
        assert importlib.util.find_spec("torchvision") is not None


def test_images_and_tensors(picture: Image.Image) -> None:
    from compat.facades import vision as v

    tensor = v.to_tensor(picture)
    assert tensor.shape == (3, 24, 40) and tensor.max() <= 1 and v.pil_to_tensor(picture).dtype is torch.uint8
    assert v.to_pil_image(tensor).tobytes() == picture.tobytes()
    assert v.to_pil_image(np.array(picture)).tobytes() == picture.tobytes()
    assert torch.equal(v.normalize(tensor, [0.5, 0, 0], [2, 1, 1])[0], (tensor[0] - 0.5) / 2)
    mode = v.InterpolationMode.BICUBIC
    assert v.resize(picture, 12, mode).tobytes() == picture.resize((20, 12), Image.Resampling.BICUBIC).tobytes()
    assert v.resize(tensor, 12).shape == (3, 12, 20) and v.resize(tensor[None], (5, 6)).shape == (1, 3, 5, 6)
    assert v.get_image_size(v.resize(picture, 24, max_size=30)) == [30, 18]
    smaller = (
        v.pil_to_tensor(v.resize(picture, (12, 20))).float() - v.resize(v.pil_to_tensor(picture), (12, 20)).float()
    )
    assert smaller.abs().max() <= 2  # PIL rounds between its two passes
    box = (10, 6, 30, 18)
    assert v.center_crop(picture, (12, 20)).tobytes() == picture.crop(box).tobytes()
    assert torch.equal(v.center_crop(tensor, (12, 20)), tensor[:, 6:18, 10:30])
    assert v.center_crop(tensor, 30)[:, :3].eq(0).all() and v.pad(tensor, (1, 2)).shape == (3, 28, 42)
    assert torch.equal(v.to_tensor(v.hflip(picture)), v.hflip(tensor))
    gray = np.asarray(picture.convert("L"), dtype=float)
    assert np.abs(v.rgb_to_grayscale(v.pil_to_tensor(picture))[0].numpy() - gray).max() <= 1
    darker = v.pil_to_tensor(v.adjust_brightness(picture, 0.5)).float() - v.adjust_brightness(tensor, 0.5) * 255
    assert darker.abs().max() <= 1


def test_blur_grids_and_boxes(picture: Image.Image, tmp_path: Path) -> None:
    from compat.facades import vision as v

    tensor = v.to_tensor(picture)
    soft = v.gaussian_blur(tensor, 13, 2.0)
    expected = np.asarray(picture.filter(ImageFilter.GaussianBlur(2)), dtype=float)[6:-6, 6:-6] / 255
    assert np.abs(soft.permute(1, 2, 0).numpy()[6:-6, 6:-6] - expected).max() < 0.03
    assert torch.allclose(v.gaussian_blur(torch.ones(1, 9, 9), 3), torch.ones(1, 9, 9))
    grid = v.make_grid(torch.stack([tensor] * 3), nrow=2, padding=2, pad_value=0.5)
    assert (
        grid.shape == (3, 2 * 26 + 2, 2 * 42 + 2) and torch.equal(grid[:, 2:26, 44:84], tensor) and grid[0, 0, 0] == 0.5
    )
    v.save_image(tensor, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as saved:
        assert saved.convert("RGB").tobytes() == picture.tobytes()
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]])
    scores = torch.tensor([0.5, 0.9, 0.1])
    assert v.nms(boxes, scores, 0.5).tolist() == [1, 2] and v.nms(boxes, scores, 0.9).tolist() == [1, 0, 2]
    assert v.batched_nms(boxes, scores, torch.tensor([0, 1, 0]), 0.5).tolist() == [1, 0, 2]
