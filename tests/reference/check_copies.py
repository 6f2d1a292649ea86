#!/usr/bin/env python3
"""Checks that copies made by wsync load in the reference package with equal contents.

Usage: check_copies.py ORIGINALS COPIES    (two directories with the same file names)
"""

import pathlib
import sys

import safetensors


def contents(path):
    data = path.read_bytes()
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        names = set(file.keys())
    tensors = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(data)}
    assert names == set(tensors)
    return metadata, tensors


def main():
    originals, copies = map(pathlib.Path, sys.argv[1:])
    files = sorted(p.name for p in originals.iterdir())
    assert files == sorted(p.name for p in copies.iterdir()), "the two directories hold other files"
    for name in files:
        if contents(originals / name) != contents(copies / name):
            sys.exit(f"{copies / name}: the reference package reads other contents than in {originals / name}")
    print(f"{len(files)} files written by wsync load in the reference package {safetensors.__version__}")


if __name__ == "__main__":
    main()
