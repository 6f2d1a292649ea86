"""Tiny models whose tokens tell which weights have computed them.

All models of one shape have the same architecture: a mixture of experts (Qwen3-MoE), or a dense model with a tied head (Qwen3).
The models "a" and "b" of a shape differ in every weight, and each has a head that gives tokens of its own half of the vocabulary:
every token of a greedy completion tells its version, at every position. That the layers below are of the same version is told by
computing the completion again: a mixture of two versions gives other logits.
"""
import os
import shutil

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

VOCABULARY = 512
EOS, PAD = 256, 257
HALVES = {"a": range(0, 256), "b": range(258, 512)}  # without EOS and PAD


def write_tokenizer(directory):
    """A tokenizer of bytes."""
    vocabulary = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {"<eos>": EOS, "<pad>": PAD}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(directory)


def mixture(layers=3, hidden=128, experts=8, expert=64):
    """A mixture of experts: 2 MiB in bfloat16 as it stands."""
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, moe_intermediate_size=expert, num_experts=experts, num_experts_per_tok=2,
        decoder_sparse_step=1, norm_topk_prob=True, max_position_embeddings=1024, initializer_range=0.15, tie_word_embeddings=False,
        eos_token_id=EOS, pad_token_id=PAD, bos_token_id=None))


def dense():
    """A dense model whose head is its embedding."""
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, initializer_range=0.15, tie_word_embeddings=True,
        eos_token_id=EOS, pad_token_id=PAD, bos_token_id=None))


@torch.no_grad()
def save(directory, make, seed, half=None, dtype=torch.bfloat16):
    """Saves a model with random weights. `half`: of HALVES, if its head shall give tokens of that half only."""
    torch.manual_seed(seed)
    model = make()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
    if half is not None:
        other = [token for token in range(VOCABULARY) if token not in HALVES[half]]
        model.lm_head.weight[other] = 0.0  # the largest of the other logits is never as small as 0
    model.to(dtype).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def rename(source, target, names):
    """A copy of a checkpoint whose tensors have other names. `names`: from an old name to a new one, or to None: left out."""
    from safetensors.torch import load_file, save_file
    os.makedirs(target)
    tensors = load_file(os.path.join(source, "model.safetensors"))
    save_file({names(name): tensor for name, tensor in tensors.items() if names(name)}, os.path.join(target, "model.safetensors"))
    for name in os.listdir(source):
        if name.endswith(".json"):
            shutil.copy(os.path.join(source, name), target)
    return target


def loaded(directory):
    """The model of a checkpoint, in its own dtype."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()


class Judge:
    """Computes completions again with transformers, in float32."""

    def __init__(self, directory):
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.no_grad()
    def margins(self, prompt, tokens):
        """By how much each token's logit is below the best one, given the prompt and the tokens before it: floats, at least 0."""
        logits = self.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1:-1]
        return (logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]).tolist()
