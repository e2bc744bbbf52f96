/* What the C programs of this folder share: they end where something is wrong. */
#pragma once

#include <penstock/penstock.h>

#include <stdio.h>
#include <stdlib.h>

static void check(penstock_error* error, int line) {
  if (error == NULL) return;
  fprintf(stderr, "line %d: %s\n", line, penstock_error_message(error));
  penstock_error_free(error);
  exit(1);
}
#define CHECK(call) check((call), __LINE__)
#define EXPECT(condition)                                         \
  do {                                                            \
    if (!(condition)) {                                           \
      fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
      exit(1);                                                    \
    }                                                             \
  } while (0)
