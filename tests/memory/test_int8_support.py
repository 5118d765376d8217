"""What is found out of int8 products, remembered, and said."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from modules.memory import int8_support as under_test
from modules.memory.int8_support import Int8Support, int8_support

CPU = torch.device("cpu")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A quick CPU with exact products, whatever this one is; counts them."""
    calls: list[int] = []

    def product(left: Tensor, right: Tensor) -> Tensor:
        calls.append(len(left))
        return (left.double() @ right.double()).to(torch.int32)

    monkeypatch.setattr(torch, "_int_mm", product)
    monkeypatch.setattr(under_test, "_ratio", lambda left, right, dtype: 0.25)
    return calls


def test_an_answer_is_remembered_for_each_dtype(exact: list[int], tmp_path: Path) -> None:
    file = tmp_path / "cache" / "int8.json"
    assert int8_support(CPU, torch.float32, file) == Int8Support(0.25)
    assert len(exact) == 1
    assert int8_support(CPU, torch.float32, file).pays
    assert len(exact) == 1
    assert int8_support(CPU, torch.bfloat16, file).pays
    assert len(exact) == 2
    assert len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}'])
def test_a_damaged_file_is_measured_again(text: str, exact: list[int], tmp_path: Path) -> None:
    file = tmp_path / "int8.json"
    file.write_text(text)
    assert int8_support(CPU, torch.float32, file).pays
    assert len(exact) == 1
    assert int8_support(CPU, torch.float32, file).pays
    assert len(exact) == 1


def test_wrong_sums_are_no_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """16-bit sums on the way saturate, as with the instructions before VNNI."""
    monkeypatch.setattr(torch, "_int_mm", lambda left, right: (left.float() @ right.float()).clamp(-32768, 32767).int())
    found = int8_support(CPU, torch.float32)
    assert not found.works and not found.pays
    assert "wrongly" in found.reason


def test_an_error_without_words_is_said_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_int_mm", Mock(side_effect=NotImplementedError))
    assert int8_support(CPU, torch.float32).reason.endswith("do not work here: NotImplementedError")


def test_a_build_without_the_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(left: Tensor, right: Tensor) -> Tensor:
        raise NotImplementedError("Could not run 'aten::_int_mm'\nwith arguments")

    monkeypatch.setattr(torch, "_int_mm", missing)
    found = int8_support(CPU, torch.float32)
    assert not found.works
    assert "Could not run 'aten::_int_mm'" in found.reason and "\n" not in found.reason


def test_other_devices_have_none() -> None:
    assert "mps" in int8_support(torch.device("mps"), torch.float16).reason


def test_slow_products_are_used_on_demand_only() -> None:
    assert Int8Support(1.1).works and not Int8Support(1.1).pays
    assert not Int8Support(30.0).works
    assert "30.00 of the time" in Int8Support(30.0).reason


def test_this_machine_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(under_test.SIZES, "cpu", (64, 96, 64))  # milliseconds for a plain loop too
    found = int8_support(CPU, torch.float32)
    assert found.ratio is None or found.ratio > 0
    assert found.reason
