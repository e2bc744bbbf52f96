"""`python -m penstock doctor`: the command line of this package's library."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).with_name("bin") / "penstock"
    os.execv(program, ["penstock", *sys.argv[1:]])


if __name__ == "__main__":
    main()
