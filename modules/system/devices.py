"""Which device computes, in which dtype, how much memory it has, and all else that is asked of a GPU: `GPUS` is the one
place that names PyTorch's modules for them. PyTorch is imported by the functions only, so that the page can start
before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modules.errors import InvalidValueError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FP8_MATMUL_CAPABILITY = (8, 9)
BF16_CAPABILITY = (8, 0)
GPU_TYPES = ("cuda", "mps", "xpu")  # in the order in which they are preferred; ROCm GPUs are "cuda" to PyTorch
Counters = dict[str, int]
Memory = dict[str, int | str | Counters]


class DeviceFlags(Protocol):
    """The part of the command line that decides the device (`modules.flags.flags.Flags` fits)."""

    @property
    def use_cpu(self) -> tuple[str, ...]: ...
    @property
    def use_ipex(self) -> bool: ...
    @property
    def device_id(self) -> int | None: ...


def choose_device(flags: DeviceFlags, part: str = "sd") -> torch.device:
    """The device for a part of the program ("sd", "esrgan", ...; the words of --use-cpu).

    --use-cpu wins, then the first of CUDA, MPS, XPU that works, then the CPU. Raises `InvalidValueError` that
    lists the devices if --device-id or --use-ipex ask for one that is not there.
    """
    import torch

    if "all" in flags.use_cpu or part in flags.use_cpu:
        return torch.device("cpu")
    device_type = (
        "xpu" if flags.use_ipex else next((device_type for device_type in GPU_TYPES if _count(device_type)), "cpu")
    )
    count = _count(device_type)
    if flags.use_ipex and not count:
        raise InvalidValueError(
            f"--use-ipex: PyTorch {torch.__version__} sees no Intel GPU. Available: {_listed()}. "
            "Its build for Intel is installed by: python launch.py --torch xpu --reinstall-torch"
        )
    if flags.device_id is None:
        return torch.device(device_type)
    if flags.device_id >= count:
        raise InvalidValueError(
            f"--device-id {flags.device_id}: there is no such device. Available: {_listed()}. "
            "Leave the flag out to let the program choose."
        )
    return torch.device(device_type, flags.device_id)


def list_devices() -> list[str]:
    """Every GPU PyTorch sees, with the number that --device-id takes: "0: NVIDIA ... (cuda)"."""
    return [
        f"{index}: {_name(device_type, index)} ({device_type})"
        for device_type in GPU_TYPES
        for index in range(_count(device_type))
    ]


def gpu_count(flags: DeviceFlags) -> int:
    """How many CUDA GPUs images may be made on; 0 where the command line names one, or none is used."""
    if {"all", "sd"} & set(flags.use_cpu) or flags.device_id is not None or flags.use_ipex:
        return 0
    return _count("cuda")


def describe(device: torch.device) -> str:
    """A name for people; of a GPU that is not here, its type."""
    if device.type not in GPU_TYPES:
        return "CPU"
    return _name(device.type, device.index or 0) if is_available(device.type) else device.type


def driver_of(device: torch.device) -> str:
    """The version of what stands between PyTorch and a device; empty for the CPU."""
    gpu = gpu_of(device)
    return "" if gpu is None else gpu.driver(device)


def is_available(device_type: str) -> bool:
    """Whether PyTorch can use a GPU of this type ("cuda", "mps", "xpu"); False for other words."""
    return _count(device_type) > 0


def best_device() -> torch.device:
    """The first GPU in the order of `GPU_TYPES`, else the CPU; no flag is asked."""
    import torch

    return torch.device(next((device_type for device_type in GPU_TYPES if _count(device_type)), "cpu"))


def _count(device_type: str) -> int:
    return GPUS[device_type].count() if device_type in GPUS else 0


def _name(device_type: str, index: int) -> str:
    return GPUS[device_type].name(index)


def _listed() -> str:
    return "; ".join(list_devices()) or "no GPU, only the CPU"


def native_bf16_cpu() -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512-BF16, AMX-BF16, Arm BF16), as cpuinfo finds it.

    Elsewhere PyTorch emulates bf16, which is slower than fp32. Not a timing: the dtype, and with it the image, must
    not depend on how busy the machine is at start. oneDNN must be there to use the instructions.
    """
    import torch

    capabilities = torch.cpu.get_capabilities()
    has_instructions = any(bool(present) for name, present in capabilities.items() if "bf16" in name)
    return has_instructions and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `device` multiplies and convolves in `dtype` with a finite result; found out by doing it."""
    import torch

    try:
        image = torch.full((1, 4, 8, 8), 0.5, device=device, dtype=dtype)
        kernel = torch.full((4, 4, 3, 3), 0.1, device=device, dtype=dtype)
        rows = torch.nn.functional.conv2d(image, kernel).flatten(1)
        return bool(torch.isfinite(rows @ rows.T).all().item())
    except (RuntimeError, TypeError):  # how backends say "not implemented for this dtype"
        return False


def has_float8(device: torch.device) -> bool:
    """Whether `device` keeps and casts 8-bit floats; found out by doing it. Apple's GPUs do not, nor do old builds for
    AMD's; there their codes are kept, see `modules.memory.formats.codes`."""
    import torch

    try:
        narrow = [torch.ones(1, device=device).to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)]
        return all(float(one.to(torch.float16)) == 1 for one in narrow)
    except (RuntimeError, TypeError):  # how backends say that they have no such dtype, or no cast
        return False


