#!/usr/bin/env python3
"""Makes the golden safetensors files: good ones by the reference package, bad ones by hand.

Usage: make_vectors.py DIRECTORY

Byte j of a tensor's data is (7 * j + 13 * bytes of its name) mod 256. vectors.tsv lists the files:
  good  FILE  number of tensors
  bad   FILE  "accepted" or "refused" by the reference reader  the strict reader's sentence
Every verdict of the reference is asked of it here, not assumed. Needs requirements.txt.
"""

import ctypes
import json
import pathlib
import struct
import sys

import safetensors


def content(name, count):
    return bytes((7 * j + 13 * len(name.encode())) % 256 for j in range(count))


def by_reference(tensors, metadata=None):
    """A file of [(name, dtype, storage shape, bytes)] as the reference writer makes it."""
    keep, specs = [], {}
    for name, dtype, shape, count in tensors:
        buffer = ctypes.create_string_buffer(content(name, count), max(count, 1))
        keep.append(buffer)
        specs[name] = safetensors.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffer), data_len=count)
    return safetensors.serialize(specs, metadata)


def by_hand(header, data=b""):
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


DTYPES = [("bool", 8), ("float4_e2m1fn_x2", 8), ("uint8", 8), ("int8", 8), ("float8_e5m2", 8), ("float8_e4m3fn", 8),
          ("float8_e8m0fnu", 8), ("float8_e4m3fnuz", 8), ("float8_e5m2fnuz", 8), ("int16", 16), ("uint16", 16),
          ("float16", 16), ("bfloat16", 16), ("int32", 32), ("uint32", 32), ("float32", 32), ("complex64", 64),
          ("float64", 64), ("int64", 64), ("uint64", 64)]

MODEL = [("model.embed_tokens.weight", "bfloat16", [16, 4], 128), ("model.norm.weight", "bfloat16", [4], 8),
         ("lm_head.weight", "bfloat16", [16, 4], 128)] + [
             (f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "bfloat16", [2, 4], 16)
             for layer in (0, 1, 10) for expert in (0, 2, 11)]


