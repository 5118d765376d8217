"""A part of a model before its file is read: an empty module on the meta device, and the names of its tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from modules.errors import CheckpointError
from modules.memory.formats.format import FORMATS
from modules.memory.storage import StorageRules
from modules.models.files.tensor_file import TensorEntry
from modules.models.libraries import library_name
from modules.models.names.keymap import KeyMap

Header = Mapping[str, TensorEntry]
NO_DENOISER = "It may be a text encoder or a VAE: choose the file of the denoiser."
"""The hint for a file without a denoiser."""


INITIALISERS = frozenset({nn.init.constant_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_})
"""Those of PyTorch's initialisers that can be distinguished from what they call; the others end in one of these, or
in a method of a tensor without numbers."""


class _WithoutValues(TorchFunctionMode):
    """Initialisers return at once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in INITIALISERS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Tensors made in here are on the meta device, and no time is spent on how their numbers would be drawn."""
    with torch.device("meta"), _WithoutValues():
        yield


def meta_module(path: str, *args: Any, **sizes: Any) -> Any:
    """A model of a class of diffusers or transformers ("diffusers.UNet2DConditionModel") on the meta device."""
    model = library_name(path)
    with on_meta():
        return model(*args, **sizes)


@contextmanager
def reading_sizes(what: str = "transformer is not whole", hint: str = "") -> Iterator[None]:
    """Sizes of a part of a model are taken from a header in here. Raises `CheckpointError`, which says `what` and ends
    with `hint`, for a tensor that is missing or of another shape."""
    try:
        yield
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(f"its {what} ({error} is missing or of another shape). {hint}".rstrip()) from error


@dataclass(frozen=True)
class Component:
    """A part of a model as it is to be built: an empty module on the meta device and how the file names its tensors.

    `prefixes` are the beginnings of the original keys that belong to it; `missing_hint` says what a file without any
    of them probably is. `plain_skip` are patterns of layers that formats without scales leave alone, because the
    reference UI does; `skip` of those that every 8-bit format does. `unused` are the beginnings of original keys of the
    component that nothing is computed with, such as the layers behind the last one that is used.
    """

    name: str  # "unet", "vae", "text_encoder", "text_encoder_2"
    module: nn.Module
    keymap: KeyMap
    prefixes: tuple[str, ...]
    missing_hint: str
    plain_skip: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    def missing_in(self, header: Header) -> str:
        """Return the message for a file that has no tensor of this component; "" if it has some."""
        if any(key.startswith(self.prefixes) for key in header):
            return ""
        return f"no {self.name} found (looked for {', '.join(self.prefixes)}*). {self.missing_hint}"

    def rules(self, rules: StorageRules | None) -> StorageRules | None:
        """`rules` with the patterns of this component's own added."""
        if rules is None or not (self.skip or self.plain_skip):
            return rules
        own = self.skip if FORMATS.get(rules.storage).scaled else (*self.skip, *self.plain_skip)
        return replace(rules, skip=replace(rules.skip, patterns=(*rules.skip.texts, *own)))


def built(header: Header, *makes: Callable[[], Component | tuple[Component, ...]]) -> tuple[Component, ...]:
    """The components of a model. Raises one `CheckpointError` that says of all of them at once what is wrong: of those
    that could not be made what they say, and which of the others the file lacks."""
    components: list[Component] = []
    wrong: list[str] = []
    for make in makes:
        try:
            made = make()
        except CheckpointError as error:
            wrong.append(str(error))
        else:
            components += made if isinstance(made, tuple) else (made,)
    if not wrong:
        return tuple(components)
    raise CheckpointError(" ".join([*wrong, *filter(None, (each.missing_in(header) for each in components))]))
