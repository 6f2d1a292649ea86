"""wsync.ray with real Ray: several raylets on this machine, a publisher, and a replica on each node."""
import glob
import os
import signal
import socket
import sys
import threading
import unittest
from unittest import mock

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import wsync
import wsync.ray

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from package_fleet import DEADLINE_S, until, weights_of  # noqa: E402


class Replica:
    """An actor with a replica that is polled by a thread."""

    def __init__(self, socket, name):
        self.held, self.node = {}, ray.get_runtime_context().get_node_id()
        self.replica = wsync.Replica(socket, name, take="borrow", load_layer=self.load)
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self):
        while True:
            self.replica.poll(0.02)
            self.replica.step += 1

    def load(self, version, layer, tensors):
        self.held.update({name: np.array(array, copy=True).tobytes() for name, array in tensors.items()})

    def state(self):
        return self.node, self.held, str(self.replica.status().active)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


class Sidecars(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.addCleanup(self.cluster.shutdown)
        self.second = self.cluster.add_node(num_cpus=1)
        ray.init(address=self.cluster.address, log_to_driver=False)
        self.addCleanup(ray.shutdown)
        self.replicas = {}

    def attach(self, sockets):
        kind = ray.remote(num_cpus=0)(Replica)
        for node, address in sockets.items():
            if node not in self.replicas:
                pinned = NodeAffinitySchedulingStrategy(node, soft=False)
                self.replicas[node] = kind.options(scheduling_strategy=pinned).remote(address, f"r-{node[:8]}")
        for node, replica in self.replicas.items():
            self.assertEqual(ray.get(replica.state.remote(), timeout=DEADLINE_S)[0], node)

    def publish(self, publisher, step):
        weights = weights_of(step)
        status = publisher.publish(weights, step=step).wait("committed", DEADLINE_S)
        expected = {name: array.tobytes() for name, array in weights.items()}

        def all_have_it():
            states = ray.get([replica.state.remote() for replica in self.replicas.values()], timeout=DEADLINE_S)
            return all(held == expected and version == str(status.version) for _, held, version in states)
        until(all_have_it, f"step {step} on every node")
        return status

    def test_nodes_come_and_go(self):
        fleet = wsync.ray.start(period=0.5)
        self.addCleanup(fleet.stop)
        self.assertEqual(set(fleet.sockets()), {node["NodeID"] for node in ray.nodes()})
        with wsync.Publisher(settings=fleet.settings | {"log.level": "warning", "bucket_bytes": "1MiB"}) as publisher:
            self.attach(fleet.sockets())
            self.assertEqual(self.publish(publisher, 1).replicas, 2)

            # A sidecar that is killed is started again, and its replica attaches again.
            node = self.second.node_id
            pid = fleet.states()[node]["pid"]
            os.kill(pid, signal.SIGKILL)
            until(lambda: fleet.states()[node]["starts"] == 2, "another sidecar")
            until(lambda: self.publish_one_more(publisher, 2), "a publish to both")

            # A node that ends takes its sidecar with it, also if Ray cannot clean up.
            pid = fleet.states()[node]["pid"]
            del self.replicas[node]
            os.kill(self.second.all_processes["raylet"][0].process.pid, signal.SIGSTOP)
            os.kill(parent_of(pid), signal.SIGKILL)
            self.cluster.remove_node(self.second, allow_graceful=False)
            until(lambda: node not in fleet.sockets(), "the end of the node")
            until(lambda: not alive(pid), "the end of its sidecar")
            self.publish(publisher, 30)

            # A node that joins gets one.
            third = self.cluster.add_node(num_cpus=1)
            until(lambda: third.node_id in fleet.sockets(), "the new node")
            self.attach(fleet.sockets())
            self.publish(publisher, 31)
        pids = [state["pid"] for state in fleet.states().values()]
        self.assertEqual(len(pids), 2)
        fleet.stop()
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.assertFalse(os.path.exists(fleet.run_dir))
        fleet.stop()

    def publish_one_more(self, publisher, step):
        """Steps that were taken by attempts before both replicas were back are skipped."""
        self.step = max(getattr(self, "step", step - 1) + 1, step)
        try:
            return self.publish(publisher, self.step).replicas == 2
        except wsync.Error:
            return False

    def test_an_actor_that_is_killed_comes_back_with_its_sidecar(self):
        with wsync.ray.start() as fleet:
            node = self.second.node_id
            state = fleet.states()[node]
            os.kill(parent_of(state["pid"]), signal.SIGKILL)
            until(lambda: not alive(state["pid"]), "the end of the first sidecar")

            def came_back():
                try:
                    found = fleet.states()[node]
                except ray.exceptions.RayError:
                    return False
                return found["pid"] not in (None, state["pid"]) and alive(found["pid"])
            until(came_back, "another sidecar")
            with wsync.Publisher(settings=fleet.settings | {"log.level": "warning", "bucket_bytes": "1MiB"}) as publisher:
                self.attach(fleet.sockets())
                until(lambda: self.publish_one_more(publisher, 1), "a publish to both")

    def test_failures_are_told_and_leave_nothing(self):
        before = glob.glob("/tmp/wsync-ray-*")
        with self.assertRaisesRegex(Exception, "no_such_key"):
            wsync.ray.start({"no_such_key": "1"})
        self.assertEqual(glob.glob("/tmp/wsync-ray-*"), before)

    def test_a_node_of_another_host_is_refused(self):
        elsewhere = mock.Mock(wraps=socket, gethostname=lambda: "elsewhere")
        with mock.patch.object(wsync.ray, "_sockets", elsewhere), wsync.ray.start() as fleet:
            self.assertEqual((fleet.sockets(), len(fleet.refused())), ({}, 2))
            for reason in fleet.refused().values():
                self.assertIn("sidecars of other hosts are refused", reason)
            self.assertEqual(fleet.update(), {})

    def test_ray_must_be_there(self):
        ray.shutdown()
        with self.assertRaisesRegex(wsync.Refused, "ray.init"):
            wsync.ray.start()


if __name__ == "__main__":
    unittest.main()
