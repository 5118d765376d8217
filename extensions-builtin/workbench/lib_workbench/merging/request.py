"""Requests for a merge, and the checks that need no file to be opened. Imports no torch.

Words and rules are the reference UI's: three models A, B and C, three methods, a multiplier M.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from modules.errors import InvalidValueError, UnknownNameError
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.models.autoencoders.files import BUILT_IN, VaeCatalogue, VaeInfo
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo
from modules.system.bounded import read_json
from modules.system.file_names import check_name, place_inside

E = TypeVar("E", bound=StrEnum)


class MergeMethod(StrEnum):
    """How the weights come together; the values are the labels on the page."""

    NO_INTERPOLATION = "No interpolation"  # A
    WEIGHTED_SUM = "Weighted sum"  # A * (1 - M) + B * M
    ADD_DIFFERENCE = "Add difference"  # A + (B - C) * M

    @property
    def models(self) -> int:
        """How many models the method takes."""
        return {"No interpolation": 1, "Weighted sum": 2, "Add difference": 3}[self.value]


class ConfigSource(StrEnum):
    """Whose YAML is copied next to the result; the values are the labels on the page."""

    ANY = "A, B or C"
    B = "B"
    C = "C"
    NONE = "Don't"


SUFFIX = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """The form as it was filled in; nothing is looked up yet. Models by title, name or hash."""

    primary: str
    secondary: str = ""
    tertiary: str = ""
    method: str = MergeMethod.WEIGHTED_SUM.value
    multiplier: float = 0.3
    name: str = ""  # "": follows from models and method
    storage: str = "fp16"
    vae: str = BUILT_IN
    discard: str = ""  # a regular expression, searched in tensor names; "": nothing is discarded
    config_source: str = ConfigSource.ANY.value
    save_metadata: bool = True
    add_recipe: bool = True
    copy_metadata: bool = True
    metadata_json: str = ""


@dataclass(frozen=True, kw_only=True)
class MergeRequest:
    """A merge that may begin: every file is found, every value allowed."""

    models: tuple[CheckpointInfo, ...]  # A; A, B; or A, B, C
    method: MergeMethod
    multiplier: float
    storage: str
    target: Path
    custom_name: str = ""
    vae: VaeInfo | None = None
    discard: re.Pattern[str] | None = None
    config_source: ConfigSource = ConfigSource.ANY
    save_metadata: bool = True
    add_recipe: bool = True
    copy_metadata: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_path(self) -> Path | None:
        """The YAML to copy next to the result."""
        a, b, c = (*self.models, None, None)[:3]
        sources = {ConfigSource.ANY: (a, b, c), ConfigSource.B: (b,), ConfigSource.C: (c,), ConfigSource.NONE: ()}
        found = (info.config_path for info in sources[self.config_source] if info is not None)
        return next((path for path in found if path is not None), None)


def resolve(options: MergeOptions, catalogue: CheckpointCatalogue, vaes: VaeCatalogue, folder: Path) -> MergeRequest:
    """Look everything up. The result goes to `folder` under the wished name.

    Raises `UnknownNameError` for models, methods, formats and VAE files that are not known, and `InvalidValueError`
    for a model that is not chosen and every other value that is not allowed, a taken name among them.
    """
    method = _one_of(MergeMethod, "interpolation method", options.method)
    texts = (options.primary, options.secondary, options.tertiary)[: method.models]
    models = tuple(_model(catalogue, letter, text, method) for letter, text in zip("ABC", texts, strict=False))
    if not (math.isfinite(options.multiplier) and 0 <= options.multiplier <= 1):
        raise InvalidValueError(f"The multiplier is {options.multiplier}. Allowed: 0 to 1.")
    if options.storage not in FORMAT_SPECS:
        raise UnknownNameError.of("format", options.storage, FORMAT_SPECS)
    request = MergeRequest(
        models=models,
        method=method,
        multiplier=options.multiplier,
        storage=options.storage,
        target=target_of(folder, options.name or default_name(method, models, options.multiplier)),
        custom_name=options.name.strip(),
        vae=_vae(vaes, options.vae),
        discard=_pattern(options.discard),
        config_source=_one_of(ConfigSource, "source of the configuration", options.config_source),
        save_metadata=options.save_metadata,
        add_recipe=options.add_recipe,
        copy_metadata=options.copy_metadata,
        metadata=_metadata(options.metadata_json),
    )
    refuse_taken(request)
    return request


def default_name(method: MergeMethod, models: tuple[CheckpointInfo, ...], multiplier: float) -> str:
    """The reference UI's names: "0.7(a) + 0.3(b)", "a + 0.3(b - c)", "a"."""
    a, b, c = (*(info.model_name for info in models), "", "")[:3]
    m, rest = round(multiplier, 2), round(1 - multiplier, 2)
    if method is MergeMethod.WEIGHTED_SUM:
        return f"{rest}({a}) + {m}({b})"
    if method is MergeMethod.ADD_DIFFERENCE:
        return f"{a} + {m}({b} - {c})"
    return a


