#pragma once

#include <penstock/c/error.h>

PENSTOCK_C_BEGIN

/* The ranks of a run that are processes, on one machine or several. Safe from any thread. See docs/processes.md. */
typedef struct penstock_process_group penstock_process_group;

/* What carries the bytes of collectives between ranks on host memory. Those of GPUs are NCCL's. */
typedef int32_t penstock_carrier;
enum { PENSTOCK_CARRIER_TCP = 0, PENSTOCK_CARRIER_MPI = 1 };

typedef struct penstock_process_group_options {
  size_t size;
  /* 0: rank, ranks and the address of rank 0 are those of the launcher (torchrun, mpirun, srun) or, without one, those
   * of a run of one rank. Else the four members that follow tell them. */
  int32_t without_launcher;
  uint32_t rank, ranks;
  const char* host; /* of rank 0, which listens on `port` */
  uint16_t port;
  penstock_carrier carrier;
  double join_seconds;     /* how long a rank waits until all have come; 0: 300 */
  double silence_seconds;  /* how long a rank may show no sign of life; 0: 30 */
  double deadline_seconds; /* of a collective; 0: 1800 */
} penstock_process_group_options;

/* Returns when all ranks have come. `options` may be NULL: those of the launcher. Errors: PENSTOCK_INVALID_ARGUMENT,
 * also for ranks that do not fit together; PENSTOCK_DEADLINE_EXCEEDED, naming the ranks that have not come. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_process_group_join(
    const penstock_process_group_options* options, penstock_process_group** group);
/* Leaves the group, once the engine that uses it has ended. */
PENSTOCK_API void penstock_process_group_free(penstock_process_group* group);

typedef struct penstock_rank_identity {
  size_t size;
  uint32_t rank, ranks;             /* 0 and 1, for NULL */
  uint32_t local_rank, local_ranks; /* of those on this machine */
} penstock_rank_identity;
/* `group` may be NULL: a run of one rank. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_process_group_identity(
    const penstock_process_group* group, penstock_rank_identity* identity);
/* Divides the group: the ranks that call it with one `color` form a new group, in the order of their ranks here, with
 * connections and failures of its own. Every rank of `group` calls it. One group has one engine: this makes groups for
 * more. Errors: PENSTOCK_UNSUPPORTED, of PENSTOCK_CARRIER_MPI; those of penstock_process_group_join(). */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_process_group_split(penstock_process_group* group,
                                                                              uint32_t color,
                                                                              penstock_process_group** part);
/* Gives each rank the `bytes` bytes of all, in the order of the ranks, in `all`: ranks * bytes. Every rank calls it
 * with the same label and the same number of bytes. All ranks' bytes are at most 1 MiB. Errors: PENSTOCK_PEER_FAILED.
 */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_process_group_gather(penstock_process_group* group,
                                                                               const char* label,
                                                                               const void* mine,
                                                                               uint64_t bytes, void* all);
/* What a user may want to know, each once: connections that rank 0 has refused. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_process_group_take_messages(
    penstock_process_group* group, penstock_lines** lines);

PENSTOCK_C_END
