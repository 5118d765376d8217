"""A job whose process was killed inside an image goes on there, and the image comes out equal to the bit."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions, ExtraModels
from modules.processing.pipeline.generate import generate
from modules.processing.pipeline.step_recording import PassRecording, RecordingLimits
from modules.processing.record.output import Output
from modules.processing.record.recordings import Recordings, RunRecording
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.sampling.catalog import SAMPLERS
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.forked import forked
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, cpu_machine

AT_ONCE = {"queue_resume_after": 0, "queue_resume_every": 0, "samples_save": False, "save_images_add_number": True}


class KilledError(BaseException):
    """The end of the process, as far as the job can tell."""


class KilledAt(Silent):
    """Ends the job before an evaluation of the model."""

    def __init__(self, number: int | None = None, signal: int | None = None) -> None:
        self.number = number
        self.signal = signal
        self.evaluations = 0

    def check(self) -> None:
        self.evaluations += 1
        if self.number is not None and self.evaluations > self.number:
            if self.signal is not None:
                os.kill(os.getpid(), self.signal)
            raise KilledError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the smallest: no image of theirs is compared with a recorded one."""
    folder = tmp_path_factory.mktemp("resuming") / "models"
    folder.mkdir()
    tensors = load_file(write_family(folder.parent, "sd1"))
    save_file(tensors, folder / "a.safetensors")
    other = {name: value * 1.01 if name.startswith("model.") else value for name, value in tensors.items()}
    save_file(other, folder / "b.safetensors")
    return folder


def engine_of(models: Path) -> Engine:
    catalogue = CheckpointCatalogue([models], HashCache(models.parent / "hashes.json"))
    return Engine(
        catalogue,
        CONFIGS,
        cpu_machine,
        models=ExtraModels(adapters=adapters_of()),
        options=EngineOptions(hashing=False),
    )