def target_of(folder: Path, text: str) -> Path:
    """Return the file for a name, folders with / allowed. Raises `InvalidValueError` that says what is wrong."""
    text = text.strip()
    text = text[: -len(SUFFIX)] if text.lower().endswith(SUFFIX) else text
    if text.lower().endswith((".ckpt", ".pt")):
        raise InvalidValueError(
            f"The name {text!r}: merged checkpoints are written as {SUFFIX} only, which cannot hide programs. "
            "Leave the ending out."
        )
    if ".vae." in f"{text.lower()}.":
        raise InvalidValueError(f"The name {text!r}: a file with .vae. in its name is taken for a VAE. Choose another.")
    for part in text.split("/"):
        if part.startswith((".", " ")):
            raise InvalidValueError(
                f"The name {text!r}: a name, or a part of it between slashes, may not begin with a dot or a blank. "
                "Choose another."
            )
        check_name(part)  # also without the suffix
    return place_inside(folder, f"{text}{SUFFIX}")


def refuse_taken(request: MergeRequest) -> None:
    """Raise `InvalidValueError` if the result would replace one of its models, or any other file."""
    target = request.target
    if any(target.resolve() == info.path.resolve() for info in request.models):
        raise InvalidValueError(f"{target.name} is one of the models that are merged. Give the result another name.")
    if target.exists():
        raise InvalidValueError(f"{target.name} exists already, and is kept. Give the result another name.")
    yaml, source = target.with_suffix(".yaml"), request.config_path
    if source is not None and yaml.exists() and yaml.read_bytes() != source.read_bytes():
        raise InvalidValueError(
            f"{yaml.name} exists already and says something else than {source.name}. Give the result another name."
        )


def _model(catalogue: CheckpointCatalogue, letter: str, text: str, method: MergeMethod) -> CheckpointInfo:
    if not text:
        raise InvalidValueError(f"{method.value} needs a model {letter}. Choose one.")
    return catalogue.get(text)


def _one_of(choices: type[E], what: str, text: str) -> E:
    for member in choices:
        if member.value.lower() == text.strip().lower():
            return member
    raise UnknownNameError.of(what, text, [member.value for member in choices])


def _vae(vaes: VaeCatalogue, name: str) -> VaeInfo | None:
    if name in ("", BUILT_IN):
        return None
    found = next((info for info in vaes.entries if info.name == name), None)
    if found is None:
        raise UnknownNameError.of("VAE", name, [BUILT_IN, *(info.name for info in vaes.entries)])
    return found


def _pattern(text: str) -> re.Pattern[str] | None:
    if not text.strip():
        return None
    try:
        return re.compile(text.strip())
    except re.error as error:
        raise InvalidValueError(
            f"Discard weights: {text!r} is not a regular expression ({error}). A plain part of a name is one, such as "
            "model_ema."
        ) from error


def _metadata(text: str) -> dict[str, str]:
    """The metadata field: a table whose values become text, as the file format wants them."""
    if not text.strip():
        return {}
    try:
        content = read_json(text)
    except ValueError as error:
        raise InvalidValueError(f"The metadata is not JSON: {error}. Write a table such as {{}}.") from error
    if not isinstance(content, dict):
        raise InvalidValueError('The metadata is not a table. Write one such as {"author": "me"}.')
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in content.items()}
