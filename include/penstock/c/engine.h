#pragma once

#include <penstock/c/config.h>
#include <penstock/c/layout.h>
#include <penstock/c/optimizer.h>
#include <penstock/c/process_group.h>
#include <penstock/c/runtime.h>

PENSTOCK_C_BEGIN

/* One rank of a training run, ZeRO-3: gathers units before they are used, reduces their gradients, and updates the
 * shards in the tier where they are kept.
 *
 *     penstock_engine_begin_step(engine, NULL);
 *     for each unit: penstock_unit_begin(…); the forward, on the stream; penstock_unit_end(…);
 *     for each unit, backwards: penstock_unit_begin(…); penstock_gradients_begin(…); the backward, which writes them;
 *                               penstock_unit_end(…); penstock_gradients_reduce(…); penstock_gradients_end(…);
 *     penstock_engine_step(engine, &outcome);
 *
 * Used by one thread. All functions but those of reports are collective: every rank calls them in the same order. After
 * an error penstock_engine_report.status says what may be called: READY: the same call or another one, nothing has
 * changed; INTERRUPTED: penstock_engine_abandon_step(); FAILED: penstock_engine_free().
 *
 * With penstock.update_in_backward of the configuration a unit is updated once its last gradient of a step is reduced.
 * It is not begun again until penstock_engine_step(). Once any update has begun, no states and digest are read, no
 * groups are changed, and the step is not abandoned: PENSTOCK_FAILED_STATE. */
typedef struct penstock_engine penstock_engine;

typedef int32_t penstock_device;
enum { PENSTOCK_DEVICE_HOST = 0, PENSTOCK_DEVICE_CUDA = 1 };

typedef struct penstock_engine_options {
  size_t size;
  const penstock_config* config;
  const penstock_layout* layout;
  penstock_process_group* group; /* NULL: a run of one rank */
  penstock_device device;        /* where units are computed; HOST: host memory is the device's memory */
  int32_t device_ordinal;        /* of CUDA */
} penstock_engine_options;

/* Errors: PENSTOCK_INVALID_CONFIG and PENSTOCK_INVALID_ARGUMENT, naming the key or the part of the layout;
 * PENSTOCK_BUDGET_TOO_SMALL and PENSTOCK_NO_SPACE, with the required size; those of the device, the group and the
 * directories. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_create(
    const penstock_engine_options* options, penstock_engine** engine);
/* The engine ends once its streams, leases and gradients have ended too. */
PENSTOCK_API void penstock_engine_free(penstock_engine* engine);

/* --- Streams */

/* Work of the engine's device, in order. On HOST each call has executed what it enqueues when it returns: memory may be
 * used at once. */
typedef struct penstock_stream penstock_stream;
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_stream_create(penstock_engine* engine,
                                                                        penstock_stream** stream);
/* Of a cudaStream_t of the caller, which outlives it; NULL is the device's default stream. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_stream_wrap_cuda(penstock_engine* engine,
                                                                           void* cuda_stream,
                                                                           penstock_stream** stream);
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_stream_synchronize(penstock_stream* stream);
PENSTOCK_API void penstock_stream_free(penstock_stream* stream);

/* --- Values */

/* Writes values [first, first + count) of a parameter into `values`, which are 0; returns 0. Another number ends the
 * call with PENSTOCK_FAILED_STATE. */
typedef int32_t (*penstock_fill)(void* user, uint32_t unit, uint32_t parameter, uint64_t first,
                                 uint64_t count, float* values);
/* Sets the initial values, and the step to 0. `fill` is called for this rank's shard only, piece by piece. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_initialize(penstock_engine* engine,
                                                                            penstock_fill fill, void* user);
/* The same of one state; other than 0 ends the call with PENSTOCK_FAILED_STATE. */
typedef int32_t (*penstock_state_source)(void* user, uint32_t unit, uint32_t parameter,
                                         penstock_state_kind kind, uint64_t first, uint64_t count,
                                         float* values);
