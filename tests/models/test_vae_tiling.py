"""The VAE in tiles gives what the whole VAE gives; after NaN it goes on in a wider dtype."""

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional as F

from modules.errors import NumericalError
from modules.models.autoencoders.kl import KlAutoencoder, KlSizes
from modules.models.autoencoders.running import VaeRules, VaeRunner, quick_layout
from modules.models.autoencoders.separate_tiles import SeparateTiles, tile_boxes
from modules.models.autoencoders.tiling import SMALLEST_TILE, decode_tiled, encode_tiled

CPU = torch.device("cpu")
DOWNSCALE = 4
KIND = KlAutoencoder(KlSizes(3, 3, 4, (8, 16, 16), 1))


@pytest.fixture(scope="module")
def vae() -> AutoencoderKL:
    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(8, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        norm_num_groups=4,
    )
    return vae.eval().requires_grad_(False)


def whole(vae: Any, latent: Tensor) -> Tensor:
    decoded: Tensor = vae.decode(latent, return_dict=False)[0]
    return decoded


@pytest.mark.parametrize("side", [(40, 40), (17, 70), (33, 16), (50, 19)])
def test_an_image_decoded_in_tiles_is_that_of_the_whole_vae(vae: AutoencoderKL, side: tuple[int, int]) -> None:
    latent = torch.randn(2, 4, *side)
    tiled = decode_tiled(vae, latent, SMALLEST_TILE)
    assert tiled.shape == (2, 3, side[0] * DOWNSCALE, side[1] * DOWNSCALE)
    torch.testing.assert_close(tiled, whole(vae, latent), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("side", [(160, 160), (72, 260)])
def test_an_image_encoded_in_tiles_gives_the_whole_vaes_moments(vae: AutoencoderKL, side: tuple[int, int]) -> None:
    images = torch.rand(1, 3, *side) * 2 - 1
    expected = vae.encode(images).latent_dist.parameters
    torch.testing.assert_close(encode_tiled(vae, images, SMALLEST_TILE), expected, atol=1e-4, rtol=1e-4)


def test_what_fits_a_tile_has_the_very_numbers_of_the_whole(vae: AutoencoderKL) -> None:
    latent = torch.randn(1, 4, 8, 6)
    assert torch.equal(decode_tiled(vae, latent, SMALLEST_TILE), whole(vae, latent))


SEPARATE = (
    SeparateTiles(decoder=8, encoder=48),
    SeparateTiles(decoder=8, encoder=48, estimates_decoder=True, estimates_encoder=True),
    SeparateTiles(decoder=8, encoder=48, estimates_encoder=True, color_fix=True),
)


@pytest.mark.parametrize("tiles", SEPARATE, ids=("pooled", "estimated", "color fix"))
def test_separate_tiles_come_close_to_the_whole_vae(vae: AutoencoderKL, tiles: SeparateTiles) -> None:
    """The statistics that they share are not those of the whole; the recorded images say how far off they are."""
    generator = torch.Generator().manual_seed(1)
    latent = F.interpolate(torch.randn(1, 4, 6, 5, generator=generator), (44, 31), mode="bilinear")
    images = F.interpolate(torch.randn(1, 3, 8, 7, generator=generator), (160, 128), mode="bilinear")
    decoded, moments = tiles.decode(vae, latent), tiles.encode(vae, images)
    assert decoded is not None and moments is not None
    for found, exact in ((decoded, whole(vae, latent)), (moments, vae.encode(images).latent_dist.parameters)):
        assert found.shape == exact.shape
        alike = torch.corrcoef(torch.stack([found.flatten(), exact.flatten()]))[0, 1]
        assert float(alike) > 0.6
    runner = VaeRunner(CPU, torch.float32, VaeRules(separate=tiles))
    assert torch.equal(runner.decode(KIND, vae, latent), decoded)


def test_separate_tiles_leave_alone_what_one_tile_shows(vae: AutoencoderKL) -> None:
    tiles = SeparateTiles(decoder=8, encoder=48)
    assert tiles.decode(vae, torch.randn(1, 4, 30, 12)) is None
    assert tiles.encode(vae, torch.randn(1, 3, 112, 60)) is None
    assert [len(tile_boxes(*size, 8, 11)) for size in ((30, 30), (31, 30), (38, 47))] == [1, 2, 8]
    seen = tile_boxes(16, 24, 8, 4)
    assert [box.kept for box in seen] == [(0, 12, 0, 16), (12, 24, 0, 16)]
    assert [box.seen for box in seen] == [(0, 16, 0, 16), (8, 24, 0, 16)]


def test_tiles_wrap_around_where_convolutions_do(vae: AutoencoderKL) -> None:
    convolutions = [
        layer for layer in vae.modules() if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size != (1, 1)
    ]
    modes = [layer.padding_mode for layer in convolutions]
    for layer in convolutions:
        layer.padding_mode = "circular"
        layer._reversed_padding_repeated_twice = [1, 1, 1, 1]
    try:
        latent = torch.randn(1, 4, 40, 24)
        torch.testing.assert_close(decode_tiled(vae, latent, 16), whole(vae, latent), atol=1e-4, rtol=1e-4)
    finally:
        for layer, mode in zip(convolutions, modes, strict=True):
            layer.padding_mode = mode


class Halting:
    """A VAE that gives NaN in float16, or has no memory for more than a tile."""

    def __init__(self, vae: Any, nan_in: tuple[torch.dtype, ...] = (), limit: int = 10_000) -> None:
        self.vae, self.nan_in, self.limit = vae, nan_in, limit
        self.dtypes: list[torch.dtype] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vae, name)

    def to(self, dtype: torch.dtype) -> None:
        self.dtypes.append(dtype)

    def decode(self, latent: Tensor, return_dict: bool) -> tuple[Tensor]:
        if max(latent.shape[-2:]) > self.limit:
            raise torch.OutOfMemoryError("no memory for the whole")
        if latent.dtype in self.nan_in:
            return (torch.full((1, 3, 8, 8), torch.nan),)
        result: tuple[Tensor] = self.vae.decode(latent.float(), return_dict=return_dict)
        return result


