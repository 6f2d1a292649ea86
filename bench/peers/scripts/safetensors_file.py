"""A safetensors file, saved by the trainer and loaded by engines into the parameters that they have.

Variants: tmpfs; disk, as users write it (not synced, so engines read what the page cache has); disk_cold (synced, and dropped
from the page cache before engines read it, as engines of another host would find it).
"""
import os

from safetensors import safe_open
from safetensors.torch import save_file

import member
import torch_tensors


def body(job):
    torch_tensors.share_cores(job)
    bell = member.Bell(job)
    path = os.path.join(job.data_directory, "model.safetensors")
    models = [torch_tensors.tensors_of(memory) for memory in job.models]
    parameters = {} if job.is_trainer else torch_tensors.tensors_of(job.memory)

    def send(memory):
        save_file(models[job.models.index(memory)], path + ".new")
        os.rename(path + ".new", path)
        if job.variant == "disk_cold":
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
        bell.ring(path)

    def receive():
        with safe_open(bell.wait(), framework="pt") as file:
            for tensor in job.tensors:
                parameters[tensor["name"]].copy_(file.get_tensor(tensor["name"]))
                job.memory.digest_tensors(job.digester, [tensor])

    job.run(send, receive)


member.main(body)
