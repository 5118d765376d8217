"""The configuration of a training: every key has its words, unknown ones are refused with the nearest."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lib_training.config import TrainingConfig, config_of, describe, read_config, sections
from lib_training.presets import PRESETS, is_small, preset_config
from modules.errors import InvalidValueError, UnknownNameError

ROOT = Path(__file__).parents[2]


def test_what_is_described_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(describe(), encoding="utf-8")
    read = read_config(tmp_path / "all.yaml")
    assert read == config_of({"data": {"folders": [{}]}})
    for section in sections():
        for item in fields(getattr(TrainingConfig(), section)):
            assert item.metadata["says"], item.name


def test_every_section_is_in_the_manual() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert [section for section in sections() if f"| `{section}` |" not in text] == []


def test_values_come_as_their_types(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "name: toy\ntraining: {learning_rate: 1e-4, steps: 10}\ndata:\n  folders:\n    - images\n"
        "    - {path: more, weight: 2}\noutput: {name: '${name}'}\n",
        encoding="utf-8",
    )
    with pytest.raises(InvalidValueError, match="Unknown key name"):
        read_config(path)
    path.write_text(path.read_text().replace("name: toy\n", "").replace("${name}", "toy"), encoding="utf-8")
    config = read_config(path)
    assert config.training.learning_rate == 1e-4
    assert [(folder.path, folder.weight) for folder in config.data.folders] == [("images", 1.0), ("more", 2.0)]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"adaptor": {}}, "Unknown key adaptor. Did you mean 'adapter'"),
        ({"adapter": {"rnk": 4}}, "Unknown key adapter.rnk. Did you mean 'rank'"),
        ({"data": {"folders": [{"pth": "x"}]}}, r"Unknown key data.folders\[0\].pth. Did you mean 'path'"),
        ({"adapter": {"rank": "many"}}, "adapter.rank is 'many'; it must be a whole number"),
        ({"adapter": {"rank": True}}, "it must be a whole number"),
        ({"adapter": {"rank": -1}}, "rank is -1; it may be 0 or more, at most 512"),
        ({"adapter": {"type": "lohha"}}, "Did you mean 'loha'"),
        ({"adapter": {"rank": 0}}, "nothing to train"),
        ({"adapter": 3}, "it holds keys and values"),
        ({"training": {"learning_rate": 0}}, "it may be above 0, at most 10"),
        ({"training": {"learning_rate": float("nan")}}, "learning_rate is nan"),
        ({"memory": {"offload": "ram"}}, "Give memory.checkpointing too"),
        ({"loss": {"min_timestep": 900, "max_timestep": 100}}, "Swap them"),
        ({"data": {"resolution": 5000}}, "resolution is 5000"),
        ({"training": {"fused_backward": True}}, "Set training.clip_gradients to 0"),
        ({"training": {"fused_backward": True, "accumulation": 2}}, "Set training.accumulation to 1"),
        ({"training": {"fused_backward": True, "clip_gradients": 0.0, "optimizer": "prodigy"}}, "prodigy cannot"),
        ({"training": {"optimizer": "adamw8bit"}, "model": {"device": "cpu"}}, "needs an NVIDIA GPU"),
    ],
)
def test_what_cannot_be_is_said(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        config_of(tree)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "data: ${nowhere}\n"])
def test_files_that_are_no_configuration_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValueError):
        read_config(path)
    with pytest.raises(InvalidValueError, match="cannot be read"):
        read_config(tmp_path / "missing.yaml")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_follow_the_images(preset: str) -> None:
    few = preset_config(preset, "images", "a", "base", 10, "zorp", 6)
    many = preset_config(preset, "images", "a", "base", 30, changes={"training": {"batch": 2}})
    assert few.training.steps < many.training.steps
    assert (few.data.prefix, few.memory.budget_gb, many.training.batch) == ("zorp, ", 6.0, 2)
    with pytest.raises(UnknownNameError, match="Did you mean 'style'"):
        preset_config("styl", "images", "a", "base", 1)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_small_model_learns_as_many_images_in_batches_at_a_rate_of_its_own(preset: str) -> None:
    full = preset_config(preset, "images", "a", "base", 20, small_model=False)
    small = preset_config(preset, "images", "a", "base", 20, small_model=True)
    assert small.training.steps * small.training.batch == full.training.steps * full.training.batch
    assert small.training.learning_rate == 1.5e-3 and full.training.learning_rate == 2e-4
    assert small.adapter.text_rank and small.adapter.conv_rank and small.data == full.data


def test_what_is_asked_for_goes_before_the_settings_of_small_models() -> None:
    changes: dict[str, dict[str, Any]] = {"training": {"learning_rate": 1e-4}, "adapter": {"text_rank": 0}}
    asked = preset_config("style", "images", "a", "base", 20, changes=changes, small_model=True)
    assert (asked.training.learning_rate, asked.adapter.text_rank, asked.training.batch) == (1e-4, 0, 8)
    other = {"model": {"checkpoint": "large.safetensors"}}
    large = preset_config("style", "images", "a", "base", 20, changes=other, small_model=True)
    assert large.training.batch == 1


def test_which_checkpoints_are_small(tmp_path: Path) -> None:
    """The bundled one; not one whose text encoders are files of their own, which are not trained."""
    assert is_small(ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors")
    header = b'{"diffusion_model.x.weight": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0]}}'
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(len(header).to_bytes(8, "little") + header)
    assert not is_small(alone) and not is_small(tmp_path / "gone.safetensors") and not is_small(tmp_path)
    whole = tmp_path / "large.safetensors"
    with whole.open("wb") as file:
        file.write((30).to_bytes(8, "little") + b'{"cond_stage_model.x": {}}')
        file.truncate(2_000_000_000)
    assert not is_small(whole)
