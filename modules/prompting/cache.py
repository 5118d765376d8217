"""The conditioning cache, and the identity of a result that keys it."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from modules.prompting.emphasis import Emphasis

# Raise it whenever the same identity would give another encoding than before.
CACHE_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AdapterUse:
    """One LoRA-family adapter in effect: its file's hash and all its multipliers."""

    name: str
    file_hash: str
    te_multiplier: float = 1.0
    unet_multiplier: float = 1.0
    dyn_dim: int | None = None
    blocks: tuple[tuple[str, float], ...] = ()  # factors of blocks of the UNet
    steps: tuple[float | None, float | None] = (None, None)  # of a pass, from and before which it holds on the UNet


@dataclass(frozen=True, kw_only=True)
class ResultIdentity:
    """Everything an encoded prompt depends on. Two results with equal identities are the same, bit for bit.

    What is not here must not influence the encoding. `prompts` are the texts after styles, comments and adapter tags;
    `role` tells positive from negative prompts, which are encoded by different rules.
    """

    checkpoint_hash: str
    plan_fingerprint: str  # storage formats, compute dtypes, LoRA mode ... of the precision plan
    prompts: tuple[str, ...]
    steps: int
    role: str = "positive"  # "positive" | "negative"
    hires_steps: int | None = None
    old_timelines: bool = False
    emphasis: Emphasis = Emphasis.ORIGINAL
    old_emphasis: bool = False
    comma_backtrack: int = 20
    clip_skip: int = 1
    embeddings: tuple[tuple[str, str], ...] = ()  # name and hash of every textual inversion that could match
    adapters: tuple[AdapterUse, ...] = ()
    lora_mode: str = ""
    settings: tuple[tuple[str, object], ...] = ()  # that affect encodings and differ from their defaults
    facts: tuple[tuple[object, ...], ...] = ()  # what the family's encodings depend on besides: size, crop, layers ...
    cache_version: int = CACHE_VERSION


class ConditioningCache(Generic[T]):
    """The last `capacity` results by identity; the least recently used goes first. Safe to share between threads.

    Entries hold tensors: drop them with `clear` when the device is needed for something else.
    """

    def __init__(self, capacity: int = 8) -> None:
        self._capacity = max(0, capacity)
        self._entries: OrderedDict[ResultIdentity, T] = OrderedDict()
        self._lock = Lock()

    def get(self, identity: ResultIdentity) -> T | None:
        """The result for this identity, if it is still here."""
        with self._lock:
            result = self._entries.get(identity)
            if result is not None:
                self._entries.move_to_end(identity)
            return result

    def put(self, identity: ResultIdentity, result: T) -> None:
        """Remember a result, and forget the oldest if there are too many."""
        with self._lock:
            self._entries[identity] = result
            self._entries.move_to_end(identity)
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)

    def get_or_make(self, identity: ResultIdentity, make: Callable[[], T]) -> T:
        """The remembered result, or a new one; `make` runs without the lock, so two threads may both run it."""
        result = self.get(identity)
        if result is None:
            result = make()
            self.put(identity, result)
        return result

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
