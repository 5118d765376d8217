"""`modules.generation_parameters_copypaste`: the older name of `modules.infotext_utils`."""

from compat.facades import infotext_utils
from compat.facades.infotext_utils import (
    ParamBinding,
    PasteField,
    add_paste_fields,
    bind_buttons,
    connect_paste,
    create_buttons,
    create_override_settings_dict,
    image_from_url_text,
    parse_generation_parameters,
    quote,
    register_paste_params_button,
    send_image_and_dimensions,
    unquote,
)

__all__ = [
    "ParamBinding",
    "PasteField",
    "add_paste_fields",
    "bind_buttons",
    "connect_paste",
    "create_buttons",
    "create_override_settings_dict",
    "image_from_url_text",
    "parse_generation_parameters",
    "quote",
    "register_paste_params_button",
    "send_image_and_dimensions",
    "unquote",
]


def __getattr__(name: str) -> object:
    return getattr(infotext_utils, name)
