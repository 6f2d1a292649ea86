"""Models of llama.cpp: files of GGUF that are made of checkpoints, and the C API of xllamacpp through ctypes."""
import ctypes as c
import json
import os
import re

import gguf
import numpy as np
import torch
import xllamacpp
from safetensors.torch import load_file

LIBRARY = c.CDLL(xllamacpp.xllamacpp.__file__)
MODE_NONE, MODE_MMAP = 0, 1  # LLAMA_LOAD_MODE_*
KEYS = {"hidden_size": "embedding_length", "num_hidden_layers": "block_count", "num_attention_heads": "head_count",
        "num_key_value_heads": "head_count_kv", "rms_norm_eps": "layer_norm_rms_eps", "max_position_embeddings": "context_length",
        "intermediate_size": "feed_forward_length", "vocab_size": "vocab_size", "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length"}


class ModelParams(c.Structure):
    """struct llama_model_params of xllamacpp 2026.10.11549."""

    _fields_ = [("devices", c.c_void_p), ("tensor_buft_overrides", c.c_void_p), ("n_gpu_layers", c.c_int32),
                ("split_mode", c.c_int), ("load_mode", c.c_int), ("lazy_mode", c.c_int), ("main_gpu", c.c_int32),
                ("tensor_split", c.c_void_p), ("progress_callback", c.c_void_p),
                ("progress_callback_user_data", c.c_void_p), ("kv_overrides", c.c_void_p),
                ("vocab_only", c.c_bool), ("check_tensors", c.c_bool), ("use_extra_bufts", c.c_bool), ("no_host", c.c_bool),
                ("no_alloc", c.c_bool), ("load_mtp", c.c_bool)]


class ContextParams(c.Structure):
    """struct llama_context_params."""

    _fields_ = [*((name, c.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max",
                                                  "n_outputs_max_per_seq")),
                ("n_threads", c.c_int32), ("n_threads_batch", c.c_int32), ("kinds", c.c_int * 5), ("floats", c.c_float * 6),
                ("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float), ("cb_eval", c.c_void_p), ("cb_data", c.c_void_p),
                ("type_k", c.c_int), ("type_v", c.c_int), ("moe_cache_size", c.c_size_t), ("abort", c.c_void_p * 2),
                ("flags", c.c_bool * 6), ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p)]


class Batch(c.Structure):
    """struct llama_batch."""

    _fields_ = [("n_tokens", c.c_int32), *((name, c.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits"))]


def call(name, result, *arguments):
    function = LIBRARY[name]
    function.restype = result
    return function(*arguments)


def write(checkpoint, path, kind="BF16", architecture=None):
    """A file of GGUF of a checkpoint of Qwen3 or Qwen3-MoE: matrices of `kind`; norms and routers in F32, as llama.cpp's own
    converter has them."""
    with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = load_file(os.path.join(checkpoint, "model.safetensors"))
    architecture = architecture or ("qwen3moe" if "num_local_experts" in config else "qwen3")
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    for key, add in KEYS.items():
        if key in config:
            getattr(writer, f"add_{add}")(config[key])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_tokenizer_model("no_vocab")
    stacked = {}
    for name, tensor in tensors.items():
        expert = re.match(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if expert:
            stacked.setdefault(f"{expert[1]}.{expert[3]}", {})[int(expert[2])] = tensor
        else:
            stacked[name] = tensor
    for name, tensor in stacked.items():
        if isinstance(tensor, dict):
            tensor = torch.stack([tensor[number] for number in range(len(tensor))])
        values = tensor.float().numpy()
        found = names.get_name(name, try_suffixes=(".weight",))
        if found is None and architecture == "llama":
            continue  # it has no norms of q and k
        is_float32 = values.ndim == 1 or "gate_inp" in found
        # Quantized files have another type for the embedding, which is never repacked.
        quantized = gguf.GGMLQuantizationType["F32" if is_float32 else "BF16" if "embd" in found and kind[0] == "Q" else kind]
        writer.add_tensor(found, gguf.quants.quantize(values, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Model:
    def __init__(self, path, load_mode=MODE_NONE, use_extra_bufts=False):
        params = call("llama_model_default_params", ModelParams)
        assert (params.n_gpu_layers, params.main_gpu, params.use_extra_bufts) == (-1, 0, True), "llama_model_params has changed"
        params.load_mode, params.use_extra_bufts = load_mode, use_extra_bufts
        self.address = call("llama_model_load_from_file", c.c_void_p, path.encode(), params)
        assert self.address, f"{path} cannot be loaded"

    def context(self):
        return Context(self)

    def free(self):
        call("llama_model_free", None, c.c_void_p(self.address))


class Context:
    """One sequence. `next` decodes tokens, and returns the greedy one that follows."""

    def __init__(self, model, vocabulary=512):
        params = call("llama_context_default_params", ContextParams)
        assert (params.n_batch, params.n_ubatch, params.n_seq_max, params.type_k) == (2048, 512, 1, 1), \
            "llama_context_params has changed"
        params.type_k = params.type_v = gguf.GGMLQuantizationType.F32
        params.n_ctx, params.n_threads, params.n_threads_batch = 1024, 1, 1
        self.vocabulary = vocabulary
        self.address = call("llama_init_from_model", c.c_void_p, c.c_void_p(model.address), params)
        assert self.address, "there is no context"

    def next(self, tokens):
        array = (c.c_int32 * len(tokens))(*tokens)
        batch = call("llama_batch_get_one", Batch, array, c.c_int32(len(tokens)))
        code = call("llama_decode", c.c_int32, c.c_void_p(self.address), batch)
        assert code == 0, f"llama_decode returned {code}"
        logits = call("llama_get_logits_ith", c.POINTER(c.c_float), c.c_void_p(self.address), c.c_int32(-1))
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def free(self):
        call("llama_free", None, c.c_void_p(self.address))


def greedy(model, prompt, count):
    context = model.context()
    tokens = [context.next(prompt)]
    while len(tokens) < count:
        tokens.append(context.next(tokens[-1:]))
    context.free()
    return tokens


@c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
def _quiet(level, text, data):
    """llama.cpp says hundreds of lines of each model that it loads."""


call("llama_log_set", None, _quiet, None)
