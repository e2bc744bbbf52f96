#pragma once

#include <penstock/c/memory.h>

PENSTOCK_C_BEGIN

/* Keeps tensors, which are named bytes, in host memory under a budget and in swap files, and moves them between the
 * two. Every block that is read back is verified.
 *
 * Safe from any thread. Leases of a tensor belong to the thread that began them. */
typedef struct penstock_runtime penstock_runtime;

/* One directory on one drive. */
typedef struct penstock_path {
  size_t size;
  const char* directory;
  uint64_t capacity;      /* most bytes of its swap file, which are reserved */
  double weight;          /* its share of the bytes is weight / (the sum of all weights); 0: 1 */
  uint64_t request_max;   /* most bytes of one request; 0: 4 MiB */
  uint64_t in_flight_max; /* 0: 16 MiB */
  penstock_io_engine engine;
  double deadline_seconds; /* for one request; 0: 60 */
  /* As in penstock_report_drive: for reports, and where all paths have one, PENSTOCK_EVICT_PLANNED evicts copies on the
   * faster ones first. */
  double limit;
  uint64_t endurance; /* for reports, the same */
} penstock_path;

typedef int32_t penstock_eviction;
enum {
  PENSTOCK_EVICT_PLANNED = 0, /* the tensor whose next use is furthest away, as the round before tells */
  PENSTOCK_EVICT_LRU = 1,     /* the least recently used one */
  /* as LRU; and after its use a tensor leaves, unless it is used again in the same round before `reuse_distance_max`
   * bytes of other uses, as in DeepSpeed */
  PENSTOCK_EVICT_REUSE_DISTANCE = 2
};

typedef struct penstock_runtime_options {
  size_t size;
  uint64_t host_budget; /* bytes of host memory, allocated by the call */
  const penstock_path* paths;
  size_t path_count; /* 0: all tensors stay in memory */
  penstock_pinning pinning;
  penstock_eviction eviction;
  uint64_t lookahead;          /* most bytes that are loaded before their use is asked for; 0: 64 MiB */
  uint64_t reuse_distance_max; /* for PENSTOCK_EVICT_REUSE_DISTANCE */
  const char*
      timeline_file; /* what is moved and waited for, in Chrome's trace format; null: it is not written */
} penstock_runtime_options;

/* Errors: PENSTOCK_NO_SPACE and PENSTOCK_PERMISSION, for the memory; those of a path, with its directory, and of
 * timeline_file. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_create(
    const penstock_runtime_options* options, penstock_runtime** runtime);
/* Waits for the transfers in flight. The runtime ends once its leases and requests have ended too. */
PENSTOCK_API void penstock_runtime_free(penstock_runtime* runtime);

/* A tensor of a runtime. The number is not used again; 0 is none. */
typedef uint64_t penstock_tensor;

typedef struct penstock_tensor_options {
  size_t size;
  const char* name;     /* for messages */
  uint64_t bytes;       /* more than 0 */
  int32_t in_memory;    /* 1: it keeps a range of host memory; 0: it has an extent of a swap file */
  int32_t write_behind; /* 1: stored as soon as a lease that changes it ends */
  /* 1: its home is memory: it is evicted only when nothing else makes room for a lease, and with write_behind it is
   * stored only then, or by a flush */
  int32_t home_in_memory;
} penstock_tensor_options;

