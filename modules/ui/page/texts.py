"""The texts of the page, found by code: in its components, its scripts, its messages and the settings.

A translation is a flat JSON object of these texts. A text with parts that change has `{0}`, `{1}` in their places.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from modules.jobs.job import JobStatus
from modules.plots.drawing import SCRIPT
from modules.processing.request.stages import LABELS
from modules.scripts.library import BUILT_IN
from modules.settings.definitions import visible_sections
from modules.settings.setting import SettingType
from modules.ui.form.tooltips import tooltips

HTML_ATTRIBUTES = ("title", "placeholder", "aria-label", "alt")
UNREAD = ("script", "style", "pre", "code")
VOID = ("area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
COMPONENT_TEXTS = ("label", "info", "placeholder")
MESSAGES = "modules.ui.common.messages"
MESSAGE_CALLS = ("note_box", "error_box", "Error", "Info", "Warning", "InvalidValueError", "message_box")
NO_TEXTS = frozenset(
    {
        *("Featherweight", "API", "txt2img", "img2img", "png", "jpeg", "webp", "TAESD", "BLIP", "GFPGAN", "CodeFormer"),
        *("RestoreFormer", "Deepbooru", "Lanczos", "None", "fp8 e4m3fn, plain", "fp8 e5m2", "fp8 e5m2, plain"),
        *("Carriage Return", "Line Feed", "SD1", "SD2", "Unknown", "smaller.safetensors"),
        "https://example.org/sd-webui-mine",
        *("vary_coeff", "time_uniform", "time_quadratic", "logSNR", "bh1", "bh2"),
        *("VAE", "SD VAE", "GPU", "CPU", "NV", "fp32", "fp16", "bf16", "clip", "deepbooru", "BLIP: num_beams"),
        *("Stable Diffusion", "Stable Diffusion XL", "Stable Diffusion 3", "Hypertile", "Zero Terminal SNR"),
        *("Approx NN", "Approx cheap", "sigma churn", "sigma tmin", "sigma tmax", "sigma noise", "sigma min"),
        *("sigma max", "rho", "/home/me/stable-diffusion-webui", "Doggettx", "InvokeAI", "xformers", "sdp", "DPM++ 2M"),
        *("UNet", "safetensors", "{0} MB"),
        *(
            "fp16 (16 bits)",
            "bf16 (16 bits)",
            "fp32 (32 bits)",
            "fp8 e4m3fn, plain (8 bits)",
            "fp8 e5m2, plain (8 bits)",
        ),
        *("GGUF (Q8_0, Q5_1, Q5_0 and 16 bits)", "FP8 matmul", "int8 matmul", "Autocast"),
        *("Cosine Down", "Cosine Up", "Cosine Repeating", "Half Cosine Down", "Half Cosine Up", "Linear Down"),
        *("Linear Up", "Linear Repeating", "Power Down", "Power Up", "Sawtooth", "Constant", "MEAN", "ZERO"),
        *("AD", "STD", "bicubic", "bilinear", "nearest", "nearest-exact", "area", "bislerp", "cond", "uncond"),
        *("both", "MultiDiffusion", "Mixture of Diffusers", "Matrix", "Columns", "Rows", "Horizontal"),
        *("Vertical", "Attention", "Latent", "Adaptive Projected Guidance", "CFG-Zero*", "Detail Daemon"),
        *("Dynamic Thresholding (CFG Scale Fix)", "FreeU", "Kohya HRFix Integrated", "Kohya Hires.fix"),
        *("NegPiP", "Never OOM Integrated", "Perturbed-Attention Guidance", "Regional Prompter"),
        *("Rescaled CFG", "Self-Attention Guidance", "Skip-Layer Guidance", "StyleAlign", "Tiled Diffusion"),
        *("Tiled VAE", "Backbone 1", "Backbone 2", "Skip 1", "Skip 2", "Blur sigma", "Interpolate phi"),
        *("Rescale phi", "Bias", "Momentum", "Exponent", "Sigma", "lg secondary", "Tau", "Seed Variance"),
        "Normalized Attention Guidance",
        *("4 GB", "6 GB", "8 GB", "12 GB", "16 GB", "VAEs"),
    }
)
"""Names in the page's components; a translation need not have them."""

