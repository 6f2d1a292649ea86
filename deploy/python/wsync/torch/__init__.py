"""wsync beside torch. This package imports torch; the rest of wsync does not.

`as_tensor` makes a tensor over an array of wsync. `record` finds out where a model's own loader puts the tensors of a checkpoint,
so that later versions go there without it.
"""
from .plan import Plan, Recorded, record
from .tensors import as_tensor

__all__ = ["Plan", "Recorded", "as_tensor", "record"]
