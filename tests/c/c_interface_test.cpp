#include "c_runtime.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::add;
using test::expect;
using test::made;
using test::make_runtime;
using test::Owned;
using test::OwnedError;
using test::Runtime;
using test::ScratchDirectory;
using test::succeed;

using Files = Owned<penstock_files, penstock_files_free>;

Files make_files() {
  const penstock_files_options options{.size = sizeof(options)};
  return made<Files>([&](auto files) { return penstock_files_create(&options, files); });
}

TEST(CErrors, HaveTheirFieldsOneByOne) {
  const Files files = make_files();
  const OwnedError error(penstock_files_begin_read(files.get(), "/penstock-none/file", 0, nullptr, 0));

  EXPECT_EQ(penstock_error_code(error.get()), PENSTOCK_NOT_FOUND);
  EXPECT_STREQ(penstock_error_code_name(PENSTOCK_NOT_FOUND), "not found");
  EXPECT_STREQ(penstock_error_text(error.get(), PENSTOCK_ERROR_OBJECT), "/penstock-none/file");
  EXPECT_STREQ(penstock_error_text(error.get(), PENSTOCK_ERROR_OPERATION), "FileSystem::open_to_read");
  EXPECT_STRNE(penstock_error_text(error.get(), PENSTOCK_ERROR_ADVICE), "");
  EXPECT_STREQ(penstock_error_text(error.get(), PENSTOCK_ERROR_GOT), "");
  EXPECT_STREQ(penstock_error_text(error.get(), 99), "");
  EXPECT_EQ(penstock_error_os_error(error.get()), ENOENT);
  EXPECT_EQ(penstock_error_offset(error.get()), -1);
  EXPECT_EQ(penstock_error_note(error.get(), 0), nullptr);
}

TEST(CErrors, OfASucceedingCallAreNull) {
  EXPECT_EQ(penstock_error_code(nullptr), PENSTOCK_OK);
  EXPECT_STREQ(penstock_error_message(nullptr), "");
  EXPECT_STREQ(penstock_error_text(nullptr, PENSTOCK_ERROR_OBJECT), "");
  EXPECT_EQ(penstock_error_note(nullptr, 0), nullptr);
  EXPECT_EQ(penstock_error_offset(nullptr), -1);
  EXPECT_EQ(penstock_error_os_error(nullptr), 0);
  penstock_error_free(nullptr);
  EXPECT_STREQ(penstock_error_code_name(PENSTOCK_OK), "ok");
  EXPECT_STREQ(penstock_error_code_name(-1), "unknown");
  EXPECT_STREQ(penstock_error_code_name(1000), "unknown");
}

