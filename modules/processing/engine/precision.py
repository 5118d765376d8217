"""From settings, flags, device and model family to a `PrecisionPlan`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modules.errors import InvalidValueError
from modules.memory.formats.catalog import FORMAT_SPECS, block_formats, formats_that_compute
from modules.models.autoencoders.files import VAE_KEYS, VaeOptions
from modules.models.files.modules_catalogue import MODULE_KEYS
from modules.processing.engine.attention_options import AttentionFlags
from modules.processing.engine.streaming_options import (
    STREAM_KEYS,
    StreamFlags,
    StreamingFlags,
    StreamOptions,
    stream_layout,
)
from modules.settings.sections.optimizations import FP8_CHOICES
from modules.settings.sections.stable_diffusion import Sd3Settings
from modules.settings.values import Settings
from modules.system.devices import (
    DeviceFlags,
    DeviceReading,
    choose_device,
    compute_dtype,
    has_float8,
    has_fp8_matmul,
    is_available,
    needs_manual_casts,
    read_device,
    wide_dtype,
    works,
)
from modules.system.lean_imports import without_garbage_collection

if TYPE_CHECKING:
    import torch

    from modules.memory.cpu_threads import CpuThreads
    from modules.memory.device_probe import Probe
    from modules.memory.int8_support import Int8Support
    from modules.memory.kernels.support import KernelSupport
    from modules.memory.storage import StorageRules
    from modules.models.families.family import ModelFamily
    from modules.models.loading.precision import ComputeMode, PrecisionPlan

OFF, ON_FOR_LARGE, ON = FP8_CHOICES
AUTOMATIC = "Automatic"
FP8_MATMUL = "FP8 matmul"
INT8_MATMUL = "int8 matmul"
INT8_FORMATS = formats_that_compute("int8")
FP8_MATMUL_FORMATS = formats_that_compute("fp8")
BUDGET_FORMAT = block_formats()[-1]
"""What every layer may be stored in where a budget chooses, and the smallest of it."""
SCALED_SKIP = (r"^conv_(in|out)$", r"^time_embedding\.")
"""Of formats with scales: the first and last layer and the time embedding are 0.3 % of a UNet and matter most."""


_ENCODER_SWITCHES = (Sd3Settings.sd3_enable_t5,)
OPTIONAL_ENCODERS = frozenset(switch.key for switch in _ENCODER_SWITCHES)
"""The settings that ask for a text encoder which a family can do without, see `OptionalEncoder`."""
PRECISION_KEYS = frozenset(
    {"fp8_storage", "weights_budget_gb", "fp8_format", "fp8_skip", "fp8_text_encoder", "compute_dtype", "compute_mode"}
    | {"disable_mmap_load_safetensors"}
    | VAE_KEYS
    | MODULE_KEYS
    | STREAM_KEYS
    | OPTIONAL_ENCODERS
)
"""The settings whose change means that the model is read again."""
MEASURED_ON_CPUS = ("threads.json", "int8.json", "attention.json")
"""Files of a cache folder that remember what was measured piece by piece, where it is first needed."""


class PrecisionFlags(DeviceFlags, StreamingFlags, Protocol):
    """The part of the command line that decides on precision (`modules.flags.flags.Flags` fits)."""

    @property
    def no_half(self) -> bool: ...
    @property
    def no_half_vae(self) -> bool: ...
    @property
    def precision(self) -> str: ...
    @property
    def disable_nan_check(self) -> bool: ...
    @property
    def cpu_threads(self) -> int: ...


@dataclass(frozen=True)
class Machine:
    """Device and dtypes by the flags and what the machine can do; found out once."""

    device: torch.device
    dtype: torch.dtype
    vae_dtype: torch.dtype
    precision: str = "autocast"  # the word of --precision
    check_nan: bool = True
    wide_dtype: torch.dtype | None = None  # for families whose activations leave fp16's range; None: `dtype`
    no_autocast: bool = False  # GTX 16xx: autocast gives NaN
    float8: bool = True  # it has 8-bit floats
    fp8_matmul: bool = False  # it multiplies e4m3 matrices in its own units
    int8: Callable[[torch.dtype], Int8Support] | None = None  # how it multiplies int8 ones, beside this dtype
    int8_attention: Callable[[], KernelSupport] | None = (
        None  # whether attention in int8 pays; None: not on this device
    )
    attention: AttentionFlags = field(default_factory=AttentionFlags)
    streaming: StreamFlags = field(default_factory=StreamFlags)
    read_memory: Callable[[torch.device], DeviceReading | None] = read_device
    threads: CpuThreads | None = None  # of a device that is the CPU
    measured: Probe | None = None  # what it computes fast, where that was measured
    again: Callable[[], Machine] | None = None  # finds it out again; None: there is nowhere to remember it


@dataclass(frozen=True)
class PrecisionOptions:
    """The settings that decide how a model is loaded: its precision, whose VAE it gets, and which encoders
    that it can do without (`optional`: keys of their settings). `modules`: names of files with parts of the model."""

    fp8_storage: str = OFF
    fp8_format: str = "fp8_e4m3fn_row"
    fp8_skip: tuple[str, ...] = ()
    fp8_text_encoder: bool = True
    cache_fp16_weight: bool = False
    compute_dtype: str = AUTOMATIC
    compute_mode: str = AUTOMATIC
    lora_mode: str = AUTOMATIC
    vae: VaeOptions = field(default_factory=VaeOptions)
    streaming: StreamOptions = field(default_factory=StreamOptions)
    optional: frozenset[str] = frozenset()
    map_files: bool = True
    modules: tuple[str, ...] = ()
    budget_bytes: int = 0  # of all weights; 0: one format for all

    @classmethod
    def of(cls, settings: Settings) -> PrecisionOptions:
        """Read from the settings of a job."""
        return cls(
            fp8_storage=settings.optimizations.fp8_storage,
            fp8_format=settings.optimizations.fp8_format,
            fp8_skip=split_patterns(settings.optimizations.fp8_skip),
            fp8_text_encoder=settings.optimizations.fp8_text_encoder,
            cache_fp16_weight=settings.optimizations.cache_fp16_weight,
            compute_dtype=settings.optimizations.compute_dtype,
            compute_mode=settings.optimizations.compute_mode,
            lora_mode=settings.optimizations.lora_mode,
            vae=VaeOptions.of(settings),
            streaming=StreamOptions.of(settings),
            optional=optional_encoders(settings),
            map_files=not settings.system.disable_mmap_load_safetensors,
            modules=settings.vae.forge_additional_modules,
            budget_bytes=round(settings.optimizations.weights_budget_gb * 1e9),
        )


def optional_encoders(settings: Settings) -> frozenset[str]:
    """Return those of `OPTIONAL_ENCODERS` that are on."""
    return frozenset(switch.key for switch in _ENCODER_SWITCHES if switch.of(settings))


def machine_of(
    flags: PrecisionFlags, offload_dir: Path | None = None, cache_dir: Path | None = None, measure: bool = False
) -> Machine:
    """Return what the flags and this machine allow. Imports torch, and chooses how many threads compute on a CPU.

    `offload_dir`: where weights that are streamed from disk may be written, if no flag names a place. `cache_dir`:
    where it is remembered what was measured; `measure`: the device is measured also where it was.
    """

    with without_garbage_collection():
        from modules.memory.compiling import keep_compiled_in
        from modules.memory.cpu_threads import CpuThreads, use_threads
        from modules.memory.int8_support import int8_support
        from modules.memory.kernels.support import attention_support, keep_kernels_in

    device = choose_device(flags)
    if measure and cache_dir is not None:
        for name in MEASURED_ON_CPUS:
            (cache_dir / name).unlink(missing_ok=True)
    threads = None
    if device.type == "cpu":
        remembered = cache_dir / "threads.json" if cache_dir is not None else None
        threads = CpuThreads(partial(use_threads, flags.cpu_threads, remembered))
    if cache_dir is not None:
        keep_compiled_in(cache_dir / "compiled")
        keep_kernels_in(cache_dir / "kernels")
    probe = None
    if cache_dir is not None and device.type != "cpu":
        from modules.memory.device_probe import probe_of

        probe = probe_of(device, cache_dir / "device.json", measure)
    measured = cache_dir / "int8.json" if cache_dir is not None else None
    attention = cache_dir / "attention.json" if cache_dir is not None else None
    own = AttentionFlags.of(flags)
    return Machine(
        device=device,
        dtype=compute_dtype(device, flags.no_half, flags.precision),
        vae_dtype=compute_dtype(device, flags.no_half or flags.no_half_vae, flags.precision),
        wide_dtype=wide_dtype(device),
        precision=flags.precision,
        check_nan=not flags.disable_nan_check,
        no_autocast=needs_manual_casts(device),
        float8=has_float8(device),
        fp8_matmul=has_fp8_matmul(device),
        int8=probe.int8 if probe is not None else cache(lambda dtype: int8_support(device, dtype, measured)),
        int8_attention=cache(lambda: attention_support(attention)) if device.type == "cpu" else None,
        attention=own if own.chosen or probe is None else replace(own, chosen=probe.attention()),
        streaming=StreamFlags.of(flags, offload_dir),
        threads=threads,
        measured=probe,
        again=None if cache_dir is None else partial(machine_of, flags, offload_dir, cache_dir, measure=True),
    )


def with_gpu(machine: Machine) -> Machine:
    """Return what to plan for as if there were a GPU: the machine's own, or NVIDIA's from the RTX 30 on, which computes
    in fp16 and bf16."""
    import torch

    if machine.device.type != "cpu":
        return machine
    gpu, half, wide = torch.device("cuda"), torch.float16, torch.bfloat16
    return Machine(gpu, half, half, wide_dtype=wide, attention=machine.attention, streaming=machine.streaming)


def resolve(options: PrecisionOptions, machine: Machine, family: ModelFamily | None) -> PrecisionPlan:
    """The plan for a model of `family` (None: not known yet, taken for a small one).

    Raises `InvalidValueError` for a skip pattern that is no regular expression, and for a compute dtype that the
    device does not have.
    """
    from modules.models.loading.precision import PrecisionPlan

    notes: list[str] = []
    leaves_fp16 = family is not None and family.leaves_fp16
    machine = measured_choices(options, machine, leaves_fp16, notes)
    is_measured = bool(notes)
    optional = family.texts.optional if family is not None else None
    is_large = family is not None and family.is_large
    wanted = options.fp8_storage == ON or (options.fp8_storage == ON_FOR_LARGE and is_large)
    if options.compute_mode == FP8_MATMUL:
        notes += _notes_on_fp8_matmul(options, machine, wanted)
    dtype = _dtype(options, machine, leaves_fp16)
    has_budget = options.budget_bytes > 0
    wanted = wanted or has_budget
    if options.compute_mode == INT8_MATMUL:
        notes += _notes_on_int8_matmul(options, machine, wanted, dtype)
    rules = storage_rules(
        BUDGET_FORMAT if has_budget else options.fp8_format, options.fp8_skip
    )  # also where it is off: a bad pattern is an error at once
    storage = rules.storage if wanted else None
    return PrecisionPlan(
        device=machine.device,
        compute_dtype=dtype,
        vae_dtype=machine.vae_dtype,
        mode=_mode(options, machine, storage, dtype),
        unet_storage=storage,
        text_storage=storage if options.fp8_text_encoder else None,
        skip=rules.skip.texts if wanted else (),
        extra_skip=options.fp8_skip if wanted else (),
        lora_mode=options.lora_mode,
        fp8_options=options.fp8_storage if wanted else OFF,
        budget_bytes=options.budget_bytes if has_budget else None,
        cache_fp16_weight=options.cache_fp16_weight and wanted,
        dtype_is_chosen=options.compute_dtype != AUTOMATIC or is_measured,
        check_nan=machine.check_nan,
        streaming=stream_layout(options.streaming, machine.streaming, machine.device, is_large),
        with_optional=optional is not None and optional.setting in options.optional,
        float8=machine.float8,
        map_files=options.map_files,
        channels_last=machine.device.type == "cuda"
        and machine.measured is not None
        and machine.measured.channels_last(dtype),
        notes=tuple(notes),
    )


def measured_choices(options: PrecisionOptions, machine: Machine, leaves_fp16: bool, notes: list[str]) -> Machine:
    """Return the machine with the dtypes that were measured to be right and clearly faster than those of the rules, and
    say in `notes` where the denoiser's is another one. A flag for 32 bits, and a setting, stand."""
    import torch

    probe = machine.measured
    if probe is None or machine.dtype == torch.float32:
        return machine
    found = replace(machine, vae_dtype=probe.dtype(machine.vae_dtype, torch.float32, ("convolution",)))
    if leaves_fp16:
        wide = machine.wide_dtype or machine.dtype
        other = torch.bfloat16 if wide == torch.float32 else torch.float32
        found = replace(found, wide_dtype=probe.dtype(wide, other, ("product",)))
    else:
        found = replace(found, dtype=probe.dtype(machine.dtype, torch.float32, ("product", "convolution")))
    before, after = (str(_dtype(options, each, leaves_fp16)).removeprefix("torch.") for each in (machine, found))
    if before != after:
        notes.append(
            f"Computing in {after}, which this GPU was measured to do right and faster than {before} (launch.py doctor "
            "shows it; Compute dtype in Settings > Optimizations overrules it)."
        )
    return found


