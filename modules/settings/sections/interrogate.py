"""Captions and tags of images."""

from modules.settings.group import SettingsGroup, flag, many, number, text, whole
from modules.settings.setting import Section


class InterrogateSettings(SettingsGroup):
    """Interrogate CLIP, which writes a sentence, and DeepBooru, which writes tags."""

    section = Section(id="interrogate", title="Interrogate")

    interrogate_keep_models_in_memory = flag("Keep models in VRAM", False)
    interrogate_return_ranks = flag("Include ranks of model tags matches in results", False)
    interrogate_clip_num_beams = whole("BLIP: num_beams", 1, minimum=1, maximum=16, step=1)
    interrogate_clip_min_length = whole("BLIP: minimum description length", 24, minimum=1, maximum=128, step=1)
    interrogate_clip_max_length = whole("BLIP: maximum description length", 48, minimum=1, maximum=256, step=1)
    interrogate_clip_dict_limit = whole(
        "CLIP: maximum number of lines in text file", 1500, minimum=0, hint="0: no limit."
    )
    interrogate_clip_skip_categories = many(
        "CLIP: skip inquire categories", (), hint="The names of files in models/interrogate, without their endings."
    )
    interrogate_deepbooru_score_threshold = number("deepbooru: score threshold", 0.5, minimum=0, maximum=1, step=0.01)
    deepbooru_sort_alpha = flag("deepbooru: sort tags alphabetically", True, hint="Otherwise: by score.")
    deepbooru_use_spaces = flag("deepbooru: use spaces in tags", True, hint="Otherwise underscores.")
    deepbooru_escape = flag(
        "deepbooru: escape (\\) brackets", True, hint="So that they are text and not emphasis in a prompt."
    )
    deepbooru_filter_tags = text("deepbooru: filter out those tags", "", hint="Separate by commas.")
