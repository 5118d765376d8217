"""GGUF files for tests, written by the `gguf` package."""

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy
import torch
from torch import Tensor

DENOISER = "model.diffusion_model."


def quantization(name: str, tensor: Tensor) -> bool:
    """What converters quantize: matrices with rows of whole blocks of 32."""
    return tensor.ndim == 2 and tensor.shape[1] % 32 == 0 and name.endswith(".weight")


def write_gguf(
    path: Path,
    tensors: Mapping[str, Tensor],
    kind: str,
    architecture: str,
    is_quantized: Callable[[str, Tensor], bool] = quantization,
) -> Path:
    """A file whose quantized tensors are of `kind` ("Q8_0"), the others fp16, or fp32 with one dimension."""
    writer = gguf.GGUFWriter(path, architecture)
    chosen = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if tensor.numel() == 0 or not tensor.is_floating_point():
            continue
        is_plain = not is_quantized(name, tensor) or kind in ("F16", "F32")
        dtype = gguf.GGMLQuantizationType.F32 if tensor.ndim < 2 else gguf.GGMLQuantizationType.F16
        dtype = dtype if is_plain else chosen
        data = gguf.quants.quantize(values, dtype) if not is_plain else values.astype(_numpy(dtype))
        writer.add_tensor(name, numpy.ascontiguousarray(data), raw_dtype=None if is_plain else dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _numpy(dtype: gguf.GGMLQuantizationType) -> type:
    return numpy.float32 if dtype is gguf.GGMLQuantizationType.F32 else numpy.float16


def denoiser_only(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The denoiser's tensors without the beginning of their names."""
    return {name.removeprefix(DENOISER): value for name, value in tensors.items() if name.startswith(DENOISER)}


def decoded(kind: str, tensor: Tensor) -> Tensor:
    """What the package makes of a tensor that it has quantized."""
    chosen = gguf.GGMLQuantizationType[kind]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(tensor.float().numpy(), chosen), chosen))
