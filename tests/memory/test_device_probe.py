"""What a device was measured to compute fast, and what is chosen from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modules.flags.flags import parse_flags
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory import device_probe as under_test
from modules.memory.device_probe import WRONG, Limit, Probe, measure, probe_of
from modules.models.families.registry import FAMILIES
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.precision import Machine, PrecisionOptions, machine_of, resolve
from modules.processing.record.describe import precision_fields
from modules.settings.values import Settings
from modules.setup import doctor
from modules.system.devices import describe
from tests.fake_gpu import CardFacts, fake_gpu

CUDA, FP16, BF16, FP32 = torch.device("cuda"), torch.float16, torch.bfloat16, torch.float32


def speeds(fp16: float, fp32: float, bf16: float | None = None, int8: float | None = None) -> Probe:
    """A card by its milliseconds."""
    found = {"product fp16": fp16, "convolution fp16": 1.0, "product fp32": fp32, "convolution fp32": 2.0}
    found |= {"layer fp16 fp16": fp16 + 0.2, "layer fp32 fp32": fp32 + 0.2}
    if bf16 is not None:
        found["product bf16"] = bf16
    if int8 is not None:
        found |= {"product int8": int8, "layer fp16 int8": int8 + 0.3, "layer fp32 int8": int8 + 0.3}
    return Probe(found)


GTX_1660 = speeds(fp16=20, fp32=3, bf16=25, int8=1)
GTX_1080 = speeds(fp16=3.2, fp32=3, int8=0.8)
RTX_2060 = speeds(fp16=0.4, fp32=3, bf16=4, int8=0.3)
RTX_3060 = speeds(fp16=1, fp32=3, bf16=1, int8=0.2)
RTX_4090 = speeds(fp16=0.08, fp32=0.3, bf16=0.08, int8=0.03)
H200 = speeds(fp16=0.02, fp32=0.3, bf16=0.02, int8=0.02)
RX_7600 = speeds(fp16=0.5, fp32=1.2, bf16=0.5, int8=0.6)
ARC_A770 = speeds(fp16=0.3, fp32=1.5, bf16=0.3)
M1, M4 = speeds(fp16=5, fp32=5.5, bf16=9), speeds(fp16=2.5, fp32=3.2, bf16=2.6)
IGPU = speeds(fp16=6, fp32=11, bf16=6)


def machine(probe: Probe | None, **changes: object) -> Machine:
    base = Machine(CUDA, FP16, FP16, wide_dtype=FP32, measured=probe, int8=None if probe is None else probe.int8)
    return replace(base, **changes)  # type: ignore[arg-type]


def changed(probe: Probe, problems: dict[str, str] | None = None, /, **milliseconds: float) -> Probe:
    """A card that does some things in another time, or wrongly; `_` stands for a space."""
    seconds = {**probe.seconds, **{name.replace("_", " "): took for name, took in milliseconds.items()}}
    return Probe({name: took for name, took in seconds.items() if name not in (problems or {})}, problems or {})


ATTENTION = {"attention_sdp": 1.0, "attention_sub-quadratic": 2.0, "attention_sliced": 3.0}
BLOCKS = {"block_fp16": 1.0, "block_fp16,_channels-last": 0.8}
LYING = changed(RTX_3060, {"product int8": WRONG, "attention sdp": WRONG}, **ATTENTION)
HANGING = Probe({}, {"product fp16": "took more than 10 s", "product fp32": "left out: the one before it did not end"})


@pytest.mark.parametrize(
    ("device_type", "probe", "fp8_units", "dtype", "vae", "wide", "int8", "attention", "channels_last"),
    [
        pytest.param("cuda", GTX_1660, False, FP32, FP16, FP32, True, None, False, id="GTX 1660"),
        pytest.param("cuda", GTX_1080, False, FP16, FP16, FP32, True, None, False, id="GTX 1080"),
        pytest.param("cuda", RTX_2060, False, FP16, FP16, FP32, False, None, False, id="RTX 2060"),
        pytest.param("cuda", changed(RTX_3060, **BLOCKS), False, FP16, FP16, BF16, True, None, True, id="RTX 3060"),
        pytest.param("cuda", RTX_4090, True, FP16, FP16, BF16, False, None, False, id="RTX 4090"),
        pytest.param("cuda", H200, True, FP16, FP16, BF16, False, None, False, id="H200"),
        pytest.param(
            *("cuda", changed(RX_7600, **{**ATTENTION, "attention_sdp": 9.0}), False, FP16, FP16, BF16, False),
            *("sub-quadratic", False),
            id="RX 7600",
        ),
        pytest.param("xpu", changed(ARC_A770, **BLOCKS), False, FP16, FP16, BF16, False, None, False, id="Arc A770"),
        pytest.param("mps", M1, False, FP16, FP16, FP32, False, None, False, id="M1"),
        pytest.param("mps", M4, False, FP16, FP16, BF16, False, None, False, id="M4"),
        pytest.param("xpu", IGPU, False, FP16, FP16, BF16, False, None, False, id="Arc in a CPU"),
        pytest.param("cuda", LYING, False, FP16, FP16, BF16, False, "sub-quadratic", False, id="a driver that lies"),
        pytest.param("cuda", HANGING, False, FP16, FP16, FP32, False, None, False, id="a probe that hangs"),
        pytest.param("cuda", None, False, FP16, FP16, FP32, False, None, False, id="not measured"),
    ],
)
def test_a_device_gets_what_it_does_fast(
    device_type: str,
    probe: Probe | None,
    fp8_units: bool,
    dtype: torch.dtype,
    vae: torch.dtype,
    wide: torch.dtype,
    int8: bool,
    attention: str | None,
    channels_last: bool,
) -> None:
    rule = FP32 if device_type == "cuda" else BF16  # for models that leave fp16's range
    here = machine(probe, device=torch.device(device_type), wide_dtype=rule, fp8_matmul=fp8_units)
    plain = resolve(PrecisionOptions(), here, None)
    assert (plain.compute_dtype, plain.vae_dtype, plain.channels_last) == (dtype, vae, channels_last)
    assert bool(plain.notes) is (dtype is FP32)
    assert resolve(PrecisionOptions(), here, FAMILIES.get("z_image")).compute_dtype is wide
    stored = resolve(PrecisionOptions(fp8_storage="Enable", fp8_format="int8_row"), here, None)
    assert (stored.mode is ComputeMode.INT8_MATMUL) is int8
    assert (None if probe is None else probe.attention()) == attention
    said = precision_fields(stored)
    assert said["Compute mode"] == ("int8 matmul" if int8 else "Manual cast"), "what the image depends on is said"
    assert ("Compute dtype" in precision_fields(plain)) is (dtype is FP32)


def test_a_dtype_that_gives_wrong_numbers_is_not_used() -> None:
    seconds = {"product fp32": 9.0, "convolution fp32": 9.0, "product fp16": 1.0}
    found = resolve(PrecisionOptions(), machine(Probe(seconds, {"convolution fp16": WRONG})), None)
    assert found.compute_dtype is found.vae_dtype is FP32


def test_a_setting_and_flags_for_32_bits_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.processing.engine.precision.works", lambda device, dtype: True)
    chosen = resolve(PrecisionOptions(compute_dtype="fp16"), machine(GTX_1660), None)
    assert chosen.compute_dtype is FP16 and chosen.notes == ()
    flagged = resolve(PrecisionOptions(), machine(RTX_3060, dtype=FP32, vae_dtype=FP32), None)
    assert flagged.compute_dtype is flagged.vae_dtype is FP32 and flagged.notes == ()


def test_an_image_says_what_was_measured_to_be_right_and_is_pasted_so() -> None:
    made = resolve(PrecisionOptions(), machine(GTX_1660), None)
    assert precision_fields(made) == {"Compute dtype": "fp32"}
    assert precision_fields(resolve(PrecisionOptions(), machine(RTX_3060), None)) == {}
    text = "a cat\nSteps: 1, Sampler: Euler, Seed: 2, Compute dtype: fp32"
    pasted = Settings().with_changes(override_settings_from(parse_infotext(text), Settings()))
    assert PrecisionOptions.of(pasted).compute_dtype == "fp32"


def test_attention_that_gives_nan_or_crawls_is_replaced() -> None:
    seconds = {"attention sdp": 5.0, "attention sub-quadratic": 1.0, "attention sliced": 2.0}
    assert Probe(seconds).attention() == "sub-quadratic"
    assert Probe({**seconds, "attention sdp": 1.2}).attention() is None
    assert Probe({"attention sliced": 2.0}, {"attention sdp": WRONG}).attention() == "sliced"
    assert Probe({"attention sliced": 2.0}, {"attention sdp": "took more than 10 s"}).attention() is None


# -- measuring ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"ROWS": 64, "INPUTS": 64, "OUTPUTS": 64, "CHANNELS": 8, "SIDE": 8, "TOKENS": 64}
    for name, value in {**sizes, "COPIED_BYTES": 1 << 16}.items():
        monkeypatch.setattr(under_test, name, value)


def here(_: float, call: Callable[[], float]) -> float:
    return call()


@pytest.mark.usefixtures("small")
def test_the_cpu_is_measured_whole() -> None:
    found = measure(torch.device("cpu"))
    assert {"product fp32", "convolution fp32", "layer fp32 fp32", "attention sdp"} <= found.seconds.keys()
    assert all(took > 0 for took in found.seconds.values())
    # Without VNNI oneDNN adds products of int8 up in 16 bits, which overflow: the probe finds that out.
    assert WRONG not in {name: said for name, said in found.problems.items() if name != "product int8"}.values()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("device_type", ["cuda", "mps"])
def test_what_a_gpu_refuses_is_left_out(device_type: str) -> None:
    with fake_gpu(device_type, 8, CardFacts("Old card", (7, 5), (FP16,))) as card:
        found = measure(card.device, here)
        assert card.memory.peak < 300 << 20
    assert {"product fp16", "product fp32", "decoding 32 Mi weights of fp8"} <= found.seconds.keys()
    assert "not implemented for 'torch.bfloat16'" in found.problems["product bf16"]
    is_tried = "product int8" in found.seconds or found.problems["product int8"] == WRONG  # the CPU's own computes it
    assert is_tried is (device_type == "cuda") and "product fp8" in found.problems


def test_the_measurement_takes_less_than_300_mb_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In full size, of zeros; what has no values cannot be right, which is found out after the work was done once."""
    monkeypatch.setattr(under_test, "_random", lambda *shape, seed=0: torch.zeros(shape))
    monkeypatch.setattr(under_test, "TOTAL_S", 600.0)
    with fake_gpu("cuda", 8, has_values=False) as card:
        found = measure(card.device, here)
        assert 100 << 20 < card.memory.peak < 300 << 20
    assert WRONG in found.problems.values() and "copy of 32 MiB" in found.seconds


