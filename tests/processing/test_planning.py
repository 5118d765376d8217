"""Plans of jobs: weights from the header alone, stages estimated by a dry run, corrections learnt."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.faces.restorers import FaceRestorers
from modules.images.resize import ResizeMode
from modules.memory.timeline import MemoryRecord, Reading, StagePeak
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.meta_model import build_meta_model
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import PrecisionOptions, resolve
from modules.processing.memory_estimate.estimate import PROGRAM_BYTES, MemoryEstimator, available, container_bytes
from modules.processing.memory_estimate.step_time import duration
from modules.processing.memory_estimate.words import plan_line
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import GenerationInfo, Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.processing.request.stages import stages_of
from modules.settings.values import Settings
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, TINY, cpu_machine, tiny_engine
from tests.upscalers.models import save_esrgan

NAME = "tiny-sd1.safetensors"
MB = 1_000_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = tiny_engine(tmp_path_factory.mktemp("cache"))
    yield engine
    engine.unload()


@pytest.fixture(scope="module")
def estimator(engine: Engine) -> MemoryEstimator:
    """One that has learnt nothing."""
    return MemoryEstimator(engine, CONFIGS)


def request(settings: dict[str, Any] | None = None, **values: Any) -> GenerationRequest:
    return GenerationRequest(
        **{"width": 64, "height": 64, "checkpoint": NAME, **values}, settings=Settings().with_changes(settings or {})
    )


def needs(estimator: MemoryEstimator, wanted: GenerationRequest) -> dict[str, int]:
    return {stage.stage: stage.needs_bytes for stage in estimator.plan(wanted).stages}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fp8_storage": "Enable"},
        {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn", "fp8_text_encoder": False},
        {"fp8_storage": "Enable", "fp8_skip": "attn", "compute_dtype": "bf16"},
    ],
    ids=str,
)
def test_the_header_tells_what_the_weights_will_weigh(settings: dict[str, Any], engine: Engine) -> None:
    options = PrecisionOptions.of(Settings().with_changes(settings))
    meta_model = build_meta_model(engine.catalogue.get(NAME), CONFIGS)
    plan = resolve(options, engine.machine, meta_model.family)
    weights = sum(sum(sizes.values()) for sizes in meta_model.weights(plan).values())
    assert weights == pytest.approx(engine.model(NAME, options).stored_bytes, rel=0.001)


def test_larger_images_and_batches_need_more_where_they_do(estimator: MemoryEstimator) -> None:
    small, large, batch = (
        needs(estimator, request()),
        needs(estimator, request(width=128, height=128)),
        needs(estimator, request(batch_size=4)),
    )
    assert list(small) == ["load", "text", "denoise", "decode", "save"]
    assert large["denoise"] > small["denoise"] and large["decode"] > small["decode"]
    assert batch["denoise"] > small["denoise"] and batch["decode"] == small["decode"]  # images are decoded singly
    assert large["load"] == small["load"]


def test_what_saves_memory_shows(estimator: MemoryEstimator) -> None:
    usual, apart = needs(estimator, request()), needs(estimator, request({"batch_cond_uncond": False}))
    assert apart["denoise"] < usual["denoise"]
    whole = needs(estimator, request({"cross_attention_optimization": "None"}, width=256, height=256))
    assert whole["denoise"] > needs(estimator, request(width=256, height=256))["denoise"]
    fp8 = estimator.plan(request({"fp8_storage": "Enable"}))
    assert fp8.weights_bytes < estimator.plan(request()).weights_bytes


def test_a_step_is_counted_and_timed(estimator: MemoryEstimator) -> None:
    work = {cfg_scale: estimator.step_work(request(cfg_scale=cfg_scale)).work for cfg_scale in (1.0, 7.0)}
    assert work[7.0].operations == 2 * work[1.0].operations > 0, "the negative prompt is a row of its own"
    assert work[7.0].sent_bytes == 0
    stored = estimator.step_work(request({"fp8_storage": "Enable"})).work
    assert stored.touched_bytes > work[7.0].touched_bytes, "stored weights are decoded in each step"
    larger = estimator.step_work(request(width=128, steps=4))
    assert larger.work.operations > 1.5 * work[7.0].operations
    found = larger.timed()
    assert found is not None and found.seconds > 0
    assert found.line.startswith("about ") and found.line.endswith(" for 4 steps at 128x64")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.01 s"),
        (0.043, "0.04 s"),
        (1.2, "1.2 s"),
        (2.0, "2 s"),
        (20.4, "20 s"),
        (150, "2.5 min"),
        (2e4, "6 h"),
    ],
)
def test_a_rough_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_hires_fix_is_a_stage_of_its_own(estimator: MemoryEstimator) -> None:
    found = needs(estimator, request(hires=HiresRequest(scale=2.0)))
    assert found["denoise hires"] > found["denoise"]
    assert found["decode"] == needs(estimator, request(width=128, height=128))["decode"]
    assert (
        needs(estimator, request(hires=HiresRequest(upscaler="Lanczos", scale=2.0)))["denoise hires"]
        >= found["denoise hires"]
    )


def test_adapters_count(estimator: MemoryEstimator) -> None:
    found = needs(estimator, request(prompt="a cat <lora:tiny-lora-a:1>"))
    assert "adapters" in found and found["denoise"] > needs(estimator, request())["denoise"]
    assert "adapters" not in needs(estimator, request(prompt="a cat <lora:not-there:1>"))


def test_fits_by_what_is_free_and_by_what_it_is_asked_for(estimator: MemoryEstimator) -> None:
    plan = estimator.plan(request())
    assert plan.fits and plan.available_bytes is not None and plan.available_bytes > plan.needs_bytes
    assert not estimator.plan(request(), available_bytes=plan.needs_bytes - 1).fits
    assert estimator.plan(request(), available_bytes=plan.needs_bytes).fits
    assert PROGRAM_BYTES < plan.needs_bytes < PROGRAM_BYTES + 400 * MB


def result_of(peaks: dict[str, int], begin: int, **info: Any) -> Result:
    """A finished job whose stages took these bytes of main memory."""
    stages = tuple(
        StagePeak(stage, float(i), i + 1.0, Reading(begin), Reading(peak))
        for i, (stage, peak) in enumerate(peaks.items())
    )
    record = MemoryRecord("cpu", Reading(begin), stages, ())
    facts: dict[str, Any] = dict.fromkeys(GenerationInfo.__dataclass_fields__, None)
    return Result(images=(), info=GenerationInfo(**{**facts, "extra_params": {}, **info}), memory=record)


def test_after_a_job_the_same_one_is_known_and_others_follow(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    estimator = MemoryEstimator(engine, CONFIGS, path)
    before = needs(estimator, request(width=128, height=128))
    peaks = {"text": 610 * MB, "denoise": 640 * MB, "decode": 700 * MB, "save": 600 * MB}
    estimator.learn(request(), result_of(peaks, 600 * MB))
    assert {stage: size for stage, size in needs(estimator, request()).items() if stage in peaks} == peaks
    after = needs(estimator, request(width=128, height=128))
    assert after["decode"] > peaks["decode"] and after != before
    again = MemoryEstimator(engine, CONFIGS, path)  # another start of the program
    assert needs(again, request())["decode"] == peaks["decode"]
    assert (again.plan(request()).learnt_from, estimator.plan(request(batch_size=2)).learnt_from) == (1, 1)


def test_what_replayed_steps_took_is_not_known(engine: Engine) -> None:
    estimator = MemoryEstimator(engine, CONFIGS)
    computed = result_of({"text": 610 * MB, "denoise": 900 * MB, "decode": 700 * MB}, 600 * MB)
    replayed = result_of({"text": 610 * MB, "denoise": 620 * MB, "decode": 800 * MB}, 600 * MB)
    estimator.learn(request(), computed)
    estimator.learn(request(), replace(replayed, replayed_calls=9))
    after = needs(estimator, request())
    assert after["denoise"] == 900 * MB and after["decode"] > 700 * MB


def test_interrupted_and_recovered_jobs_teach_nothing(engine: Engine) -> None:
    estimator = MemoryEstimator(engine, CONFIGS)
    result = result_of({"denoise": 900 * MB}, 600 * MB)
    estimator.learn(request(), replace(result, interrupted=True))
    estimator.learn(request(), replace(result, memory=None))
    estimator.learn(
        request(), result_of({"denoise": 900 * MB}, 600 * MB, extra_params={"Memory recovery": "tiled VAE"})
    )
    assert estimator.plan(request()).learnt_from == 0


def test_learning_in_the_background_logs_what_goes_wrong(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    estimator = MemoryEstimator(engine, CONFIGS)
    estimator.learn_later(request(checkpoint="gone.safetensors"), result_of({"denoise": 900 * MB}, 600 * MB))
    estimator.close()
    assert "gone.safetensors" in caplog.text


def test_a_containers_limit(tmp_path: Path) -> None:
    assert container_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    (tmp_path / "memory.current").write_text("3000\n", encoding="ascii")
    assert container_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("5000\n", encoding="ascii")
    assert container_bytes(tmp_path) == 2000
    free = available(torch.device("cpu"))
    assert free is None or free > 100 * MB


def test_split_feed_forward_needs_less_and_learns_by_itself(engine: Engine) -> None:
    estimator = MemoryEstimator(engine, CONFIGS)
    size: dict[str, Any] = {"width": 256, "height": 256, "batch_size": 4}
    split = {"split_feed_forward": "8"}
    whole, cut = (needs(estimator, request(settings, **size))["denoise"] for settings in ({}, split))
    assert cut < whole
    estimator.learn(request(split, **size), result_of({"text": 610 * MB, "denoise": 900 * MB}, 600 * MB))
    assert needs(estimator, request(split, **size))["denoise"] == 900 * MB
    assert estimator.plan(request(**size)).learnt_from == 0


@pytest.mark.parametrize("word", ["Parts", "Blocks", "Layers"])
def test_streamed_weights_are_predicted_by_the_groups_that_move(
    word: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on blocks that takes those of the tiny model apart, as 96 MB do those of a large one."""
    monkeypatch.setattr("modules.models.loading.offloading.MAX_BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr("modules.models.loading.meta_model.MAX_BLOCK_BYTES", 1 << 20)
    options = PrecisionOptions.of(Settings().with_changes({"stream_weights": word}))
    meta_model = build_meta_model(engine.catalogue.get(NAME), CONFIGS)
    plan = resolve(options, engine.machine, meta_model.family)
    handle = engine.model(NAME, options).streaming
    assert handle is not None
    inside = {id(layer) for layer in handle.components["unet"].modules()}
    groups = [group.size_bytes for group in handle.groups if id(group.slots[0].layer) in inside]
    small = sum(
        parameter.numel() * 4
        for module in handle.components.values()
        for parameter in (*module.parameters(), *module.buffers())
        if not parameter.is_meta and parameter.numel() * 4 < 1 << 16
    )
    resident = meta_model.resident_bytes(plan, "unet".__eq__)
    if word == "Parts":
        assert resident == pytest.approx(small + max(groups), rel=0.01)
    else:  # with what comes ahead of its use, which is no more than the largest
        assert small + 1.5 * max(groups) < resident < 1.01 * (small + 2 * max(groups))
    assert plan.streaming is not None
    in_memory = replace(plan, streaming=replace(plan.streaming, on_disk=False))
    assert meta_model.resting_bytes(plan) == 0
    everything = sum(sum(sizes.values()) for sizes in meta_model.weights(in_memory).values())
    assert meta_model.resting_bytes(in_memory) == pytest.approx(everything, rel=0.05)  # all but what is small


def test_a_refiner_and_a_hires_checkpoint_count(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path)
    shutil.copy(TINY.with_suffix(".yaml"), tmp_path)
    large = write_family(tmp_path, "sdxl").name
    catalogue = CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes.json"))
    estimator = MemoryEstimator(Engine(catalogue, CONFIGS, cpu_machine), CONFIGS)
    alone = needs(estimator, request())
    refined = needs(estimator, request(refiner_checkpoint=large, refiner_switch_at=0.5))
    assert list(refined) == list(alone)
    own = needs(estimator, request(checkpoint=large))
    for stage in ("load", "text", "denoise"):
        assert refined[stage] == max(alone[stage], own[stage])
    for stage in ("decode", "save"):
        assert refined[stage] == own[stage]  # the refiner is the one in use by then
    hires = needs(estimator, request(hires=HiresRequest(scale=2.0, checkpoint=large)))
    other = needs(estimator, request(checkpoint=large, hires=HiresRequest(scale=2.0)))
    assert hires["denoise hires"] == other["denoise hires"]  # the second pass is the hires checkpoint's alone
    assert hires["denoise"] == needs(estimator, request(hires=HiresRequest(scale=2.0)))["denoise"]
    wanted = request(refiner_checkpoint=large, refiner_switch_at=0.5)
    estimator.learn(wanted, result_of({"text": 610 * MB, "denoise": 9000 * MB}, 600 * MB))
    assert estimator.plan(wanted).learnt_from == 0  # whose memory it was cannot be told


def test_models_that_are_set_aside_count(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = MemoryEstimator(engine, CONFIGS)
    before = needs(estimator, request())
    monkeypatch.setattr(engine._shelf, "bytes_but", lambda path: 50 * MB)
    after = needs(estimator, request())
    assert {stage: after[stage] - before[stage] for stage in before} == dict.fromkeys(before, 50 * MB)
    monkeypatch.setattr(engine, "kept_bytes", lambda info: (0, 0))
    assert needs(estimator, request()) == before


@pytest.mark.parametrize(("words", "is_offloaded"), [({}, False), ({"stream_weights": "Blocks"}, True)])
def test_with_a_card_main_memory_is_predicted_too(
    words: dict[str, str], is_offloaded: bool, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a card that is not there."""
    card = replace(engine.machine, device=torch.device("cuda", 0))
    monkeypatch.setattr("modules.processing.memory_estimate.estimate.describe", lambda device: f"some {device.type}")
    estimator = MemoryEstimator(engine, CONFIGS)
    monkeypatch.setattr(estimator, "_remember", lambda key, run: 20 * MB)  # what a dry run there would give
    monkeypatch.setattr(engine, "_machine", card)
    plan = estimator.plan(request(words), available_bytes=4000 * MB)
    meta_model = build_meta_model(engine.catalogue.get(NAME), CONFIGS)
    weights = plan.weights_bytes if is_offloaded else 0
    by_stage = {str(stage.stage): stage for stage in plan.stages}
    assert by_stage["load"].main_bytes == pytest.approx(PROGRAM_BYTES + weights + meta_model.max_tensor_bytes, rel=0.01)
    assert by_stage["denoise"].main_bytes == pytest.approx(PROGRAM_BYTES + weights, rel=0.01)
    assert by_stage["denoise"].needs_bytes < PROGRAM_BYTES  # the program is not on the card
    assert plan.main_available_bytes is not None and plan.fits and "main memory" in plan_line(plan)
    peaks = {"text": 910 * MB, "denoise": 950 * MB}
    estimator.learn(request(words), on_gpu(result_of(peaks, 900 * MB), 170 * MB))
    plan = estimator.plan(request(words), available_bytes=4000 * MB)
    learnt = {str(stage.stage): stage for stage in plan.stages}
    assert {stage: learnt[stage].main_bytes for stage in peaks} == peaks
    assert learnt["denoise"].needs_bytes == 170 * MB


@pytest.fixture
def enlarging(tmp_path: Path) -> Iterator[Engine]:
    """An engine with an upscaler file."""
    save_esrgan(tmp_path / "ESRGAN" / "Big_4x.pth", 4)
    save_esrgan(tmp_path / "GFPGAN" / "GFPGAN.pth", 4)  # only its size counts here
    catalogue = CheckpointCatalogue([TINY.parent], HashCache(tmp_path / "hashes.json"))
    engine = Engine(
        catalogue,
        CONFIGS,
        cpu_machine,
        models=ExtraModels(
            upscalers=Upscalers(UpscalerCatalogue({"ESRGAN": tmp_path / "ESRGAN"}), lambda part: torch.device("cpu")),
            faces=FaceRestorers({"GFPGAN": tmp_path / "GFPGAN"}, lambda part: torch.device("cpu")),
        ),
    )
    yield engine
    engine.unload()


def test_upscalers_and_face_restorers_count_from_where_they_are_used(enlarging: Engine) -> None:
    estimator = MemoryEstimator(enlarging, CONFIGS)
    hires = HiresRequest(scale=2.0, upscaler="Big_4x", denoising_strength=0.5)
    plain = needs(estimator, request(hires=replace(hires, upscaler="Lanczos")))
    with_file = needs(estimator, request(hires=hires))
    weights, _ = enlarging.upscalers.weights_bytes("Big_4x")
    assert weights > 0 and enlarging.upscalers.weights_bytes() == (0, None)
    assert "enlarge" not in plain and with_file["enlarge"] > with_file["text"]
    assert with_file["denoise hires"] == plain["denoise hires"] + weights
    assert with_file["text"] == plain["text"]
    larger = needs(estimator, request(hires=replace(hires, scale=4.0)))
    assert larger["enlarge"] > with_file["enlarge"]
    restored = needs(estimator, request({"face_restoration": True, "face_restoration_model": "GFPGAN"}))
    assert restored["faces"] > restored["text"] and restored["save"] > needs(estimator, request())["save"]


def test_what_an_upscaler_took_is_learnt(enlarging: Engine) -> None:
    estimator = MemoryEstimator(enlarging, CONFIGS)
    hires = HiresRequest(scale=2.0, upscaler="Big_4x", denoising_strength=0.5)
    wanted = request(hires=hires)
    image = Image.new("RGB", (32, 32))
    enlarging.upscalers.enlarge(image, "Big_4x", (64, 64), wanted.settings, lambda index, count: None)
    assert enlarging.upscalers.weights_bytes()[1] == torch.device("cpu")
    before = needs(estimator, wanted)
    peaks = {"text": 610 * MB, "denoise": 640 * MB, "enlarge": 1600 * MB, "denoise hires": 650 * MB}
    estimator.learn(wanted, result_of(peaks, 600 * MB))
    assert needs(estimator, wanted)["enlarge"] > before["enlarge"] + 300 * MB


def test_an_image_to_start_from_is_enlarged_where_that_is_set(estimator: MemoryEstimator) -> None:
    image = SourceImage.of(Image.new("RGB", (32, 32)))
    wanted = request({"upscaler_for_img2img": "R-ESRGAN 4x+"}, start=FromImage(images=(image,)))
    assert "enlarge" in [item.stage for item in stages_of(wanted, 8)]
    whole = replace(wanted, start=FromImage(images=(SourceImage.of(Image.new("RGB", (64, 64))),)))
    assert "enlarge" not in [item.stage for item in stages_of(whole, 8)]


def on_gpu(result: Result, allocated: int) -> Result:
    """The same job, with so much allocated on a card in each stage."""
    assert result.memory is not None
    stages = tuple(replace(item, peak=replace(item.peak, allocated=allocated)) for item in result.memory.stages)
    return replace(result, memory=replace(result.memory, stages=stages))


def test_images_to_start_from_are_encoded_in_the_size_of_the_request_or_their_own(estimator: MemoryEstimator) -> None:
    """Where latents are resized, it is the image as it was sent that goes through the encoder."""
    image = SourceImage.of(Image.new("RGB", (256, 256)))
    sizes = {}
    for mode in (ResizeMode.JUST_RESIZE, ResizeMode.LATENT_UPSCALE):
        wanted = request(start=FromImage(images=(image,), resize_mode=mode))
        sizes[mode] = needs(estimator, wanted)["encode"]
        encode = next(item for item in stages_of(wanted, 8) if item.stage == "encode")
        assert encode.width_px == encode.height_px == (64 if mode is ResizeMode.JUST_RESIZE else 256)
    assert sizes[ResizeMode.LATENT_UPSCALE] > sizes[ResizeMode.JUST_RESIZE]
    assert "encode" not in needs(estimator, request())
