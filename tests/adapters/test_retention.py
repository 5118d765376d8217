"""The retention meter, network by network, against a calculation by hand on one layer."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.adapters.adapter_file import AdapterFile, read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Retention, Use
from modules.adapters.targets import TargetTable
from modules.processing.engine.adapter_files import AdapterFiles, EffectKept, _weak

CPU = torch.device("cpu")
SIDE = 32
USES = (Use("style", "s", 1.0, 1.0), Use("object", "o", 0.5, 0.5))


class FullPrecisionSource:
    """The weights before they were rounded."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def read(self, component: str, key: str) -> Tensor:
        return self._weight

    def is_source(self, component: str, key: str) -> bool:
        return True

    def close(self) -> None:
        """Holds nothing."""


def lora(seed: int, size: float) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return {
        "lora_unet_0.lora_up.weight": size * torch.randn(SIDE, 4, generator=noise),
        "lora_unet_0.lora_down.weight": torch.randn(4, SIDE, generator=noise),
    }


@pytest.fixture
def files(tmp_path: Path) -> dict[str, AdapterFile]:
    found = {}
    for name, factors in (("s", lora(1, 0.01)), ("o", lora(2, 0.003))):
        save_file(factors, tmp_path / f"{name}.safetensors")
        found[name] = read_adapter_file(tmp_path / f"{name}.safetensors")
    return found


def delta(seed: int, size: float) -> Tensor:
    factors = lora(seed, size)
    return factors["lora_unet_0.lora_up.weight"] @ factors["lora_unet_0.lora_down.weight"]


def measured(uses: Sequence[Use], files: dict[str, AdapterFile], mode: LoraMode) -> tuple[Retention, Tensor, Tensor]:
    """The meter's reading on a layer in bf16, the weight as loaded and as merged."""
    weight = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    layer = nn.Linear(SIDE, SIDE, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    model = nn.Sequential(layer).bfloat16()
    before = layer.weight.detach().float()
    applier = AdapterApplier(TargetTable({"unet": (model, lambda key: None)}), FullPrecisionSource(weight), CPU)
    applier.apply(uses, files, mode)
    assert applier.retention is not None
    return applier.retention, before, layer.weight.detach().float()


def test_one_adapter_alone_is_the_whole(files: dict[str, AdapterFile]) -> None:
    for mode in (LoraMode.MERGE, LoraMode.INTO_STORED):
        retention, before, after = measured(USES[:1], files, mode)
        wanted = delta(1, 0.01)
        by_hand = float(((after - before) * wanted).sum() / (wanted * wanted).sum())
        ((name, share),) = retention.adapters
        assert name == "style" and share == pytest.approx(by_hand, abs=1e-3)
        assert retention.retention == pytest.approx(by_hand, abs=1e-3)
        assert retention.retention != 1


def test_of_several_each_has_its_share(files: dict[str, AdapterFile]) -> None:
    retention, before, after = measured(USES, files, LoraMode.MERGE)
    style, thing = delta(1, 0.01), 0.5 * delta(2, 0.003)
    error = (after - before) - (style + thing)
    by_hand = [1 + float((error * own).sum() / (own * own).sum()) for own in (style, thing)]
    assert [name for name, _ in retention.adapters] == ["style", "object"]
    assert [share for _, share in retention.adapters] == pytest.approx(by_hand, abs=2e-3)


def test_merged_one_after_the_other_each_is_measured_on_its_own(files: dict[str, AdapterFile]) -> None:
    retention, _, _ = measured(USES, files, LoraMode.INTO_STORED)
    (_, style), (_, thing) = retention.adapters
    assert 0.9 < style < 1.1 and thing != style


def test_exact_loses_nothing_and_follows_names(files: dict[str, AdapterFile]) -> None:
    retention, before, after = measured(USES, files, LoraMode.EXACT)
    assert retention.adapters == (("style", 1.0), ("object", 1.0)) and torch.equal(before, after)
    model = nn.Sequential(nn.Linear(SIDE, SIDE))
    applier = AdapterApplier(
        TargetTable({"unet": (model, lambda key: None)}), FullPrecisionSource(torch.ones(SIDE, SIDE)), CPU
    )
    applier.apply(USES, files, LoraMode.EXACT)
    applier.apply([Use("other name", "s"), USES[1]], files, LoraMode.EXACT)
    assert applier.retention is not None
    assert applier.retention.adapters == (("other name", 1.0), ("object", 1.0))


def test_the_effect_kept_is_noted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_file(lora(1, 0.01), tmp_path / "style.safetensors")
    adapters = AdapterFiles((tmp_path,))
    (info,) = adapters.catalogue.entries
    retention = Retention(0.998, 0.01, (), (("style", 0.998),))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            adapters._note_retention([info], retention, LoraMode.MERGE)
    assert adapters.effect_kept == {info.path: EffectKept(0.998, "merge from full precision", 0.01)}
    assert [record.getMessage() for record in caplog.records] == [
        "LoRA style: applied, 99.8 % of its effect kept (merge from full precision)."
    ]


def test_the_notice_names_the_adapter_that_lost_most() -> None:
    several = Retention(1.0, 0.13, (), (("style", 0.999), ("faint", 0.33)))
    assert _weak(several).startswith(
        "100% (faint: 33%) of the adapters' effect is kept after rounding to 8 bits, with 13% of noise. "
    )
    assert ", of" not in _weak(Retention(0.5, 0.1, (), (("style", 0.5),)))