/// Every function, with NULL for each of its pointers that must not be.
TEST(CInterface, RefusesNull) {
  const ScratchDirectory scratch;
  const Files files = make_files();
  const Runtime runtime = make_runtime(scratch);
  const penstock_files_options files_options{.size = sizeof(files_options)};
  const penstock_runtime_options runtime_options{.size = sizeof(runtime_options), .host_budget = 1 << 20};
  const penstock_tensor_options tensor_options{.size = sizeof(tensor_options), .name = nullptr, .bytes = 8};
  const penstock_tile tile{.size = sizeof(tile), .elements = 1};
  const penstock_hyperparameters hyperparameters{.size = sizeof(hyperparameters)};
  const penstock_adam_arrays arrays{.size = sizeof(arrays)};
  penstock_memory* memory = nullptr;
  void* data = nullptr;
  penstock_files* no_files = nullptr;
  penstock_runtime* no_runtime = nullptr;
  penstock_tensor tensor = 0;
  penstock_lease* lease = nullptr;
  penstock_request* request = nullptr;
  penstock_lines* lines = nullptr;
  const penstock_report_options report_options{.size = sizeof(report_options)};
  float value = 0;
  double sum = 0;
  const std::vector<std::pair<const char*, std::function<penstock_error*()>>> calls = {
      {"options", [&] { return penstock_files_create(nullptr, &no_files); }},
      {"files", [&] { return penstock_files_create(&files_options, nullptr); }},
      {"files", [&] { return penstock_files_begin_read(nullptr, "a", 0, &value, 4); }},
      {"path", [&] { return penstock_files_begin_read(files.get(), nullptr, 0, &value, 4); }},
      {"null", [&] { return penstock_files_begin_read(files.get(), "/etc/passwd", 0, nullptr, 4); }},
      {"files", [&] { return penstock_files_begin_write(nullptr, "a", 0, &value, 4); }},
      {"path", [&] { return penstock_files_begin_write(files.get(), nullptr, 0, &value, 4); }},
      {"files", [&] { return penstock_files_wait(nullptr, nullptr); }},
      {"files", [&] { return penstock_files_notes(nullptr, &lines); }},
      {"lines", [&] { return penstock_files_notes(files.get(), nullptr); }},
      {"workers", [&] { return penstock_workers_create(1, nullptr); }},
      {"bytes", [&] { return penstock_tile_state_bytes(0, 0, 1, nullptr); }},
      {"arrays", [&] { return penstock_adam_step(nullptr, &hyperparameters, 1, 1, nullptr, nullptr); }},
      {"hyperparameters", [&] { return penstock_adam_step(&arrays, nullptr, 1, 1, nullptr, nullptr); }},
      {"sum", [&] { return penstock_square_sum(&value, 0, 1, nullptr, nullptr); }},
      {"values", [&] { return penstock_square_sum(nullptr, 0, 1, nullptr, &sum); }},
      {"memory", [&] { return penstock_memory_create(1, 0, nullptr, &data); }},
      {"data", [&] { return penstock_memory_create(1, 0, &memory, nullptr); }},
      {"memory", [&] { return penstock_memory_notes(nullptr, &lines); }},
      {"tile", [&] { return penstock_tile_initialize(nullptr, &value, 0, nullptr); }},
      {"tile.parameter", [&] { return penstock_tile_initialize(&tile, &value, 0, nullptr); }},
      {"tile", [&] { return penstock_tile_step(nullptr, &hyperparameters, 1, 1, nullptr, nullptr); }},
      {"hyperparameters", [&] { return penstock_tile_step(&tile, nullptr, 1, 1, nullptr, nullptr); }},
      {"tile", [&] { return penstock_tile_read(nullptr, 0, 0, 1, &value); }},
      {"values", [&] { return penstock_tile_read(&tile, 0, 0, 1, nullptr); }},
      {"tile", [&] { return penstock_tile_restore(nullptr, &value, &value, &value, nullptr); }},
      {"options", [&] { return penstock_runtime_create(nullptr, &no_runtime); }},
      {"runtime", [&] { return penstock_runtime_create(&runtime_options, nullptr); }},
      {"runtime", [&] { return penstock_runtime_add(nullptr, &tensor_options, &tensor); }},
      {"options", [&] { return penstock_runtime_add(runtime.get(), nullptr, &tensor); }},
      {"options.name", [&] { return penstock_runtime_add(runtime.get(), &tensor_options, &tensor); }},
      {"tensor", [&] { return penstock_runtime_add(runtime.get(), &tensor_options, nullptr); }},
      {"runtime", [&] { return penstock_runtime_remove(nullptr, 1); }},
      {"runtime", [&] { return penstock_runtime_discard(nullptr, 1); }},
      {"runtime", [&] { return penstock_lease_begin(nullptr, 1, PENSTOCK_READ, &lease, nullptr, nullptr); }},
      {"lease",
       [&] { return penstock_lease_begin(runtime.get(), 1, PENSTOCK_READ, nullptr, nullptr, nullptr); }},
      {"runtime", [&] { return penstock_request_begin(nullptr, 1, PENSTOCK_READ, &request); }},
      {"request", [&] { return penstock_request_begin(runtime.get(), 1, PENSTOCK_READ, nullptr); }},
      {"request", [&] { return penstock_request_poll(nullptr, &lease, nullptr, nullptr); }},
      {"runtime", [&] { return penstock_runtime_prefetch(nullptr, 1); }},
      {"runtime", [&] { return penstock_runtime_end_round(nullptr); }},
      {"runtime", [&] { return penstock_runtime_flush(nullptr); }},
      {"group", [&] { return penstock_process_group_split(nullptr, 0, nullptr); }},
      {"runtime", [&] { return penstock_runtime_park(nullptr, nullptr); }},
      {"runtime", [&] { return penstock_runtime_unpark(nullptr); }},
      {"runtime", [&] { return penstock_runtime_limit_memory(nullptr, 0, nullptr); }},
      {"runtime", [&] { return penstock_runtime_memory_least(nullptr, nullptr); }},
      {"bytes", [&] { return penstock_runtime_memory_least(runtime.get(), nullptr); }},
      {"runtime", [&] { return penstock_runtime_begin_trace(nullptr); }},
      {"runtime", [&] { return penstock_runtime_save_trace(nullptr, nullptr, "a"); }},
      {"file", [&] { return penstock_runtime_save_trace(runtime.get(), nullptr, nullptr); }},
      {"runtime", [&] { return penstock_runtime_predict_trace(nullptr, "a"); }},
      {"file", [&] { return penstock_runtime_predict_trace(runtime.get(), nullptr); }},
      {"runtime", [&] { return penstock_runtime_sync(nullptr); }},
      {"runtime", [&] { return penstock_runtime_host_memory(nullptr, &data, nullptr); }},
      {"data", [&] { return penstock_runtime_host_memory(runtime.get(), nullptr, nullptr); }},
      {"bytes", [&] { return penstock_runtime_host_memory(runtime.get(), &data, nullptr); }},
      {"runtime", [&] { return penstock_runtime_get_report(nullptr, nullptr); }},
      {"report", [&] { return penstock_runtime_get_report(runtime.get(), nullptr); }},
      {"runtime", [&] { return penstock_runtime_report_text(nullptr, nullptr, nullptr); }},
      {"options", [&] { return penstock_runtime_report_text(runtime.get(), nullptr, nullptr); }},
      {"runtime", [&] { return penstock_runtime_save_report(nullptr, nullptr, nullptr); }},
      {"options", [&] { return penstock_runtime_save_report(runtime.get(), nullptr, "report"); }},
      {"file", [&] { return penstock_runtime_save_report(runtime.get(), &report_options, nullptr); }},
      {"runtime", [&] { return penstock_runtime_notes(nullptr, &lines); }},
      {"lines", [&] { return penstock_runtime_notes(runtime.get(), nullptr); }},
      {"runtime", [&] { return penstock_runtime_take_messages(nullptr, &lines); }},
      {"lines", [&] { return penstock_runtime_take_messages(runtime.get(), nullptr); }},
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    expect(calls[i].second(), PENSTOCK_INVALID_ARGUMENT, calls[i].first);
  }
  penstock_files_free(nullptr);
  penstock_runtime_free(nullptr);
  penstock_workers_free(nullptr);
  penstock_lines_free(nullptr);
  penstock_lease_end(nullptr);
  penstock_request_end(nullptr);
  EXPECT_EQ(penstock_files_started(nullptr), 0u);
  EXPECT_EQ(penstock_lines_count(nullptr), 0u);
  EXPECT_EQ(penstock_lines_get(nullptr, 0), nullptr);
}

