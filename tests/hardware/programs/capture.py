"""Steps with an all-reduce each, first one by one, then captured and replayed, then one by one again; then the end of NCCL.

torchrun --standalone --nproc-per-node=2 capture.py --out FOLDER. RANK.json says what the graph holds and how long the end took.
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys
import time

os.environ["NCCL_HOSTID"] = "hw-" + os.environ["RANK"]
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "virtual-gpu" / "programs")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import busy  # noqa: E402

BEFORE, REPLAYS, AFTER = 24, 40, 16  # steps
WORK_MS = 20
ELEMENTS = 64 << 10
TYPE_HOST = 3  # cudaGraphNodeTypeHost, driver_types.h


def nodes(graph):
    """How many the captured graph has, and how many of them are calls of the host; None where the library does not say."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next((line.split()[-1] for line in maps if "libcudart" in line), None)
    library = ctypes.CDLL(path)
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    library.cudaGraphGetNodes(handle, None, ctypes.byref(count))
    found = (ctypes.c_void_p * count.value)()
    library.cudaGraphGetNodes(handle, found, ctypes.byref(count))
    if not hasattr(library, "cudaGraphNodeGetType"):
        return count.value, None
    kinds = []
    for node in found:
        kind = ctypes.c_int()
        library.cudaGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds.append(kind.value)
    return count.value, kinds.count(TYPE_HOST)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    keep_busy = busy.Busy(busy.cycles_a_ms())
    weights = torch.nn.Parameter(torch.zeros(ELEMENTS, device="cuda"))
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.SGD([weights], lr=1e-3)

    def reduced():
        keep_busy(WORK_MS)
        dist.all_reduce(weights.grad)

    def steps(count, collective):
        for _ in range(count):
            collective()
            optimizer.step()
            torch.cuda.synchronize()

    steps(BEFORE, reduced)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    result = {"captured": "captured"}
    try:
        with torch.cuda.graph(graph):
            reduced()
        result["nodes"], result["host_nodes"] = nodes(graph)
        graph.instantiate()
        steps(REPLAYS, graph.replay)
    except RuntimeError as error:
        result["captured"] = str(error).splitlines()[0]
    steps(AFTER, reduced)
    del graph
    began = time.monotonic()
    dist.destroy_process_group()
    result["destroy_s"] = time.monotonic() - began
    pathlib.Path(options.out, os.environ["RANK"] + ".json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
