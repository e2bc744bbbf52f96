/* A trainer's storage in C alone: tiles of an optimizer in swap files, updated under a budget that holds a few of them;
 * and files that are read and written in the background. Its argument is a directory for the files. */
#include "program.h"

#include <string.h>

enum { tiles = 16, elements = 32768, steps = 3 };

static float parameters[tiles][elements], gradients[elements];

static penstock_tile tile_of(int number, void* state) {
  penstock_tile tile = {.size = sizeof tile,
                        .state = state,
                        .gradient = gradients,
                        .parameter = parameters[number],
                        .elements = elements,
                        .gradient_dtype = PENSTOCK_FP32,
                        .parameter_dtype = PENSTOCK_FP32,
                        .format = PENSTOCK_STATE_MOMENTS,
                        .first_element = (uint64_t)number * elements};
  return tile;
}

static void update_tiles_on_disk(const char* directory) {
  uint64_t state_bytes = 0;
  CHECK(penstock_tile_state_bytes(PENSTOCK_STATE_MOMENTS, PENSTOCK_ADAM, elements, &state_bytes));
  EXPECT(state_bytes == 8u * elements);

  penstock_path path = {.size = sizeof path, .directory = directory, .capacity = tiles * state_bytes};
  penstock_runtime_options options = {
      .size = sizeof options, .host_budget = 4 * state_bytes, .paths = &path, .path_count = 1};
  penstock_runtime* runtime = NULL;
  CHECK(penstock_runtime_create(&options, &runtime));
  penstock_workers* workers = NULL;
  CHECK(penstock_workers_create(2, &workers));

  penstock_tensor tensors[tiles];
  for (int i = 0; i < tiles; ++i) {
    char name[32];
    snprintf(name, sizeof name, "tile %d", i);
    penstock_tensor_options tensor = {.size = sizeof tensor, .name = name, .bytes = state_bytes};
    CHECK(penstock_runtime_add(runtime, &tensor, &tensors[i]));
    penstock_lease* lease = NULL;
    void* state = NULL;
    CHECK(penstock_lease_begin(runtime, tensors[i], PENSTOCK_OVERWRITE, &lease, &state, NULL));
    penstock_tile tile = tile_of(i, state);
    float* initial = calloc(elements, sizeof(float));
    EXPECT(initial != NULL);
    CHECK(penstock_tile_initialize(&tile, initial, PENSTOCK_FP32, workers));
    free(initial);
    penstock_lease_end(lease);
  }
  CHECK(penstock_runtime_end_round(runtime));

  for (int i = 0; i < elements; ++i) gradients[i] = (float)(i % 7) - 3.0f;
  penstock_hyperparameters hyperparameters = {.size = sizeof hyperparameters,
                                              .learning_rate = 0.5f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.999f,
                                              .epsilon = 1e-8f,
                                              .decoupled_decay = 1,
                                              .bias_correction = 1};
  for (uint64_t step = 1; step <= steps; ++step) {
    for (int i = 0; i < tiles; ++i) {
      if (i + 1 < tiles) CHECK(penstock_runtime_prefetch(runtime, tensors[i + 1]));
      penstock_lease* lease = NULL;
      void* state = NULL;
      uint64_t bytes = 0;
      CHECK(penstock_lease_begin(runtime, tensors[i], PENSTOCK_MODIFY, &lease, &state, &bytes));
      EXPECT(bytes == state_bytes);
      penstock_tile tile = tile_of(i, state);
      penstock_update_outcome outcome = {.size = sizeof outcome};
      CHECK(penstock_tile_step(&tile, &hyperparameters, step, 1.0f, workers, &outcome));
      EXPECT(outcome.non_finite_element == -1);
      penstock_lease_end(lease);
    }
    CHECK(penstock_runtime_end_round(runtime));
  }
  CHECK(penstock_runtime_flush(runtime));

  /* With a constant gradient each step of Adam is of the learning rate, against the gradient's sign. */
  for (int t = 0; t < tiles; ++t) {
    for (int i = 0; i < elements; ++i) {
      const float expected = gradients[i] == 0 ? 0 : gradients[i] > 0 ? -0.5f * steps : 0.5f * steps;
      const float difference = parameters[t][i] - expected;
      EXPECT(difference < 1e-4f && difference > -1e-4f);
    }
  }
  penstock_runtime_report report = {.size = sizeof report};
  CHECK(penstock_runtime_get_report(runtime, &report));
  EXPECT(report.bytes_written >= tiles * state_bytes);
  EXPECT(report.bytes_read >= (tiles - 4) * state_bytes);
  penstock_workers_free(workers);
  penstock_runtime_free(runtime);
}

static void move_files(const char* directory) {
  penstock_files_options options = {.size = sizeof options, .threads = 2};
  penstock_files* files = NULL;
  CHECK(penstock_files_create(&options, &files));
  char name[2][512];
  enum { bytes = 300001 };
  unsigned char *written = malloc(bytes), *read = calloc(bytes, 1);
  EXPECT(written != NULL && read != NULL);
  for (int i = 0; i < bytes; ++i) written[i] = (unsigned char)(i * 7);
  for (int i = 0; i < 2; ++i) {
    snprintf(name[i], sizeof name[i], "%s/file%d", directory, i);
    CHECK(penstock_files_begin_write(files, name[i], 4096, written, bytes));
  }
  EXPECT(penstock_files_started(files) == 2);
  uint64_t ended = 0;
  CHECK(penstock_files_wait(files, &ended));
  EXPECT(ended == 2);
  CHECK(penstock_files_begin_read(files, name[1], 4096, read, bytes));
  CHECK(penstock_files_wait(files, NULL));
  EXPECT(memcmp(written, read, bytes) == 0);

  penstock_error* error = penstock_files_begin_read(files, name[1], bytes, read, bytes);
  EXPECT(penstock_error_code(error) == PENSTOCK_TRUNCATED);
  EXPECT(strcmp(penstock_error_text(error, PENSTOCK_ERROR_OBJECT), name[1]) == 0);
  EXPECT(strstr(penstock_error_message(error), name[1]) != NULL);
  penstock_error_free(error);
  free(written);
  free(read);
  penstock_files_free(files);
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  EXPECT(penstock_abi_version() / 65536 == PENSTOCK_ABI_MAJOR);
  update_tiles_on_disk(argv[1]);
  move_files(argv[1]);
  printf("penstock %s: %d tiles updated on disk, 2 files moved\n", penstock_version(), tiles);
  return 0;
}
