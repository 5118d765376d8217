"""Upscalers at work: exact sizes, repeated passes, tiles, interruption, devices, and what is kept loaded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.errors import Interrupted, UnknownNameError
from modules.settings.values import Settings
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.spandrel_import import import_spandrel
from modules.upscalers.upscalers import Upscalers
from tests.upscalers.models import esrgan_weights, save_esrgan

CPU = torch.device("cpu")


def silent(index: int, count: int) -> None:
    """Goes on."""


@pytest.fixture
def upscalers(tmp_path: Path) -> Upscalers:
    save_esrgan(tmp_path / "ESRGAN" / "4x-Tiny.pth")
    save_esrgan(tmp_path / "SwinIR" / "2x-Tiny.safetensors", scale=2)
    folders = {kind: tmp_path / kind for kind in ("ESRGAN", "SwinIR")}
    return Upscalers(UpscalerCatalogue(folders), lambda part: CPU)


def image(width: int = 24, height: int = 20) -> Image.Image:
    rows = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(rows)


def test_it_is_what_spandrel_gives(upscalers: Upscalers) -> None:
    source = image()
    ours = upscalers.enlarge(source, "4x-tiny", (96, 80), Settings(), silent)
    planes = torch.from_numpy(np.asarray(source)[:, :, ::-1].copy()).permute(2, 0, 1)[None].float() / 255
    model = import_spandrel().ModelLoader().load_from_state_dict(esrgan_weights()).eval()
    with torch.inference_mode():
        theirs = (model(planes)[0].permute(1, 2, 0).numpy() * 255).clip(0, 255).astype(np.uint8)[:, :, ::-1]
    assert np.array_equal(np.asarray(ours), theirs)


@pytest.mark.parametrize(
    ("name", "size_px", "passes"),
    [("4x-Tiny", (50, 41), 1), ("2x-Tiny", (96, 80), 2), ("2x-Tiny", (300, 250), 3), ("2x-Tiny", (12, 10), 0)],
)
def test_any_size_is_reached_in_as_many_passes_as_it_takes(
    upscalers: Upscalers, name: str, size_px: tuple[int, int], passes: int
) -> None:
    tiles: list[int] = []
    settings = Settings().with_changes({"ESRGAN_tile": 0, "SWIN_tile": 512})
    result = upscalers.enlarge(image(), name, size_px, settings, lambda index, count: tiles.append(index))
    assert result.size == size_px
    assert tiles == [0] * passes


def test_tiled_is_nearly_untiled(upscalers: Upscalers) -> None:
    image = Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).rotate(0)
    image.paste((200, 60, 20), (20, 20, 44, 44))
    whole = upscalers.enlarge(image, "4x-Tiny", (256, 256), Settings().with_changes({"ESRGAN_tile": 0}), silent)
    counts: list[int] = []
    settings = Settings().with_changes({"ESRGAN_tile": 48, "ESRGAN_tile_overlap": 16})
    tiled = upscalers.enlarge(image, "4x-Tiny", (256, 256), settings, lambda index, count: counts.append(count))
    assert counts == [4] * 4
    apart = np.abs(np.asarray(whole).astype(int) - np.asarray(tiled).astype(int))
    assert apart.mean() < 1 and apart.max() < 64


def test_it_stops_between_tiles(upscalers: Upscalers) -> None:
    def stop(index: int, count: int) -> None:
        if index == 1:
            raise Interrupted("stopped")

    settings = Settings().with_changes({"ESRGAN_tile": 16})
    with pytest.raises(Interrupted):
        upscalers.enlarge(image(), "4x-Tiny", (96, 80), settings, stop)
    assert upscalers.enlarge(image(), "4x-Tiny", (96, 80), settings, silent).size == (96, 80)


def test_the_adapter_stays_until_another_is_asked_for_or_the_file_changes(
    upscalers: Upscalers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.upscalers import loading

    seen: list[str] = []
    load = loading.load_upscaler
    monkeypatch.setattr(loading, "load_upscaler", lambda path, device: seen.append(path.stem) or load(path, device))
    for name in ("4x-Tiny", "4x-Tiny", "2x-Tiny", "2x-Tiny"):
        upscalers.enlarge(image(), name, (48, 40), Settings(), silent)
    assert seen == ["4x-Tiny", "2x-Tiny"]
    upscalers.release()
    upscalers.enlarge(image(), "2x-Tiny", (48, 40), Settings(), silent)
    info = upscalers.catalogue.find("2x-Tiny")
    assert info is not None
    save_esrgan(info.path, scale=4)
    assert upscalers.enlarge(image(), "2x-Tiny", (48, 40), Settings(), silent).size == (48, 40)
    assert len(seen) == 4


def test_the_device_is_asked_for_by_kind(tmp_path: Path) -> None:
    parts: list[str] = []
    for kind in ("ESRGAN", "SwinIR", "DAT"):
        save_esrgan(tmp_path / kind / f"{kind}-a.safetensors", scale=2)
    catalogue = UpscalerCatalogue({kind: tmp_path / kind for kind in ("ESRGAN", "SwinIR", "DAT")})
    upscalers = Upscalers(catalogue, lambda part: parts.append(part) or CPU)
    for name in catalogue.names:
        upscalers.enlarge(image(), name, (48, 40), Settings(), silent)
    assert parts == ["esrgan", "esrgan", "swinir"]


def test_an_unknown_name_lists_the_files(upscalers: Upscalers) -> None:
    with pytest.raises(UnknownNameError, match=r"upscaler 'gone'.*4x-Tiny"):
        upscalers.enlarge(image(), "gone", (48, 40), Settings(), silent)
