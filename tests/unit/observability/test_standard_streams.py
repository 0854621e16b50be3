"""What code of models prints in the server's process, and in those that it forks."""

import subprocess
import sys

CODE = """
import multiprocessing
import sys
from modserve.observability.standard_streams import unblocked


def work():
    print("of the child")
    kept.writelines(["its ", "error\\n"])


with unblocked():
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
