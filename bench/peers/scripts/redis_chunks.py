"""Redis over a Unix socket, nothing saved: the model in values of 64 MiB; the trainer tells each engine by a list of its own what
has been set, so that engines get one value while the next is set."""
import os
import subprocess

import redis

import member

CHUNK = 64 << 20


def body(job):
    path = os.path.join(job.directory, "redis.sock")
    server = None
    if job.is_trainer:
        with open(os.path.join(job.directory, "redis.log"), "wb") as log:
            server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir",
                                       job.directory], stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=member.die_with_parent)

    def connect():
        client = redis.Redis(unix_socket_path=path)
        try:
            client.ping()
        except (redis.ConnectionError, redis.BusyLoadingError) as error:
            if server is not None and server.poll() is not None:
                raise RuntimeError(f"redis-server ended with {server.returncode}") from error
            raise ConnectionRefusedError(str(error)) from error
        return client

    client = member.patiently(connect)
    mine = f"engine{job.rank}"

    def send(memory):
        for number, at in enumerate(range(0, job.size, CHUNK)):
            client.set(f"chunk{number}", memory.view[at:at + CHUNK])
            with client.pipeline(transaction=False) as pipeline:
                for engine in range(1, job.engines + 1):
                    pipeline.rpush(f"engine{engine}", number)
                pipeline.execute()

    def receive():
        left = iter(job.tensors)
        tensor = next(left, None)
        for at in range(0, job.size, CHUNK):
            _, number = client.blpop(mine)
            got = client.get(f"chunk{int(number)}")
            job.memory.view[at:at + len(got)] = got
            while tensor is not None and tensor["offset"] + tensor["bytes"] <= at + len(got):
                job.memory.digest_tensors(job.digester, [tensor])
                tensor = next(left, None)

    job.run(send, receive)


member.main(body)
