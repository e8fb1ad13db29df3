#!/usr/bin/env python3
"""Tests the image written by deploy/image/oci.py: `image.py PACELINE PACELINE-OPERATOR [PLUGIN]`. It is unpacked, and
its programs run in it like on a node: read-only root, its user, no privileges, no network. Needs root and unshare.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from tools import ROOT

USER = 65532
CRATES = ["paceline", "paceline-operator", "paceline-nccl-profiler"]
ENTRY = "paceline's image test, inside"


def build(folder, paceline, operator, plugin):
    os.makedirs(os.path.join(folder, "in"))
    for source, name in ((paceline, "paceline"), (operator, "paceline-operator"), (plugin, "libpaceline_nccl.so")):
        shutil.copy(source, os.path.join(folder, "in", name))
        # Strips the programs, as releases do.
        subprocess.run(["strip", os.path.join(folder, "in", name)], check=True)
    for name, what in (("copyright", "licences"), ("paceline.cyclonedx.json", "sbom")):
        with open(os.path.join(folder, "in", name), "w") as file:
            words = [os.path.join(ROOT, "deploy", "package", "contents.py"), what, "x86_64-unknown-linux-gnu", *CRATES]
            subprocess.run(words, stdout=file, check=True)
    words = [sys.executable, os.path.join(ROOT, "deploy", "image", "oci.py")]
    outs = [os.path.join(folder, name) for name in ("out", "again")]
    for out in outs:
        subprocess.run([*words, out, "amd64=" + os.path.join(folder, "in")], check=True)
    indexes = [open(os.path.join(out, "index.json")).read() for out in outs]
    assert indexes[0] == indexes[1], "the same files made another image"
    return outs[0]


def blob(out, of):
    with open(os.path.join(out, "blobs", of["digest"].replace(":", "/")), "rb") as file:
        data = file.read()
    assert len(data) == of["size"] and "sha256:" + hashlib.sha256(data).hexdigest() == of["digest"]
    return data


def unpack(out, root):
    """Returns the image's configuration, and the sizes of its layers."""
    with open(os.path.join(out, "index.json")) as file:
        (entry,) = json.load(file)["manifests"]
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    manifest = json.loads(blob(out, entry))
    config = json.loads(blob(out, manifest["config"]))
    for layer, diff in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = gzip.decompress(blob(out, layer))
        assert "sha256:" + hashlib.sha256(data).hexdigest() == diff
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for one in tar:
                assert (one.uid, one.gid, one.mtime) == (0, 0, 0), one.name
                assert not one.mode & 0o6000, f"{one.name} gives rights"
                assert not one.mode & 0o002 or one.name == "tmp", f"{one.name} may be changed by anybody"
            tar.extractall(root)
    return config["config"], [layer["size"] for layer in manifest["layers"]]


def check_contents(root):
    """The image must contain Paceline's programs, required libraries, their licenses, a user, and nothing else."""
    names = set()
    for folder, _, files in os.walk(root):
        names |= {"/" + os.path.relpath(os.path.join(folder, name), root) for name in files}
    libraries = {name for name in names if re.search(r"\.so(\.[0-9]+)?$", name)} - {"/usr/lib/paceline/libpaceline_nccl.so"}
    terms = {f"/usr/share/doc/{name}/copyright" for name in ("libc6", "libgcc-s1", "paceline")} | {"/usr/share/doc/paceline/paceline.cyclonedx.json"}
    rest = names - libraries - terms
    assert names >= terms, "the licences and the list of what is in it"
    assert rest == {"/usr/bin/paceline", "/paceline-operator", "/usr/lib/paceline/libpaceline_nccl.so", "/etc/passwd", "/etc/group"}, rest
    allowed = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
    assert {os.path.basename(name) for name in libraries} <= allowed, "distroless/cc has no others"


def check_c_library(root):
    """What wrap mode copies into trainers' images must run with the C library of Ubuntu 22.04."""
    for name in ("usr/bin/paceline", "usr/lib/paceline/libpaceline_nccl.so"):
        words = ["readelf", "--wide", "--version-info", os.path.join(root, name)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        newest = max(tuple(map(int, version)) for version in re.findall(r"GLIBC_(\d+)\.(\d+)", said))
        assert newest <= (2, 35), f"{name} needs the C library {newest}"


def inside(root):
    """Runs the checks inside the image. The script calls itself again in separate namespaces for this."""
    def enter():
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)

    def run(*words):
        done = subprocess.run(words, capture_output=True, text=True, preexec_fn=enter, env={"PATH": "/usr/bin"}, check=False)
        assert done.returncode == 0, f"{words}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout

    for name in ("proc", "paceline"):
        os.mkdir(os.path.join(root, name))
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", os.path.join(root, "proc")], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"uid={USER}", "tmpfs", os.path.join(root, "paceline")], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    assert run("/usr/bin/paceline", "--version").startswith("paceline ")
    assert "inject" in run("/paceline-operator", "--help")
    # Runs the commands of a pod's init containers.
    for what, wanted in (("hook", {"sitecustomize.py"}), ("program", {"paceline", "libpaceline_nccl.so"})):
        place = os.path.join(root, "paceline", what)
        os.mkdir(place)
        os.chown(place, USER, USER)
        run("/usr/bin/paceline", "install", f"--{what}", f"/paceline/{what}")
        assert wanted <= set(os.listdir(place)), os.listdir(place)
    # The copied program must start too.
    assert run("/paceline/program/paceline", "--version").startswith("paceline ")


def main():
    if sys.argv[1:2] == [ENTRY]:
        return inside(sys.argv[2])
    paceline, operator, *plugin = sys.argv[1:]
    plugin = plugin[0] if plugin else os.path.join(os.path.dirname(paceline), "libpaceline_nccl.so")
    with tempfile.TemporaryDirectory() as folder:
        out, root = build(folder, paceline, operator, plugin), os.path.join(folder, "root")
        config, sizes = unpack(out, root)
        assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/usr/bin/paceline"]
        check_contents(root)
        check_c_library(root)
        os.chmod(folder, 0o755)
        os.chmod(root, 0o755)
        here = ["unshare", "--mount", "--pid", "--fork", "--net", "--ipc", sys.executable, os.path.abspath(__file__), ENTRY, root]
        subprocess.run(here, check=True)
    print(f"the image's programs run in it; its layers have {' and '.join(f'{size / 1e6:.1f} MB' for size in sizes)}")


main()
