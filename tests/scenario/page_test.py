"""The web page of a coordinator, by HTTP alone: what it shows of a real fleet, its headers, and whom it answers."""
import contextlib
import html.parser
import json
import os
import socket
import subprocess
import sys
import time
import unittest

from fleet import DEADLINE_S, listens
from pages import LoggedFleet, answer_of, get
from schema import validate

WSYNC = sys.argv.pop()
HOSTILE = """<script>fetch('//x')</script>"><img src=x onerror=y>&'"""
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    """Checks that elements are closed, and keeps what a reader without a mouse depends on."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside of {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open[-1:] != ["title"]:
            self.texts.append(data.strip())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


class CoordinatorPage(unittest.TestCase):
    def test_the_page_and_its_facts_are_those_of_status(self):
        with LoggedFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            bad = fleet.checkpoint("bad", 3, "--wrong-shape", "model.layers.0.self_attn.q_proj.weight")
            fleet.sidecar("s0")
            fleet.engine(os.path.join(fleet.run_dir, "s0.engines"), HOSTILE, one)
            trainer, where = fleet.with_pages("trainer", "trainer")
            self.assertEqual(json.loads(get(where, "/status.json")[1])["rounds"], [])
            self.assertTrue(fleet.push(one)[0])
            self.assertFalse(fleet.push(bad)[0])
            self.facts(fleet, where)
            self.doctor(fleet, where)
            self.page(where)
            self.headers(where)
            self.refusals(where)
            self.no_room(fleet, trainer, where)

    def facts(self, fleet, where):
        told, shown = {}, {}
        ages = {"incidents", "last_update"}  # which have ages

        def is_new():  # a page is shown again for a moment, and a heartbeat may come between both
            code, answer = fleet.ask("status")
            self.assertEqual(code, 0)
            told.update(answer["result"])
            self.assertEqual(told.pop("key"), "")  # of the one who has asked
            shown.update(json.loads(get(where, "/status.json")[1]))
            return all(shown.get(name) == told[name] for name in set(told) - ages)
        fleet.until(is_new, "the page as it is now")
        self.assertEqual(set(shown) - set(told), {"ready", "not_ready", "rounds"})
        self.assertEqual([i["text"] for i in shown["incidents"]], [i["text"] for i in told["incidents"]])
        self.assertEqual((shown["ready"], shown["not_ready"]), (True, ""))
        refused, served = shown["rounds"]
        self.assertEqual((served["version"], served["result"], served["reason"]), ("1.1", "served", ""))
        self.assertEqual([p["name"] for p in served["phases"]], ["snapshot", "announce", "stage", "switch"])
        self.assertEqual([(s["name"], [p["name"] for p in s["stages"]]) for s in served["sidecars"]],
                         [("s0", ["announce", "stage", "switch"])])
        self.assertEqual([(r["replica"], r["outcome"]) for r in served["replicas"]], [(HOSTILE, "committed")])
        for stage in served["phases"] + served["sidecars"][0]["stages"]:
            self.assertTrue(0 <= stage["begin_ns"] <= stage["end_ns"] <= served["duration_ns"], stage)
        self.assertEqual(refused["result"], "failed")
        self.assertIn("q_proj.weight", refused["reason"])
        self.assertEqual([p["name"] for p in refused["phases"]], ["snapshot", "announce"])

    def doctor(self, fleet, where):
        for role, status in (("trainer", "ok"), ("sidecar", "warn")):  # the address is that of a trainer
            done = subprocess.run([WSYNC, "doctor", "--json", "--role", role, "--set", f"http.address=tcp://{where}"], text=True,
                                  capture_output=True, timeout=DEADLINE_S, env=fleet.environment)
            check = next(c for c in validate(done.args, done.stdout)["result"]["checks"] if c["name"] == "http")
            self.assertEqual((check["status"], check["facts"]["role"]), (status, "coordinator"), check)
            self.assertIn(f"answers at tcp://{where}", check["found"])

    def page(self, where):
        status, text = get(where, "/")
        self.assertEqual(status, 200)
        page = Page(text)
        self.assertEqual([a.get("src") for a in page.all("script")], ["/page.js"])
        self.assertEqual(page.all("img") + page.all("style"), [])
        self.assertNotIn("<img", text)
        self.assertNotIn(HOSTILE, text)  # nothing of the fleet is in it: the script shows facts as text
        script = get(where, "/page.js")[1]
        for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval("):
            self.assertNotIn(unsafe, script)
        self.assertEqual([a for _, attributes in page.elements for a in attributes if a.startswith("on") or a == "style"], [])
        self.assertEqual({a[name] for _, a in page.elements for name in ("src", "href") if name in a},
                         {"#main", "#update", "#replicas", "#rounds", "#problems", "/", "/status.json", "/metrics",
                          "/page.css", "/page.js", "data:,"})
        ids = [a["id"] for _, a in page.elements if "id" in a]
        self.assertEqual(len(ids), len(set(ids)))
        for _, attributes in page.elements:  # what is named exists
            self.assertTrue({attributes.get("aria-labelledby", ids[0]), attributes.get("href", "#main").lstrip("#") if
                             attributes.get("href", "").startswith("#") else ids[0]} <= set(ids), attributes)
        self.assertEqual(page.all("html"), [{"lang": "en"}])
        self.assertEqual([tag for tag, _ in page.elements if tag in ("h1", "h2")], ["h1"] + 5 * ["h2"])
        for tag in ("main", "header", "nav", "footer"):
            self.assertEqual(len(page.all(tag)), 1, tag)
        self.assertEqual(page.elements[[t for t, _ in page.elements].index("body") + 1], ("a", {"class": "skip", "href": "#main"}))

    def headers(self, where):
        for path, kind in (("/", "text/html; charset=utf-8"), ("/status.json", "application/json"),
                           ("/page.css", "text/css; charset=utf-8"), ("/page.js", "text/javascript; charset=utf-8"),
                           ("/metrics", "text/plain; version=0.0.4; charset=utf-8")):
            status, headers, text = answer_of(where, path)
            self.assertEqual((status, headers["Content-Type"], headers["X-Content-Type-Options"], headers["Cache-Control"]),
                             (200, kind, "nosniff", "no-store"))
            self.assertEqual(len(headers.get_all("Content-Security-Policy")), 1)
            self.assertTrue(headers["Content-Security-Policy"].startswith("default-src 'none'; "), path)
            self.assertNotIn("unsafe", headers["Content-Security-Policy"])
            self.assertNotIn("http:", text.replace("http://www.w3.org", ""))
            self.assertNotIn("https:", text)
            status, headers, text = answer_of(where, path, "HEAD")
            self.assertEqual((status, text), (200, ""))

    def harmless(self, headers):
        """What a browser makes of an answer that is no page."""
        self.assertEqual((headers["X-Content-Type-Options"], headers["Cache-Control"]), ("nosniff", "no-store"))
        self.assertTrue(headers["Content-Security-Policy"].startswith("default-src 'none'; "))

    def refusals(self, where):
        port = where.rsplit(":", 1)[1]
        for host in ("example.org", f"example.org:{port}", "127.0.0.1.example.org", "localhost.example.org", "10.0.0.1", "[::2]", "",
                     "128.0.0.1", "localhost:1:2"):
            for path in ("/", "/status.json", "/metrics", "/nothing"):
                status, headers, text = answer_of(where, path, headers={"Host": host})
                self.assertEqual(status, 403, host)
                self.harmless(headers)
                self.assertEqual(text, f"Host is '{host}'; expected localhost or a loopback address\n")
        for host in ("localhost", f"LOCALHOST:{port}", "127.1.2.3", "[::1]:80", "[::1]"):
            self.assertEqual(answer_of(where, "/page.css", headers={"Host": host})[0], 200, host)
        self.assertEqual(answer_of(where, "/", headers={"Origin": "http://example.org"})[0], 403)
        for path in ("/index.html", "/../etc/passwd"):
            status, headers, _ = answer_of(where, path)
            self.assertEqual(status, 404)
            self.harmless(headers)
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            status, headers, _ = answer_of(where, "/", method)
            self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
            self.harmless(headers)
        # Neither no Host at all nor two of them.
        for hosts in ("", "Host: localhost\r\nHost: example.org\r\n"):
            with socket.create_connection(where.rsplit(":", 1), timeout=DEADLINE_S) as raw:
                raw.sendall(f"GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
                self.assertIn(b" 403 ", raw.recv(64))

    def no_room(self, fleet, trainer, where):
        """Sixty-four connections are taken in; who comes then is answered when one of them ends."""
        address = where.rsplit(":", 1)

        def taken():
            links = (os.path.join(f"/proc/{trainer.pid}/fd", fd) for fd in os.listdir(f"/proc/{trainer.pid}/fd"))
            found = 0
            for link in links:
                with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                    found += os.readlink(link).startswith("socket:")
            return found

        # The connection of the question before may still be closing.
        last = [taken(), time.monotonic()]

        def has_settled():
            if (found := taken()) != last[0]:
                last[:] = [found, time.monotonic()]
            return time.monotonic() - last[1] > 1
        fleet.until(has_settled, "an end of earlier connections")
        before = last[0]
        silent = [socket.create_connection(address, timeout=DEADLINE_S) for _ in range(80)]
        with socket.create_connection(address, timeout=DEADLINE_S) as last:
            last.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            counts = []

            def is_full():
                counts.append(taken())
                return counts[-1] >= before + 64
            fleet.until(is_full, "64 connections")
            for connection in silent[1:]:
                connection.close()
                counts.append(taken())
            self.assertTrue(last.recv(64).startswith(b"HTTP/1.1 200 "))
        self.assertLessEqual(max(counts), before + 64)
        # The beginning of a head has two seconds to go on.
        with socket.create_connection(address, timeout=DEADLINE_S) as slow:
            slow.sendall(b"GET / HT")
            self.assertEqual(slow.recv(64), b"")
        silent[0].close()

    def test_without_spans_the_stages_of_a_round_are_there(self):
        with LoggedFleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            fleet.sidecar("s0", "--set", "trace_spans=0")
            fleet.engine(os.path.join(fleet.run_dir, "s0.engines"), "a", one)
            _, where = fleet.with_pages("trainer", "trainer", "--set", "trace_spans=0")
            self.assertTrue(fleet.push(one)[0])
            rounds = []

            def is_told():  # a page is shown again for a moment
                rounds[:] = json.loads(get(where, "/status.json")[1])["rounds"]
                return rounds
            fleet.until(is_told, "the round")
            (served,) = rounds
            self.assertEqual([p["name"] for p in served["phases"]], ["snapshot", "announce", "stage", "switch"])
            self.assertEqual([(s["name"], [p["name"] for p in s["stages"]]) for s in served["sidecars"]],
                             [("s0", ["announce", "stage", "switch"])])
            self.assertEqual(get(where, "/")[0], 200)

    def test_at_a_socket_file_every_name_is_good(self):
        with LoggedFleet(WSYNC) as fleet:
            fleet.start("trainer")
            pages = os.path.join(fleet.run_dir, "control.http")
            fleet.until(lambda: listens(pages), "the socket")
            status, _, text = answer_of(pages, "/", headers={"Host": "anything"})
            self.assertEqual(status, 200)
            self.assertIn('<script src="/page.js" defer></script>', text)
            status, _, text = answer_of(pages, "/status.json", headers={"Host": "anything"})
            facts = json.loads(text)
            self.assertEqual((status, facts["sidecars"], facts["ready"]), (200, [], False))
            self.assertIn("the coordinator is gathering: 0 sidecars have joined it", facts["not_ready"])


if __name__ == "__main__":
    unittest.main()
