"""The factor by which deadlines are longer here than on the machine for which they were chosen.

A deadline ends a wait that would never end. On a machine of a third of the speed what is right takes three
times as long. Measured once for all test processes: they inherit the variable. On a machine that is as fast
the factor is 1, so nothing is loosened there.
"""

import os
import resource
import subprocess
import sys

_VARIABLE = "DPPO_TEST_PATIENCE"
_USUAL_S = 1.2  # computing time of importing torch on the machine that the deadlines were chosen on
_MOST = 6.0


def _import_s() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _patience() -> float:
    if _VARIABLE not in os.environ:
        slowness = min(_import_s() for _ in range(2)) / _USUAL_S
        os.environ[_VARIABLE] = f"{min(_MOST, max(1.0, slowness)):.2f}"
    return float(os.environ[_VARIABLE])


PATIENCE = _patience()
