"""A headless Chromium, driven over a pipe by its DevTools protocol: NUL-terminated JSON, no web socket."""
import collections
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from fleet import DEADLINE_S

NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed():
    """The path of a browser; None: there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. What the page says on its console, what it throws and what its policy stops is kept in `complaints`."""

    def __init__(self, executable):
        self.directory = tempfile.mkdtemp(prefix="wsync-browser-")
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()
        # The browser reads from descriptor 3 and writes to 4; it is given both by a shell, which can name them.
        command = [executable, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
                   f"--user-data-dir={self.directory}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", *command],
                                        pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env=dict(os.environ, HOME=self.directory))
        os.close(to_read)
        os.close(to_write)
        self.numbers, self.received, self.session = itertools.count(1), b"", None
        self.answers, self.events = {}, collections.deque()
        self.complaints, self.requests = [], []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.ask(domain + ".enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.directory, ignore_errors=True)

    def receive(self, end):
        while b"\0" not in self.received:
            if not select.select([self.read_end], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"the browser has said nothing for {DEADLINE_S} s")
            piece = os.read(self.read_end, 1 << 20)
            if not piece:
                raise AssertionError("the browser has ended")
            self.received += piece
        text, _, self.received = self.received.partition(b"\0")
        message = json.loads(text)
        if "id" in message:
            self.answers[message["id"]] = message
            return
        parameters = message["params"]
        if message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] != "verbose":
            self.complaints.append(parameters["entry"])
        elif message["method"] == "Runtime.consoleAPICalled":
            self.complaints.append(parameters)
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message["method"] == "Page.loadEventFired":
            self.events.append("load")

    def ask(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.write_end, text):]
        end = time.monotonic() + DEADLINE_S
        while number not in self.answers:
            self.receive(end)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, address):
        self.events.clear()
        self.ask("Page.navigate", url=address)
        end = time.monotonic() + DEADLINE_S
        while not self.events:
            self.receive(end)

    def value(self, expression):
        """The value of an expression of the page, as JSON has it."""
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, expression, what):
        """Waits inside of the page: it is looked at after each of its changes."""
        self.value(f"""new Promise((done, fail) => {{
            const look = () => {{ if ({expression}) {{ watch.disconnect(); done(true); }} }};
            const watch = new MutationObserver(look);
            watch.observe(document, {{subtree: true, childList: true, characterData: true, attributes: true}});
            setTimeout(() => fail(new Error({json.dumps(what)} + " did not come: " + document.body.innerText)), {DEADLINE_S * 1000 - 5000});
            look();
        }})""")

    def press(self, key, code, text="", modifiers=0):
        number = {"Tab": 9, "Enter": 13, " ": 32}[key]
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **event)
