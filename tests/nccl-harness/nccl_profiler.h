/* What NCCL and a profiler plugin say to each other, as far as this harness plays NCCL: written from the public headers
 * https://github.com/NVIDIA/nccl/blob/master/src/include/plugin/profiler/profiler_v4.h to profiler_v7.h. */
#ifndef PACELINE_NCCL_PROFILER_H
#define PACELINE_NCCL_PROFILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EVENT_GROUP = 1,
    EVENT_COLL = 2,
    EVENT_P2P = 4,
    EVENT_PROXY_OP = 8,
    EVENT_PROXY_STEP = 16,
    EVENT_KERNEL_CH = 64,
    EVENT_GROUP_API = 256,
    EVENT_COLL_API = 512,
    EVENT_P2P_API = 1024
};
enum { STATE_KERNEL_CH_STOP = 22 };

#define COLL_FIELDS                                                                                                    \
    uint64_t seqNumber;                                                                                                \
    const char *func;                                                                                                  \
    void const *sendBuff;                                                                                              \
    void *recvBuff;                                                                                                    \
    size_t count;                                                                                                      \
    int root;                                                                                                          \
    const char *datatype;                                                                                              \
    uint8_t nChannels;                                                                                                 \
    uint8_t nWarps;                                                                                                    \
    const char *algo;                                                                                                  \
    const char *proto;

#define P2P_FIELDS                                                                                                     \
    const char *func;                                                                                                  \
    void *buff;                                                                                                        \
    const char *datatype;                                                                                              \
    size_t count;                                                                                                      \
    int peer;                                                                                                          \
    uint8_t nChannels;

/* Since version 5. */
#define API_MEMBERS                                                                                                    \
    struct {                                                                                                           \
        bool graphCaptured;                                                                                            \
        int groupDepth;                                                                                                \
    } groupApi;                                                                                                        \
    struct {                                                                                                           \
        const char *func;                                                                                              \
        size_t count;                                                                                                  \
        const char *datatype;                                                                                          \
        int root;                                                                                                      \
        void *stream;                                                                                                  \
        bool graphCaptured;                                                                                            \
    } collApi;                                                                                                         \
    struct {                                                                                                           \
        const char *func;                                                                                              \
        size_t count;                                                                                                  \
        const char *datatype;                                                                                          \
        void *stream;                                                                                                  \
        bool graphCaptured;                                                                                            \
    } p2pApi;

struct kernel_ch {
    uint8_t channelId;
    uint64_t pTimer;
};

typedef struct {
    uint8_t type;
    void *parentObj;
    int rank;
    union {
        struct {
            COLL_FIELDS
        } coll;
        struct {
            P2P_FIELDS
        } p2p;
        struct kernel_ch kernelCh;
    };
} descr_v4;

typedef struct {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct {
            COLL_FIELDS
            void *parentGroup;
        } coll;
        struct {
            P2P_FIELDS
            void *parentGroup;
        } p2p;
        API_MEMBERS
        struct kernel_ch kernelCh;
    };
} descr_v5;

typedef struct {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct {
            COLL_FIELDS
            void *parentGroup;
            const char *kernelVariant;
            bool isSymColl;
            uint64_t userTag;
        } coll;
        struct {
            P2P_FIELDS
            void *parentGroup;
            uint64_t userTag;
        } p2p;
        API_MEMBERS
        struct kernel_ch kernelCh;
    };
} descr_v7;

typedef union {
    size_t transSize;
    void *data;
    struct {
        uint64_t pTimer;
    } kernelCh;
} state_args;

_Static_assert(sizeof(descr_v4) == 104, "v4");
_Static_assert(sizeof(descr_v5) == 112, "v5, and v6, whose ceColl is no longer");
_Static_assert(sizeof(descr_v7) == 136, "v7");

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
    const char *name;
    union {
        int (*v4)(void **, int *, const char *, uint64_t, int, int, int, logger);
        int (*v5)(void **, uint64_t, int *, const char *, int, int, int, logger);
    } init;
    int (*startEvent)(void *, void **, void *);
    int (*stopEvent)(void *);
    int (*recordEventState)(void *, int, state_args *);
    int (*finalize)(void *);
} profiler;

_Static_assert(sizeof(profiler) == 48, "six pointers");

#endif
