"""Encoded prompts that outlive the program."""

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.encoded_store import SUFFIX
from modules.processing.engine.engine import Engine, EngineOptions
from tests.models.files import tiny_tensors, write_checkpoint
from tests.processing.test_vae_files import make, pixels
from tests.recordings import CONFIGS, cpu_machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    write_checkpoint(tmp_path / "models" / "tiny.safetensors", tiny_tensors())
    return tmp_path


def started(root: Path) -> tuple[Engine, list[int]]:
    """A program that was started just now, and how often its text encoder ran."""
    catalogue = CheckpointCatalogue([root / "models"], HashCache(root / "hashes.json"))
    engine = Engine(catalogue, CONFIGS, cpu_machine, options=EngineOptions(prompts_dir=root / "prompts"))
    calls: list[int] = []

    def counted(*_: Any) -> None:
        calls.append(1)

    engine.on_loaded(lambda model: model.text_encoder.register_forward_hook(counted))
    return engine, calls


def files(root: Path) -> list[Path]:
    return sorted((root / "prompts").glob(f"*{SUFFIX}"))


def test_a_prompt_used_again_after_a_restart_runs_no_text_encoder(root: Path) -> None:
    engine, calls = started(root)
    first = make(engine, root)
    assert calls and files(root)
    engine, calls = started(root)
    assert pixels(make(engine, root)) == pixels(first)
    assert calls == []
    assert pixels(make(engine, root, CLIP_stop_at_last_layers=2)) != pixels(first)
    assert calls


def test_another_file_of_the_same_name_has_encodings_of_its_own(root: Path) -> None:
    engine, _ = started(root)
    first = make(engine, root)
    tensors = tiny_tensors()
    key = "cond_stage_model.transformer.text_model.final_layer_norm.weight"
    tensors[key] = tensors[key] * 2
    write_checkpoint(root / "models" / "tiny.safetensors", tensors)
    engine, calls = started(root)
    assert pixels(make(engine, root)) != pixels(first) and calls


def test_it_is_bounded_and_can_be_off(root: Path) -> None:
    engine, _ = started(root)
    make(engine, root, prompt_cache_mb=0)
    assert files(root) == []
    for number in range(4):
        path = root / "prompts" / f"{number}{SUFFIX}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(600_000))
    engine, _ = started(root)
    make(engine, root, prompt_cache_mb=1)
    assert 0 < sum(path.stat().st_size for path in files(root)) <= 1 << 20


def test_damaged_files_are_made_again(root: Path) -> None:
    engine, _ = started(root)
    first = make(engine, root)
    for path in files(root):
        data = bytearray(path.read_bytes())
        data[8:20] = b"x" * 12
        path.write_bytes(data)
    engine, calls = started(root)
    assert pixels(make(engine, root)) == pixels(first)
    assert calls
    engine, calls = started(root)
    make(engine, root)
    assert calls == []
    assert torch.is_inference_mode_enabled() is False
