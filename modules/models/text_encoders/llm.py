"""Language models of the Qwen3 architecture as text encoders (Yang et al. 2025, arXiv:2505.09388), and the language
parts of Qwen3-VL and Qwen2.5-VL (Bai et al. 2025, arXiv:2502.13923), which have the layers of Qwen3 and Qwen2 next to a
part that sees (`vision`): without an image their positions are those of any text. Mistral Small 3 and Ministral 3 have
the layers of Qwen3 without its norms of queries and keys.

Names are those of transformers' `Qwen3Model`, `Qwen2Model`, `MistralModel` and `Ministral3Model`, which files put
behind `model.`; all sizes follow from the tensors, and only as many layers are built, loaded and run as the wanted
hidden states need.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.models.detection.parts import (
    LEVEL,
    MISTRAL_NAME,
    QWEN2_SIGN,
    SIGN,
    TABLE,
    TEKKEN_TOKENS,
    VISION,
    is_mistral_small,
)
from modules.models.libraries import library_name
from modules.models.names.component import Component, Header, meta_module, on_meta, reading_sizes
from modules.models.names.folder_layout import Names
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.encoding import Encoding
from modules.models.text_encoders.llm_layers import IMAGE_TOKEN, Context, run_layers
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.models.text_encoders.vision import Sight

USUAL_HEAD = 128
"""The width of heads where no tensor tells it: of Qwen2 in all sizes from 1.5B on, and of Mistral."""
TIED_WIDTH = 2560
"""Models of up to this width have no head of their own."""
LAYER = re.compile(r"\blayers\.(\d+)\.")
ROPE_THETA = 1_000_000.0
NORM_EPS, MISTRAL_NORM_EPS = 1e-6, 1e-5
LONGEST = 40_960
TEXTS_PER_CALL = 16
PADDED_AT = 1
"""The place of padding that a denoiser attends to."""
APART = ("lm_head.", VISION, "vision_tower.", "multi_modal_projector.", "tekken_model")
"""Beginnings of what files hold next to the layers of a language model, behind its prefix."""


@dataclass(frozen=True)
class HiddenStates:
    """Which hidden states are used, as transformers numbers them: 0 is the embedding, n the output of layer n, -1 the
    last one's after the final norm or, if it is not `normed`, before it, -2 what the last layer is given. Several stand
    side by side on the feature axis."""

    numbers: tuple[int, ...]
    normed: bool = True

    def layers(self, count: int) -> int:
        """How many of `count` layers have to run."""
        return max(self.at(count))

    def at(self, count: int) -> list[int]:
        """The numbers counted from the embedding in a model of `count` layers."""
        return [number if number >= 0 else count + 1 + number for number in self.numbers]

    @property
    def are_normed(self) -> bool:
        """Whether the last one is that after the final norm."""
        return self.numbers == (-1,) and self.normed


@dataclass(frozen=True)
class Stretch:
    """How positions are stretched to texts that are longer by `factor` than the `trained` ones (YaRN, Peng et al. 2023,
    arXiv:2309.00071): frequencies of fewer than `slow` turns in the latter are lower by the factor, those of more than
    `fast` are not. The defaults are those of Mistral 3."""

    factor: float = 16.0
    trained: int = 16_384
    fast: float = 32.0
    slow: float = 1.0

    def __call__(self, frequencies: Tensor, theta: float) -> Tensor:
        """The `frequencies` [n], from the highest, of a rotary embedding with the base `theta`."""
        count = len(frequencies)
        first, last = (
            count * math.log(self.trained / (turns * 2 * math.pi)) / math.log(theta) for turns in (self.fast, self.slow)
        )
        low, high = max(math.floor(first), 0), min(math.ceil(last), 2 * count - 1)
        places = torch.arange(count, dtype=torch.float32, device=frequencies.device)
        lowered = ((places - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequencies / self.factor * lowered + frequencies * (1 - lowered)


class Rotation(nn.Module):
    """The rotary embedding of Qwen and others without buffers, which a module on the meta device could not keep."""

    def __init__(self, head_width: int, theta: float = ROPE_THETA, stretch: Stretch | None = None) -> None:
        super().__init__()
        self._width, self._theta, self._stretch = head_width, theta, stretch

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B,T,head_width] in the dtype of `x` for positions [B,T]."""
        steps = torch.arange(0, self._width, 2, dtype=torch.float32, device=x.device) / self._width
        frequencies = 1.0 / self._theta**steps
        if self._stretch is not None:
            frequencies = self._stretch(frequencies, self._theta)
        angles = position_ids[..., None].float() * frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def llm_keymap(prefix: str) -> KeyMap:
    """Return the key map of transformers' model, whose level `model` files have."""
    return KeyMap(ModulePair(f"{prefix}.{LEVEL}{part}", part) for part in ("embed_tokens", "layers", "norm"))


