#!/usr/bin/env python3
"""Makes the golden patch files, by the page that defines them (shared/weights/patch/README.md) and without any code of wsync.

Usage: make_patches.py DIRECTORY           writes NAME.patch for each case
       make_patches.py --check DIRECTORY   compares the files there with what it would write

Byte j of a tensor of the base is (7 * j + 13 * bytes of its name) mod 256. In the target each byte of the elements that a case
changes is its complement. Standard library only; XXH3 is that of libxxhash, which wsync itself needs.
"""
import ctypes
import ctypes.util
import pathlib
import struct
import sys

BLOCK = 256 * 1024
MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
# The number of a type in a manifest, and the bytes of its elements in a patch.
DTYPES = {"BOOL": (0, 1), "F4": (1, 1), "U8": (4, 1), "BF16": (14, 2), "F32": (17, 4), "I64": (20, 8)}
BITS = {"F4": 4}


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


XXHASH = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
XXHASH.XXH3_128bits.argtypes = XXHASH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
XXHASH.XXH3_128bits.restype = Digest
XXHASH.XXH3_64bits.restype = ctypes.c_uint64


def digest(data):
    return XXHASH.XXH3_128bits(data, len(data))


def raw(found):
    return struct.pack("<QQ", found.low, found.high)


def canonical(found):
    return struct.pack(">QQ", found.high, found.low)


# ---- sums of words, and content digests of them (shared/base/word_sum.h, shared/weights/content_digest.h) ----

def splitmix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


KEYS = [splitmix((0x7773796E63 + (i + 1) * STEP) & MASK) for i in range(512)]


