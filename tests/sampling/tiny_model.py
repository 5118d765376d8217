"""The tiny checkpoint of the recordings, loaded by diffusers and transformers, and guidance in its plainest form.

It stands in for the product's own loading and guidance, so that a sampler's error shows as a sampler's error.
"""

import io
import json
from contextlib import redirect_stderr
from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from modules.prompting.tokens import ClipTokenizer
from modules.sampling.catalog import SamplerSpec
from modules.sampling.denoisers import denoise_for
from modules.sampling.discrete import DiscreteSchedule, scaled_linear_alphas_cumprod
from tests.sampling.recordings import MODELS

TEXT_MODEL = "cond_stage_model.transformer.text_model."
PROMPT = "a red cat sitting on a blue chair, detailed"
NEGATIVE = "blurry, low quality"


@dataclass
class TinyModel:
    """UNet and the encodings of the prompts used; `predict` is the network in eps form."""

    unet: nn.Module
    vae: nn.Module
    encodings: dict[str, Tensor]
    schedule: DiscreteSchedule = field(default_factory=lambda: DiscreteSchedule(scaled_linear_alphas_cumprod()))

    def predict(self, x: Tensor, t: Tensor, context: Tensor) -> Tensor:
        output: Tensor = self.unet(x, t, encoder_hidden_states=context, return_dict=False)[0]
        return output


class PlainGuidance:
    """`uncond + scale * (cond - uncond)`; remembers the unconditional prediction."""

    def __init__(self, model: TinyModel, spec: SamplerSpec, scale: float, prompt: str, negative: str) -> None:
        contexts = torch.cat([model.encodings[prompt], model.encodings[negative]])

        def denoiser(x: Tensor, t: Tensor) -> Tensor:
            return model.predict(x, t, contexts.repeat_interleave(len(x) // 2, dim=0))

        self._denoise = denoise_for(spec, denoiser, model.schedule)
        self._scale = scale * spec.cfg_scale_multiplier
        self._uncond = torch.empty(0)

    def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor:
        cond, self._uncond = self._denoise(torch.cat([x, x]), torch.cat([sigma, sigma])).chunk(2)
        return self._uncond + self._scale * (cond - self._uncond)

    def uncond_denoised(self) -> Tensor:
        return self._uncond


def load_tiny_model() -> TinyModel:
    """Build the networks in fp32 from the recorded checkpoint."""
    weights = {key: value.float() for key, value in load_file(MODELS / "tiny-sd1.safetensors").items()}
    unet, vae = _load_adapters(weights)
    return TinyModel(unet, vae, _encode(weights, (PROMPT, NEGATIVE)))


def _load_adapters(weights: dict[str, Tensor]) -> tuple[nn.Module, nn.Module]:
    from diffusers import AutoencoderKL, UNet2DConditionModel

    config = str(MODELS / "tiny-sd1.yaml")
    with redirect_stderr(io.StringIO()):
        unet = UNet2DConditionModel.from_single_file(dict(weights), original_config=config, local_files_only=True)
        vae = AutoencoderKL.from_single_file(dict(weights), original_config=config, local_files_only=True)
    return unet.eval().requires_grad_(False), vae.eval().requires_grad_(False)


def _encode(weights: dict[str, Tensor], prompts: tuple[str, ...]) -> dict[str, Tensor]:
    """Last hidden states [1, 77, 128] of prompts of one chunk."""
    config = CLIPTextConfig(**json.loads((MODELS / "tiny-clip-text" / "config.json").read_text()))
    model = CLIPTextModel(config).eval()
    state = {
        key.removeprefix(TEXT_MODEL): value
        for key, value in weights.items()
        if key.startswith(TEXT_MODEL) and not key.endswith("position_ids")
    }
    model.load_state_dict(state)
    tokenizer = ClipTokenizer.standard()
    encodings = {}
    for prompt in prompts:
        tokens = [49406, *tokenizer.encode(prompt)]
        tokens += [49407] * (77 - len(tokens))
        with torch.no_grad():
            encodings[prompt] = model(torch.tensor([tokens])).last_hidden_state
    return encodings
