"""Which program made an image, and what it says, as an infotext: from the texts in a file, and from pasted JSON."""

import re
from collections.abc import Iterable, Iterator, Mapping

from modules.bounded import read_json
from modules.images.foreign.comfyui import comfyui_record, graph_of, is_workflow, nodes_in
from modules.images.foreign.drawthings import XMP, drawthings_json, drawthings_record, is_drawthings, swarm_record
from modules.images.foreign.easydiffusion import easydiffusion_record, is_easydiffusion
from modules.images.foreign.fooocus import fooocus_record, is_fooocus
from modules.images.foreign.invokeai import dream_record, invokeai_record, is_invokeai, old_invokeai_record
from modules.images.foreign.novelai import SOFTWARE, novelai_infotext
from modules.images.foreign.plain_json import plain_record
from modules.images.foreign.record import ForeignRecord
from modules.images.infotext import quote, written_fields

IN_CHUNKS = (
    *("invokeai_metadata", "invokeai", "sd-metadata", "generation_data", "prompt", "workflow", "parameters", "Comment"),
    *("UserComment", "ImageDescription"),
)
"""Texts of a file that may hold JSON of theirs, the one that says most first."""
MIN_FIELDS = 2
ITS_WORDS = {
    ", Seed Mode: ": {"Guidance Scale": "CFG scale", "Strength: 1\\.0, Seed Mode": "Seed Mode"},
    ", ADM Guidance: ": {
        **{"Base Model": "Model", "Base Model Hash": "Model hash", "Scheduler": "Schedule type"},
        "VAE: Default \\(model\\), Raw prompt": "Raw prompt",
    },
    ", Scheduler: ": {"Scheduler": "Schedule type"},
    ", Sampler sigma: ": {"Sampler sigma": "Schedule type"},
}
"""How Draw Things, Fooocus, nodes of ComfyUI and SD.Next call fields of an infotext, by a field that only they have."""
MAIN = ("Steps", "Sampler", "CFG scale", "Seed", "Size", "Model")
"""Fields that say how an image was made: the record of a file with most of them is the one that counts."""
_SAYS_NOTHING = re.compile(r"|unknown|none|null|n/a|undefined|EMS-\d+-EMS|urn:air:.*", re.IGNORECASE)
_CUT_OFF = re.compile(r'\s*\{\s*"')
"""How a table of JSON begins; "{a|b}" of a prompt does not."""
_LORA_WEIGHTS = re.compile(r', Lora weights: "([^"]*)"')
_WEIGHT = re.compile(r"([^\s,:][^,:]*): (-?\d+(?:\.\d+)?)")


def best_infotext(written: Iterable[str], items: Mapping[str, str], width: int, height: int) -> str | None:
    """Return the infotext that says most of how an image was made: of the texts that stand where infotexts do, the
    first of which counts where none says more, and of what programs have written elsewhere in the file. None where no
    text is one; JSON that no reader knows never is. What it leaves unsaid of the model, another record may say. Sizes
    are in pixels, of the image, for programs that do not record it.
    """
    given = [usual for text in written if (usual := usual_infotext(text))]
    found = [*given, *filter(None, _foreign_infotexts(items, width, height))]
    if not found:
        return None
    says = [_says(text) for text in found]
    best = max(range(len(found)), key=lambda at: (len(says[at]), -at))
    if "Model" in says[best]:
        return found[best]
    other = next((fields for fields in says if fields.get("Model")), {})
    return _with_model(found[best], other)


def _says(infotext: str) -> dict[str, str]:
    """The main fields and prompts of an infotext that say something."""
    prompt, _, fields = written_fields(infotext)
    usual = {key.lower(): value for key, value in fields.items()}
    found = {key: usual.get(key.lower(), "") for key in MAIN} | {"Prompt": prompt}
    found = {key: value for key, value in found.items() if not _SAYS_NOTHING.fullmatch(value.strip())}
    return {**found, **({"Model hash": usual["model hash"]} if "Model" in found and "model hash" in usual else {})}


def _with_model(infotext: str, other: Mapping[str, str]) -> str:
    """The infotext with another record's model, where it names none itself or one by a number."""
    head, _, line = infotext.rpartition("\n")
    if "Model" not in other or not written_fields(infotext)[2]:
        return infotext
    line = re.sub(r", Model(?: hash)?: [^,]*", "", line)
    added = "".join(f", {key}: {quote(other[key])}" for key in ("Model", "Model hash") if key in other)
    return f"{head}\n{line}{added}"


