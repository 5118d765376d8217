"""Attention in which the tokens of image and text see each other (Esser et al. 2024, arXiv:2403.03206)."""

from typing import Any

import torch
from torch import Tensor

from modules.memory.attention import Attention


class JointProcessor:
    """Projects both kinds of tokens, attends over all, projects back; stands in place of diffusers' processor `own`."""

    def __init__(self, attention: Attention, own: Any) -> None:
        self.attention = attention
        self.own = own

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None, **rest: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Tokens of the image [B,T,C], and of the text [B,S,C] where those are given, to the same shapes."""
        if rest.get("attention_mask") is not None:
            result: Tensor | tuple[Tensor, Tensor] = self.own(attn, hidden_states, encoder_hidden_states, **rest)
            return result

        def heads(tokens: Tensor, norm: Any = None) -> Tensor:
            split = tokens.view(*tokens.shape[:-1], attn.heads, -1).transpose(1, 2)
            return split if norm is None else norm(split)

        x, text = hidden_states, encoder_hidden_states
        query, key = heads(attn.to_q(x), attn.norm_q), heads(attn.to_k(x), attn.norm_k)
        value = heads(attn.to_v(x))
        if text is not None:
            query = torch.cat([query, heads(attn.add_q_proj(text), attn.norm_added_q)], dim=2)
            key = torch.cat([key, heads(attn.add_k_proj(text), attn.norm_added_k)], dim=2)
            value = torch.cat([value, heads(attn.add_v_proj(text))], dim=2)
        out = self.attention(query, key, value).transpose(1, 2).flatten(2)
        image: Tensor = attn.to_out[1](attn.to_out[0](out[:, : x.shape[1]]))
        if text is None:
            return image
        words = out[:, x.shape[1] :]
        return image, words if attn.context_pre_only else attn.to_add_out(words)
