"""Several hosts on this machine, for tests: each is a network namespace, and a cable (a veth pair) connects it with a switch (a bridge).

A process of a host sees the host's network, its boot id and its file of names, and has the host's own run_dir and state_dir. The
file system is that of this machine, so files that a user would carry from host to host are simply there.

    with Hosts(WSYNC) as hosts:
        trainer = hosts.on("trainer0", "trainer", "--set", ...)      # a process that stays
        code, answer = hosts.ask_on("engines0", "status", ...)       # a command, and what its --json prints
        hosts.cut("engines0")                                        # the cable of this host is pulled
"""
import json
import os
import pathlib
import subprocess
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "scenario"))
from fleet import DEADLINE_S, Fleet  # noqa: E402
from schema import validate  # noqa: E402

# Name of a host: its addresses. They exist in its namespace only.
ADDRESSES = {"trainer0": ("10.0.0.1", "fd00::1"), "engines0": ("10.0.0.2", "fd00::2"), "trainer1": ("10.0.0.3", "fd00::3")}
# What a process of a host runs under: its own boot id, names, and name.
ENTER = ('mount --bind "$0" /proc/sys/kernel/random/boot_id && mount --bind "$1" /etc/hosts && hostname "$2" && '
         'shift 2 && exec "$@"')
IN_SPACE = ("unshare", "--uts", "sh", "-c", ENTER)
# Writes every packet of the host's cable to a file, until it is killed.
SNIFF = """
import socket, sys
cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
cable.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
cable.bind(("cable", 0))
print("ready", flush=True)
with open(sys.argv[1], "wb") as file:
    while True:
        file.write(cable.recv(1 << 17))
        file.flush()
"""


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_no_hosts():
    """A sentence if this process cannot make hosts; otherwise nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"wsync-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "cable", "type", "veth", "peer", "name", "other")
            subprocess.run(["ip", "netns", "exec", name, *IN_SPACE, "/proc/sys/kernel/random/boot_id", "/etc/hosts", "host", "true"],
                           check=True, capture_output=True, text=True)
        finally:
            ip("netns", "del", name)
    except FileNotFoundError:
        return "the command `ip` (iproute2) or `unshare` (util-linux) is missing"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return ""


class Hosts(Fleet):
    """A fleet over several hosts. The commands of Fleet (ask, replicas, until_ready) run on the host `self.at`, with `self.key` if there is one."""

    def __init__(self, wsync, addresses=None):
        super().__init__(wsync)
        self.addresses = addresses or ADDRESSES
        self.key = None
        self.at = "trainer0"
        self.address = "tcp://trainer0:7000"
        self.spaces = {}
        self.names = self.path("names")
        self.name_hosts()
        try:
            switch = self.add_space("switch")
            ip("-n", switch, "link", "add", "switch", "type", "bridge")
            ip("-n", switch, "link", "set", "switch", "up")
            for host, (v4, v6) in self.addresses.items():
                space = self.make(host)
                ip("-n", space, "link", "add", "cable", "type", "veth", "peer", "name", host, "netns", switch)
                ip("-n", switch, "link", "set", host, "master", "switch", "up")
                ip("-n", space, "address", "add", f"{v4}/24", "dev", "cable")
                ip("-n", space, "address", "add", f"{v6}/64", "dev", "cable", "nodad")
                for device in ("lo", "cable"):
                    ip("-n", space, "link", "set", device, "up")
        except BaseException:
            self.remove()
            raise

    def name_hosts(self, **others):
        """Each host has its name, and those of `others` lead to the hosts that they name, from now on."""
        with open(self.names, "w", encoding="ascii") as file:  # the same file, which all hosts have
            file.write("127.0.0.1 localhost\n")
            for name, host in [*((host, host) for host in self.addresses), *others.items()]:
                file.write(f"{self.addresses[host][0]} {name}\n")

    def add_space(self, name):
        space = f"{os.path.basename(self.directory)}-{name}"
        ip("netns", "add", space)
        self.spaces[name] = space
        return space

    def make(self, host):
        space = self.add_space(host)
        with open(self.path(f"{host}.boot"), "w", encoding="ascii") as file:
            file.write(f"{uuid.uuid4()}\n")
        os.makedirs(self.path(host), mode=0o700)
        return space

    def remove(self):
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def __exit__(self, *failure):
        for process in self.processes if failure[0] else ():
            if hasattr(process, "log_path"):
                last = self.text_of(process).splitlines()[-20:]
                print("\n  ".join([" ".join(process.args[:2]), *last]), file=sys.stderr)
        try:
            super().__exit__(*failure)
        finally:
            self.remove()

    # ---- processes ----

    def entered(self, host, *command):
        return ["ip", "netns", "exec", self.spaces[host], *IN_SPACE, self.path(f"{host}.boot"), self.names, host, *command]

    def environment_of(self, host):
        home = self.path(host)
        path = os.path.dirname(self.wsync) + os.pathsep + self.environment["PATH"]
        return dict(self.environment, PATH=path, WSYNC_RUN_DIR=os.path.join(home, "run"), WSYNC_STATE_DIR=os.path.join(home, "state"))

    def on(self, host, *arguments):
        """Starts a process of wsync on a host."""
        with self.log() as log:
            process = subprocess.Popen(self.entered(host, self.wsync, *arguments), env=self.environment_of(host), text=True,
                                       stdout=subprocess.PIPE, stderr=log)
        process.log_path = log.name
        process.args = [self.wsync, *arguments]
        self.processes.append(process)
        return process

    def process_on(self, host, *command):
        """Starts any process on a host."""
        with self.log() as log:
            process = subprocess.Popen(self.entered(host, *command), env=self.environment_of(host), text=True, stdout=subprocess.PIPE,
                                       stderr=log)
        process.log_path = log.name
        self.processes.append(process)
        return process

    def ask_on(self, host, *arguments):
        """Runs a command on a host; its exit code and what --json prints."""
        done = subprocess.run(self.entered(host, self.wsync, *arguments, "--json"), env=self.environment_of(host), text=True,
                              capture_output=True, timeout=DEADLINE_S)
        return done.returncode, validate([self.wsync, *arguments, "--json"], done.stdout)

    def run_on(self, host, *command):
        """Runs any command on a host; its exit code."""
        return subprocess.run(self.entered(host, *command), env=self.environment_of(host), timeout=2 * DEADLINE_S).returncode

    def ask(self, *arguments, address=None):
        key = ["--key", self.key] if self.key else []
        return self.ask_on(self.at, *arguments, "--coordinator", address or self.address, *key)

    def text_of(self, process):
        with open(process.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def says(self, process, text):
        self.until(lambda: text in self.text_of(process), f"'{text}' of a process")

    # ---- the cables ----

    def cut(self, host="engines0"):
        ip("-n", self.spaces[host], "link", "set", "cable", "down")

    def join(self, host="engines0"):
        ip("-n", self.spaces[host], "link", "set", "cable", "up")

    def sent(self, host):
        """How many bytes a host has sent over its cable."""
        shown = json.loads(ip("-n", self.spaces[host], "-s", "-j", "link", "show", "cable").stdout)
        return shown[0]["stats64"]["tx"]["bytes"]

    def limit(self, megabits, host="trainer0"):
        """What the host sends passes at this rate from now on."""
        subprocess.run(["tc", "-n", self.spaces[host], "qdisc", "replace", "dev", "cable", "root", "tbf", "rate",
                        f"{megabits}mbit", "burst", "256kb", "latency", "50ms"], check=True, capture_output=True)

    def sniff(self):
        """Begins to write down all that passes over the cable of engines0; returns the file."""
        packets = self.path(f"packets.{len(self.processes)}")
        with self.log() as log:
            sniffer = subprocess.Popen(self.entered("engines0", sys.executable, "-c", SNIFF, packets), text=True,
                                       stdout=subprocess.PIPE, stderr=log)
        self.processes.append(sniffer)
        assert sniffer.stdout.readline() == "ready\n", "the cable cannot be listened to"
        return packets
