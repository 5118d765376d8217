"""`modules.rng_philox`: NVIDIA's noise on any machine."""

from modules.compat.refusal import refusing
from modules.sampling.philox import PhiloxGenerator as Generator

__all__ = ["Generator"]
__getattr__ = refusing("rng_philox", {})
