/* A C program: reads what it wrote, and an error says what was wrong. */
#include <penstock/penstock.h>

#include <stdio.h>
#include <string.h>

static char written[8192], read_back[8192];

int main(void) {
  if (penstock_abi_version() >> 16 != PENSTOCK_ABI_MAJOR) return 1;
  const char* name = "files_of_c";
  memset(written, 'p', sizeof written);
  penstock_files_options options = {.size = sizeof options, .threads = 2};
  penstock_files* files = NULL;
  penstock_error* error = penstock_files_create(&options, &files);
  if (error == NULL) error = penstock_files_begin_write(files, name, 0, written, sizeof written);
  if (error == NULL) error = penstock_files_wait(files, NULL);
  if (error == NULL) error = penstock_files_begin_read(files, name, 0, read_back, sizeof read_back);
  if (error == NULL) error = penstock_files_wait(files, NULL);
  int status = error != NULL || memcmp(written, read_back, sizeof written) != 0;
  if (error != NULL) fprintf(stderr, "%s\n", penstock_error_message(error));
  penstock_error_free(error);

  error = penstock_files_begin_read(files, name, sizeof written, read_back, 1);
  if (penstock_error_code(error) != PENSTOCK_TRUNCATED) status = 1;
  penstock_error_free(error);
  penstock_files_free(files);
  remove(name);
  return status;
}