def word_sum(tensor, seed, words):
    """(product, sum) of these words of a tensor."""
    product = total = 0
    for number in words:
        word = int.from_bytes(tensor[8 * number:8 * number + 8].ljust(8, b"\0"), "little")
        keyed = word ^ KEYS[number % 512]
        factor = splitmix((seed + (number // 512 + 1) * STEP) & MASK) | 1
        product += (keyed & 0xFFFFFFFF) * (keyed >> 32) * factor
        total += word
    return product & MASK, total & MASK


def content_digest(names, tensors):
    parts = []
    for name, tensor in zip(names, tensors):
        seed = XXHASH.XXH3_64bits(name.encode(), len(name.encode()))
        sums = word_sum(tensor, seed, range((len(tensor) + 7) // 8))
        parts.append(canonical(digest(struct.pack("<QQQ", *sums, len(tensor)))))
    return digest(struct.pack("<Q", len(parts)) + b"".join(parts))


def layout_digest(tensors):
    data = b"wsync layout 1" + struct.pack("<Q", len(tensors))
    for name, dtype, shape in tensors:
        data += struct.pack("<Q", len(name.encode())) + name.encode()
        data += struct.pack(f"<QQ{len(shape)}Q", DTYPES[dtype][0], len(shape), *shape)
    return digest(data)


# ---- patches ----

def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block_of(name, base, target, size, number):
    """(entry without its place, payload, values) of a block, or None if nothing changes."""
    begin, end = number * BLOCK, min((number + 1) * BLOCK, len(base))
    changed = [e for e in range((end - begin) // size)
               if base[begin + e * size:begin + (e + 1) * size] != target[begin + e * size:begin + (e + 1) * size]]
    if not changed:
        return None
    gaps = b"".join(varint(e - before - 1) for before, e in zip([-1, *changed], changed))
    values = b"".join(target[begin + e * size:begin + (e + 1) * size] for e in changed)
    words = sorted({(begin + e * size) // 8 for e in changed})
    head = varint(len(changed)) + varint(len(gaps))
    if len(gaps) + len(values) >= end - begin:
        gaps, values = b"", target[begin:end]
        words = range(begin // 8, (end + 7) // 8)
        head = varint(0)
    seed = XXHASH.XXH3_64bits(name.encode(), len(name.encode()))
    sums = struct.pack("<QQQQ", *word_sum(base, seed, words), *word_sum(target, seed, words))
    return head + sums, gaps + values, len(values) // size


def bucket_of(blocks):
    """(entry of the index, bytes) of a bucket of [(tensor, number, head, payload, values)]."""
    directory, last = b"", None
    for tensor, number, head, _, _ in blocks:
        same = last is not None and last[0] == tensor
        directory += varint(tensor - (last[0] if last else 0)) + varint(number - last[1] - 1 if same else number) + head
        last = tensor, number
    data = directory + b"".join(block[3] for block in blocks)
    entry = struct.pack("<QQIIIIII", len(data), sum(block[4] for block in blocks), len(blocks), len(directory), *blocks[0][:2], *last)
    return entry + raw(digest(data)), data


def patch_file(tensors, is_changed, blocks_of_a_bucket):
    """The bytes of a file. `tensors`: [(name, type, shape)] in the order of a manifest."""
    names = [name for name, _, _ in tensors]
    bases, targets, blocks = [], [], []
    manifest = struct.pack("<I", len(tensors))
    for index, (name, dtype, shape) in enumerate(tensors):
        number, size = DTYPES[dtype]
        count = 1
        for extent in shape:
            count *= extent
        length = count * BITS.get(dtype, 8 * size) // 8
        base = bytes((7 * j + 13 * len(name.encode())) % 256 for j in range(length))
        target = bytearray(base)
        for element in range(length // size):
            if is_changed(element):
                target[element * size:(element + 1) * size] = bytes(255 - b for b in base[element * size:(element + 1) * size])
        bases.append(base)
        targets.append(bytes(target))
        dims = struct.pack(f"<{len(shape)}Q", *shape)
        manifest += struct.pack("<I", len(name.encode())) + name.encode() + struct.pack("<BB", number, len(shape)) + dims
        for block in range((length + BLOCK - 1) // BLOCK):
            if found := block_of(name, base, bytes(target), size, block):
                blocks.append((index, block, *found))
    buckets = [bucket_of(blocks[i:i + blocks_of_a_bucket]) for i in range(0, len(blocks), blocks_of_a_bucket)]
    counts, before = b"", -1
    changed = sorted({block[0] for block in blocks})
    for tensor in changed:
        counts += varint(tensor - before - 1) + varint(sum(block[0] == tensor for block in blocks))
        before = tensor
    body = b"".join(data for _, data in buckets)
    index = struct.pack("<IIQ", 0x58505357, 1, 104 + 56 * len(buckets) + len(counts) + 16)
    index += raw(layout_digest(tensors)) + raw(content_digest(names, bases)) + raw(content_digest(names, targets))
    index += struct.pack("<QQQQII", sum(map(len, bases)), len(blocks), sum(block[4] for block in blocks), len(body), len(changed),
                         len(buckets))
    index += b"".join(entry for entry, _ in buckets) + counts
    index += raw(digest(index))
    return b"WSPATCH\0" + struct.pack("<IIQQ", 1, 0, len(manifest), len(index)) + raw(digest(manifest)) + manifest + index + body


TENSORS = [("a", "BF16", [5, 7]), ("b", "U8", [13]), ("c", "F32", [3, 3]), ("d", "I64", [9]), ("e", "F4", [2, 13]), ("f", "BOOL", []),
           ("g", "BF16", [0, 4])]
LARGE = [("large.one", "U8", [2 * BLOCK + 5]), ("large.two", "F32", [BLOCK // 4 + 1])]


def cases():
    yield "some", patch_file(TENSORS, lambda e: (e * e + 3 * e) % 11 == 0, 1000)
    yield "all", patch_file(TENSORS, lambda e: True, 1000)
    yield "none", patch_file(TENSORS, lambda e: False, 1000)
    yield "blocks", patch_file(LARGE, lambda e: e % 50_000 == 49_999 or e in (0, 2 * BLOCK + 4, BLOCK // 4), 1000)
    yield "one_block_each", patch_file(LARGE, lambda e: e % 50_000 == 49_999, 1)


def main(arguments):
    check = arguments[:1] == ["--check"]
    if len(arguments) != 1 + check or arguments[-1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    directory = pathlib.Path(arguments[-1])
    status = 0
    for name, data in cases():
        path = directory / f"{name}.patch"
        if not check:
            path.write_bytes(data)
        elif not path.is_file() or path.read_bytes() != data:
            print(f"{path} differs from what make_patches.py writes")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
