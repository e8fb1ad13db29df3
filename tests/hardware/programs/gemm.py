"""What PyTorch makes of the same product and copies as Paceline's preflight: TFLOP/s, and GB/s read and written."""

import json
from statistics import median

import torch

SIDE, BYTES, PASSES = 8192, 1 << 30, 10


def timed(work):
    """Seconds of the median pass."""
    took = []
    for _ in range(PASSES + 3):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        ended.synchronize()
        took.append(began.elapsed_time(ended) / 1e3)
    return median(took[3:])


def main():
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.zeros(BYTES, device="cuda", dtype=torch.uint8) for _ in range(2))
    host = torch.zeros(BYTES // 4, dtype=torch.uint8).pin_memory()
    part = target[: BYTES // 4]
    result = {
        "gemm": 2 * SIDE**3 / timed(lambda: a @ b) / 1e12,
        "gpu_memory": 2 * BYTES / timed(lambda: target.copy_(source)) / 1e9,
        "host_to_device": BYTES / 4 / timed(lambda: part.copy_(host, non_blocking=True)) / 1e9,
        "device_to_host": BYTES / 4 / timed(lambda: host.copy_(part, non_blocking=True)) / 1e9,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
