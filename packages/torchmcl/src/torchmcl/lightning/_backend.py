"""Import of Lightning, with an error that names its extra."""

from torchmcl.optional import optional_import

pl = optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl.lightning")
