"""The state of the engine, in words and numbers that edges can show without knowing torch."""

from dataclasses import dataclass
from enum import StrEnum

from modules.models.text_encoders.counting import BY_CHUNKS, TokenCounting


class EngineState(StrEnum):
    """Where the engine stands with its model."""

    EMPTY = "empty"  # nothing loaded yet, or unloaded on request
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the last load failed; `message` says why and what to do


@dataclass(frozen=True)
class ModelFacts:
    """A loaded model on the scales: parameters and bytes as they now lie in memory, all components together."""

    title: str
    family: str  # its label
    parameters: int
    stored_bytes: int
    fp16_bytes: int  # what the same weights would weigh in fp16
    storage: str  # "fp16", "fp32", "fp8 row" ...
    device: str
    default_size_px: int = 512  # the side of the images it was trained on
    streaming: str = ""  # "layers are streamed from disk"; empty: all weights lie on the device
    streamed_bytes: int = 0  # of weights that are offloaded; not in `stored_bytes`
    adapter_version: str = ""  # what model cards call its family; "" where they have no word
    counting: TokenCounting = BY_CHUNKS  # of the tokens of a prompt
    usual: str = ""  # settings that such models are usually sampled with, as an infotext says them
    unused: tuple[str, ...] = ()  # what it has no use for, see `unused_parameters`
    threads: int = 0  # that compute, where the device is the CPU
    switch_seconds: float = 0.0  # until it was ready: read from its file, or taken back from those set aside


@dataclass(frozen=True)
class EngineStatus:
    """State, a sentence for people, and the model's facts when one is loaded."""

    state: EngineState
    message: str
    model: ModelFacts | None = None
