"""A fleet whose coordinator is a process of its own, and to which trainers publish."""
import tensors
from fleet import Fleet, listens


class CoordinatorFleet(Fleet):
    def __init__(self, wsync):
        super().__init__(wsync)
        self.weights = [tensors.make(self.path(f"weights{seed}"), seed) for seed in (1, 2, 3)]

    def coordinate(self, *settings):
        process = self.start("coordinator", *settings)
        self.until(lambda: listens(self.address.removeprefix("ipc://")), "the coordinator")
        return process

    def trainer(self, *arguments, name="trainer"):
        """In a run_dir of its own, as on a host of its own."""
        return self.start("trainer", "--set", f"coordinator={self.address}", "--set", f"run_dir={self.path(name)}", *arguments)

    def until_listening(self, trainer, arguments):
        if not any(argument.startswith("coordinator=") for argument in arguments):
            super().until_listening(trainer, arguments)

    def activity(self):
        code, answer = self.ask("status")
        return answer["result"]["activity"] if code == 0 else ""

    def until_attached(self):
        self.until(lambda: self.activity() and "no trainer" not in self.activity(), "the trainer at the coordinator")

    def until_gone(self):
        self.until(lambda: "no trainer is connected" in self.activity(), "that the trainer is known to be gone")

    def begin(self):
        """A sidecar that maps and one that copies, with an engine each."""
        (_, maps), (_, copies) = self.sidecar("maps"), self.sidecar("copies", "--set", "transport=tcp")
        return [self.engine(maps, "a", self.weights[0]), self.engine(copies, "b", self.weights[0])]

    def pushing(self, path):
        return self.start("push", path, "--json", "--coordinator", self.address)

    def incidents(self):
        return [incident["text"] for incident in self.ask("status")[1]["result"]["incidents"]]
