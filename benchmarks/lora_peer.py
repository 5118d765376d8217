"""The peer of `benchmarks.lora`: diffusers with PEFT, on a UNet that diffusers' layerwise casting keeps in fp8.

PEFT is no requirement of ours. Install it alongside, so that nothing else changes, and it is measured in the same run:

    pip install --no-deps --target FOLDER peft==0.21.2
    PYTHONPATH=FOLDER python -m benchmarks.lora
"""

import statistics
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

PREFIX = "lora_unet_"


def is_there() -> bool:
    """Whether PEFT can be imported."""
    return find_spec("peft") is not None


def peft_names(unet: Any, path: Path) -> dict[str, Tensor]:
    """The UNet's part of a kohya file under PEFT's names."""
    paths = {name.replace(".", "_"): name for name, _ in unet.named_modules()}
    tensors = {}
    for key, tensor in load_file(path).items():
        if key.startswith(PREFIX):
            layer, _, end = key.removeprefix(PREFIX).partition(".")
            factor = "lora_B" if end.startswith("lora_up") else "lora_A"
            tensors[f"{paths[layer]}.{factor}.weight"] = tensor
    return tensors


def measure(
    unet: Any,
    lora: Path,
    dtype: torch.dtype,
    step: Callable[[], Any],
    seconds: Callable[[Callable[[], Any]], float],
    pairs: int,
) -> dict[str, float | str]:
    """First use and a step with the LoRA, over a step without; seconds for another weight. `unet` is cast in place.

    PEFT gives its factors the dtype of the layer, which is fp8 here, and then cannot compute with them ("as it comes"
    says so); they are put into the compute dtype by hand, within the time of the first use.
    """
    from diffusers.hooks import apply_layerwise_casting

    apply_layerwise_casting(
        unet, storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype, skip_modules_pattern=("norm",)
    )
    step()
    without = statistics.median(seconds(step) for _ in range(pairs))
    first = seconds(lambda: unet.load_lora_adapter(peft_names(unet, lora), prefix=None, adapter_name="x"))
    as_it_comes = _failure(step)
    first += seconds(lambda: _widen(unet, dtype))
    another = seconds(lambda: unet.set_adapters("x", weights=0.5))
    step()
    with_lora = statistics.median(seconds(step) for _ in range(pairs))
    return {
        "as it comes": as_it_comes or "works",
        "first use / time of a step": first / without,
        "another weight, seconds": another,
        "step with the LoRA / without": with_lora / without,
    }


def _failure(step: Callable[[], Any]) -> str | None:
    try:
        step()
    except (NotImplementedError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return None


def _widen(unet: Any, dtype: torch.dtype) -> None:
    for name, parameter in unet.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype)