def llm_names(header: Header, prefix: str) -> Names:
    """From the names in a file or folder that holds the language model alone, with the level `model` or without, to
    those in a whole checkpoint, where it is at `prefix`."""
    pairs = (*(f"{LEVEL}{part}" for part in ("embed_tokens", "layers", "norm")), "lm_head")
    keymap = KeyMap(ModulePair(f"{prefix}.{name}", name) for name in pairs)
    return keymap, {key: key if key.startswith((LEVEL, "lm_head.")) else f"{LEVEL}{key}" for key in header}


def vision_llm_names(header: Header, prefix: str) -> Names:
    """Return the names as `llm_names` does, for a language model that sees: its names may be behind
    `model.language_model.` or one of these levels, and those of its vision part, which is kept separately at
    `prefix`.visual., behind `model.` too."""
    parts = (*(f"{LEVEL}{part}" for part in ("embed_tokens", "layers", "norm")), VISION.rstrip("."), "lm_head")
    keymap = KeyMap(ModulePair(f"{prefix}.{name}", name) for name in parts)
    short = {key: key.removeprefix(LEVEL).removeprefix("language_model.") for key in header}
    apart = (VISION, "lm_head.")
    return keymap, {key: name if name.startswith(apart) else f"{LEVEL}{name}" for key, name in short.items()}


def vision_llm_aliases(prefix: str) -> tuple[tuple[str, str], ...]:
    """Return the aliases of `ModelFamily` for a language model that sees, at `prefix`."""
    return ((f"{prefix}.model.language_model", f"{prefix}.model"), (f"{prefix}.model.visual", f"{prefix}.visual"))


def mistral_names(header: Header, prefix: str) -> Names:
    """Return the names as `llm_names` does, for a language model of Mistral, which what it sees with may be next to."""
    parts = (*(f"{LEVEL}{part}" for part in ("embed_tokens", "layers", "norm")), *(name.rstrip(".") for name in APART))
    keymap = KeyMap(ModulePair(f"{prefix}.{name}", name) for name in parts)
    return keymap, {
        key: MISTRAL_NAME.sub(LEVEL, key) if MISTRAL_NAME.match(key) else key.removeprefix(LEVEL) for key in header
    }


def llm_component(
    name: str,
    header: Header,
    prefix: str,
    states: HiddenStates,
    hint: str,
    context_width: int | None = None,
    *,
    theta: float = ROPE_THETA,
) -> Component:
    """The language model at `prefix` on the meta device, with the layers that `states` need. Raises `CheckpointError`
    where it is missing or not whole, of fewer layers than they need, or of another width than the tokens that the
    denoiser takes (`context_width`); `hint` says what to do. `theta`: the base of its rotary embedding."""
    level, (kind, sizes, count) = f"{prefix}.{LEVEL}", _sizes(header, prefix, hint)
    width, layers = sizes["hidden_size"], states.layers(count)
    if context_width is not None and width * len(states.numbers) != context_width:
        path = header[f"{level}{TABLE}"].file
        raise CheckpointError(
            f"its text encoder{f' {path.name}' if path else ''} is {width} wide, and the model takes tokens of "
            f"{context_width // len(states.numbers)}. {hint}"
        )
    if layers > count:
        raise CheckpointError(f"its language model has {count} layers, and the model needs {layers}. {hint}")
    sizes = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}, **sizes, "num_hidden_layers": layers}
    module = meta_module(f"{kind}Model", library_name(f"{kind}Config")(**sizes))
    module.rotary_emb = Rotation(sizes["head_dim"], theta, Stretch() if "Ministral3" in kind else None)
    unused = [
        *(f"{prefix}.{name}" for name in APART),
        *(f"{level}layers.{number}." for number in range(layers, count)),
    ]
    if not states.are_normed:
        module.norm = nn.Identity()
        unused.append(f"{level}norm.")
    return Component(name, module, llm_keymap(prefix), (f"{prefix}.",), hint, unused=tuple(unused))


