"""The program. Names of the reference UI's modules are found in `modules.compat` (see `modules.facades`)."""

from modules.facades import install

install()
