"""What code of models prints in the server's process, and in those that it forks."""

import subprocess
import sys

CODE = """
import multiprocessing
import sys
from modserve.observability.standard_streams import unblock


def work():
    print("of the child")
    kept.writelines(["its ", "error\\n"])


with unblock():
    kept = sys.stderr
    print("of the parent")
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    print("behind it")
"""


def test_processes_that_a_model_forks_print_as_the_model_does() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == ["behind it", "of the child", "of the parent"]
    assert done.stderr == "its error\n"


FLUSHED = """
import os
import sys
from modserve.observability.standard_streams import unblock

with unblock():
    print("the beginning, ", end="", flush=True)
    sys.stdout.writer.flush()
    os.write(1, b"something between, ")
    print("the end")
    print("of no line", end="")
"""


def test_the_beginning_of_a_line_is_written_at_a_flush_and_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", FLUSHED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "the beginning, something between, the end\nof no line"
