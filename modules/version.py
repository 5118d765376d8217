"""The program's name and version, as infotexts and replies carry them."""

VERSION = "0.2.0"
PROGRAM_VERSION = f"Featherweight {VERSION}"
