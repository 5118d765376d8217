"""`python -m modules.training.lora`: see `modules.training.lora.command`."""

import sys

from modules.training.lora.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
