"""The web page of a coordinator in a real browser: it follows the fleet without being loaded anew, keyboards reach all of it,
what comes from the network stays text, and its policy has nothing to stop. Fleets that are made up show what a small one does
not: thousands of replicas, an update that runs, names and sentences of any kind."""
import http.server
import json
import os
import sys
import threading
import unittest

from browser import NAMES, Browser, installed
from pages import LoggedFleet

WSYNC = sys.argv.pop()
HOSTILE = """<script>document.title='taken'</script>"><img src=x onerror="document.title='taken'">"""
BROWSER = installed()
# What Tab stops at, in the order of the document.
STOPS = "a[href], button:not([hidden]), [tabindex='0'], summary"
NAMED = "(e => e ? (e.id || e.getAttribute('href') || e.getAttribute('aria-label') || e.textContent) : 'nothing')"


class BrowserPage(unittest.TestCase):
    def setUp(self):
        self.fleet = LoggedFleet(WSYNC)
        self.addCleanup(self.fleet.__exit__, None, None, None)
        self.browser = Browser(BROWSER)
        self.addCleanup(self.browser.close)

    def rows(self):
        return self.browser.value("[...document.querySelectorAll('#replicas tbody tr')].map(r => [...r.cells].map(c => c.textContent))")

    def test_it_follows_a_fleet_and_needs_no_mouse(self):
        fleet, browser = self.fleet, self.browser
        one, two = fleet.checkpoint("one", 1), fleet.checkpoint("two", 2)
        fleet.sidecar("s0")
        engines = os.path.join(fleet.run_dir, "s0.engines")
        fleet.engine(engines, HOSTILE, one)
        trainer, where = fleet.with_pages("trainer", "trainer")
        self.assertTrue(fleet.push(one)[0])
        address = f"http://{where}/"
        browser.open(address)
        browser.until("document.getElementById('fresh').textContent === 'follows the coordinator'", "the facts")
        self.assertEqual([row[:5] for row in self.rows()], [[HOSTILE, "s0", "1.1", "serving", "yes"]])
        self.assertEqual(browser.value("document.getElementById('verdict').textContent.trim()"), "Ready. Requests may be routed to 1 of 1 replicas.")
        self.keyboard()
        self.no_reload(engines, one, two)
        self.assertEqual(browser.value("document.title"), "wsync ready: 2 of 2 replicas ready, target 1.2")
        self.assertEqual(browser.value("document.querySelectorAll('img, main script, [onerror], [style]').length"), 0)
        self.landmarks()
        self.narrow()
        # All that was loaded is of this coordinator.
        self.assertEqual({url for url in browser.requests if not url.startswith("data:")} - {address, address + "page.css", address + "page.js", address + "status.json"}, set())
        self.assertEqual(browser.complaints, [])
        # Silence is said, and the end of it.
        trainer.kill()
        trainer.wait()
        browser.until("document.getElementById('fresh').textContent.startsWith('NO ANSWER: the page shows the state at ')", "silence")
        fleet.start("trainer", "--set", f"http.address=tcp://{where}")
        browser.until("document.getElementById('fresh').textContent === 'follows the coordinator'", "the end of silence")

    def no_reload(self, engines, one, two):
        """A second update and a second replica come while the reader has something open, scrolled and in focus."""
        browser = self.browser
        browser.value("""(() => { window.same = true; document.querySelector('details').open = true;
            document.getElementById('replicas-table').focus(); window.scrollTo(0, 150); window.row = document.querySelector('#replicas tbody tr'); })()""")
        scrolled = browser.value("window.scrollY")
        self.fleet.engine(engines, "second", one)
        browser.until("document.querySelectorAll('#replicas tbody tr').length === 2", "a second replica")
        self.assertTrue(self.fleet.push(two)[0])
        browser.until("[...document.querySelectorAll('#replicas tbody tr')].every(r => r.cells[2].textContent === '1.2' && r.cells[4].textContent === 'yes')",
                      "the version of the second push")
        browser.until("document.querySelectorAll('#rounds svg').length === 2", "its picture")
        self.assertEqual(browser.value("[window.same, document.activeElement.id, window.row.isConnected, window.scrollY]"),
                         [True, "replicas-table", True, scrolled])
        # The details that were opened are those of the first update, which is the second now.
        self.assertEqual(browser.value("[...document.querySelectorAll('details')].map(d => [d.open, d.querySelector('summary').textContent])"),
                         [[False, "Update 1.2 in figures"], [True, "Update 1.1 in figures"]])
        self.assertEqual(browser.value("[...new Set([...document.querySelectorAll('#rounds article:first-of-type rect')].map(r => r.getAttribute('class')))]"),
                         ["snapshot", "announce", "stage", "switch"])

    def keyboard(self):
        browser = self.browser
        browser.value("document.body.focus()")
        wanted = browser.value(f"[...document.querySelectorAll({json.dumps(STOPS)})].filter(e => e.checkVisibility()).map({NAMED})")
        self.assertEqual(wanted[:2], ["#main", "#update"])
        self.assertIn("hold", wanted)
        reached = []
        for _ in wanted:
            browser.press("Tab", "Tab")
            reached.append(browser.value(f"{NAMED}(document.activeElement)"))
            # Whoever is in focus is seen to be.
            self.assertEqual(browser.value("getComputedStyle(document.activeElement).outlineStyle"), "solid", reached)
        self.assertEqual(reached, wanted)
        # The skip link brings the reader to the content, past the header.
        browser.value("document.querySelector('.skip').focus()")
        browser.press("Enter", "Enter", "\r")
        browser.until("document.activeElement.id === 'main'", "the content")
        # The button stops the page's changes, and lets them go on.
        browser.value("document.getElementById('hold').focus()")
        browser.press(" ", "Space", " ")
        browser.until("document.getElementById('hold').getAttribute('aria-pressed') === 'true'", "a pressed button")
        self.assertRegex(browser.value("document.getElementById('fresh').textContent"), "^not refreshed since ")
        browser.press(" ", "Space", " ")
        browser.until("document.getElementById('hold').getAttribute('aria-pressed') === 'false'", "a released button")

    def landmarks(self):
        """What a screen reader is given."""
        nodes = [n for n in self.browser.ask("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
        roles = [n["role"]["value"] for n in nodes]
        for role in ("banner", "navigation", "main", "contentinfo", "table", "columnheader", "rowheader"):
            self.assertIn(role, roles)
        self.assertEqual(roles.count("heading"), 1 + 5 + 2)
        # Each heading of a table says what it is the heading of, each id is there once, and each name of a part exists.
        self.assertEqual(self.browser.value("""(() => {
            const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
            const all = (selector) => [...document.querySelectorAll(selector)];
            return [all('th').filter(e => !['col', 'row'].includes(e.scope)).length, ids.length - new Set(ids).size,
                    all('[aria-labelledby]').filter(e => !ids.includes(e.getAttribute('aria-labelledby'))).length]; })()"""), [0, 0, 0])
        named = {(n["role"]["value"], n["name"]["value"]) for n in nodes if n.get("name")}
        for role in ("region", "button", "link", "image"):
            self.assertFalse([name for r, name in named if r == role and not name], role)
        self.assertIn(("region", "Replicas"), named)
        live = [n for n in nodes if n["role"]["value"] == "status"]
        self.assertEqual(len(live), 2)

    def narrow(self):
        """Nothing but tables and pictures is wider than a small window, light or dark."""
        browser = self.browser
        for scheme in ("light", "dark"):
            browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            for width in (320, 420, 1280):
                browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
                self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), width, scheme)
                # Text of each kind against what it stands on, as WCAG's AA wants it.
                self.assertGreaterEqual(browser.value(CONTRAST), 4.5, scheme)
        self.assertEqual(browser.value("getComputedStyle(document.body).colorScheme"), "light dark")

    def test_without_a_script_it_says_where_the_facts_are(self):
        fleet, browser = self.fleet, self.browser
        _, where = fleet.with_pages("trainer", "trainer")
        browser.ask("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(f"http://{where}/")
        # Asked of the tree, for no script runs.
        text = " ".join(n["name"]["value"] for n in browser.ask("Accessibility.getFullAXTree")["nodes"] if n.get("name") and not n["ignored"])
        for shown in ("scripts are disabled in this browser", "status.json", "Reload", "no answer yet"):
            self.assertIn(shown, text)
        self.assertNotIn("Stop refreshing", text)
        self.assertEqual(browser.complaints, [])


PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../trainer_side/coordinator/page")
MS = 1_000_000


class MadeUpCoordinator:
    """Serves the three files of the page from the source tree, and facts that a test has made up."""

    def __init__(self):
        self.status, self.facts = 200, facts_of()
        coordinator = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                files = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript")}
                if self.path == "/status.json":
                    kind, content = "application/json", json.dumps(coordinator.facts).encode()
                else:
                    name, kind = files[self.path]
                    with open(os.path.join(PAGE, name), "rb") as file:
                        content = file.read()
                self.send_response(coordinator.status if self.path == "/status.json" else 200)
                self.send_header("Content-Type", kind + "; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def replica(name, **other):
    return {"replica": name, "world_size": 1, "ranks_attached": 1, "state": "serving", "ready": True, "version": "0.4", "reason": "",
            "loaded_bytes": 0, "paused_ns": 0, **other}


def sidecar(name, *replicas, **other):
    return {"name": name, "host": "h", "pid": 1, "connected": True, "transport": "memfd", "target": "0.4", "staged": [],
            "staged_bytes": 0, "replicas": list(replicas), **other}


def facts_of(*sidecars, **other):
    return {"role": "coordinator", "fleet_id": "", "fence_epoch": 1, "decision": 2, "target": "0.4", "can_roll_back": False,
            "rollback_target": "0.0", "withdrawn": [], "activity": "idle", "sidecars": list(sidecars), "update": None,
            "last_update": None, "updates": {"committed": 1, "failed": 0, "cancelled": 0}, "incidents": [], "data_security": "", "ready": True,
            "not_ready": "", "rounds": [], **other}


def running(**other):
    return {"version": "0.5", "rollback": False, "phase": "stage", "done_bytes": 1_000_000_000, "total_bytes": 4_000_000_000,
            "elapsed_ns": 70_400 * MS, "phase_ns": 0, "bytes_per_s": 2_000_000_000, "remaining_ns": 1500 * MS, "waiting": 0, **other}


def stage(name, begin_ns, end_ns):
    return {"name": name, "begin_ns": begin_ns, "end_ns": end_ns}


def a_round(**other):
    return {"version": "0.4", "rollback": False, "result": "served", "reason": "", "began_ago_ns": 10_000 * MS, "duration_ns": 100 * MS,
            "phases": [], "sidecars": [], "sidecars_left_out": 0, "replicas": [], "replicas_left_out": 0, **other}


class MadeUpFleets(unittest.TestCase):
    def setUp(self):
        self.browser = Browser(BROWSER)
        self.addCleanup(self.browser.close)
        self.coordinator = MadeUpCoordinator()
        self.addCleanup(self.coordinator.close)

    def show(self, facts, status=200):
        self.coordinator.status, self.coordinator.facts = status, facts
        self.browser.open(self.coordinator.address)
        self.browser.until("document.getElementById('verdict').textContent !== ''", "an answer")

    def text(self, selector):
        return self.browser.value(f"document.querySelector({json.dumps(selector)})?.textContent")

    def texts(self, selector):
        return self.browser.value(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")

    def count(self, selector):
        return self.browser.value(f"document.querySelectorAll({json.dumps(selector)}).length")

    def test_an_update_that_runs_has_its_phase_share_and_time_left(self):
        self.show(facts_of(sidecar("s0", replica("a"))))
        self.assertEqual((self.text("#running"), self.count("progress")), ("No update is running.", 0))
        self.show(facts_of(update=running()))
        self.assertEqual(self.text("#running"), "update 0.5: staging, 25 % (954 MiB of 3.73 GiB), 2.00 GB/s, 1 min 10 s so far, about 1.5 s left")
        self.assertEqual(self.browser.value("document.querySelector('progress').value"), 25)
        self.assertEqual(self.texts(".phases li"), ["snapshot done", "announce done", "stage now", "switch to come"])
        self.assertEqual(self.texts("[aria-current='step']"), ["stage now"])
        self.show(facts_of(update=running(rollback=True, total_bytes=0, remaining_ns=None, bytes_per_s=0, waiting=2)))
        self.assertEqual(self.text("#running"), "rollback to 0.5: staging, 1 min 10 s so far; 2 waiting behind it")
        self.assertEqual(self.count("progress") + self.count(".phases"), 0)

    def test_the_last_update_and_its_problems_are_told(self):
        last = {"version": "0.4", "ok": True, "cancelled": False, "reason": "", "bytes": 1 << 20, "snapshot_ns": MS, "staged_ns": 2 * MS,
                "switch_ns": 3 * MS, "paused_ns": 4 * MS, "ended_ago_ns": 7_300_000 * MS}
        self.show(facts_of(last_update=last, activity="gathering", incidents=[{"ago_ns": 130_000 * MS, "text": "one"}]))
        self.assertEqual(self.text("#last"), "last update 0.4: served 2 h ago, longest pause 4.0 ms, switched in 3.0 ms, "
                         "staged in 2.0 ms, snapshot 1.0 ms, 1.00 MiB")
        self.assertIn("waits for sidecars", self.texts("#state dd"))
        self.assertEqual(self.texts("#problems li"), ["2 min ago: one"])
        self.show(facts_of(last_update=dict(last, version="0.0", ok=False, cancelled=True, reason="by hand")))
        self.assertEqual(self.text("#last"), "last update: cancelled 2 h ago: by hand")
        self.assertEqual(self.text("#problems p"), "None since this coordinator started.")

    def test_what_came_as_changes_is_told(self):
        def copy(base, travelled):
            return {"version": "0.4", "base": base, "bytes": 1 << 30, "travelled_bytes": travelled}

        def loaded(kind):
            return {"kind": kind, "written_bytes": 1, "bytes": 2, "written_share": 0.5}
        changed = sidecar("s0", replica("a", last_load=loaded("patch")), replica("b", last_load=loaded("full")), last_copy=copy("0.3", 3 << 20))
        complete = sidecar("s1", replica("c", last_load=loaded("full")), last_copy=copy("0.0", 1 << 30))
        self.show(facts_of(changed, complete))
        self.assertEqual(self.text("#changes"), "0.4 came as changes to 1 of 2 sidecars (3.00 MiB of 1.00 GiB), and was loaded by a patch in 1 of 3 replicas")
        self.show(facts_of(sidecar("s0", replica("a", last_load=loaded("patch")), last_copy=None)))
        self.assertEqual(self.text("#changes"), "0.4 was loaded by a patch in 1 of 1 replica")
        self.show(facts_of(complete))
        self.assertEqual(self.count("#changes"), 0)

    def test_whatever_comes_from_the_network_is_text(self):
        hostile = HOSTILE + "\x01"
        committed = {"replica": hostile, "outcome": hostile, "version": hostile, "reason": hostile, "wait_ns": 0, "paused_ns": 0, "load_ns": 0, "bytes": 0}
        odd = a_round(version=hostile, result=hostile, reason=hostile, phases=[stage(hostile, 0, MS)], replicas=[committed],
                      sidecars=[{"name": hostile, "stages": [stage(hostile, 0, MS)]}])
        last = {"version": hostile, "ok": False, "cancelled": False, "reason": hostile, "bytes": 0, "snapshot_ns": 0, "staged_ns": 0,
                "switch_ns": 0, "paused_ns": 0, "ended_ago_ns": 0}
        self.show(facts_of(
            sidecar(hostile, replica(hostile, reason=hostile, state=hostile)), sidecar(hostile, connected=False),
            activity=hostile, incidents=[{"ago_ns": 1, "text": hostile}], last_update=last, rounds=[odd], ready=False, not_ready=hostile,
            update=running(version=hostile, phase=hostile)))
        self.assertEqual(self.count("img, main script, [onerror], [onload], [style], main a"), 0)
        shown = self.browser.value("document.getElementById('main').textContent")
        # Verdict, activity, the update and its phase, last update and its version, three of replicas, two sidecars, the problem, the
        # round's version, result, reason, stages, lanes and replica.
        self.assertGreaterEqual(shown.count(HOSTILE), 20)
        self.assertTrue(self.browser.value("document.title").startswith("wsync NOT READY: 1 of 1 replicas ready"))
        self.show({"error": hostile}, status=503)
        self.assertEqual(self.text("#verdict"), "No answer. " + hostile)
        self.assertEqual(self.count("img, main script, [onerror]"), 0)

    def test_long_sentences_are_cut_between_characters(self):
        for before in (598, 599, 600):
            self.show(facts_of(ready=False, not_ready="x" * before + "\U0001f600" * 400))
            self.assertEqual(self.text("#verdict"), "Not ready. " + "x" * before + "\U0001f600" * (600 - before) + "\u2026")

    def test_of_a_great_fleet_the_first_rows_and_before_them_those_in_trouble(self):
        replicas = [replica(f"r{i}") for i in range(4000)]
        replicas[3990] = replica("broken", state="tainted", ready=False, version="0.1", loaded_bytes=3 << 20)
        self.show(facts_of(sidecar("s0", *replicas)))
        self.assertEqual((self.count("tr.unwell"), self.count("tr.well")), (1, 199))
        self.assertEqual(self.texts("#replicas tbody tr:first-child td"),
                         ["s0", "0.1", "tainted", "NO", "3 steps", "-", "3.00 MiB loaded", ""])
        self.assertEqual(self.text("#replicas tbody th"), "broken")
        self.assertEqual(self.texts("#replicas tbody tr:last-child th"), ["r198"])
        self.assertEqual(self.text("#replicas caption"), "200 of 4000 rows, those with a problem first; 3800 more are left out")
        self.assertIn("3999 of 4000", self.texts("#state dd"))

    def test_rows_of_sidecars_alone(self):
        self.show(facts_of())
        self.assertEqual(self.text("#replicas p"), "No sidecar has connected.")
        self.show(facts_of(sidecar("s0"), sidecar("s1", connected=False), sidecar("s2", replica("a", version="0.0"), connected=False)))
        self.assertEqual(self.texts("#replicas tbody td:last-child"),
                         ["no engine is attached to this sidecar", "this sidecar is not connected", "its sidecar is not connected"])
        self.assertIn("no version", self.texts("#replicas tbody td"))

    def test_each_stage_stands_in_its_place_whatever_the_times(self):
        lanes = [{"name": "n" * 40, "stages": [stage("switch", -5 * MS, -5 * MS)]}]
        phases = [stage("snapshot", 0, 50 * MS), stage("switch", 50 * MS, 100 * MS)]
        self.show(facts_of(rounds=[a_round(phases=phases, sidecars=lanes)]))
        places = self.browser.value("[...document.querySelectorAll('svg rect')].map(r => [r.getAttribute('class'), r.getAttribute('x')])")
        self.assertEqual(places, [["snapshot", "150.0"], ["switch", "489.0"], ["switch", "150.0"]])
        self.assertIn("snapshot 50.0 ms", self.texts("svg .bar"))
        self.assertIn("n" * 18 + "\u2026" + "n" * 40, self.texts("svg .lane"))
        for duration in (0, 1, 10**18):
            self.show(facts_of(rounds=[a_round(duration_ns=duration, phases=phases, sidecars=lanes)]))
            drawn = self.browser.value("document.querySelector('#rounds svg').outerHTML")
            for wrong in ("NaN", "Infinity", 'width="-'):
                self.assertNotIn(wrong, drawn)
            self.assertLess(self.count("svg .tick"), 12)


# The least ratio of all elements with text of their own.
CONTRAST = """(() => {
  const parts = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = parts(c).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                         return .2126 * r + .7152 * g + .0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return getComputedStyle(e).backgroundColor; } };
  const own = (e) => [...e.childNodes].some(n => n.nodeType === 3 && n.nodeValue.trim());
  return Math.min(...[...document.body.querySelectorAll('*')].filter(e => own(e) && !e.closest('svg title')).map(e => {
    const bar = e.matches('svg .bar') && getComputedStyle(e.previousElementSibling).fill;
    const [a, b] = [light(e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color), light(bar || behind(e))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  }));
})()"""

if __name__ == "__main__":
    if BROWSER is None:
        print(f"skip: no browser is installed ({', '.join(NAMES)}; Debian package 'chromium'); the web page was not looked at in one")
        sys.exit(77)
    unittest.main()
