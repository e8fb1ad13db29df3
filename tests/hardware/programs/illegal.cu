/* Writes where nothing is: XID 31 in the kernel log, an illegal address for this process, nothing for any other. */
#include <cstdio>

__global__ void write_to(int *where) {
    *where = 1;
}

int main() {
    write_to<<<1, 1>>>(reinterpret_cast<int *>(0x100));
    cudaError_t error = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorName(error));
    return error == cudaErrorIllegalAddress ? 0 : 1;
}
