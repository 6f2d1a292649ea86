"""Metrics, health and readiness of a real fleet, read by a real Prometheus, which evaluates the alert rules too."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest
import urllib.parse

from fleet import DEADLINE_S, Fleet
from pages import LoggedFleet, answer_of, get
from schema import validate

WSYNC = sys.argv.pop()
HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "..", "..", "deploy")
ALERTS = os.path.join(DEPLOY, "prometheus", "alerts.yml")
DASHBOARD = os.path.join(DEPLOY, "grafana", "wsync.json")
MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
needs_prometheus = unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)} (Debian package prometheus)")
# Names of metrics in an expression: words that are no functions, labels or keywords.
METRIC = re.compile(r"\b((?:wsync|process)_[a-z_]+|up)\b")


def samples(text):
    """{'name{label="value"}': value} of a page of metrics."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}


class Prometheus:
    """A Prometheus that scrapes these targets five times a second, in the directory of the fleet."""

    def __init__(self, fleet, targets):
        self.fleet = fleet
        config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
                  "rule_files": [os.path.abspath(ALERTS)],
                  "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [where]}]} for job, where in targets.items()]}
        with open(fleet.path("prometheus.yml"), "w", encoding="utf-8") as file:
            json.dump(config, file)  # YAML has JSON in it
        _, log = fleet.logged("prometheus", "prometheus", f"--config.file={fleet.path('prometheus.yml')}",
                              f"--storage.tsdb.path={fleet.path('tsdb')}", "--web.listen-address=127.0.0.1:0")
        self.address = fleet.said(log, r'msg="Listening on" address=(127\.0\.0\.1:[0-9]+)')
        fleet.until(lambda: get(self.address, "/-/ready")[0] == 200, "Prometheus")

    def api(self, path, **parameters):
        status, body = get(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(body)
        if status != 200 or answer["status"] != "success":
            raise AssertionError(f"{path} {parameters}: {status} {body}")
        return answer["data"]

    def value(self, expression):
        """The value of an expression with one series; None: it has none yet."""
        found = self.api("query", query=expression)["result"]
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def until(self, expression, value):
        self.fleet.until(lambda: self.value(expression) == value, f"{expression} == {value}")


class Metrics(unittest.TestCase):
    def promtool(self, *arguments, given=None):
        done = subprocess.run(["promtool", *arguments], input=given, text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def is_unready(self, where, reason):
        status, text = get(where, "/readyz")
        self.assertEqual((status, text), (503, reason + "\n"))

    def test_a_fleet_becomes_ready_and_counts_what_it_does(self):
        with LoggedFleet(WSYNC) as fleet:
            one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
            bad = fleet.checkpoint("bad", 3, "--wrong-shape", "model.layers.0.self_attn.q_proj.weight")
            _, sidecar = fleet.with_pages("s0", "sidecar", "--set", "name=s0")
            self.assertEqual(get(sidecar, "/healthz"), (200, "ok\n"))
            self.is_unready(sidecar, "no engine is attached")
            engine = fleet.engine(os.path.join(fleet.run_dir, "s0.engines"), "a", one)
            # The engine says that it is attached when it has its welcome, the sidecar when it has seen to the rest.
            fleet.until(lambda: get(sidecar, "/readyz")[1].startswith("replica 'a' is "), "the replica")
            _, coordinator = fleet.with_pages("trainer", "trainer")
            self.assertEqual(get(coordinator, "/healthz"), (200, "ok\n"))
            self.assertEqual(get(coordinator, "/readyz")[0], 503)
            for path in (one, two):
                committed, result = fleet.push(path)
                self.assertTrue(committed, result)
            refused, _ = fleet.push(bad)
            self.assertFalse(refused)
            self.assertEqual(get(sidecar, "/readyz"), (200, "ready\n"))
            self.assertEqual(get(coordinator, "/readyz"), (200, "ready\n"))
            self.assertEqual(get(sidecar, "/metrics", "HEAD"), (200, ""))
            self.assertEqual(get(sidecar, "/metrics", "POST")[0], 405)
            self.assertEqual(get(sidecar, "/")[0], 404)

            at_sidecar = samples(get(sidecar, "/metrics")[1])
            self.assertEqual(at_sidecar['wsync_replica_version_step{replica="a"}'], 2)
            self.assertEqual(at_sidecar['wsync_replica_ready{replica="a"}'], 1)
            self.assertEqual(at_sidecar['wsync_replica_state{replica="a",state="serving"}'], 1)
            self.assertEqual(at_sidecar['wsync_switches_total{result="committed"}'], 2)
            self.assertEqual(at_sidecar['wsync_staleness_seconds{replica="a"}'], 0)
            self.assertEqual(at_sidecar['wsync_update_stage_seconds_count{stage="load"}'], 2)
            self.assertGreaterEqual(at_sidecar["wsync_paused_seconds_count"], 1)
            self.assertGreaterEqual(at_sidecar['wsync_update_bytes_total{stage="load"}'], 2 * 2**24)
            self.assertGreater(at_sidecar["wsync_arena_bytes"], 2**24)
            at_coordinator = samples(get(coordinator, "/metrics")[1])
            self.assertEqual(at_coordinator['wsync_updates_total{result="committed"}'], 2)
            self.assertEqual(at_coordinator['wsync_updates_total{result="failed"}'], 1)
            self.assertEqual(at_coordinator['wsync_failures_total{reason="refused"}'], 1)
            self.assertEqual(at_coordinator["wsync_fleet_replicas_current"], 1)
            self.assertEqual(at_coordinator['wsync_update_stage_seconds_count{stage="switch"}'], 2)

            engine.kill()
            engine.wait()
            fleet.until(lambda: get(sidecar, "/readyz")[0] == 503, "an unready sidecar")
            self.is_unready(sidecar, "no engine is attached")
            fleet.until(lambda: get(coordinator, "/readyz")[0] == 503, "an unready coordinator")
            self.is_unready(coordinator, "requests may be routed to 0 of 1 replicas, expected at least 1 (min_replicas)")
            self.assertEqual(samples(get(sidecar, "/metrics")[1])['wsync_replica_state{replica="a",state="absent"}'], 1)

    def test_without_a_common_transport_every_answer_says_so(self):
        with LoggedFleet(WSYNC) as fleet:
            one, why = fleet.checkpoint("one", 1), "no transport in common"
            _, sidecar = fleet.with_pages("s0", "sidecar", "--set", "name=s0", "--set", "transport=tcp")
            fleet.engine(os.path.join(fleet.run_dir, "s0.engines"), "a", one)
            _, coordinator = fleet.with_pages("trainer", "trainer", "--set", "transport=memfd")
            for where in (sidecar, coordinator):
                fleet.until(lambda at=where: why in get(at, "/readyz")[1], f"the cause at {where}")
                self.assertEqual(get(where, "/readyz")[0], 503)
            code, answer = fleet.ask("plan", one)
            self.assertEqual(code, 1, answer)
            self.assertIn(why, answer["result"]["sidecars"][0]["problems"][0]["detail"])
            code, answer = fleet.ask("verify")
            self.assertEqual(code, 1, answer)
            self.assertIn(why, answer["result"]["ranks"][0]["failure"])

    @needs_prometheus
    def test_prometheus_scrapes_the_fleet_and_evaluates_the_rules(self):
        with LoggedFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            sidecar_process, sidecar = fleet.with_pages("s0", "sidecar", "--set", "name=s0")
            fleet.engine(os.path.join(fleet.run_dir, "s0.engines"), "a", one)
            _, coordinator = fleet.with_pages("trainer", "trainer")
            prometheus = Prometheus(fleet, {"wsync-sidecar": sidecar, "wsync-coordinator": coordinator})
            prometheus.until("sum(up)", 2)
            for _ in range(2):
                committed, result = fleet.push(one)
                self.assertTrue(committed, result)
            prometheus.until('wsync_replica_version_step{replica="a", job="wsync-sidecar"}', 2)
            prometheus.until('wsync_updates_total{result="committed", job="wsync-coordinator"}', 2)
            prometheus.until("sum(wsync_fleet_replicas_ready)", 1)
            self.assertGreater(prometheus.value("histogram_quantile(0.5, sum by (le) (wsync_paused_seconds_bucket))"), 0)
            self.assertEqual(prometheus.value("count(wsync_build_info)"), 2)
            for where in (sidecar, coordinator):
                self.assertEqual(self.promtool("check", "metrics", given=get(where, "/metrics")[1]), "")

            names = set(prometheus.api("label/__name__/values"))
            for expression in self.dashboard_expressions():
                self.assertEqual(set(METRIC.findall(expression)) - names, set(), expression)
                shown = re.sub(r"\$(job|instance)", ".+", expression).replace("$__rate_interval", "1m")
                self.assertNotIn("$", shown)
                prometheus.api("query", query=shown)

            rules = []

            def evaluated():
                rules[:] = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
                # Those that were evaluated before the first push wait for the replica to become ready.
                return rules and all(rule["health"] != "unknown" and rule["state"] == "inactive" for rule in rules)
            fleet.until(evaluated, "an evaluation of the rules in which none is raised")
            for rule in rules:
                self.assertEqual(rule["health"], "ok", rule)
                self.assertEqual(set(METRIC.findall(rule["query"])) - names, set(), rule)

            sidecar_process.kill()
            fleet.until(lambda: {"WsyncProcessDown"} == {alert["labels"]["alertname"] for alert in prometheus.api("alerts")["alerts"]
                                                         if alert["labels"]["job"] == "wsync-sidecar"}, "the alert of a sidecar that has gone")

    def dashboard_expressions(self):
        with open(DASHBOARD, encoding="utf-8") as file:
            board = json.load(file)
        panels = board["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        expressions = [target["expr"] for panel in panels for target in panel["targets"]]
        self.assertGreater(len(expressions), 20)
        return expressions

    @needs_prometheus
    def test_the_rules_and_the_example_are_what_promtool_expects(self):
        self.assertIn("SUCCESS", self.promtool("check", "rules", ALERTS))
        self.assertIn("SUCCESS", self.promtool("check", "config", os.path.join(DEPLOY, "prometheus", "prometheus.yml")))
        self.assertIn("SUCCESS", self.promtool("test", "rules", os.path.join(HERE, "alert_rules.yml")))

    def test_each_alert_has_cases_that_raise_it_and_that_do_not(self):
        with open(ALERTS, encoding="utf-8") as file:
            alerts = re.findall(r"- alert: (\w+)", file.read())
        with open(os.path.join(HERE, "alert_rules.yml"), encoding="utf-8") as file:
            quiet, raised = file.read().split("- name: each reason raises its alert", 1)
        for alert in alerts:
            self.assertIn(f"alertname: {alert}}}", quiet)
            self.assertRegex(raised, rf"alertname: {alert}\n\s+exp_alerts:")

    def test_an_address_that_is_taken_or_wrong_is_said_at_the_start(self):
        with Fleet(WSYNC) as fleet, socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            for role in (["sidecar", "--set", "name=s0"], ["trainer"]):
                for given, code, sentence in (
                        (address, 3, f"{address[6:]} is in use: process {os.getpid()} "),
                        ("tcp://0.0.0.0:9190", 2, "whose clients must show a token"),
                        ("ipc://here", 2, "expected ipc:///ABSOLUTE/PATH"),
                        ("yes", 2, "expected ipc:///ABSOLUTE/PATH")):
                    done = subprocess.run([WSYNC, *role, "--json", "--set", f"http.address={given}"], env=fleet.environment,
                                          text=True, capture_output=True, timeout=DEADLINE_S)
                    message = validate(done.args, done.stdout)["error"]["message"]
                    self.assertEqual(done.returncode, code, message)
                    self.assertIn("http.address", message)
                    self.assertIn(sentence, message)

    def test_sockets_by_default_and_none_when_none_is_wanted(self):
        with Fleet(WSYNC) as fleet:
            fleet.sidecar("quiet", "--set", "http.address=none")
            sidecar, _ = fleet.sidecar("s0")
            first = fleet.start("trainer")
            pages = os.path.join(fleet.run_dir, "control.http")
            fleet.until(lambda: os.path.exists(pages) and os.path.exists(os.path.join(fleet.run_dir, "s0.http")), "the sockets")
            self.assertEqual([name for name in sorted(os.listdir(fleet.run_dir)) if name.endswith(".http")],
                             ["control.http", "s0.http"])
            self.assertEqual(get(os.path.join(fleet.run_dir, "s0.http"), "/healthz"), (200, "ok\n"))
            held = os.stat(pages).st_ino
            # One that stands still is left behind, with its pages.
            fleet.halt(first.pid)
            second = fleet.start("trainer", "--take-over")

            def taken_over():
                try:
                    return os.stat(pages).st_ino != held and get(pages, "/healthz") == (200, "ok\n")
                except OSError:
                    return False
            fleet.until(taken_over, "the pages of the second trainer")
            for process in (sidecar, second):
                self.assertEqual(fleet.stop(process)[0], 0)
            first.kill()
            first.wait()
            self.assertNotIn("s0.http", os.listdir(fleet.run_dir))

    def test_pages_for_other_hosts_need_the_token(self):
        with LoggedFleet(WSYNC) as fleet:
            tokens = [fleet.path("pages.token"), fleet.path("engine.token")]
            for file in tokens:
                subprocess.run([WSYNC, "keys", "token", file], check=True, stdout=subprocess.DEVNULL)
            again = subprocess.run([WSYNC, "keys", "token", tokens[0], "--json"], capture_output=True, text=True)
            self.assertIn("exists already", validate(again.args, again.stdout)["error"]["message"])
            refused = subprocess.run([WSYNC, "trainer", "--set", "http.address=tcp://0.0.0.0:0", "--json"], env=fleet.environment,
                                     capture_output=True, text=True)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("can be reached from other hosts, whose clients must show a token", refused.stdout + refused.stderr)
            _, log = fleet.logged("trainer", WSYNC, "trainer", "--set", "http.address=tcp://0.0.0.0:0", "--set", f"http.token={tokens[0]}",
                                  "--set", "http.open=metrics")
            port = fleet.said(log, r"metrics and health at 0\.0\.0\.0:([0-9]+), for those who show the token")
            with open(tokens[0], encoding="utf-8") as file:
                token = file.read().strip()
            with open(tokens[1], encoding="utf-8") as file:
                other = file.read().strip()
            for host in {"127.0.0.1", *addresses()}:
                where = f"{host}:{port}"
                with self.subTest(where=where):
                    for path in ("/", "/status.json", "/readyz2"):
                        self.assertEqual(get(where, path)[0], 401, path)
                        self.assertEqual(answer_of(where, path, headers={"Authorization": f"Bearer {other}"})[0], 401, path)
                    for path in ("/metrics", "/healthz"):
                        self.assertEqual(get(where, path)[0], 200, path)
                    status, _, text = answer_of(where, "/status.json", headers={"Authorization": f"Bearer {token}"})
                    self.assertEqual((status, json.loads(text)["target"]), (200, "0.0"))
            with open(log, encoding="utf-8") as file:
                self.assertNotIn(token, file.read())


def addresses():
    """Those of this host that are not loopback; none where it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the address is for documents (RFC 5737)
        except OSError:
            return []
        return [probe.getsockname()[0]]


if __name__ == "__main__":
    unittest.main()
