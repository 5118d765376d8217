#!/usr/bin/env bash
# Starts the program on Linux and macOS, as users of the reference UI know it: `webui-user.sh` next to this file is read
# first, and may set COMMANDLINE_ARGS and python_cmd. Words of the command line come before those of COMMANDLINE_ARGS.
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 1
# shellcheck source=/dev/null
[ -f webui-user.sh ] && . ./webui-user.sh
export COMMANDLINE_ARGS
exec "${python_cmd:-python3}" launch.py "$@"
