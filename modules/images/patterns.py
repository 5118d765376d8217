"""The words in square brackets of file name patterns. A new one is a new entry.

Each entry takes the facts and the arguments in angle brackets, `[name<argument><argument>]`, and returns the text to
put there, made safe. None means that the pattern does not apply: the text before it is then left out as well.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from PIL import Image

from modules.images.naming import NameContext
from modules.system.file_names import sanitize_part
from modules.system.registry import Registry

Pattern = Callable[["Source", tuple[str, ...]], str | None]


class Source:
    """Source of a pattern: the facts, the image (None for folders) and a limit from the settings."""

    def __init__(self, context: NameContext, image: Image.Image | None = None, max_prompt_words: int = 8) -> None:
        self.context = context
        self.image = image
        self.max_prompt_words = max_prompt_words


PATTERNS: Registry[Pattern] = Registry("filename pattern")

DEFAULT_TIME_FORMAT = "%Y%m%d%H%M%S"
_DEFAULT_HASH_CHARS = 8
_WORD_BREAKS = re.compile(r"[\s\[\]()<>{}:,.;!?|/\\\"]+")


def _plain(name: str, of: Callable[[NameContext], object]) -> None:
    """A pattern that shows one fact."""
    PATTERNS.add(name, lambda source, arguments: sanitize_part(str(of(source.context)), keep_spaces=True))


_plain("seed", lambda c: c.seed)
_plain("seed_first", lambda c: c.seeds[0] if c.seeds else c.seed)
_plain("seed_last", lambda c: c.seeds[-1] if c.seeds else c.seed)
_plain("steps", lambda c: c.steps)
_plain("cfg", lambda c: c.cfg_scale)
_plain("width", lambda c: c.width)
_plain("height", lambda c: c.height)
_plain("styles", lambda c: ", ".join(c.styles) or "None")
_plain("sampler", lambda c: c.sampler)
_plain("scheduler", lambda c: c.scheduler)
_plain("sampler_scheduler", lambda c: c.sampler if c.scheduler in ("", "Automatic") else f"{c.sampler} {c.scheduler}")
_plain("model_hash", lambda c: c.model_hash)
_plain("model_name", lambda c: c.model_name)
_plain("vae_filename", lambda c: c.vae_filename)
_plain("clip_skip", lambda c: c.clip_skip)
_plain("denoising", lambda c: "" if c.denoising_strength is None else c.denoising_strength)
_plain("user", lambda c: c.user)
_plain("batch_size", lambda c: c.batch_size)
_plain("date", lambda c: c.now.strftime("%Y-%m-%d"))
_plain("job_timestamp", lambda c: (c.job_timestamp or c.now).strftime(DEFAULT_TIME_FORMAT))
_plain("prompt_spaces", lambda c: c.prompt)
_plain("none", lambda c: "")


@PATTERNS.register("prompt")
def _prompt(source: Source, arguments: tuple[str, ...]) -> str | None:
    return sanitize_part(source.context.prompt)


@PATTERNS.register("prompt_no_styles")
def _prompt_no_styles(source: Source, arguments: tuple[str, ...]) -> str | None:
    context = source.context
    return sanitize_part(context.prompt if context.prompt_no_styles is None else context.prompt_no_styles)


@PATTERNS.register("prompt_words")
def _prompt_words(source: Source, arguments: tuple[str, ...]) -> str | None:
    words = [word for word in _WORD_BREAKS.split(source.context.prompt) if word] or ["empty"]
    return sanitize_part(" ".join(words[: source.max_prompt_words]), keep_spaces=True)


@PATTERNS.register("batch_number")
def _batch_number(source: Source, arguments: tuple[str, ...]) -> str | None:
    return None if source.context.batch_size == 1 else str(source.context.batch_index + 1)


@PATTERNS.register("generation_number")
def _generation_number(source: Source, arguments: tuple[str, ...]) -> str | None:
    context = source.context
    if context.batch_size == 1 and context.n_iter == 1:
        return None
    return str(context.iteration * context.batch_size + context.batch_index + 1)


@PATTERNS.register("datetime")
def _datetime(source: Source, arguments: tuple[str, ...]) -> str | None:
    """`[datetime<format><time zone>]`: a strftime format and a name such as Europe/Berlin, both optional."""
    moment = source.context.now
    if len(arguments) > 1:
        moment = _in_zone(moment, arguments[1])
    chosen = (arguments[0] if arguments else "") or DEFAULT_TIME_FORMAT
    try:
        text = moment.strftime(chosen)
    except ValueError:  # some systems refuse an unknown directive
        text = moment.strftime(DEFAULT_TIME_FORMAT)
    return sanitize_part(text, keep_spaces=True)


def _in_zone(moment: datetime, name: str) -> datetime:
    """The moment in another time zone; an unknown zone leaves the local time, because no image may fail for it."""
    try:
        return moment.astimezone(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return moment


@PATTERNS.register("hasprompt")
def _hasprompt(source: Source, arguments: tuple[str, ...]) -> str | None:
    """`[hasprompt<word|otherwise>...]`: each word that the prompt holds, or else the text after the bar."""
    prompt = source.context.prompt.lower()
    parts = [argument.partition("|") for argument in arguments]
    return sanitize_part("".join(word if word.lower() in prompt else otherwise for word, _, otherwise in parts))


def _hash(name: str, of: Callable[[Source], bytes]) -> None:
    """A pattern with the beginning of a SHA-256, `[name<how many characters>]`."""

    def pattern(source: Source, arguments: tuple[str, ...]) -> str | None:
        wanted = arguments[0] if arguments else ""
        chars = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 4 else _DEFAULT_HASH_CHARS
        return hashlib.sha256(of(source)).hexdigest()[: chars or _DEFAULT_HASH_CHARS]

    PATTERNS.add(name, pattern)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_hash("prompt_hash", lambda s: _bytes(s.context.prompt))
_hash("negative_prompt_hash", lambda s: _bytes(s.context.negative_prompt))
_hash("full_prompt_hash", lambda s: _bytes(f"{s.context.prompt} {s.context.negative_prompt}"))
_hash("image_hash", lambda s: s.image.tobytes() if s.image else b"")
