"""Hypertile: which tiles there are, that they hold what belongs together, and what images record."""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory.hook_chain import HookOrder, hooks_of, register_hook
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PrecisionOptions
from modules.scripts.axes import AXES
from modules.settings.values import Settings
from tests.extensions import built_in
from tests.recordings import TINY, tiny_engine
from tests.scripts.toys import run, small_hires, small_request

built_in()
HYPERTILE: Any = sys.modules["featherweight_scripts.hypertile.hypertile"]
ON = {"hypertile_enable_unet": True, "hypertile_max_tile_unet": 0, "hypertile_swap_size_unet": 1}
WIDE = {"width": 256, "height": 128}


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    engine = tiny_engine(tmp_path)
    engine.adapters.add_types(built_in().adapters.types)
    yield engine
    engine.unload()


def test_a_side_is_cut_into_equal_parts_that_are_large_enough() -> None:
    assert HYPERTILE.tile_counts(128, 32, 3) == [4, 2, 1]
    assert HYPERTILE.tile_counts(96, 32, 1) == [3]
    assert HYPERTILE.tile_counts(30, 32, 3) == [1]
    assert HYPERTILE.tile_counts(60, 16, 0) == [3]
    tiling = HYPERTILE.Tiling(3, 256, 1)
    draw = random.Random(0)
    assert tiling.counts((128, 64), 0, (1024, 512), draw) == (4, 2)
    assert tiling.counts((64, 32), 1, (1024, 512), draw) == (1, 1)  # one level deeper it is as many tokens larger
    assert tiling.counts((80, 48), 0, (640, 384), draw) == (5, 3)  # 128 px: the largest power of two in both sides


def test_where_the_layers_of_a_unet_are() -> None:
    sd1 = [
        "down_blocks.0.attentions.0",
        "down_blocks.2.attentions.1",
        "mid_block.attentions.0",
        "up_blocks.1.x",
        "up_blocks.3.x",
    ]
    places = HYPERTILE.places_of(sd1)
    assert [(place.halvings, place.depth) for place in places.values()] == [(0, 0), (2, 2), (3, 3), (2, 2), (0, 0)]
    xl = ["down_blocks.1.a", "down_blocks.2.a", "mid_block.a", "up_blocks.0.a", "up_blocks.1.a"]
    places = HYPERTILE.places_of(xl)
    assert [(place.halvings, place.depth) for place in places.values()] == [(1, 0), (2, 1), (2, 2), (2, 1), (1, 0)]


def test_evaluations_whose_answers_are_known_are_made_up_for() -> None:
    """A pass that goes on in the middle draws the tiles that it would have drawn."""

    def draws(first: int) -> list[Any]:
        state = HYPERTILE.PassState(first=HYPERTILE.Tiling(3, 128, 3), places=[HYPERTILE.LayerPlace(0, 0)] * 2)
        state.draw.seed(7)
        state.begin_pass(False)
        seen = []
        for state.call in range(first, 6):
            state.watch(nn.Identity(), lambda x: x, torch.zeros(1, 4, 96, 64))
            seen.append([state.counts(place, state.first) for place in state.places])
        return seen

    assert draws(0)[4:] == draws(4) and len({str(each) for each in draws(0)}) > 2


