"""`modules.devices`: the device and dtypes that models compute with. PyTorch is imported when one is asked for."""

from __future__ import annotations

import contextlib
from typing import Any

from compat.facades.refusal import lazy
from compat.host import has_host, host_now
from modules.system.devices import autocast as device_autocast
from modules.system.devices import is_available, release_memory


class NansException(Exception):  # noqa: N818 - their name
    """A tensor holds nothing but NaN."""


def model_device() -> Any:
    """The device of the model."""
    import torch

    return host_now().engine.machine.device if has_host() else torch.device("cpu")


def model_dtype() -> Any:
    """The dtype in which the denoiser computes."""
    import torch

    return host_now().engine.machine.dtype if has_host() else torch.float32


def main_cpu() -> Any:
    """The CPU."""
    import torch

    return torch.device("cpu")


def get_optimal_device() -> Any:
    """The device of the model."""
    return model_device()


def get_optimal_device_name() -> str:
    """Its name: "cuda:0", "cpu"."""
    return str(model_device())


def get_cuda_device_string() -> str:
    """Its name, where it is a CUDA device."""
    return str(model_device())


def get_device_for(task: str) -> Any:
    """The device for a part of the program, as --use-cpu says."""
    from modules.system.devices import choose_device

    return choose_device(host_now().flags, task)


def torch_gc() -> None:
    """Give memory that is no longer used back to the system."""
    release_memory(model_device())


def has_mps() -> bool:
    """Whether there is an Apple GPU."""
    return is_available("mps")


def has_xpu() -> bool:
    """Whether there is an Intel GPU."""
    return is_available("xpu")


def autocast(disable: bool = False) -> Any:
    """The context under which models compute in the model's dtype; none on the CPU in 32 bits."""
    import torch

    if disable or model_dtype() == torch.float32:
        return contextlib.nullcontext()
    return device_autocast(model_device(), model_dtype())


def without_autocast(disable: bool = False) -> Any:
    """The context under which nothing is cast."""
    import torch

    device = model_device()
    is_on = torch.is_autocast_enabled(device.type) and not disable
    return device_autocast(device, model_dtype(), enabled=False) if is_on else contextlib.nullcontext()


def randn(seed: int, shape: Any, generator: Any = None) -> Any:
    """Normal noise [shape] of a seed, from the CPU's generator, on the model's device."""
    import torch

    own = torch.Generator("cpu").manual_seed(int(seed))
    return torch.randn(tuple(shape), generator=own).to(model_device())


def randn_local(seed: int, shape: Any) -> Any:
    """Return the same; PyTorch's own generator is left as it is."""
    return randn(seed, shape)


def randn_without_seed(shape: Any, generator: Any = None) -> Any:
    """Normal noise [shape] that follows no seed, on the model's device."""
    import torch

    return torch.randn(tuple(shape), generator=generator).to(model_device())


def manual_cast(target_dtype: Any) -> Any:
    """The program casts by itself; nothing has to be done around a call."""
    return contextlib.nullcontext()


def get_cuda_device_id() -> int:
    """The number of the CUDA device; 0 where there is none."""
    return model_device().index or 0


def cuda_no_autocast(device_id: int | None = None) -> bool:
    """The program decides by itself where it casts."""
    return False


def randn_like(x: Any) -> Any:
    """Normal noise like a tensor."""
    import torch

    return torch.randn_like(x)


def test_for_nans(x: Any, where: str) -> None:
    """Raise `NansException` for a tensor [any] that is all NaN."""
    import torch

    if torch.all(torch.isnan(x)).item():
        raise NansException(f"A tensor with all NaNs was produced in {where}.")


def cond_cast_unet(x: Any) -> Any:
    """The tensor in the denoiser's dtype."""
    return x.to(model_dtype())


def cond_cast_float(x: Any) -> Any:
    """The tensor in 32 bits."""
    return x.float()


def first_time_calculation() -> None:
    """Nothing has to be warmed up."""


def enable_tf32() -> None:
    """The program chooses what its matrix products use."""


_DEVICES = ("device", "device_interrogate", "device_gfpgan", "device_esrgan", "device_codeformer")
_LAZY: dict[str, Any] = {
    **dict.fromkeys(_DEVICES, model_device),
    "cpu": main_cpu,
    "dtype": model_dtype,
    "dtype_unet": model_dtype,
    "dtype_inference": model_dtype,
    "dtype_vae": lambda: host_now().engine.machine.vae_dtype,
    "unet_needs_upcast": lambda: False,
    "fp8": lambda: False,
    "force_fp16": lambda: False,
    "force_model_fp16": lambda: None,
    "nv_rng": lambda: None,
    "patch_module_types": list,
}
__getattr__ = lazy("devices", _LAZY, {})
