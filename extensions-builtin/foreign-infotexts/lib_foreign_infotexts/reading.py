"""Which program made an image, and what it says, as an infotext: from the texts in a file, and from pasted JSON."""

import re
from collections.abc import Iterator, Mapping

from lib_foreign_infotexts.comfy_drawn import graph_of, is_workflow
from lib_foreign_infotexts.comfyui import comfyui_record, nodes_in
from lib_foreign_infotexts.drawthings import drawthings_record, is_drawthings, swarm_record
from lib_foreign_infotexts.easydiffusion import easydiffusion_record, is_easydiffusion
from lib_foreign_infotexts.fooocus import fooocus_record, is_fooocus
from lib_foreign_infotexts.invokeai import dream_record, invokeai_record, is_invokeai, old_invokeai_record
from lib_foreign_infotexts.lines import line_record, xmp_texts
from lib_foreign_infotexts.novelai import SOFTWARE, novelai_infotext
from lib_foreign_infotexts.plain_json import plain_record
from lib_foreign_infotexts.record import ForeignRecord
from modules.images.infotext import quote, written_fields
from modules.images.other_programs import XMP, json_of

IN_CHUNKS = (
    *("invokeai_metadata", "invokeai", "sd-metadata", "generation_data", "prompt", "workflow", "parameters", "Comment"),
    *("UserComment", "ImageDescription"),
)
"""Texts of a file that may hold JSON of theirs, the one that says most first."""
PROGRAMS = (
    ("A1111, Forge, reForge, SD.Next", "PNG chunk `parameters`, EXIF UserComment, pixels", "all fields of the form"),
    ("ComfyUI", "PNG chunks `prompt`, `workflow`; any text of EXIF", "the first sampler and what leads to it"),
    ("Civitai's generator", "EXIF UserComment: a graph and `extraMetadata`", "prompts and fields; no files by number"),
    ("InvokeAI 1 to 5", "PNG chunks `invokeai_metadata`, `sd-metadata`, `Dream`", "prompts, fields, LoRAs"),
    ("Fooocus, RuinedFooocus", "PNG chunk `parameters`, as JSON or as text", "prompts, fields, LoRAs, refiner"),
    ("SwarmUI", "`sui_image_params`", "prompts, fields, LoRAs"),
    ("NovelAI", "PNG chunks, EXIF UserComment, pixels", "prompts and fields; characters are named"),
    ("Draw Things", "XMP", "prompts, fields, LoRAs"),
    ("Mochi Diffusion", "XMP, EXIF ImageDescription", "prompts and fields"),
    ("KoboldCpp, stable-diffusion.cpp", "PNG chunk `parameters`", "prompts and fields"),
    ("Midjourney", "PNG chunk `Description`", "prompt, what is left out, seed; other options are named"),
    ("Easy Diffusion", "PNG chunks of its own", "prompts, fields, LoRA"),
    ("Stability Matrix", "PNG chunk `parameters` in UTF-8", "all fields of the form"),
    ("TensorArt", "`parameters`, and `generation_data` for the model", "prompts, fields, model"),
    ("spaces of Hugging Face, scripts", "JSON with a prompt and two parameters or more", "prompts and fields"),
)
"""Programs, the place of their record in a file, and what is read of it, for the documents."""
MIN_FIELDS = 2
MARK = "Steps"
"""A field of every infotext."""
ITS_WORDS = {
    ", Seed Mode: ": {"Guidance Scale": "CFG scale", "Strength: 1\\.0, Seed Mode": "Seed Mode"},
    ", ADM Guidance: ": {
        **{"Base Model": "Model", "Base Model Hash": "Model hash", "Scheduler": "Schedule type"},
        "VAE: Default \\(model\\), Raw prompt": "Raw prompt",
    },
    ", Version: stable-diffusion.cpp": {"Guidance": "Distilled CFG Scale", "RNG: cuda, Sampler": "RNG: NV, Sampler"},
    ", Civitai resources: ": {},
    ", Scheduler: ": {"Scheduler": "Schedule type"},
    ", Sampler sigma: ": {"Sampler sigma": "Schedule type"},
}
"""How Draw Things, Fooocus, nodes of ComfyUI and SD.Next call fields of an infotext, by a field that only they have."""
_RESOURCES = re.compile(r", Civitai resources: (\[.*\])(?:, Civitai metadata: \{.*\})?")
_LORA_WEIGHTS = re.compile(r', Lora weights: "([^"]*)"')
_WEIGHT = re.compile(r"([^\s,:][^,:]*): (-?\d+(?:\.\d+)?)")


def foreign_infotexts(items: Mapping[str, str], width: int, height: int) -> Iterator[str | None]:
    """Yield what known programs say in the texts of an image file."""
    if items.get("Software") == SOFTWARE:
        yield novelai_infotext(items, width, height)
    if is_easydiffusion(items):
        yield easydiffusion_record(items).infotext
    for text in xmp_texts(items.get(XMP, "")):
        yield infotext_of_text(text) or (text if MARK in written_fields(text)[2] else None)
    for name in (*IN_CHUNKS, *(name for name in items if name not in IN_CHUNKS)):
        if name in items and items.get("Software") != SOFTWARE:
            yield infotext_of_text(items[name])
    if "Description" in items and (made := line_record(items["Description"])) is not None:
        yield made.infotext
    if "Dream" in items and (dream := dream_record(items["Dream"])) is not None:
        yield dream.infotext


def infotext_of_text(text: str) -> str | None:
    """Return an infotext from JSON that one of the programs writes, or from an infotext in their words; None for any
    other text, and for one that says nearly nothing of how an image is made."""
    text = text.strip("\0")
    line = line_record(text) if MARK in text else None
    if line is not None:
        return line.infotext
    if not text.lstrip().startswith("{"):
        return in_usual_words(text)
    given = json_of(text)
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
    line = _RESOURCES.sub(_named_resources, line)
    for theirs, usual in words.items():
        line = re.sub(rf"(^|, ){theirs}: ", rf"\g<1>{usual}: ", line)
    weights = _LORA_WEIGHTS.search(line)
    if weights is None:
        return f"{head}\n{line}"
    tags = "".join(f" <lora:{name}:{weight}>" for name, weight in _WEIGHT.findall(weights[1]))
    prompt, mark, negative = head.partition("\nNegative prompt:")
    return f"{prompt}{tags}{mark}{negative}\n{_LORA_WEIGHTS.sub('', line)}"


def _named_resources(found: re.Match[str]) -> str:
    """Say in fields what a list of Civitai names: the model, and other files by their kind."""
    said: dict[str, str] = {}
    rows = json_of(found[1])
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("modelName"), str):
            key = "Model" if row.get("type") == "checkpoint" else f"Civitai {row.get('type')} {len(said)}"
            said[key] = row["modelName"] if key == "Model" else f"{row['modelName']} {row.get('weight', '')}".strip()
    return "".join(f", {key}: {quote(value)}" for key, value in said.items())


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
    given = json_of(extra) if isinstance(extra, str) else extra
    said = plain_record(given) if isinstance(given, dict) else None
    if said is None:
        return record
    said.program = "Civitai"
    if record is not None:
        said.fields = {**record.fields, **{key: value for key, value in said.fields.items() if value is not None}}
    return said
