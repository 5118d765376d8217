"""`modules.shared_options`: the settings by key."""

from modules.compat.shared import options_templates as options_templates
from modules.compat.shared import restricted_opts as restricted_opts
