"""Open MPI by mpi4py: a broadcast for each tensor, in place, of at most 1 GiB at a time. Ranks wait for the benchmark's word and
not in a broadcast, which would keep the cores busy."""
import mpi4py

mpi4py.rc.thread_level = "multiple"
from mpi4py import MPI  # noqa: E402

import member  # noqa: E402

MOST = 1 << 30
WORLD = MPI.COMM_WORLD


def body(job):
    def broadcast(memory):
        for tensor in job.tensors:
            view = memory.of(tensor)
            for at in range(0, len(view), MOST):
                WORLD.Bcast([view[at:at + MOST], MPI.BYTE], root=0)
            if not job.is_trainer:
                memory.digest_tensors(job.digester, [tensor])

    WORLD.Barrier()
    job.run(broadcast, lambda: broadcast(job.memory))
    MPI.Finalize()  # which removes what it keeps in /dev/shm


member.main(body, rank=WORLD.Get_rank())