/* Sets masters and moments of this rank's shards as of step `step`. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_restore(penstock_engine* engine,
                                                                         uint64_t step,
                                                                         penstock_state_source source,
                                                                         void* user);
/* Receives values of one state; other than 0 ends the call with PENSTOCK_FAILED_STATE. */
typedef int32_t (*penstock_state_sink)(void* user, uint32_t unit, uint32_t parameter,
                                       penstock_state_kind kind, uint64_t first, uint64_t count,
                                       const float* values);
/* Reads masters and moments of this rank's shards. Not collective. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_read_states(penstock_engine* engine,
                                                                             penstock_state_sink sink,
                                                                             void* user);
/* Of the masters of all ranks, which does not depend on their number: 32 hexadecimal digits and a 0. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_digest(penstock_engine* engine,
                                                                        char digest[33]);

/* --- Steps */

typedef struct penstock_step_options {
  size_t size;
  uint32_t micro_batches;    /* how often each unit is reduced; 0: gradient_accumulation_steps */
  int32_t has_learning_rate; /* 1: `learning_rate`; 0: that of the configuration and its scheduler */
  double learning_rate;
  const uint32_t* units_without_gradient; /* that this step does not use */
  size_t units_without_gradient_count;
} penstock_step_options;
/* `options` may be NULL. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_begin_step(
    penstock_engine* engine, const penstock_step_options* options);

/* Elements in memory, which is not the caller's. */
typedef struct penstock_view {
  size_t size;
  void* data; /* of the engine's device */
  uint64_t elements;
  penstock_dtype dtype;
  int32_t accumulate; /* of a gradient: 1: add to it; 0: overwrite it, its contents are undefined */
} penstock_view;

/* The gathered parameters of a unit. */
typedef struct penstock_unit penstock_unit;
/* Gathers them. Work that is enqueued on `stream` after this call may read them. Errors: PENSTOCK_BUDGET_TOO_SMALL,
 * naming what holds the device's memory. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_unit_begin(penstock_engine* engine, uint32_t unit,
                                                                     penstock_stream* stream,
                                                                     penstock_unit** lease);
/* 0, for NULL. */
PENSTOCK_API size_t penstock_unit_count(const penstock_unit* lease);
/* In the order of the layout: the unit's own parameters, then those it shares. Do not write to them. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_unit_parameter(const penstock_unit* lease,
                                                                         size_t index, penstock_view* view);
PENSTOCK_API void penstock_unit_end(penstock_unit* lease);

/* The full gradient of a unit. */
typedef struct penstock_gradients penstock_gradients;
/* Allocates it. Work that is enqueued on `stream` after this call may write it. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_gradients_begin(penstock_engine* engine,
                                                                          uint32_t unit,
                                                                          penstock_stream* stream,
                                                                          penstock_gradients** gradients);
PENSTOCK_API size_t penstock_gradients_count(const penstock_gradients* gradients);
/* In the order of penstock_unit_parameter(); without elements where the parameter is frozen. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_gradients_slot(const penstock_gradients* gradients,
                                                                         size_t index, penstock_view* view);
/* Averages the gradient over ranks, and adds this rank's shard to that of earlier micro-batches. The work that writes
 * it is on `stream`. Once; then only penstock_gradients_end() follows. Does not wait. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_gradients_reduce(penstock_gradients* gradients,
                                                                           penstock_stream* stream);
PENSTOCK_API void penstock_gradients_end(penstock_gradients* gradients);

/* A gradient in memory of the caller. */
typedef struct penstock_source {
  size_t size;
  const void* data; /* NULL, where the parameter is frozen */
  uint64_t elements;
  penstock_dtype dtype;
  int32_t on_device; /* 1: in memory of the engine's device; 0: of the host */
} penstock_source;
/* Instead of penstock_gradients_…: copies the gradients, one for each parameter of the unit, on `stream`. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_reduce(penstock_engine* engine,
                                                                        uint32_t unit,
                                                                        const penstock_source* sources,
                                                                        size_t count,
                                                                        penstock_stream* stream);

typedef struct penstock_step_outcome {
  size_t size;
  int32_t updated; /* 0: the step was skipped, see penstock_engine_skip_reason() */
  double gradient_norm;
  double clip_factor;
  double learning_rate;
  double loss_scale; /* of these gradients */
  uint64_t step;     /* of the state after the update */
  double gradient_wait_seconds;
  double previous_update_seconds;
  uint64_t updated_by_cpu, updated_on_device; /* elements of this rank in the previous update */
} penstock_step_outcome;
/* Clips the gradients and starts the update, which runs beside the next forward; or skips the step. `outcome` may be
 * NULL. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_step(penstock_engine* engine,
                                                                      penstock_step_outcome* outcome);
/* Why the last step was skipped; "" if it was not. Lives until the next step. */
PENSTOCK_API const char* penstock_engine_skip_reason(const penstock_engine* engine);
/* Waits until the parameters of this rank are updated. Not collective. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_finish_update(penstock_engine* engine);
/* Gives up the step in progress, after an error of the trainer. The peers' calls return PENSTOCK_INTERRUPTED with
 * `cause`, which may be NULL; they call it too. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_abandon_step(penstock_engine* engine,
                                                                              penstock_stream* stream,
                                                                              const char* cause);

/* Replaces the settings of an optimizer group from the next step on; `frozen` and `use_muon` are fixed. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_set_group(
    penstock_engine* engine, uint32_t group, const penstock_group_options* options);

/* An activation checkpoint's memory on the device, see penstock_layout_set_activations(). */
typedef struct penstock_activation penstock_activation;
typedef int32_t penstock_activation_use;
enum {
  PENSTOCK_ACTIVATION_WRITE = 0,
  PENSTOCK_ACTIVATION_READ = 1,
  PENSTOCK_ACTIVATION_LAST_READ = 2 /* the contents are not needed after it */
};
/* While it has no lease, an activation may move to host memory or to disk and back. Not collective. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_activation_begin(
    penstock_engine* engine, uint32_t number, penstock_activation_use use, penstock_stream* stream,
    penstock_activation** activation, void** data, uint64_t* bytes);
PENSTOCK_API void penstock_activation_end(penstock_activation* activation);

/* --- Reports */