def _foreign_infotexts(items: Mapping[str, str], width: int, height: int) -> Iterator[str | None]:
    """Yield what known programs say in the texts of an image file."""
    if items.get("Software") == SOFTWARE:
        yield novelai_infotext(items, width, height)
    if is_easydiffusion(items):
        yield easydiffusion_record(items).infotext
    if XMP in items and (given := drawthings_json(items[XMP])) is not None:
        yield drawthings_record(given).infotext
    for name in IN_CHUNKS:
        if name in items and items.get("Software") != SOFTWARE:
            yield infotext_of_text(items[name])
    if "Dream" in items and (dream := dream_record(items["Dream"])) is not None:
        yield dream.infotext


def usual_infotext(text: str) -> str:
    """Return a text in the words of an infotext where a known program wrote it, other texts unchanged, and nothing of
    JSON that no reader knows: it would become the prompt."""
    text = text.replace("\r\n", "\n").strip("\0")
    return infotext_of_text(text) or ("" if is_json(text) else text)


def is_json(text: str) -> bool:
    """Return whether a text is JSON, or begins as JSON that was cut off, and no prompt."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    return _json(text) is not None or (_CUT_OFF.match(text) is not None and not set(written_fields(text)[2]) & {*MAIN})


def infotext_of_text(text: str) -> str | None:
    """Return an infotext from JSON that one of the programs writes, or from an infotext in their words; None for any
    other text, and for one that says nearly nothing of how an image is made."""
    text = text.strip("\0")
    if not text.lstrip().startswith("{"):
        return in_usual_words(text)
    given = _json(text)
    if isinstance(given, dict) and given.get("Software") == SOFTWARE:
        return novelai_infotext(given)
    record = _record(given)
    return None if record is None or len(record.fields) < MIN_FIELDS else record.infotext


def in_usual_words(text: str) -> str | None:
    """An infotext of Draw Things or Fooocus with the usual names of its fields; None for those of other programs."""
    head, _, line = text.strip().rpartition("\n")
    words = next((words for mark, words in ITS_WORDS.items() if mark in line), None)
    if words is None:
        return None
    for theirs, usual in words.items():
        line = re.sub(rf"(^|, ){theirs}: ", rf"\g<1>{usual}: ", line)
    weights = _LORA_WEIGHTS.search(line)
    if weights is None:
        return f"{head}\n{line}"
    tags = "".join(f" <lora:{name}:{weight}>" for name, weight in _WEIGHT.findall(weights[1]))
    prompt, mark, negative = head.partition("\nNegative prompt:")
    return f"{prompt}{tags}{mark}{negative}\n{_LORA_WEIGHTS.sub('', line)}"


def _json(text: str) -> object:
    try:
        return read_json(text, constant=lambda name: None)  # ComfyUI writes NaN for nodes that always run
    except ValueError:
        return None


def _record(given: object) -> ForeignRecord | None:
    if not isinstance(given, dict):
        return None
    nodes = nodes_in(given)
    if nodes:
        return _of_site(comfyui_record(nodes), given.get("extraMetadata"))
    for table in ("prompt", "workflow"):  # a graph in a table of its own, as nodes write it that save JPEG and WebP
        if isinstance(given.get(table), dict):
            return _record(given[table])
    if is_workflow(given):
        return comfyui_record(graph_of(given))
    if isinstance(given.get("sui_image_params"), dict):
        return swarm_record(given["sui_image_params"])
    if is_invokeai(given):
        return invokeai_record(given)
    if isinstance(given.get("image"), dict) and "app_version" in given:
        return old_invokeai_record(given)
    if is_fooocus(given):
        return fooocus_record(given)
    return drawthings_record(given) if is_drawthings(given) else plain_record(given)


def _of_site(record: ForeignRecord | None, extra: object) -> ForeignRecord | None:
    """Read what Civitai's site writes next to a graph, which counts, with what only the graph says."""
    given = _json(extra) if isinstance(extra, str) else extra
    said = plain_record(given) if isinstance(given, dict) else None
    if said is None:
        return record
    said.program = "Civitai"
    if record is not None:
        said.fields = {**record.fields, **{key: value for key, value in said.fields.items() if value is not None}}
    return said
