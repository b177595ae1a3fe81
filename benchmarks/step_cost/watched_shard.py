"""A shard that tells the processor time of its threads: `python -m benchmarks.step_cost.watched_shard FLAG …`.

For every line that it reads it writes one: nanoseconds of processor time, by the name of the thread. Those that Python
does not know have the name "others".
"""

import json
import sys
import threading
from collections import Counter
from pathlib import Path

from penstock_server.process.cli import main

_OTHERS = "others"


def _nanoseconds() -> Counter[str]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    spent: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        spent[names.get(int(task.name), _OTHERS)] += int((task / "schedstat").read_text().split()[0])
    del spent[threading.current_thread().name]
    return spent


def _answer() -> None:
    for _line in sys.stdin:
        print(json.dumps(_nanoseconds()), flush=True)


threading.Thread(target=_answer, name="answers", daemon=True).start()
sys.exit(main(sys.argv[1:]))