@pytest.mark.usefixtures("small")
def test_a_driver_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_int_mm", lambda left, right: torch.zeros(len(left), right.shape[1], dtype=torch.int32))
    monkeypatch.setattr("torch.nn.functional.conv2d", lambda image, kernel, padding: image * float("nan"))
    found = measure(torch.device("cpu"))
    assert found.problems["product int8"] == WRONG and found.problems["convolution fp32"] == WRONG
    assert not found.int8(FP32).works


def test_what_hangs_is_left_behind_and_takes_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, limited = threading.Event(), Limit()
    with pytest.raises(TimeoutError, match="took more than 0 s"):
        limited(0.05, lambda: float(hangs.wait(60)))
    with pytest.raises(TimeoutError, match="the one before it did not end"):
        limited(0.05, lambda: 1.0)
    hangs.set()
    assert limited(5, lambda: 1.0) == 1.0
    with pytest.raises(ValueError, match="a driver's"):
        limited(5, lambda: float("a driver's"))
    monkeypatch.setattr(under_test, "TOTAL_S", 0.0)
    found = measure(torch.device("cpu"))
    assert not found.seconds and set(found.problems.values()) == {"left out: no time was left"}


def test_each_card_is_measured_once_and_a_lost_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = tmp_path / "device.json", list[str]()
    answers = [Probe({}, {"product fp16": "CUDA error: device is lost"}), GTX_1660, RTX_3060, H200]

    def answer(device: torch.device) -> Probe:
        asked.append(describe(device))
        return answers[len(asked) - 1]

    monkeypatch.setattr(under_test, "measure", answer)
    with fake_gpu("cuda", 6, CardFacts("First", (7, 5))):
        assert not probe_of(CUDA, file).seconds and not file.exists()
        assert probe_of(CUDA, file) == GTX_1660 == probe_of(CUDA, file)
    with fake_gpu("cuda", 6, CardFacts("Second", (8, 6))):
        assert probe_of(CUDA, file) == RTX_3060
        found = machine_of(parse_flags([]), cache_dir=tmp_path)
        assert found.measured == RTX_3060 and found.again is not None
        assert found.again().measured == H200 == probe_of(CUDA, file)
    assert asked == ["First", "First", "Second", "Second"] and len(json.loads(file.read_text())) == 2


def test_the_doctor_shows_it(tmp_path: Path) -> None:
    answers = {"Card, driver 1": {"seconds": {"product fp16": 0.002}, "problems": {"product fp8": "no", "x": WRONG}}}
    assert list(doctor._probe_lines(answers)) == [
        "Card, driver 1",
        "  product fp16: 2.00 ms",
        "  product fp8: left out (no)",
        f"  x: not used, it {WRONG}",
    ]
    assert doctor.WRONG_RESULT == WRONG
