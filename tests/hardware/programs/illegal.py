"""As illegal.cu, for machines without nvcc: the compiler is the one that PyTorch brings."""

import sys

import torch

SOURCE = 'extern "C" __global__ void write_to(int where) { *(int *)(long long)where = 1; }'


def main():
    kernel = torch.cuda._compile_kernel(SOURCE, "write_to")
    try:
        kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[0x100])
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        return 0 if "illegal" in str(error) else 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
