"""A fleet whose trainer is a program that uses the C API (trainer_rank.cc), for scenario tests."""
import subprocess

from fleet import Fleet

DEADLINE_MS = 60_000
COMMITTED = 3  # wsync_publish_state


class PluginFleet(Fleet):
    def __init__(self, wsync, trainer_rank):
        super().__init__(wsync)
        self.trainer_rank = trainer_rank

    def program(self, ready, *command):
        """A program of a test that takes commands; `ready` is the first event to wait for."""
        with self.log() as log:
            process = subprocess.Popen(command, env=self.environment, text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=log)
        process.log_path = log.name
        self.processes.append(process)
        if ready:
            self.event(process, ready)
        return process

    def trainer(self, checkpoint, *settings):
        return self.program("started", self.trainer_rank, "0", "1", checkpoint, "log.level=warning",
                            "deadlines.publish=30s", *settings)

    def tell(self, process, *words):
        process.stdin.write(" ".join(str(word) for word in words) + "\n")
        process.stdin.flush()

    def publish(self, trainer, step):
        """What came of it, once it is served or has failed."""
        self.tell(trainer, "publish", step)
        published = self.event(trainer, "published")
        if published["code"] != 0:
            return published
        self.tell(trainer, "wait", COMMITTED, DEADLINE_MS)
        return self.event(trainer, "waited")