@pytest.fixture(scope="module")
def engine(models: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = engine_of(models)
    yield engine
    engine.unload()
    torch.set_num_threads(threads)


@pytest.fixture
def run(tmp_path: Path) -> RunRecording:
    return Recordings(tmp_path / "resume").of("job", "0/")


def request(settings: dict[str, object] | None = None, **changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {
        "prompt": "a cat",
        "negative_prompt": "blurry",
        "width": 64,
        "height": 64,
        "steps": 4,
        "seed": 1,
        "subseed": 0,
        "sampler": "Euler",
        "settings": Settings().with_changes({"sd_model_checkpoint": "a", **AT_ONCE, **(settings or {})}),
    }
    return GenerationRequest(**{**values, **changes})


def pixels(result: Result) -> list[bytes]:
    return [image.image.tobytes() for image in result.images]


def files_of(run: RunRecording) -> list[str]:
    return sorted(path.name for path in run.folder.glob("*")) if run.folder.is_dir() else []


def killed(engine: Engine, wanted: GenerationRequest, run: RunRecording, number: int, folder: Path) -> None:
    with pytest.raises(KilledError):
        generate(wanted, engine, Output(folder), KilledAt(number), recording=run)


class Calls:
    """Counts calls of the network itself."""

    def __init__(self, engine: Engine, name: str = "a") -> None:
        self.count = 0
        self._handle = engine.model(name).unet.register_forward_pre_hook(self._called)

    def _called(self, *_: object) -> None:
        self.count += 1

    def since(self) -> int:
        self._handle.remove()
        return self.count


def check_goes_on(engine: Engine, wanted: GenerationRequest, run: RunRecording, folder: Path, at: float = 0.6) -> None:
    """Whole, and killed and gone on with: equal, and what was computed once is not computed again."""
    events = KilledAt()
    calls = Calls(engine)
    whole = generate(wanted, engine, Output(folder), events)
    all_calls = calls.since()
    cut = max(2, int(events.evaluations * at))
    calls = Calls(engine)
    killed(engine, wanted, run, cut, folder)
    before = calls.since()
    calls = Calls(engine)
    again = generate(wanted, engine, Output(folder), Silent(), recording=run)
    assert calls.since() == all_calls - before and before > 0
    assert pixels(again) == pixels(whole)
    assert [image.infotext for image in again.images] == [image.infotext for image in whole.images]
    assert files_of(run) == []


@pytest.mark.parametrize("sampler", [name for name, _ in SAMPLERS.items()])
def test_every_sampler_goes_on_equal_to_the_bit(
    engine: Engine, run: RunRecording, tmp_path: Path, sampler: str
) -> None:
    is_adaptive = sampler == "DPM adaptive"  # which calls the model hundreds of times where guidance is strong
    wanted = request(sampler=sampler, settings={"eta_ddim": 0.7}, cfg_scale=1.0 if is_adaptive else 7.0)
    check_goes_on(engine, wanted, run, tmp_path)


def drawn(mode: str = "RGB") -> SourceImage:
    image = Image.new(mode, (64, 64))
    ImageDraw.Draw(image).ellipse((10, 20, 50, 60), fill="white")
    return SourceImage.of(image)


MASKED = FromImage(images=(drawn(),), denoising_strength=0.8, mask=Mask(image=drawn("L")))
HIRES = HiresRequest(upscaler="Latent", scale=1.5, steps=4, denoising_strength=0.7)
CASES: dict[str, dict[str, Any]] = {
    "batch": {"batch_size": 2, "sampler": "DPM++ 2M SDE"},
    "mask": {"start": MASKED, "batch_size": 2, "sampler": "Euler a"},
    "mask over timesteps": {"start": MASKED, "sampler": "DDIM"},
    "hires, second pass": {"hires": HIRES, "sampler": "DPM++ SDE", "at": 0.8},
    "hires, first pass": {"hires": HIRES, "at": 0.3},
    "prompt editing": {"prompt": "a [cat:dog:0.5] AND a [red|blue] circle :0.7", "steps": 6},
    "churn": {"settings": {"s_churn": 5.0, "s_noise": 1.1}, "sampler": "Heun"},
    "one by one, without the negative prompt late": {
        "settings": {"batch_cond_uncond": False, "s_min_uncond": 4.0, "pad_cond_uncond": True},
        "negative_prompt": "blurry, " * 40,
    },
    "variation": {"subseed": 5, "subseed_strength": 0.3, "sampler": "LMS"},
}


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_pass_keeps_comes_out_equal(engine: Engine, run: RunRecording, tmp_path: Path, case: str) -> None:
    changes = dict(CASES[case])
    at = changes.pop("at", 0.6)
    check_goes_on(engine, request(**changes), run, tmp_path, at)


@pytest.mark.parametrize("cut", [2, 5])
def test_a_refiner_takes_over_where_it_did(engine: Engine, run: RunRecording, tmp_path: Path, cut: int) -> None:
    wanted = request(steps=6, refiner_checkpoint="b", refiner_switch_at=0.5, sampler="DPM++ 2M")
    whole = generate(wanted, engine, Output(tmp_path), Silent())
    killed(engine, wanted, run, cut, tmp_path)
    again = generate(wanted, engine, Output(tmp_path), Silent(), recording=run)
    assert pixels(again) == pixels(whole) and "Refiner: b" in again.images[0].infotext


def test_only_the_batch_that_was_cut_off_is_recorded(engine: Engine, run: RunRecording, tmp_path: Path) -> None:
    wanted = request(batch_count=2)
    killed(engine, wanted, run, 8, tmp_path)  # a check before each batch and before decoding too
    assert files_of(run) == ["0-1-denoise.steps"]


def one_file(run: RunRecording) -> Path:
    (name,) = files_of(run)
    return run.folder / name


@pytest.mark.parametrize("damage", ["torn", "flipped", "garbage", "empty"])
def test_a_damaged_recording_is_used_as_far_as_it_is_whole(
    engine: Engine, run: RunRecording, tmp_path: Path, damage: str
) -> None:
    wanted = request()
    whole = generate(wanted, engine, Output(tmp_path), Silent())
    killed(engine, wanted, run, 4, tmp_path)
    path = one_file(run)
    data = bytearray(path.read_bytes())
    if damage == "torn":
        data = data[:-100]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "garbage":
        data += b"\xff" * 1000
    path.write_bytes(b"" if damage == "empty" else bytes(data))
    assert pixels(generate(wanted, engine, Output(tmp_path), Silent(), recording=run)) == pixels(whole)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "a dog"},
        {"seed": 2},
        {"cfg_scale": 3.0},
        {"sampler": "Euler a"},
        {"settings": {"sd_model_checkpoint": "b"}},
        {"settings": {"fp8_storage": "Enable"}},
        {"settings": {"s_churn": 2.0}},
    ],
    ids=str,
)
def test_a_recording_of_something_else_is_not_used(
    engine: Engine, run: RunRecording, tmp_path: Path, change: dict[str, Any]
) -> None:
    killed(engine, request(), run, 3, tmp_path)
    other = request(**change)
    fresh = generate(other, engine, Output(tmp_path), Silent())
    assert pixels(generate(other, engine, Output(tmp_path), Silent(), recording=run)) == pixels(fresh)