def head_component(header: Header, prefix: str, states: HiddenStates) -> Component:
    """Make what the language model at `prefix` writes with, on the meta device, besides the layers that `states` need:
    the layers behind those, the last norm, and the head. Smaller models use their table of tokens as the head. Raises
    `CheckpointError` where one of them is missing."""
    level, (kind, sizes, count) = f"{prefix}.{LEVEL}", _sizes(header, prefix, HEAD_HINT)
    head, norm, first = f"{prefix}.lm_head", f"{level}norm", states.layers(count)
    if f"{head}.weight" not in header and sizes["hidden_size"] <= TIED_WIDTH:
        head = f"{level}embed_tokens"
    missing = [key for key in (f"{head}.weight", f"{norm}.weight") if key not in header]
    if missing:
        raise CheckpointError(f"its text encoder cannot write: it has no {' and no '.join(missing)}. {HEAD_HINT}")
    model = meta_module(f"{kind}Model", library_name(f"{kind}Config")(**sizes, num_hidden_layers=count))
    module: Any = nn.Module()
    module.layers, module.norm = model.layers[first:], nn.Identity() if states.are_normed else model.norm
    with on_meta():
        module.lm_head = nn.Linear(sizes["hidden_size"], sizes["vocab_size"], bias=False)
    pairs = {head: "lm_head"} | ({} if states.are_normed else {norm: "norm"})
    pairs |= {f"{level}layers.{number}": f"layers.{number - first}" for number in range(first, count)}
    prefixes = tuple(f"{key}." for key in pairs)
    keymap = KeyMap(ModulePair(original, ours) for original, ours in pairs.items())
    return Component("text_encoder_head", module, keymap, prefixes, HEAD_HINT)


HEAD_HINT = "Use an encoder file with all layers, the last norm and the head (GGUF files have them)."


def _sizes(header: Header, prefix: str, hint: str) -> tuple[str, dict[str, Any], int]:
    """Return for the language model at `prefix` the beginning of its classes' names, its configuration without layers,
    and how many it has."""
    level = f"{prefix}.{LEVEL}"
    if not any(key.startswith(level) for key in header):
        raise CheckpointError(f"it has no text encoder (looked for {level}*), and none was found. {hint}")
    with reading_sizes("language model is not whole or of another type", hint):
        vocabulary, width = header[f"{level}{TABLE}"].shape
        inner, _ = header[f"{level}layers.0.self_attn.q_proj.weight"].shape
        key_inner, _ = header[f"{level}layers.0.self_attn.k_proj.weight"].shape
        kind = "Qwen2" if f"{level}{QWEN2_SIGN}" in header else "Qwen3"
        if vocabulary == TEKKEN_TOKENS:
            kind = "Mistral" if is_mistral_small(header, level) else "Ministral3"
        (head_width,) = header[f"{level}{SIGN}"].shape if kind == "Qwen3" else (USUAL_HEAD,)
        mlp_width, _ = header[f"{level}layers.0.mlp.gate_proj.weight"].shape
    count = max(int(match[1]) for key in header if key.startswith(level) and (match := LAYER.search(key))) + 1
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "num_attention_heads": inner // head_width,
        "num_key_value_heads": key_inner // head_width,
        "head_dim": head_width,
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": NORM_EPS,
        "use_cache": False,
    }
    if kind == "Ministral3":  # whose settings of positions are those of its class
        longest = Stretch().trained * int(Stretch().factor)
        sizes |= {"rms_norm_eps": MISTRAL_NORM_EPS, "rope_parameters": None, "max_position_embeddings": longest}
    elif kind == "Mistral":
        sizes |= {"rms_norm_eps": MISTRAL_NORM_EPS, "sliding_window": None}
    return f"transformers.{kind}", sizes, count


@dataclass(frozen=True)
class Template:
    """Words around a text: `words` has `{}` where the text stands. With `keeps_end` what follows the text is there in
    full, and the text is cut off before it. The first `dropped` tokens are read, and not given on. With `pads_left`
    padding is in front of a text, else behind it."""

    words: str = "{}"
    keeps_end: bool = False
    dropped: int = 0
    pads_left: bool = False


