"""Small checkpoints written by hand, so that each byte of them can be made wrong."""
import json
import os
import struct

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
A0, B0 = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
A1, B1 = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"
SHARDS = {FIRST: {EMBED: [64, 32], A0: [48, 32], B0: [32, 48]},
          SECOND: {A1: [48, 32], B1: [32, 48], HEAD: [64, 32]}}


def layout(shapes):
    """The header of a file that holds bf16 tensors of these shapes, and the size of its data."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def write_file(path, header, data, length=None):
    """`header` as an object or as text; `length` is what the file says of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text) if length is None else length) + text + data)


def read_file(path):
    """The header of a file, and its data."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(size)), file.read()


def data_of(size, seed):
    # bf16 values of ordinary size, other ones for each seed.
    return bytes(b if i % 2 == 0 else 0x3C for i, b in enumerate((i * 31 + seed * 7) % 251 for i in range(size)))


def write_text(name, content):
    """A way to spoil a directory: this text in the place of a file."""
    def spoil(directory):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(content)
    return spoil


def write_index(directory, weight_map):
    with open(os.path.join(directory, INDEX), "w", encoding="utf-8") as out:
        json.dump({"metadata": {}, "weight_map": weight_map}, out)


def weight_map():
    return {name: shard for shard, shapes in SHARDS.items() for name in shapes}


def make(directory, seed):
    os.makedirs(directory)
    for number, (shard, shapes) in enumerate(SHARDS.items()):
        header, size = layout(shapes)
        write_file(os.path.join(directory, shard), header, data_of(size, seed + number))
    write_index(directory, weight_map())
    return directory
