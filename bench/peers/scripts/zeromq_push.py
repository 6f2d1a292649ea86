"""ZeroMQ over ipc: a PUSH socket for each engine; messages of 8 MiB that share the trainer's memory, copied into place by engines."""
import os

import zmq

import member

PIECE = 8 << 20
MESSAGES = 8  # on their way to an engine


def body(job):
    context = zmq.Context(io_threads=max(1, min(job.engines, len(os.sched_getaffinity(0)))))

    def socket_of(kind, engine):
        made = context.socket(kind)
        made.set_hwm(MESSAGES)
        made.linger = 0
        address = f"ipc://{job.directory}/engine{engine}"
        if kind == zmq.PUSH:
            made.bind(address)
        else:
            made.connect(address)
        return made

    pushes = [socket_of(zmq.PUSH, engine) for engine in range(1, job.engines + 1)] if job.is_trainer else []
    pull = None if job.is_trainer else socket_of(zmq.PULL, job.rank)

    def send(memory):
        for at in range(0, job.size, PIECE):
            for push in pushes:
                push.send(memory.view[at:at + PIECE], copy=False)

    def receive():
        left = iter(job.tensors)
        tensor = next(left, None)
        for at in range(0, job.size, PIECE):
            got = pull.recv(copy=False).buffer
            job.memory.view[at:at + len(got)] = got
            while tensor is not None and tensor["offset"] + tensor["bytes"] <= at + len(got):
                job.memory.digest_tensors(job.digester, [tensor])
                tensor = next(left, None)

    job.run(send, receive)


member.main(body)
