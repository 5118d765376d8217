"""What all families of the latent-diffusion layout do alike: a UNet and an autoencoder of the sizes that the
architecture says, and text encoders that are passed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from modules.models.architecture import LdmArchitecture
from modules.models.families.family import Component, ConditioningRecipe, DenoiserInputSizes, Header
from modules.models.families.ldm_parts import (
    V_KEY,
    is_left_over,
    prediction_in,
    run_unet,
    unet_component,
    unet_inputs,
    vae_component,
)

TextEncoders = Callable[[Header, LdmArchitecture, tuple[Path, ...]], tuple[Component, ...]]
"""From a header, its architecture and the folders for text models that a YAML names."""


def _by_yaml(header: Header) -> str | None:
    del header
    return None


def _never(key: str) -> bool:
    del key
    return False


@dataclass(frozen=True, kw_only=True)
class LdmFamily:
    """A `ModelFamily`. `unsaid_prediction` is what a header means that says nothing of the prediction, and
    `ignores_too` names tensors that no module needs besides those of every family."""

    label: str
    config_name: str
    tiny_vae: str
    recipe: ConditioningRecipe
    detects: Callable[[Header], bool]
    text_encoders: TextEncoders
    is_large: bool = False
    v_latent_side: int | None = None
    unsaid_prediction: Callable[[Header], str | None] = _by_yaml
    ignores_too: Callable[[str], bool] = _never

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        """See `ModelFamily`."""
        return "v_prediction" if V_KEY in header else prediction_in(metadata) or self.unsaid_prediction(header)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        """See `ModelFamily`."""
        return (
            *self.text_encoders(header, architecture, config_folders),
            unet_component(architecture.unet_sizes),
            vae_component(architecture.vae),
        )

    def run(self, adapter: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        """See `ModelFamily`."""
        return run_unet(adapter, x, timesteps, crossattn, vector)

    def input_sizes(self, adapter: Any) -> DenoiserInputSizes:
        """See `ModelFamily`."""
        return unet_inputs(adapter)

    def is_ignored(self, key: str) -> bool:
        """See `ModelFamily`."""
        return is_left_over(key) or self.ignores_too(key)
