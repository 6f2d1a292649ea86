#!/usr/bin/env python3
"""Holds wsync's reference model to transformers' Qwen3MoeForCausalLM: logits and every gradient, both ways.

Usage: check_model.py MOE_TOOL WORK_DIRECTORY

A checkpoint that wsync makes is loaded by transformers, and one that transformers saves by wsync; each is run by both on the same
made-up tokens, in float32. Logits may differ by 1e-4 (largest absolute difference); a gradient g' by 1e-4 as ||g - g'|| / ||g||, or
by 1e-8 absolute where ||g|| is smaller. Every expert must have got tokens.
"""

import pathlib
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file

SEQUENCES, LENGTH = 6, 24
LOGITS_LIMIT = GRADIENT_LIMIT = 1e-4
SMALL_NORM = 1e-8


def tokens_of(vocabulary):
    index = torch.arange(SEQUENCES * LENGTH)
    tokens = (index * index * 7 + index * 13 + 5) % vocabulary
    targets = (index * 11 + 3) % vocabulary
    return tokens.view(SEQUENCES, LENGTH), targets


def separate(name, tensor):
    """The experts of a layer, which transformers 5 has in two tensors, by the names that a checkpoint has for each."""
    prefix, _, last = name.rpartition(".")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
    if not prefix.endswith(".experts") or parts is None:
        return {name: tensor}
    return {f"{prefix}.{number}.{part}.weight": values
            for number, expert in enumerate(tensor) for part, values in zip(parts, expert.chunk(len(parts)))}


def by_transformers(directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager")
    assert type(model).__name__ == "Qwen3MoeForCausalLM", type(model).__name__
    tokens, targets = tokens_of(model.config.vocab_size)
    logits = model(input_ids=tokens).logits.view(SEQUENCES * LENGTH, -1)
    loss = torch.nn.functional.cross_entropy(logits, targets)
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradients |= separate(name, parameter.grad)
    return logits.detach(), gradients, loss.item()


def compare(tool, directory, out):
    subprocess.run([tool, "run", directory, str(SEQUENCES), str(LENGTH), out], check=True, stdout=subprocess.DEVNULL)
    ours = load_file(out)
    logits, gradients, loss = by_transformers(directory)
    apart = (logits - ours.pop("logits")).abs().max().item()
    if apart > LOGITS_LIMIT:
        sys.exit(f"{directory}: logits differ by {apart:.3g}, at most {LOGITS_LIMIT:g} expected")
    if set(gradients) != set(ours):
        sys.exit(f"{directory}: other parameters: {sorted(set(gradients) ^ set(ours))}")
    worst = 0.0
    for name, expected in gradients.items():
        if expected is None or (".experts." in name and expected.norm() == 0):
            sys.exit(f"{directory}: {name} got no gradient: its expert has seen no token, and nothing is proven of it")
        norm = expected.norm().item()
        difference = (expected - ours[name]).norm().item()
        if norm < SMALL_NORM:
            if difference > SMALL_NORM:
                sys.exit(f"{directory}: gradient of {name} differs by {difference:.3g}")
            continue
        worst = max(worst, difference / norm)
        if difference / norm > GRADIENT_LIMIT:
            sys.exit(f"{directory}: gradient of {name} differs by {difference / norm:.3g} of its norm")
    return apart, worst, loss


def main():
    tool, work = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.manual_seed(5)
    torch.set_num_threads(1)
    for tied in (0, 1):
        ours = work / f"made-by-wsync-{tied}"
        subprocess.run([tool, "make", ours, "11", str(tied)], check=True)
        config = transformers.AutoConfig.from_pretrained(ours)
        theirs = work / f"made-by-transformers-{tied}"
        config.initializer_range = 0.15
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(theirs)
        for directory in (ours, theirs):
            apart, worst, loss = compare(tool, directory, work / f"{directory.name}.safetensors")
            print(f"{directory.name}: loss {loss:.6f}; logits differ by {apart:.2g}, gradients by {worst:.2g} at most")
    print(f"the reference model agrees with transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
