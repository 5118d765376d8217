"""A whole training: resumed after a kill it is the same to the bit, and a full disk costs nothing."""

import errno
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lib_training.config import TrainingConfig, config_of
from lib_training.failures import TrainingError
from lib_training.preview import PreviewRenderer, PreviewSample
from lib_training.run import Finished, Places, Progress, TrainingRun, overfitting, run_training, smoothed
from lib_training.state import History
from modules.adapters.adapter_facts import digests_of
from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.embeddings import read_embedding
from modules.errors import CheckpointError, FeatherweightError, InvalidValueError, OutputError
from modules.models.files.header import read_metadata
from recipes.loras.example import SHIPPED
from tests.forked import forked
from tests.recordings import CONFIGS, TINY

SIDE = 64


class KilledError(Exception):
    """Stands for whatever ends a training in the middle."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(1)
    for index in range(5):
        size = (96, 64) if index % 2 else (64, 64)
        pixels = random.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"toy, red, number {index}\n", encoding="utf-8")
    return folder


def places(tmp_path: Path) -> Places:
    return Places(CONFIGS, tmp_path / "Lora", tmp_path / "embeddings", tmp_path / "cache")


def config(images: Path, **sections: Any) -> TrainingConfig:
    whole: dict[str, Any] = {
        "model": {"checkpoint": str(TINY), "device": "cpu", "storage": "fp32"},
        "adapter": {"rank": 2},
        "data": {
            "folders": [str(images)],
            "resolution": SIDE,
            "shuffle_tags": True,
            "caption_variants": 2,
            "flip": True,
        },
        "training": {"steps": 4, "warmup": 1, "learning_rate": 1e-3, "ema": 0.9},
        "output": {"name": "toy", "save_every": 2, "validate_every": 3, "keep_best": False},
    }
    for name, section in sections.items():
        whole[name] = {**whole.get(name, {}), **section}
    return config_of(whole)


def train(settings: TrainingConfig, tmp_path: Path, report: Callable[[Progress], None] | None = None) -> Finished:
    return run_training(settings, places(tmp_path), report or (lambda progress: None))


def kill_at(step: int) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if progress.phase.startswith(f"step {step} "):
            raise KilledError

    return report


def test_a_training_that_was_cut_off_goes_on_to_the_same_bits(images: Path, tmp_path: Path) -> None:
    cut = config(images, model={"storage": "fp8_e4m3fn_row"})
    whole = train(cut, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(cut, tmp_path / "cut", kill_at(3))
    assert (tmp_path / "cut" / "Lora" / "toy.training").is_file()
    finished = train(cut, tmp_path / "cut")
    assert "Resumed at step 3." in finished.notices
    assert not (tmp_path / "cut" / "Lora" / "toy.training").exists()
    one, other = (load_file(result.files[0]) for result in (whole, finished))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.history == finished.history


def test_images_made_between_two_steps_change_no_bit(images: Path, tmp_path: Path) -> None:
    settings = config(images, training={"steps": 2})
    whole = train(settings, tmp_path / "whole")
    renderer = PreviewRenderer(TINY, tmp_path, CONFIGS, torch.device("cpu"))
    drawn = []

    def draw(told: Progress) -> None:
        if told.is_between_steps:
            drawn.append(renderer.draw(PreviewSample(prompt="a toy", seed=1, side_px=64, steps=2)))

    other = train(settings, tmp_path / "other", draw)
    renderer.close()
    assert len(drawn) == 2
    one, two = (load_file(result.files[0]) for result in (whole, other))
    assert all(torch.equal(one[name], two[name]) for name in one)


LONGER = {"optimizer": "prodigy", "learning_rate": 1.0, "steps": 4, "accumulation": 2}


def killed_training(images: str, folder: str) -> None:
    """Killed after its state of step 2 was written."""

    def kill(progress: Progress) -> None:
        if progress.phase.startswith("step 3 "):
            os.kill(os.getpid(), signal.SIGKILL)

    train(config(Path(images), training=LONGER), Path(folder), kill)


@pytest.mark.thorough(held_by="test_a_training_that_was_cut_off_goes_on_to_the_same_bits")
def test_after_kill_9_a_training_goes_on_to_the_same_bits(images: Path, tmp_path: Path) -> None:
    """In a process of its own."""
    process = forked().Process(target=killed_training, args=(str(images), str(tmp_path / "killed")), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    settings = config(images, training=LONGER)
    finished = train(settings, tmp_path / "killed")
    assert "Resumed at step 2." in finished.notices
    whole = train(settings, tmp_path / "whole")
    one, other = (load_file(result.files[0]) for result in (whole, finished))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_state_of_other_options_is_refused_and_a_damaged_one_kept_aside(images: Path, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        train(config(images), tmp_path, kill_at(1))
    with pytest.raises(TrainingError, match="with other options"):
        train(config(images, training={"learning_rate": 2e-3}), tmp_path)
    state = tmp_path / "Lora" / "toy.training"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(TrainingError, match=r"kept as toy\.training\.corrupt-1"):
        train(config(images), tmp_path)


def test_a_full_disk_keeps_the_last_good_file(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(images, training={"steps": 1}), tmp_path)
    file = tmp_path / "Lora" / "toy.safetensors"
    before = file.read_bytes()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lib_training.output.write_atomic", full)
    with pytest.raises(OutputError, match="the disk is full"):
        train(config(images, training={"steps": 2}), tmp_path)
    assert file.read_bytes() == before
    assert (tmp_path / "Lora" / "toy.training").is_file()  # nothing that was learnt is lost
    monkeypatch.undo()
    assert train(config(images, training={"steps": 2}), tmp_path).steps == 2
    assert file.read_bytes() != before


def test_nan_keeps_the_last_good_state(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(images)
    run = TrainingRun(settings, places(tmp_path), lambda progress: None)
    batch = run.batch

    def spoilt(items: Any) -> Any:
        found = batch(items)
        return replace(found, latents=found.latents * float("nan")) if run.trainer.step == 2 else found

    monkeypatch.setattr(run, "batch", spoilt)
    with pytest.raises(TrainingError, match="at step 3; the last good state is kept"):
        run.finish()
    run.close()
    data = torch.load(run.state_path, weights_only=True)
    assert data["place"]["step"] == 2
    assert all(bool(parameter.isfinite().all()) for parameter in data["parameters"])


def test_the_file_says_how_it_was_made_and_cards_find_it(images: Path, tmp_path: Path) -> None:
    settings = config(images, output={"trigger": "toy", "sample_every": 4, "prompts": ["a toy"]})
    finished = train(settings, tmp_path)
    (file,) = finished.files
    metadata = read_metadata(file)
    assert metadata["ss_base_model_version"] == "sd_v1"
    assert metadata["ss_optimizer"] == "torch.optim.AdamW"
    assert json.loads(metadata["ss_tag_frequency"])[images.name]["toy"] == 5
    assert json.loads(metadata["ss_bucket_info"])["buckets"]["0"]["resolution"]
    assert metadata["modelspec.trigger_phrase"] == "toy"
    assert metadata["sshs_model_hash"] in (digests_of(file).tensors, *vars(digests_of(file)).values())
    assert read_adapter_file(file).adapters
    with Image.open(file.with_suffix(".png")) as preview:
        assert preview.size == (SIDE, SIDE)
    assert len(finished.history.validation) == 3  # before the first step, and twice


def test_textual_inversion_learns_a_word(images: Path, tmp_path: Path) -> None:
    adapter = {"type": "textual_inversion", "token": "toy", "vectors": 3, "init_text": "red circle"}
    finished = train(config(images, adapter=adapter, training={"steps": 2}), tmp_path)
    (file,) = finished.files
    assert file == tmp_path / "embeddings" / "toy.safetensors"
    embedding = read_embedding(file)
    assert embedding is not None
    assert embedding.count == 3


def test_encodings_are_made_once(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(config(images, training={"steps": 1}), tmp_path)

    def refuse(*given: Any) -> Any:
        raise AssertionError("was encoded before")

    monkeypatch.setattr("lib_training.latents.LatentCache._encode", refuse)
    monkeypatch.setattr("lib_training.texts.CaptionEncoder.encode", refuse)
    train(config(images, training={"steps": 1}, output={"name": "again"}), tmp_path)


@pytest.mark.parametrize("kind", ["dora", "loha", "lokr"])
def test_every_kind_is_written_as_it_is_read(images: Path, tmp_path: Path, kind: str) -> None:
    finished = train(config(images, adapter={"type": kind, "conv_rank": 2}, training={"steps": 1}), tmp_path)
    again = config(
        images, adapter={"type": kind, "conv_rank": 2, "start": str(finished.files[0])}, output={"name": "b"}
    )
    run = TrainingRun(again, places(tmp_path), lambda progress: None)
    written = read_adapter_file(finished.files[0]).adapters
    assert written.keys() == {each.name for each in run.trainer.layers}
    run.close()


def test_a_start_of_another_rank_is_refused(images: Path, tmp_path: Path) -> None:
    (file,) = train(config(images, training={"steps": 1}), tmp_path).files  # of rank 2
    with pytest.raises(TrainingError, match="another rank or kind"):
        train(config(images, adapter={"rank": 3, "start": str(file)}, output={"name": "b"}), tmp_path)


def test_a_base_that_vanishes_in_the_middle_is_named(images: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.safetensors"
    base.write_bytes(SHIPPED.read_bytes())
    model = {"checkpoint": str(base), "stream": "layers", "storage": "fp32"}

    def vanish(progress: Progress) -> None:
        if progress.phase.startswith("step 1 "):
            os.truncate(base, 1000)

    with pytest.raises(FeatherweightError, match=r"base\.safetensors"):
        train(config(images, model=model), tmp_path, vanish)
    with pytest.raises(CheckpointError):
        train(config(images, model={"checkpoint": str(tmp_path / "gone.safetensors")}), tmp_path)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"folders": ["/nowhere/at/all"]}}, "is no folder"),
        ({"output": {"name": "../evil"}}, "leads out of its folder"),
        ({"output": {"name": ""}}, "output.name is missing"),
        ({"training": {"optimizer": "adamw8bit"}, "model": {"device": "auto"}}, "needs an NVIDIA GPU"),
    ],
)
def test_what_cannot_be_is_said(images: Path, tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    if torch.cuda.is_available() and "optimizer" in sections.get("training", {}):
        pytest.skip("it can be here")
    with pytest.raises((TrainingError, InvalidValueError), match=message):
        train(config(images, **sections), tmp_path)


def test_overfitting_is_said_in_words() -> None:
    falling = [(step * 10, 1.0 - step / 100) for step in range(10)]
    assert overfitting(History(validation=falling)) == ""
    assert overfitting(History()) == ""
    risen = [*falling, (100, 1.0), (110, 1.02), (120, 1.05)]
    verdict = overfitting(History(validation=risen))
    assert "lowest at step 90" in verdict
    assert "memorizes the images" in verdict


def test_smoothing_begins_at_the_first_value() -> None:
    curve = smoothed([(1, 2.0), (2, 2.0), (3, 2.0)])
    assert [value for _, value in curve] == pytest.approx([2.0, 2.0, 2.0])


def test_what_is_gone_on_from_is_in_the_running_mean_too(images: Path, tmp_path: Path) -> None:
    (file,) = train(config(images, training={"steps": 1}), tmp_path).files
    again = config(images, adapter={"start": "toy"}, output={"name": "b"})
    run = TrainingRun(again, places(tmp_path), lambda progress: None)
    ups = [index for index, part in enumerate(run.trainer.parameters) if bool(part.any())]
    assert len(ups) == len(run.trainer.parameters)  # one step has moved every value that began as zero
    means = zip(run.trainer.parameters, run.trainer.average.means, strict=True)
    assert all(torch.equal(parameter, mean) for parameter, mean in means)
    run.close()
    assert file.is_file()


def test_an_embedding_is_gone_on_with(images: Path, tmp_path: Path) -> None:
    adapter = {"type": "textual_inversion", "token": "toy", "vectors": 2}
    (file,) = train(config(images, adapter=adapter, training={"steps": 1}), tmp_path).files
    again = config(images, adapter={**adapter, "start": "toy"}, output={"name": "b"})
    run = TrainingRun(again, places(tmp_path), lambda progress: None)
    embedding = read_embedding(file)
    assert embedding is not None
    vectors = run.trainer.words["toy"]
    assert all(torch.equal(vectors[width], vector) for width, vector in embedding.vectors.items())
    run.close()
    with pytest.raises(TrainingError, match="it has 2 vectors, and 3 are wanted"):
        train(config(images, adapter={**adapter, "vectors": 3, "start": "toy"}, output={"name": "b"}), tmp_path)
