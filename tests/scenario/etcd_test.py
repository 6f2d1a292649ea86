"""A fleet whose decisions are in a real etcd: the loss of the trainer's host, and of members of the cluster."""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import unittest

import tensors
from coordinator_fleet import CoordinatorFleet
from etcd import Certificates, Etcd, Gate, free_ports
from fleet import DEADLINE_S, Fleet
from fleet_case import FleetCase
from pages import get

WSYNC = sys.argv.pop()


class Case(FleetCase):
    def incidents(self, fleet):
        code, answer = fleet.ask("status")
        return json.dumps(answer["result"]["incidents"]) if code == 0 else ""


class OtherHost(Case):
    def trainer(self, fleet, etcd, state, *more):
        """As one on a host of its own: with another disc."""
        return fleet.start("trainer", "--set", etcd.setting, "--set", f"state_dir={fleet.path(state)}", *more)

    def test_a_trainer_without_the_disc_of_the_first_goes_on(self):
        with Fleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            sidecar, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", one)
            first = self.trainer(fleet, etcd, "disc1")
            kept, withdrawn = self.push(fleet, one), self.push(fleet, two)
            code, answer = fleet.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, kept), answer)
            first.kill()
            first.wait()
            fleet.halt(sidecar.pid)  # the record is all that the next one has
            second = self.trainer(fleet, etcd, "disc2", "--set", "deadlines.gather=1s")
            fleet.until(lambda: "continuing from epoch 1" in fleet.log_text(second), "a trainer that has read the record")
            self.assertIn(f"target {kept}; waiting 1 s at most (deadlines.gather) for sidecars a", fleet.log_text(second))
            sidecar.send_signal(signal.SIGCONT)
            fleet.until_ready(kept, "ra")
            self.assertEqual(self.sidecar_state(fleet, "a")["withdrawn"], [withdrawn])
            newer = self.push(fleet, two)
            self.assertEqual(newer, "2.3")
            fleet.until_ready(newer, "ra")
            self.stopped_whole(fleet, engine)

    def test_a_coordinator_of_its_own_is_lost_with_its_disc_and_its_trainer_stays(self):
        with CoordinatorFleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            def coordinate(disc):
                return fleet.coordinate("--set", etcd.setting, "--set", f"state_dir={fleet.path(disc)}")
            first = coordinate("disc1")
            engines = fleet.begin()
            trainer = fleet.trainer()
            fleet.until_attached()
            self.assertEqual(self.push(fleet, fleet.weights[0]), "1.1")
            first.kill()
            first.wait()
            second = coordinate("disc2")
            fleet.until(lambda: "continuing from epoch 1" in fleet.log_text(second), "a coordinator that has read the record")
            fleet.until_attached()
            self.assertEqual(self.push(fleet, fleet.weights[1]), "2.2")
            fleet.until_ready("2.2", "a", "b")
            self.assertIsNone(trainer.poll())
            self.stopped_whole(fleet, *engines)

    def test_a_second_one_does_not_start_by_mistake_and_one_that_wakes_decides_no_more(self):
        with Fleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            addresses = {name: f"ipc://{fleet.path(name)}/control" for name in ("x", "y")}
            engines = [fleet.engine(fleet.sidecar(name, "--set", f"coordinator={address}")[1], f"r{name}", one)
                       for name, address in addresses.items()]
            def words(name):
                return ("trainer", "--set", f"run_dir={fleet.path(name)}", "--set", etcd.setting, "--set", f"state_dir={fleet.path('disc' + name)}",
                        "--set", "deadlines.gather=2s")
            first = fleet.start(*words("x"))
            version = self.push(fleet, one, addresses["x"])
            second = subprocess.run([WSYNC, *words("y")], env=fleet.environment, text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertEqual(second.returncode, 3, second.stderr)
            self.assertIn(f"process {first.pid} of host ", second.stderr)
            self.assertIn("another coordinator leads fleet 'default' in etcd", second.stderr)
            self.assertIn("--take-over", second.stderr)
            # The host of the first one stands still. Nobody has to say so to the next one.
            fleet.halt(first.pid)
            fleet.start(*words("y"))
            newer = self.push(fleet, two, addresses["y"])
            self.assertEqual(newer.split(".")[0], "2")
            first.send_signal(signal.SIGCONT)
            self.assertNotEqual(first.wait(timeout=DEADLINE_S), 0)
            self.assertRegex(fleet.log_text(first), "this coordinator was replaced: .*process |another coordinator with the same state has claimed")
            self.assertEqual(self.sidecar_state(fleet, "x")["target"], version)
            self.stopped_whole(fleet, *engines)


class StandBy(Case):
    """Coordinators of two hosts, which all others know by the addresses of both."""

    def coordinator(self, fleet, etcd, port):
        process = fleet.start("coordinator", "--stand-by", "--set", etcd.setting, "--set", f"listen=tcp://127.0.0.1:{port}",
                              "--set", f"state_dir={fleet.path(f'disc{port}')}", "--set", f"run_dir={fleet.path(f'run{port}')}",
                              "--set", f"http.address=ipc://{fleet.path(f'{port}.http')}")
        fleet.until(lambda: "stands by" in fleet.log_text(process) or "leads fleet" in fleet.log_text(process), "that it stands by or leads")
        return process

    def begin(self, fleet, etcd, first_reaches=None):
        """`first_reaches`: what the first one takes for etcd."""
        ports = free_ports(2)
        coordinators = [self.coordinator(fleet, reached, port) for port, reached in zip(ports, (first_reaches or etcd, etcd))]
        self.assertIn("leads fleet 'default' now", fleet.log_text(coordinators[0]))
        self.assertRegex(fleet.log_text(coordinators[1]), f"stands by: fleet 'default' is led by .process {coordinators[0].pid} of host")
        fleet.address = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
        known = ("--set", f"coordinator={fleet.address}")
        engines = [fleet.engine(fleet.sidecar("s", *known)[1], "a", fleet.weights[0])]
        trainer = fleet.trainer()
        fleet.until_attached()
        self.assertEqual(self.push(fleet, fleet.weights[0]), "1.1")
        return ports, coordinators, engines, trainer

    def test_one_that_is_killed_is_followed_by_the_other(self):
        with CoordinatorFleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            ports, (first, second), engines, trainer = self.begin(fleet, etcd)
            status, text = get(fleet.path(f"{ports[1]}.http"), "/readyz")
            self.assertEqual(status, 503, text)
            self.assertIn("this coordinator stands by: fleet 'default' is led by", text)
            self.assertEqual(get(fleet.path(f"{ports[1]}.http"), "/healthz")[0], 200)
            first.kill()
            first.wait()
            fleet.until(lambda: "leads fleet" in fleet.log_text(second), "that the other one leads")
            fleet.until_attached()
            fleet.until_ready("1.1", "a")
            self.assertEqual(self.push(fleet, fleet.weights[1]), "2.2")
            fleet.until_ready("2.2", "a")
            self.assertEqual(get(fleet.path(f"{ports[1]}.http"), "/readyz")[0], 200)
            # The first host comes back, and its coordinator stands by. So they change places again.
            third = self.coordinator(fleet, etcd, ports[0])
            second.send_signal(signal.SIGTERM)
            self.assertEqual(second.wait(DEADLINE_S), 0, fleet.log_text(second))
            fleet.until(lambda: "leads fleet" in fleet.log_text(third), "that the first host leads again")
            fleet.until_attached()
            self.assertEqual(self.push(fleet, fleet.weights[2]), "3.3")
            fleet.until_ready("3.3", "a")
            self.assertIsNone(trainer.poll())
            self.stopped_whole(fleet, *engines)

    def test_one_that_hangs_is_replaced_and_decides_no_more_when_it_wakes(self):
        with CoordinatorFleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            _, (first, second), engines, _ = self.begin(fleet, etcd)
            fleet.halt(first.pid)
            fleet.until(lambda: "leads fleet" in fleet.log_text(second), "that the other one leads")
            fleet.until_attached()
            self.assertEqual(self.push(fleet, fleet.weights[1]), "2.2")
            fleet.until_ready("2.2", "a")
            first.send_signal(signal.SIGCONT)
            fleet.until(lambda: "stands by again" in fleet.log_text(first), "that the first one knows")
            self.assertEqual(self.push(fleet, fleet.weights[2]), "2.3")
            fleet.until_ready("2.3", "a")
            # So they can change places for ever.
            second.kill()
            second.wait()
            fleet.until(lambda: fleet.log_text(first).count("leads fleet 'default' now") == 2, "that the first one leads again")
            fleet.until_attached()
            self.assertEqual(self.push(fleet, fleet.weights[0]).split(".")[0], "3")
            self.stopped_whole(fleet, *engines)

    def test_one_that_alone_does_not_reach_etcd_steps_down(self):
        """Sidecars and trainers reach it all the time, and nothing would bring them to the other one."""
        with CoordinatorFleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd, Gate(int(etcd.setting.rpartition(":")[2])) as gate:
            _, (first, second), engines, trainer = self.begin(fleet, etcd, gate)
            gate.close()
            fleet.until(lambda: "stands by again" in fleet.log_text(first), "that the first one steps down")
            self.assertIn("etcd has not extended the lease of this coordinator", fleet.log_text(first))
            fleet.until(lambda: "leads fleet" in fleet.log_text(second), "that the other one leads")
            fleet.until_attached()
            self.assertEqual(self.push(fleet, fleet.weights[1]), "2.2")
            fleet.until_ready("2.2", "a")
            gate.open()
            fleet.until(lambda: re.search(f"stands by: fleet 'default' is led by .process {second.pid} ", fleet.log_text(first)), "that the first one sees the other")
            self.assertIsNone(trainer.poll())
            self.stopped_whole(fleet, *engines)

    def test_nothing_is_taken_from_a_process_that_lives(self):
        """It leads another fleet at the address that is configured."""
        with CoordinatorFleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            other = fleet.start("trainer")
            stands = fleet.start("coordinator", "--stand-by", "--set", etcd.setting, "--set", f"listen={fleet.address}", "--set", "fleet=another",
                                 "--set", f"run_dir={fleet.path('another')}", "--set", f"state_dir={fleet.path('disc')}")
            fleet.until(lambda: "stands by again" in fleet.log_text(stands), "that it gives up the lead")
            self.assertIn(f"is held by process {other.pid}", fleet.log_text(stands))
            self.assertEqual(fleet.ask("status")[0], 0)
            self.assertIsNone(other.poll())
            stands.send_signal(signal.SIGTERM)
            self.assertEqual(stands.wait(DEADLINE_S), 0, fleet.log_text(stands))

    def test_etcd_is_away_while_one_stands_by(self):
        with CoordinatorFleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            _, (first, second), engines, _ = self.begin(fleet, etcd)
            etcd.members[0].kill()
            fleet.until(lambda: "stands by: etcd does not answer" in fleet.log_text(second), "that it says so")
            etcd.members[0].start()
            fleet.until(lambda: re.search("does not answer.*\n.*is led by", fleet.log_text(second)), "that it looks at the other one again")
            version = self.push(fleet, fleet.weights[1])  # by whichever of them leads
            fleet.until_ready(version, "a")
            etcd.members[0].kill()
            second.send_signal(signal.SIGTERM)  # it waits for an answer
            self.assertEqual(second.wait(DEADLINE_S), 0, fleet.log_text(second))
            self.assertIsNone(first.poll())
            self.stopped_whole(fleet, *engines)


class Members(Case):
    def test_while_etcd_hangs_nothing_is_decided_and_engines_serve(self):
        with Fleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            _, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", one)
            trainer = fleet.start("trainer", "--set", etcd.setting)
            first = self.push(fleet, one)
            fleet.until_ready(first, "ra")
            etcd.members[0].halt()
            answers = []
            push = threading.Thread(target=lambda: answers.append(fleet.ask("push", two)))
            push.start()
            fleet.until(lambda: "etcd has not said for" in self.incidents(fleet), "the incident that says so")
            state = self.sidecar_state(fleet, "a")
            self.assertEqual(state["target"], first)
            replica, = state["sidecars"][0]["replicas"]
            self.assertEqual((replica["version"], replica["ready"]), (first, True))
            self.assertEqual(answers, [])
            etcd.members[0].resume()
            push.join(DEADLINE_S)
            (code, answer), = answers
            self.assertEqual(code, 0, answer)
            fleet.until_ready(answer["result"]["version"], "ra")
            self.assertIn("etcd answers again", self.incidents(fleet))
            # And a trainer that is to end does not wait for an etcd that hangs.
            etcd.members[0].halt()
            code, said = fleet.stop(trainer)
            self.assertEqual(code, 0, said)
            etcd.members[0].resume()
            self.stopped_whole(fleet, engine)

    def test_an_etcd_that_is_gone_fails_the_publish_and_changes_nothing(self):
        with Fleet(WSYNC) as fleet, Etcd(fleet.directory) as etcd:
            one, two = tensors.make(fleet.path("one"), 1), tensors.make(fleet.path("two"), 2)
            _, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", one)
            trainer = fleet.start("trainer", "--set", etcd.setting)
            first = self.push(fleet, one)
            etcd.members[0].kill()
            code, answer = fleet.ask("push", two)
            self.assertEqual(code, 1, answer)
            for words in ("the decision could not be stored, so it was not sent and the fleet is unchanged", etcd.members[0].url,
                          "Connection refused"):
                self.assertIn(words, answer["result"]["reason"])
            self.assertEqual(self.sidecar_state(fleet, "a")["target"], first)
            self.assertIsNone(trainer.poll())
            etcd.members[0].start()
            fleet.until_ready(self.push(fleet, two), "ra")
            # Without etcd no trainer starts, and it says why.
            trainer.kill()
            trainer.wait()
            etcd.members[0].kill()
            late = subprocess.run([WSYNC, "trainer", "--set", etcd.setting], env=fleet.environment, text=True, capture_output=True,
                                  timeout=DEADLINE_S)
            self.assertNotEqual(late.returncode, 0)
            self.assertIn("in etcd: no member of etcd has done it for 10 s", late.stderr)
            self.assertIn("Connection refused", late.stderr)
            self.stopped_whole(fleet, engine)

    def test_one_of_three_members_may_be_lost(self):
        with Fleet(WSYNC) as fleet, Etcd(fleet.directory, 3) as etcd:
            checkpoints = [tensors.make(fleet.path(str(i)), i) for i in range(1, 4)]
            _, engines = fleet.sidecar("a")
            engine = fleet.engine(engines, "ra", checkpoints[0])
            fleet.start("trainer", "--set", etcd.setting)
            fleet.until_ready(self.push(fleet, checkpoints[0]), "ra")
            def doctor():
                done = subprocess.run([WSYNC, "doctor", "--role", "trainer", "--json", "--set", etcd.setting], env=fleet.environment, text=True,
                                      capture_output=True, timeout=DEADLINE_S)
                return next(check for check in json.loads(done.stdout)["result"]["checks"] if check["name"] == "decisions")
            check = doctor()
            self.assertEqual((check["status"], check["found"]),
                             ("ok", "etcd has the decisions of fleet 'default': fence epoch 1, target 1.1; 3 members with a majority"))
            lost = etcd.leader()
            lost.kill()
            found = []
            def says_it():  # when the others have another leader
                found[:] = [doctor()]
                return "1 of 3 etcd members do not answer: " in found[0]["found"]
            fleet.until(says_it, "the check that says so")
            self.assertEqual(found[0]["status"], "warn")
            self.assertIn(lost.url, found[0]["found"])
            fleet.until_ready(self.push(fleet, checkpoints[1]), "ra")
            lost.start()
            etcd.until(lambda: lost.ask("/v3/kv/range", '{"key":"Lw=="}'), "the member that was lost")
            hanging = etcd.leader()
            hanging.halt()
            fleet.until_ready(self.push(fleet, checkpoints[2]), "ra")
            hanging.resume()
            fleet.until_ready(self.push(fleet, checkpoints[0]), "ra")
            self.stopped_whole(fleet, engine)


class Certified(Case):
    def test_members_and_trainer_prove_who_they_are(self):
        with Fleet(WSYNC) as fleet:
            ours, others = Certificates(fleet.path("ours")), Certificates(fleet.path("others"))
            for one in ours, others:
                one.sign("member", "IP:127.0.0.1")
                one.sign("trainer", "DNS:trainer")
            ours.sign("elsewhere", "DNS:etcd.example")
            with Etcd(fleet.directory, certificates=ours) as etcd:
                def files(ca, own=None):
                    named = {"ca": ca, "certificate": own and own.path("trainer.pem"), "key": own and own.path("trainer.key")}
                    return [word for key, path in named.items() if path for word in ("--set", f"etcd.{key}={path}")]
                def refused(*more):
                    done = subprocess.run([WSYNC, "trainer", "--set", etcd.setting, *more], env=fleet.environment, text=True,
                                          capture_output=True, timeout=DEADLINE_S)
                    self.assertNotEqual(done.returncode, 0)
                    return done.stderr
                self.assertIn("the server's certificate is not accepted", refused(*files(others.path("ca.pem"), ours)))
                self.assertRegex(refused(*files(ours.path("ca.pem"))), "bad certificate|certificate required")
                self.assertRegex(refused(*files(ours.path("ca.pem"), others)), "etcd refuses it: |no member of etcd has done it")
                self.assertIn("none.pem: expected a certificate in PEM", refused(
                    *files(ours.path("ca.pem")), "--set", f"etcd.certificate={ours.path('none.pem')}", "--set",
                    f"etcd.key={ours.path('trainer.key')}"))
                os.chmod(others.path("trainer.key"), 0o644)
                self.assertIn("trainer.key", refused(*files(ours.path("ca.pem"), others)))
                _, engines = fleet.sidecar("a")
                one = tensors.make(fleet.path("one"), 1)
                engine = fleet.engine(engines, "ra", one)
                fleet.start("trainer", "--set", etcd.setting, *files(ours.path("ca.pem"), ours))
                fleet.until_ready(self.push(fleet, one), "ra")
                self.stopped_whole(fleet, engine)
            # One who has a certificate of the authority, for another name.
            for end in "pem", "key":
                os.replace(ours.path(f"elsewhere.{end}"), ours.path(f"member.{end}"))
            with_name = ours.context
            def any_name(name):  # of the test's own questions
                context = with_name(name)
                context.check_hostname = False
                return context
            ours.context = any_name
            os.mkdir(fleet.path("second"))
            with Etcd(fleet.path("second"), certificates=ours) as etcd:
                self.assertIn("IP address mismatch", refused(*files(ours.path("ca.pem"), ours)))


if __name__ == "__main__":
    unittest.main()
