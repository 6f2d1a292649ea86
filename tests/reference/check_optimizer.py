#!/usr/bin/env python3
"""Holds wsync's optimizer to torch.optim.AdamW with clip_grad_norm_ and a LambdaLR of a warm-up and half a cosine.

Usage: check_optimizer.py MOE_TOOL WORK_DIRECTORY

wsync writes weights, gradients and what its steps made of them; torch does the same steps. The difference of the weights may be 1e-5
of their norm after each step. Some of the gradients must have been clipped, and some not.
"""

import math
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file

STEPS, LIMIT = 20, 1e-5
# As in moe_tool.cc.
PEAK, FINAL, WARMUP, TOTAL, CLIP = 3e-3, 3e-4, 5, 16, 1.0


def rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    done = min(1.0, (step - WARMUP) / (TOTAL - WARMUP))
    return FINAL + 0.5 * (PEAK - FINAL) * (1 + math.cos(math.pi * done))


def main():
    tool, out = sys.argv[1], pathlib.Path(sys.argv[2]) / "adamw.safetensors"
    subprocess.run([tool, "adamw", str(STEPS), out], check=True)
    ours = load_file(out)
    matrix, vector = (torch.nn.Parameter(ours[f"0.{name}"].clone()) for name in ("matrix", "vector"))
    optimizer = torch.optim.AdamW([{"params": [matrix], "weight_decay": 0.1}, {"params": [vector], "weight_decay": 0.0}],
                                  lr=PEAK, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done + 1) / PEAK)
    worst, clipped = 0.0, 0
    for step in range(1, STEPS + 1):
        matrix.grad, vector.grad = (ours[f"gradient.{step}.{name}"].clone() for name in ("matrix", "vector"))
        clipped += torch.nn.utils.clip_grad_norm_([matrix, vector], CLIP).item() > CLIP
        optimizer.step()
        schedule.step()
        for name, expected in (("matrix", matrix), ("vector", vector)):
            apart = ((ours[f"{step}.{name}"] - expected).norm() / expected.norm()).item()
            worst = max(worst, apart)
            if not apart <= LIMIT:
                sys.exit(f"AdamW: after step {step} the {name} differs by {apart:.3g} of its norm, at most {LIMIT:g} expected")
    if not 0 < clipped < STEPS:
        sys.exit(f"AdamW: {clipped} of {STEPS} gradients were clipped; some must be, and some not")
    print(f"the optimizer agrees with torch {torch.__version__}: {STEPS} steps, {clipped} clipped; weights differ by {worst:.2g} at most")


if __name__ == "__main__":
    main()
