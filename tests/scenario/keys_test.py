"""A fleet with keys, of real processes over TCP: what each role may do, and attacks by who has no key or somebody else's."""
import os
import re
import signal
import socket
import subprocess
import sys
import unittest

from fleet import DEADLINE_S, Fleet, short
from pages import get
from schema import validate

WSYNC = sys.argv.pop()
REFUSED = 1  # exit code
COMMANDS = {
    "status": ["status"], "trace": ["trace", "get", "-o", "{}/trace.json"], "plan": ["plan", "{}/two"],
    "push": ["push", "{}/two", "--no-one-shot"], "cancel": ["cancel"], "verify": ["verify"],
    "rollback": ["rollback", "--no-one-shot"], "promote": ["promote"], "forget": ["forget", "nobody"],
}
ALLOWED = {
    "reader": {"status", "trace"},
    "publisher": {"status", "trace", "plan", "push", "cancel"},
    "operator": set(COMMANDS),
    "sidecar": set(),
}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Keyed(Fleet):
    """A fleet whose coordinator has keys, at a TCP address."""

    def __init__(self):
        super().__init__(WSYNC)
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.keys = self.path("keys")
        self.run_keys("init", self.keys)
        self.key = self.add("operator", "alice")

    def run_keys(self, *arguments):
        done = subprocess.run([WSYNC, "keys", *arguments, "--json"], env=self.environment, text=True, capture_output=True,
                              timeout=DEADLINE_S)
        answer = validate(done.args, done.stdout)
        assert done.returncode == 0, answer
        return answer["result"]

    def add(self, role, name):
        return self.run_keys("add", role, name, "--keys", self.keys)["file"]

    def remove(self, role, name):
        """The key file stays with its holder, as it does on another host."""
        file = os.path.join(self.keys, "issued", f"{role}.{name}.key")
        kept = self.path(f"{role}.{name}.key")
        os.link(file, kept)
        self.run_keys("remove", role, name, "--keys", self.keys)
        return kept

    def ask(self, *arguments, address=None, key=None):
        done = subprocess.run([WSYNC, *arguments, "--json", "--coordinator", address or self.address, "--key",
                               self.key if key is None else key],
                              env=self.environment, text=True, capture_output=True, timeout=DEADLINE_S)
        return done.returncode, validate(done.args, done.stdout)

    def trainer(self, *settings):
        trainer = self.start("trainer", "--set", f"listen={self.address}", "--set", f"keys={self.keys}", *settings)
        port = int(self.address.rpartition(":")[2])

        def accepts():
            with socket.socket() as attempt:
                return trainer.poll() is not None or attempt.connect_ex(("127.0.0.1", port)) == 0
        self.until(accepts, "the trainer")
        return trainer

    def keyed_sidecar(self, name, key):
        return self.sidecar(name, "--set", f"coordinator={self.address}", "--set", f"key={key}",
                            "--set", f"heartbeat.interval={short(200)}", "--set", f"heartbeat.deadline={short(1000)}")

    def joined(self):
        code, answer = self.ask("status")
        return {s["name"] for s in answer["result"]["sidecars"] if s["connected"]} if code == 0 else set()

    def says(self, process, text):
        def found():
            with open(process.log_path, encoding="utf-8") as log:
                return text in log.read()
        self.until(found, f"'{text}' of a process")


