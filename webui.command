#!/usr/bin/env bash
# Starts the program on macOS by a double click in the Finder.
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 1
exec ./webui.sh "$@"
