"""Updates that are cancelled, and what is told of one that runs: real processes."""
import os
import signal
import subprocess
import sys
import time
import unittest

from fleet import DEADLINE_S
from kill_fleet import KillCase
from schema import validate

KillCase.wsync = sys.argv.pop()


class Cancelled(KillCase):
    def status(self, fleet):
        code, answer = fleet.ask("status")
        self.assertEqual(code, 0, answer)
        return answer["result"]

    def test_an_update_that_is_staged(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a, b = (fleet.engine("s0", name, self.one) for name in "ab")
            trainer = fleet.trainer()
            code, answer = fleet.ask("cancel")
            self.assertEqual((code, answer["ok"], answer["result"]["ok"]), (1, False, False))
            self.assertEqual(answer["result"]["reason"], "nothing to cancel: no update is running")
            first = self.published(fleet, self.one)
            b.freeze()  # its sidecar has staged when every engine has got ready
            push = fleet.push(self.two)
            fleet.until_activity("staging")
            running = self.status(fleet)["update"]
            second = running["version"]
            self.assertEqual(running["phase"], "stage")
            self.assertGreater(running["total_bytes"], 0)
            self.assertLessEqual(running["done_bytes"], running["total_bytes"])
            code, answer = fleet.ask("cancel", "--version", "9.9")
            self.assertEqual(code, 1, answer)
            self.assertIn(second, answer["result"]["reason"])

            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 0, answer)
            self.assertEqual(answer["result"], {"ok": True, "reason": "", "version": second, "phase": "stage"})
            code, answer = push.result()
            self.assertEqual((code, answer["error"]["code"]), (130, "cancelled"), answer)
            self.assertIn(second, answer["error"]["message"])
            self.serves(a, first)
            fleet.until(lambda: fleet.of("s0")[1]["staged"] == [first], "a sidecar that has forgotten it")
            status = self.status(fleet)
            self.assertEqual((status["target"], status["update"]), (first, None))
            self.assertEqual(status["updates"], {"committed": 1, "failed": 0, "cancelled": 1})
            self.assertTrue(status["last_update"]["cancelled"])
            b.thaw()
            self.serves(b, first)

            third = self.published(fleet, self.two)  # under a name of its own
            self.assertNotEqual(third, second)
            self.verified(fleet, third, 2)
            self.leaves_nothing(fleet, a, b, sidecar, trainer)

    def test_a_switch_that_has_been_decided_goes_on(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a, b = (fleet.engine("s0", name, self.one) for name in "ab")
            trainer = fleet.trainer("--set", "bucket_bytes=1MiB")
            self.published(fleet, self.one)
            b.hold_at("bucket", bucket=0)
            push = fleet.push(self.two)
            b.until_held()
            second = a.expect("committed")["version"]
            running = self.status(fleet)["update"]
            self.assertEqual((running["version"], running["phase"]), (second, "switch"))
            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 1, answer)
            self.assertIn(f"{second} has been decided", answer["result"]["reason"])
            self.assertIn("wsync rollback", answer["result"]["reason"])
            b.go_on()
            code, answer = push.result()
            self.assertEqual(code, 0, answer)
            self.verified(fleet, second, 2)
            last = self.status(fleet)["last_update"]
            self.assertTrue(last["ok"])
            self.assertGreater(last["paused_ns"], 0)
            self.assertEqual(last["bytes"], answer["result"]["bytes"])
            self.leaves_nothing(fleet, a, b, sidecar, trainer)

    def test_a_push_that_is_interrupted_says_how_to_cancel(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            a = fleet.engine("s0", "a", self.one)
            trainer = fleet.trainer()
            first = self.published(fleet, self.one)
            a.freeze()
            push = fleet.push(self.two)
            fleet.until_activity("staging")
            push.popen.send_signal(signal.SIGINT)
            code, answer = push.result()
            self.assertEqual((code, answer["error"]["code"]), (130, "cancelled"), answer)
            self.assertIn("wsync cancel", answer["error"]["message"])
            self.assertEqual(self.status(fleet)["update"]["phase"], "stage")  # it goes on
            code, answer = fleet.ask("cancel")
            self.assertEqual(code, 0, answer)
            a.thaw()
            self.serves(a, first)
            self.leaves_nothing(fleet, a, sidecar, trainer)


class Watched(KillCase):
    def test_status_again_and_again_tells_of_a_coordinator_that_goes_and_comes(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            trainer = fleet.trainer()
            fleet.until_joined("s0")
            watch = subprocess.Popen([self.wsync, "status", "--watch", "--interval", "100ms", "--coordinator",
                                      fleet.address], env=fleet.environment, text=True, stdout=subprocess.PIPE)
            self.addCleanup(watch.stdout.close)
            self.addCleanup(watch.kill)

            def until(words):
                said = []
                end = time.monotonic() + DEADLINE_S
                for line in watch.stdout:
                    said.append(line)
                    if words in line:
                        return "".join(said)
                    self.assertLess(time.monotonic(), end)
                raise AssertionError("".join(said))

            until("sidecar s0")
            until("sidecar s0")  # a second time
            trainer.kill()
            self.assertNotIn("\x1b", until("NO ANSWER"))
            trainer = fleet.trainer()
            until("sidecar s0")
            watch.send_signal(signal.SIGINT)
            self.assertEqual(watch.wait(timeout=DEADLINE_S), 0)
            self.leaves_nothing(fleet, sidecar, trainer)

    def test_each_look_is_one_line_of_json(self):
        with self.fleet() as fleet:
            trainer = fleet.trainer()
            fleet.until(lambda: fleet.ask("status")[0] == 0, "the coordinator")
            watch = fleet.start("status", "--watch", "--json", "--interval", "100ms", "--coordinator", fleet.address)
            looks = lambda: sum("role" in line.get("result", {}) for line in watch.events)
            fleet.until(lambda: looks() >= 2, "a second look")
            trainer.kill()
            fleet.until(lambda: any("error" in line for line in watch.events), "a look that nobody answers")
            self.assertEqual(watch.end(), (0, {"command": "status", "ok": True, "result": {"stopped": True}}))

    def test_a_bundle_of_a_fleet_that_runs(self):
        with self.fleet() as fleet:
            sidecar = fleet.sidecar("s0")
            trainer = fleet.trainer()
            fleet.until_joined("s0")
            log, path = trainer.log_path, fleet.path("b.tar.gz")
            done = subprocess.run([self.wsync, "bundle", "-o", path, "--log", log, "--json"],
                                  env=fleet.environment, text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stdout)
            result = validate(done.args, done.stdout)["result"]
            self.assertEqual(result["missing"], [])
            names = [file["name"] for file in result["files"]]
            for name in ("status/coordinator.json", "status/sidecar-s0.json", "state/default_s0.record", "host.json"):
                self.assertIn(name, names)
            listed = subprocess.run(["tar", "-tzf", path], text=True, capture_output=True, check=True).stdout.split()
            self.assertEqual(sorted(name.split("/", 1)[1] for name in listed), sorted([*names, "manifest.json"]))
            os.unlink(path)
            self.leaves_nothing(fleet, sidecar, trainer)


if __name__ == "__main__":
    unittest.main()