def test_a_checkpoint_that_was_replaced_is_not_taken_for_the_old_one(
    models: Path, run: RunRecording, tmp_path: Path
) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "a.safetensors").write_bytes((models / "a.safetensors").read_bytes())
    engine = engine_of(own)
    killed(engine, request(), run, 3, tmp_path)
    engine.unload()
    (own / "a.safetensors").write_bytes((models / "b.safetensors").read_bytes())
    engine = engine_of(own)
    calls = Calls(engine)
    generate(request(), engine, Output(tmp_path), Silent(), recording=run)
    assert calls.since() == 4
    engine.unload()


def test_a_full_disk_costs_the_recording_and_not_the_image(
    engine: Engine, run: RunRecording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modules.processing.pipeline.step_recording.os.fsync", full)
    result = generate(request(), engine, Output(tmp_path), Silent(), recording=run)
    assert len(result.samples) == 1 and files_of(run) == []
    assert caplog.text.count("cannot be recorded ([Errno 28] No space left on device)") == 1


@pytest.mark.parametrize(
    "settings",
    [{"queue_resume_after": 1000}, {"queue_resume_megabytes": 0}, {"queue_resume_after": 30, "queue_resume_every": 0}],
    ids=str,
)
def test_short_images_are_not_recorded(
    engine: Engine, run: RunRecording, tmp_path: Path, settings: dict[str, object]
) -> None:
    killed(engine, request(settings, steps=8), run, 7, tmp_path)
    assert files_of(run) == []


def called(recording: PassRecording, clock: list[float], calls: int, seconds: float) -> None:
    """The model takes so long for each of these calls."""
    from modules.models.families.denoiser_context import DenoiserContext
    from modules.processing.pipeline.guidance import GuidedDenoiser

    text = torch.zeros(1, 2, 3)
    inner = GuidedDenoiser(lambda x, sigma, context: x, [], [], lambda: text)
    denoiser, before = recording.around(inner), recording.counting(lambda: None)
    for number in range(calls):
        before()
        clock[0] += seconds
        denoiser.denoise(torch.full((1, 4, 8, 8), float(number)), torch.ones(1), DenoiserContext(text))


@pytest.mark.parametrize(
    ("total", "seconds", "made", "is_recorded"),
    [(20, 2.0, 6, True), (20, 1.0, 6, False), (2, 40.0, 2, True), (None, 0.1, 20, False), (None, 2.0, 20, True)],
)
def test_it_is_recorded_from_when_it_is_known_to_take_long(
    run: RunRecording, total: int | None, seconds: float, made: int, is_recorded: bool
) -> None:
    clock = [0.0]
    limits = RecordingLimits(30.0, 10.0, 10**9)
    path = run.path(0, "sample")
    with PassRecording(path, b"i" * 16, limits, total, run.all_of, lambda: clock[0]) as recording:
        called(recording, clock, made, seconds)
    assert path.exists() is is_recorded


def test_it_stops_at_the_limit_of_all_recordings_together(run: RunRecording, tmp_path: Path) -> None:
    other = Recordings(tmp_path / "resume").of("other", "0/").path(0, "sample")
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x" * 5000)
    for total_bytes, is_recorded in ((8000, False), (13000, True)):
        with PassRecording(run.path(0, "a"), b"i" * 16, RecordingLimits(0, 0, total_bytes), 4, run.all_of) as recording:
            called(recording, [0.0], 4, 0.0)
        assert run.path(0, "a").exists() is is_recorded


def test_recordings_of_jobs_that_are_over_are_deleted(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path / "resume")
    for task in ("one", "two", "three/../x"):
        path = recordings.of(task, "0/").path(0, "sample")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    recordings.forget("one")
    recordings.keep_only(["two"])
    assert [path.name for path in recordings.folder.iterdir()] == [recordings.of("two", "0/").folder.name]


def killed_process(models: str, folder: str) -> None:
    torch.set_num_threads(1)
    recording = Recordings(Path(folder) / "resume").of("job", "0/")
    events = KilledAt(6, signal=9)
    generate(
        request(steps=6, sampler="DPM++ 2M SDE"),
        engine_of(Path(models)),
        Output(Path(folder)),
        events,
        recording=recording,
    )


def test_after_kill_9_it_goes_on(engine: Engine, models: Path, run: RunRecording, tmp_path: Path) -> None:
    wanted = request(steps=6, sampler="DPM++ 2M SDE")
    process = forked().Process(target=killed_process, args=(str(models), str(tmp_path)), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -9 and files_of(run)
    whole = generate(wanted, engine, Output(tmp_path), Silent())
    calls = Calls(engine)
    again = generate(wanted, engine, Output(tmp_path), Silent(), recording=run)
    assert calls.since() < 6 and pixels(again) == pixels(whole)
