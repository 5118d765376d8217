"""`modules.cmd_args`: the parser of the command line."""

from compat.facades.shared_cmd_options import parser as parser
