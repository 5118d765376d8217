"""`modules.cmd_args`: the parser of the command line."""

from modules.compat.shared_cmd_options import parser as parser
