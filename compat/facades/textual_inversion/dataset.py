"""`modules.textual_inversion.dataset`: how the reference UI reads the names of training images."""

import re

from compat.facades.refusal import refusing

re_numbers_at_start = re.compile(r"^[-\d]+\s*")
__getattr__ = refusing(
    "textual_inversion.dataset",
    dict.fromkeys(
        ("PersonalizedBase", "PersonalizedDataLoader", "DatasetEntry"),
        "the Train tab and POST /featherweight/v1/train train LoRAs.",
    ),
)
