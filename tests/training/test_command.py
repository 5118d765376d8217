"""`launch.py train`: by a file, by a preset of the page, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lib_training.command import main
from lib_training.config import changes_of
from modules.models.files.header import read_metadata
from tests.models.dit_files import write_split
from tests.recordings import TINY


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "toys"
    folder.mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text("toy", encoding="utf-8")
    return folder


QUICK = [
    *("--set", "training.steps=1", "--set", "data.resolution=64", "--set", "adapter.rank=2"),
    *("--set", "model.device=cpu", "--set", "output.sample_every=0"),
]


def test_a_folder_is_trained_by_a_preset(tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    words = ["--folder", str(images), "--preset", "style", "--trigger", "zorp", "--checkpoint", str(TINY)]
    assert main([*words, *QUICK, "--data-dir", str(data)]) == 0
    (file,) = capsys.readouterr().out.split()
    assert Path(file) == data / "models" / "Lora" / "toys.safetensors"
    metadata = read_metadata(Path(file))
    assert metadata["modelspec.trigger_phrase"] == "zorp"
    assert (metadata["ss_noise_offset"], metadata["ss_max_train_steps"]) == ("0.1", "1")


def test_a_transformer_of_a_flow_is_trained_by_the_same_command(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its encoder and VAE are found in the folders for them."""
    data = tmp_path / "data"
    checkpoint = write_split(data / "models", "zimage-turbo-cfg1")
    words = ["--folder", str(images), "--preset", "character", "--trigger", "zorp", "--checkpoint", checkpoint.name]
    streamed = ["--set", "model.stream=layers", "--set", "model.storage=int8_row"]
    assert main([*words, *QUICK, *streamed, "--data-dir", str(data)]) == 0
    (file,) = capsys.readouterr().out.split()
    metadata = read_metadata(Path(file))
    assert (metadata["ss_base_model_version"], metadata["modelspec.architecture"]) == ("z_image", "Z-Image/lora")
    assert main([*words, *QUICK, "--set", "adapter.text_rank=4", "--data-dir", str(data)]) == 1
    assert "text encoders of z_image_tiny.safetensors are not trained" in capsys.readouterr().err


def test_a_file_is_checked_with_changes(tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"model: {{checkpoint: '{TINY}'}}\ndata: {{resolution: 96}}\noutput: {{name: toy}}\n")
    words = [str(file), "--set", f"data.folders={images}", "--check", "--data-dir", str(tmp_path / "data")]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("2 images.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give either a YAML file, or --folder"),
        (["a.yaml", "--folder", "x"], "Give either a YAML file, or --folder"),
        (["a.yaml", "--set", "steps=3"], "Write SECTION.KEY=VALUE"),
        (["a.yaml", "--set", "training.steps=["], "is no value"),
        (["a.yaml"], "Name a YAML file"),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--data-dir", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err


def test_changes_are_read_as_yaml() -> None:
    found = changes_of(["training.steps=5", "training.learning_rate=1e-4", "data.flip=true", "output.prompts=[a, b]"])
    assert found == {
        "training": {"steps": 5, "learning_rate": "1e-4"},
        "data": {"flip": True},
        "output": {"prompts": ["a", "b"]},
    }
