"""The package in whole processes: signals, forks, workers, and the end of the interpreter at every moment."""
import pickle
import signal
import threading
import unittest

import wsync
from package_fleet import DEADLINE_S, PackageFleet, empty_like, equal, interrupt, until, weights_of

# What each program begins with. `entered` is called where the test takes over.
BEGIN = """
import itertools, os, select, signal, sys, threading, time
import numpy as np
import wsync
from package_fleet import DEADLINE_S, NAMES, Served, empty_like, weights_of

run_dir, state_dir, socket = sys.argv[1:4]
SETTINGS = {"run_dir": run_dir, "state_dir": state_dir, "log.level": "warning", "bucket_bytes": "1MiB"}

def publisher(**more):
    return wsync.Publisher(settings=SETTINGS | more)

def entered(word="ready"):
    print(word, flush=True)
"""


class ProcessCase(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        self.sidecar, self.socket = self.fleet.sidecar()

    def program(self, text):
        return self.fleet.program(BEGIN + text, self.fleet.run_dir, self.fleet.path("state_of_program"), self.socket)

    def tell(self, process):
        process.stdin.write("\n")
        process.stdin.flush()

    def ends(self, process, code, *words):
        """It ends with that exit status (a signal is negative), having said the words on its standard error."""
        found, out, said = self.fleet.end(process)
        self.assertEqual(found, code, said)
        for word in words:
            self.assertIn(word, said)
        for crash in ("Fatal Python error", "terminate called", "Segmentation", "Exception ignored", "rethrown"):
            self.assertNotIn(crash, said)
        return out


class Interrupting(ProcessCase):
    def interrupted(self, text):
        process = self.program(text)
        self.fleet.ready(process)
        interrupt(process)
        out = self.ends(process, 0)
        self.assertIn("interrupted", out)
        return out

    def test_a_wait_for_a_publish(self):
        self.interrupted("""
with publisher() as p:
    publish = p.publish(weights_of(1))  # there is no engine
    try:
        entered()
        publish.wait("committed")
    except KeyboardInterrupt:
        entered("interrupted")
    assert publish.status().state < wsync.PublishState.COMMITTED
""")

    def test_a_publish_that_waits_for_memory_publishes_nothing(self):
        """A sidecar that stands still reads two versions, and the third waits for it: there is no memory for a fourth."""
        held = empty_like(weights_of(0))
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        trainer = self.program("""
p = publisher(**{"deadlines.snapshot": "10m", "deadlines.publish": "10m"})
for step in (1, 2):
    p.publish(weights_of(step), step=step).wait("committed", DEADLINE_S)
entered("halt it")
sys.stdin.readline()
third = p.publish(weights_of(3), step=3)
main = threading.get_ident()
def watch():
    while sys._current_frames()[main].f_code.co_name != "_begin":
        pass
    entered()
threading.Thread(target=watch).start()
try:
    p.publish(weights_of(4), step=4)
except KeyboardInterrupt:
    entered("interrupted")
sys.stdin.readline()
third.wait("committed", DEADLINE_S)
p.publish(weights_of(5), step=5).wait("committed", DEADLINE_S)  # nothing was left open
""")
        self.fleet.ready(trainer, "halt it")
        self.sidecar.send_signal(signal.SIGSTOP)
        self.tell(trainer)
        self.fleet.ready(trainer)
        interrupt(trainer)
        self.fleet.ready(trainer, "interrupted")
        self.sidecar.send_signal(signal.SIGCONT)
        self.tell(trainer)
        self.ends(trainer, 0)
        equal(self, held, weights_of(5))

    def test_a_poll_without_limit(self):
        self.interrupted("""
with wsync.Replica(socket, "r0", empty_like(weights_of(0))) as replica:
    while not replica.status().attached:
        replica.poll(0.05)
    replica.poll(0)
    try:
        entered()
        while True:
            replica.poll(None)
    except KeyboardInterrupt:
        entered("interrupted")
    replica.poll(0.01)  # it goes on
""")

    def test_a_poll_at_any_statement(self):
        """Python raises Ctrl-C between two statements. Here it is raised before each one, at first without and then with a call."""
        process = self.program("""
def interrupting(number, before):
    count = itertools.count()
    def trace(frame, event, argument):
        if frame.f_code is not wsync.Replica.poll.__code__:
            return None
        if event == "line" and before(frame.f_locals) and next(count) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace
    return trace

def polls(timeout, number, before):
    sys.settrace(interrupting(number, before))
    try:
        replica.poll(timeout)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False

with wsync.Replica(socket, "r0", empty_like(weights_of(0))) as replica:
    while not replica.status().attached:
        replica.poll(0.05)
    number = 0
    while polls(0.01, number, lambda local: True):
        replica.poll(0.01)  # it goes on
        number += 1
    assert number > 5, number
    entered()
    while not polls(0.05, 0, lambda local: local.get("raw") is not None):
        pass
    entered("interrupted")
    while not select.select([sys.stdin], [], [], 0)[0]:
        replica.poll(0.05)
""")
        self.fleet.ready(process)
        with self.fleet.publisher() as trainer:
            publish = trainer.publish(weights_of(1), step=1)
            self.fleet.ready(process, "interrupted")
            publish.wait("committed", DEADLINE_S)  # the sidecar has asked again
            self.tell(process)
        self.ends(process, 0, "Ctrl-C came before the callback load_begin was run; trying again")

    def test_a_rollback_that_waits(self):
        self.interrupted("""
blocked = threading.Event()
class Engine(wsync.Replica):
    def on_pause(self, pause):
        if self.step:
            entered()  # it never reports that it has paused
        else:
            self.paused(0)
held = empty_like(weights_of(0))
engine = Engine(socket, "r0", held, serving=True)
engine.start()
with publisher(**{"deadlines.pause": "5m", "deadlines.publish": "10m"}) as p:
    p.publish(weights_of(1)).wait(timeout=DEADLINE_S)
    p.publish(weights_of(2)).wait(timeout=DEADLINE_S)
    engine.step = 1
    try:
        p.roll_back()  # its pause says that it is ready
    except KeyboardInterrupt:
        entered("interrupted")
    engine.close()
""")

    def test_a_rollback_that_waits_for_an_update(self):
        """It begins when the update has ended; before that Ctrl-C and the end of its time leave everything as it is."""
        out = self.interrupted("""
blocked = threading.Event()
class Engine(wsync.Replica):
    def on_pause(self, pause):
        if pause.version == wsync.Version(1, 2) and not blocked.is_set():
            self.blocked_at = self.step
            pausing.set()
        else:
            self.paused(0)
pausing = threading.Event()
engine = Engine(socket, "r0", empty_like(weights_of(0)), serving=True)
engine.start()
with publisher(**{"deadlines.pause": "5m", "deadlines.publish": "10m"}) as p:
    p.publish(weights_of(1)).wait(timeout=DEADLINE_S)
    update = p.publish(weights_of(2))
    assert pausing.wait(DEADLINE_S)
    try:
        p.roll_back(timeout=0.2)
    except wsync.Busy as failure:
        assert "switching" in failure.sentence, failure.sentence
    try:
        entered()
        p.roll_back()
    except KeyboardInterrupt:
        entered("interrupted")
    threading.Timer(0.2, lambda: (blocked.set(), engine.paused(0))).start()
    back = p.roll_back(timeout=DEADLINE_S)
    assert (str(back.before), str(back.after)) == ("1.2", "1.1"), back
    assert str(engine.status().active) == "1.1", engine.status()
    engine.close()
""")
        self.assertIn("interrupted", out)

    def test_the_default_of_python_ends_the_process(self):
        process = self.program("""
p = publisher()
publish = p.publish(weights_of(1))
entered()
publish.wait("committed")
""")
        self.fleet.ready(process)
        interrupt(process)
        self.ends(process, -signal.SIGINT, "KeyboardInterrupt")


class Closing(ProcessCase):
    """What is lost when a publisher closes is said; what is decided, or served, is not."""

    def ending(self, text, **settings):
        process = self.program(f"p = publisher(**{settings!r})\n" + text)
        return self.ends(process, 0), self.fleet.said(process)

    def test_publishes_that_no_engine_has_yet(self):
        for close in ("", "p.close(); p.close()", "with p:\n    p.publish(weights_of(4), step=10)\n"):
            with self.subTest(close):
                _, said = self.ending(f"""
for step in 7, 8, 9:
    p.publish(weights_of(step), step=step)
{close}
""")
                steps = "10" if "10" in close else "9"
                self.assertRegex(said, f"the publisher is closed before what was published under step .*{steps} could reach the engines: "
                                       "it is dropped, and no engine will serve it; "
                                       'call publish.wait\\("committed"\\) before the end of the program')
                self.assertEqual(said.count("the publisher is closed before"), 1)

    def test_nothing_is_said_of_what_is_served_or_has_failed(self):
        self.fleet.serve(wsync.Replica(self.socket, "r0", empty_like(weights_of(0))))
        _, said = self.ending("""
p.publish(weights_of(1)).wait("committed", DEADLINE_S)
""")
        self.assertNotIn("the publisher is closed before", said)

    def test_nothing_is_said_of_what_is_decided(self):
        paused = threading.Event()
        held = empty_like(weights_of(0))
        replica = self.enterContext(wsync.Replica(self.socket, "r0", held, serving=True, pause=lambda pause: paused.set()))
        replica.start()
        process = self.program("""
p = publisher()
p.publish(weights_of(1))
entered()
sys.stdin.readline()
""")
        self.fleet.ready(process)
        self.assertTrue(paused.wait(DEADLINE_S))
        self.tell(process)
        self.ends(process, 0)
        self.assertNotIn("the publisher is closed before", self.fleet.said(process))
        replica.paused(0)
        until(lambda: replica.status().active, "the version that was decided")
        equal(self, held, weights_of(1))

    def test_a_publisher_that_cannot_be_made_names_no_lines_of_another_one(self):
        self.fleet.serve(wsync.Replica(self.socket, "r0", empty_like(weights_of(0))))
        out, said = self.ending("""
try:
    wsync.Publisher(settings=SETTINGS | {"log.level": "info"}, rank=2, world_size=2)
except wsync.InvalidInput:
    print("refused")
p.publish(weights_of(1)).wait(timeout=DEADLINE_S)
""", **{"log.level": "info"})
        self.assertIn("refused", out)
        self.assertRegex(said, "info +trainer: .*1[.]1")
        self.assertNotIn("trainer rank 2: ", said)

    def test_a_thread_that_polls_at_the_end_says_nothing(self):
        _, said = self.ending("""
replica = wsync.Replica(socket, "r0", empty_like(weights_of(0)))
def loop():
    entered()
    while True:
        replica.poll(None)
threading.Thread(target=loop, daemon=True).start()
def another():
    raise RuntimeError("of the user")
threading.Thread(target=another).start()
""")
        self.assertIn("RuntimeError: of the user", said)
        self.assertNotIn("Closed", said)


class Forking(ProcessCase):
    def test_what_a_child_calls_is_refused_with_the_reason(self):
        out = self.ends(self.program("""
held = empty_like(weights_of(0))
p = publisher()
replica = wsync.Replica(socket, "r0", held)
served = Served(replica)
publish = p.publish(weights_of(1))
publish.wait("committed", DEADLINE_S)
reader = wsync.Reader(socket)
staged = reader.open(step=1)
version = p.version()
view = version.tensor(NAMES[0])
view[:] = 7
child = os.fork()
if child == 0:
    refused = []
    for call in (p.check, p.version, p.roll_back, publish.status, publish.wait, lambda: p.publish(weights_of(2)),
                 lambda: version.put(NAMES[1], weights_of(2)[NAMES[1]]), lambda: version.tensor(NAMES[1]), version.end,
                 lambda: replica.poll(0), lambda: replica.poll(None), lambda: replica.poll(1)):
        try:
            call()
        except wsync.Error as failure:
            refused.append(failure.sentence)
    assert len(refused) == 12, refused
    for number, sentence in enumerate(refused):
        kind, advice = (("Publisher", "send it there what is to be published, or close it there before this process makes a "
                         "wsync.Publisher of its own") if number < 9 else
                        ("Replica", "an engine in this process makes a wsync.Replica of its own, with another name"))
        assert sentence == (f"this wsync.{kind} was made in process {os.getppid()}, and the calling process {os.getpid()} has been "
                            "forked from it, as workers of a DataLoader and of multiprocessing are: use it in process "
                            f"{os.getppid()} alone; {advice}"), sentence
    for call in (lambda: reader.open(step=1, timeout=0), lambda: next(reader.follow())):
        try:
            call()
        except wsync.EngineRefused as failure:
            assert failure.sentence.startswith(f"this wsync.Reader was made in process {os.getppid()}"), failure.sentence
        else:
            raise AssertionError("a reader of the parent was used")
    assert len(staged.tensors) == len(NAMES)  # of the parent, whose memory is not there
    staged.close(), reader.close()
    assert view.max() == 0  # the parent's memory is not there, and reading it is no fault
    view[:] = 9
    assert replica.status() == wsync.ReplicaStatus(False, wsync.RankState.LOADING, None, 0)
    assert replica.fileno() == -1
    replica.paused(1), replica.running(1), replica.close(), p.close(), version.abandon
    # It may make its own.
    with wsync.Replica(socket, "child", empty_like(weights_of(0))) as own:
        while not own.status().attached:
            own.poll(0.05)
    sys.exit(3)  # with all exit handlers and destructors
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert view[0, 0] == 7
assert all(np.array_equal(staged.tensors[name], weights_of(1)[name]) for name in NAMES)
reader.close()
for name in NAMES:
    version.tensor(name)[:] = 5
version.end().wait("committed", DEADLINE_S)
assert all(array.min() == array.max() == 5 for array in held.values())
served.stop()
p.close()
entered("done")
"""), 0)
        self.assertIn("done", out)

    def test_workers_of_multiprocessing(self):
        """A trainer's data loader: workers that are forked while a version travels, and workers that are spawned."""
        with open(self.fleet.path("work.py"), "w", encoding="utf-8") as file:
            file.write("import wsync\n\ndef square(x):\n    return x * x\n")
        out = self.ends(self.program("""
import multiprocessing
from work import square

if __name__ == "__main__":
    held = empty_like(weights_of(0))
    p = publisher()
    served = Served(wsync.Replica(socket, "r0", held))
    for method in ("fork", "spawn"):
        for step in (1, 2):
            publish = p.publish(weights_of(step))
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert pool.map(square, range(10)) == [x * x for x in range(10)]
            publish.wait("committed", DEADLINE_S)
            assert all(np.array_equal(held[name], weights_of(step)[name]) for name in NAMES)
    served.stop()
    p.close()
    entered("done")
"""), 0)
        self.assertIn("done", out)

    def test_a_child_that_is_forked_inside_of_a_callback(self):
        self.ends(self.program("""
class Engine(wsync.Replica):
    def on_pause(self, pause):
        self.paused(0)
    def on_commit(self, version):
        child = os.fork()
        if child == 0:
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
engine = Engine(socket, "r0", empty_like(weights_of(0)))
engine.start()
with publisher() as p:
    p.publish(weights_of(1)).wait("committed", DEADLINE_S)
assert engine.error is None
engine.close()
"""), 0)

    def test_exceptions_are_pickled(self):
        failure = wsync.Partial("a sentence", tensor="x")
        copied = pickle.loads(pickle.dumps(failure))
        self.assertEqual((type(copied), copied.sentence, copied.code, copied.tensor),
                         (wsync.Partial, "a sentence", wsync.Code.PARTIAL, "x"))


class Ending(ProcessCase):
    """Nothing is closed by these programs."""

    def test_with_everything_open(self):
        self.ends(self.program("""
class Engine(wsync.Replica):
    def on_pause(self, pause):
        self.paused(0)
engine = Engine(socket, "r0", empty_like(weights_of(0)), serving=True)
engine.start()
p = publisher()
publish = p.publish(weights_of(1))
publish.wait("committed", DEADLINE_S)
version = p.version()
view = version.tensor(NAMES[0])
"""), 0)

    def test_while_daemon_threads_wait(self):
        self.ends(self.program("""
replica = wsync.Replica(socket, "r0", empty_like(weights_of(0)))
p = publisher()
publish = p.publish(weights_of(1))
entries = []
def run(call):
    entries.append(1)
    call()
for call in (lambda: replica.poll(None), publish.wait, lambda: publish.wait("staged")):
    threading.Thread(target=run, args=(call,), daemon=True).start()
while len(entries) < 3:
    pass
"""), 0)

    def test_while_a_callback_hangs(self):
        for hang in ("threading.Event().wait()", "time.sleep(3600)", "[0 for _ in iter(int, 1)]"):
            process = self.program(f"""
class Engine(wsync.Replica):
    def on_pause(self, pause):
        self.paused(0)
    def on_commit(self, version):
        committing.set()
        {hang}
committing = threading.Event()
engine = Engine(socket, "r0", empty_like(weights_of(0)))
engine.start()
p = publisher()
publish = p.publish(weights_of(1))
assert committing.wait(DEADLINE_S)
""")
            self.ends(process, 0)

    def test_in_the_middle_of_a_switch_at_any_moment(self):
        """The interpreter ends while callbacks run on a thread of start() and others put tensors."""
        for seed in range(8):
            self.ends(self.program(f"""
class Engine(wsync.Replica):
    def on_pause(self, pause):
        self.paused(0)
    def on_load_layer(self, version, layer, tensors):
        sum(range(2000))
engine = Engine(socket, "r{seed}", empty_like(weights_of(0)), serving=True)
engine.start()
p = publisher()
def train():
    for step in range(1, 10**6):
        p.publish(weights_of(1), step=step)
thread = threading.Thread(target=train, daemon=True)
thread.start()
while engine.status().active is None:
    pass
sum(range({seed} * 40000))
"""), 0)

    def test_exceptions_have_the_name_by_which_a_program_finds_them(self):
        self.assertEqual(str(wsync.NotFound), "<class 'wsync.NotFound'>")
        self.assertEqual(wsync.directory.Writer.__module__, "wsync.directory")  # imported by its first use
        with self.assertRaisesRegex(AttributeError, "module 'wsync' has no attribute 'directories'"):
            wsync.directories

    def test_an_error_ends_the_program_with_its_sentence(self):
        self.ends(self.program("""
replica = wsync.Replica(socket, "r0", empty_like(weights_of(0)))
p = publisher()
p.publish({"x": [1]})
"""), 1, "wsync.InvalidInput: tensor x is a list; expected an array of NumPy or a tensor of torch")


class Killing(ProcessCase):
    def test_a_trainer_that_is_killed_in_the_middle_of_a_put(self):
        held = empty_like(weights_of(0, (2048, 2048)))
        self.fleet.serve(wsync.Replica(self.socket, "r0", held))
        trainer = self.program("""
p = publisher()
p.publish(weights_of(1, (2048, 2048))).wait("committed", DEADLINE_S)
weights = weights_of(2, (2048, 2048))
version = p.version()
entered()
while True:
    for row in range(2048):
        version.put(NAMES[0], weights[NAMES[0]][row:row + 1], shape=(2048, 2048), ranges=[(0, row, 1)])
    version.abandon()
    version = p.version()
""")
        self.fleet.ready(trainer)
        trainer.kill()
        trainer.wait()
        equal(self, held, weights_of(1, (2048, 2048)))
        # The next trainer takes over, and nothing of the torn version is served.
        with self.fleet.publisher(state_dir=self.fleet.path("state_of_program")) as publisher:
            status = publisher.publish(weights_of(3, (2048, 2048))).wait("committed", DEADLINE_S)
        self.assertEqual(status.version.epoch, 2)
        equal(self, held, weights_of(3, (2048, 2048)))


if __name__ == "__main__":
    unittest.main()
