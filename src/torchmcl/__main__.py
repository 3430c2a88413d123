"""`python -m torchmcl.cli`."""

import sys

from torchmcl.cli import main

if __name__ == "__main__":
    sys.exit(main())
