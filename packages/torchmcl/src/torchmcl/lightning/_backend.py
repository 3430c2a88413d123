"""Lightning, or the name of the extra that installs it."""

from torchmcl._optional import optional_import

__all__ = ["pl"]

pl = optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl.lightning")
