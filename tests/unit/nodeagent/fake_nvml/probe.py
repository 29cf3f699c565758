"""
Looks at the library whose path is the first argument each time a line `look` arrives, and prints what it saw. `limit
UUID GROUP BYTES SOFT` limits memory instead (0 for no limit), and prints any error. `exclusive UUID` prints whether the
compute mode is exclusive; with a following `yes` or `no` it sets the mode and prints any error.

Each library needs its own process, because the bindings load one library for the whole life of a process.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from nodeagent.gpus.library import MemoryLimit
from nodeagent.gpus.nvml import Nvml
from nodeagent.gpus.observation import look

library = Nvml(path=sys.argv[1])
for line in sys.stdin:
    word, *rest = line.split()
    if word == "limit":
        uuid, group, hard, soft = rest
        limit = MemoryLimit(int(hard), int(soft)) if int(hard) else None
        print(json.dumps(library.limit_memory(uuid, group, limit)), flush=True)
    elif word == "exclusive":
        uuid, *wish = rest
        print(json.dumps(library.set_exclusive(uuid, wish == ["yes"]) if wish else library.exclusive(uuid)), flush=True)
    else:
        print(json.dumps(asdict(look(library))), flush=True)
