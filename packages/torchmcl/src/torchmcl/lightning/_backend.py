"""Lightning, or the name of the extra that installs it."""

from torchmcl._optional import optional_import

pl = optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl.lightning")
