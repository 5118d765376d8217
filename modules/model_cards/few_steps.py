"""Files that make images in few steps: which distillation they come from, and the steps, CFG scale, sampler and
schedule type that it asks for. Offered on cards and in the API; nothing is set unless somebody takes it.

A file is known by its name and by the names in its metadata, never by descriptions, which also name what a file goes
well with. A style's name may hold "turbo" or "lightning" too: for adapters these words count only beside the name of a
model or a number of steps. Values are those of the files' own model cards: LCM (arXiv:2311.05556), Lightning
(arXiv:2402.13929), Hyper-SD (arXiv:2404.13686), DMD2 (arXiv:2405.14867), Turbo (arXiv:2311.17042). The
tiny decoder (TAESD) is asked for where a file of it is there: the VAE would take longer than one step does.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from modules.settings.sections.stable_diffusion import TINY

TITLES = ("ss_output_name", "modelspec.title")
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_STEPS = re.compile(r"(?<![a-z0-9])(\d{1,2})[ -]?steps?(?![a-z])")
_WITH_CFG = re.compile(r"\bcfg\b")
_XL = re.compile(r"xl|\b(?:pony|illustrious|noobai)")
_FLOW = re.compile(r"\bsd ?3|\bflux\b")
MAX_STEPS = 16
UNNAMED = "pytorch_lora_weights"
"""What many are called that were downloaded; their folder has the name."""
GUIDED_CFG = 5.0
"""Of files that keep classifier-free guidance, which say so by "CFG" in their names (Hyper-SD: 5 to 8)."""


@dataclass(frozen=True)
class FewSteps:
    """Values that a file asks for. `sampler` and `scheduler` are names of the catalogs; "" leaves the form's own.
    `tiny_vae` is what files of the tiny decoder for its latents are called, "" where the name does not say."""

    method: str
    steps: int
    cfg_scale: float
    sampler: str
    scheduler: str
    tiny_vae: str = ""

    @property
    def label(self) -> str:
        """On the card: "LCM: 6 steps"."""
        return f"{self.method}: {self.steps} steps"

    @property
    def values(self) -> str:
        """All of it in one line."""
        parts = (f"{self.steps} steps", f"CFG scale {self.cfg_scale:g}", self.sampler, self.scheduler)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class _Method:
    """`in_adapter`, `in_checkpoint`: patterns for a name in small letters whose words have blanks between them."""

    preset: FewSteps
    in_adapter: re.Pattern[str]
    in_checkpoint: re.Pattern[str]


_MODEL = r"(?:sd ?xl|xl|sd|sd ?1 ?5|sd ?v?1 ?5|sd ?3(?: ?5)?|flux)"
_METHODS = (
    _Method(
        FewSteps("Turbo", 1, 1.0, "Euler a", "SGM Uniform"),
        re.compile(r"(?!)"),  # no adapter
        re.compile(r"^sd ?(?:xl ?)?turbo(?: 1 0)?(?: fp16)?$"),
    ),
    _Method(
        FewSteps("DMD2", 4, 1.0, "LCM", "SGM Uniform"),
        re.compile(r"\bdmd ?2?\b"),
        re.compile(r"\bdmd ?2\b"),
    ),
    _Method(
        FewSteps("Hyper-SD", 8, 1.0, "Euler", "SGM Uniform"),
        re.compile(rf"\bhyper ?{_MODEL}\b|\bhyper\b.*\b\d+ ?steps?\b"),
        re.compile(r"\bhyper\b(?! ?(?:real|detail|photo|reali))"),
    ),
    _Method(
        FewSteps("Lightning", 4, 1.0, "Euler", "SGM Uniform"),
        re.compile(rf"\b{_MODEL} lightning\b|\blightning\b.*\b(?:\d+ ?steps?|lora)\b|\b\d+ ?steps?\b.*\blightning\b"),
        re.compile(r"\blightning\b"),
    ),
    _Method(
        FewSteps("LCM", 6, 1.0, "LCM", "SGM Uniform"),
        re.compile(r"\blcm\b"),
        re.compile(r"\blcm\b"),
    ),
    _Method(
        FewSteps("Turbo", 4, 1.0, "Euler a", "SGM Uniform"),
        re.compile(rf"\b{_MODEL} turbo\b|\bturbo (?:lora|alpha)\b|\bturbo\b.*\b\d+ ?steps?\b"),
        re.compile(r"\bturbo\b"),
    ),
)
"""In the order in which they are tried: a DMD2 file's name may say LCM, for its sampler."""


def adapter_few_steps(path: Path, metadata: Mapping[str, str]) -> FewSteps | None:
    """Return what an adapter asks for by its name or its metadata; None for those that need no few steps."""
    name = path.parent.name if path.stem == UNNAMED else path.stem
    return _first((name, *(metadata.get(key, "") for key in TITLES)), is_adapter=True)


def checkpoint_few_steps(name: str) -> FewSteps | None:
    """Return what a checkpoint asks for by its name without suffix; None for those that need no few steps."""
    return _first((name,), is_adapter=False)


def _first(names: Iterable[str], is_adapter: bool) -> FewSteps | None:
    for name in names:
        text = " ".join(filter(None, _WORDS.split(name))).lower()  # "Any-Lightning_4step": "any lightning 4step"
        for method in _METHODS:
            if (method.in_adapter if is_adapter else method.in_checkpoint).search(text):
                return _as_named(method.preset, text)
    return None


def _as_named(preset: FewSteps, text: str) -> FewSteps:
    """The preset with the number of steps, and the guidance, that the file's name says."""
    if _FLOW.search(text):
        preset = replace(preset, sampler="Euler", scheduler="Simple")
    else:
        preset = replace(preset, tiny_vae="taesdxl" if _XL.search(text) else "taesd")
    steps = _STEPS.search(text)
    if steps and 0 < int(steps[1]) <= MAX_STEPS:
        preset = replace(preset, steps=int(steps[1]))
    return replace(preset, cfg_scale=GUIDED_CFG) if _WITH_CFG.search(text) else preset


def few_steps_json(found: FewSteps | None, tiny_vaes: Collection[str] = ()) -> dict[str, str | int | float] | None:
    """Return the values with what the card says, for replies. `tiny_vaes`: the names of tiny decoders that are here."""
    if found is None:
        return None
    decoder = TINY if found.tiny_vae in tiny_vaes else ""
    values = ", ".join(filter(None, (found.values, decoder)))
    asked = {key: value for key, value in asdict(found).items() if key != "tiny_vae"}
    return {**asked, "decoder": decoder, "label": found.label, "values": values}
