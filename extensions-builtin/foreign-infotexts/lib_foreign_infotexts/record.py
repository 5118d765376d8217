"""Records of images of other programs, in the words of an infotext, so that all of it is pasted in one way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from modules.images.infotext import format_infotext
from modules.sampling.names import schedule_named, split_names

MAX_FIELDS = 1000
MAX_VALUE_CHARS = 300
"""Of a field that no form has: enough to recognize it in a sentence."""


@dataclass
class ForeignRecord:
    """Prompts and fields by the keys of an infotext; `loras` become tags of the prompt."""

    program: str
    prompt: str = ""
    negative_prompt: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    loras: list[tuple[str, object]] = field(default_factory=list)  # name of the file, weight

    def take(self, given: Mapping[str, Any], keys: Mapping[str, str]) -> None:
        """Take over values under these names: theirs -> the infotext's."""
        for theirs, ours in keys.items():
            value = given.get(theirs)
            if value not in (None, "", [], {}):
                self.fields.setdefault(ours, value)

    def take_rest(self, given: Mapping[str, Any], known: Iterable[str]) -> None:
        """Everything else that says something, under its own name, for the user to read what was not taken over."""
        skipped = set(known)
        for key, value in given.items():
            if len(self.fields) < MAX_FIELDS and key not in skipped and value not in (None, "", [], {}, False, "None"):
                self.fields.setdefault(key.replace("_", " ").replace(":", " "), str(value)[:MAX_VALUE_CHARS])

    @property
    def infotext(self) -> str:
        """The whole as an infotext; values of other types than text and numbers are left out."""
        fields = {key: value for key, value in self.fields.items() if isinstance(value, str | int | float)}
        if str(fields.get("Sampler")).lower().startswith("uni_pc_bh2"):
            fields.setdefault("UniPC variant", "bh2")
        names = split_names({"sampler": fields.get("Sampler"), "scheduler": fields.get("Schedule type")})
        if names["sampler"]:
            fields["Sampler"] = names["sampler"]
        if names["scheduler"]:
            fields["Schedule type"] = schedule_named(str(names["scheduler"])) or names["scheduler"]
        tags = "".join(f" <lora:{stem(name)}:{weight}>" for name, weight in self.loras)
        ordered = {key: fields.pop(key) for key in _FIRST if key in fields}
        prompt = (str(self.prompt).strip() + tags).strip()
        return format_infotext(prompt, str(self.negative_prompt).strip(), {**ordered, **fields, "App": self.program})


_FIRST = ("Steps", "Sampler", "Schedule type", "CFG scale", "Seed", "Size", "Model hash", "Model")


def listed(given: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a name; none where something else stands there."""
    found = given.get(key)
    return found if isinstance(found, list) else []


def stem(name: object) -> str:
    """The name of a model file without folders and ending."""
    text = PurePosixPath(PureWindowsPath(str(name)).as_posix()).name
    for ending in (".safetensors", ".ckpt", ".pt", ".gguf", ".sft", ".bin"):
        text = text.removesuffix(ending)
    return text


def size_of(width: object, height: object) -> str | None:
    """ "512x768" of two whole numbers; None for anything else."""
    try:
        return f"{int(str(width))}x{int(str(height))}"
    except ValueError:
        return None
