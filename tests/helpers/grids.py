"""Grids of cases inside one test: pytest's cost per case exceeds that of most contracts."""

import functools
import inspect

import torch


def for_each(names, cases):
    """Run a test on every case in turn; a drop-in for `pytest.mark.parametrize` where a case takes milliseconds.

    Every case starts from the random state that a test of its own would have; the error names the case that failed.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(test):
        @functools.wraps(test)
        def all_cases(**fixtures):
            n_cases = 0
            for case in cases:
                torch.manual_seed(0)
                n_cases += 1
                values = dict(zip(names, [case] if len(names) == 1 else case, strict=True))
                try:
                    test(**fixtures, **values)
                except BaseException as error:
                    error.add_note(f"case {n_cases}: {values!r}")
                    raise
            assert n_cases, "a grid without cases tests nothing"

        signature = inspect.signature(test)
        others = [value for name, value in signature.parameters.items() if name not in names]
        all_cases.__signature__ = signature.replace(parameters=others)
        return all_cases

    return decorate
