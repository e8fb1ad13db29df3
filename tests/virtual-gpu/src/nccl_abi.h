/* The part of nccl.h that PyTorch calls, from https://github.com/NVIDIA/nccl/blob/master/src/nccl.h.in:
 * declared here, since NCCL's wheel is 200 MB for one header. */
#ifndef NCCL_ABI_H
#define NCCL_ABI_H

#include "vgpu.h"

typedef struct comm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress
} ncclResult_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg } ncclRedOp_t;

typedef enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes
} ncclDataType_t;

/* Its beginning; NCCL only appends to it. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName; /* since 2.27 */
} ncclConfig_t;

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#endif