class LlmEncoder:
    """Wraps a model of `llm_component`, a `TextEncoder`.

    Texts are filled up to `tokens` tokens at least and cut off at `most`; the padding is hidden from the real tokens.
    `Encoding.mask` says which tokens are real; with a `window` those up to the next multiple of it count as real too,
    and are at `PADDED_AT`.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: LlmTokenizer,
        device: torch.device | str,
        states: HiddenStates,
        *,
        template: Template = Template(),
        tokens: int = 1,
        most: int | None = None,
        window: int = 0,
    ) -> None:
        self._model: Any = model
        self._window, self._pads_left = window, template.pads_left
        self._tokenizer = tokenizer
        self._device = torch.device(device)
        self._states = states
        self._before, self._after = template.words.split("{}")
        self._tokens, self._most = tokens, most
        self._keeps_end, self._dropped = template.keeps_end, template.dropped

    def count(self, text: str) -> int:
        """Tokens of a text without its template."""
        return self._tokenizer.count(text)

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Encoding:
        """The hidden states [B,T,states * width], T being the longest text's."""
        rows = [self._ids(text) for text in texts]
        counted = [-(-len(row) // self._window) * self._window if self._window else len(row) for row in rows]
        longest = max(self._tokens, 1, *counted)
        ids = torch.tensor([[*row, *[self._tokenizer.pad_id] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[column < len(row) for column in range(longest)] for row in rows])
        if self._pads_left:
            places = (torch.arange(longest) + torch.tensor([[len(row)] for row in rows])) % longest
            ids, mask = ids.gather(1, places), mask.gather(1, places)
        parts = [
            self._states_of(ids[start : start + TEXTS_PER_CALL], mask[start : start + TEXTS_PER_CALL])
            for start in range(0, len(rows), TEXTS_PER_CALL)
        ]
        if self._window:
            mask = torch.arange(longest)[None] < torch.tensor(counted)[:, None]
        return Encoding(torch.cat(parts)[:, self._dropped :], mask[:, self._dropped :])

    @torch.no_grad()
    def encode_seeing(
        self, texts: Sequence[str], images: str, sights: Sequence[Sight], leaves_out_images: bool = False
    ) -> list[Tensor]:
        """The hidden states [T,states * width] of each text behind `images`, words with an image token for each of the
        sights, with the states of the sights or without. Image tokens in a text itself are left out, and so are its
        tokens beyond `most`."""
        before, after = self._tokenizer.ids(f"{self._before}{images}"), self._tokenizer.ids(self._after)
        found = []
        for text in texts:
            own = [token for token in self._tokenizer.ids(text) if token != IMAGE_TOKEN][: self._most]
            context = Context([*before, *own, *after], sights)
            x = context.embedded(self._model.embed_tokens, self._device)
            states = [x, *run_layers(self._model, self._model.layers, x, context.places, context)]
            states[-1] = self._model.norm(states[-1])
            last = self._states.numbers in ((-1,), (-2,))
            picked = states[-1:] if last else [states[number] for number in self._states.numbers]
            kept = [
                place
                for place, token in enumerate(context.ids)
                if place >= self._dropped and not (leaves_out_images and token == IMAGE_TOKEN)
            ]
            found.append(torch.cat(picked, dim=-1)[0, kept])
        return found

    def _ids(self, text: str) -> list[int]:
        """Return the token ids of a text in its template, cut off."""
        if not self._keeps_end or self._most is None:
            return self._tokenizer.ids(f"{self._before}{text}{self._after}")[: self._most]
        end = self._tokenizer.ids(self._after)
        return [*self._tokenizer.ids(f"{self._before}{text}")[: self._most - len(end)], *end]

    def _states_of(self, ids: Tensor, mask: Tensor) -> Tensor:
        ids, seen = ids.to(self._device), None if bool(mask.all()) else mask.to(self._device)
        places = None
        if self._window:
            places = torch.where(mask, torch.arange(mask.shape[1]), PADDED_AT).to(self._device)
        layers = int(self._model.config.num_hidden_layers)
        if self._states.numbers in ((-1,), (-2,)):  # the output of the last layer that was built
            output = self._model(input_ids=ids, attention_mask=seen)
            states: Tensor = output.last_hidden_state
            return states
        output = self._model(input_ids=ids, attention_mask=seen, position_ids=places, output_hidden_states=True)
        found = [*output.hidden_states[:layers], output.last_hidden_state]
        return torch.cat([found[number] for number in self._states.numbers], dim=-1)
