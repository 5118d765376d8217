"""The page's style sheets below the page's root, as Gradio puts those that are given to it: a file of its own, which a
browser keeps, takes a seventh off what every visit loads."""

import re

import gradio as gr

ROOT = f".gradio-container.gradio-container-{gr.__version__.replace('.', '-')} .contain "
DARK = ".dark"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(r"[^{}]*\{")


def below_root(css: str) -> str:
    """Each rule as it is, and once more below the page's root, where it goes before Gradio's own; those of a media
    query stand below the root only. A rule of the dark theme keeps the theme's class in front. Expects no nested rules.
    """
    return "".join(_placed(head, body) for head, body in _blocks(_COMMENT.sub("", css)))


def _placed(head: str, body: str) -> str:
    if head.startswith("@media"):
        inner = "".join(f"{_below(selector)}{{{rules}}}" for selector, rules in _blocks(body))
        return f"{head}{{{inner}}}\n"
    if head.startswith("@"):
        return f"{head}{{{body}}}\n"
    return f"{head}{{{body}}}\n{_below(head)}{{{body}}}\n"


def _below(selector: str) -> str:
    front = f"{DARK} " if DARK in selector else ""
    return ", ".join(f"{front}{ROOT}{one.strip()}" for one in selector.replace(DARK, "", 1).split(","))


def _blocks(css: str) -> list[tuple[str, str]]:
    """Return what stands before and inside of each pair of outer braces."""
    found, position = [], 0
    while head := _HEAD.match(css, position):
        depth, end = 1, head.end()
        while depth and end < len(css):
            depth += {"{": 1, "}": -1}.get(css[end], 0)
            end += 1
        found.append((" ".join(head.group()[:-1].split()), css[head.end() : end - 1].strip()))
        position = end
    return found
