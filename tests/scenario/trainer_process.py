"""A program of a test that publishes over the C API (trainer_rank.cc) and takes commands on its standard input, for scenario tests."""
import subprocess

COMMITTED, FAILED = 3, 5  # wsync_publish_state


class TrainerProcess:
    """One such process of a fleet. `command` starts it, with `environment` or that of the fleet; `ready` is the first event to wait for."""

    deadline_ms = 60_000  # for what wait() waits for

    def __init__(self, fleet, command, environment=None, ready="started"):
        self.fleet = fleet
        with fleet.log() as log:
            self.process = subprocess.Popen(command, env=environment or fleet.environment, text=True, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log)
        self.process.log_path = log.name
        fleet.processes.append(self.process)
        self.first = self.event(ready) if ready else None

    def event(self, name):
        return self.fleet.event(self.process, name)

    def tell(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def publish(self, step):
        self.tell("publish", step)

    def published(self):
        return self.event("published")

    def wait(self, state=COMMITTED):
        self.tell("wait", state, self.deadline_ms)
        return self.event("waited")

    def end(self):
        """Its exit code, after the end of its standard input has ended it."""
        self.process.stdin.close()
        return self.process.wait(timeout=60)

    def kill(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
