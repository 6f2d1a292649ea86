"""The web page of a coordinator in a real browser: it follows the fleet without being loaded anew, keyboards reach all of it,
what comes from the network stays text, and its policy has nothing to stop."""
import json
import os
import sys
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
        self.addCleanup(self.fleet.__exit__)
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
        self.assertEqual([row[:5] for row in self.rows()], [[HOSTILE, "s0", "1.1", "serving", "yes"]])
        self.assertEqual(browser.value("document.getElementById('verdict').textContent.trim()"), "Ready. 1 of 1 replicas may be routed to.")
        self.keyboard()
        self.no_reload(engines, one, two)
        self.assertEqual(browser.value("document.title"), "wsync ready: 2 of 2 replicas ready, target 1.2")
        self.assertEqual(browser.value("document.querySelectorAll('img, main script, [onerror], [style]').length"), 0)
        self.landmarks()
        self.narrow()
        # All that was loaded is of this coordinator.
        self.assertEqual({url for url in browser.requests if not url.startswith("data:")} - {address, address + "page.css", address + "page.js"}, set())
        self.assertEqual(browser.complaints, [])
        # Silence is said, and the end of it.
        trainer.kill()
        trainer.wait()
        browser.until("document.getElementById('fresh').textContent.startsWith('NO ANSWER: what is shown is of ')", "silence")
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
        self.assertRegex(browser.value("document.getElementById('fresh').textContent"), "^held still, as of ")
        browser.press(" ", "Space", " ")
        browser.until("document.getElementById('hold').getAttribute('aria-pressed') === 'false'", "a released button")

    def landmarks(self):
        """What a screen reader is given."""
        nodes = [n for n in self.browser.ask("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
        roles = [n["role"]["value"] for n in nodes]
        for role in ("banner", "navigation", "main", "contentinfo", "table", "columnheader", "rowheader"):
            self.assertIn(role, roles)
        self.assertEqual(roles.count("heading"), 1 + 5 + 2)
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

    def test_without_a_script_it_is_whole_as_of_its_loading(self):
        fleet, browser = self.fleet, self.browser
        _, where = fleet.with_pages("trainer", "trainer")
        browser.ask("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(f"http://{where}/")
        # Asked of the tree, for no script runs.
        text = " ".join(n["name"]["value"] for n in browser.ask("Accessibility.getFullAXTree")["nodes"] if n.get("name") and not n["ignored"])
        for shown in ("Not ready.", "No sidecar has connected.", "Load anew", "as of the moment it was loaded"):
            self.assertIn(shown, text)
        self.assertNotIn("Hold still", text)
        self.assertEqual(browser.complaints, [])


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
