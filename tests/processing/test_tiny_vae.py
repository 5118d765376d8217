"""Jobs with a tiny autoencoder (TAESD) as decoder, encoder or for previews."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderTiny
from PIL import Image
from safetensors.torch import save_file

from modules.errors import CheckpointError, Interrupted
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.models.autoencoders.tiny_vae import original_names
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER, TinyVaeFolders
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.settings.setting import SettingValue
from modules.settings.values import Settings
from tests.recordings import CONFIGS, tiny_engine

QUIET = Settings().changed(
    sd_model_checkpoint="tiny-sd1.safetensors", samples_save=False, grid_save=False, return_grid=False
)
HIRES = HiresRequest(scale=1.5, steps=1, denoising_strength=0.5, upscaler="Lanczos")
TINY_DECODE: dict[str, SettingValue] = {"sd_vae_decode_method": "TAESD"}
BY_TAESD: dict[str, SettingValue] = {"show_progress_type": "TAESD"}
TINY_ENCODE: dict[str, SettingValue] = {"sd_vae_encode_method": "TAESD"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both halves for SD1."""
    folder: Path = tmp_path_factory.mktemp("VAE-taesd")
    torch.manual_seed(0)
    vae = AutoencoderTiny(encoder_block_out_channels=(8,) * 4, decoder_block_out_channels=(8,) * 4)
    for half in (DECODER, ENCODER):
        save_file(original_names(getattr(vae, half), half), folder / f"taesd_{half}.safetensors")
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path_factory.mktemp("cache"))
    engine.tiny_vaes = TinyVaeFolders([folder])
    yield engine
    engine.unload()


class Watching(Silent):
    """Keeps the previews."""

    def __init__(self) -> None:
        self.previews: list[Image.Image] = []

    def wants_preview(self, done: int) -> bool:
        return True

    def preview(self, image: Image.Image) -> None:
        self.previews.append(image)


def request(
    changes: Mapping[str, SettingValue] | None = None, hires: HiresRequest | None = None, batch_size: int = 1
) -> GenerationRequest:
    return GenerationRequest(
        prompt="a dog",
        width=64,
        height=64,
        steps=2,
        seed=1,
        subseed=0,
        sampler="Euler",
        batch_size=batch_size,
        hires=hires,
        settings=QUIET.with_changes(changes or {}),
    )


def make(engine: Engine, wanted: GenerationRequest, watching: Silent | None = None) -> Result:
    return generate(wanted, engine, Output(Path()), watching or Silent())


def pixels(result: Result) -> bytes:
    data: bytes = result.images[0].image.tobytes()
    return data


def test_the_chosen_decoder_makes_the_image_and_the_model_stays_as_it_was(engine: Engine) -> None:
    full = make(engine, request())
    tiny = make(engine, request(TINY_DECODE))
    assert pixels(tiny) != pixels(full) and tiny.images[0].image.size == (64, 64)
    assert pixels(make(engine, request())) == pixels(full)


def test_it_is_recorded_and_pasted_also_the_absence(engine: Engine) -> None:
    tiny = parse_infotext(make(engine, request(TINY_DECODE)).images[0].infotext)
    assert tiny["VAE Decoder"] == "TAESD" and tiny["VAE Encoder"] == "Full"
    assert override_settings_from(tiny, Settings())["sd_vae_decode_method"] == "TAESD"
    text = make(engine, request(TINY_ENCODE)).images[0].infotext
    assert "VAE Encoder" not in text and "VAE Decoder" not in text  # nothing was encoded
    back = override_settings_from(parse_infotext(text), Settings().with_changes({**TINY_DECODE, **TINY_ENCODE}))
    assert (back["sd_vae_decode_method"], back["sd_vae_encode_method"]) == ("Full", "Full")


def test_the_encoder_is_for_hires_fix_on_pixels(engine: Engine) -> None:
    full, tiny = make(engine, request(None, HIRES)), make(engine, request(TINY_ENCODE, HIRES))
    assert pixels(full) != pixels(tiny)
    assert parse_infotext(tiny.images[0].infotext)["VAE Encoder"] == "TAESD"
    latent = HiresRequest(scale=1.5, steps=1, denoising_strength=0.5, upscaler="Latent")
    full, tiny = make(engine, request(None, latent)), make(engine, request(TINY_ENCODE, latent))
    assert pixels(full) == pixels(tiny) and "VAE Encoder" not in tiny.images[0].infotext


