"""`python -m torchmcl`."""

import sys

if __name__ == "__main__":
    try:
        from torchmcl.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
