/* A trainer in C: fits the parameters of two units to targets, commits, and goes on in a second engine; then parks. Its
 * argument is a directory. */
#include "program.h"

#include <math.h>
#include <string.h>

enum { units = 2, rows = 50, columns = 60, elements = rows * columns };

static float target_of(uint32_t unit, uint64_t element) {
  return (float)(element % 5) - 2.0f + (float)unit;
}

static int32_t fill(void* user, uint32_t unit, uint32_t parameter, uint64_t first, uint64_t count,
                    float* values) {
  (void)user, (void)unit, (void)parameter, (void)first;
  for (uint64_t i = 0; i < count; ++i) values[i] = 0.5f;
  return 0;
}

static penstock_engine* create(const char* directory) {
  char text[2048];
  snprintf(text, sizeof text,
           "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.05, "
           "\"weight_decay\": 0}}, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": "
           "\"nvme\", \"nvme_path\": \"%s\"}}, \"penstock\": {\"durable_directory\": \"%s/run\"}}",
           directory, directory);
  penstock_config* config = NULL;
  CHECK(penstock_config_parse(text, "train.c", NULL, &config));
  EXPECT(strstr(penstock_config_json(config), "AdamW") != NULL);

  penstock_layout* layout = NULL;
  CHECK(penstock_layout_create(&layout));
  for (uint32_t i = 0; i < units; ++i) {
    const uint64_t shape[] = {rows, columns};
    const penstock_parameter_options options = {
        .size = sizeof options, .name = "weight", .shape = shape, .dimensions = 2};
    uint32_t unit = 0, parameter = 0;
    CHECK(penstock_layout_add_unit(layout, i == 0 ? "first" : "second", &unit));
    CHECK(penstock_layout_add_parameter(layout, unit, &options, &parameter));
    EXPECT(unit == i && parameter == 0);
  }
  const penstock_engine_options options = {.size = sizeof options, .config = config, .layout = layout};
  penstock_engine* engine = NULL;
  CHECK(penstock_engine_create(&options, &engine));
  penstock_layout_free(layout);
  penstock_config_free(config);
  return engine;
}

/* Each gradient is the parameter's distance from its target. Returns the largest. */
static float step(penstock_engine* engine, penstock_stream* stream) {
  float largest = 0;
  CHECK(penstock_engine_begin_step(engine, NULL));
  for (uint32_t unit = units; unit-- > 0;) {
    penstock_unit* lease = NULL;
    penstock_gradients* gradients = NULL;
    penstock_view parameter = {.size = sizeof parameter}, gradient = {.size = sizeof gradient};
    CHECK(penstock_unit_begin(engine, unit, stream, &lease));
    CHECK(penstock_gradients_begin(engine, unit, stream, &gradients));
    EXPECT(penstock_unit_count(lease) == 1 && penstock_gradients_count(gradients) == 1);
    CHECK(penstock_unit_parameter(lease, 0, &parameter));
    CHECK(penstock_gradients_slot(gradients, 0, &gradient));
    EXPECT(parameter.elements == elements && gradient.elements == elements);
    EXPECT(parameter.dtype == PENSTOCK_FP32 && gradient.accumulate == 0);
    for (uint64_t i = 0; i < elements; ++i) {
      const float distance = ((float*)parameter.data)[i] - target_of(unit, i);
      ((float*)gradient.data)[i] = distance;
      if (fabsf(distance) > largest) largest = fabsf(distance);
    }
    penstock_unit_end(lease);
    CHECK(penstock_gradients_reduce(gradients, stream));
    penstock_gradients_end(gradients);
  }
  penstock_step_outcome outcome = {.size = sizeof outcome};
  CHECK(penstock_engine_step(engine, &outcome));
  EXPECT(outcome.updated == 1 && strcmp(penstock_engine_skip_reason(engine), "") == 0);
  return largest;
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  char committed[33], resumed_digest[33];
  penstock_engine* engine = create(argv[1]);
  penstock_stream* stream = NULL;
  CHECK(penstock_stream_create(engine, &stream));
  CHECK(penstock_engine_initialize(engine, fill, NULL));
  float largest = 0;
  for (int i = 0; i < 60; ++i) largest = step(engine, stream);
  CHECK(penstock_engine_commit(engine, "sixty", 6, NULL));
  CHECK(penstock_engine_digest(engine, committed));
  penstock_stream_free(stream);
  penstock_engine_free(engine);

  engine = create(argv[1]);
  penstock_resumed* resumed = NULL;
  CHECK(penstock_engine_resume(engine, &resumed));
  EXPECT(resumed != NULL);
  penstock_resumed_report report = {.size = sizeof report};
  CHECK(penstock_resumed_get_report(resumed, &report));
  EXPECT(report.step == 60 && report.client_bytes == 6 && strcmp(report.client, "sixty") == 0);
  penstock_resumed_free(resumed);
  CHECK(penstock_engine_digest(engine, resumed_digest));
  EXPECT(strcmp(committed, resumed_digest) == 0);

  CHECK(penstock_stream_create(engine, &stream));
  CHECK(penstock_engine_park(engine, PENSTOCK_TIER_NVME, PENSTOCK_PARK_ALL, NULL, 0, NULL, NULL));
  EXPECT(penstock_engine_parked(engine) == PENSTOCK_PARK_ALL);
  CHECK(penstock_engine_unpark(engine, NULL, NULL));
  EXPECT(penstock_engine_parked(engine) == 0);
  for (int i = 0; i < 200; ++i) largest = step(engine, stream);
  EXPECT(largest < 0.05f);
  penstock_engine_report final = {.size = sizeof final};
  CHECK(penstock_engine_get_report(engine, &final));
  EXPECT(final.completed_steps == 260 && final.status == PENSTOCK_STATUS_READY);
  penstock_stream_free(stream);
  penstock_engine_free(engine);
  printf("trained to within %g of the targets, committed, resumed and parked\n", (double)largest);
  return 0;
}
