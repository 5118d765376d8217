"""`modules.shared_options`: the settings by key."""

from modules.compat.options import categories as categories
from modules.compat.refusal import refusing
from modules.compat.shared import hide_dirs as hide_dirs
from modules.compat.shared import options_templates as options_templates
from modules.compat.shared import restricted_opts as restricted_opts

__getattr__ = refusing("shared_options", {})