class Mean(nn.Module):
    """Each token becomes the mean of all it sees."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            return x.mean(dim=(2, 3), keepdim=True).expand_as(x)
        return x.mean(dim=1, keepdim=True).expand_as(x)


def test_tokens_see_only_their_tile() -> None:
    tiling = HYPERTILE.Tiling(0, 128, 1)
    layer, state = Mean(), HYPERTILE.PassState(False, (32, 64), first=tiling)
    register_hook(layer, HYPERTILE.TokenTiles(state, HYPERTILE.LayerPlace(0, 0)), HookOrder.PART)
    image = torch.arange(8.0).view(1, 1, 2, 4).repeat_interleave(16, 2).repeat_interleave(16, 3)  # a value each tile
    tokens = image.flatten(2).transpose(1, 2)
    assert torch.equal(layer(tokens), tokens)
    state.is_hires = True  # not tiled there
    assert torch.allclose(layer(tokens), torch.full_like(tokens, 3.5))
    state.is_hires = False
    merged = tokens[:, :1000]
    assert torch.allclose(layer(merged), merged.mean(1, keepdim=True).expand_as(merged))
    maps = Mean()
    register_hook(maps, HYPERTILE.MapTiles(tiling, state), HookOrder.PART)
    assert torch.equal(maps(image), image)


def test_images_change_and_record_it_and_the_model_is_left_as_it_was(engine: Engine, tmp_path: Path) -> None:
    def made(**values: Any) -> Any:
        return run(small_request(**WIDE, **values), engine, tmp_path, built_in())

    off, on, both = made(), made(settings=ON), made(settings=ON, batch_size=2, seed=4)
    assert not on.notices
    pixels = [np.asarray(result.samples[-1].image, dtype=int) for result in (off, on, both)]
    assert (pixels[0] != pixels[1]).any() and np.abs(pixels[1] - pixels[2]).max() <= 1
    parsed = parse_infotext(on.samples[0].infotext)
    assert {key: value for key, value in parsed.items() if key.startswith("Hypertile")} == {
        "Hypertile U-Net": "True",
        "Hypertile U-Net max depth": "3",
        "Hypertile U-Net max tile size": "0",
        "Hypertile U-Net swap size": "1",
    }
    assert override_settings_from(parsed, Settings()).items() >= ON.items()
    assert "Hypertile" not in off.samples[0].infotext
    model = engine.model(TINY.name, PrecisionOptions.of(Settings()))
    assert [hook for module in model.unet.modules() for hook in hooks_of(module) if hook.order is HookOrder.PART] == []


def test_the_second_pass_alone_and_the_vae(engine: Engine, tmp_path: Path) -> None:
    second = {"hypertile_enable_unet_secondpass": True, "hypertile_max_tile_unet": 0, "hypertile_swap_size_unet": 1}

    def made(settings: dict[str, Any], **values: Any) -> Any:
        return run(small_request(steps=1, settings=settings, **values), engine, tmp_path, built_in()).samples[0]

    alone = made(second, **WIDE)
    assert alone.image.tobytes() == made({}, **WIDE).image.tobytes() and "Hypertile" not in alone.infotext
    enlarged = {"width": 192, "height": 128, "hires": small_hires()}  # to 288 x 192
    hires = made({**second, "hypertile_enable_unet_secondpass": True}, **enlarged)
    assert hires.image.tobytes() != made({}, **enlarged).image.tobytes()
    assert "Hypertile U-Net second pass: True" in hires.infotext
    vae = made({"hypertile_enable_vae": True, "hypertile_swap_size_vae": 1}, **WIDE)
    assert vae.image.tobytes() != made({}, **WIDE).image.tobytes() and "Hypertile VAE: True" in vae.infotext


def test_it_composes_with_token_merging(engine: Engine, tmp_path: Path) -> None:
    wanted = small_request(**WIDE, settings={**ON, "token_merging_ratio": 0.5})
    result = run(wanted, engine, tmp_path, built_in())
    assert "Token merging ratio: 0.5" in result.samples[0].infotext and not result.notices


def test_a_tag_of_its_name_is_refused_with_the_place_of_the_switch(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="switched on in Settings > Hypertile"):
        run(small_request(prompt="a cat <hypertile:1>"), engine, tmp_path, built_in())


def test_its_axes_are_there() -> None:
    axis = AXES.get("[Hypertile] Unet Max Tile Size")
    assert axis.values("128-256 (+64)") == [128, 192, 256]
    with pytest.raises(InvalidValueError, match="neither True nor False"):
        AXES.get("[Hypertile] VAE Enabled").values("perhaps")
