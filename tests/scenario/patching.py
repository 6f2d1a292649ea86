"""A fleet whose versions are checkpoints that differ in some elements from the one before."""
import os
import shutil
import subprocess

import tensors
from fleet import Fleet


def changed(source, directory, every):
    """A copy of a checkpoint in which each `every`-th element of two bytes is another one."""
    shutil.copytree(source, directory)
    for name in os.listdir(directory):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(directory, name)
        header, data = tensors.read_file(path)
        data = bytearray(data)
        data[::2 * every] = bytes(b ^ 1 for b in data[::2 * every])
        tensors.write_file(path, header, bytes(data))
    return directory


class PatchFleet(Fleet):
    def __init__(self, wsync):
        super().__init__(wsync)
        self.one = self.checkpoint("v1", 1)
        self.versions = 1

    def next(self, every):
        """A checkpoint that differs from the one before in one of so many elements."""
        self.versions += 1
        return changed(self.path(f"v{self.versions - 1}"), self.path(f"v{self.versions}"), every)

    def pushed(self, path):
        code, answer = self.ask("push", path)
        if code != 0:
            raise AssertionError(answer)
        return answer["result"]

    def load_of(self, replica, sidecar="s0"):
        """What the sidecar itself says: a coordinator hears of it with the next heartbeat."""
        code, answer = self.ask("status", address=f"ipc://{self.run_dir}/{sidecar}.control")
        if code != 0:
            raise AssertionError(answer)
        return {r["replica"]: r["last_load"] for r in answer["result"]["sidecars"][0]["replicas"]}[replica]

    def said(self, *command):
        """What a command prints for people."""
        return subprocess.run([self.wsync, *command, "--coordinator", self.address], env=self.environment, text=True,
                              capture_output=True, check=True).stdout
