"""The health of all ranks on its way to trackers: the requests to an aggregator, the contents of a row, and that no
failure there affects the program. Real trackers and a real aggregator: tests/trackers.py of the repository."""

import concurrent.futures
import http.server
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from ringdump import steps
from support import HOOK, run

with open(os.path.join(HOOK, "tests", "live.json")) as file:
    RECORDED = file.read()  # from `/v1/live` of a job of four ranks with simulated GPUs, the third slow

# A program without torch. Its writer records what a SummaryWriter would write.
PROGRAM = """
import atexit, json, os, sys, threading, time
ended = None
def at_exit():
    rows = {}
    for name, value, step in writer.rows:
        rows.setdefault(step, {})[name] = value
    took = None if ended is None else time.monotonic() - ended
    print(json.dumps({'rows': rows, 'flushed': writer.flushed, 'took': took}))
atexit.register(at_exit)
import paceline
class Writer:
    all_writers = {}
    flushed = 0
    def __init__(self):
        self.rows = []
    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))
    add_text = add_scalar
    def flush(self):
        self.flushed += 1
writer = Writer()
def until(found):
    end = time.monotonic() + 90
    while not found():
        assert time.monotonic() < end, 'waited in vain'
        paceline.step()
        time.sleep(0.005)
def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith('paceline')]
"""
ROWS = "until(lambda: writer.rows)\n"


class Aggregator:
    """Sends the configured answer, and records the requests."""

    def __init__(self, body=RECORDED, status=200, silent=False, certificate=None):
        asked = self.asked = []
        release = self._release = threading.Event()

        class Desk(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers.get("Last-Event-ID"), self.headers.get("Authorization")))
                if silent:
                    release.wait(120)
                text = body
                if self.path == "/v1/live/events":
                    text = "retry: 250\nid: 1-2\ndata: %s\n\n" % " ".join(body.split("\n"))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                pass  # the client is gone

        self._server = Server(("127.0.0.1", 0), Desk)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = "127.0.0.1:%d" % self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._release.set()
        self._server.shutdown()
        self._server.server_close()


def touch_when(asked, path):
    """Create a file after the first request."""
    end = time.monotonic() + 90
    while not asked and time.monotonic() < end:
        time.sleep(0.01)
    open(path, "w").close()


