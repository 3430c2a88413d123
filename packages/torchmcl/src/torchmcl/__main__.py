"""`torchmcl` and `python -m torchmcl`."""

import sys


def run() -> int:
    """Run the command `torchmcl` and return its exit code."""
    try:
        from torchmcl.app import main

        return main()
    except KeyboardInterrupt:  # while packages are loaded, before signals are handled
        return 130


if __name__ == "__main__":
    sys.exit(run())
