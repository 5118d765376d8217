"""Configuration of a training: the keys of a configuration file, each with its default and what it means.

A file is YAML as OmegaConf reads it, in sections of the names of `TrainingConfig`'s fields. `describe` writes one with
every key; docs/training.md is made from the same rows.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from modules.errors import InvalidValueError, first_line
from modules.memory.formats.catalog import trainable_formats

ADAPTERS = ("lora", "dora", "loha", "lokr", "textual_inversion")
STREAMS = ("off", "blocks", "layers")
OPTIMIZERS = ("adamw", "adamw8bit", "adafactor", "prodigy")
SCHEDULES = ("cosine", "linear", "constant")
LOSSES = ("l2", "huber")
MAX_RANK = 512


def row(default: Any, says: str, **allowed: Any) -> Any:
    """A key: its default, what it means, and what it may be (`low`, `high`, `choices`, `above`)."""
    return field(default=default, metadata={"says": says, **allowed})


class Checked:
    """Checks every field against its row. Raises `InvalidValueError` that names the key and what it may be."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type] # every subclass is a data class
            _check(item.name, getattr(self, item.name), item.metadata)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """The frozen base."""

    checkpoint: str = row("", "file of the base model, or its name among the checkpoints")
    modules: list[str] = field(
        default_factory=list,
        metadata={"says": "files of its text encoders and VAE, or their names; others are found by themselves"},
    )
    storage: str = row(
        "fp8_e4m3fn_row", "how the frozen weights are kept; they are decoded for each use", choices=trainable_formats()
    )
    stream: str = row(
        "off", "blocks or layers: weights are read from the checkpoint file while they are used", choices=STREAMS
    )
    compute: str = row(
        "auto",
        "dtype of the computation; auto: fp32 on the CPU, bf16 elsewhere",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    device: str = row("auto", "auto, cpu, cuda, cuda:1")
    clip_skip: int = row(
        1, "layer of the text encoder, counted from the end, in families where one chooses", low=1, high=12
    )


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Checked):
    """Adapter that is trained."""

    type: str = row("lora", "kind of adapter", choices=ADAPTERS)
    rank: int = row(16, "of the attention blocks; 0 leaves them alone", low=0, high=MAX_RANK)
    alpha: float | None = row(None, "alpha / rank is the strength of the change; empty: the rank", above=0)
    conv_rank: int = row(0, "of the convolutions; 0 leaves them alone", low=0, high=MAX_RANK)
    text_rank: int = row(0, "of the text encoders; 0 leaves them alone", low=0, high=MAX_RANK)
    factor: int = row(8, "lokr: size of the first factor, at most", low=2, high=64)
    dtype: str = row("fp32", "of the trained values", choices=("fp32", "bf16"))
    start: str = row("", "file to begin with, or its name among the adapters or embeddings; same layers and ranks")
    token: str = row("", "textual_inversion: the word, as it stands in the captions; empty: the output's name")
    vectors: int = row(4, "textual_inversion: token positions that the word fills", low=1, high=75)
    init_text: str = row("*", "textual_inversion: words that the vectors begin as")


