"""Arguments of the compiled training step, with the fields of `c/native.h`."""

from ctypes import Structure

from torchmcl.accel.native.extension import floats, integers, pointers

__all__ = ["AdamFields", "BatchFields", "EpochFields", "NetworkFields", "RowsFields"]


class NetworkFields(Structure):
    """The shape of the networks."""

    _fields_ = (
        *integers("n_layers"),
        *pointers("sizes"),
        *integers("n_hypotheses n_dims n_targets absolute has_scores detach_scores n_given n_runs"),
        *pointers("run_lengths"),
        *integers("is_mixture"),
        *floats("crps min_scale"),
    )


class RowsFields(Structure):
    """The rows of all sets."""

    _fields_ = (
        *integers("n_set_rows"),
        *pointers("inputs lower between targets counts"),
    )


class BatchFields(Structure):
    """One step of some models."""

    _fields_ = (
        *integers("n_models n_parameters"),
        *pointers("flat gradient set_of_model temperature epsilon loss"),
        *integers("first n_rows"),
        *pointers("order order_of_model"),
        *integers("order_stride"),
        *floats("score_weight"),
        *pointers("scratch"),
    )


class AdamFields(Structure):
    """Adam with decoupled weight decay."""

    _fields_ = (
        *integers("n_models n_parameters"),
        *pointers("flat gradient mean square n_steps rate decay"),
        *floats("beta1 beta2 epsilon"),
    )


class EpochFields(Structure):
    """Consecutive batches of some models."""

    _fields_ = (
        *integers("first last n_batches"),
        *pointers("bounds active n_steps losses"),
    )