/* Adds a tensor, which has no contents.
 *
 * Errors: PENSTOCK_INVALID_ARGUMENT, for 0 bytes, and for in_memory together with home_in_memory; PENSTOCK_NO_SPACE,
 * when no path has room; PENSTOCK_BUDGET_TOO_SMALL, when host memory has none or is smaller than the tensor. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_add(penstock_runtime* runtime,
                                                                      const penstock_tensor_options* options,
                                                                      penstock_tensor* tensor);
/* Removes a tensor without leases, and frees what it has. Waits for its transfers. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_remove(penstock_runtime* runtime,
                                                                         penstock_tensor tensor);
/* Discards its contents, in memory and on disk. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_discard(penstock_runtime* runtime,
                                                                          penstock_tensor tensor);

/* What a lease allows. Any number of READ leases may exist at a time; the others are exclusive. */
typedef int32_t penstock_access;
enum {
  PENSTOCK_READ = 0,
  PENSTOCK_MODIFY = 1,
  PENSTOCK_OVERWRITE = 2 /* does not load the tensor: bytes that are not written are undefined */
};
/* Access to a tensor's bytes in host memory, where they stay meanwhile. Used by the thread that began it. */
typedef struct penstock_lease penstock_lease;

/* Waits until the tensor is in memory. `data`, unless NULL, gets its address, and `bytes`, unless NULL, its size.
 *
 * Errors: PENSTOCK_BUDGET_TOO_SMALL, naming the leases, when memory has no room and no transfer can free any;
 * PENSTOCK_INVALID_ARGUMENT, also for a tensor that is read before it was written, and when this thread holds a lease
 * that excludes the new one; PENSTOCK_CORRUPTED, PENSTOCK_IO and others, of the disk. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_lease_begin(penstock_runtime* runtime,
                                                                      penstock_tensor tensor,
                                                                      penstock_access access,
                                                                      penstock_lease** lease, void** data,
                                                                      uint64_t* bytes);
/* After MODIFY and OVERWRITE the tensor has new contents. Takes NULL. */
PENSTOCK_API void penstock_lease_end(penstock_lease* lease);

/* A lease that was asked for and not granted yet. */
typedef struct penstock_request penstock_request;
/* Asks for a lease and returns at once. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_request_begin(penstock_runtime* runtime,
                                                                        penstock_tensor tensor,
                                                                        penstock_access access,
                                                                        penstock_request** request);
/* Whether it was granted: `lease` gets the lease, or NULL while the request waits. Errors: those of
 * penstock_lease_begin(); the request has ended then. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_request_poll(penstock_request* request,
                                                                       penstock_lease** lease, void** data,
                                                                       uint64_t* bytes);
/* Withdraws the request, unless it was granted. Takes NULL. */
PENSTOCK_API void penstock_request_end(penstock_request* request);

