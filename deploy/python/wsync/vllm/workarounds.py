"""What vLLM 0.32 leaves undone when it loads weights again on the CPU, with wsync and without it.

`vllm_test.py` compares tokens with those of a fresh server, so it fails when one of these is missing, and
`test_workarounds_are_needed` fails when vLLM has mended them.
"""
from __future__ import annotations

import torch


def before_reload(model: torch.nn.Module, device: torch.device) -> None:
    """The experts are packed for the CPU only once, when their kernel is made. Without it, they stay as they were loaded."""
    if device.type != "cpu":
        return
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def after_reload(model: torch.nn.Module, device: torch.device) -> None:
    """The head that is tied to the embedding keeps its old packed copy."""
    if device.type != "cpu":
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
