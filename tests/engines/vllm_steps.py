"""What each rank of a vLLM server holds in every step: a plugin of vLLM that writes it down, and the check of what was written.

The version is told twice. `version` is what the rank's replica says. `old` counts the parameters of the model that have the values
with which the server was started: a test alternates between these and others that differ in each parameter, so a rank that holds
one version has all of them or none. Of each parameter some elements are looked at, those of the CPU's packed copies are not.
"""
import json
import os
import zlib
from itertools import groupby

DIRECTORY = "WSYNC_TEST_STEPS"
_ELEMENTS = 64  # of each parameter


def plugin(fleet, *more):
    """The environment of a server that writes its steps. `more`: other plugins of the test, as directories from `install`."""
    directory = fleet.path("steps")
    os.makedirs(directory)
    roots = [install(fleet, "vllm_steps"), os.path.dirname(os.path.abspath(__file__)), *more]
    names = ["wsync", "vllm_steps", *map(os.path.basename, more)]
    return {"PYTHONPATH": ":".join(roots), "VLLM_PLUGINS": ",".join(names), DIRECTORY: directory}


def install(fleet, name, source=None):
    """A directory for PYTHONPATH with the entry point of a plugin. `source`: of its module, if it is to be written."""
    root = fleet.path(name)
    os.makedirs(os.path.join(root, f"{name}-1.dist-info"))
    with open(os.path.join(root, f"{name}-1.dist-info", "METADATA"), "w", encoding="utf-8") as out:
        out.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    with open(os.path.join(root, f"{name}-1.dist-info", "entry_points.txt"), "w", encoding="utf-8") as out:
        out.write(f"[vllm.general_plugins]\n{name} = {name}:register\n")
    if source is not None:
        with open(os.path.join(root, f"{name}.py"), "w", encoding="utf-8") as out:
            out.write(source)
    return root


# In the worker.

def register():
    """The entry point. The worker is watched from the moment at which it attaches."""
    from wsync.vllm.worker import WsyncWeightTransferEngine as Engine
    attach = Engine.init_transfer_engine

    def attach_and_watch(self, info):
        attach(self, info)
        _watch(self)
    Engine.init_transfer_engine = attach_and_watch


def _watch(engine):
    from vllm.v1.worker.gpu_worker import Worker
    rank = engine.parallel_config.rank
    out = open(os.path.join(os.environ[DIRECTORY], f"rank{rank}"), "w", buffering=1, encoding="utf-8")
    first = _values(engine.model)
    execute, sample = Worker.execute_model, Worker.sample_tokens
    step = {"step": 0}

    def held():
        values = _values(engine.model)
        return {"version": str(engine.rank.replica.status().active or ""),
                "old": sum(values[name] == first[name] for name in first), "of": len(first)}

    def end(output):
        if output is not None:  # otherwise the step ends with sample_tokens
            out.write(json.dumps(step | {"end": held()}) + "\n")
        return output

    def execute_model(self, scheduled):
        step.update(step=step["step"] + 1, requests=scheduled.num_scheduled_tokens, begin=held())
        return end(execute(self, scheduled))

    Worker.execute_model = execute_model
    Worker.sample_tokens = lambda self, grammar: end(sample(self, grammar))


def _values(model):
    """A sum of some elements of each parameter, by name."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.numel():
            flat = parameter.detach().reshape(-1)
            found[name] = zlib.crc32(flat[::max(1, flat.numel() // _ELEMENTS)].float().numpy().tobytes())
    return found


# In the test.

def compare(directory, ranks):
    """Asserts that each step was one of the same version on all ranks, from its beginning to its end.

    Returns:
        The number of steps, and how often the version changed between two of them.
    """
    steps = []
    for rank in range(ranks):
        with open(os.path.join(directory, f"rank{rank}"), encoding="utf-8") as file:
            steps.append([json.loads(line) for line in file if line.endswith("\n")])
    counts = {}
    for same in zip(*steps):
        held = [step[when] for step in same for when in ("begin", "end")]
        assert all(step["requests"] == same[0]["requests"] for step in same), f"these are not the same step: {same}"
        assert all(found["version"] == held[0]["version"] for found in held), f"two versions in one step: {same}"
        assert all(found["old"] in (0, found["of"]) for found in held), f"parameters of two versions: {same}"
        assert len({found["old"] == 0 for found in held}) == 1, f"other parameters on another rank: {same}"
        assert counts.setdefault(held[0]["version"], held[0]["old"]) == held[0]["old"], f"one version, other parameters: {same}"
    versions = [step["begin"]["version"] for step in steps[0]]
    return min(map(len, steps)), len(list(groupby(versions))) - 1
