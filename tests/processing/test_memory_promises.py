"""What is promised of memory and disk: nothing is read after the first prompt, and many LoRAs cost no memory each."""

import gc
import sys
from pathlib import Path

import pytest
import torch

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine import adapter_files
from modules.processing.engine.engine import Engine
from tests.models.files import tiny_tensors, write_checkpoint
from tests.processing.test_fp8_images import make as make_with
from tests.processing.test_lora_images import with_prompt
from tests.processing.test_vae_files import make
from tests.recordings import CONFIGS, REFERENCE, cpu_machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    write_checkpoint(tmp_path / "models" / "tiny.safetensors", tiny_tensors())
    return tmp_path


def engine_of(root: Path) -> Engine:
    catalogue = CheckpointCatalogue([root / "models"], HashCache(root / "hashes.json"))
    return Engine(catalogue, CONFIGS, cpu_machine)


def counters() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts what a process reads on Linux")
def test_prompts_after_the_first_read_nothing(root: Path) -> None:
    engine = engine_of(root)
    make(engine, root)
    before = counters()
    for number in range(6):
        make(engine, root, sd_vae_encode_method="Full", CLIP_stop_at_last_layers=1 + number % 2)
    after = counters()
    assert after["read_bytes"] == before["read_bytes"]
    # What else is read are the kernel's own files, for the timeline of memory.
    assert after["rchar"] - before["rchar"] < (root / "models" / "tiny.safetensors").stat().st_size / 4


def tensor_bytes() -> int:
    """Bytes of all tensors that are alive, each memory once."""
    gc.collect()
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.device.type == "cpu" and not each.is_sparse
    }
    return sum(storages.values())


ADAPTERS = ("tiny-lora-a", "tiny-locon", "tiny-loha", "tiny-lokr", "tiny-full", "tiny-dora")


def test_memory_is_flat_over_a_grid_of_adapters(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_files, "FILES_KEPT", 1)  # the same bound with fewer adapters
    sizes, stored = [], set()
    for adapter in (*ADAPTERS, ADAPTERS[0]):
        make_with(engine, tmp_path, with_prompt(f"a red cat <lora:{adapter}:0.8>"), {"fp8_storage": "Enable"})
        model = engine._model
        assert model is not None
        stored.add(model.stored_bytes)
        if adapter == ADAPTERS[0]:
            sizes.append(tensor_bytes())
    assert len(stored) == 1
    # However many were used since, with the first one in use again there is besides it only the one file that is kept,
    # and some prompts' encodings. All files are more than twice that.
    folder = REFERENCE / "models" / "Lora"
    files = [(folder / f"{adapter}.safetensors").stat().st_size for adapter in ADAPTERS[1:]]
    assert sizes[1] - sizes[0] <= files[-1] + 1_000_000 < sum(files) / 2
