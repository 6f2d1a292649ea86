#!/usr/bin/env python3
"""Trains a model that transformers has made, with wsync on four ranks and with torch in one process, and compares.

Usage: check_training.py WSYNC WORK_DIRECTORY

wsync runs the overlapped schedule (pp 2, vpp 2, dp 2, ep 2, offload); its text is one window long, so that every sequence of every
micro-batch is that window and torch needs it once. The loss of each step may differ by 1e-4, each parameter after the last step by
1e-3 of its norm. What wsync saves is loaded by transformers.
"""

import json
import math
import pathlib
import subprocess
import sys

import torch
import transformers

TEXT = b"Weights are moved, not made: what the trainer has learned is what every engine serves, byte by byte. The end."
STEPS, PEAK, FINAL, WARMUP = 8, 3e-3, 3e-4, 3
LOSS_LIMIT, WEIGHT_LIMIT = 1e-4, 1e-3
LONGEST_SECONDS = 300


def make(directory):
    config = transformers.Qwen3MoeConfig(
        vocab_size=256, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, intermediate_size=40, norm_topk_prob=True,
        max_position_embeddings=256, rope_theta=10000.0, tie_word_embeddings=False, decoder_sparse_step=1,
        mlp_only_layers=[], use_sliding_window=False, initializer_range=0.05)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)


def by_wsync(wsync, directory, work):
    text = work / "text"
    text.write_bytes(TEXT)
    settings = {
        "model.checkpoint": directory, "data.files": text, "data.sequence": len(TEXT), "data.micro_batch": 1,
        "parallel.pp": 2, "parallel.vpp": 2, "parallel.dp": 2, "parallel.ep": 2, "schedule.overlap": "true",
        "schedule.offload": "true", "optimizer.learning_rate": PEAK, "optimizer.final_learning_rate": FINAL,
        "optimizer.warmup_steps": WARMUP, "steps": STEPS, "save.directory": work / "trained"}
    command = [wsync, "train", "--json", "--log-level", "warning"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=LONGEST_SECONDS).stdout)["result"]
    return [step["loss"] for step in result["steps"]], result["saved"][-1]["directory"]


def rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    return FINAL + 0.5 * (PEAK - FINAL) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


def by_torch(directory):
    model = load(directory)
    window = torch.tensor(list(TEXT) + [0])  # a text ends with a zero byte
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=PEAK, betas=(0.9, 0.95), eps=1e-8)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done + 1) / PEAK)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=window[None, :-1]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, window[1:])
        loss.backward()
        for parameter in model.parameters():  # of experts without a token; wsync's accumulators are zero then
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, dict(model.named_parameters())


def main():
    wsync, work = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.manual_seed(7)
    torch.set_num_threads(1)
    directory = work / "to-train"
    make(directory)
    ours, saved = by_wsync(wsync, directory, work)
    theirs, expected = by_torch(directory)
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    if not apart <= LOSS_LIMIT:
        sys.exit(f"training: losses {ours} and {theirs} differ by {apart:.3g}, at most {LOSS_LIMIT:g} expected")
    if not theirs[-1] < theirs[0] - 0.5:
        sys.exit(f"training: the loss went from {theirs[0]:.3f} to {theirs[-1]:.3f}: nothing is learned, and nothing proven")
    worst = 0.0
    for name, parameter in load(saved).named_parameters():
        difference = ((parameter - expected[name]).norm() / expected[name].norm()).item()
        worst = max(worst, difference)
        if not difference <= WEIGHT_LIMIT:
            sys.exit(f"training: {name} differs by {difference:.3g} of its norm, at most {WEIGHT_LIMIT:g} expected")
    print(f"training on four ranks agrees with torch {torch.__version__}: {STEPS} steps, loss {ours[0]:.4f} to {ours[-1]:.4f}; "
          f"losses differ by {apart:.2g}, parameters by {worst:.2g} of their norm at most")


if __name__ == "__main__":
    main()
