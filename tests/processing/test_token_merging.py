"""Token merging is recorded where it does something, and said to do nothing elsewhere."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomesd
import torch
from PIL import Image

from modules.images.infotext import parse_infotext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.engine import Engine
from modules.processing.engine.token_merging import merged_tokens
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.settings.values import Settings
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, cpu_machine

BOTH: dict[str, Any] = {"token_merging_ratio": 0.5, "token_merging_ratio_hr": 0.3}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("merging")
    for name in ("sd1", "sd3"):
        write_family(folder, name)
    engine = Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)
    yield engine
    engine.close()


def request_of(checkpoint: str, hires: HiresRequest | None = None, **settings: Any) -> GenerationRequest:
    return GenerationRequest(
        prompt="a cat",
        checkpoint=checkpoint,
        width=64,
        height=64,
        steps=1,
        seed=1,
        subseed=0,
        sampler="Euler",
        hires=hires,
        save_images=False,
        settings=Settings().changed(**settings),
    )


def image(engine: Engine, checkpoint: str, hires: HiresRequest | None = None, **settings: Any) -> Result:
    return generate(request_of(checkpoint, hires, **settings), engine, Output(Path()), Silent())


def fields(result: Result) -> dict[str, Any]:
    found = parse_infotext(result.images[0].infotext)
    return {key: value for key, value in found.items() if key.startswith("Token merging")}


def pixels(result: Result) -> bytes:
    return result.images[0].image.tobytes()


def mergeable_of(model: LoadedModel) -> str:
    return model.family.denoiser.blocks.mergeable


def test_where_it_works_it_is_recorded(engine: Engine) -> None:
    plain, merged = image(engine, "sd1"), image(engine, "sd1", **BOTH)
    assert fields(plain) == {} and fields(merged) == {"Token merging ratio": "0.5"}
    assert pixels(plain) != pixels(merged) and not merged.notices
    assert pixels(image(engine, "sd1")) == pixels(plain)


def test_of_the_second_pass_alone_too(engine: Engine) -> None:
    hires = HiresRequest(scale=1.5, steps=1, denoising_strength=0.7)
    merged = image(engine, "sd1", hires, token_merging_ratio_hr=0.3)
    assert fields(merged) == {"Token merging ratio hr": "0.3"}


def test_where_it_does_not_it_is_said_and_not_recorded(engine: Engine) -> None:
    plain, merged = image(engine, "sd3"), image(engine, "sd3", **BOTH)
    assert fields(merged) == {} and pixels(plain) == pixels(merged)
    assert any("Token merging has no effect on SD 3" in notice for notice in merged.notices)
    assert not plain.notices
    for name, merges in (("sd1", True), ("sd3", False)):
        with merged_tokens(engine.model(name).unet, 0.5, mergeable_of(engine.model(name))) as is_merged:
            assert is_merged is merges


def test_the_prediction_is_that_of_tomesd(engine: Engine) -> None:
    unet: Any = engine.model("sd1").unet
    x, generator = torch.randn(2, 4, 16, 12, generator=torch.Generator().manual_seed(1)), torch.Generator()
    context = torch.randn(2, 77, unet.config.cross_attention_dim, generator=generator.manual_seed(2))

    def run() -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = unet(x, torch.tensor(500), encoder_hidden_states=context, return_dict=False)[0]
        return result

    plain = run()
    tomesd.apply_patch(unet, ratio=0.4, use_rand=False)
    theirs = run()
    tomesd.remove_patch(unet)
    with merged_tokens(unet, 0.4, mergeable_of(engine.model("sd1"))):
        ours = run()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert torch.equal(run(), plain) and not torch.equal(ours, plain)
    assert not any("forward" in module.__dict__ for module in unet.modules())


def test_the_ratio_of_img2img_is_recorded_and_gives_way_to_one_that_the_caller_gives(engine: Engine) -> None:
    start = FromImage(images=(SourceImage.of(Image.new("RGB", (64, 64), "red")),), denoising_strength=1.0)

    def made(**values: Any) -> Result:
        request = request_of("sd1", token_merging_ratio_img2img=0.6)
        return generate(replace(request, start=start, **values), engine, Output(Path()), Silent())

    own = made()
    assert fields(own) == {"Token merging ratio": "0.6"}
    general = Settings().changed(token_merging_ratio=0.6, token_merging_ratio_img2img=0.2)
    again = made(settings=general, override_settings={"token_merging_ratio": 0.6})
    assert fields(again) == fields(own) and pixels(again) == pixels(own)


def test_a_whole_pass_of_img2img_is_that_of_tomesd(engine: Engine) -> None:
    """At the ratio of img2img. Which tokens are merged hangs on the last bits of the first latents, so images of the
    reference UI, which draws a sample of the encoding without a seed, are not made again exactly."""
    start = FromImage(images=(SourceImage.of(Image.effect_noise((64, 48), 80).convert("RGB")),), denoising_strength=0.6)
    request = replace(request_of("sd1"), start=start, steps=4, height=48)
    merged = replace(request, settings=request.settings.changed(token_merging_ratio_img2img=0.5))
    ours = generate(merged, engine, Output(Path()), Silent())
    unet = engine.model("sd1").unet
    tomesd.apply_patch(unet, ratio=0.5, use_rand=False)
    theirs = generate(request, engine, Output(Path()), Silent())
    tomesd.remove_patch(unet)
    assert pixels(ours) == pixels(theirs)
    assert pixels(ours) != pixels(generate(request, engine, Output(Path()), Silent()))