TEST(CInterface, RefusesNumbersThatNameNothing) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string();
  const Runtime runtime = make_runtime(scratch);
  const penstock_tensor tensor = add(runtime, "tensor");
  penstock_files* files = nullptr;
  penstock_lease* lease = nullptr;
  std::uint64_t bytes = 0;
  for (const std::int32_t number : {-1, 6, 256, 257, std::numeric_limits<std::int32_t>::min()}) {
    const penstock_files_options options{.size = sizeof(options), .engine = number};
    expect(penstock_files_create(&options, &files), PENSTOCK_INVALID_ARGUMENT, "options.engine");
    expect(penstock_lease_begin(runtime.get(), tensor, number, &lease, nullptr, nullptr),
           PENSTOCK_INVALID_ARGUMENT, "access");
    expect(penstock_tile_state_bytes(number, PENSTOCK_ADAM, 1, &bytes), PENSTOCK_INVALID_ARGUMENT, "format");
    expect(penstock_tile_state_bytes(PENSTOCK_STATE_FP32, number, 1, &bytes), PENSTOCK_INVALID_ARGUMENT,
           "optimizer");
    const penstock_runtime_options pinned{.size = sizeof(pinned), .host_budget = 1 << 20, .pinning = number};
    penstock_runtime* none = nullptr;
    expect(penstock_runtime_create(&pinned, &none), PENSTOCK_INVALID_ARGUMENT, "options.pinning");
    const penstock_runtime_options evicting{
        .size = sizeof(evicting), .host_budget = 1 << 20, .eviction = number};
    expect(penstock_runtime_create(&evicting, &none), PENSTOCK_INVALID_ARGUMENT, "options.eviction");
    penstock_lines* lines = nullptr;
    const penstock_report_options report{.size = sizeof(report), .format = number};
    expect(penstock_runtime_report_text(runtime.get(), &report, &lines), PENSTOCK_INVALID_ARGUMENT,
           "options.format");
    const penstock_tile tile{.size = sizeof(tile), .gradient_dtype = number};
    expect(penstock_tile_initialize(&tile, nullptr, 0, nullptr), PENSTOCK_INVALID_ARGUMENT,
           "tile.gradient_dtype");
  }
  for (const double seconds : {-1.0, 1e12, std::nan(""), static_cast<double>(INFINITY)}) {
    const penstock_files_options options{.size = sizeof(options), .deadline_seconds = seconds};
    expect(penstock_files_create(&options, &files), PENSTOCK_INVALID_ARGUMENT, "options.deadline_seconds");
    penstock_lines* lines = nullptr;
    const penstock_report_options report{.size = sizeof(report), .elapsed_seconds = seconds};
    expect(penstock_runtime_report_text(runtime.get(), &report, &lines), PENSTOCK_INVALID_ARGUMENT,
           "options.elapsed_seconds");
  }
  expect(penstock_lease_begin(runtime.get(), 0, PENSTOCK_READ, &lease, nullptr, nullptr),
         PENSTOCK_INVALID_ARGUMENT, "");
  expect(penstock_lease_begin(runtime.get(), 12345, PENSTOCK_READ, &lease, nullptr, nullptr),
         PENSTOCK_INVALID_ARGUMENT, "");
  EXPECT_EQ(lease, nullptr);
}