class Keys(unittest.TestCase):
    def test_each_role_does_what_it_may_and_no_more(self):
        with Keyed() as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            keys = {role: fleet.add(role, "eve" if role != "sidecar" else "s0") for role in ALLOWED}
            trainer = fleet.trainer("--checkpoint", one)
            _, place = fleet.keyed_sidecar("s0", keys["sidecar"])
            fleet.engine(place, "r0", one)
            fleet.until(lambda: fleet.replicas().get("r0", {}).get("ready"), "the first version")
            for role, key in keys.items():
                for name, words in COMMANDS.items():
                    with self.subTest(role=role, command=name):
                        code, answer = fleet.ask(*(word.format(fleet.directory) for word in words), key=key)
                        message = answer.get("error", {}).get("message", "")
                        if name in ALLOWED[role]:
                            self.assertNotIn("may not send the message", message)
                            if name in ("status", "trace", "plan", "push", "verify"):
                                self.assertEqual(code, 0, answer)
                        else:
                            self.assertEqual((code, answer["error"]["code"]), (REFUSED, "refused"), answer)
                            self.assertRegex(message, rf"^the key of {role} \w+ may not send the message \w+: it takes the key of ")
            # A refusal is said by the coordinator as well, and no secret of a key is.
            fleet.says(trainer, "reader eve was refused: the key of reader eve may not send the message Push")
            with open(trainer.log_path, encoding="utf-8") as log:
                said = log.read()
            for key in [*keys.values(), os.path.join(fleet.keys, "coordinator.key")]:
                with open(key, encoding="utf-8") as file:
                    self.assertNotIn(re.search(r"^secret: (.*)$", file.read(), re.MULTILINE).group(1), said)
            self.assertEqual(fleet.joined(), {"s0"})
            refused = sum(len(set(COMMANDS) - allowed) for allowed in ALLOWED.values())
            _, metrics = get(os.path.join(fleet.run_dir, "control.http"), "/metrics")
            self.assertIn(f"\nwsync_key_refusals_total {refused}\n", metrics)
            code, answer = fleet.ask("status", key=keys["reader"])
            self.assertEqual((code, answer["result"]["key"]), (0, "reader eve"))

    def test_who_has_no_key_or_one_that_is_not_listed_changes_nothing(self):
        with Keyed() as fleet:
            trainer = fleet.trainer()
            code, answer = fleet.ask("status", key="")
            self.assertEqual((code, answer["error"]["code"]), (REFUSED, "refused"), answer)
            self.assertIn("admits only who has a key", answer["error"]["message"])
            for command in (["status"], ["rollback"]):  # nor does it become a coordinator there
                code, answer = fleet.ask(*command, address="tcp://10.0.0.1:5000", key="")
                self.assertEqual((code, answer["error"]["code"]), (REFUSED, "refused"), answer)
                self.assertIn("make keys with `wsync keys init`", answer["error"]["message"])
            removed = fleet.remove("operator", "alice")
            self.assertEqual(fleet.ask("status", key=removed)[0], 0)  # until SIGHUP
            trainer.send_signal(signal.SIGHUP)
            fleet.says(trainer, "keys: 0 keys listed")
            code, answer = fleet.ask("rollback", "--no-one-shot", key=removed)
            self.assertEqual((code, answer["error"]["code"]), (REFUSED, "refused"), answer)
            self.assertIn("does not admit the key of operator alice", answer["error"]["message"])
            fleet.says(trainer, "is not listed")

    def test_a_sidecars_key_is_good_for_its_own_name_alone(self):
        with Keyed() as fleet:
            stolen = fleet.add("sidecar", "s0")
            trainer = fleet.trainer()
            # Its own program refuses the key at once.
            thief = fleet.start("sidecar", "--set", "name=s1", "--set", f"coordinator={fleet.address}", "--set", f"key={stolen}")
            self.assertEqual(thief.wait(timeout=DEADLINE_S), 2)
            fleet.says(thief, "expected the key of sidecar s1, found that of sidecar s0")
            # A thief who changes the name in the file changes nothing: the coordinator has the name of the key.
            with open(stolen, encoding="utf-8") as file:
                text = file.read()
            forged = fleet.path("forged.key")
            with open(os.open(forged, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                file.write(text.replace("name: s0", "name: s1"))
            thief, _ = fleet.keyed_sidecar("s1", forged)
            fleet.says(trainer, "the key of sidecar s0 is good for the sidecar of this name alone, not for 's1'")
            self.assertEqual(fleet.joined(), set())
            fleet.keyed_sidecar("s0", stolen)
            fleet.until(lambda: fleet.joined() == {"s0"}, "the sidecar of that name")
            self.assertIsNone(thief.poll())

    def test_a_removed_keys_sidecar_is_gone_at_once_and_nobody_else(self):
        with Keyed() as fleet:
            one = fleet.checkpoint("one", 1)
            first = fleet.add("sidecar", "s0")
            trainer = fleet.trainer()
            gone, _ = fleet.keyed_sidecar("s0", first)
            fleet.until(lambda: fleet.joined() == {"s0"}, "the first sidecar")
            # A key that was added later is admitted after SIGHUP.
            stays, place = fleet.keyed_sidecar("s1", fleet.add("sidecar", "s1"))
            fleet.engine(place, "r1", one)
            fleet.says(stays, "does not admit the key of sidecar s1")
            trainer.send_signal(signal.SIGHUP)
            fleet.until(lambda: fleet.joined() == {"s0", "s1"}, "both sidecars")
            fleet.remove("sidecar", "s0")
            trainer.send_signal(signal.SIGHUP)
            fleet.until(lambda: fleet.joined() == {"s1"}, "the loss of s0")
            fleet.says(trainer, "sidecar s0 lost: its key is not listed any more")
            fleet.says(gone, "does not admit the key of sidecar s0")
            with open(trainer.log_path, encoding="utf-8") as log:
                self.assertNotIn("sidecar s1 lost", log.read())
            code, answer = fleet.ask("push", one, "--no-one-shot")
            self.assertEqual(code, 0, answer)
            self.assertEqual(fleet.replicas()["r1"]["version"], answer["result"]["version"])

    def test_a_folder_that_cannot_be_read_is_refused_at_the_start_and_ignored_later(self):
        with Keyed() as fleet:
            os.chmod(fleet.keys, 0o777)
            trainer = fleet.trainer()
            self.assertEqual(trainer.wait(timeout=DEADLINE_S), REFUSED)
            fleet.says(trainer, "has mode 0777, with which other users may add keys")
            os.chmod(fleet.keys, 0o700)
            trainer = fleet.trainer()
            with open(os.path.join(fleet.keys, "authorized", "reader", "broken"), "w", encoding="utf-8") as file:
                file.write("no key\n")
            trainer.send_signal(signal.SIGHUP)
            fleet.says(trainer, "the keys that were listed before stay admitted")
            self.assertEqual(fleet.ask("status")[0], 0)

    def test_a_one_shot_push_with_a_key_needs_the_folder(self):
        with Keyed() as fleet:
            one = fleet.checkpoint("one", 1)
            code, answer = fleet.ask("push", one)
            self.assertEqual((code, answer["error"]["code"]), (3, "peer_lost"), answer)
            self.assertIn("WSYNC_KEYS", answer["error"]["message"])
            fleet.environment["WSYNC_KEYS"] = fleet.keys
            _, place = fleet.keyed_sidecar("s0", fleet.add("sidecar", "s0"))
            fleet.engine(place, "r0", one)
            code, answer = fleet.ask("push", one)
            self.assertEqual(code, 0, answer)


if __name__ == "__main__":
    unittest.main()
