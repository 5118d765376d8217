#!/usr/bin/env bash
# Your own start: `webui.sh` reads this file first. Remove the signs # before the lines that you want.

# Flags for every start; `python3 launch.py --help` lists them.
#export COMMANDLINE_ARGS="--listen --auth-file users.json"

# Which Python makes the virtual environment.
#python_cmd="python3.11"

# Where PyTorch comes from, in place of the build that fits the machine.
#export TORCH_COMMAND="pip install torch==2.13.0"