def storage_rules(storage: str, skip: tuple[str, ...] = ()) -> StorageRules:
    """Return what a storage format takes of a model: all it can, except what `skip` and, for formats with scales, our
    own defaults leave alone. Raises `UnknownNameError` and, for a pattern that is none, `InvalidValueError`."""
    from modules.memory.skip import SkipRules
    from modules.memory.storage import StorageRules

    spec = FORMAT_SPECS.get(storage)
    return StorageRules(spec.name, SkipRules((*(SCALED_SKIP if spec.scaled else ()), *skip)))


def split_patterns(text: str) -> tuple[str, ...]:
    """Patterns from a text with one on each line, or separated by semicolons; blanks around them do not count."""
    return tuple(pattern for pattern in re.split(r"\s*[\n;]\s*", text.strip()) if pattern)


def check_patterns(patterns: tuple[str, ...]) -> None:
    """Raises `InvalidValueError` for a pattern that is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidValueError(
                f"The skip pattern {pattern!r} is no regular expression: {error}. Example: ^conv_(in|out)$"
            ) from error


def _dtype(options: PrecisionOptions, machine: Machine, leaves_fp16: bool) -> torch.dtype:
    import torch

    names: dict[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    if options.compute_dtype == AUTOMATIC:
        is_too_narrow = leaves_fp16 and machine.dtype == torch.float16
        return machine.wide_dtype or machine.dtype if is_too_narrow else machine.dtype
    dtype = names[options.compute_dtype]
    is_here = machine.device.type == "cpu" or is_available(machine.device.type)  # else it is only planned for
    if is_here and not works(machine.device, dtype):
        raise InvalidValueError(
            f"Compute dtype {options.compute_dtype}: this device ({machine.device.type}) cannot compute in it. "
            "Choose Automatic in Settings > Optimizations."
        )
    return dtype


def _notes_on_fp8_matmul(options: PrecisionOptions, machine: Machine, fp8_is_on: bool) -> list[str]:
    """Why the compute mode FP8 matmul has no effect, if it has none."""
    if not machine.fp8_matmul:
        return [
            "Compute mode FP8 matmul has no effect here: it needs an NVIDIA card of compute capability 8.9 or newer. "
            "Weights are decoded in each layer."
        ]
    if fp8_is_on and options.fp8_format not in FP8_MATMUL_FORMATS:
        return [f"Compute mode FP8 matmul has no effect with {options.fp8_format}: it takes e4m3 weights."]
    return []


def _notes_on_int8_matmul(options: PrecisionOptions, machine: Machine, is_on: bool, dtype: torch.dtype) -> list[str]:
    """Why the compute mode int8 matmul has no effect, if it has none."""
    if not is_on or options.fp8_format not in INT8_FORMATS:
        stored = options.fp8_format if is_on else "weights that are not stored in 8 bits"
        return [f"Compute mode int8 matmul has no effect with {stored}: it takes {' and '.join(INT8_FORMATS)}."]
    support = None if machine.int8 is None else machine.int8(dtype)
    if support is not None and support.works:
        return []
    reason = support.reason if support is not None else f"PyTorch has no int8 product on {machine.device.type}"
    return [f"Compute mode int8 matmul has no effect here: {reason}. Weights are decoded in each layer."]


def _multiplies_int8(options: PrecisionOptions, machine: Machine, storage: str | None, dtype: torch.dtype) -> bool:
    """Whether layers multiply in int8: where that was asked for and works, and where it is faster, on CPUs and, as
    measured, on GPUs without units for 8-bit floats."""
    if storage not in INT8_FORMATS or machine.int8 is None:
        return False
    if options.compute_mode == INT8_MATMUL:
        return machine.int8(dtype).works
    is_known = machine.device.type == "cpu" or (machine.measured is not None and not machine.fp8_matmul)
    return options.compute_mode == AUTOMATIC and is_known and machine.int8(dtype).pays


def _mode(options: PrecisionOptions, machine: Machine, storage: str | None, dtype: torch.dtype) -> ComputeMode:
    """Products in int8 where they pay, autocast for plain formats where the device has it, else casts in each layer."""
    import torch

    from modules.models.loading.precision import ComputeMode

    if storage is None and options.compute_mode == AUTOMATIC:
        return ComputeMode.PLAIN
    if _multiplies_int8(options, machine, storage, dtype):
        return ComputeMode.INT8_MATMUL
    if options.compute_mode == INT8_MATMUL:
        return ComputeMode.PLAIN if storage is None else ComputeMode.MANUAL
    if options.compute_mode == FP8_MATMUL and not (machine.fp8_matmul and storage in FP8_MATMUL_FORMATS):
        return ComputeMode.PLAIN if storage is None else ComputeMode.MANUAL
    if options.compute_mode != AUTOMATIC:
        return ComputeMode(options.compute_mode.lower())
    assert storage is not None
    can_autocast = machine.device.type == "cuda" and not machine.no_autocast and machine.precision == "autocast"
    if can_autocast and dtype != torch.float32 and not FORMAT_SPECS.get(storage).scaled:
        return ComputeMode.AUTOCAST
    return ComputeMode.MANUAL
