"""The libnccl.so.2 of a wheel, pinned in ../setup/nccl_wheels.txt."""

import errno
import os
import re
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
PINS = os.path.join(HERE, "..", "setup", "nccl_wheels.txt")
LIBRARY = "libnccl.so.2"
DISK = "it takes 1 GB of free disk under --home for a moment"
# Hints by pip's message; the first match applies.
HINTS = [
    ("DO NOT MATCH THE HASHES", "this is not the file that tests/setup/nccl_wheels.txt pins: find out why before you change the pin"),
    ("(from versions: none)", "pip reaches no package index: see pip config list"),
    ("No matching distribution", "the index does not offer this version to this architecture and Python"),
    ("No module named pip", "run this with a Python that has pip, such as HOME/torch/bin/python of tests/setup/torch.sh"),
    ("No space left", DISK),
]


class FetchError(Exception):
    """No library, with a hint."""


def pins():
    """{"2.27.7": its lines for pip}, the newest version last."""
    with open(PINS) as file:
        text = "".join(line for line in file if not line.startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    found = {re.search(r"==(\S+)", line)[1]: " ".join(line.split()) for line in lines}
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")]))


def fetch(home, version, pin):
    """The library's path under `home`. The wheel is downloaded once, and only its library is kept."""
    folder = os.path.join(home, "nccl-wheels", version)
    library, stamp = os.path.join(folder, LIBRARY), os.path.join(folder, "pin")
    if os.path.exists(library) and read(stamp) == stamped(pin, library):
        return library
    part = os.path.join(folder, "part")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(part)
        unpack(download(part, version, pin), library)
    except OSError as error:
        hint = DISK if error.errno == errno.ENOSPC else "--home must be a folder that can be written to"
        raise FetchError(f"NCCL {version}: {error}\n  hint: {hint}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    # Last: after an interruption everything is fetched again.
    with open(stamp, "w") as file:
        file.write(stamped(pin, library))
    return library


def stamped(pin, library):
    return f"{pin}\n{os.path.getsize(library)} bytes\n"


def download(part, version, pin):
    requirement = os.path.join(part, "requirement.txt")
    with open(requirement, "w") as file:
        file.write(pin + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", part, "--requirement", requirement]
    # pip's temporary files use the same disk: /tmp may be small.
    ended = subprocess.run(command, env={**os.environ, "TMPDIR": part}, capture_output=True, text=True)
    wheels = [name for name in os.listdir(part) if name.endswith(".whl")]
    if ended.returncode or len(wheels) != 1:
        raise FetchError(f"NCCL {version}: pip could not download the wheel:\n{indented(ended.stderr)}\n  hint: {advice(ended.stderr)}")
    return os.path.join(part, wheels[0])


def advice(said):
    for text, what in HINTS:
        if text in said:
            return what
    return "what was fetched before is used again without a network"


def unpack(wheel, library):
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if os.path.basename(name) == LIBRARY]
            if len(names) != 1:
                raise FetchError(f"{os.path.basename(wheel)} has {len(names)} files {LIBRARY}, and not one: is it a wheel of NCCL?")
            with archive.open(names[0]) as source, open(library, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{os.path.basename(wheel)} is damaged: {error}\n  hint: try again") from error


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def indented(text):
    return "\n".join("    " + line for line in text.strip().splitlines()[-6:])
