"""`torchmcl` and `python -m torchmcl`."""

import sys


def run() -> None:
    """Run the command and end the process with its exit code.

    The interpreter is not taken down in the usual way: to free the modules of torch takes a second.
    """
    try:
        from torchmcl.cli import main

        code = main()
    except KeyboardInterrupt:
        sys.exit(130)
    import atexit
    import os

    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:  # a closed pipe or a full disk, which the interpreter reports
        sys.exit(code)
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    run()
