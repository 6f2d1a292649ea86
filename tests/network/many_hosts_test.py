"""Trainers on two hosts and a sidecar with engines on another: keys, encrypted weights, cables that are cut, hosts that are lost, strangers."""
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import unittest

from hosts import ADDRESSES, why_no_hosts
from key_fleet import BEATS, KeyFleet

from etcd import Certificates
from fleet import DEADLINE_S, SLOWNESS
from patching import changed
import wire

WSYNC = sys.argv.pop()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PIECE_BYTES = 48


def pieces(checkpoint):
    """Some bytes of every part of a checkpoint's weights."""
    found = []
    for file in sorted(pathlib.Path(checkpoint).glob("*.safetensors")):
        data = file.read_bytes()
        found += [data[at:at + PIECE_BYTES] for at in range(len(data) // 2, len(data) - PIECE_BYTES, 50_021)]
    return [piece for piece in found if len(set(piece)) > 16]


class ManyHosts(unittest.TestCase):
    def verified(self, fleet, version):
        code, answer = fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual({rank["version"] for rank in answer["result"]["ranks"]}, {version}, answer)

    def seen(self, packets, checkpoint):
        """How many pieces of a checkpoint's weights have passed readably."""
        passed = pathlib.Path(packets).read_bytes()
        return sum(piece in passed for piece in pieces(checkpoint))

    def test_weights_travel_encrypted_and_then_only_what_changes(self):
        with KeyFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            two = changed(one, fleet.path("two"), 500)
            packets = fleet.sniff()
            trainer = fleet.trainer()
            sidecar, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.pushed(one)
            fleet.until_ready("1.1", "r0")
            self.verified(fleet, "1.1")
            code, answer = fleet.ask("status")
            self.assertEqual((code, answer["result"]["data_security"]), (0, "tls"), answer)
            self.assertEqual(answer["result"]["sidecars"][0]["transport"], "tls")
            fleet.pushed(two)
            fleet.until_ready("1.2", "r0")
            self.verified(fleet, "1.2")
            fleet.until(lambda: (fleet.sidecars()["s0"]["last_copy"] or {}).get("version") == "1.2", "how the second version came")
            copy = fleet.sidecars()["s0"]["last_copy"]
            self.assertEqual(copy["base"], "1.1")
            self.assertLess(copy["travelled_bytes"], copy["bytes"] / 20)
            self.assertGreater(os.path.getsize(packets), 16 << 20, "the packets were not written down")
            self.assertEqual(self.seen(packets, one), 0, "weights could be read on the cable")
            for process in (trainer, sidecar):
                self.assertNotIn("without encryption", fleet.text_of(process))
            self.assertEqual(fleet.metric("trainer0", "control", "wsync_data_refusals_total"), 0)

    def test_a_cable_that_is_cut_during_a_transfer(self):
        with KeyFleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1, size="128MiB"), fleet.checkpoint("two", 2, size="128MiB")
            fleet.trainer()
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.pushed(one)
            fleet.until_ready("1.1", "r0")
            fleet.limit(200)
            push = fleet.on("trainer0", "push", two, "--json", "--coordinator", fleet.address, "--key", fleet.key)
            fleet.until(lambda: fleet.sidecars().get("s0", {}).get("staged_bytes", 0) > 0, "the first bytes of the second version")
            fleet.cut()
            fleet.until(lambda: not fleet.sidecars()["s0"]["connected"], "the loss of the sidecar")
            code, answer = fleet.ask_on("engines0", "status", "--coordinator", f"ipc://{fleet.path('engines0')}/run/s0.control")
            self.assertEqual(code, 0, answer)
            replica = answer["result"]["sidecars"][0]["replicas"][0]
            self.assertEqual((replica["ready"], replica["version"]), (True, "1.1"), "it serves what it has")
            fleet.join()
            push.communicate()
            fleet.joined("s0")
            fleet.limit(4000)
            if push.returncode != 0:
                fleet.pushed(two)
            fleet.until(lambda: fleet.replicas().get("r0", {}).get("version") in ("1.2", "1.3"), "the second version")
            version = fleet.replicas()["r0"]["version"]
            fleet.until_ready(version, "r0")
            self.verified(fleet, version)

    def test_a_chain_over_ipv6(self):
        with KeyFleet(WSYNC) as fleet:
            fleet.address = "tcp://[fd00::1]:7000"
            one = fleet.checkpoint("one", 1)
            fleet.trainer("--set", "min_sidecars=2", host="[fd00::1]")
            for name in ("s0", "s1"):
                _, place = fleet.engines(name, data="tcp://[fd00::2]:0", advertise="fd00::2")
                fleet.replica(place, f"r{name}", one)
            fleet.joined("s0", "s1")
            fleet.pushed(one)
            fleet.until_ready("1.1", "rs0", "rs1")
            self.verified(fleet, "1.1")
            self.assertEqual({s["transport"] for s in fleet.sidecars().values()}, {"tls"})
            sent = fleet.metric("trainer0", "control", "wsync_wire_bytes_total")
            fleet.until(lambda: fleet.sidecars()["s0"]["last_copy"], "how the version came")
            model = fleet.sidecars()["s0"]["last_copy"]["bytes"]
            self.assertLess(sent, 1.05 * model, "the second sidecar did not fetch from the first")

    def test_a_trusted_network(self):
        trusted = ("--set", "data_security=trusted_network")
        with KeyFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            packets = fleet.sniff()
            trainer = fleet.trainer(*trusted)
            sidecar, place = fleet.engines("s0", *trusted)
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.pushed(one)
            fleet.until_ready("1.1", "r0")
            self.verified(fleet, "1.1")
            code, answer = fleet.ask("status")
            self.assertEqual((code, answer["result"]["data_security"]), (0, "trusted_network"), answer)
            self.assertEqual(answer["result"]["sidecars"][0]["transport"], "tcp")
            self.assertGreater(self.seen(packets, one), 0, "the test does not see what passes the cable")
            for process in (trainer, sidecar):
                self.assertEqual(fleet.text_of(process).count("without encryption"), 1)
            code, answer = fleet.ask_on("trainer0", "doctor", "--role", "trainer", *trusted, "--set", f"keys={fleet.keys}", "--set",
                                        "data_address=tcp://10.0.0.1:7009")
            data = {check["name"]: check for check in answer["result"]["checks"]}["data"]
            self.assertEqual(data["status"], "warn", answer)
            self.assertIn("without encryption", data["found"])

    def test_both_ends_must_mean_the_same_security(self):
        with KeyFleet(WSYNC) as fleet:
            fleet.trainer()
            fleet.engines("s0", "--set", "data_security=trusted_network")
            fleet.joined("s0")
            self.assertEqual(fleet.sidecars()["s0"]["transport"], "")
            _, answer = fleet.ask("status")
            self.assertIn("the same `data_security`", " ".join(i["text"] for i in answer["result"]["incidents"]))

    def test_without_keys_other_hosts_are_refused_and_told_how_to_make_them(self):
        with KeyFleet(WSYNC) as fleet:
            address = f"tcp://{ADDRESSES['trainer0'][0]}:7000"
            for arguments in (["trainer", "--set", f"listen={address}"], ["trainer", "--set", f"data_address={address}"],
                              ["sidecar", "--set", f"coordinator={address}"], ["sidecar", "--set", f"data_address={address}"]):
                code, answer = fleet.ask_on("trainer0", *arguments)
                self.assertEqual(code, 2, answer)
                self.assertIn("make keys with `wsync keys init`", answer["error"]["message"])
            code, answer = fleet.ask_on("trainer0", "status", "--coordinator", address)
            self.assertNotEqual(code, 0)
            self.assertIn("make keys with `wsync keys init`", answer["error"]["message"])

    def test_a_stranger_at_the_port_of_the_weights(self):
        with KeyFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            trainer = fleet.trainer()
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.pushed(one)
            talk = f"""
import socket, sys
with socket.create_connection(("10.0.0.1", 7001), timeout={60 * SLOWNESS}) as peer:
    peer.sendall(bytes.fromhex("{wire.data_frame().hex()}"))
    said = b""
    while part := peer.recv(65536):
        said += part
sys.exit(len(said) > 100)  # an alert of TLS is shorter
"""
            code = fleet.run_on("engines0", sys.executable, "-c", talk)
            self.assertEqual(code, 0, "it was answered")
            self.assertEqual(fleet.metric("trainer0", "control", "wsync_data_refusals_total"), 1)
            fleet.says(trainer, "a data connection with 10.0.0.2 was ended: it did not prove a key")
            fleet.until_ready("1.1", "r0")

    def test_a_trainer_on_another_host_goes_on_when_the_first_host_is_lost(self):
        """Decisions are in an etcd of the host that stays. Names lead to the new host, as a fleet's DNS does."""
        with KeyFleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            certificates = Certificates(fleet.path("certificates"))
            certificates.sign("member", "DNS:engines0,IP:10.0.0.2")
            certificates.sign("trainer", "DNS:trainer")
            url = "https://engines0:2379"
            etcd = fleet.process_on("engines0", "etcd", "--data-dir", fleet.path("etcd"), "--listen-client-urls", "https://10.0.0.2:2379",
                                    "--advertise-client-urls", url, "--cert-file", certificates.path("member.pem"), "--key-file",
                                    certificates.path("member.key"), "--client-cert-auth", "--trusted-ca-file", certificates.path("ca.pem"))
            fleet.until(lambda: "ready to serve client requests" in fleet.text_of(etcd), "etcd")
            decisions = [word for setting in (f"decision_store=etcd:{url}", f"etcd.ca={certificates.path('ca.pem')}",
                                              f"etcd.certificate={certificates.path('trainer.pem')}",
                                              f"etcd.key={certificates.path('trainer.key')}", "deadlines.gather=10s")
                         for word in ("--set", setting)]
            fleet.name_hosts(coordinator="trainer0")
            fleet.address = "tcp://coordinator:7000"
            first = fleet.trainer(*decisions)
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.pushed(one)
            fleet.pushed(two)
            fleet.until_ready("1.2", "r0")
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, "1.1"), answer)
            fleet.cut("trainer0")
            fleet.name_hosts(coordinator="trainer1")
            fleet.at = "trainer1"
            second = fleet.trainer(*decisions, host="10.0.0.3", on="trainer1")
            fleet.says(second, "continuing from epoch 1")
            self.assertIn("target 1.1", fleet.text_of(second))
            fleet.joined("s0")
            fleet.until_ready("1.1", "r0")
            fleet.pushed(two)
            fleet.until_ready("2.3", "r0")
            self.verified(fleet, "2.3")
            # The host that was lost comes back. Its trainer has run on, and ends when it hears of the other one.
            self.assertIsNone(first.poll())
            fleet.join("trainer0")
            self.assertNotEqual(first.wait(timeout=DEADLINE_S), 0)
            self.assertRegex(fleet.text_of(first), "this coordinator was replaced: .*process .* has taken over the fleet in etcd")
            fleet.until_ready("2.3", "r0")

    def test_a_late_sidecar_takes_weights_from_another_one(self):
        with KeyFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1, size="32MiB")
            fleet.trainer()
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.pushed(one)
            fleet.until_ready("1.1", "r0")
            before = fleet.sent("trainer0")
            self.assertGreater(before, 32 << 20)
            _, late = fleet.engines("s1", at="trainer1")
            fleet.replica(late, "r1", one, at="trainer1")
            fleet.until_ready("1.1", "r0", "r1")
            self.verified(fleet, "1.1")
            self.assertLess(fleet.sent("trainer0") - before, 4 << 20, "the trainer has sent the weights once more")

    def test_a_late_sidecar_when_the_host_of_the_trainer_is_lost(self):
        with KeyFleet(WSYNC) as fleet:
            fleet.local("keys", "add", "publisher", "trainer", "--keys", fleet.keys)
            fleet.at, fleet.address = "trainer1", "tcp://trainer1:7000"
            one = fleet.checkpoint("one", 1, size="32MiB")
            fleet.on("trainer1", "coordinator", "--set", f"keys={fleet.keys}", "--set", "listen=tcp://10.0.0.3:7000", *BEATS)
            trainer = fleet.on("trainer0", "trainer", "--set", f"coordinator={fleet.address}", "--set",
                               f"publisher_key={fleet.keys}/issued/publisher.trainer.key", "--set", "data_address=tcp://0.0.0.0:7001",
                               "--set", "advertise=trainer0", *BEATS)
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.says(trainer, "has this trainer")
            fleet.pushed(one, "--shared-path")
            fleet.until_ready("1.1", "r0")
            fleet.cut("trainer0")
            _, late = fleet.engines("s1", at="trainer1")
            fleet.replica(late, "r1", one, at="trainer1")
            fleet.until_ready("1.1", "r0", "r1")
            self.verified(fleet, "1.1")
            self.assertEqual(fleet.sidecars()["s1"]["transport"], "tls")

    def test_a_directory_of_another_host_than_the_trainers_is_refused(self):
        with KeyFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            fleet.trainer()
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.at = "engines0"
            code, answer = fleet.ask("push", one)
            self.assertNotEqual(code, 0, answer)
            self.assertIn(f"{one} is a directory of the host engines0, and the trainer that reads it is on the host trainer0: push on that "
                          "host, or, if both see the directory under this path, with --shared-path", answer["error"]["message"])
            fleet.pushed(one, "--shared-path")
            fleet.until_ready("1.1", "r0")
            fleet.at = "trainer0"
            fleet.pushed(one)
            fleet.until_ready("1.2", "r0")

    def test_a_push_to_a_coordinator_without_a_trainer_sends_the_weights_of_its_host(self):
        with KeyFleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            fleet.address = "tcp://trainer1:7000"
            fleet.on("trainer1", "coordinator", "--set", f"keys={fleet.keys}", "--set", "listen=tcp://10.0.0.3:7000", *BEATS)
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            fleet.at = "trainer0"
            packets = fleet.sniff()
            fleet.pushed(one)
            self.verified(fleet, "1.1")
            fleet.at = "trainer1"  # the host of the coordinator
            fleet.pushed(two)
            self.verified(fleet, "1.2")
            size = sum(path.stat().st_size for path in pathlib.Path(one).glob("*.safetensors"))
            fleet.until(lambda: os.path.getsize(packets) > 2 * size, "both weights on the cable")
            self.assertEqual(self.seen(packets, one) + self.seen(packets, two), 0, "weights have passed readably")
            fleet.at = "engines0"  # that of the sidecar
            fleet.pushed(one)
            self.verified(fleet, "1.3")
            fleet.local("keys", "add", "reader", "eve", "--keys", fleet.keys, "-o", fleet.path("eve.key"))
            coordinator = fleet.processes[0]
            coordinator.send_signal(signal.SIGHUP)
            fleet.key = fleet.path("eve.key")
            fleet.until(lambda: fleet.ask("status")[0] == 0, "the key of eve")
            code, answer = fleet.ask("push", two)
            self.assertNotEqual(code, 0, answer)
            self.assertIn("the key of reader eve may not send the message Push", answer["error"]["message"])

    def test_two_hosts_push_at_once_to_a_coordinator_without_a_trainer(self):
        with KeyFleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1, size="64MiB"), fleet.checkpoint("two", 2, size="64MiB")
            fleet.address = "tcp://trainer1:7000"
            fleet.on("trainer1", "coordinator", "--set", f"keys={fleet.keys}", "--set", "listen=tcp://10.0.0.3:7000", *BEATS)
            _, place = fleet.engines("s0")
            fleet.replica(place, "r0", one)
            fleet.joined("s0")
            pushes = [fleet.on(host, "push", path, "--json", "--coordinator", fleet.address, "--key", fleet.key)
                      for host, path in (("trainer0", one), ("trainer1", two))]
            said = [push.communicate(timeout=DEADLINE_S)[0] for push in pushes]
            codes = [push.returncode for push in pushes]
            self.assertIn(0, codes, said)
            if codes != [0, 0]:  # the other one was the trainer when it asked
                self.assertIn("is a directory of the host", "".join(said))
            self.verified(fleet, f"1.{codes.count(0)}")

    def test_the_commands_of_the_guide(self):
        with KeyFleet(WSYNC) as fleet:
            etc, models = fleet.path("etc"), fleet.path("models")
            os.makedirs(etc, mode=0o700)
            os.makedirs(models)
            for number in (1, 2):
                fleet.checkpoint(f"models/step_{number}", number)
            guide = (ROOT / "deploy/guides/many_hosts.md").read_text(encoding="utf-8")
            blocks = re.findall(r"<!-- on (\w+) -->\n```\n(.*?)```", guide, re.DOTALL)
            self.assertGreaterEqual(len(blocks), 4)
            fleet.key = f"{etc}/alice.key"
            for host, block in blocks:
                for line in block.replace("/etc/wsync", etc).replace("/models", models).replace("\\\n", " ").splitlines():
                    words = shlex.split(line, comments=True)
                    if not words:
                        continue
                    self.assertEqual(words.pop(0), "wsync", line)
                    if words[-1] != "&":
                        code, answer = fleet.ask_on(host, *words)
                        self.assertEqual(code, 0, f"{line}: {answer}")
                        continue
                    fleet.on(host, *words[:-1])
                    if words[0] == "sidecar":
                        place = os.path.join(fleet.path(host), "run", "engines0.engines")
                        fleet.until(lambda: os.path.exists(place), "the socket of the sidecar")
                        fleet.replica(place, "r0", f"{models}/step_1")
                        fleet.joined("engines0")
                    else:
                        fleet.until(lambda: fleet.ask("status")[0] == 0, "the trainer")
                # What the guide says to carry to the other host.
                issued = f"{etc}/keys/issued/sidecar.engines0.key"
                if os.path.exists(issued) and not os.path.exists(f"{etc}/engines0.key"):
                    shutil.move(issued, f"{etc}/engines0.key")
            self.assertEqual(fleet.sidecars()["engines0"]["transport"], "tls")


if __name__ == "__main__":
    if why := why_no_hosts():
        print(f"no hosts for the tests: {why}")
        sys.exit(0)
    unittest.main()
