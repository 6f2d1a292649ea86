"""Models that are spread over processes of torch.distributed. Run by tests/reference/run.sh, in an environment that has torch; it
is left out where torch is missing."""
import sys
import unittest

import numpy as np
import wsync
from package_fleet import PackageFleet, until

try:
    import torch
    import wsync.torch
except ImportError:
    print("skip: this environment has no torch")
    sys.exit(77)

RANKS = 2
# One process of the trainer. Rank 0 writes down what was trained, gathered by torch itself.
TRAINER = """
import os, sys
run_dir, state_dir, rank, directory = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
import wsync
import wsync.torch
from package_fleet import DEADLINE_S

dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
torch.manual_seed(1)  # the same model in both
model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 1))
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
grid = init_device_mesh("cpu", (1, 2))
torch.manual_seed(2)
more = {"columns": distribute_tensor(torch.randn(6, 5), mesh, [Shard(1)]),
        "replicated": distribute_tensor(torch.randn(3), mesh, [Replicate()]),
        "tensor parallel": distribute_tensor(torch.randn(4, 6), grid, [Replicate(), Shard(1)]),
        "two dimensions": distribute_tensor(torch.randn(4, 6), grid, [Shard(0), Shard(1)]),
        "sum": DTensor.from_local(torch.full((3,), 1.0 + rank), mesh, [Partial()]),
        "plain": torch.arange(5.0)}
with wsync.Publisher(settings={"run_dir": run_dir, "state_dir": state_dir, "log.level": "warning"}, rank=rank, world_size=2) as p:
    for step in (1, 2, 3):
        model(torch.arange(7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        weights = model.state_dict() | more
        mine = wsync.torch.shards(weights)
        whole = {name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()
                 for name, tensor in weights.items()}
        if rank == 0:
            torch.save(whole, f"{directory}/{step}.pt")
        p.publish(mine, step=step).wait("committed", DEADLINE_S)
    parts = {name: part.ranges[0] if isinstance(part, wsync.Shard) else None for name, part in mine.items()}
    print(parts, flush=True)
dist.destroy_process_group()
"""


class Shards(unittest.TestCase):
    def test_two_processes_of_fsdp_put_their_own(self):
        fleet = self.enterContext(PackageFleet())
        fleet.environment["GLOO_SOCKET_IFNAME"] = "lo"
        _, socket = fleet.sidecar()
        held, versions = {}, []

        def load_layer(version, layer, tensors):
            held.setdefault(version.step, {}).update({name: np.array(array, copy=True) for name, array in tensors.items()})
        fleet.serve(wsync.Replica(socket, "r0", take="borrow", load_layer=load_layer, commit=versions.append))
        ranks = [fleet.program(TRAINER, fleet.run_dir, fleet.path(f"state{rank}"), rank, fleet.directory) for rank in range(RANKS)]
        until(lambda: len(versions) == 3 or any(rank.poll() for rank in ranks), "three versions")
        said = []
        for rank in ranks:
            code, out, log = fleet.end(rank)
            self.assertEqual(code, 0, log)
            said.append(eval(out, {"Range": wsync.Range}))
        for step in (1, 2, 3):
            whole = torch.load(fleet.path(f"{step}.pt"))
            self.assertEqual(set(held[step]), set(whole))
            for name, tensor in whole.items():
                np.testing.assert_array_equal(held[step][name], tensor.numpy(), name)
        self.assertFalse(np.array_equal(held[1]["0.weight"], held[3]["0.weight"]))
        # Nobody gave what the other has.
        self.assertEqual((said[0]["0.weight"], said[1]["0.weight"]), (wsync.Range(0, 0, 4), wsync.Range(0, 4, 3)))
        self.assertEqual((said[0]["columns"], said[1]["columns"]), (wsync.Range(1, 0, 3), wsync.Range(1, 3, 2)))
        self.assertEqual((said[0]["tensor parallel"], said[1]["tensor parallel"]), (wsync.Range(1, 0, 3), wsync.Range(1, 3, 3)))
        for name in ("replicated", "two dimensions", "sum", "plain"):
            self.assertIsNone(said[0][name])
            self.assertNotIn(name, said[1])
        for name in ("3.weight", "3.bias"):  # one row, one element: rank 1 has nothing of it
            self.assertNotIn(name, said[1])

    def test_one_process(self):
        module = torch.nn.Linear(3, 2)
        self.assertEqual(list(wsync.torch.shards(module)), ["weight", "bias"])
        self.assertEqual(wsync.torch.shards(module, rank=1), {})


if __name__ == "__main__":
    unittest.main()
