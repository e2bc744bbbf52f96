#!/usr/bin/env python3
"""The GPU run; scripts/gpu calls it."""
import sys

from parts import PARTS
from runner import main

if __name__ == "__main__":
    sys.exit(main(PARTS))
