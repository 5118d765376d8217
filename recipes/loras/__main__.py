"""`python -m recipes.loras`: what `launch.py lora` does, in an environment that is there."""

import sys

from recipes.loras.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
