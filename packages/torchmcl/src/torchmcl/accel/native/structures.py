"""What the compiled training step is handed, field by field as `native/native.h` declares it."""

from ctypes import Structure, c_float, c_int64, c_void_p

__all__ = ["AdamFields", "BatchFields", "EpochFields", "NetworkFields", "RowsFields"]


class NetworkFields(Structure):
    """The shape of the networks."""

    _fields_ = (
        ("n_layers", c_int64),
        ("sizes", c_void_p),
        ("n_hypotheses", c_int64),
        ("n_dims", c_int64),
        ("n_targets", c_int64),
        ("absolute", c_int64),
        ("has_scores", c_int64),
        ("detach_scores", c_int64),
        ("n_given", c_int64),
        ("n_runs", c_int64),
        ("run_lengths", c_void_p),
        ("is_mixture", c_int64),
        ("crps", c_float),
        ("min_scale", c_float),
    )


class RowsFields(Structure):
    """The rows of all sets."""

    _fields_ = (
        ("n_set_rows", c_int64),
        ("inputs", c_void_p),
        ("lower", c_void_p),
        ("between", c_void_p),
        ("targets", c_void_p),
        ("counts", c_void_p),
    )


class BatchFields(Structure):
    """One step of some models."""

    _fields_ = (
        ("n_models", c_int64),
        ("n_parameters", c_int64),
        ("flat", c_void_p),
        ("gradient", c_void_p),
        ("set_of_model", c_void_p),
        ("temperature", c_void_p),
        ("epsilon", c_void_p),
        ("loss", c_void_p),
        ("first", c_int64),
        ("n_rows", c_int64),
        ("order", c_void_p),
        ("order_of_model", c_void_p),
        ("order_stride", c_int64),
        ("score_weight", c_float),
        ("scratch", c_void_p),
    )


class AdamFields(Structure):
    """Adam with decoupled weight decay."""

    _fields_ = (
        ("n_models", c_int64),
        ("n_parameters", c_int64),
        ("flat", c_void_p),
        ("gradient", c_void_p),
        ("mean", c_void_p),
        ("square", c_void_p),
        ("n_steps", c_void_p),
        ("rate", c_void_p),
        ("decay", c_void_p),
        ("beta1", c_float),
        ("beta2", c_float),
        ("epsilon", c_float),
    )


class EpochFields(Structure):
    """Batch after batch of some models."""

    _fields_ = (
        ("first", c_int64),
        ("last", c_int64),
        ("n_batches", c_int64),
        ("bounds", c_void_p),
        ("active", c_void_p),
        ("n_steps", c_void_p),
        ("losses", c_void_p),
    )
