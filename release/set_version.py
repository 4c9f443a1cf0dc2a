"""Sets the version of the core and of all plugins: they are released in step.

python release/set_version.py 0.2.0
"""

from __future__ import annotations

import sys

from distributions import ReleaseError, misfits, set_version

if __name__ == "__main__":
    try:
        (new,) = sys.argv[1:]
        set_version(new)
    except (ReleaseError, ValueError) as error:
        sys.exit(f"{error}\nusage: python release/set_version.py VERSION")
    for line in misfits():
        print(line)
    sys.exit(1 if misfits() else 0)
