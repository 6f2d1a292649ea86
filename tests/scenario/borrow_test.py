"""An engine that borrows each version, whatever its layout, and whose controller is apart from its weights: the C example."""
import functools
import operator
import os
import re
import signal
import subprocess
import sys
import unittest

import tensors
from fleet import DEADLINE_S, Fleet

WSYNC, LOADER = sys.argv[-2:]


def packed(directory):
    """The exclusive or of all bytes of a checkpoint, and the number of its tensors."""
    value = count = 0
    for shard in sorted(os.listdir(directory)):
        if not shard.endswith(".safetensors"):
            continue
        header, data = tensors.read_file(os.path.join(directory, shard))
        value ^= functools.reduce(operator.xor, data, 0)
        count += sum(name != "__metadata__" for name in header)
    return f"{count} tensors, xor {value:02x}"


class LoaderFleet(Fleet):
    def loader(self, engines, replica, *more):
        with self.log() as log:
            process = subprocess.Popen([LOADER, engines, replica, *more], env=self.environment, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.processes.append(process)
        self.until(lambda: self.replicas().get(replica, {}).get("ranks_attached") == 2, "controller and rank")
        return process

    def pushed(self, path):
        code, answer = self.ask("push", path)
        if code != 0:
            raise AssertionError(answer)
        return answer["result"]["version"]


class Borrow(unittest.TestCase):
    def lines(self, process):
        """What it has said, after it has ended."""
        process.stdin.close()
        self.assertEqual(process.wait(DEADLINE_S), 0)
        return process.stdout.read().splitlines()

    def test_versions_of_two_layouts(self):
        with LoaderFleet(WSYNC) as fleet:
            one, fused = tensors.make(fleet.path("one"), 1), fleet.path("fused")
            os.makedirs(fused)
            header, size = tensors.layout({"fused.qkv.weight": [96, 32], "head": [7]})
            tensors.write_file(os.path.join(fused, "model.safetensors"), header, tensors.data_of(size, 5))
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            process = fleet.loader(engines, "a")
            expected = []
            for path in (one, fused, one):
                version = fleet.pushed(path)
                size = sum(len(tensors.read_file(os.path.join(path, n))[1]) for n in os.listdir(path) if n.endswith(".safetensors"))
                expected += [f"pauses for version {version} of {size} bytes", f"holds version {version}: {packed(path)}"]
            # It served nothing before the first version, so nothing had to be paused for it.
            self.assertEqual(self.lines(process), expected[1:])

    def test_verify_does_not_say_equal_of_what_it_cannot_read(self):
        with LoaderFleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            process = fleet.loader(engines, "a")
            version = fleet.pushed(one)
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 4)
            self.assertEqual((answer["ok"], answer["result"]["match"], answer["result"]["only_unreadable"]), (False, False, True))
            ranks = {rank["rank"]: rank for rank in answer["result"]["ranks"]}
            self.assertEqual(ranks[0]["failure"], "this engine gives no read_tensor, so its tensors cannot be read back")
            text = subprocess.run([WSYNC, "verify"], env=fleet.environment, text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(text.returncode, 4)
            self.assertIn("replica a rank 0: not verified: this engine gives no read_tensor, so its tensors cannot be read back\n", text.stdout)
            self.assertEqual([(rank["is_unreadable"], rank["is_controller"]) for rank in (ranks[0], ranks[1])], [(True, False), (False, True)])
            self.assertEqual(fleet.replicas()["a"]["controller"], "attached")
            self.assertIn("replica a rank 1: it is the controller of the replica, and holds no weights", text.stdout)
            self.assertNotIn("all equal", text.stdout)
            self.assertEqual((ranks[1]["failure"], ranks[1]["tensors"], ranks[1]["version"]), ("", 0, version))
            self.lines(process)

    def test_a_version_that_it_refuses(self):
        with LoaderFleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            other = fleet.path("other")
            os.makedirs(other)
            header, size = tensors.layout({"fits.not": [8, 8]})
            tensors.write_file(os.path.join(other, "model.safetensors"), header, tensors.data_of(size, 5))
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            process = fleet.loader(engines, "a", "fits.not")
            first = fleet.pushed(one)
            code, answer = fleet.ask("push", other)
            self.assertEqual(code, 1, answer)
            self.assertEqual(answer["result"]["code"], "refused", answer)
            # Once: no other transport was tried for it.
            self.assertRegex(answer["result"]["reason"], "^sidecar 's0': replica 'a' rank 0 refuses 1.2: this engine has no "
                                                         "place for tensor fits.not$")
            replica = fleet.replicas()["a"]
            self.assertEqual((replica["version"], replica["state"], replica["ready"]), (first, "serving", True), replica)
            second = fleet.pushed(one)
            lines = self.lines(process)
            self.assertEqual([line.split(":")[0] for line in lines if line.startswith("holds")],
                             [f"holds version {v}" for v in (first, second)])

    def test_an_engine_that_comes_late_and_does_not_take_what_is_served(self):
        """It is told so, and is not paused: it serves what it has."""
        with LoaderFleet(WSYNC) as fleet:
            one = tensors.make(fleet.path("one"), 1)
            sidecar, engines = fleet.sidecar("s0", "--set", "log.level=debug")
            fleet.start("trainer")
            fits = fleet.loader(engines, "a")
            version = fleet.pushed(one)
            with fleet.log() as log:
                process = subprocess.Popen([LOADER, engines, "b", tensors.HEAD], env=fleet.environment, text=True,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            process.log_path = log.name
            fleet.processes.append(process)

            def said(process):
                with open(process.log_path, encoding="utf-8") as file:
                    return file.read()
            reason = f"does not take {version}, which is served: this engine has no place"
            fleet.until(lambda: reason in fleet.replicas().get("b", {}).get("reason", ""), "the reason of the refusal")
            self.assertEqual((fleet.replicas()["a"]["version"], fleet.replicas()["a"]["ready"]), (version, True))
            # It tries again, less and less often. That is seen in the status, and said once.
            tries = lambda: len(re.findall("engine b rank 0 tries again", said(sidecar)))
            fleet.until(lambda: tries() >= 3, "three more tries")
            self.assertIn(reason, fleet.replicas()["b"]["reason"])
            self.assertEqual(said(sidecar).count("engine refused: "), 1, said(sidecar))
            self.assertEqual(said(process).count("has no place for tensor"), 1, said(process))
            self.assertNotIn("connection to the sidecar is lost", said(process))
            self.assertEqual(self.lines(process), [])
            self.assertEqual(len(self.lines(fits)), 1)

    def test_a_sidecar_that_is_killed_and_comes_back(self):
        with LoaderFleet(WSYNC) as fleet:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            sidecar, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            process = fleet.loader(engines, "a")
            fleet.pushed(one)
            sidecar.send_signal(signal.SIGKILL)
            sidecar.wait()
            # Otherwise its last report may still be taken for one of the next process.
            fleet.until(lambda: not fleet.ask("status")[1]["result"]["sidecars"][0]["connected"], "the loss of the sidecar")
            fleet.sidecar("s0")
            fleet.until(lambda: fleet.replicas().get("a", {}).get("ranks_attached") == 2, "both again")
            version = fleet.pushed(two)
            self.assertEqual(self.lines(process)[-1], f"holds version {version}: {packed(two)}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-2])
