"""The attention that the command line asks for. Imports no torch: it is read before the page is up."""

from __future__ import annotations

from dataclasses import dataclass

AUTOMATIC = "Automatic"
_BY_FLAG = {
    "force_enable_xformers": "xformers",
    "xformers": "xformers",
    "opt_sdp_no_mem_attention": "sdp-no-mem",
    "opt_sdp_attention": "sdp",
    "opt_sub_quad_attention": "sub-quadratic",
    "opt_split_attention": "Doggettx",
    "opt_split_attention_invokeai": "InvokeAI",
    "opt_split_attention_v1": "V1",
    "disable_opt_split_attention": "None",
}
"""The first flag of these that is given decides."""


@dataclass(frozen=True)
class AttentionFlags:
    """`chosen`: the way a flag asks for; None: none does. The others are the chunks of sub-quadratic attention."""

    chosen: str | None = None
    query_chunk: int = 1024
    key_chunk: int | None = None
    threshold_percent: int | None = None

    @classmethod
    def of(cls, flags: object) -> AttentionFlags:
        """From the command line (`modules.flags.flags.Flags`)."""
        return cls(
            chosen=next((name for flag, name in _BY_FLAG.items() if getattr(flags, flag, False)), None),
            query_chunk=getattr(flags, "sub_quad_q_chunk_size", 1024),
            key_chunk=getattr(flags, "sub_quad_kv_chunk_size", None),
            threshold_percent=getattr(flags, "sub_quad_chunk_threshold", None),
        )
