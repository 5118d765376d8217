"""`modules.shared_options`: the settings by key."""

from compat.facades.options import categories as categories
from compat.facades.refusal import refusing
from compat.facades.shared import hide_dirs as hide_dirs
from compat.facades.shared import options_templates as options_templates
from compat.facades.shared import restricted_opts as restricted_opts

__getattr__ = refusing("shared_options", {})
