"""wsync beside torch. This package imports torch; the rest of wsync does not.

`as_tensor` makes a tensor over an array of wsync. `record` finds out where a model's own loader puts the tensors of a checkpoint,
so that later versions go there without it. `shards` and `merged` give what a trainer has to publish: its own parts of a model that
is spread over several ranks, and weights with their adapters.
"""
from .plan import Plan, Recorded, record
from .tensors import as_tensor, dtype_of
from .trained import merged, shards

__all__ = ["Plan", "Recorded", "as_tensor", "dtype_of", "merged", "record", "shards"]
