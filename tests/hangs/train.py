"""train.py KIND [BACKEND [TIMEOUT]]: a DDP job over gloo, or on GPUs, in which rank 2 hangs in step 150. The line at which it hangs,
or its loader worker, ends in a comment with the kind (`nccl:`, on GPUs alone). `slow-...`: what looks like a hang and is none.
TIMEOUT: seconds after which PyTorch gives up a collective."""

import atexit
import ctypes
import datetime
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import stalled_mount
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK, HANGS_AT, STEPS, SUSPECT = int(os.environ["RANK"]), 150, 200, 2
FOREVER = 1000.0
kind, backend = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "gloo"
timeout = datetime.timedelta(seconds=float(sys.argv[3])) if len(sys.argv) > 3 else None
if backend == "nccl-legacy" and not hasattr(dist.distributed_c10d, "ProcessGroupNCCL2"):
    backend = "nccl"  # of a PyTorch that has one alone
device = "cpu"
if backend != "gloo":
    device = "cuda:%d" % (int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    if torch.cuda.device_count() == 1:  # NCCL refuses two ranks of a host on one GPU
        os.environ["NCCL_HOSTID"] = "host-%d" % RANK


def stalled_pipe():
    """A pipe without another end, opened for reading and writing."""
    path = os.path.join(tempfile.mkdtemp(), "pipe")
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


class Samples(Dataset):
    """Reads of one sample never end."""

    def __init__(self):
        self.pipe = stalled_pipe() if RANK == SUSPECT and kind == "loader-read" else None

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if self.pipe is not None and index == 8 * HANGS_AT:
            os.read(self.pipe, 1)  # loader-read
        if RANK == SUSPECT and kind == "loader-fuse" and index == 8 * HANGS_AT:
            open(stalled_mount.mounted(), "rb").read(1)  # loader-fuse
        return torch.ones(64)


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # lock


def wait_for_a_condition():
    threading.Event().wait()  # condition


def hold_the_gil():
    ctypes.PyDLL(None).read(stalled_pipe(), ctypes.create_string_buffer(1), 1)  # gil


def wait_for_a_queue():
    queue.Queue().get()  # queue


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)  # stopped


def read_a_stalled_pipe():
    os.read(stalled_pipe(), 1)  # read


def read_from_storage():
    open(stalled_mount.mounted(), "rb").read(1)  # fuse


def save_a_checkpoint():
    pipe = stalled_pipe()
    while True:
        os.write(pipe, bytes(1 << 16))  # checkpoint


def ask_a_server():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.recv(1)  # server


def run_a_program():
    subprocess.run(["sleep", str(FOREVER)])  # subprocess


def evaluate_alone():
    matrix, end = torch.ones(64, 64), time.monotonic() + FOREVER
    while time.monotonic() < end:  # evaluation
        matrix = (matrix @ matrix).clamp(0, 1)  # evaluation


def retry():
    while True:
        time.sleep(1.0)  # retry


def sleep_in_a_hook(gradient):
    if count.step == HANGS_AT:
        time.sleep(FOREVER)  # hook


def end_badly():
    atexit.register(lambda: threading.Event().wait())  # exception
    raise RuntimeError("something went wrong")


ALONE = {
    "lock": wait_for_a_lock,
    "condition": wait_for_a_condition,
    "gil": hold_the_gil,
    "queue": wait_for_a_queue,
    "stopped": stop_itself,
    "read": read_a_stalled_pipe,
    "fuse": read_from_storage,
    "checkpoint": save_a_checkpoint,
    "server": ask_a_server,
    "subprocess": run_a_program,
    "evaluation": evaluate_alone,
    "retry": retry,
    "exception": end_badly,
}


class Count:
    step = 0


count = Count()


def in_step(groups):
    """What goes wrong in the step, before its backward."""
    if kind == "slow-checkpoint" and RANK == 0:
        time.sleep(10)
    if RANK != SUSPECT:
        if kind == "barrier":
            dist.barrier()
        if kind == "order":
            dist.all_reduce(torch.ones(1, device=device), group=groups[0])
            dist.all_reduce(torch.ones(1, device=device), group=groups[1])
        if kind == "gather":
            dist.all_gather_into_tensor(torch.empty(4, device=device), torch.ones(1, device=device))
        return
    if kind in ALONE:
        ALONE[kind]()
    if kind == "gather":
        dist.all_reduce(torch.ones(4, device=device))  # gpu: gather
    if kind == "order":
        dist.all_reduce(torch.ones(1, device=device), group=groups[1])  # gloo gpu: order
        dist.all_reduce(torch.ones(1, device=device), group=groups[0])


def main():
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timeout)
    groups = [dist.new_group(timeout=timeout), dist.new_group(timeout=timeout)]
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    workers = 2 if kind.startswith("loader-") else 0
    loader = iter(DataLoader(Samples(), batch_size=8, num_workers=workers))
    if kind == "hook" and RANK == SUSPECT:
        model.module.weight.register_hook(sleep_in_a_hook)
    for count.step in range(STEPS):
        data = next(loader)  # loader-read loader-fuse
        if count.step == HANGS_AT:
            in_step(groups)
            if kind == "early" and RANK == SUSPECT:
                break
        loss = model(data.to(device)).sum()  # nccl: order gather
        loss.backward()  # gloo: barrier
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # nccl gpu: order gather barrier
        time.sleep(0.05)
    dist.barrier()  # early
    dist.destroy_process_group()


main()
