"""`torchmcl` and `python -m torchmcl`."""

import sys


def _exit_code() -> int:
    try:
        from torchmcl.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


def run() -> None:
    """Run the command `torchmcl` and end its process with the exit code.

    The interpreter is not taken down in the usual way: freeing the modules of torch takes a second.
    Garbage collection stays rare until the end: a collection would take a quarter of a second. `python -m torchmcl`
    exits normally, because it may run inside another program.
    """
    import atexit
    import gc
    import os

    gc.set_threshold(50_000, *gc.get_threshold()[1:])
    code = _exit_code()
    try:
        _flush()
        atexit._run_exitfuncs()
        _flush()
    except OSError:  # a closed pipe or a full disk, which the interpreter reports
        sys.exit(code)
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


if __name__ == "__main__":
    sys.exit(_exit_code())
