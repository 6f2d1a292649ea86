"""Real processes: a trainer writes its versions to a folder, and another host, which reaches that folder alone, serves them."""
import ctypes
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

from fleet import Fleet
from pages import get

WSYNC = sys.argv.pop()


def latest_of(folder):
    """What the folder's `latest` names; None before the first."""
    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def set_latest(folder, name):
    with open(os.path.join(folder, "latest.new"), "w", encoding="utf-8") as file:
        file.write(name)
    os.replace(os.path.join(folder, "latest.new"), os.path.join(folder, "latest"))


def directories(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("weight_v"))


def stated(directory):
    """The metadata of the first file of a directory."""
    with open(os.path.join(directory, sorted(n for n in os.listdir(directory) if n.endswith(".safetensors"))[0]), "rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]


class Opened:
    """Counts how often any process opens a file (inotify)."""

    IN_OPEN = 0x20

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        # The directory, because `latest` is replaced.
        directory, self.name = os.path.split(path)
        assert self.fd >= 0 and libc.inotify_add_watch(self.fd, directory.encode(), self.IN_OPEN) >= 0, ctypes.get_errno()
        self.opened = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def count(self):
        try:
            events = os.read(self.fd, 65536)
        except BlockingIOError:
            return self.opened
        while events:
            length = int.from_bytes(events[12:16], sys.byteorder)
            self.opened += events[16:16 + length].rstrip(b"\0") == self.name.encode()
            events = events[16 + length:]
        return self.opened


class TrainerHost(Fleet):
    """A trainer that writes to a folder, with a sidecar and an engine of its own."""

    def __init__(self, *settings):
        super().__init__(WSYNC)
        self.folder = self.path("published")
        self.settings = settings

    def begin(self):
        self.one, self.two = self.checkpoint("one", 1), self.checkpoint("two", 2)
        _, engines = self.sidecar("s0")
        self.engine(engines, "a", self.one)
        return self.start_trainer()

    def start_trainer(self):
        self.trainer = self.start("trainer", "--publish-directory", self.folder, "--set", "directory.model_files=" + self.one,
                                  *self.settings)
        return self.trainer

    def push(self, path):
        code, answer = self.ask("push", path)
        assert code == 0, answer
        return answer["result"]

    def written(self, pushed):
        """Waits until `latest` names the directory of a version."""
        def there():
            name = latest_of(self.folder)
            return name and stated(os.path.join(self.folder, name))["wsync.version"] == pushed["version"]
        self.until(there, f"{pushed['version']} in {self.folder}")
        name = latest_of(self.folder)
        assert stated(os.path.join(self.folder, name))["wsync.digest"] == pushed["content_digest"], name
        return name


class OtherHost(Fleet):
    """A sidecar that follows a folder, with an engine."""

    def __init__(self, folder):
        super().__init__(WSYNC)
        self.folder = folder
        self.environment["WSYNC_FOLLOW_INTERVAL"] = "20ms"

    def begin(self, checkpoint):
        engines = self.start_sidecar()
        self.one_engine = self.engine(engines, "b", checkpoint)

    def start_sidecar(self):
        self.follower, engines = self.sidecar("s1", "--follow-directory", self.folder)
        return engines

    def said(self):
        with open(self.follower.log_path, encoding="utf-8") as file:
            return file.read()

    def recorded(self, version):
        """Whether the follower has stored that it has published this version: one that ends before publishes it again."""
        for path in glob.glob(os.path.join(self.environment["WSYNC_STATE_DIR"], "**", "followed.directory"), recursive=True):
            with open(path, encoding="utf-8") as file:
                if file.readline().strip() == version:
                    return True
        return False

    def served(self, name):
        """Waits until this host serves that directory; the version that it has here."""
        found = []

        def serves():
            found[:] = re.findall(rf"(\d+\.\d+) is {re.escape(os.path.join(self.folder, name))}\b", self.said())
            replicas = self.replicas()
            return found and replicas.get("b", {}).get("version") == found[-1] and replicas["b"]["ready"]
        self.until(serves, f"{name} on the other host")
        return found[-1]

    def incidents(self):
        code, answer = self.ask("status")
        return [incident["text"] for incident in answer["result"]["incidents"]] if code == 0 else []


class Directory(unittest.TestCase):
    def equals(self, host, version):
        """Each byte of the engine is that of the version."""
        self.equals_all(host, version, "b")

    def equals_all(self, host, version, *replicas):
        host.until_ready(version, *replicas)
        code, answer = host.ask("verify")
        self.assertEqual(code, 0, answer)
        self.assertEqual([(r["replica"], r["version"]) for r in answer["result"]["ranks"]], [(r, version) for r in replicas])

    def test_another_host_serves_what_a_trainer_writes(self):
        with TrainerHost() as first, OtherHost(first.folder) as other:
            first.begin()
            other.begin(first.one)
            one = first.push(first.one)
            name = first.written(one)
            self.assertEqual(sorted(os.listdir(os.path.join(first.folder, name))), ["config.json", "model.safetensors"])
            version = other.served(name)
            self.equals(other, version)
            two = first.push(first.two)
            newer = first.written(two)
            self.assertEqual(directories(first.folder), [name, newer])
            self.equals(other, other.served(newer))

            # The trainer goes back, and so does the other host, by a version of its own.
            code, answer = first.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, one["version"]), answer)
            self.assertEqual(first.written(one), name)
            back = other.served(name)
            self.assertNotEqual(back, version)
            self.equals(other, back)

            # A follower that is killed loses what its sidecar held for engines that come, and publishes it again.
            other.follower.kill()
            other.follower.wait()
            other.start_sidecar()
            again = other.served(name)
            self.assertNotEqual(again, back)
            self.assertIn(f"no sidecar holds the bytes of {back} any more, which was read from {first.folder}/{name}", other.said())
            self.equals(other, again)
            # It is not the only one that goes on.
            third = first.push(first.two)
            self.equals(other, other.served(first.written(third)))
            code, said = other.stop(other.one_engine)
            self.assertEqual(code, 0, said)
            self.assertIn('"torn":0', said)
            self.assertEqual(other.stop(other.follower)[0], 0)
            self.assertEqual(first.stop(first.trainer)[0], 0)

    def test_an_engine_and_its_follower_restart(self):
        with Fleet(WSYNC) as maker:
            folder = maker.path("published")
            os.mkdir(folder)
            one = maker.checkpoint("published/weight_v000001", 1)
            with OtherHost(folder) as other:
                other.begin(one)
                version = other.served("weight_v000001")
                other.follower.kill()
                other.one_engine.kill()
                other.follower.wait()
                other.one_engine.wait()
                other.begin(one)
                again = other.served("weight_v000001")
                self.assertNotEqual(again, version)
                self.equals(other, again)

    def test_a_follower_beside_its_sidecar_publishes_nothing_again(self):
        with Fleet(WSYNC) as maker:
            folder = maker.path("published")
            os.mkdir(folder)
            one = maker.checkpoint("published/weight_v000001", 1)
            with OtherHost(folder) as other:
                other.follower = other.start("trainer", "--follow-directory", folder)
                _, engines = other.sidecar("s1")
                other.engine(engines, "b", one)
                version = other.served("weight_v000001")
                other.until(lambda: other.recorded(version), "the record of the follower")
                other.follower.kill()
                other.follower.wait()
                other.follower = other.start("trainer", "--follow-directory", folder)
                other.until(lambda: f"and the fleet serves {version} already" in other.said(), "the follower")
                # An engine that starts gets what the sidecar holds; the look after that has found nothing to do.
                other.engine(engines, "c", one)
                other.until_ready(version, "b", "c")
                maker.checkpoint("published/weight_v000002", 2)
                self.equals_all(other, other.served("weight_v000002"), "b", "c")
                self.assertNotIn(f"publishing {folder}/weight_v000001", other.said())

    def test_a_look_opens_no_file_that_has_not_changed(self):
        with Fleet(WSYNC) as maker:
            folder = maker.path("published")
            os.mkdir(folder)
            one = maker.checkpoint("published/weight_v000001", 1)
            set_latest(folder, "weight_v000001")
            with OtherHost(folder) as other:
                other.begin(one)
                other.served("weight_v000001")
                file = os.path.join(one, min(name for name in os.listdir(one) if name.endswith(".safetensors")))
                with Opened(os.path.join(folder, "latest")) as looks, Opened(file) as files:
                    other.until(lambda: looks.count() >= 20, "20 looks")
                    self.assertEqual(files.count(), 0)
                    os.utime(file)
                    other.until(files.count, "a look at the changed file")

    def test_latest_waits_for_the_promotion_of_a_canary(self):
        with TrainerHost("--set", "canary=a", "--set", "arenas=4") as first:
            first.one, first.two = first.checkpoint("one", 1), first.checkpoint("two", 2)
            _, engines = first.sidecar("s0")
            for replica in ("a", "b"):
                first.engine(engines, replica, first.one)
            first.start_trainer()
            one = first.push(first.one)
            first.until(lambda: first.replicas().get("a", {}).get("version") == one["version"], "the canary")
            self.assertEqual((latest_of(first.folder), directories(first.folder)), (None, []))
            self.assertEqual(first.ask("promote")[0], 0)
            name = first.written(one)
            # One that is taken back is never there.
            two = first.push(first.two)
            first.until(lambda: first.replicas().get("a", {}).get("version") == two["version"], "the canary")
            self.assertEqual(first.ask("rollback")[0], 0)
            third = first.push(first.two)
            self.assertEqual(latest_of(first.folder), name)
            self.assertEqual(first.ask("promote")[0], 0)
            newest = first.written(third)
            self.assertEqual(directories(first.folder), [name, newest])

    def test_a_rollback_to_a_version_whose_directory_is_gone(self):
        with TrainerHost("--set", "directory.keep=1", "--set", "arenas=4") as first:
            first.begin()
            one = first.push(first.one)
            name = first.written(one)
            first.written(first.push(first.two))
            first.until(lambda: name not in directories(first.folder), "the removal of the oldest")
            code, answer = first.ask("rollback")
            self.assertEqual((code, answer["result"]["to"]), (0, one["version"]), answer)
            self.assertNotEqual(first.written(one), name)
            first.until(lambda: "wsync_directory_behind_versions 0\n" in get(f"{first.run_dir}/control.http", "/metrics")[1],
                        "the count of what is missing")

    def test_a_rollback_on_the_followers_host_holds(self):
        with Fleet(WSYNC) as maker:
            folder = maker.path("published")
            os.mkdir(folder)
            one = maker.checkpoint("one", 1)
            maker.checkpoint("published/weight_v000001", 1)
            with OtherHost(folder) as other:
                other.begin(one)
                first = other.served("weight_v000001")
                maker.checkpoint("published/weight_v000002", 2)
                second = other.served("weight_v000002")
                code, answer = other.ask("rollback")
                self.assertEqual((code, answer["result"]["from"], answer["result"]["to"]), (0, second, first), answer)
                other.until_ready(first, "b")
                other.follower.kill()
                other.follower.wait()
                other.start_sidecar()
                other.until(lambda: f"and the fleet serves {first} already" in other.said(), "the follower")
                other.until_ready(first, "b")
                # Nobody holds that version for engines that start, and whoever runs the host is told what to do.
                other.until(lambda: any(f"rolled back to {first}, which no sidecar holds any more" in text and "wsync push" in text
                                        for text in other.incidents()), "the incident")
                # The look after that has found nothing to do: only another directory is published.
                maker.checkpoint("published/weight_v000003", 3)
                self.equals(other, other.served("weight_v000003"))
                self.assertNotIn(f"publishing {folder}/weight_v000002", other.said())

    def test_a_trainer_that_is_killed_while_it_writes(self):
        # Many small files, each synced, so that a write can be met.
        with TrainerHost("--set", "directory.shard_bytes=1MiB") as first, OtherHost(first.folder) as other:
            first.begin()
            other.begin(first.one)
            name = first.written(first.push(first.one))
            version = other.served(name)

            def partial():
                return [n for n in os.listdir(first.folder) if n.startswith(".weight_v") and n.endswith(".tmp")]

            first.halted = True  # it is stopped below, to see whether it writes
            met = False
            paths = [first.two, first.one]
            while not met:
                pushing = subprocess.Popen([WSYNC, "push", paths[0], "--coordinator", first.address], env=first.environment,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                paths.reverse()
                before = latest_of(first.folder)
                first.until(lambda: partial() or latest_of(first.folder) != before, "a write")
                if partial():
                    os.kill(first.trainer.pid, signal.SIGSTOP)
                    met = bool(partial())
                    if met:
                        first.trainer.kill()
                    os.kill(first.trainer.pid, signal.SIGCONT)
                pushing.wait()
            first.trainer.wait()
            name = latest_of(first.folder)
            version = other.served(name)
            self.equals(other, version)

            first.start_trainer()
            first.until(lambda: not partial(), "the removal of what the killed trainer left")
            self.equals(other, other.served(first.written(first.push(first.two))))

    def test_what_is_not_proven_and_what_is_damaged(self):
        with Fleet(WSYNC) as maker:
            folder = maker.path("published")
            os.mkdir(folder)
            one = maker.checkpoint("one", 1)
            for number, seed in ((1, 1), (2, 2)):
                maker.checkpoint(f"published/weight_v{number:06d}", seed)
            with OtherHost(folder) as other:
                other.begin(one)
                # Without `latest`, as slime and miles leave it: the highest number.
                version = other.served("weight_v000002")
                self.equals(other, version)
                self.assertIn("weight_v000002, which is not proven: its writer states no digest", other.said())
                os.symlink("weight_v000001", os.path.join(folder, "latest"))
                self.equals(other, other.served("weight_v000001"))

            with TrainerHost() as first, OtherHost(first.folder) as other:
                first.begin()
                other.begin(first.one)
                good = first.written(first.push(first.one))
                version = other.served(good)
                damaged = os.path.join(first.folder, "weight_v000090")
                shutil.copytree(os.path.join(first.folder, good), damaged)
                file = os.path.join(damaged, "model.safetensors")
                # The proof of other bytes than these.
                with open(file, "r+b") as opened:
                    header = opened.read(4096)
                    digest = stated(damaged)["wsync.digest"].encode()
                    opened.seek(header.index(digest))
                    opened.write(digest[::-1])
                set_latest(first.folder, "weight_v000090")
                other.until(lambda: any("its bytes have the digest" in text for text in other.incidents()), "the refusal")
                self.assertIn(f"{damaged}: its bytes have the digest", other.said())
                self.assertEqual(other.replicas()["b"]["version"], version)
                self.equals(other, version)
                # It is refused once, and the next good one is served.
                set_latest(first.folder, good)
                newer = first.written(first.push(first.two))
                self.equals(other, other.served(newer))
                self.assertEqual(other.said().count("is not served"), 1)

    def test_a_full_disc_stops_no_publish(self):
        with TrainerHost("--set", "directory.keep=1") as first:
            os.mkdir(first.folder)
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "wsync-test", first.folder], capture_output=True,
                                     text=True, check=False)
            if mounted.returncode != 0:
                self.skipTest(f"no file system can be mounted here: {mounted.stderr.strip()}")
            try:
                trainer = first.begin()
                name = first.written(first.push(first.one))
                filler = os.path.join(first.folder, "filler")
                with open(filler, "wb") as file:
                    space = os.statvfs(first.folder)
                    os.posix_fallocate(file.fileno(), 0, (space.f_bavail - 100) * space.f_frsize)
                names = sorted(os.listdir(first.folder))
                second = first.push(first.two)  # served, whatever the disc says
                self.assertTrue(second["ok"])

                def incidents():
                    return [i["text"] for i in first.ask("status")[1]["result"]["incidents"]]

                sentence = re.compile(rf"cannot write {first.folder}/weight_v\d+: it needs \d+ bytes, \d+ bytes are free; "
                                      rf"`latest` is {name} as before")
                first.until(lambda: any(sentence.match(text) for text in incidents()), "the incident")
                self.assertEqual((latest_of(first.folder), sorted(os.listdir(first.folder))), (name, names))
                page = get(f"{first.run_dir}/control.http", "/metrics")[1]
                self.assertIn("wsync_directory_failures_total 1\n", page)
                self.assertIn("wsync_directory_behind_versions 1\n", page)
                os.remove(filler)
                third = first.push(first.one)
                first.written(third)
                newest = f"wsync_directory_version_step {third['version'].split('.')[1]}\n"
                # `latest` is there a moment before the trainer knows of it.
                first.until(lambda: newest in get(f"{first.run_dir}/control.http", "/metrics")[1], "the newest version")
                page = get(f"{first.run_dir}/control.http", "/metrics")[1]
                self.assertIn("wsync_directory_behind_versions 0\n", page)
                self.assertEqual(first.stop(trainer)[0], 0)
            finally:
                subprocess.run(["umount", "--lazy", first.folder], check=True)

    def test_the_commands_of_the_guide(self):
        guide = pathlib.Path(__file__).parents[2] / "deploy" / "guides" / "directory.md"
        text = guide.read_text(encoding="utf-8")
        lines = re.findall(r"^wsync (.*)$", text, re.MULTILINE)
        alone = re.findall(r"`wsync (trainer --follow-directory [^`]*)`", text)
        self.assertEqual([line.split()[0] for line in lines + alone], ["trainer", "sidecar", "trainer"])
        with Fleet(WSYNC) as first, OtherHost(first.path("nfs")) as other, OtherHost(first.path("nfs")) as third:
            model = first.checkpoint("step_100", 1)

            def command(line):
                return [word.replace("/models/run7/step_100", model).replace("/nfs/run7", other.folder) for word in line.split()]

            _, engines = first.sidecar("s0")
            first.engine(engines, "a", model)
            first.start(*command(lines[0]))
            other.follower = other.start(*command(lines[1]), "--set", "name=s1")
            socket = os.path.join(other.run_dir, "s1.engines")
            other.until(lambda: os.path.exists(socket), "the sidecar")
            other.engine(socket, "b", model)
            third.follower = third.start(*command(alone[0]))
            third.engine(third.sidecar("s1")[1], "b", model)
            for host in (other, third):
                self.equals(host, host.served("weight_v000100"))
                self.assertEqual(host.stop(host.follower)[0], 0)

    def test_what_cannot_be_started_says_why(self):
        with TrainerHost() as first:
            first.begin()
            elsewhere = ("--set", "run_dir=" + first.path("r"), "--set", "state_dir=" + first.path("s"))
            for arguments, sentence in (
                    (("trainer", "--publish-directory", first.folder, *elsewhere), f"{first.folder} has another writer"),
                    (("trainer", "--publish-directory", first.path("no/folder"), *elsewhere), "cannot create directory"),
                    (("trainer", "--publish-directory", first.path("other"), "--set", f"directory.model_files={first.path('no')}",
                      *elsewhere), f"cannot read directory {first.path('no')}"),
                    (("trainer", "--follow-directory", first.folder, "--publish-directory", first.folder), "follow_directory"),
                    (("sidecar", "--set", "name=s9", "--follow-directory", first.folder), "is held by process")):
                done = subprocess.run([WSYNC, *arguments], env=first.environment, text=True, capture_output=True, timeout=60)
                self.assertNotEqual(done.returncode, 0, arguments)
                self.assertIn(sentence, done.stderr)


if __name__ == "__main__":
    unittest.main()
