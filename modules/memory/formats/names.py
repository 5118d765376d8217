"""Short names of dtypes."""

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """ "fp16", "bf16", "fp32"."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