@dataclass(frozen=True, kw_only=True)
class FolderConfig(Checked):
    """One folder of images."""

    path: str = row(
        "", "folder with images and a .txt with the caption next to each; subfolders named 10_cat repeat 10 times"
    )
    repeats: int | None = row(
        None, "how often an image comes in an epoch; empty: as the folder's name says, or 1", low=1
    )
    weight: float = row(1.0, "multiplies the repeats; fractions by chance", above=0)
    caption: str = row("", "for images without a caption file")
    regularization: bool = row(False, "images of the class in general, whose loss counts data.prior_weight")


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Images that are learnt from."""

    folders: list[FolderConfig] = field(default_factory=list, metadata={"says": "folders of images"})
    resolution: int | None = row(None, "pixels of a square image's side; empty: the model's own", low=64, high=4096)
    buckets: bool = row(True, "images keep their aspect; off: all are cut to a square")
    max_aspect: float = row(2.0, "longest over shortest side of a bucket", low=1.0, high=4.0)
    crop: str = row(
        "center", "where what is too much is cut off; random: one of four places", choices=("center", "random")
    )
    flip: bool = row(False, "half of the images are mirrored; not for faces that are not even, or text")
    masks: bool = row(False, "NAME.mask.png next to an image says where the loss counts (white)")
    unmasked_weight: float = row(0.1, "what the loss counts outside of a mask", low=0.0, high=1.0)
    shuffle_tags: bool = row(False, "tags between commas are put in another order")
    keep_tokens: int = row(1, "so many first tags stay where they are", low=0)
    tag_dropout: float = row(0.0, "share of the other tags that are left out", low=0.0, high=1.0)
    caption_variants: int = row(
        8, "orders of the tags for each caption, so that all can be encoded ahead", low=1, high=100
    )
    caption_dropout: float = row(0.05, "share of images that are shown without a caption", low=0.0, high=1.0)
    prefix: str = row("", "put before every caption, such as the word that calls the adapter up")
    suffix: str = row("", "put behind every caption")
    prior_weight: float = row(1.0, "what the loss of regularization images counts", low=0.0)
    validation: float = row(0.1, "share of the images that is held out to measure the loss on", low=0.0, high=0.5)
    cache: str = row("", "folder for encoded images and captions; empty: one in the cache folder")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """The steps."""

    steps: int = row(1000, "steps in all", low=1)
    batch: int = row(1, "images in a step", low=1, high=256)
    accumulation: int = row(1, "batches whose gradients are added up before a step", low=1)
    learning_rate: float = row(1e-4, "highest learning rate; prodigy: 1", above=0, high=10)
    text_learning_rate: float | None = row(
        None, "of the text encoders; empty: half of the learning rate", above=0, high=10
    )
    optimizer: str = row("adamw", "adamw8bit needs CUDA; prodigy finds its rate itself", choices=OPTIMIZERS)
    weight_decay: float = row(0.01, "of the optimizer", low=0.0, high=1.0)
    schedule: str = row("cosine", "how the learning rate falls", choices=SCHEDULES)
    final_rate: float = row(0.05, "share of the learning rate at the end", low=0.0, high=1.0)
    warmup: int = row(20, "steps over which it rises first", low=0)
    clip_gradients: float = row(1.0, "largest norm of the gradient; 0: any", low=0.0)
    fused_backward: bool = row(
        False, "a step of each value once its gradient is known, which takes less memory; clip_gradients must be 0"
    )
    ema: float = row(
        0.0, "decay of a running mean of the adapter, which is what is saved; 0: none", low=0.0, high=0.9999
    )
    seed: int = row(0, "of everything that is drawn")


@dataclass(frozen=True, kw_only=True)
class LossConfig(Checked):
    """Loss that is made small."""

    type: str = row("l2", "mean square, or pseudo-Huber", choices=LOSSES)
    huber_c: float = row(0.1, "huber: where the square becomes linear", above=0)
    min_snr: float | None = row(5.0, "gamma of min-SNR (arXiv:2303.09556); empty: none; flow models: none", above=0)
    debiased: bool = row(False, "debiased estimation (arXiv:2310.08442), in place of min-SNR")
    noise_offset: float = row(
        0.0,
        "constant noise in each channel, for dark and bright images; flow models: none",
        low=0.0,
        high=1.0,
    )
    shift: float | None = row(
        None,
        "flow models: how far towards noise is trained; 1: evenly; empty: the model's own",
        above=0,
        high=100,
    )
    min_timestep: int = row(0, "least noisy timestep that is trained", low=0, high=999)
    max_timestep: int = row(999, "noisiest timestep that is trained", low=0, high=999)


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(Checked):
    """How memory is saved."""

    budget_gb: float | None = row(
        None, "chooses everything here, and storage and stream, to fit; empty: as given", above=0
    )
    checkpointing: str = row(
        "", "blocks that are computed again: all, every 2, blocks 0, 5, a budget as 1.5 GB; empty: none"
    )
    offload: str = row("", "where the inputs of such blocks wait: ram, or a folder")
    split_feed_forward: int = row(1, "pieces that feed-forwards are computed in", low=1, high=64)


@dataclass(frozen=True, kw_only=True)
class OutputConfig(Checked):
    """Files that are written."""

    name: str = row("", "file name without ending, in the folder of adapters, or a path")
    trigger: str = row("", "the word that calls it up, for card and metadata")
    save_every: int = row(250, "steps between two states to resume from; 0: only at the end", low=0)
    validate_every: int = row(50, "steps between two measurements on held-out images; 0: none", low=0)
    sample_every: int = row(0, "steps between two images with and without the adapter; 0: none", low=0)
    prompts: list[str] = field(
        default_factory=list, metadata={"says": "of these images, and of the preview; empty: captions of the images"}
    )
    peft_names: bool = row(
        False, "layers are called as PEFT does, which diffusers wants of transformers; else as kohya does"
    )
    keep_best: bool = row(True, "the file holds the step with the lowest validation loss, and NAME-last the last")
    resume: bool = row(True, "goes on from the state of a training of that name, if one was cut off")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """All of it."""

    model: ModelConfig = field(default_factory=ModelConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        """Raises `InvalidValueError` for what does not go together."""
        adapter, memory, loss = self.adapter, self.memory, self.loss
        if adapter.type != "textual_inversion" and not (adapter.rank or adapter.conv_rank or adapter.text_rank):
            raise InvalidValueError("All ranks are 0: there is nothing to train. Choose a rank of 1 or more.")
        if memory.offload and not memory.checkpointing:
            raise InvalidValueError(
                "memory.offload says where the inputs of blocks wait that are computed again, and none is. "
                "Give memory.checkpointing too."
            )
        if loss.min_timestep > loss.max_timestep:
            raise InvalidValueError(
                f"loss.min_timestep is {loss.min_timestep}, above loss.max_timestep, {loss.max_timestep}. Swap them."
            )
        if self.training.fused_backward:
            _check_fused(self.training)
        if self.training.optimizer == "adamw8bit" and self.model.device == "cpu":
            raise InvalidValueError("adamw8bit needs an NVIDIA GPU. Choose adamw or adafactor.")

    @property
    def text_rate(self) -> float:
        """The text encoders' learning rate."""
        training = self.training
        return training.learning_rate / 2 if training.text_learning_rate is None else training.text_learning_rate

    @property
    def trains_text(self) -> bool:
        """Whether encodings of captions change during the training."""
        return self.adapter.text_rank > 0 or self.adapter.type == "textual_inversion"


