"""`python -m pip`, as an install.py starts it."""

import sys

from pip import main

sys.exit(main())
