"""Saved files with other contents and a valid checksum: whoever forges a file computes that too."""

import torch

from torchmcl.io import read_checkpoint, write_checkpoint


def forge(folder, change=None, **values):
    """Change the state of a saved model: `change(state)`, and values by their path, as in config__width=3."""
    path = folder / "model.safetensors"
    kind, state, tensors, _ = read_checkpoint(path)
    if change is not None:
        change(state)
    for place, value in values.items():
        inner = state
        *names, last = place.split("__")
        for name in names:
            inner = inner[name]
        inner[last] = value
    write_checkpoint(path, kind, state=state, tensors=tensors)


def answers_of_forged(kind, folder, inputs):
    """Return the answers of a model with each forged array where `load` does not refuse it, by the change."""
    answers = {}
    for change in forged_arrays(folder / "model.safetensors"):
        try:
            model = kind.load(folder)
        except ValueError as error:
            assert "must be as `save` wrote it" in str(error), (change, error)  # noqa: PT017
        else:
            answers[change] = (model.predict(inputs), model.predict_hypotheses(inputs))
            if hasattr(model, "predict_interval"):
                model.predict_interval(inputs, 0.5)
    return answers


def forged_arrays(path):
    """Write a model file again and again, each time with one array that is doubled or infinite.

    Yields the name of the array and of the change; the file is as it was in the end.
    """
    kind, state, tensors, _ = read_checkpoint(path)
    for name, value in tensors.items():
        if not value.numel():
            continue  # nothing to forge
        changes = {"doubled": torch.cat([value.reshape(-1)] * 2)}
        if value.is_floating_point():
            changes["infinite"] = torch.full_like(value, torch.inf)
        for change, other in changes.items():
            write_checkpoint(path, kind, state=state, tensors={**tensors, name: other.contiguous()})
            yield name, change
    write_checkpoint(path, kind, state=state, tensors=tensors)