typedef int32_t penstock_status;
enum { PENSTOCK_STATUS_READY = 0, PENSTOCK_STATUS_INTERRUPTED = 1, PENSTOCK_STATUS_FAILED = 2 };
typedef struct penstock_engine_report {
  size_t size;
  penstock_status status;
  uint64_t completed_steps; /* the number of the last step that updates the parameters */
  uint64_t skipped_steps;
  double loss_scale; /* by which the loss of each micro-batch of the next step is multiplied */
  uint64_t device_bytes, host_bytes, nvme_bytes; /* of this rank's plan */
} penstock_engine_report;
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_get_report(const penstock_engine* engine,
                                                                            penstock_engine_report* report);
/* As penstock_runtime_report_text(), of this rank. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_report_text(
    const penstock_engine* engine, const penstock_report_options* options, penstock_lines** lines);
/* As penstock_runtime_save_report(), of this rank. See also penstock.report_file of the configuration. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_save_report(
    const penstock_engine* engine, const penstock_report_options* options, const char* file);

/* A figure of the trainer, such as its loss, for the files of csv_monitor and tensorboard. */
typedef struct penstock_monitor_event {
  size_t size;
  const char* name; /* such as "Train/Samples/train_loss" */
  double value;
  uint64_t place; /* on the axis: in DeepSpeed's own events, the samples that were trained with so far */
} penstock_monitor_event;
/* Adds events to the files; only rank 0 writes, and nothing where neither is enabled. Not collective. Errors:
 * PENSTOCK_INVALID_ARGUMENT, after which nothing was written, for a name that is empty, has control characters or makes
 * a file name of more than 255 bytes, and for a place of more than 2^63 - 1; those of the files, after which nothing
 * more is written to them. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_write_events(
    penstock_engine* engine, const penstock_monitor_event* events, size_t count);
/* Features that are not available, with reasons. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_notes(const penstock_engine* engine,
                                                                       penstock_lines** lines);
/* What has happened since the last call and was no error, as penstock_runtime_take_messages(); also memory that was
 * given to others, and drives whose endurance comes to its end. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_take_messages(penstock_engine* engine,
                                                                               penstock_lines** lines);

PENSTOCK_C_END
