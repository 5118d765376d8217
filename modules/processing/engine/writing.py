"""Texts that the language model of the chosen checkpoint writes: a longer prompt from a shorter one, a prompt from an
image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.errors import CheckpointError, InvalidValueError
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PrecisionOptions
from modules.prompting.writing import WriteOptions
from modules.settings.values import Settings

if TYPE_CHECKING:
    from PIL import Image

    from modules.models.loading.loaded import LoadedModel
    from modules.models.text_encoders.vision import Sight
    from modules.models.text_encoders.writing import Writing

OnToken = Callable[[int, int], None]
"""(tokens so far, at most so many); raises to stop."""
WRITE = (
    "You write prompts for an image model. Rewrite the user's words as one prompt for it: keep everything that they "
    "say, add details that fit (subject, setting, light, composition), invent no other subject. Answer with the prompt "
    "alone, in the language of the user's words. {}"
)
DESCRIBE = (
    "You write prompts for an image model. Describe the image so that the model could make it again: subject, setting, "
    "style, light, colors, composition, and any text that it shows, in quotes. Answer with the prompt alone. {}"
)
DESCRIBING = WriteOptions(temperature=0.0)
ASKED = "Describe this image as a prompt."
GIVES_BACK = 8
"""Tokens after which free memory goes back to the system."""
MAX_WORDS = 20_000  # characters of a prompt that is to be rewritten


@dataclass(frozen=True)
class Written:
    """A text, and the checkpoint whose language model wrote it. `is_whole`: whether it came to its end."""

    text: str
    model: str
    is_whole: bool


def check_words(prompt: str) -> None:
    """Raise `InvalidValueError` for a prompt without words, or with too many to be rewritten."""
    if not prompt.strip():
        raise InvalidValueError("There are no words to write a prompt from: type some into the prompt first.")
    if len(prompt) > MAX_WORDS:
        raise InvalidValueError(f"The prompt has {len(prompt)} characters; at most {MAX_WORDS} can be rewritten.")


def write_prompt(
    engine: Engine, prompt: str, settings: Settings, options: WriteOptions, on_token: OnToken = lambda done, most: None
) -> Written:
    """Write a longer prompt from a shorter one, in the style of the chosen checkpoint's family. Raises what
    `check_words` raises, and `CheckpointError` for a model that does not write."""
    check_words(prompt)
    return _write(engine, settings, options, WRITE, prompt, None, on_token)


def describe_image(
    engine: Engine,
    image: Image.Image,
    settings: Settings,
    on_token: OnToken = lambda done, most: None,
    options: WriteOptions = DESCRIBING,
) -> Written:
    """Write a prompt that describes an image, by default the likeliest. Raises `CheckpointError` for a model that does
    not see or write."""
    return _write(engine, settings, options, DESCRIBE, ASKED, image, on_token)


def _write(
    engine: Engine,
    settings: Settings,
    options: WriteOptions,
    system: str,
    words: str,
    image: Image.Image | None,
    on_token: OnToken,
) -> Written:
    from modules.memory.few_tokens import few_tokens
    from modules.models.loading.encoder_parts import encoder_part, give_back
    from modules.models.text_encoders.gguf_tokenizers import llm_tokenizer
    from modules.models.text_encoders.llm_layers import IMAGE_TOKEN, Context
    from modules.models.text_encoders.llm_texts import SEEN
    from modules.models.text_encoders.vision import for_describing
    from modules.models.text_encoders.writing import tokens

    with engine.lock:
        wanted = stored_checkpoint(settings, engine.catalogue).name
        precision = PrecisionOptions.of(settings)
        model = engine.model(wanted, precision)
        writing = _writing(model, image is not None)
        tokenizer = llm_tokenizer(model.part_files)
        before = f"<|im_start|>system\n{system.format(writing.style)}<|im_end|>\n<|im_start|>user\n"
        sights: list[Sight] = []
        try:
            if image is not None:
                on_token(0, options.max_tokens)
                before += SEEN
                sights = engine.conditioner(wanted, precision).tower.see([for_describing(image)])
            head = encoder_part(model, writing.head)
            with head as part, few_tokens((model.text_encoder, part.module)), model.computing():
                plain = [token for token in tokenizer.ids(words) if token != IMAGE_TOKEN]
                ids = [*tokenizer.ids(before), *plain, *tokenizer.ids(f"<|im_end|>\n{writing.answer}")]
                context, found = Context(ids, sights), list[int]()
                for token in tokens(model.text_encoder, part.module, context, model.device, options):
                    found.append(token)
                    if len(found) % GIVES_BACK == 1:
                        give_back()  # what the text took at first, and weights that came and went
                    on_token(len(found), options.max_tokens)
        except CheckpointError as error:
            raise CheckpointError(f"{model.info.name}: {error}") from error
        finally:
            if model.streaming is not None:
                model.streaming.let_go()
    text = tokenizer.text(found).strip()
    return Written(text, model.info.name, len(found) < options.max_tokens)


def _writing(model: LoadedModel, sees: bool) -> Writing:
    from modules.models.families.registry import all_families

    texts = model.family.texts
    if texts.writing is None or (sees and texts.tower is None):
        can = [family for family in all_families() if family.texts.writing and (family.texts.tower or not sees)]
        what = "sees images and writes" if sees else "writes"
        raise CheckpointError(
            f"{model.info.name} ({model.family.label}) has no text encoder that {what}. Choose a checkpoint of "
            f"{', '.join(family.label for family in can)}."
        )
    return texts.writing
