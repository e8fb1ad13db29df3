"""`python -m paceline`: run the program of the wheel installed here, otherwise the one on PATH."""

import os
import shutil
import sys
from importlib import metadata


def program():
    """Return the path of the program, or None if there is none."""
    try:
        files = metadata.files("paceline") or ()
    except metadata.PackageNotFoundError:
        files = ()
    scripts = [file.locate() for file in files if file.name == "paceline" and file.parent.name == "bin"]
    return next((str(script) for script in scripts if os.access(script, os.X_OK)), shutil.which("paceline"))


def main():
    found = program()
    if found is None:
        sys.exit("python -m paceline: no program is installed beside this Python or on PATH; try `pip install paceline`")
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
