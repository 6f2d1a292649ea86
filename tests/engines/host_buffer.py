"""Shared memory of the host in the place of a GPU's memory and CUDA IPC, for the tests of wsync.checkpoint_engine."""
import os
import tempfile

import torch


def rebuild(path, size, *others):
    """What the worker is told to call, in the place of torch's function for CUDA IPC."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


class HostBuffer:
    def __init__(self, size):
        descriptor, self.path = tempfile.mkstemp(prefix="buffer-", dir=os.environ["WSYNC_TEST_BUFFERS"])
        os.truncate(descriptor, size)
        os.close(descriptor)
        self.size = size
        self.memory = rebuild(self.path, size)
        print(f"buffer of {size} bytes", flush=True)

    def handle(self):
        return rebuild, (self.path, self.size, None, None, None, None, 0, None)

    def write(self, offset, data):
        self.memory[offset:offset + data.numel()].copy_(data)

    def synchronize(self):
        pass

    def close(self):
        self.memory.fill_(0xEE)  # a worker that still reads it is found
        os.remove(self.path)
