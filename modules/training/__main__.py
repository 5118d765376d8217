"""`python -m modules.training`: see `modules.training.command`."""

import sys

from modules.training.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
