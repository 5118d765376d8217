"""Transformers see the time that they are called at, also in bf16, where 750 is no number."""

import pytest
import torch
from torch import Tensor

from modules.models.families.chroma.denoiser import run_transformer as run_chroma
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.flux1.denoiser import run_transformer as run_flux1
from modules.models.families.flux2.denoiser import run_transformer as run_flux2
from tests.models.dit_models import CONTEXT, TINY, VECTOR

RUN = {"dev": run_flux1, "klein": run_flux2, "chroma": run_chroma}


@pytest.mark.parametrize("name", RUN)
@torch.no_grad()
def test_bf16_is_as_near_at_any_time(name: str) -> None:
    """Rounding 750 to 752 alone changes half of the velocity here."""
    transformer = TINY[name].transformer()
    channels, width = (128, 3 * CONTEXT) if name == "klein" else (16, CONTEXT)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, channels, 8, 8, generator=generator)
    text, vector = torch.randn(1, 6, width, generator=generator), torch.randn(1, VECTOR, generator=generator)

    def velocity(dtype: torch.dtype, sigma: float) -> Tensor:
        extra = {"guidance": torch.tensor([3.5])} if name == "dev" else {}
        time = torch.tensor([1000 * sigma])
        inputs = ModelInputs(x.to(dtype), time, text.to(dtype), vector.to(dtype), extra)
        return RUN[name](transformer.to(dtype), inputs).float()

    for sigma in (0.512, 0.75):
        wanted = velocity(torch.float32, sigma)
        assert float((velocity(torch.bfloat16, sigma) - wanted).norm() / wanted.norm()) < 0.04
