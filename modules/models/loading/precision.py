"""The precision plan: in which format every part of a model is stored, and in which dtype it computes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

import torch

from modules.memory.formats.format import dtype_name
from modules.memory.skip import SkipRules
from modules.memory.storage import StorageRules
from modules.models.loading.stream_layout import StreamLayout
from modules.models.names.component import Component
from modules.models.placing import PlacingRules

Chosen = Mapping[str, str | None]


class ComputeMode(StrEnum):
    """How inputs and weights come to the same dtype."""

    PLAIN = "plain"  # everything is in the compute dtype already
    MANUAL = "manual cast"  # each stored layer casts its input and its weight
    AUTOCAST = "autocast"  # PyTorch's autocast chooses a dtype for each operation
    FP8_MATMUL = "fp8 matmul"  # as by hand, but linear layers multiply in 8 bits where they can
    INT8_MATMUL = "int8 matmul"  # as by hand, but linear layers and convolutions multiply in int8 where they can


@dataclass(frozen=True, kw_only=True)
class PrecisionPlan:
    """Resolved once for a job, from settings, device and model family; a running job keeps it.

    `unet_storage` and `text_storage` are names of formats in `modules.memory.formats.FORMATS`, or None: weights are
    kept in `offload_dtype`, as is everything that no rule takes. `fp8_options` and the other texts are what the
    settings said, for the record. `notes` are sentences for the user.
    """

    device: torch.device
    compute_dtype: torch.dtype
    vae_dtype: torch.dtype
    mode: ComputeMode = ComputeMode.PLAIN
    unet_storage: str | None = None
    text_storage: str | None = None
    skip: tuple[str, ...] = ()
    extra_skip: tuple[str, ...] = ()  # the part of `skip` that the user asked for
    lora_mode: str = ""
    fp8_options: str = "Disable"
    cache_fp16_weight: bool = False
    dtype_is_chosen: bool = False  # by a setting, so that images say so
    check_nan: bool = True
    streaming: StreamLayout | None = None  # None: all weights lie on the device
    with_optional: bool = False  # the text encoder that the family can do without, where a file holds it
    budget_bytes: int | None = (
        None  # of all weights; each layer gets a format of its own, see `modules.models.loading.budget`
    )
    float8: bool = True  # the device has 8-bit floats; else their codes are kept, which decode to equal bits
    map_files: bool = True  # on the CPU, weights that the file has as they are used are pages of the file
    channels_last: bool = False  # the weights of convolutions that lie on the device, as measured to be faster
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def offload_dtype(self) -> torch.dtype:
        """Return the dtype of what is not stored in a format of its own: under the CPU's autocast fp32, as that
        expects."""
        if self.mode is ComputeMode.AUTOCAST and self.device.type == "cpu":
            return torch.float32
        return self.compute_dtype

    @property
    def is_low_precision(self) -> bool:
        """Whether any weights are stored in 8 bits."""
        return self.unet_storage is not None or self.text_storage is not None

    def rules(self, component: str) -> StorageRules | None:
        """How the weights of "unet", "text_encoder", ... are stored; None for those that stay."""
        if component == "unet":
            storage = self.unet_storage
        elif component.startswith("text_encoder"):
            storage = self.text_storage
        else:
            storage = None
        return None if storage is None else StorageRules(storage, SkipRules(self.skip), direct=False)

    def placing(self, component: Component, has_offsets: bool, chosen: Chosen | None = None) -> PlacingRules:
        """Return what becomes of the tensors of a component in a file that says where they are, or does not. `chosen`:
        formats by our names that a weights budget gives."""
        if component.name == "vae":
            return PlacingRules(self.vae_dtype, float8=self.float8)
        rules = component.rules(self.rules(component.name))
        if rules is not None and chosen is not None:
            rules = replace(rules, chosen=chosen)
        on_disk = self.streaming is not None and self.streaming.on_disk
        in_file = has_offsets and (rules is not None or on_disk)
        return PlacingRules(self.offload_dtype, rules, in_file, float8=self.float8)

    @property
    def fingerprint(self) -> str:
        """The plan as text: equal for equal plans, different for plans that could give different images."""
        return "/".join(
            f"{item.name}={getattr(self, item.name)}"
            for item in fields(self)
            if item.name
            not in ("notes", "streaming", "check_nan", "fp8_options", "dtype_is_chosen", "extra_skip", "map_files")
            and item.name != "float8"
        )

    @property
    def load_key(self) -> tuple[object, ...]:
        """Return what the weights in memory depend on: another key means that the file must be read again."""
        return (
            self.device,
            self.compute_dtype,
            self.offload_dtype,
            self.vae_dtype,
            self.mode,
            self.unet_storage,
            self.text_storage,
            self.skip,
            self.streaming,
            self.with_optional,
            self.budget_bytes,
            self.map_files,
            self.channels_last,
        )

    @property
    def label(self) -> str:
        """For people: "fp16", "fp8 e4m3fn row", "fp32"."""
        if self.budget_bytes is not None:
            return f"mixed, at most {self.budget_bytes / 1e9:g} GB"
        storage = self.unet_storage or self.text_storage
        return storage.replace("_", " ") if storage else dtype_name(self.compute_dtype)
