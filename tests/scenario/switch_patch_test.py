"""Switches that write only what changes: real processes, every byte verified, and whatever does not fit loaded in full."""
import json
import os
import signal
import sys
import unittest

import tensors
from damage import bytes_of_tensor, flip_bit
from fleet import DEADLINE_S
from patching import PatchFleet

WSYNC = sys.argv.pop()
COPIES = "--set", "patch.in_place=off"
PATCHES = "--set", "patch.mode=auto"
TENSOR = "model.layers.1.self_attn.q_proj.weight"


class SwitchPatches(unittest.TestCase):
    def verified(self, fleet):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertTrue(answer["result"]["match"])

    def expect(self, fleet, kind, *replicas):
        for replica in replicas:
            load = fleet.load_of(replica)
            self.assertEqual(load["kind"], kind, load)
            if kind == "full":
                self.assertEqual(load["written_bytes"], load["bytes"])
            else:
                self.assertLess(load["written_bytes"], load["bytes"] / 20)
                self.assertAlmostEqual(load["written_share"], load["written_bytes"] / load["bytes"])
        self.verified(fleet)

    def test_what_differs_is_written_and_everything_else_loaded_in_full(self):
        with PatchFleet(WSYNC) as fleet:
            sidecar, engines = fleet.sidecar("s0", *PATCHES)
            fleet.start("trainer", *COPIES)
            fleet.engine(engines, "a", fleet.one)
            for rank in (0, 1):
                fleet.engine(engines, "b", fleet.one, "--rank", str(rank), "--world-size", "2")
            fleet.pushed(fleet.one)
            self.expect(fleet, "full", "a", "b")
            for every in (300, 1000):
                fleet.pushed(fleet.next(every))
                self.expect(fleet, "patch", "a", "b")
            fleet.until(lambda: fleet.replicas()["a"]["last_load"]["kind"] == "patch", "what the coordinator says")
            self.assertIn(" by a patch (", fleet.said("status"))
            # What leads back was made of what led there.
            newest = fleet.replicas()["a"]["version"]
            fleet.until(lambda: f"patch from {newest} to " in fleet.log_text(sidecar), "what leads back")
            code, answer = fleet.ask("rollback")
            self.assertEqual(code, 0, answer)
            self.expect(fleet, "patch", "a", "b")
            fleet.pushed(fleet.next(500))
            self.verified(fleet)
            # Everything has changed.
            fleet.pushed(fleet.checkpoint("other", 9))
            self.expect(fleet, "full", "a", "b")
            self.assertIn(" by a patch, ", fleet.log_text(sidecar))

    def test_what_leads_back_keeps_no_version_out(self):
        for settings in ("transport=memfd",), ("transport=tcp", "patch.in_place=off"):
            with self.subTest(settings), PatchFleet(WSYNC) as fleet:
                more = [*PATCHES, *(word for setting in (*settings, "versions_held=3") for word in ("--set", setting))]
                sidecar, engines = fleet.sidecar("s0", *more)
                fleet.engine(engines, "a", fleet.one)
                fleet.start("trainer", *COPIES)
                arena = fleet.pushed(fleet.one)["bytes"]
                self.assertEqual(fleet.stop(sidecar)[0], 0)
                # Three versions fit, and nothing beside them.
                sidecar, _ = fleet.sidecar("s0", *more, "--set", f"host_memory={3 * arena}B")
                fleet.until_ready("1.1", "a")
                fleet.pushed(fleet.next(300))
                fleet.until(lambda: "patch from 1.2 to 1.1" in fleet.log_text(sidecar), "what leads back")
                for _ in range(2):
                    fleet.pushed(fleet.next(300))
                    self.verified(fleet)

    def test_engines_of_separate_devices_are_patched_and_a_patch_that_does_not_fit_is_followed_by_all_bytes(self):
        with PatchFleet(WSYNC) as fleet:
            devices = "--set", "devices.kind=separate", "--set", "devices.count=2", "--set", "devices.buffer_bytes=2MiB"
            sidecar, engines = fleet.sidecar("s0", *PATCHES, *devices)
            fleet.start("trainer", *COPIES)
            fleet.engine(engines, "a", fleet.one, "--device-index", "0")
            b = fleet.engine(engines, "b", fleet.one, "--device-index", "1")
            fleet.pushed(fleet.one)
            self.expect(fleet, "full", "a", "b")
            path = fleet.next(300)
            fleet.pushed(path)
            self.expect(fleet, "patch", "a", "b")
            # A bit of a byte that the next patch writes.
            rows = bytes_of_tensor(path, TENSOR)
            at = 600 * (len(rows) // 1200) + self.first_changed(path)
            self.assertEqual(flip_bit(b.pid, rows[at - 32:at + 32]), 1)
            fleet.pushed(fleet.next(300))
            self.expect(fleet, "patch", "a")
            self.expect(fleet, "full", "b")
            with open(sidecar.log_path, encoding="utf-8") as log:
                self.assertIn("its patch did not fit", log.read())

    def first_changed(self, path):
        """The first byte of TENSOR that patching.changed() changes with each 300th element."""
        with open(os.path.join(path, "model.safetensors.index.json"), encoding="utf-8") as file:
            shard = json.load(file)["weight_map"][TENSOR]
        header, _ = tensors.read_file(os.path.join(path, shard))
        return -header[TENSOR]["data_offsets"][0] % 600

    def test_versions_that_are_mapped_are_not_compared_by_default(self):
        with PatchFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", "--set", "patch.transfer=off")
            fleet.start("trainer", *COPIES)
            fleet.engine(engines, "a", fleet.one)
            fleet.pushed(fleet.one)
            fleet.pushed(fleet.next(300))
            self.expect(fleet, "full", "a")

    def test_a_model_that_has_not_changed_is_not_loaded(self):
        for settings in (), ("--set", "transport=tcp"):
            with self.subTest(settings), PatchFleet(WSYNC) as fleet:
                _, engines = fleet.sidecar("s0", *settings)
                fleet.start("trainer", *COPIES)
                fleet.engine(engines, "a", fleet.one)
                fleet.pushed(fleet.one)
                for step in (2, 3):
                    said = fleet.pushed(fleet.one)
                    self.assertEqual(said["version"], f"1.{step}")
                    self.assertEqual(said["reason"], f"it has the content of 1.{step - 1}, so engines that held that loaded nothing")
                    self.assertEqual(fleet.load_of("a")["written_bytes"], 0)
                    self.expect(fleet, "patch", "a")
                self.assertEqual(fleet.pushed(fleet.checkpoint("other", 9))["reason"], "")
                self.expect(fleet, "full", "a")

    def test_a_patch_that_is_larger_than_allowed_is_not_made(self):
        with PatchFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", *PATCHES, "--set", "patch.max_share=0.006")
            fleet.start("trainer", *COPIES)
            fleet.engine(engines, "a", fleet.one)
            fleet.pushed(fleet.one)
            fleet.pushed(fleet.next(300))
            self.expect(fleet, "full", "a")
            fleet.pushed(fleet.next(3000))
            self.expect(fleet, "patch", "a")

    def test_an_engine_that_is_killed_within_its_patch_and_comes_back(self):
        with PatchFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", *PATCHES)
            fleet.start("trainer", *COPIES)
            a = fleet.engine(engines, "a", fleet.one)
            b = fleet.engine(engines, "b", fleet.one)
            fleet.pushed(fleet.one)
            # Those of the first version have been said.
            fleet.event(b, "resumed")
            push = fleet.start("push", fleet.next(300), "--json", "--coordinator", fleet.address)
            fleet.event(b, "loading")
            b.kill()
            push.wait(DEADLINE_S)
            b = fleet.engine(engines, "b", fleet.one)
            version = fleet.replicas()["a"]["version"]
            fleet.until_ready(version, "a", "b")
            self.assertEqual(fleet.load_of("a")["kind"], "patch")
            self.assertEqual(fleet.load_of("b")["kind"], "full")
            self.verified(fleet)
            self.assertIsNone(a.poll())

    def test_an_engine_that_stands_still_catches_up(self):
        with PatchFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0", *PATCHES, "--set", "engine_deadline=1s")
            fleet.start("trainer", *COPIES)
            a = fleet.engine(engines, "a", fleet.one)
            fleet.engine(engines, "b", fleet.one)
            fleet.pushed(fleet.one)
            fleet.halt(a.pid)
            fleet.until(lambda: not fleet.replicas()["a"]["ready"], "that a stands still")
            fleet.ask("push", fleet.next(300))
            a.send_signal(signal.SIGCONT)
            fleet.until_ready(fleet.replicas()["b"]["version"], "a", "b")
            self.expect(fleet, "patch", "b")


if __name__ == "__main__":
    unittest.main()