/* Hints that the tensor is used soon: loads it when memory has room. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_prefetch(penstock_runtime* runtime,
                                                                           penstock_tensor tensor);
/* Ends a round of uses, such as a training step. Its order predicts that of the next round. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_end_round(penstock_runtime* runtime);
/* Waits until every changed tensor that is written behind is on disk, and writes the timeline as far as it is. Errors:
 * that of the first store that failed. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_flush(penstock_runtime* runtime);
/* The same, and makes the bytes durable. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_sync(penstock_runtime* runtime);

/* Stores what is only in memory, and gives the host memory back to the operating system, so that another program can
 * use it. `given_back`, unless NULL, gets the bytes; penstock_runtime_take_messages() says why they are fewer than the
 * budget. Until penstock_runtime_unpark(), no tensor can be leased.
 *
 * Errors, after which all is as before: PENSTOCK_FAILED_STATE, when it is parked or its memory is limited;
 * PENSTOCK_UNSUPPORTED, for a tensor with `in_memory`; PENSTOCK_BUDGET_TOO_SMALL, naming the tensors that are leased;
 * those of a store. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_park(penstock_runtime* runtime,
                                                                       uint64_t* given_back);
/* Takes the memory again. Errors: PENSTOCK_FAILED_STATE, when it is not parked; PENSTOCK_NO_SPACE, after which the call
 * can be repeated. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_unpark(penstock_runtime* runtime);

/* From now on tensors use the first `most` bytes of the host memory, as soon as they can: copies beyond leave, and the
 * operating system gets whole pages of 2 MiB, so that another program can use them. What is leased or not stored yet is
 * given back by a later call, and tensors with home_in_memory lose their home, the last added first, as far as the
 * limit needs it. More than the budget stands for all of it; raising the limit takes the memory again. `used`, unless
 * NULL, gets the bytes that the operating system has not got.
 *
 * Errors, after which all is as before: PENSTOCK_BUDGET_TOO_SMALL, below penstock_runtime_memory_least();
 * PENSTOCK_UNSUPPORTED, for memory of the machine's pool of huge pages, and for that which an engine has registered
 * with a device; PENSTOCK_NO_SPACE, where the machine has no memory to take; PENSTOCK_FAILED_STATE, when it is
 * parked. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_limit_memory(penstock_runtime* runtime,
                                                                               uint64_t most, uint64_t* used);
/* The least that it can be limited to now: up to where tensors with `in_memory` end, and the largest other one. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_memory_least(
    const penstock_runtime* runtime, uint64_t* bytes);

/* The host memory in which tensors are leased, to be registered with a device (cudaHostRegister), and unregistered
 * before the runtime parks, gives memory back to a limit, or ends. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_host_memory(const penstock_runtime* runtime,
                                                                              void** data, uint64_t* bytes);

typedef struct penstock_runtime_report {
  size_t size;
  uint64_t host_free;     /* bytes of the budget that no tensor has */
  uint64_t bytes_read;    /* from the swap files, so far */
  uint64_t bytes_written; /* to them */
  uint64_t retries;       /* requests that were repeated */
  double stall_seconds;   /* how long callers have waited */
} penstock_runtime_report;
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_get_report(const penstock_runtime* runtime,
                                                                             penstock_runtime_report* report);

/* How a report is written: tables for people, JSON, or metrics in Prometheus' text format. */
typedef int32_t penstock_report_format;
enum { PENSTOCK_REPORT_TEXT = 0, PENSTOCK_REPORT_JSON = 1, PENSTOCK_REPORT_PROMETHEUS = 2 };
/* What is known of a drive, in place of what its path or the configuration says. Ranks that share it divide the limit
 * and the endurance. */
typedef struct penstock_report_drive {
  size_t size;
  const char* directory; /* as penstock_path or the configuration names it */
  double limit;          /* bytes of reads and writes a second, as measured; 0: not known */
  uint64_t endurance;    /* bytes that its maker lets be written to it (TBW); 0: not known */
} penstock_report_drive;
typedef struct penstock_report_options {
  size_t size;
  penstock_report_format format;
  uint32_t rank; /* of a runtime; an engine knows its own */
  double
      elapsed_seconds; /* the time of the run, for rates; 0: not known, or of an engine since it was made */
  const penstock_report_drive* drives;
  size_t drive_count;
  int32_t
      with_changes; /* 1: of an engine, also what would shorten its steps most, which is simulated: seconds */
} penstock_report_options;
/* What the tensors have taken and moved so far, by tier, purpose and drive, beside what was planned. The caller frees
 * the lines. Any thread may call it, also while the runtime is used. Errors: PENSTOCK_INVALID_ARGUMENT, for a format
 * that does not exist, a time or a limit that is negative or not finite. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_report_text(
    const penstock_runtime* runtime, const penstock_report_options* options, penstock_lines** lines);
/* Replaces a file by such a report at once: a program that reads it meanwhile gets the whole report of this time or of
 * the last. Errors: those; PENSTOCK_ALREADY_EXISTS, for a file that is no report; and those of the file, which is as
 * before then. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_save_report(
    const penstock_runtime* runtime, const penstock_report_options* options, const char* file);
/* Options that are not in effect, with reasons. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_notes(const penstock_runtime* runtime,
                                                                        penstock_lines** lines);
/* What has happened since the last call and was no error: stores that moved to another path, repeated requests. The
 * caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_take_messages(penstock_runtime* runtime,
                                                                                penstock_lines** lines);

PENSTOCK_C_END
