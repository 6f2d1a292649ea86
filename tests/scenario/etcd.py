"""A real etcd cluster of one or three members on this machine, whose members can be stopped, killed and started again."""
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest
import urllib.request

from fleet import DEADLINE_S


def free_ports(count):
    """Ports of this host that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Member:
    def __init__(self, name, url, command, log, tls=None):
        self.name, self.url, self.command, self.log, self.tls, self.process = name, url, command, log, tls, None

    def start(self):
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def halt(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def ask(self, path, body="{}"):
        """The answer of the member's JSON gateway; None if it has none."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data=body.encode()), timeout=2, context=self.tls) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def leads(self):
        status = self.ask("/v3/maintenance/status")
        return bool(status) and status.get("leader") == status["header"]["member_id"]


class Gate:
    """A way to a port of this host. While it is closed, connections stay and nothing passes."""

    def __init__(self, port):
        self.port, self.passes, self.sockets = port, threading.Event(), []
        self.passes.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.setting = f"decision_store=etcd:http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *failure):
        self.passes.set()
        for one in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self):
        self.passes.clear()

    def open(self):
        self.passes.set()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
                self.sockets += [near, far]
                for way in ((near, far), (far, near)):
                    threading.Thread(target=self.pass_on, args=way, daemon=True).start()

    def pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.passes.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class Certificates:
    """An authority in a folder, and what it has signed."""

    def __init__(self, folder):
        if not shutil.which("openssl"):
            raise unittest.SkipTest("the command openssl is not installed")
        self.folder = folder
        os.mkdir(folder)
        self.run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=authority",
                 "-keyout", self.path("ca.key"), "-out", self.path("ca.pem"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    def sign(self, name, names):
        """Makes NAME.pem and NAME.key for these names (subjectAltName)."""
        self.run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.csr"))
        with open(self.path(f"{name}.ext"), "w", encoding="ascii") as file:
            file.write(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self.run("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path("ca.pem"), "-CAkey", self.path("ca.key"),
                 "-CAcreateserial", "-extfile", self.path(f"{name}.ext"), "-out", self.path(f"{name}.pem"))
        os.chmod(self.path(f"{name}.key"), 0o600)

    def context(self, name):
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        context.load_cert_chain(self.path(f"{name}.pem"), self.path(f"{name}.key"))
        return context


class Etcd:
    """`with Etcd(directory, 3) as etcd`: etcd.setting is for --set. With `certificates`, which have signed `member`, members admit only
    clients whose certificate they have signed as well."""

    def __init__(self, directory, members=1, certificates=None):
        if not shutil.which("etcd"):
            raise unittest.SkipTest("etcd is not installed (Debian: etcd-server)")
        ports = free_ports(2 * members)
        scheme = "https" if certificates else "http"
        urls = [f"{scheme if i < members else 'http'}://127.0.0.1:{port}" for i, port in enumerate(ports)]
        tls = ["--cert-file", certificates.path("member.pem"), "--key-file", certificates.path("member.key"), "--client-cert-auth",
               "--trusted-ca-file", certificates.path("ca.pem")] if certificates else []
        context = certificates.context("member") if certificates else None
        client, peer = urls[:members], urls[members:]
        cluster = ",".join(f"m{i}={url}" for i, url in enumerate(peer))
        self.members = [Member(f"m{i}", client[i],
                               ["etcd", "--name", f"m{i}", "--data-dir", os.path.join(directory, f"etcd{i}"),
                                "--listen-client-urls", client[i], "--advertise-client-urls", client[i],
                                "--listen-peer-urls", peer[i], "--initial-advertise-peer-urls", peer[i],
                                "--initial-cluster", cluster, "--unsafe-no-fsync", *tls],
                               os.path.join(directory, f"etcd{i}.out"), context)
                        for i in range(members)]
        self.setting = "decision_store=etcd:" + ",".join(client)

    def __enter__(self):
        for member in self.members:
            member.start()
        self.until(lambda: all(m.ask("/v3/kv/range", '{"key":"Lw=="}') for m in self.members), "a cluster that answers")
        return self

    def __exit__(self, *failure):
        for member in self.members:
            member.process.kill()
            member.process.wait()

    def until(self, holds, what):
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < end, f"{what} did not come"
            time.sleep(0.05)

    def leader(self):
        found = []
        def one():
            found[:] = [m for m in self.members if m.process.poll() is None and m.leads()]
            return len(found) == 1
        self.until(one, "a leader")
        return found[0]