def good_files():
    yield "dtypes", by_reference([(f"t_{d}", d, [2, 3], 6 * bits // 8) for d, bits in DTYPES])
    yield "model", by_reference(MODEL, {"format": "pt"})
    yield "empty", by_reference([])
    yield "empty_with_metadata", by_reference([], {"kéy": "a \"quoted\"\n\x01 \\ value €"})
    yield "zero_size_and_scalar", by_reference([("none", "float32", [3, 0, 2], 0), ("also", "float32", [0], 0),
                                                ("scalar", "float64", [], 8), ("byte", "uint8", [1, 1], 1)])
    yield "odd_names", by_reference([("a\"b\\c\n\t\x01/\x7fé€😀", "uint8", [3], 3), (" ", "uint8", [1], 1)])
    # The reference has no writer for these two; its reader takes them.
    data = content("e2m3", 6) + content("e3m2", 3)
    yield "six_bits", by_hand(b'{"e2m3":{"dtype":"F6_E2M3","shape":[2,4],"data_offsets":[0,6]},'
                              b'"e3m2":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[6,9]}} ', data)


def bad_files():
    x = entry("F32", [1], 0, 4)
    yield "empty_file", b"", "the file has 0 bytes"
    yield "short", b"\0" * 7, "the file has 7 bytes"
    yield "length_over_limit", struct.pack("<Q", 100_000_001) + b"{}", "the header length is 100000001; at most"
    yield "length_past_end", struct.pack("<Q", 3) + b"{}", "the header length is 3; the file has only"
    yield "no_header", by_hand(b""), "the header does not begin with '{'"
    yield "not_json", by_hand(b'{"x":'), "not JSON"
    yield "not_utf8", by_hand(b'{"__metadata__":{"\xff":""}}'), "not JSON"
    yield "nul_padding", by_hand(b"{}\0\0\0\0\0\0"), "NUL byte at byte 2"
    yield "byte_order_mark", by_hand(b"\xef\xbb\xbf{}"), "does not begin with '{'"
    yield "array", by_hand(b"[]"), "does not begin with '{'"
    yield "leading_space", by_hand(b"  {}"), "does not begin with '{'"
    yield "trailing_json", by_hand(b"{}{}"), "not JSON"
    yield "hole_at_start", by_hand({"x": entry("F32", [1], 4, 8)}, b"\0" * 8), "'x': data_offsets [4, 8] leave a hole"
    yield "hole", by_hand({"x": x, "y": entry("F32", [1], 5, 9)}, b"\0" * 9), "'y': data_offsets [5, 9] leave a hole"
    yield "overlap", by_hand({"x": x, "y": entry("F32", [1], 2, 6)}, b"\0" * 6), "'y': data_offsets [2, 6] overlap"
    yield "same_range", by_hand({"x": x, "y": x}, b"\0" * 4), "'y': data_offsets [0, 4] overlap"
    yield "backwards", by_hand({"x": entry("F32", [1], 4, 0)}, b"\0" * 4), "'x': data_offsets [4, 0] end before"
    yield "wrong_size", by_hand({"x": entry("F32", [2], 0, 4)}, b"\0" * 4), "'x': data_offsets [0, 4] hold 4 bytes"
    yield "overflow", by_hand({"x": entry("U8", [2**63, 4], 0, 0)}), "do not fit in 64 bits"
    yield "half_a_byte", by_hand({"x": entry("F4", [3], 0, 2)}, b"\0" * 2), "not a whole number of bytes"
    yield "unknown_dtype", by_hand({"x": entry("F128", [1], 0, 16)}, b"\0" * 16), "'x': dtype 'F128' is unknown"
    yield "float_shape", by_hand({"x": entry("F32", [1.0], 0, 4)}, b"\0" * 4), "'x': shape holds the number 1.0"
    yield "negative_shape", by_hand({"x": entry("F32", [-1], 0, 4)}, b"\0" * 4), "'x': shape holds a negative number"
    yield "text_shape", by_hand({"x": entry("F32", "1", 0, 4)}, b"\0" * 4), "'x': shape is a string"
    yield "huge_offset", by_hand({"x": entry("F32", [1], 0, 2**64)}, b"\0" * 4), "'x': data_offsets holds the number"
    yield "one_offset", by_hand({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}, b"\0" * 4), "has 1 numbers"
    yield "no_offsets", by_hand({"x": {"dtype": "F32", "shape": [1]}}, b"\0" * 4), "'x': its entry has no data_offsets"
    yield "no_dtype", by_hand({"x": {"shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4), "'x': its entry has no dtype"
    yield "metadata_number", by_hand({"__metadata__": {"a": 1}}), "__metadata__: key 'a' is a number"
    yield "trailing_bytes", by_hand({"x": x}, b"\0" * 5), "1 trailing bytes after the last tensor"
    yield "truncated", by_hand({"x": x}, b"\0" * 3), "it is truncated"
    yield "duplicate_key", by_hand(b'{"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
                                   b"\0"), "'x': its entry has the key 'dtype' twice"
    yield "duplicate_name", by_hand(b'{"x":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},'
                                    b'"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"), "'x': the name is given twice"
    yield "unknown_key", by_hand({"x": dict(x, strides=[1])}, b"\0" * 4), "'x': its entry has an unknown key 'strides'"


def reference_verdict(data):
    try:
        safetensors.deserialize(data)
        return "accepted"
    except safetensors.SafetensorError:
        return "refused"


def main():
    root = pathlib.Path(sys.argv[1])
    lines = []
    for kind in ("good", "bad"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    for name, data in good_files():
        tensors = safetensors.deserialize(data)
        for tensor, info in tensors:
            assert bytes(info["data"]) == content(tensor, len(info["data"])), tensor
        (root / "good" / f"{name}.safetensors").write_bytes(data)
        lines.append(f"good\t{name}\t{len(tensors)}")
    for name, data, rule in bad_files():
        (root / "bad" / f"{name}.safetensors").write_bytes(data)
        lines.append(f"bad\t{name}\t{reference_verdict(data)}\t{rule}")
    (root / "vectors.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