def _check_fused(training: TrainConfig) -> None:
    """Raises `InvalidValueError` for what needs all gradients at once."""
    start = "training.fused_backward moves each value before the other gradients are known, so"
    if training.accumulation > 1:
        raise InvalidValueError(f"{start} nothing can be added up. Set training.accumulation to 1, or use a batch.")
    if training.clip_gradients:
        raise InvalidValueError(f"{start} their norm cannot be limited. Set training.clip_gradients to 0.")
    if training.optimizer == "prodigy":
        raise InvalidValueError(f"{start} prodigy cannot estimate its rate from them. Choose adamw or adafactor.")


def read_config(path: Path, changes: Mapping[str, Mapping[str, Any]] | None = None) -> TrainingConfig:
    """A YAML file; `changes` are sections that go before it.

    Raises `InvalidValueError` for a file that cannot be read, for unknown keys with the nearest known one, and for
    values that cannot be.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be read ({error.strerror}). Name a YAML file.") from error
    except (YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise InvalidValueError(f"{path.name} is no YAML that can be used: {first_line(error)}") from error
    if not isinstance(tree, dict):
        raise InvalidValueError(f"{path.name} has no sections. It begins with one of: {', '.join(sections())}.")
    for section, values in (changes or {}).items():
        own = tree.get(section)
        tree[section] = {**(own if isinstance(own, dict) else {}), **values}
    return config_of(tree)


def changes_of(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Sections from words like `training.steps=500`. Raises `InvalidValueError` for words that are not like that."""
    from yaml import YAMLError, safe_load

    found: dict[str, dict[str, Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        section, _, name = key.strip().partition(".")
        if not (section and name and equals):
            raise InvalidValueError(f"{word!r} changes nothing. Write SECTION.KEY=VALUE, as training.steps=500.")
        try:
            found.setdefault(section, {})[name] = safe_load(text)
        except YAMLError as error:
            raise InvalidValueError(f"{word!r}: {text!r} is no value. Put it into quotes.") from error
    return found


def config_of(tree: Mapping[Any, Any]) -> TrainingConfig:
    """From sections as a file or a request has them. Raises `InvalidValueError` as `read_config`."""
    built: TrainingConfig = _build(TrainingConfig, tree, "")
    return built


def sections() -> tuple[str, ...]:
    """The names of the sections."""
    return tuple(item.name for item in fields(TrainingConfig))


def describe() -> str:
    """A configuration with every key at its default, and what each means, as YAML."""
    lines = []
    hints = get_type_hints(TrainingConfig)
    for section in sections():
        lines.append(f"{section}:  # {(hints[section].__doc__ or '').strip()}")
        lines.extend(_rows(hints[section], "  "))
    return "\n".join(lines) + "\n"


def _rows(kind: Any, indent: str) -> Iterator[str]:
    for item in fields(kind):
        allowed = item.metadata.get("choices")
        says = item.metadata["says"] + (f" ({', '.join(allowed)})" if allowed else "")
        if item.name == "folders":
            yield f"{indent}folders:  # {says}"
            nested = list(_rows(FolderConfig, f"{indent}    "))
            yield f"{indent}  - {nested[0].strip()}"
            yield from nested[1:]
            continue
        yield f"{indent}{item.name}: {_yaml(_default(item))}  # {says}".replace(":   #", ":  #")


def _default(item: Any) -> Any:
    return item.default if item.default is not MISSING else item.default_factory()


def _yaml(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and value and abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")  # YAML 1.1 wants the dot
        return f"{mantissa}e{exponent}"
    return str(value)


def _build(kind: Any, tree: Any, place: str) -> Any:
    if not isinstance(tree, Mapping):
        raise InvalidValueError(f"{place.rstrip('.')} is {tree!r}; it holds keys and values.")
    known = {item.name: item for item in fields(kind)}
    for key in tree:
        if key not in known:
            near = get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidValueError(f"Unknown key {place}{key}.{hint} Known: {', '.join(known)}.")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value, f"{place}{name}") for name, value in tree.items()})


