"""The only sidecar of a round is killed before the decision: the version that its trainer has published still reaches the engines."""
import signal
import sys
import unittest

from fleet import DEADLINE_S
from plugin_fleet import COMMITTED, DEADLINE_MS, PluginFleet

WSYNC, TRAINER_RANK = sys.argv[-2:]
del sys.argv[-2:]
# A version that is held as changes alone would be staged without the word of an engine.
HELD_UP = ("--set", "engine_deadline=10m", "--set", "patch.in_place=off")


class RoundLost(unittest.TestCase):
    def status(self, fleet):
        code, answer = fleet.ask("status")
        return answer["result"] if code == 0 else {"activity": "", "incidents": []}

    def killed_while_staging(self, fleet, transport):
        one = fleet.checkpoint("one", 1)
        sidecar, engines = fleet.sidecar("s0", *HELD_UP)
        engine = fleet.engine(engines, "a", one)
        trainer = fleet.trainer(one, f"transport={transport}")
        first = fleet.publish(trainer, 1)
        self.assertEqual(first["state"], COMMITTED, first)
        fleet.halt(engine.pid)  # without its word the version is not staged for some seconds
        fleet.tell(trainer, "change", 2)
        fleet.tell(trainer, "publish", 5)
        self.assertEqual(fleet.event(trainer, "published")["code"], 0)
        fleet.until(lambda: self.status(fleet)["activity"].startswith("staging 1.5"), "a round of 1.5")
        sidecar.kill()
        sidecar.wait(DEADLINE_S)
        fleet.until(lambda: any("no sidecar is left in the round of 1.5" in i["text"] for i in self.status(fleet)["incidents"]),
                    "that the round is over")
        return trainer, engine

    def test_the_newest_version_is_published_when_a_sidecar_has_come_back(self):
        for transport in "memfd", "tcp":
            with self.subTest(transport), PluginFleet(WSYNC, TRAINER_RANK) as fleet:
                trainer, engine = self.killed_while_staging(fleet, transport)
                incident = next(i["text"] for i in self.status(fleet)["incidents"] if "no sidecar is left" in i["text"])
                self.assertRegex(incident, r"^no sidecar is left in the round of 1\.5: sidecar 's0' was lost: .+; it is kept, and "
                                           r"published again when a sidecar has joined$")
                engine.send_signal(signal.SIGCONT)
                fleet.sidecar("s0")
                fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
                served = fleet.event(trainer, "waited")
                self.assertEqual((served["code"], served["state"], served["version"]), (0, COMMITTED, "1.5"), served)
                fleet.until_ready("1.5", "a")
                code, answer = fleet.ask("verify")
                self.assertEqual(code, 0, answer)
                last = self.status(fleet)["last_update"]
                self.assertEqual((last["ok"], last["version"]), (True, "1.5"))
                after = fleet.publish(trainer, 6)
                self.assertEqual((after["state"], after["version"]), (COMMITTED, "1.6"), after)

    def test_a_newer_publish_takes_its_place(self):
        with PluginFleet(WSYNC, TRAINER_RANK) as fleet:
            trainer, engine = self.killed_while_staging(fleet, "auto")
            fleet.tell(trainer, "change", 3)
            fleet.tell(trainer, "publish", 7)
            self.assertEqual(fleet.event(trainer, "published")["code"], 0)
            engine.send_signal(signal.SIGCONT)
            fleet.sidecar("s0")
            fleet.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
            served = fleet.event(trainer, "waited")
            self.assertEqual((served["state"], served["version"]), (COMMITTED, "1.7"), served)
            fleet.until_ready("1.7", "a")


if __name__ == "__main__":
    unittest.main()
