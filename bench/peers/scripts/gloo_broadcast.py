"""torch.distributed with Gloo on loopback. Variants: tensors, a broadcast for each, in place; buckets, tensors packed into buffers
of 64 MiB, two of them, so that one is packed or unpacked while the other is on its way."""
import os

import torch
import torch.distributed as dist

import member
import torch_tensors

BUCKET = 64 << 20


def body(job):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch_tensors.share_cores(job)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(job.directory, "store"), rank=job.rank,
                            world_size=job.engines + 1)

    def flat(memory, tensor):
        return torch.frombuffer(memory.map, dtype=torch.uint8, count=tensor["bytes"], offset=tensor["offset"])

    places = [{t["name"]: flat(m, t) for t in job.tensors} for m in (job.models if job.is_trainer else [job.memory])]
    groups = list(member.pieces_of(job.tensors, BUCKET))
    most = max(sum(t["bytes"] for t in group) for group in groups)
    buckets = [torch.zeros(most, dtype=torch.uint8) for _ in range(2)] if job.variant == "buckets" else []

    def by_tensor(place):
        for tensor in job.tensors:
            dist.broadcast(place[tensor["name"]], src=0)
            if not job.is_trainer:
                job.memory.digest_tensors(job.digester, [tensor])

    def bucket_of(i):
        return buckets[i % 2][:sum(t["bytes"] for t in groups[i])]

    def begin(place, i):
        if job.is_trainer:
            torch.cat([place[t["name"]] for t in groups[i]], out=bucket_of(i))
        return dist.broadcast(bucket_of(i), src=0, async_op=True)

    def end(place, i, work):
        work.wait()
        if job.is_trainer:
            return
        for tensor, piece in zip(groups[i], torch.split(bucket_of(i), [t["bytes"] for t in groups[i]])):
            place[tensor["name"]].copy_(piece)
        job.memory.digest_tensors(job.digester, groups[i])

    def by_bucket(place):
        works = {}
        for i in range(len(groups)):
            works[i] = begin(place, i)
            if i > 0:
                end(place, i - 1, works.pop(i - 1))
        end(place, len(groups) - 1, works.pop(len(groups) - 1))

    broadcast = by_bucket if job.variant == "buckets" else by_tensor
    job.run(lambda memory: broadcast(places[job.models.index(memory)]), lambda: broadcast(places[0]))


member.main(body)