def test_nan_is_decoded_again_wider_and_stays_wider(vae: AutoencoderKL) -> None:
    halting = Halting(vae, (torch.float16, torch.bfloat16))
    rules = VaeRules(after_nan=(torch.bfloat16, torch.float32))
    runner = VaeRunner(CPU, torch.float16, rules)
    latent = torch.randn(1, 4, 8, 8)
    assert torch.equal(runner.decode(KIND, halting, latent), whole(vae, latent))
    assert (halting.dtypes, runner.dtype) == ([torch.bfloat16, torch.float32], torch.float32)


def test_nan_in_every_dtype_names_the_remedy(vae: AutoencoderKL) -> None:
    runner = VaeRunner(CPU, torch.float16)
    with pytest.raises(NumericalError, match="--no-half-vae"):
        runner.decode(KIND, Halting(vae, (torch.float16,)), torch.randn(1, 4, 8, 8))


def test_without_the_check_nan_becomes_black(vae: AutoencoderKL) -> None:
    runner = VaeRunner(CPU, torch.float16, check_nan=False)
    assert (runner.decode(KIND, Halting(vae, (torch.float16,)), torch.randn(1, 4, 8, 8)) == -1).all()


def test_running_out_of_memory_is_left_to_the_caller(vae: AutoencoderKL) -> None:
    """`modules.processing.engine.recovery` is the only place that tries again with less."""
    runner = VaeRunner(CPU, torch.float32)
    with pytest.raises(torch.OutOfMemoryError):
        runner.decode(KIND, Halting(vae, limit=8), torch.randn(1, 4, 12, 12))


@pytest.mark.parametrize("tile_px", [0, 64])
def test_in_16_bits_on_the_cpu_channels_lie_last(vae: Any, tile_px: int) -> None:
    """Nearly the same image, as close to that in 32 bits, given in the usual layout; 32 bits are left alone."""
    latent = torch.randn(1, 4, 40, 24, generator=torch.Generator().manual_seed(0))
    half = AutoencoderKL.from_config(vae.config).to(torch.bfloat16).eval()
    half.load_state_dict(vae.state_dict())
    seen: list[bool] = []
    half.decoder.conv_in.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    runner = VaeRunner(CPU, torch.bfloat16, VaeRules(tile_px=tile_px))
    with torch.inference_mode():
        decoded = runner.decode(KIND, half, latent)
        true = VaeRunner(CPU, torch.float32).decode(KIND, vae, latent)
        plain = whole(half, latent.to(torch.bfloat16)).float()
    assert seen and (tile_px > 0 or seen[0])
    assert decoded.is_contiguous() and decoded.dtype == torch.float32
    assert (decoded - true).norm() < 1.3 * (plain - true).norm() + 0.01 * true.norm()
    assert quick_layout(latent) is latent


def test_in_float32_a_large_image_is_decoded_in_tiles_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []
    monkeypatch.setattr(KlAutoencoder, "decode", lambda own, vae, latent, tile_px: sides.append(tile_px) or latent)
    for dtype, chosen in ((torch.float32, 0), (torch.float32, 512), (torch.float32, 64), (torch.bfloat16, 0)):
        VaeRunner(CPU, dtype, VaeRules(tile_px=chosen)).decode(KIND, None, torch.zeros(1, 3, 8, 8))
    assert sides == [128, 128, 64, 0]
