"""Devices: choice and refusals, dtypes, memory counters. Graphics cards are stood in for where there are none."""

import ast
import ctypes
import gc
import json
import re
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from modules.errors import InvalidValueError
from modules.flags.flags import parse_flags
from modules.system import devices

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many cards of each kind PyTorch seems to see; a test fills it in."""
    counts: dict[str, int] = {}
    monkeypatch.setattr(devices, "_count", lambda kind: counts.get(kind, 0))
    monkeypatch.setattr(devices, "_name", lambda kind, index: f"{kind.upper()} card")
    return counts


def test_without_cards_the_processor_computes(cards: dict[str, int]) -> None:
    assert devices.choose_device(parse_flags([])) == CPU
    assert devices.describe(CPU) == "CPU"


def test_cards_are_preferred_in_the_order_of_the_reference(cards: dict[str, int]) -> None:
    cards["xpu"] = 1
    assert devices.choose_device(parse_flags([])).type == "xpu"
    cards["mps"] = 1
    assert devices.choose_device(parse_flags([])).type == "mps"
    cards["cuda"] = 2
    assert devices.choose_device(parse_flags([])) == torch.device("cuda")


def test_device_id_picks_a_card(cards: dict[str, int]) -> None:
    cards["cuda"] = 2
    assert devices.choose_device(parse_flags(["--device-id", "1"])) == torch.device("cuda", 1)


def test_device_id_out_of_range_lists_the_cards(cards: dict[str, int]) -> None:
    cards["cuda"] = 2
    with pytest.raises(InvalidValueError, match=r"--device-id 2.*0: CUDA card \(cuda\); 1: CUDA card \(cuda\)"):
        devices.choose_device(parse_flags(["--device-id", "2"]))


def test_device_id_without_cards_says_so(cards: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match="no GPU"):
        devices.choose_device(parse_flags(["--device-id", "0"]))


def test_use_cpu_wins_for_its_part_only(cards: dict[str, int]) -> None:
    cards["cuda"] = 1
    flags = parse_flags(["--use-cpu", "esrgan", "--device-id", "0"])
    assert devices.choose_device(flags).type == "cuda"
    assert devices.choose_device(flags, "esrgan") == CPU
    assert devices.choose_device(parse_flags(["--use-cpu", "all"])) == CPU
    assert devices.choose_device(parse_flags(["--use-cpu", "sd"])) == CPU


def test_use_ipex_prefers_the_intel_card_or_says_how_to_get_it(cards: dict[str, int]) -> None:
    cards["cuda"] = 1
    with pytest.raises(InvalidValueError, match="--torch xpu"):
        devices.choose_device(parse_flags(["--use-ipex"]))
    cards["xpu"] = 1
    assert devices.choose_device(parse_flags(["--use-ipex"])).type == "xpu"


@pytest.mark.parametrize(
    ("capabilities", "onednn", "native"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True, True),
        ({"avx512_bf16": False, "avx512_f": True, "cpu_name": "x"}, True, False),
        ({"avx512_bf16": True}, False, False),
        ({}, True, False),
    ],
)
def test_native_bf16_needs_the_instruction_and_onednn(
    capabilities: dict[str, object], onednn: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    assert devices.native_bf16_cpu() is native


def test_native_bf16_agrees_with_the_kernel_on_this_machine() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        pytest.skip("no /proc/cpuinfo")
    words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    if devices.native_bf16_cpu():
        assert words & {"avx512_bf16", "amx_bf16", "bf16"}


@pytest.mark.parametrize("native", [True, False])
def test_cpu_dtype(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "native_bf16_cpu", lambda: native)
    assert devices.compute_dtype(CPU, no_half=False) is (torch.bfloat16 if native else torch.float32)
    assert devices.compute_dtype(CPU, no_half=True) is torch.float32
    assert devices.compute_dtype(CPU, no_half=False, precision="full") is torch.float32
    assert devices.compute_dtype(CPU, no_half=False, precision="half") is torch.bfloat16


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_cards_compute_in_fp16_where_that_works(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device(kind)
    monkeypatch.setattr(devices, "works", lambda device, dtype: True)
    assert devices.compute_dtype(device, no_half=False) is torch.float16
    assert devices.compute_dtype(device, no_half=True) is torch.float32
    monkeypatch.setattr(devices, "works", lambda device, dtype: False)
    assert devices.compute_dtype(device, no_half=False) is torch.float32


def test_dtypes_are_probed_by_doing() -> None:
    assert devices.works(CPU, torch.float32)
    assert not devices.works(CPU, torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA GeForce GTX 1650", (7, 5), True),
        ("NVIDIA GeForce RTX 2060", (7, 5), False),
        ("NVIDIA GeForce GTX 1080", (6, 1), False),
    ],
)
def test_gtx_16xx(name: str, capability: tuple[int, int], expected: bool) -> None:
    assert devices.is_gtx_16xx(name, capability) is expected


def test_memory_of_the_processor_has_the_shape_of_the_reference() -> None:
    memory = devices.memory_info(CPU)
    json.dumps(memory)
    assert memory["cuda"] == {"error": "unavailable"}
    if Path("/proc/self/statm").exists():
        total, used, free = (memory["ram"][name] for name in ("total", "used", "free"))
        assert isinstance(total, int) and isinstance(used, int) and isinstance(free, int)
        assert 10_000_000 < used < total and 0 < free < total


def test_memory_is_known_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows and macOS; where nothing tells, that is said."""
    here, elsewhere = devices._ram(), devices._ram(tmp_path)
    assert here.keys() == elsewhere.keys() and here.get("total", 0) == elsewhere["total"]
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert devices._ram(tmp_path) == {"error": "this system does not tell"}