WORDS = (
    *(status.value for status in JobStatus),
    *LABELS.values(),
    *("{0} image", "{0} images", "{0} job.", "{0} jobs."),
    *("needs {0} of {1} GB", "needs {0} of {1} GB RAM", "needs {0} of {1} GB VRAM"),
    *("needs {0} of {1} GB, main memory {2} of {3} GB", "needs {0} of {1} GB VRAM, main memory {2} of {3} GB"),
)
"""What is put together from single words and numbers: by the server of jobs while they run, and by scripts."""

NAMED_CHOICES = re.compile(
    r"sampl|scheduler|checkpoint|_vae|upscaler|script_list|_model(_name)?$|_model_2nd|xyz_plot|ui_defaults_name|train_type|"
    r"train_optimizer|append_interrogation"
)
"""Lists of names (`elem_id`): of these only the words in `OWN_CHOICES` are texts."""
OWN_CHOICES = ("Automatic", "Use same checkpoint", "Use same sampler", "Use same scheduler", "Use same VAE")
NAMED_SETTINGS = ("cross_attention_optimization", "fp8_format", "samples_format", "grid_format")
"""Settings whose choices are names."""
PYTHON_MARK, SCRIPT_MARK = "page_text", "fw.t`"
"""What marks a text of ours: a function, and the tag of a template literal."""
_HAS_WORD = re.compile(r"[A-Za-z]{2}")


class _HtmlTexts(HTMLParser):
    """Collects what a reader of a piece of HTML sees or hears."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[bool] = []  # of each open element, whether its texts are left out

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in HTML_ATTRIBUTES and value]
        if tag in VOID:
            return
        self._open.append(self._is_skipped() or tag in UNREAD or ("translate", "no") in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._is_skipped():
            self.found.append(data)

    def _is_skipped(self) -> bool:
        return bool(self._open) and self._open[-1]


def html_texts(html: str) -> list[str]:
    """The texts in a piece of HTML, as the browser's text nodes and attributes have them, without those marked
    `translate="no"`."""
    parser = _HtmlTexts()
    parser.feed(html)
    parser.close()
    return _worded(parser.found)


def _worded(found: Iterable[str]) -> list[str]:
    texts = (" ".join(text.split()) for text in found)
    return [text for text in texts if _HAS_WORD.search(text) and text not in NO_TEXTS]


def component_texts(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """The texts of all components of a page by the part of the page in which they are, from Gradio's description of
    it (`Blocks.config`). Parts are the tabs ("txt2img"), "header" and "scripts" (the fields of scripts)."""
    parts = {part["id"]: part for part in config["components"]}
    found: dict[str, list[str]] = {}

    def walk(node: Mapping[str, Any], area: str) -> None:
        part = parts.get(node["id"])
        if part is not None:
            props = part["props"]
            tab = re.fullmatch(r"tab_(\w+)", props.get("elem_id") or "")
            area = tab[1] if tab and part["type"] == "tabitem" else area
            found.setdefault("header" if tab else area, []).extend(_texts_of(part["type"], props))
            if "fw-script" in (props.get("elem_classes") or []):
                area = "scripts"
        for child in node.get("children", ()):
            walk(child, area)

    walk(config["layout"], "header")
    return {area: list(dict.fromkeys(texts)) for area, texts in found.items() if texts}


def _texts_of(kind: str, props: Mapping[str, Any]) -> list[str]:
    """Collect what one component says."""
    if props.get("visible") == "hidden":
        return []
    found = [props[name] for name in COMPONENT_TEXTS if isinstance(props.get(name), str)]
    value = props.get("value")
    if (
        isinstance(value, str)
        and kind in ("button", "markdown")
        and "fw-example" not in (props.get("elem_classes") or [])
    ):
        found.append(value)
    if kind in ("radio", "checkboxgroup", "dropdown"):
        choices = [str(shown) for shown, _ in props.get("choices") or ()]
        is_named = kind == "dropdown" and NAMED_CHOICES.search(props.get("elem_id") or "")
        found += [choice for choice in choices if not is_named or choice in OWN_CHOICES]
    return _worded(found) + (html_texts(value) if kind == "html" and isinstance(value, str) else [])


def script_texts(script: str) -> list[str]:
    """The marked texts of a script of ours."""
    found: list[str] = []
    place = script.find(SCRIPT_MARK)
    while place >= 0:
        place += len(SCRIPT_MARK)
        text, _ = _template(script, place)
        found += html_texts(text) if "<" in text else _worded(text.split("\n"))
        place = script.find(SCRIPT_MARK, place)
    return list(dict.fromkeys(found))


def _template(script: str, place: int) -> tuple[str, int]:
    """A template literal that begins here, with numbers for its parts, and the place behind it."""
    text, parts = "", 0
    while place < len(script) and script[place] != "`":
        if script.startswith("${", place):
            text += f"{{{parts}}}"
            parts += 1
            place = _behind_part(script, place + 2)
        elif script[place] == "\\":
            text += {"n": "\n"}.get(script[place + 1], script[place + 1])
            place += 2
        else:
            text += script[place]
            place += 1
    return text, place + 1


def _behind_part(script: str, place: int) -> int:
    depth = 1
    while depth and place < len(script):
        if script[place] == "`":
            _, place = _template(script, place + 1)
            continue
        depth += {"{": 1, "}": -1}.get(script[place], 0)
        place += 1
    return place


def message_texts(source: str, calls: tuple[str, ...] = (*MESSAGE_CALLS, PYTHON_MARK)) -> list[str]:
    """The texts given to these calls in Python code. Of a piece of HTML, its texts."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for text in _literals(node.args[0]) if name in calls else ():
            is_html = "</" in text
            found += [piece for one in html_texts(text) for piece in one.split(" · ")] if is_html else [text]
    return _worded(dict.fromkeys(found))


