"""What extensions and studies are written with: checks in the package's error form, files, optional packages, progress.

A rule, a cost or a schedule outside the package checks its fields with `check_*`, and a study reads and writes its
records with `read_json` and `write_atomically`. The laboratory in `torchmcl.experiments` uses nothing more private.
"""

from torchmcl._checks import (
    available_device,
    bad_value,
    check_choice,
    check_event_pair,
    check_fraction,
    check_non_negative,
    check_non_negative_int,
    check_positive,
    check_positive_int,
    check_real,
    device_of,
    nearest_hint,
)
from torchmcl._files import write_atomically
from torchmcl._optional import optional_import
from torchmcl._progress import Progress
from torchmcl._reading import as_written, json_value, read_json, read_text
from torchmcl._records import append_records, change_records, read_records, records_text

__all__ = [
    "Progress",
    "append_records",
    "as_written",
    "available_device",
    "bad_value",
    "change_records",
    "check_choice",
    "check_event_pair",
    "check_fraction",
    "check_non_negative",
    "check_non_negative_int",
    "check_positive",
    "check_positive_int",
    "check_real",
    "device_of",
    "json_value",
    "nearest_hint",
    "optional_import",
    "read_json",
    "read_records",
    "read_text",
    "records_text",
    "write_atomically",
]
