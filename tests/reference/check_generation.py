#!/usr/bin/env python3
"""Greedy texts of a serving engine against transformers, token for token.

Usage: check_generation.py WSYNC WORK_DIRECTORY

Models that transformers has made, in bfloat16 on disk and computed in float32 here; 20 prompts each of several lengths. Where
transformers' two best logits are closer than 1e-4 the step is a tie: it is reported, and the comparison goes on from the engine's
token. Log-probabilities may differ by 1e-3.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

import torch
import transformers

PROMPTS, TOKENS = 20, 40
TIE, LOGPROB_LIMIT = 1e-4, 1e-3
LONGEST_SECONDS = 300


def make(directory, fused=False, **more):
    config = transformers.Qwen3MoeConfig(**{
        "vocab_size": 384, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "intermediate_size": 48,
        "norm_topk_prob": True, "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False, "initializer_range": 0.1} | more)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(
        directory, save_original_format=not fused)


class Engine:
    def __init__(self, wsync, model, work, ranks):
        self.ranks, self.url = [], None
        run = tempfile.mkdtemp(dir=work)  # sockets want a private folder
        for rank in range(ranks):
            self.ranks.append(subprocess.Popen(
                [wsync, "engine", "--json", "--model", model, "--port", "0", "--rank", str(rank), "--world-size", str(ranks),
                 "--run-dir", run, "--stats-ms", "0"], stdout=subprocess.PIPE, text=True))
        for line in self.ranks[0].stdout:
            if json.loads(line).get("event") == "listening":
                self.url = json.loads(line)["url"]
                break
        assert self.url, "the engine did not start; see above"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.terminate()
        for rank in self.ranks:
            rank.communicate(timeout=LONGEST_SECONDS)

    def complete(self, prompt):
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1, "return_token_ids": True, "ignore_eos": True}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as answer:
            choice = json.load(answer)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def compare(model, prompt, tokens, logprobs, at):
    """The ties of one text, and the greatest difference of a log-probability."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1]
    ties, worst = 0, 0.0
    for place, (row, token, logprob) in enumerate(zip(logits, tokens, logprobs)):
        best = torch.topk(row, 2)
        if token != best.indices[0]:
            gap = float(best.values[0] - row[token])
            assert gap < TIE, f"{at}, token {place}: {token}, transformers has {int(best.indices[0])}, by {gap:.2e} of a logit"
            print(f"{at}, token {place}: a tie, {token} and {int(best.indices[0])} differ by {gap:.1e} of a logit")
            ties += 1
        worst = max(worst, abs(float(torch.log_softmax(row, -1)[token]) - logprob))
    return ties, worst


def main(wsync, work):
    torch.manual_seed(7)
    choose = random.Random(7)
    for name, ranks, more in (("untied", 1, {}), ("tied", 1, {"tie_word_embeddings": True}),
                              ("two_ranks", 2, {"norm_topk_prob": False}), ("no_groups", 1, {"num_key_value_heads": 6}),
                              # All experts of a layer in two tensors, as transformers 5 has them in memory
                              ("fused", 1, {"fused": True}), ("fused_two_ranks", 2, {"fused": True, "rope_theta": 300.0})):
        directory = pathlib.Path(work) / f"generation_{name}"
        make(directory, **more)
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        ties, worst = 0, 0.0
        with Engine(wsync, directory, work, ranks) as engine:
            for number in range(PROMPTS):
                prompt = [choose.randrange(384) for _ in range(choose.choice((1, 2, 7, 16, 17, 60)))]
                tokens, logprobs = engine.complete(prompt)
                assert len(tokens) == TOKENS, tokens
                more_ties, difference = compare(model, prompt, tokens, logprobs, f"{name}, prompt {number}")
                ties, worst = ties + more_ties, max(worst, difference)
        assert worst <= LOGPROB_LIMIT, f"{name}: log-probabilities differ by {worst:.2e}"
        print(f"{name}: {PROMPTS} texts of {TOKENS} tokens equal transformers', {ties} ties; "
              f"log-probabilities differ by {worst:.1e} at most")


if __name__ == "__main__":
    main(*sys.argv[1:])
