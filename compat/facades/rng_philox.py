"""`modules.rng_philox`: NVIDIA's noise on any machine."""

from compat.facades.refusal import refusing
from modules.sampling.philox import PhiloxGenerator as Generator

__all__ = ["Generator"]
__getattr__ = refusing("rng_philox", {})
