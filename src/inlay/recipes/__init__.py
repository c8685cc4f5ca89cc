"""The papers' tables as files: how one was made, what it reports, and one's own numbers beside it.

A recipe is one TOML file in this folder, and its name is the file's; there is no other list of them. `find` also takes
the path of a file of one's own.
"""

from __future__ import annotations

from inlay.recipes.reading import find as find
from inlay.recipes.reading import names as names
