"""Every field of a pasted infotext is accounted for: it fills a field of the form, is a setting, is read by a script,
is a fact about the image, or is named as left out."""

import re
from collections.abc import Collection, Iterable

from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS
from modules.processing.request.source_images import IMAGE_ROWS, MASK_ROWS
from modules.settings.definitions import SETTINGS
from modules.system.texts import page_text

FACTS = frozenset(
    {
        *("Prompt", "Negative prompt", "Version", "User", "App", "Model", "VAE hash", "Size", "Mask blur"),
        *("Lora hashes", "TI hashes", "TI", "Hashes", "Hypernet", "Hypernet strength", "First pass size", "Batch size"),
        *("Batch pos", "Time taken", "Memory recovery", "Precision report", "Init image hash", "Init image sha256"),
        *("Mask sha256", "Hires upscale", "Hires upscaler", "Hires resize", "Face restoration"),
        *("Parser", "Backend", "Pipeline", "Operations", "Created Date", "Civitai resources", "Civitai metadata"),
        *("Second pass", "Reference images", "Raw prompt", "Raw negative prompt", "Base Model Hash"),
    }
)
"""Fields that record how the image came to be, and nothing of how it is made again; of files that are missing
`filling` speaks."""

_NUMBERED = re.compile(r"Module \d+")

EXTENSIONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("ControlNet", r"controlnets?\b|control layers"),
        ("ADetailer", r"adetailer\b"),
        ("Additional Networks", r"addnet\b"),
        ("AnimateDiff", r"animatediff\b"),
        (
            "Dynamic Thresholding",
            r"dynamic thresholding|dynthres|mimic |threshold percentile|cfg mode|cfg scale minimum",
        ),
        ("Regional Prompter", r"rp |regional prompter"),
        ("Tiled Diffusion", r"tiled diffusion|tiled vae|multidiffusion|mixture of diffusers"),
        ("Ultimate SD Upscale", r"ultimate sd upscale"),
        ("FreeU", r"freeu|freeu_"),
        ("Latent Couple", r"latent couple|couple_|forge_couple|forge couple"),
        ("Cutoff", r"cutoff"),
        ("ReActor", r"reactor|roop|faceswap"),
        ("Kohya HRFix", r"kohya hr|khr|dsh_"),
        ("Self-Attention Guidance", r"sag_|sag "),
        ("Perturbed-Attention Guidance", r"pag_|pag "),
        ("StyleAlign", r"stylealign"),
        ("Dynamic Prompts", r"wildcard prompt|template|negative template"),
        ("CADS", r"cads"),
        ("NegPiP", r"negpip"),
        ("CD Tuner", r"cdt|cd tuner"),
        ("LLuL", r"llul"),
        ("IP-Adapter", r"ip-?adapters?\b"),
        ("Tagger", r"tagger"),
    )
)
"""Extensions by how the names of their fields begin."""
MAX_NAMED = 8


def left_over(written: Iterable[str], read: Collection[str]) -> list[str]:
    """Sentences about the fields `written` in an infotext of which nothing is used here; `read` are those that a script
    looks at. However many they are, the sentences stay short."""
    unread = [key for key in dict.fromkeys(map(_whole, written)) if not _is_used(key) and key not in _wholes(read)]
    extensions: dict[str, None] = {}
    others: list[str] = []
    for key in unread:
        extension = next((name for name, pattern in EXTENSIONS if pattern.match(key)), None)
        if extension is None:
            others.append(key)
        else:
            extensions[extension] = None
    sentences = []
    if extensions:
        sentences.append(page_text(f"Left out, because no extension here takes it: {_listed(list(extensions))}."))
    if others:
        sentences.append(page_text(f"Left out, because nothing here reads it: {_listed(others)}."))
    return sentences


def _is_used(key: str) -> bool:
    return key in _USED or _NUMBERED.fullmatch(key) is not None


def _whole(key: str) -> str:
    """A size's name without the side: "Size-1" is "Size"."""
    return key[:-2] if key.endswith(("-1", "-2")) else key


def _wholes(keys: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_whole, keys))


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:MAX_NAMED])
    return f"{shown}, +{len(names) - MAX_NAMED:,}" if len(names) > MAX_NAMED else shown


_USED = FACTS | {
    *(_whole(row.infotext.key) for row in (*REQUEST_ROWS, *HIRES_ROWS, *IMAGE_ROWS, *MASK_ROWS) if row.infotext),
    *(name for _, one in SETTINGS.items() for name in (one.infotext, *one.infotext_aliases) if name),
}
