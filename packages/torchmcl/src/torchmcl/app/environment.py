"""Details for bug reports: versions, processor, threads and GPUs, without names of folders, users or machines."""

import importlib.metadata
import os
import platform
import re

import numpy as np
import torch

from torchmcl._version import __version__
from torchmcl.dispatch import active_kernels

__all__ = ["environment"]

# Names of distributions; only their versions are read, nothing is imported.
_PACKAGES = (
    *("torchmcl-tables", "torchmcl-speech", "torchmcl-forecast"),
    *("safetensors", "scipy", "scikit-learn", "POT", "torchmetrics", "lightning", "pytorch-lightning", "polars"),
    *("pandas", "matplotlib", "tqdm", "pooch", "soundfile", "soxr", "PyYAML", "joblib", "distributed"),
)
# Environment variables that affect speed or rounding.
_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
    *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TRITON_INTERPRET"),
    *("TORCHMCL_INSTRUCTIONS", "TORCHMCL_PURE"),
)


def environment() -> dict[str, str]:
    """Return a description of the environment, in the order used in bug reports.

    Example:
        >>> list(environment())[:4]
        ['torchmcl', 'python', 'system', 'processor']
    """
    values = {
        "torchmcl": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
        if hasattr(os, "sched_getaffinity")
        else str(os.cpu_count()),
        "torch": torch.__version__,
        "threads": f"{torch.get_num_threads()} inside an operation, {torch.get_num_interop_threads()} between them",
        "linear algebra": _linear_algebra(),
        "deterministic": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
        "kernels": active_kernels(),
        "cuda": _cuda(),
        "triton": _version("triton") or "not installed",
        "numpy": np.__version__,
    }
    installed = {name: _version(name) for name in _PACKAGES}
    values |= {name: version for name, version in installed.items() if version}
    values["not installed"] = ", ".join(name for name, version in installed.items() if not version) or "none"
    values["variables"] = ", ".join(f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ) or "none"
    return values


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the model of the processor; Linux keeps it in a file, other systems report it to Python."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        text = ""
    named = re.search(r"^(?:model name|Hardware|CPU part)\s*:\s*(.+)$", text, flags=re.MULTILINE)
    words = [named[1].strip() if named else platform.processor() or platform.machine()]
    return ", ".join([*words, f"vector instructions {torch.backends.cpu.get_cpu_capability()}"])


def _linear_algebra() -> str:
    parts = [name for name in ("mkl", "mkldnn", "openmp") if getattr(torch.backends, name).is_available()]
    return ", ".join(parts) or "none of MKL, oneDNN, OpenMP"


def _cuda() -> str:
    if torch.version.cuda is None:
        return "torch was built without it"
    if not torch.cuda.is_available():
        return f"{torch.version.cuda}, no device"
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = [f"{d.name} ({d.total_memory / 2**30:.0f} GiB, capability {d.major}.{d.minor})" for d in devices]
    return f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}: {'; '.join(names)}"
