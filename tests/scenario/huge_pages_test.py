"""Arenas in huge pages of the pool, with real processes: versions arrive, are verified and survive a killed sidecar, and the pool
has its pages again in the end. Where the pool is too small, everything works all the same.

The pages are added to the system's pool for the test. Where that is not allowed, the test says so and is skipped.
"""
import os
import re
import signal
import sys
import unittest

from fleet import Fleet

WSYNC = sys.argv.pop()
POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"
SETTING = ["--set", "memory.huge_pages=explicit"]
MODEL = "16MiB"
# Of an arena: the model, its sums, and the page of the header, at most; of the arenas of both sides.
PAGES = 12 * 8


def pool(name):
    with open(f"{POOL}/{name}", encoding="utf-8") as file:
        return int(file.read())


def set_pool(pages):
    with open(f"{POOL}/nr_hugepages", "w", encoding="utf-8") as file:
        file.write(str(pages))


def huge_arenas(process):
    """Arenas that the process has mapped, by whether they are in huge pages."""
    found = {True: 0, False: 0}
    name = None
    with open(f"/proc/{process.pid}/smaps", encoding="utf-8") as file:
        for line in file:
            header = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ +(.*)", line)
            if header:
                name = header[1]
            elif line.startswith("KernelPageSize:") and "wsync-" in name:
                found[int(line.split()[1]) == 2048] += 1
    return found


class HugePages(unittest.TestCase):
    def reserve(self, pages):
        if not os.path.exists(f"{POOL}/nr_hugepages"):
            self.skipTest("this system has no pool of huge pages of 2 MiB")
        before = pool("nr_hugepages")
        used = before - pool("free_hugepages")
        try:
            set_pool(used + pages)
        except OSError as error:
            self.skipTest(f"this user may not change the pool of huge pages: {error}")
        self.addCleanup(set_pool, before)
        if pool("free_hugepages") < pages:
            self.skipTest(f"the system has room for {pool('free_hugepages')} huge pages, expected {pages}")

    def versions(self, fleet, *settings):
        """A fleet that has switched twice."""
        models = [fleet.checkpoint(name, seed, size=MODEL) for seed, name in enumerate(("one", "two"))]
        trainer = fleet.start("trainer", *SETTING)
        sidecar, socket = fleet.sidecar("s0", *SETTING, *settings)
        fleet.engine(socket, "a", models[0])
        for model in models * 2:
            code, answer = fleet.ask("push", model)
            self.assertEqual(code, 0, answer)
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        return trainer, sidecar, models

    def test_arenas_of_the_pool(self):
        self.reserve(PAGES)
        for name, settings in (("memfd", []), ("tcp", ["--set", "transport=tcp"])):
            with self.subTest(name):
                with Fleet(WSYNC) as fleet:
                    trainer, sidecar, models = self.versions(fleet, *settings)
                    for process in trainer, sidecar:
                        found = huge_arenas(process)
                        self.assertGreater(found[True], 0, found)
                        self.assertEqual(found[False], 0, found)
                    # The kernel ends its leases and gives its memory back; the next sidecar receives again.
                    sidecar.send_signal(signal.SIGKILL)
                    sidecar.wait()
                    fleet.processes.remove(sidecar)
                    fleet.until(lambda: not fleet.replicas().get("a", {}).get("ready"), "the loss of the sidecar")
                    fleet.sidecar("s0", *SETTING, *settings)
                    fleet.until(lambda: fleet.replicas().get("a", {}).get("ready"), "the engine at the new sidecar")
                    code, answer = fleet.ask("push", models[0])
                    self.assertEqual(code, 0, answer)
                    code, answer = fleet.ask("verify")
                    self.assertEqual(code, 0, answer)
                self.assertEqual(pool("free_hugepages") - pool("resv_hugepages"), PAGES, "pages are not given back")

    def test_a_pool_that_is_too_small(self):
        self.reserve(0)
        with Fleet(WSYNC) as fleet:
            trainer, sidecar, _ = self.versions(fleet, "--set", "transport=tcp")
            for process in trainer, sidecar:
                found = huge_arenas(process)
                self.assertGreater(found[False], 0, found)
                self.assertEqual(found[True], 0, found)
                with open(process.log_path, encoding="utf-8") as log:
                    said = [line for line in log if "memory.huge_pages" in line or "the keys memory.*" in line]
                self.assertEqual(len(said), 1, "it is said once")
                self.assertRegex(said[0], r"needs \d+ huge pages of 2 MiB, but the system's pool has 0 available of \d+")


if __name__ == "__main__":
    unittest.main()
