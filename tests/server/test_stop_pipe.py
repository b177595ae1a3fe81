"""A signal ends the main thread's wait whichever thread the kernel gives it to."""

import subprocess
import sys

import pytest

_WAITS = """
import os, signal, sys, threading, time
from penstock_server.process.stop_pipe import StopPipe

pipe = StopPipe()
pipe.install_signals(has_parent=sys.argv[1] == "parent")
number = signal.Signals[sys.argv[2]]

def asleep():
    # `S` is the state of a process whose main thread waits in `read`.
    return open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[0] == "S"

def send():
    while not asleep():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), number)
    time.sleep(60)

threading.Thread(target=send, daemon=True).start()
pipe.wait()
print("woken", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("args", [("parent", "SIGTERM"), ("alone", "SIGTERM"), ("alone", "SIGINT")])
def test_a_signal_that_another_thread_gets_wakes_the_main_thread(args: tuple[str, str]) -> None:
    command = [sys.executable, "-c", _WAITS, *args]
    waited = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    assert waited.stdout == "woken\n"
