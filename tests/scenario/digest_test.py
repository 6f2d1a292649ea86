"""The content digest, as its headers define it, computed by another implementation (word_sum.h, content_digest.h)."""
import ctypes
import ctypes.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

WSYNC = sys.argv.pop()

MASK = 2**64 - 1
GOLDEN = 0x9e3779b97f4a7c15
BLOCK_WORDS = 512


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


XXHASH = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
XXHASH.XXH3_64bits.restype = ctypes.c_uint64
XXHASH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
XXHASH.XXH3_128bits.restype = Digest
XXHASH.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh3_128(data):
    """(low, high)"""
    digest = XXHASH.XXH3_128bits(data, len(data))
    return digest.low, digest.high


def splitmix(x):
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def make_keys():
    keys, state = [], 0x7773796e63
    for _ in range(BLOCK_WORDS):
        state = (state + GOLDEN) & MASK
        keys.append(splitmix(state))
    return keys


KEYS = make_keys()


def tensor_digest(name, data):
    """(low, high)"""
    encoded = name.encode()
    seed = XXHASH.XXH3_64bits(encoded, len(encoded))
    words = [word for word, in struct.iter_unpack("<Q", data + b"\0" * (-len(data) % 8))]
    product = 0
    for block in range(0, len(words), BLOCK_WORDS):
        factor = splitmix((seed + (block // BLOCK_WORDS + 1) * GOLDEN) & MASK) | 1
        keyed = (word ^ key for word, key in zip(words[block:block + BLOCK_WORDS], KEYS))
        product += factor * sum((x & 0xffffffff) * (x >> 32) for x in keyed)
    return xxh3_128(struct.pack("<QQQ", product & MASK, sum(words) & MASK, len(data)))


def content_digest(tensors):
    data = struct.pack("<Q", len(tensors))
    for name, tensor in tensors:
        low, high = tensor_digest(name, tensor)
        data += struct.pack(">QQ", high, low)  # its canonical bytes
    low, high = xxh3_128(data)
    return f"{high:016x}{low:016x}"


def read_tensors(directory, order):
    """The bytes of the tensors, in this order."""
    found = {}
    for file in sorted(os.listdir(directory)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, file), "rb") as opened:
            length, = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
            data = opened.read()
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = data[begin:end]
    return [(name, found[name]) for name in order]


class ContentDigest(unittest.TestCase):
    def test_inspect_tells_what_another_implementation_computes(self):
        with tempfile.TemporaryDirectory(prefix="wsync-") as directory:
            path = os.path.join(directory, "model")
            subprocess.run([WSYNC, "make-checkpoint", path, "--size", "12MiB"], check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run([WSYNC, "inspect", path, "--tensors", "--digest", "--json"], check=True, capture_output=True, text=True)
            result = json.loads(done.stdout)["result"]
            tensors = read_tensors(path, [tensor["name"] for tensor in result["tensor_list"]])
            self.assertTrue(any(len(data) > 2**20 for _, data in tensors), "a tensor of several leaves")
            self.assertEqual(result["content_digest"], content_digest(tensors))


if __name__ == "__main__":
    unittest.main()
