#pragma once

#include <penstock/c/error.h>

PENSTOCK_C_BEGIN

/* The model: units in the order of the forward, usually one for each layer, with parameters that are gathered, used and
 * released together. Functions that create an engine copy it. */
typedef struct penstock_layout penstock_layout;

PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_layout_create(penstock_layout** layout);
PENSTOCK_API void penstock_layout_free(penstock_layout* layout);

/* Which members of penstock_group_options are not as the configuration says. */
enum {
  PENSTOCK_GROUP_LEARNING_RATE_FACTOR = 1,
  PENSTOCK_GROUP_BETAS = 2,
  PENSTOCK_GROUP_EPSILON = 4,
  PENSTOCK_GROUP_WEIGHT_DECAY = 8
};
/* Settings of parameters that have an optimizer group of their own. */
typedef struct penstock_group_options {
  size_t size;
  uint32_t given;   /* PENSTOCK_GROUP_… added up */
  int32_t frozen;   /* 1: the parameters keep their values, and have no optimizer states */
  int32_t use_muon; /* 1, of optimizer.type Muon: the parameters are matrices, which Muon updates */
  double learning_rate_factor; /* of the step's learning rate */
  double beta1, beta2;
  double epsilon;
  double weight_decay;
} penstock_group_options;
/* Adds an optimizer group; `group` gets its number, from 1. Group 0 is there, and is as the configuration says. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_layout_add_group(
    penstock_layout* layout, const penstock_group_options* options, uint32_t* group);
/* Adds a unit after the others; `unit`, unless NULL, gets its number, from 0. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_layout_add_unit(penstock_layout* layout,
                                                                          const char* name, uint32_t* unit);

typedef struct penstock_parameter_options {
  size_t size;
  const char* name;      /* "unit.parameter" is its name in the model, of which there is one */
  const uint64_t* shape; /* row-major */
  size_t dimensions;     /* 1 to 8 */
  uint32_t group;
} penstock_parameter_options;
/* Adds a parameter to a unit after its others; `parameter`, unless NULL, gets its number in the unit, from 0. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_layout_add_parameter(
    penstock_layout* layout, uint32_t unit, const penstock_parameter_options* options, uint32_t* parameter);
/* Makes `unit` use a parameter of another unit too, such as tied embeddings. Leases and gradients of the unit list its
 * own parameters, then those. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_layout_share(penstock_layout* layout, uint32_t unit,
                                                                       uint32_t owner, uint32_t parameter);
/* Makes room for `count` activation checkpoints of `bytes` each, of which at most `leased_max` are leased at a time.
 * See penstock_activation_begin(). */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_layout_set_activations(penstock_layout* layout,
                                                                                 uint32_t count,
                                                                                 uint64_t bytes,
                                                                                 uint32_t leased_max);

PENSTOCK_C_END