def _value(hint: Any, value: Any, place: str) -> Any:
    if is_dataclass(hint):
        return _build(hint, {} if value is None else value, f"{place}.")
    origin, inside = get_origin(hint), get_args(hint)
    if origin is list:
        items = [] if value is None else value if isinstance(value, list) else [value]
        return [_item(inside[0], item, f"{place}[{number}]") for number, item in enumerate(items)]
    if origin in (Union, types.UnionType):
        return None if value is None else _value(inside[0], value, place)
    return _plain(hint, value, place)


def _item(hint: Any, value: Any, place: str) -> Any:
    """An item of a list; a folder may be its path alone."""
    if hint is FolderConfig and isinstance(value, str):
        value = {"path": value}
    return _value(hint, value, place)


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _plain(hint: Any, value: Any, place: str) -> Any:
    if hint is str and value is None:
        return ""
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if hint is float and isinstance(value, str):
        with suppress(ValueError):
            value = float(value)  # YAML 1.1 reads 1e-4, without a dot, as text
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint:
        raise InvalidValueError(f"{place} is {value!r}; it must be {WORDS[hint]}.")
    return value


def _check(name: str, value: Any, row: Mapping[str, Any]) -> None:
    choices: Sequence[str] | None = row.get("choices")
    if choices is not None and value not in choices:
        near = get_close_matches(str(value), choices, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidValueError(f"{name} is {value!r}.{hint} It may be one of: {', '.join(choices)}.")
    if value is None or isinstance(value, str | list | bool):
        return
    low, high, above = row.get("low"), row.get("high"), row.get("above")
    if value != value or (low is not None and value < low) or (high is not None and value > high):
        raise InvalidValueError(f"{name} is {value}; it may be {_range(low, high, above)}.")
    if above is not None and value <= above:
        raise InvalidValueError(f"{name} is {value}; it may be {_range(low, high, above)}.")


def _range(low: Any, high: Any, above: Any) -> str:
    first = f"above {above}" if above is not None else f"{low} or more" if low is not None else ""
    return f"{first}, at most {high}".lstrip(", ") if high is not None else first
