#!/usr/bin/env python3
"""Writes nvml.tsv: what the NVML of each driver defines, by NVIDIA's own headers. tests/fake-nvml plays drivers by it.

    mkdir WHEELS && python3 generate.py --fetch WHEELS           # the pip commands; they need a network
    python3 generate.py WHEELS                                   # writes nvml.tsv
    python3 generate.py WHEELS --check                           # ends with 1 where nvml.tsv is not what it would write

nvml.h is in the wheels nvidia-nvml-dev-cu12 (CUDA 12) and nvidia-nvml-dev (CUDA 13). A header does not name its driver,
so each is compared with NVIDIA's bindings for that driver, nvidia-ml-py: names in both must have the same number, or
nothing is written.
"""

import argparse
import os
import re
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "nvml.tsv")

# The drivers: the first version that the column covers, CUDA, the wheel with its nvml.h, and nvidia-ml-py for that
# driver.
DRIVERS = [
    ("535", "12.2", "nvidia-nvml-dev-cu12", "12.2.140", "12.535.161"),
    ("550", "12.4", "nvidia-nvml-dev-cu12", "12.4.127", "12.550.89"),
    ("570", "12.8", "nvidia-nvml-dev-cu12", "12.8.90", "12.570.172"),
    ("575.51", "12.9", "nvidia-nvml-dev-cu12", "12.9.40", "12.575.51"),
    ("580.65", "13.0", "nvidia-nvml-dev", "13.0.39", "13.580.65"),
    ("580.82", "13.0 Update 1", "nvidia-nvml-dev", "13.0.87", "13.580.82"),
    ("590", "13.1", "nvidia-nvml-dev", "13.1.68", "13.590.44"),
    ("610", "13.3", "nvidia-nvml-dev", "13.3.29", "13.610.43"),
]

CONSTANTS = ["NVML_FI_MAX", "NVML_NVLINK_MAX_LINKS", "NVML_GPM_METRICS_GET_VERSION", "NVML_GPM_SUPPORT_VERSION"]
# The kinds of rows, in the order of the table.
KINDS = ["constant", "structure", "event", "field", "function"]


def wheel(folder, package, version):
    """The wheel of a package in a folder."""
    begins = "%s-%s-" % (package.replace("-", "_"), version)
    for name in sorted(os.listdir(folder)):
        if name.startswith(begins) and name.endswith(".whl"):
            return zipfile.ZipFile(os.path.join(folder, name))
    sys.exit("no %s*.whl in %s: see --fetch" % (begins, folder))


def member(archive, ending):
    """The text of the one file in a wheel whose path has this ending."""
    (path,) = [name for name in archive.namelist() if name.endswith(ending)]
    return archive.read(path).decode("latin-1")


def number(text):
    """A C literal as a number; None for anything else."""
    text = text.strip().rstrip("uUlL")
    try:
        return int(text, 0)
    except ValueError:
        return None


def header(text):
    """The definitions in an nvml.h: {(kind, name): number}. A function counts as 1."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    found = {}
    defines = dict(re.findall(r"^[ \t]*#define[ \t]+(\w+)[ \t]+([^\n]+)", text, flags=re.M))
    for name, value in defines.items():
        # Some names are aliases of a field.
        resolved = number(defines.get(value.strip(), value))
        structure = re.match(r"NVML_STRUCT_VERSION\(\s*\w+\s*,\s*(\d+)\s*\)", value)
        if structure:
            found["structure", name] = int(structure.group(1))
        elif resolved is None:
            continue
        elif name in CONSTANTS:
            found["constant", name] = resolved
        elif name.startswith("NVML_FI_"):
            found["field", name] = resolved
        elif re.match(r"nvmlEvent[A-Z]", name):
            found["event", name] = resolved
    for name in re.findall(r"\bDECLDIR\s+(nvml\w+)\s*\(", text):
        found["function", name] = 1
    return found


def compare(driver, found, bindings):
    """Exits if the header and the bindings of one driver have different numbers for a field."""
    known = re.findall(r"^(NVML_FI_(?!MAX)\w+)\s*=\s*(\d+)", bindings, flags=re.M)
    if len(known) < 100:
        sys.exit("%s: nvidia-ml-py is not as this program knows it: %d fields" % (driver, len(known)))
    for name, value in known:
        here = found.get(("field", name), int(value))
        if here != int(value):
            sys.exit("%s: %s is %d in nvml.h and %s in nvidia-ml-py" % (driver, name, here, value))


def table(folder):
    """The text of nvml.tsv."""
    lines, columns = ["# What the NVML of each driver defines. Written by generate.py from nvml.h; not to be edited."], []
    for driver, cuda, package, version, bindings in DRIVERS:
        found = header(member(wheel(folder, package, version), "include/nvml.h"))
        compare(driver, found, member(wheel(folder, "nvidia-ml-py", bindings), "pynvml.py"))
        columns.append(found)
        source = "# %s: nvml.h of CUDA %s (%s %s), with the field numbers of nvidia-ml-py %s"
        lines.append(source % (driver, cuda, package, version, bindings))
    lines.append("# A field's number, an event's bit, a structure's version, 1 for a function; - where that driver has none.")
    lines.append("\t".join(["kind", "name", *(driver for driver, *_ in DRIVERS)]))

    def place(key):
        kind, name = key
        newest = next(found[key] for found in reversed(columns) if key in found)
        return KINDS.index(kind), 0 if kind == "function" else newest, name

    for kind, name in sorted(set().union(*columns), key=place):
        cells = [found.get((kind, name)) for found in columns]
        lines.append("\t".join([kind, name, *("-" if cell is None else str(cell) for cell in cells)]))
    return "\n".join(lines) + "\n"


def fetch(folder):
    """The commands that download the wheels into a folder. A wheel of headers has a platform, so it is given."""
    pip = "python3 -m pip download --no-deps --only-binary :all: --platform manylinux1_x86_64 --platform manylinux2014_x86_64"
    for _, _, package, version, bindings in DRIVERS:
        for name in ("%s==%s" % (package, version), "nvidia-ml-py==%s" % bindings):
            print("%s -d %s %s" % (pip, folder, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("wheels", help="folder with the wheels")
    parser.add_argument("--fetch", action="store_true", help="print the commands that fetch them, and do nothing else")
    parser.add_argument("--check", action="store_true", help="compare with nvml.tsv instead of writing it")
    options = parser.parse_args()
    if options.fetch:
        fetch(options.wheels)
        return
    text = table(options.wheels)
    if options.check:
        with open(TABLE, encoding="utf-8") as file:
            sys.exit(0 if file.read() == text else "nvml.tsv is not what the headers say")
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
