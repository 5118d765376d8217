"""Gradio's files of a first visit, asked for at once: they name each other in three steps, each of which would wait for
the one before, and the first for the whole page."""

import json
import re
from collections.abc import Collection
from pathlib import Path

import gradio as gr

FRONTEND = Path(gr.__file__).parent / "templates" / "frontend"
_ENTRY = re.compile(r"assets/(index-[\w-]+\.js)")
_NAMES = re.compile(r"m\.f=(\[[^\]]*\])")
_IMPORT = re.compile(r"import\(`\./([\w-]+\.js)`\)[^`]{0,40}?,__vite__mapDeps\(\[([\d,]*)\]")
_COMPONENT = re.compile(r"[,{]\"?([a-z]+)\"?:\{(?:[^{}]*,)?component:\(\)=>\w+\(\(\)=>import\(`\./([\w-]+\.js)`\)")
_SCRIPT = """<script>for (const name of %s) {
  const link = document.createElement("link");
  Object.assign(link, name.endsWith(".css") ? { rel: "preload", as: "style" } : { rel: "modulepreload" });
  link.crossOrigin = "";
  link.href = `assets/${name}`;
  document.head.append(link);
}</script>"""


def first_files(types: Collection[str]) -> tuple[str, ...]:
    """Gradio's scripts and styles that a page of components of these types loads before it stands."""
    entry = _ENTRY.search((FRONTEND / "index.html").read_text(encoding="utf-8"))
    found: dict[str, None] = {}
    for step, files in _imports(entry[1] if entry else "").items():
        found |= dict.fromkeys(files)
        components = {file for name, file in _COMPONENT.findall(_text(step)) if name in types}
        for name, needed in _imports(step).items():
            if name.startswith("Blocks-") or name in components:
                found |= dict.fromkeys(needed)
    return tuple(name for name in found if not name.startswith("index-"))


def _imports(script: str) -> dict[str, list[str]]:
    """List what a script imports when it runs: the file itself, and what it needs."""
    text = _text(script)
    names = _NAMES.search(text)
    listed = json.loads(names[1]) if names else []
    return {
        file: [file, *(listed[int(number)].removeprefix("./") for number in numbers.split(",") if number)]
        for file, numbers in _IMPORT.findall(text)
    }


def _text(script: str) -> str:
    return (FRONTEND / "assets" / script).read_text(encoding="utf-8") if script else ""


def first_script(page: gr.Blocks) -> str:
    """Return what asks for these files, for the head of a page."""
    types = {block.get_block_name() for block in page.blocks.values() if getattr(block, "visible", True) is not False}
    return _SCRIPT % json.dumps(list(first_files(types)), separators=(",", ":"))