TEST(CMemory, IsOfWholePages) {
  penstock_memory* memory = nullptr;
  void* data = nullptr;
  expect(penstock_memory_create(0, PENSTOCK_PIN_NONE, &memory, &data), PENSTOCK_INVALID_ARGUMENT, "bytes");
  expect(penstock_memory_create(1, 9, &memory, &data), PENSTOCK_INVALID_ARGUMENT, "pinning");
  expect(penstock_memory_create(std::uint64_t{1} << 60, PENSTOCK_PIN_NONE, &memory, &data), PENSTOCK_NO_SPACE,
         "");
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{5} << 20}) {
    succeed(penstock_memory_create(bytes, PENSTOCK_PIN_PREFERRED, &memory, &data));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0u);
    EXPECT_EQ(static_cast<const char*>(data)[bytes - 1], 0);
    penstock_lines* notes = nullptr;
    succeed(penstock_memory_notes(memory, &notes));
    if (penstock_memory_is_pinned(memory) == 0) {
      EXPECT_GT(penstock_lines_count(notes), 0u);
    }
    penstock_lines_free(notes);
    penstock_memory_free(std::exchange(memory, nullptr));
  }
  EXPECT_EQ(penstock_memory_is_pinned(nullptr), 0);
  penstock_memory_free(nullptr);
}

TEST(CFiles, LeavesNoFileOfARefusedWrite) {
  const ScratchDirectory scratch;
  const Files files = make_files();
  const std::string name = (scratch.path() / "new").string();
  expect(penstock_files_begin_write(files.get(), name.c_str(), std::uint64_t{1} << 60, "x", 1),
         PENSTOCK_NO_SPACE, name);
  EXPECT_FALSE(std::filesystem::exists(name));
}

}  // namespace
}  // namespace penstock
