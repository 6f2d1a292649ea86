"""The weights of the faults' trainer, computed a second time. The trainer (tests/scenario/trainer_rank.cc) changes its weights by
`scatter` and `rewrite`; Weights does the same to a copy in this process, which no wsync process has touched. The content digest of the
copy is that of a checkpoint with its bytes (`wsync inspect --digest`)."""
import json
import os
import shutil
import subprocess

import tensors


class Checkpoint:
    """Names and bytes of a checkpoint's tensors, in the order of its manifest, and where they are in its files."""

    def __init__(self, wsync, directory):
        self.wsync, self.directory = wsync, directory
        self.files = {name: tensors.read_file(os.path.join(directory, name))
                      for name in sorted(os.listdir(directory)) if name.endswith(".safetensors")}
        found = {}
        for header, data in self.files.values():
            for name, entry in header.items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    found[name] = data[begin:end]
        answer = self.inspect(directory, "--tensors")
        self.tensors = {entry["name"]: found[entry["name"]] for entry in answer["tensor_list"]}

    def inspect(self, directory, *more):
        done = subprocess.run([self.wsync, "inspect", directory, "--json", *more], check=True, text=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)["result"]

    def digest_of(self, weights, directory):
        """The content digest of these weights. They are written to a checkpoint in `directory`, which is removed."""
        shutil.copytree(self.directory, directory)
        for file, (header, data) in self.files.items():
            written = bytearray(data)
            for name, entry in header.items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    written[begin:end] = weights.bytes_of[name]
            tensors.write_file(os.path.join(directory, file), header, bytes(written))
        digest = self.inspect(directory, "--digest")["content_digest"]
        shutil.rmtree(directory)
        return digest


class Weights:
    """The weights of one trainer process, from its checkpoint on."""

    def __init__(self, checkpoint):
        self.bytes_of = {name: bytearray(data) for name, data in checkpoint.tensors.items()}

    def scatter(self, step, places):
        parts = list(self.bytes_of.values())
        for k in range(places):
            part = parts[(step * 31 + k * 7) % len(parts)]
            if part:
                part[(step * 7919 + k * 104729) % len(part)] = (step + 13 * k) % 256

    def rewrite(self, step):
        mask = (step | 1) % 256
        table = bytes(value ^ mask for value in range(256))
        for name, part in self.bytes_of.items():
            self.bytes_of[name] = part.translate(table)