def has_fp8_matmul(device: torch.device) -> bool:
    """Whether `device` multiplies e4m3 matrices in its own units: NVIDIA from compute capability 8.9 on, and then found
    out by doing it. The CPU only emulates that, slower than it decodes."""
    import torch

    if (capability_of(device) or (0, 0)) < FP8_MATMUL_CAPABILITY:
        return False
    try:
        one = torch.ones((), device=device)
        square = torch.ones(16, 16, device=device).to(torch.float8_e4m3fn)
        product = torch._scaled_mm(square, square.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return bool((product == 16).all().item())
    except (RuntimeError, TypeError, ValueError):  # how builds without the kernel say so
        return False


def compute_dtype(device: torch.device, no_half: bool, precision: str = "autocast") -> torch.dtype:
    """The dtype that layers compute in. `precision` is the word of --precision (full, half, autocast).

    fp32 with --no-half or full; fp16 on GPUs that can; on the CPU bf16 where it is native or `half`
    is asked for (fp16 has no fast kernels there), else fp32.
    """
    import torch

    if no_half or precision == "full":
        return torch.float32
    if device.type == "cpu":
        return torch.bfloat16 if precision == "half" or native_bf16_cpu() else torch.float32
    return torch.float16 if works(device, torch.float16) else torch.float32


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return what models compute in whose activations leave fp16's range: bf16 where the device multiplies it itself,
    which NVIDIA's do from compute capability 8.0 on (older ones only emulate it), else fp32."""
    import torch

    capability = capability_of(device)
    is_native = native_bf16_cpu() if device.type == "cpu" else capability is None or capability >= BF16_CAPABILITY
    return torch.bfloat16 if is_native and works(device, torch.bfloat16) else torch.float32


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU (for AMD's, ROCm's version of its architecture); None elsewhere."""
    gpu = gpu_of(device)
    return None if gpu is None else gpu.capability(device)


def needs_manual_casts(device: torch.device) -> bool:
    """Whether plain autocast gives NaN on it, see `is_gtx_16xx`."""
    capability = capability_of(device)
    return capability is not None and is_gtx_16xx(describe(device), capability)


def is_gtx_16xx(name: str, capability: tuple[int, int]) -> bool:
    """Whether a CUDA GPU is a GTX 1630 to 1660: Turing without tensor cores.

    Plain autocast to fp16 gives NaN on these with some cuDNN algorithms, so they get manual casts and cuDNN's search.
    """
    return capability == (7, 5) and "GTX 16" in name


def memory_info(device: torch.device) -> dict[str, Memory]:
    """Bytes of main memory ("ram") and of the device ("cuda", whatever its type), as `/sdapi/v1/memory` shows them.

    What cannot be found out is `{"error": why}`. In "ram", `used` is this process alone and `free` what the system
    still gives without swapping.
    """
    return {"ram": _ram(), "cuda": _device_memory(device)}


def main_memory_info() -> dict[str, Memory]:
    """Read the same where no device computes in this process. Imports no PyTorch."""
    return {"ram": _ram(), "cuda": {"error": "unavailable"}}


def _ram(proc: Path = Path("/proc")) -> Memory:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        used = page * int((proc / "self/statm").read_text(encoding="ascii").split()[1])
        lines = (line.split() for line in (proc / "meminfo").read_text(encoding="ascii").splitlines())
        free = next((1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:"), total - used)
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf, macOS no /proc
        return _ram_elsewhere()
    return {"free": free, "used": used, "total": total}


def _ram_elsewhere() -> Memory:
    try:
        import psutil  # type: ignore[import-untyped]  # comes with accelerate

        memory = psutil.virtual_memory()
        return {"free": memory.available, "used": psutil.Process().memory_info().rss, "total": memory.total}
    except (ImportError, OSError, RuntimeError):
        return {"error": "this system does not tell"}


def _device_memory(device: torch.device) -> Memory:
    reading = read_device(device)
    if reading is None:
        return {"error": "unavailable"}
    statistics = GPUS[device.type].statistics(device)
    memory: Memory = {
        "system": {"free": reading.free, "used": reading.total - reading.free, "total": reading.total},
    }
    for shown, counter in _COUNTERS.items():
        memory[shown] = {when: int(statistics.get(f"{counter}.all.{when}", 0)) for when in ("current", "peak")}
    memory["events"] = {"retries": statistics.get("num_alloc_retries", 0), "oom": statistics.get("num_ooms", 0)}
    return memory


@dataclass(frozen=True)
class DeviceReading:
    """Memory of a GPU at one moment, in bytes: `free` and `total` of the whole device, whoever uses it; what PyTorch's
    allocator has `reserved` of it, what tensors take of that (`allocated`), and the most they took (`peak`)."""

    free: int
    total: int
    reserved: int
    allocated: int
    peak: int
    peak_reserved: int = 0


def read_device(device: torch.device) -> DeviceReading | None:
    """Read what a GPU's memory is used for; None for devices that do not say (the CPU, Apple GPUs)."""
    gpu = gpu_of(device)
    return None if gpu is None else gpu.read(device)


def begin_peak(device: torch.device) -> None:
    """Have a GPU's allocator count its peak from here; nothing where there is none that counts."""
    gpu = gpu_of(device)
    if gpu is not None:
        gpu.begin_peak(device)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that was asked of it; the CPU has always."""
    gpu = gpu_of(device)
    if gpu is not None:
        gpu.synchronize(device)


def shares_main_memory(device: torch.device) -> bool:
    """Whether main memory is the device's memory: of the CPU, of Apple's GPUs, and of GPUs that are part of a CPU."""
    return device.type == "cpu" or held_of_main_memory(device) is not None


def held_of_main_memory(device: torch.device) -> int | None:
    """Return how much of main memory this process has through a GPU whose memory that is; None where it has its own,
    and for the CPU."""
    gpu = gpu_of(device)
    return None if gpu is None else gpu.held_of_main_memory(device)


def has_streams(device: torch.device) -> bool:
    """Whether it copies while it computes, in streams of their own."""
    gpu = gpu_of(device)
    return gpu is not None and gpu.has_streams


def pinned_memory(device: torch.device, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Main memory [shape], uninitialised, from which `device` copies by itself: page-locked for GPUs with streams, else
    usual memory. Raises RuntimeError where the system gives no more of it."""
    import torch

    gpu = gpu_of(device)
    if gpu is None or not gpu.has_streams:
        return torch.empty(tuple(shape), dtype=dtype)
    return gpu.pinned(tuple(shape), dtype)


def autocast(device: torch.device, dtype: torch.dtype, enabled: bool = True) -> AbstractContextManager[Any]:
    """PyTorch's autocast to `dtype` on `device`, or, with `enabled` off, its absence."""
    import torch

    gpu = gpu_of(device)
    return torch.autocast(device.type, dtype, enabled) if gpu is None else gpu.autocast(dtype, enabled)


def generator(device: torch.device) -> torch.Generator:
    """A generator of random numbers of a device's own."""
    import torch

    gpu = gpu_of(device)
    return torch.Generator(device) if gpu is None else gpu.generator(device)


# Names in the reply -> names in PyTorch's allocator statistics.
_COUNTERS = {
    "active": "active_bytes",
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "inactive": "inactive_split_bytes",
}


LARGE_BLOCK_BYTES = 4 << 20
KEPT_BYTES = 4 * LARGE_BLOCK_BYTES
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # of glibc's mallopt


def tune_allocator() -> None:
    """Have the heap give every block of 4 MB and more back as soon as it is free (Linux with glibc; else nothing). To
    be called before PyTorch is used.

    Left alone, glibc raises the size from which it does so with the blocks that are freed, and keeps what is smaller:
    the same image takes more memory the longer the program runs, and no plan can know how much. Blocks that come
    fresh from the system cost time; huge pages, which PyTorch asks for where it is asked to, win that back. Of smaller
    blocks up to 16 MB stay at the end of the heap: as soon as one of the two numbers is set, glibc's own for what stays
    is 128 KB, and every buffer of some megabytes that comes and goes would come fresh from the system.
    """
    import ctypes
    import sys

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


COLLECTING_S = 10.0
"""As long is waited for another thread that collects garbage."""


def collect_garbage() -> None:
    """Collect all garbage, and return when that is done. `gc.collect()` does nothing, and says nothing, where another
    thread collects just then: models are full of cycles, and one that was let go would stay. Waits for that thread,
    10 s at most."""
    import gc
    import threading
    import time

    own, end, is_done = threading.get_ident(), time.monotonic() + COLLECTING_S, False

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal is_done
        is_done |= phase == "start" and info["generation"] == 2 and threading.get_ident() == own

    gc.callbacks.append(note)
    try:
        gc.collect()
        while not is_done and time.monotonic() < end:
            time.sleep(0.001)
            gc.collect()
    finally:
        gc.callbacks.remove(note)


def freeze_gc() -> None:
    """Have the garbage collector no longer look through what stands now: what was imported, and what a server is made
    of. There is a look at each change of model, and it would take as long as there is much of that."""
    import gc

    collect_garbage()
    gc.freeze()


def release_memory(device: torch.device) -> None:
    """Give freed memory back: a GPU's cached blocks to the driver, and on Linux the heap's to the system."""
    import ctypes
    import sys

    gpu = gpu_of(device)
    if gpu is not None:
        gpu.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class Moment(Protocol):
    """A place in the queue of a GPU's work."""

    def seconds_since(self, earlier: Any) -> float | None:
        """Return what the GPU took from an earlier moment to this one; None: it has not come to it yet."""


class Recorder(Protocol):
    """Records work of a GPU to be done again, in one."""

    def record(self, call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Return what does the work of `call` again, on the same memory, and the output of `call`, which that writes.
        It has not been written yet. The libraries that `call` uses must have been used before. Raises RuntimeError
        where something cannot be recorded, or memory runs out."""

    def moment(self) -> Moment:
        """After all that was sent until now."""


def recorder_of(device: torch.device) -> Recorder | None:
    """Return what records the work of a GPU; None where it has no such thing."""
    gpu = gpu_of(device)
    return None if gpu is None else gpu.recorder(device)


# -- what is asked of one type of GPU ---------------------------------------------------------------------------------


class Gpu(Protocol):
    """All that the program asks of one type of GPU. Tests put others into `GPUS`."""

    @property
    def has_streams(self) -> bool: ...
    def count(self) -> int: ...
    def name(self, index: int) -> str: ...
    def driver(self, device: torch.device) -> str: ...
    def capability(self, device: torch.device) -> tuple[int, int] | None: ...
    def read(self, device: torch.device) -> DeviceReading | None: ...
    def held_of_main_memory(self, device: torch.device) -> int | None: ...
    def statistics(self, device: torch.device) -> Mapping[str, int]: ...
    def begin_peak(self, device: torch.device) -> None: ...
    def empty_cache(self) -> None: ...
    def synchronize(self, device: torch.device) -> None: ...
    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...
    def autocast(self, dtype: torch.dtype, enabled: bool) -> AbstractContextManager[Any]: ...
    def generator(self, device: torch.device) -> torch.Generator: ...
    def new_stream(self, device: torch.device) -> Any: ...
    def current_stream(self, device: torch.device) -> Any: ...
    def in_stream(self, stream: Any) -> AbstractContextManager[Any]: ...
    def recorder(self, device: torch.device) -> Recorder | None: ...


class TorchGpu:
    """GPUs of PyTorch's that count their memory and have streams: CUDA (ROCm among it) and Intel's XPU."""

    has_streams = True

    def __init__(self, device_type: str) -> None:
        self._type = device_type

    def count(self) -> int:
        """How many PyTorch sees."""
        return int(self._module.device_count()) if self._module.is_available() else 0

    def name(self, index: int) -> str:
        """Name, as the driver calls it."""
        return str(self._module.get_device_name(index))

    def driver(self, device: torch.device) -> str:
        """CUDA's number for what the driver can do, ROCm's, or the driver's own; empty where it does not say."""
        import ctypes
        import sys

        import torch

        if self._type != "cuda":
            return str(getattr(self._module.get_device_properties(device), "driver_version", ""))
        if torch.version.hip is not None:
            return torch.version.hip
        number = ctypes.c_int()
        try:
            ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuDriverGetVersion(
                ctypes.byref(number)
            )
        except (OSError, AttributeError):  # a driver without the library, or the function
            return ""
        return str(number.value)

    def capability(self, device: torch.device) -> tuple[int, int] | None:
        """Major and minor number; None where the maker has no such numbers."""
        return self._module.get_device_capability(device) if self._type == "cuda" else None

    def read(self, device: torch.device) -> DeviceReading | None:
        """See `read_device`."""
        module = self._module
        free, total = module.mem_get_info(device)
        # Read before every step: to ask for each number alone would have PyTorch make a dictionary of all each time.
        numbers = module.memory.memory_stats_as_nested_dict(device)
        reserved, allocated = (numbers.get(f"{name}_bytes", {}).get("all", {}) for name in ("reserved", "allocated"))
        return DeviceReading(
            int(free),
            int(total),
            int(reserved.get("current", 0)),
            int(allocated.get("current", 0)),
            int(allocated.get("peak", 0)),
            int(reserved.get("peak", 0)),
        )

    def held_of_main_memory(self, device: torch.device) -> int | None:
        """See `held_of_main_memory`."""
        if not self.count():
            return None
        properties = self._module.get_device_properties(device)
        is_shared = getattr(properties, "is_integrated", False) or getattr(properties, "is_integrated_gpu", False)
        return int(self._module.memory_reserved(device)) if is_shared else None

    def statistics(self, device: torch.device) -> Mapping[str, int]:
        """Counters of the allocator, by PyTorch's names."""
        counters: Mapping[str, int] = self._module.memory_stats(device)
        return counters

    def begin_peak(self, device: torch.device) -> None:
        """See `begin_peak`."""
        self._module.reset_peak_memory_stats(device)

    def empty_cache(self) -> None:
        """Give blocks that nothing uses to the driver."""
        self._module.empty_cache()

    def synchronize(self, device: torch.device) -> None:
        """See `synchronize`."""
        self._module.synchronize(device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `pinned_memory`."""
        import torch

        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def autocast(self, dtype: torch.dtype, enabled: bool) -> AbstractContextManager[Any]:
        """See `autocast`."""
        import torch

        return torch.autocast(self._type, dtype, enabled)

    def generator(self, device: torch.device) -> torch.Generator:
        """See `generator`."""
        import torch

        return torch.Generator(device)

    def new_stream(self, device: torch.device) -> Any:
        """A queue of work next to the present one."""
        return self._module.Stream(device=device)

    def current_stream(self, device: torch.device) -> Any:
        """The queue into which this thread's work goes."""
        return self._module.current_stream(device)

    def in_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """While open, this thread's work goes into `stream`."""
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def recorder(self, device: torch.device) -> Recorder | None:
        """See `recorder_of`. AMD's builds were not tried."""
        import torch

        return CudaRecorder(device) if self._type == "cuda" and torch.version.hip is None else None

    @property
    def _module(self) -> Any:
        import torch

        return {"cuda": torch.cuda, "xpu": torch.xpu}[self._type]


class CudaRecorder:
    """CUDA graphs, see `Recorder`. Other threads may use the GPU meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None

    def record(self, call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `Recorder`. The work is done once before it is recorded: libraries take memory for each queue."""
        import torch

        with torch.cuda.device(self._device):
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            present = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(present)
            with torch.cuda.stream(self._stream):
                call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                output = call()
            present.wait_stream(self._stream)
        return graph.replay, output

    def moment(self) -> Moment:
        """See `Recorder`."""
        import torch

        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return _CudaMoment(event)


@dataclass(frozen=True)
class _CudaMoment:
    event: Any

    def seconds_since(self, earlier: _CudaMoment) -> float | None:
        """See `Moment`."""
        return earlier.event.elapsed_time(self.event) / 1000 if self.event.query() else None


class AppleGpu(TorchGpu):
    """Apple's: one, with the CPU's memory, which says too little of what it uses to be planned with."""

    has_streams = False

    def count(self) -> int:
        """One or none."""
        import torch

        return int(torch.backends.mps.is_available())

    def name(self, index: int) -> str:
        """Not told."""
        return "Apple GPU"

    def driver(self, device: torch.device) -> str:
        """Version of macOS, which brings it, and of the chip."""
        import platform

        return f"{platform.machine()} macOS {platform.mac_ver()[0]}"

    def read(self, device: torch.device) -> DeviceReading | None:
        """Not told."""
        return None

    def held_of_main_memory(self, device: torch.device) -> int:
        """See `held_of_main_memory`."""
        return int(self._module.driver_allocated_memory()) if self.count() else 0

    def begin_peak(self, device: torch.device) -> None:
        """Not counted."""

    def synchronize(self, device: torch.device) -> None:
        """See `synchronize`."""
        self._module.synchronize()

    @property
    def _module(self) -> Any:
        import torch

        return torch.mps


GPUS: MutableMapping[str, Gpu] = {"cuda": TorchGpu("cuda"), "mps": AppleGpu("mps"), "xpu": TorchGpu("xpu")}


def gpu_of(device: torch.device) -> Gpu | None:
    """Return what is asked of the type of this device; None for the CPU and for devices without computation."""
    return GPUS.get(device.type)