def test_memory_of_a_card_comes_from_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = {"active_bytes.all.current": 5, "active_bytes.all.peak": 7, "num_ooms": 2}
    reading = devices.DeviceReading(30, 100, 0, 0, 0)
    gpu = SimpleNamespace(read=lambda device: reading, statistics=lambda device: statistics)
    monkeypatch.setitem(devices.GPUS, "cuda", gpu)
    cuda = devices.memory_info(torch.device("cuda"))["cuda"]
    assert cuda["system"] == {"free": 30, "used": 70, "total": 100}
    assert cuda["active"] == {"current": 5, "peak": 7}
    assert cuda["events"] == {"retries": 0, "oom": 2}
    assert set(cuda) == {"system", "active", "allocated", "reserved", "inactive", "events"}


def test_only_devices_names_pytorchs_modules_for_gpus() -> None:
    """What else asks them would not be seen by the GPU that tests make up."""
    paths = [path for folder in ("modules", "extensions-builtin") for path in (ROOT / folder).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix(): names_a_gpus_module(path.read_text("utf-8")) for path in paths}
    assert {name for name, is_found in found.items() if is_found} == {"modules/system/devices.py"}


GPU_MODULE = re.compile(r"torch\.(backends\.)?(cuda|mps|xpu|cudnn)\b|get_device_module|pin_memory=")
GPU_WORDS = frozenset({"cuda", "mps", "xpu", "cudnn"})


def names_a_gpus_module(text: str) -> bool:
    """Whether code names one of PyTorch's modules for GPUs: by attribute, by import, or by `getattr` of a word."""
    if GPU_MODULE.search(text):
        return True
    if "torch" not in text:
        return False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in {"torch", "torch.backends"}:
            if any(alias.name in GPU_WORDS for alias in node.names):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            of, *rest = node.args
            if ast.unparse(of) in {"torch", "torch.backends"} and not names_something_else(rest[0]):
                return True
    return False


def names_something_else(word: ast.expr) -> bool:
    """Whether the second argument of a `getattr` is a literal, or a table's value by a literal, and no GPU's word."""
    if isinstance(word, ast.Subscript):
        return isinstance(word.slice, ast.Constant) and word.slice.value == "dtype"
    return isinstance(word, ast.Constant) and word.value not in GPU_WORDS


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("import torch\ntorch.cuda.empty_cache()", True),
        ("from torch import cuda", True),
        ("import torch\ngetattr(torch, kind).synchronize()", True),
        ("import torch\ngetattr(torch, 'xpu')", True),
        ("import torch\ntorch.backends.cudnn.benchmark = True", True),
        ("import torch\nfrom torch import nn\ngetattr(torch, 'float8_e4m3fn', None)", False),
    ],
)
def test_a_gpus_module_is_found_however_it_is_named(text: str, is_found: bool) -> None:
    assert names_a_gpus_module(text) is is_found


@pytest.mark.gpu
@NO_CUDA
def test_a_real_card_is_chosen_and_described() -> None:
    device = devices.choose_device(parse_flags([]))
    assert device.type == "cuda" and devices.compute_dtype(device, no_half=False) is torch.float16
    assert devices.describe(device) in devices.list_devices()[0]
    assert "system" in devices.memory_info(device)["cuda"]


@pytest.mark.skipif(not Path("/proc/self/status").exists() or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc")
def test_the_heap_takes_no_more_the_longer_it_is_used() -> None:
    """In a process of its own: blocks of 8 to 24 MB that come and go leave nothing behind."""
    code = (
        "from modules.system.devices import tune_allocator; tune_allocator(); import os, torch;"
        "assert os.environ['THP_MEM_ALLOC_ENABLE'] == '1';"
        "rss = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096; torch.ones(1); before = rss();"
        "held = [[torch.ones(2 + i, 1 << 20), torch.ones(999)] for i in range(5)]; [pair.pop(0) for pair in held];"
        "print(rss() - before)"
    )
    reply = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(reply.stdout) < 8 << 20


def test_garbage_is_collected_though_another_thread_collects() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            begun.set()
            go_on.wait(10)

    gc.disable()  # so that it is the other thread that finds it
    Slow()
    other = threading.Thread(target=gc.collect)
    other.start()
    assert begun.wait(10)
    model = torch.nn.Linear(1, 1)
    model.cycle = model
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is not None, "Python passes over it, and says nothing"
    threading.Timer(0.05, go_on.set).start()
    devices.collect_garbage()
    assert seen() is None
    other.join()
    gc.enable()