def test_the_encoder_is_for_img2img(engine: Engine) -> None:
    start = FromImage(images=(SourceImage.of(Image.effect_noise((64, 64), 90).convert("RGB")),), denoising_strength=0.3)
    full, tiny = (make(engine, replace(request(changes), start=start)) for changes in (None, TINY_ENCODE))
    assert pixels(full) != pixels(tiny)
    assert parse_infotext(tiny.images[0].infotext)["VAE Encoder"] == "TAESD"


def test_images_that_tile_and_tiles(engine: Engine) -> None:
    plain = make(engine, request(TINY_DECODE))
    tiled = make(engine, request({**TINY_DECODE, "vae_tile_size": 64}))
    difference = np.abs(
        np.asarray(plain.images[0].image, dtype=np.int16) - np.asarray(tiled.images[0].image, dtype=np.int16)
    )
    assert difference.max() <= 1


@pytest.mark.parametrize(("changes", "hires", "half"), [(TINY_DECODE, None, DECODER), (TINY_ENCODE, HIRES, ENCODER)])
def test_a_missing_file_is_said_before_anything_is_computed(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, SettingValue],
    hires: HiresRequest | None,
    half: str,
) -> None:
    monkeypatch.setattr(engine, "tiny_vaes", TinyVaeFolders([tmp_path]))
    watching = Watching()
    with pytest.raises(CheckpointError, match=rf"no TAESD {half} for this model: put taesd_{half}\.safetensors"):
        make(engine, request(changes, hires), watching)
    assert not watching.previews
    make(engine, request())


def test_previews_by_taesd_look_like_its_images(engine: Engine) -> None:
    watching = Watching()
    result = make(engine, request({**BY_TAESD, **TINY_DECODE}, batch_size=2), watching)
    assert [image.size for image in watching.previews] == [(128, 64)] * 2
    last = watching.previews[-1].crop((0, 0, 64, 64))
    assert last.tobytes() == pixels(result) and not result.notices


def test_previews_by_the_vae_look_like_the_image(engine: Engine) -> None:
    watching = Watching()
    result = make(engine, request({"show_progress_type": "Full"}), watching)
    assert watching.previews[-1].tobytes() == pixels(result)


def test_previews_without_a_file_are_cheap_and_say_so_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "tiny_vaes", TinyVaeFolders([tmp_path]))
    result = make(engine, request(BY_TAESD), Watching())
    (notice,) = result.notices
    assert "Approx cheap" in notice and "taesd_decoder" in notice
    (tmp_path / "taesd_decoder.pth").write_bytes(b"nothing")
    (notice,) = make(engine, request(BY_TAESD), Watching()).notices
    assert "taesd_decoder.pth" in notice


def test_the_plan_counts_the_decoder_that_is_chosen(engine: Engine) -> None:
    estimator = MemoryEstimator(engine, CONFIGS)
    full, tiny = estimator.plan(request()), estimator.plan(request(TINY_DECODE))
    needs = [next(stage.needs_bytes for stage in plan.stages if stage.stage == "decode") for plan in (full, tiny)]
    assert needs[1] < needs[0]


def test_previews_by_approx_nn_use_its_file_and_are_cheap_without(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "tiny_vaes", TinyVaeFolders((), [tmp_path]))
    without, with_file = Watching(), Watching()
    assert not make(engine, request(), without).notices
    widths = (4, 2, 2, 2, 2, 2, 2, 2, 3)
    layers = {f"conv{number}.weight": torch.zeros(widths[number], widths[number - 1], 3, 3) for number in range(1, 9)}
    biases = {f"conv{number}.bias": torch.full((widths[number],), 0.5) for number in range(1, 9)}
    torch.save(layers | biases, tmp_path / "model.pt")
    assert not make(engine, request(), with_file).notices
    assert with_file.previews[0].size == (64, 64) and with_file.previews[0].getcolors() == [(64 * 64, (191, 191, 191))]
    assert [image.size for image in without.previews] == [(64, 64)] * 2  # although the model's own YAML says nothing


def test_dpm_adaptive_is_previewed_and_stopped_behind_its_planned_steps(engine: Engine) -> None:
    class Stopping(Watching):
        def check(self) -> None:
            if len(self.previews) == 6:
                raise Interrupted("enough")

    stopping = Stopping()
    result = make(engine, replace(request(), sampler="DPM adaptive"), stopping)
    assert result.interrupted and len(stopping.previews) == 6
    assert [image.image.size for image in result.samples] == [(64, 64)]
