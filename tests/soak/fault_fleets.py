"""Several runs of faults.py beside each other. One fleet mostly waits: for a fault that lasts, and for deadlines. Several use a machine."""
import collections
import contextlib
import ctypes
import multiprocessing
import os
import signal
from multiprocessing.connection import wait

from fault_run import FAULTS, FaultRun


def _interrupted_once(*_):
    """A second Ctrl-C must not keep the fleet from being ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_the_parent():
    """Also if that is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _run(pipe, programs, seed, faults, replicas, cycles, seconds):
    signal.signal(signal.SIGINT, _interrupted_once)
    _end_with_the_parent()
    run = FaultRun(programs, seed, faults, lambda line: print(f"seed {seed}: {line}", flush=True), replicas)
    try:
        said = run.run(cycles, seconds)
    except AssertionError as error:
        said = str(error)
    except BaseException as error:  # of the start of the fleet, or Ctrl-C
        said = f"{type(error).__name__}: {error} (seed {seed})"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        pipe.send(said)


def run_fleets(programs, seeds, cycles, seconds, faults=FAULTS, replicas=None):
    """Runs one fleet for each seed, each in a process of its own. The cycles are shared out between them. Returns the runs by seed.
    Raises AssertionError with the sentence of the first fleet that fails, after the others have been stopped."""
    shares = {seed: len(range(index, cycles, len(seeds))) for index, seed in enumerate(seeds)}
    processes, pipes = {}, {}
    runs, failure = {}, None
    try:
        for seed in seeds:
            # A fork keeps the arguments of the program.
            pipe, end = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.get_context("fork").Process(
                target=_run, args=(end, programs, seed, faults, replicas, shares[seed], seconds))
            process.start()
            end.close()
            processes[seed], pipes[pipe] = process, seed
        while pipes:
            for pipe in wait(list(pipes)):
                seed = pipes.pop(pipe)
                try:
                    said = pipe.recv()
                except EOFError:
                    said = f"the process of the fleet has ended without a result (seed {seed})"
                if isinstance(said, FaultRun):
                    runs[seed] = said
                elif failure is None:
                    failure = said
                    _stop(processes.values())
    except BaseException:
        _stop(processes.values())
        raise
    finally:
        for pipe in pipes:  # nobody reads from it any more
            pipe.close()
        for process in processes.values():
            process.join()
    if failure is not None:
        raise AssertionError(failure)
    return {seed: runs[seed] for seed in seeds}


def _stop(processes):
    """As by Ctrl-C: each ends its fleet."""
    for process in processes:
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)


def together(runs):
    """What the runs have counted, as one run: sums, except for the time, which is the longest."""
    runs = list(runs)
    whole = FaultRun(None, runs[0].seed)
    whole.fleets = len(runs)
    whole.seconds = max(run.seconds for run in runs)
    whole.kinds, whole.loads, whole.loads_at_rest = collections.Counter(), collections.Counter(), collections.defaultdict(collections.Counter)
    for name in ("cycles", "publishes", "refused", "verified", "ranks_verified", "bytes_verified"):
        setattr(whole, name, sum(getattr(run, name) for run in runs))
    for run in runs:
        whole.kinds.update(run.kinds)
        whole.loads.update(run.loads)
        whole.most |= run.most  # the larger of each: it is of one process
        for replica, counted in run.loads_at_rest.items():
            whole.loads_at_rest[replica].update(counted)
        for which, took in run.took.items():
            whole.took[which] += took
    return whole
