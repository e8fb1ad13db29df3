"""Runs all tests, as many at a time as there are CPUs; then, one by one, those that measure durations (once more if
they fail, because other load on the machine affects them).

    python tests/side_by_side.py [WORD...]     only those whose name has one of the words

`python -m unittest discover -s tests` runs the same tests in one process, one after the other.
"""

import io
import multiprocessing
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def measures_time(test):
    """Return whether the test's class or method declares `measures_time = True`."""
    return getattr(type(test), "measures_time", False) or getattr(
        getattr(test, test._testMethodName, None), "measures_time", False
    )


def run(name):
    """Run a test in a worker. Return (name, seconds, skipped, failure output)."""
    began = time.monotonic()
    said = io.StringIO()
    result = unittest.TextTestRunner(stream=said, verbosity=0).run(unittest.defaultTestLoader.loadTestsFromName(name))
    wrong = "" if result.wasSuccessful() and result.testsRun == 1 else said.getvalue()
    return name, time.monotonic() - began, bool(result.skipped), wrong


def run_timed(name):
    result = run(name)
    if not result[3]:
        return result
    print("once more: %s\n%s" % (name, result[3]), flush=True)
    return run(name)


def main(words):
    sys.path.insert(0, HERE)
    tests = [t for t in each(unittest.defaultTestLoader.discover(HERE)) if not words or any(w in t.id() for w in words)]
    # Torch tests come first, because they are long, and long tests should not start last.
    tests.sort(key=lambda test: not test.id().startswith(("test_torch.", "test_ranks.", "test_callbacks.")))
    apart = [test.id() for test in tests if measures_time(test)]
    beside = [test.id() for test in tests if not measures_time(test)]
    began, skipped, failed = time.monotonic(), 0, []
    with multiprocessing.get_context("fork").Pool(os.cpu_count() or 1) as workers:
        for results in (workers.imap_unordered(run, beside), map(run_timed, apart)):
            for name, seconds, was_skipped, wrong in results:
                skipped += was_skipped
                if wrong:
                    failed.append(name)
                if wrong or seconds > 5:
                    print("%-80s %5.1f s %s\n%s" % (name, seconds, "FAILED" if wrong else "", wrong), end="", flush=True)
        workers.close()
        workers.join()
    took = time.monotonic() - began
    print("%d tests in %.0f s: %d skipped, %d failed %s" % (len(tests), took, skipped, len(failed), " ".join(failed)))
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
