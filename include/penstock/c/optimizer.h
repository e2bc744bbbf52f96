#pragma once

#include <penstock/c/error.h>

PENSTOCK_C_BEGIN

/* Threads that share the work of an update. Safe from any thread. */
typedef struct penstock_workers penstock_workers;
/* `threads`, the calling one included: 1 to 1024. Errors: PENSTOCK_INVALID_ARGUMENT; PENSTOCK_NO_SPACE. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_workers_create(uint32_t threads,
                                                                         penstock_workers** workers);
PENSTOCK_API void penstock_workers_free(penstock_workers* workers);

/* The formula of an update: AdamW or Adam (penstock_hyperparameters.decoupled_decay), Lion, Adagrad. */
typedef int32_t penstock_optimizer;
enum { PENSTOCK_ADAM = 0, PENSTOCK_LION = 1, PENSTOCK_ADAGRAD = 2 };

/* How the state is stored, in bytes an element with Adam. Lion and Adagrad keep one moment, and take the formats FP32
 * and MOMENTS. docs/optimizer.md tells their effect on a model. */
typedef int32_t penstock_state_format;
enum {
  PENSTOCK_STATE_FP32 = 0,        /* master, m, v in fp32: 12 */
  PENSTOCK_STATE_SPLIT = 1,       /* what a bf16 parameter lacks of its master; m, v in fp32: 10 */
  PENSTOCK_STATE_SPLIT_BF16 = 2,  /* the same; m, v in bf16: 6 */
  PENSTOCK_STATE_SPLIT_Q8 = 3,    /* the same; m in 9 bits, v in 11: 4.51 */
  PENSTOCK_STATE_MOMENTS = 4,     /* m, v in fp32; the parameter is the master: 8 */
  PENSTOCK_STATE_MOMENTS_BF16 = 5 /* m, v in bf16; the parameter, in bf16, is the master: 4 */
};

/* What a state is of. */
typedef int32_t penstock_state_kind;
enum { PENSTOCK_MASTER = 0, PENSTOCK_FIRST_MOMENT = 1, PENSTOCK_SECOND_MOMENT = 2 };

/* Elements that are updated together, in memory of the caller. The spans do not overlap, and are aligned to their
 * elements. */
typedef struct penstock_tile {
  size_t size;
  void* state;          /* penstock_tile_state_bytes() bytes, aligned to 8 */
  const void* gradient; /* `elements` of `gradient_dtype` */
  void* parameter;      /* `elements` of `parameter_dtype` */
  uint64_t elements;
  penstock_dtype gradient_dtype;
  penstock_dtype parameter_dtype; /* of the split formats and MOMENTS_BF16: PENSTOCK_BF16 */
  penstock_state_format format;
  penstock_optimizer optimizer;
  uint64_t first_element; /* the number of the first element in the model: it seeds stochastic rounding */
} penstock_tile;

/* The bytes of a tile's state. Errors: PENSTOCK_INVALID_ARGUMENT; PENSTOCK_UNSUPPORTED, for a format that the optimizer
 * does not take. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_tile_state_bytes(penstock_state_format format,
                                                                           penstock_optimizer optimizer,
                                                                           uint64_t elements,
                                                                           uint64_t* bytes);

/* Fills the state for step 0: the masters from `initial`, `elements` of `initial_dtype`, and moments of 0; and writes
 * the parameter. `gradient` is ignored. `workers` may be NULL: the calling thread alone. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_tile_initialize(const penstock_tile* tile,
                                                                          const void* initial,
                                                                          penstock_dtype initial_dtype,
                                                                          penstock_workers* workers);

/* Of all optimizers; each uses those that it has. No member has a default: 0 is 0. */
typedef struct penstock_hyperparameters {
  size_t size;
  float learning_rate;
  float beta1, beta2; /* Adam, Lion */
  float epsilon;      /* Adam, Adagrad; at least 2^-64 is used */
  float weight_decay;
  int32_t decoupled_decay; /* Adam: 1 as AdamW; 0: of the gradient */
  int32_t bias_correction; /* Adam: 1 as PyTorch */
} penstock_hyperparameters;

typedef struct penstock_update_outcome {
  size_t size;
  /* The first element of the first block of 16384 elements with a value that is not finite now; -1, if there is none.
   */
  int64_t non_finite_element;
} penstock_update_outcome;

/* Updates the tile by one step: its number `step`, from 1, is counted by the caller, and `gradient_factor` unscales and
 * clips the gradient. Bits are equal for every number of threads and every instruction set. `outcome` may be NULL.
 *
 * Errors, before anything is written: PENSTOCK_INVALID_ARGUMENT, naming the member. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_tile_step(
    const penstock_tile* tile, const penstock_hyperparameters* hyperparameters, uint64_t step,
    float gradient_factor, penstock_workers* workers, penstock_update_outcome* outcome);

/* Adam's values in arrays of their own, `elements` each, as PyTorch and DeepSpeed keep them. They do not overlap, and
 * are aligned to their elements. */
typedef struct penstock_adam_arrays {
  size_t size;
  void* parameter; /* the master */
  const void* gradient;
  void* first_moment;
  void* second_moment;
  uint64_t elements;
  penstock_dtype parameter_dtype;
  penstock_dtype gradient_dtype;
  penstock_dtype moment_dtype; /* of both */
} penstock_adam_arrays;

/* Updates arrays by one step, as penstock_tile_step(). Parameters and moments of 16 bits are rounded to nearest; with
 * arrays in fp32 the bits are those of a tile in PENSTOCK_STATE_MOMENTS.
 *
 * Errors, before anything is written: PENSTOCK_INVALID_ARGUMENT, naming the member. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_adam_step(
    const penstock_adam_arrays* arrays, const penstock_hyperparameters* hyperparameters, uint64_t step,
    float gradient_factor, penstock_workers* workers, penstock_update_outcome* outcome);

/* The sum of the squares of `elements` values of a gradient; the norm is its root, and `gradient_factor` of an update
 * clips by it. In double precision; the bits are equal for every number of threads, and are not finite exactly when a
 * value is not. `workers` may be NULL. Errors: PENSTOCK_INVALID_ARGUMENT, for values that are not aligned. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_square_sum(const void* values, penstock_dtype dtype,
                                                                     uint64_t elements,
                                                                     penstock_workers* workers, double* sum);

/* Writes elements [first, first + count) of one state to `values`, in fp32. Errors: PENSTOCK_INVALID_ARGUMENT, for
 * elements beyond the end, and for a state that the optimizer does not keep. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_tile_read(const penstock_tile* tile,
                                                                    penstock_state_kind kind, uint64_t first,
                                                                    uint64_t count, float* values);
/* Sets all states, `elements` values each, and writes the parameter. A moment that the optimizer does not keep is NULL.
 * Errors, before anything is written: PENSTOCK_INVALID_ARGUMENT, also for a moment that is not finite. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_tile_restore(const penstock_tile* tile,
                                                                       const float* master,
                                                                       const float* first_moment,
                                                                       const float* second_moment,
                                                                       penstock_workers* workers);

PENSTOCK_C_END
