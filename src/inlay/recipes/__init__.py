"""The papers' tables as files: how a table was made, what it reports, and your own numbers beside it.

A recipe is one TOML file in this folder, and its name is the file's; there is no other list of them. `find` also takes
the path of your own file.
"""

from __future__ import annotations

from inlay.recipes.reading import find as find
from inlay.recipes.reading import names as names
