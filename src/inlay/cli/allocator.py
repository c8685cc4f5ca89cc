"""How this process asks the system for memory. Only the command line does this: a library leaves its process alone.

glibc hands every large block back as soon as it is free, and the next one comes page by page again, zeroed. On the
CPU every activation of a batch is such a block.
"""

from __future__ import annotations

import os
import sys

_TRIM, _MAP = -1, -3
"""glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
_USER_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_memory() -> bool:
    """Let glibc keep freed blocks up to 32 MiB (the most it allows), and 1 GiB of them; False if nothing was done.

    Settings that the user has made in the environment stay, and only Linux with glibc is touched.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _USER_SETTINGS):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(_MAP, 32 << 20)) and bool(mallopt(_TRIM, 1 << 30))
