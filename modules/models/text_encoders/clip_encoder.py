"""CLIP's text models at work: one call of a `transformers` model, how a family uses one, and texts through it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder, register_hook
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.prompting.encode import Encoded, Injection, TextTower


class ClipTextEncoder:
    """Wraps a `CLIPTextModel`; `device` is where its inputs go.

    With `use_pooled` the result carries the pooled output of the end token, through `project` if one is given (the
    encoder's text projection). `fixed_layer` takes the hidden states of that layer, counted from the
    end, whatever the clip skip; `final_norm` applies the final layer norm to them. Only with `has_gradients` autograd
    follows the encoding.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        use_pooled: bool = False,
        project: Callable[[Tensor], Tensor] | None = None,
        fixed_layer: int | None = None,
        final_norm: bool = True,
        has_gradients: bool = False,
    ) -> None:
        self._model: Any = model
        self._device = torch.device(device)
        self._use_pooled = use_pooled
        self._project = project
        self._fixed_layer = fixed_layer
        self._final_norm = final_norm
        self._has_gradients = has_gradients

    def encode(self, tokens: Tensor, clip_skip: int, injections: Sequence[Injection]) -> Encoded:
        """Encode `tokens` [B, 77]; raises `InvalidValueError` if `clip_skip` is beyond the model's layers."""
        with torch.set_grad_enabled(self._has_gradients and torch.is_grad_enabled()):
            return self._encode(tokens, clip_skip, injections)

    def _encode(self, tokens: Tensor, clip_skip: int, injections: Sequence[Injection]) -> Encoded:
        layers = int(self._model.config.num_hidden_layers)
        clip_skip = self._fixed_layer or clip_skip
        if not 1 <= clip_skip <= layers + 1:
            raise InvalidValueError(
                f"Clip skip {clip_skip} is not possible: this text encoder has {layers} layers. "
                f"Choose a value from 1 to {layers + 1}."
            )
        with inject(self._model.embeddings.token_embedding, injections):
            wants_all = clip_skip > 1 or not self._final_norm
            output = self._model(input_ids=tokens.to(self._device), output_hidden_states=wants_all)
        if clip_skip == 1 and self._final_norm:
            hidden = output.last_hidden_state
        else:
            hidden = output.hidden_states[-clip_skip]
            hidden = self._model.final_layer_norm(hidden) if self._final_norm else hidden
        return Encoded(hidden, self._pool(output.pooler_output))

    def _pool(self, pooled: Tensor) -> Tensor | None:
        if not self._use_pooled:
            return None
        return pooled if self._project is None else self._project(pooled)


@contextmanager
def inject(token_embedding: nn.Module, injections: Sequence[Injection]) -> Iterator[None]:
    """While open, the module's output [B, tokens, D] carries the injected vectors; afterwards it is as before."""

    def put_in(module: nn.Module, inner: Callable[..., Tensor], /, *args: object, **kwargs: object) -> Tensor:
        del module
        changed = inner(*args, **kwargs).clone()
        for injection in injections:
            end = injection.start + injection.vectors.shape[0]
            changed[injection.row, injection.start : end] = injection.vectors.to(changed)
        return changed

    if not injections:
        yield
        return
    handle = register_hook(token_embedding, put_in, HookOrder.ADAPTER)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class TextTowerRecipe:
    """How one text encoder is used.

    `layer_from_end` says which hidden states count, 1 being the last layer's; None: as the clip skip setting says, and
    with `skips_by_options` that decides where the setting `sdxl_clip_l_skip` is on. `final_norm` applies the final
    layer norm to them. `pad_id` fills chunks up after the end token (None: with the end token); `pooled` begins the
    vector with the projected output at the end token.
    """

    component: str
    layer_from_end: int | None = None
    skips_by_options: bool = False
    final_norm: bool = True
    pad_id: int | None = None
    pooled: bool = False

    def tower(self, parts: TextParts, request: TextRequest) -> TextTower:
        """The encoder of a model, used this way."""
        module = parts.encoders[self.component]
        projected = hasattr(module, "text_projection")
        by_options = self.skips_by_options and request.settings.stable_diffusion.sdxl_clip_l_skip
        encoder = ClipTextEncoder(
            module.text_model if projected else module,
            device=parts.device,
            use_pooled=self.pooled,
            project=module.text_projection if projected else None,
            fixed_layer=None if by_options else self.layer_from_end,
            final_norm=self.final_norm,
            has_gradients=request.has_gradients,
        )
        table = request.embeddings.get(int(module.config.hidden_size))
        return TextTower(parts.tokenizer, encoder, table, self.pad_id)
