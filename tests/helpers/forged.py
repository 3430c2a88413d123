"""Saved files with other contents and a valid checksum: whoever forges a file computes that too."""

from torchmcl.persistence import read_checkpoint, write_checkpoint


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
