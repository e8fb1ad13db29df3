"""Where a run finds what it needs: Paceline, a Python with PyTorch, folders; and how it starts jobs with them."""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
VIRTUAL = HERE.parent / "virtual-gpu"
USUAL = ["/opt/*/bin/python3", "/opt/*/.venv/bin/python3", "/opt/*/*/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3"]
# What decides what a job does is this program's, not the caller's.
OURS = ("VGPU_", "PACELINE_", "NCCL_", "TORCH_NCCL_")
# NCCL's version by the library that is loaded: torch.cuda.nccl.version() is what PyTorch was built with.
ASKED = """import ctypes, json, torch
gpus = torch.cuda.device_count()
version = ctypes.c_int()
with open("/proc/self/maps", encoding="utf-8") as maps:
    nccl = next((line.split()[-1] for line in maps if "libnccl.so" in line), None)
ctypes.CDLL(nccl).ncclGetVersion(ctypes.byref(version))
number = version.value
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus,
    "nccl": "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100),
    "gpu": torch.cuda.get_device_name(0) if gpus else "no GPU"}))"""


class Setting:
    """Of a run."""

    def __init__(self, carry, out, virtual, nvml_lib):
        self.out = pathlib.Path(out).resolve()
        self.paceline = str(pathlib.Path(carry, "paceline").resolve())
        self.virtual = pathlib.Path(virtual).resolve() if virtual else None
        self.nvml_lib = nvml_lib
        self.scratch = self.python = None
        self.versions = {}

    def find_python(self):
        """The first Python whose PyTorch has CUDA; whether there is one."""
        usual = [path for pattern in USUAL for path in sorted(glob.glob(pattern))]
        tried = [str(self.virtual / "torch-cuda/bin/python")] if self.virtual else [shutil.which("python3"), sys.executable, *usual]
        for python in dict.fromkeys(filter(None, tried)):
            done = subprocess.run(
                [python, "-c", ASKED], env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
            )
            if done.returncode == 0:
                self.python, self.versions = python, json.loads(done.stdout)
                return True
        return False

    def environment(self, **more):
        """For four ranks that each say they are on a host of their own: what they send goes by sockets of this machine."""
        made = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        made.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", PYTHONUNBUFFERED="1")
        if self.virtual:
            made.update(VGPU_DEVICES="1")
        else:
            made.update(CUDA_VISIBLE_DEVICES="0", NCCL_SOCKET_IFNAME="lo", NCCL_NET="Socket", NCCL_DEBUG="INFO")
        made.update(more)
        return made

    def folder(self, name):
        """A new one."""
        made = self.scratch / name
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        return made

    def watched(self, run_dir, job, *flags):
        """The command that runs a job under Paceline."""
        words = [self.paceline, "run", "--quiet", "--run-dir", str(run_dir), *flags]
        if self.virtual:
            words += ["--sim-gpus", "gpus=1"]
        elif self.nvml_lib:
            words += ["--nvml-lib", self.nvml_lib]
        return [*words, "--", *map(str, job)]

    def torchrun(self, ranks, program, *words):
        # Without a network, the machine's name may have no address.
        launch = [self.python, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=%d" % ranks]
        return [*launch, str(HERE / "programs" / program), *map(str, words)]

    def program(self, name, *words):
        return [self.python, str(HERE / "programs" / name), *map(str, words)]