def certificate(path):
    """Create a self-signed certificate, with its key in the same file, for another host name than the one requested."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=node-7 -out %s -keyout %s"
    subprocess.run((command % (path, path + ".key")).split(), check=True, stderr=subprocess.DEVNULL)
    with open(path, "a") as both, open(path + ".key") as key:
        both.write(key.read())
    return path


class Stream(unittest.TestCase):
    def program(self, script, aggregator, **env):
        """Run a program, which must end as if there were no trackers. Return its last output and its ring's notes."""
        told = {"PACELINE_TRACK_FROM": aggregator.address, "RANK": "0", "WORLD_SIZE": "4", "PACELINE_JOB": "recorded"}
        done = run(PROGRAM + script, **{**told, **env})
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertTrue(steps(done.rings[0]))
        notes = [record[1] for record in done.rings[0].records if record[0] == "note"]
        return json.loads(done.out.splitlines()[-1]), notes, done.out.splitlines()[:-1]

    def test_a_row_is_what_the_aggregator_says(self):
        with Aggregator() as aggregator:
            script = "paceline.track(tensorboard=writer, every=1)\n" + ROWS
            script += "before = len(writer.rows); until(lambda: len(writer.rows) > before)\n"
            said, notes, _ = self.program(script, aggregator)
        self.assertEqual(notes, [])
        self.assertEqual(list(said["rows"]), ["113"])
        row = said["rows"]["113"]
        report = json.loads(RECORDED)["report"]
        expected = {
            "goodput_ratio": report["cost"]["goodput"],
            "lost_gpu_hours": report["cost"]["lost_gpu_hours"],
            "lost_gpu_hours_by_cause/straggler": report["cost"]["by_cause"]["straggler"],
            "findings": 1,
            "ranks_seen": 4,
            "slowest_rank": 2,
            "gpu/temperature_max_c": 63,
            "gpu/temperature_mean_c": (58 + 60 + 63 + 61) / 4,
            "gpu/power_total_w": 609 + 611 + 613 + 603,
            "gpu/troubled": 0,
        }
        self.assertEqual({name: row["paceline/" + name] for name in expected}, expected)
        self.assertAlmostEqual(row["paceline/slowest_rank_slowdown"], 1.28, delta=0.3)
        # No price was given, so the cost in money is unknown, and must not be zero.
        self.assertNotIn("paceline/lost_cost", row)
        text = row["paceline/findings_text"]
        self.assertTrue(text.startswith("    rank 2 on vm: A rank is persistently slower than its peers."), text)
        self.assertEqual(said["flushed"], 1)
        first, second = aggregator.asked[:2]
        self.assertEqual(first, ("/v1/live", None, None))
        live = json.loads(RECORDED)
        self.assertEqual(second, ("/v1/live/events", "%s-%d" % (live["epoch"], live["serial"]), None))

    def test_the_run_directory_says_where_and_a_file_the_token(self):
        with Aggregator() as aggregator:
            script = """
link = os.path.join(os.environ['PACELINE_RING_DIR'], 'run')
os.mkdir(link)
open(os.path.join(link, 'metrics.addr'), 'w').write(os.environ['SECRET_PLACE'].replace('127.0.0.1', '0.0.0.0') + '\\n')
open('token', 'w').write('a token of thirty-two bytes, or more\\n')
os.environ['PACELINE_HTTP_TOKEN_FILE'] = os.path.abspath('token')
paceline.track(tensorboard=writer, every=1)
"""
            place = {"PACELINE_TRACK_FROM": "", "SECRET_PLACE": aggregator.address}
            said, _, _ = self.program(script + ROWS, aggregator, **place)
        self.assertTrue(said["rows"])
        self.assertEqual(aggregator.asked[0][2], "Bearer a token of thirty-two bytes, or more")

    @unittest.skipUnless(os.geteuid() == 0, "takes root to give a file to another user")
    def test_no_token_goes_where_another_user_says(self):
        script = """
from paceline import _live
run = os.path.join(os.environ['PACELINE_RING_DIR'], 'run')
os.mkdir(run)
address = os.path.join(run, 'metrics.addr')
open(address, 'w').write('127.0.0.1:9\\n')
print(_live.address())
os.chown(address, 65533, -1)
print(_live.address())
os.environ['PACELINE_HTTP_TOKEN_FILE'] = 'token'
try:
    print(_live.address())
except _live.Unreached as why:
    print(why)
"""
        done = run("import os\n" + script, PACELINE_TRACK_FROM="")
        self.assertEqual((done.code, done.err), (0, ""))
        here, theirs, refused = done.out.splitlines()
        self.assertEqual((here, theirs), ("('127.0.0.1', 9)",) * 2)
        self.assertIn("the token is not sent", refused)
        self.assertIn("uid 65533", refused)

    @unittest.skipUnless(shutil.which("openssl"), "no openssl")
    def test_by_tls_only_the_pages_own_certificate_is_believed(self):
        with tempfile.TemporaryDirectory() as folder:
            own, other = (certificate(os.path.join(folder, name)) for name in ("own", "other"))
            script = "paceline.track(tensorboard=writer, every=1)\n"
            with Aggregator(certificate=own) as aggregator:
                said, _, _ = self.program(script + ROWS, aggregator, PACELINE_HTTP_CERT=own)
                self.assertTrue(said["rows"])
                before = len(aggregator.asked)
                script += "from paceline import _live\nlive = _live.Live()\n"
                script += "try: live.news()\nexcept _live.Unreached as why: print(why)\npaceline.step(); paceline.step()\n"
                said, _, out = self.program(script, aggregator, PACELINE_HTTP_CERT=other)
                self.assertEqual((said["rows"], len(aggregator.asked)), ({}, before))
                self.assertTrue(out[0].startswith("SSLCertVerificationError"), out)

    def test_nothing_happens_elsewhere(self):
        wait = "paceline.track(tensorboard=writer, every=1)\nend = time.monotonic() + 2.5\n"
        wait += "until(lambda: time.monotonic() > end)\nprint(threads())\n"
        absent = wait.replace("tensorboard=writer, ", "")
        absent += "print([name for name in ('wandb', 'mlflow', 'http.client') if name in sys.modules])\n"
        closed = "Writer.all_writers = None\n" + wait
        cases = (
            (wait, {"RANK": "1"}),
            (wait, {"PACELINE_TRACK": "off"}),
            (absent, {"PACELINE_TRACK": "wandb,mlflow"}),
            (closed, {}),
        )

        def check(case):
            script, env = case
            with Aggregator() as aggregator:
                return self.program(script, aggregator, **env), aggregator.asked

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for case, ((said, notes, out), asked) in zip(cases, pool.map(check, cases)):
                with self.subTest(str(case)):
                    self.assertEqual((said["rows"], notes, set(out), asked), ({}, [], {"[]"}, []))

    def test_answers_of_no_use_change_nothing(self):
        script = "paceline.track(tensorboard=writer, every=1)\n"
        script += "until(lambda: os.path.exists(os.environ['ENOUGH']))\n"
        answers = (
            {"body": RECORDED.replace('"recorded"', '"of somebody else"')},
            {"body": RECORDED.replace('"v":1', '"v":2')},
            {"body": RECORDED[:500]},
            {"body": "[1, 2]"},
            {"body": '{"v":1,"epoch":"e","serial":1,"report":{"job":"recorded"}}'},
            {"status": 401},
            {"status": 503},
        )

        def check(answer):
            with Aggregator(**answer) as aggregator, tempfile.TemporaryDirectory() as folder:
                enough = os.path.join(folder, "enough")
                threading.Thread(target=touch_when, args=(aggregator.asked, enough), daemon=True).start()
                return self.program(script, aggregator, ENOUGH=enough)[0], aggregator.asked

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for answer, (said, asked) in zip(answers, pool.map(check, answers)):
                with self.subTest(str(answer)[:60]):
                    self.assertEqual((said["rows"], bool(asked)), ({}, True))

    def test_a_tracker_that_fails_is_left_alone(self):
        script = """
calls = []
def add_scalar(name, value, step):
    calls.append(step)
    raise RuntimeError('the disk is full')
writer.add_scalar = add_scalar
paceline.track(tensorboard=writer, every=1)
until(lambda: len(calls) == 3)
from paceline import _stream
until(lambda: not _stream._stream.sinks)
end = time.monotonic() + 2
until(lambda: time.monotonic() > end)
print(len(calls))
"""
        with Aggregator() as aggregator:
            said, notes, out = self.program(script, aggregator)
        self.assertEqual((said["rows"], out), ({}, ["3"]))
        self.assertEqual(notes, ["trackers: tensorboard off: RuntimeError: the dis"])

    def test_what_is_stuck_holds_up_no_end(self):
        stuck = """
stuck = threading.Event()
def add_scalar(*_):
    stuck.set()
    time.sleep(3600)
writer.add_scalar = add_scalar
paceline.track(tensorboard=writer, every=1)
until(stuck.is_set)
ended = time.monotonic()
"""
        silent = "paceline.track(tensorboard=writer, every=1)\nend = time.monotonic() + 1.5\n"
        silent += "until(lambda: time.monotonic() > end)\nended = time.monotonic()\n"
        for script, answer in ((stuck, {}), (silent, {"silent": True})):
            with Aggregator(**answer) as aggregator:
                said, _, _ = self.program(script, aggregator)
            # It takes one second on a machine without other load.
            self.assertLess(said["took"], 30)

    def test_forked_children_have_no_part_in_it(self):
        script = """
paceline.track(tensorboard=writer, every=1)
until(lambda: writer.rows)
read, write = os.pipe()
child = os.fork()
if not child:
    rows, before = len(writer.rows), time.monotonic()
    for _ in range(50):
        paceline.step()
        time.sleep(0.05)
    os.write(write, json.dumps([threads(), len(writer.rows) - rows]).encode())
    atexit.unregister(at_exit)
    sys.exit()
os.waitpid(child, 0)
print(os.read(read, 100).decode(), threads())
before = len(writer.rows)
until(lambda: len(writer.rows) > before)
"""
        with Aggregator() as aggregator:
            said, _, out = self.program(script, aggregator)
        self.assertEqual(out, ["[[], 0] ['paceline-trackers']"])
        self.assertEqual(said["flushed"], 1)

    def test_a_lock_held_at_a_fork_holds_up_no_end(self):
        script = """
import signal
tracking = paceline.track(tensorboard=writer, every=1)
until(threads)
held, forked = threading.Event(), threading.Event()
def hold(lock):
    with lock:
        held.set()
        forked.wait()
threading.Thread(target=hold, args=(tracking._stream._end._cond,), daemon=True).start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    atexit.unregister(at_exit)
    tracking.close()
    sys.exit()
forked.set()
print(os.waitpid(child, 0)[1])
paceline.step()
paceline.step()
"""
        with Aggregator() as aggregator:
            _, _, out = self.program(script, aggregator)
        self.assertEqual(out, ["0"])

    def test_a_fork_waits_for_modules_that_are_being_imported(self):
        script = """
import signal
loading, go = threading.Event(), threading.Event()
class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == 'http.client':
            loading.set()
            go.wait()
sys.meta_path.insert(0, Slow)
paceline.track(tensorboard=writer, every=1)
os.register_at_fork(before=go.set)
until(loading.is_set)
child = os.fork()
if not child:
    signal.alarm(20)
    import http.client
    os._exit(0)
print(os.waitpid(child, 0)[1])
paceline.step()
paceline.step()
"""
        with Aggregator() as aggregator:
            _, _, out = self.program(script, aggregator)
        self.assertEqual(out, ["0"])

    def test_closing_writes_a_last_row(self):
        script = """
with paceline.track(tensorboard=writer, every=3600):
    until(threads)
    assert not writer.rows
print(bool(writer.rows), writer.flushed, threads())
rows = len(writer.rows)
paceline.track(tensorboard=writer, every=1)
until(lambda: len(writer.rows) > rows)
"""
        with Aggregator() as aggregator:
            said, _, out = self.program(script, aggregator)
        self.assertEqual((out, said["flushed"]), (["True 1 []"], 2))


if __name__ == "__main__":
    unittest.main()