def _literals(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            text, count = "", 0
            for part in parts:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                else:
                    text += f"{{{count}}}"
                    count += 1
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from _literals(one)
            yield from _literals(other)


def page_texts(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """All texts of the page by part: those of `component_texts`, "browser" (our scripts and those of built-in
    extensions), "sliders" (of the modules of ControlNet), "messages", "results" (marked texts of all other modules),
    "about" (what built-in extensions say about themselves), and "settings" without what explains them, which is
    "explanations". A shipped translation has all of them."""
    folder = Path(__file__).parents[1]
    found = component_texts(config)
    scripts = [*sorted((folder / "assets").glob("*.js")), *sorted(BUILT_IN.glob("*/javascript/*.js")), SCRIPT]
    found["browser"] = [text for file in scripts for text in script_texts(file.read_text("utf-8"))]
    own = sorted(folder.rglob("*.py"))
    added = [file.read_text("utf-8") for file in sorted(BUILT_IN.rglob("*.py"))]
    telling = [*(file.read_text("utf-8") for file in own), *(one for one in added if MESSAGES in one)]
    found["messages"] = [text for code in telling for text in message_texts(code)]
    below = [file.read_text("utf-8") for file in sorted(folder.parent.rglob("*.py")) if file not in own]
    marked = (code for code in (*below, *added) if PYTHON_MARK in code)
    found["results"] = [text for code in marked for text in message_texts(code, (PYTHON_MARK,))]
    found["sliders"] = [text for code in added for text in message_texts(code, ("Slider",))]
    found["words"] = list(WORDS)
    told = (tomllib.loads(file.read_text("utf-8")) for file in sorted(BUILT_IN.glob("*/about.toml")))
    found["about"] = [about["about"] for about in told]
    found["tooltips"] = list(tooltips().values())
    found["settings"] = [*found.get("settings", ()), *_settings_texts()]
    hints = {" ".join(setting.hint.split()) for settings in visible_sections().values() for setting in settings}
    found["explanations"] = [text for text in found.get("settings", ()) if text in hints]
    found["settings"] = [text for text in found.get("settings", ()) if text not in hints]
    return {part: list(dict.fromkeys(texts)) for part, texts in found.items()}


def _settings_texts() -> list[str]:
    """Collect what the fields of the settings say, which the page's script makes when they are first seen."""
    texts: list[str] = []
    for settings in visible_sections().values():
        for setting in settings:
            texts += [setting.label, setting.hint]
            if setting.type is SettingType.CHOICE and isinstance(setting.choices, tuple):
                texts += setting.choices if setting.key not in NAMED_SETTINGS else ()
    return _worded(texts)
