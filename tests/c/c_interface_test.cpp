#include "c_handles.hpp"
#include "kit/guard_pages.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::ScratchDirectory;

using test::expect;
using test::made;
using test::Owned;
using test::OwnedError;
using test::succeed;
using Files = Owned<penstock_files, penstock_files_free>;
using Runtime = Owned<penstock_runtime, penstock_runtime_free>;
using Workers = Owned<penstock_workers, penstock_workers_free>;

Files make_files() {
  const penstock_files_options options{.size = sizeof(options)};
  return made<Files>([&](auto files) { return penstock_files_create(&options, files); });
}
/// With room for four tensors of 64 KiB in memory, and for 16 on disk.
Runtime make_runtime(const ScratchDirectory& scratch) {
  const std::string directory = scratch.path().string();
  const penstock_path path{.size = sizeof(path), .directory = directory.c_str(), .capacity = 1 << 20};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 256 << 10, .paths = &path, .path_count = 1};
  return made<Runtime>([&](auto runtime) { return penstock_runtime_create(&options, runtime); });
}
penstock_tensor add(const Runtime& runtime, const penstock_tensor_options& options) {
  penstock_tensor tensor = 0;
  succeed(penstock_runtime_add(runtime.get(), &options, &tensor));
  return tensor;
}
penstock_tensor add(const Runtime& runtime, const char* name, std::uint64_t bytes = 64 << 10) {
  return add(runtime, {.size = sizeof(penstock_tensor_options), .name = name, .bytes = bytes});
}
/// Some that are written behind, each filled with its number and stored.
std::vector<penstock_tensor> stored_tensors(const Runtime& runtime, int count, std::uint64_t bytes) {
  std::vector<penstock_tensor> tensors;
  for (int i = 0; i < count; ++i) {
    const std::string name = "tensor " + std::to_string(i);
    tensors.push_back(add(
        runtime,
        {.size = sizeof(penstock_tensor_options), .name = name.c_str(), .bytes = bytes, .write_behind = 1}));
    penstock_lease* lease = nullptr;
    void* data = nullptr;
    succeed(penstock_lease_begin(runtime.get(), tensors.back(), PENSTOCK_OVERWRITE, &lease, &data, nullptr));
    std::memset(data, i, bytes);
    penstock_lease_end(lease);
  }
  succeed(penstock_runtime_flush(runtime.get()));
  return tensors;
}
/// The first byte.
int read(const Runtime& runtime, penstock_tensor tensor) {
  penstock_lease* lease = nullptr;
  void* data = nullptr;
  succeed(penstock_lease_begin(runtime.get(), tensor, PENSTOCK_READ, &lease, &data, nullptr));
  const int value = data == nullptr ? -1 : *static_cast<const unsigned char*>(data);
  penstock_lease_end(lease);
  return value;
}
std::uint64_t bytes_read(const Runtime& runtime) {
  penstock_runtime_report report{.size = sizeof(report)};
  succeed(penstock_runtime_get_report(runtime.get(), &report));
  return report.bytes_read;
}
/// Bytes of its host memory that the process has.
std::uint64_t resident(const Runtime& runtime) {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  succeed(penstock_runtime_host_memory(runtime.get(), &data, &bytes));
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(::mincore(data, bytes, pages.data()), 0);
  return 4096 * static_cast<std::uint64_t>(
                    std::count_if(pages.begin(), pages.end(), [](auto page) { return (page & 1) != 0; }));
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

TEST(CStructs, HaveASizeThatAVersionHas) {
  penstock_files* files = nullptr;
  for (const std::size_t size : {std::size_t{0}, sizeof(std::size_t), 2 * sizeof(std::size_t),
                                 sizeof(penstock_files_options) - 1, std::size_t{1} << 20, ~std::size_t{0}}) {
    const penstock_files_options options{.size = size};
    expect(penstock_files_create(&options, &files), PENSTOCK_INVALID_ARGUMENT, "options.size");
  }
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  penstock_runtime_report report{.size = 0};
  expect(penstock_runtime_get_report(runtime.get(), &report), PENSTOCK_INVALID_ARGUMENT, "report.size");
  EXPECT_EQ(files, nullptr);
}

/// A program that was compiled with headers of another version.
TEST(CStructs, AreThoseOfAnotherVersionToo) {
  struct Later {
    penstock_files_options known;
    std::uint64_t added;
  };
  penstock_files* made = nullptr;
  Later later{.known = {.size = sizeof(Later)}, .added = 0};
  succeed(penstock_files_create(&later.known, &made));
  penstock_files_free(std::exchange(made, nullptr));
  later.added = 1;
  expect(penstock_files_create(&later.known, &made), PENSTOCK_UNSUPPORTED, "newer libpenstock.so");

  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  struct LaterReport {
    penstock_runtime_report known;
    std::uint64_t added;
  };
  LaterReport report{.known = {.size = sizeof(LaterReport)}, .added = 77};
  succeed(penstock_runtime_get_report(runtime.get(), &report.known));
  EXPECT_EQ(report.known.host_free, std::uint64_t{256} << 10);
  EXPECT_EQ(report.known.size, sizeof(LaterReport));
  EXPECT_EQ(report.added, 77u) << "this library does not have this member";
}

/// The struct of a program that was compiled before members were appended ends at a page that cannot be read.
template <class T, class Call>
void pass_as_first_version(T value, std::size_t size, const Call& call) {
  const penstock::test::GuardedBytes bytes{penstock::ByteCount(size)};
  value.size = size;
  std::memcpy(bytes.span().data(), &value, size);
  call(reinterpret_cast<const T*>(bytes.span().data()));
}

TEST(CStructs, OfEarlierVersionsAreNotReadBeyondTheirEnd) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string();
  const Runtime runtime = make_runtime(scratch);
  const auto create = [](const penstock_runtime_options* options) {
    penstock_runtime* made = nullptr;
    succeed(penstock_runtime_create(options, &made));
    penstock_runtime_free(made);
  };
  pass_as_first_version(penstock_runtime_options{.host_budget = 64 << 10},
                        offsetof(penstock_runtime_options, reuse_distance_max), create);
  pass_as_first_version(penstock_runtime_options{.host_budget = 64 << 10},
                        offsetof(penstock_runtime_options, timeline_file), create);
  pass_as_first_version(
      penstock_path{.directory = directory.c_str(), .capacity = 1 << 20}, offsetof(penstock_path, limit),
      [&](const penstock_path* path) {
        const penstock_runtime_options options{
            .size = sizeof(options), .host_budget = 64 << 10, .paths = path, .path_count = 1};
        create(&options);
      });
  pass_as_first_version(penstock_tensor_options{.name = "of an older program", .bytes = 8},
                        offsetof(penstock_tensor_options, home_in_memory),
                        [&](const penstock_tensor_options* options) { add(runtime, *options); });
  pass_as_first_version(penstock_report_options{}, offsetof(penstock_report_options, with_changes),
                        [&](const penstock_report_options* options) {
                          penstock_lines* lines = nullptr;
                          succeed(penstock_runtime_report_text(runtime.get(), options, &lines));
                          penstock_lines_free(lines);
                        });
}

TEST(CRuntime, ReportsWhatIsKnownOfADrive) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string(), file = directory + "/report.json";
  const penstock_path path{.size = sizeof(path),
                           .directory = directory.c_str(),
                           .capacity = 1 << 20,
                           .limit = 3e9,
                           .endurance = 1000};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 64 << 10, .paths = &path, .path_count = 1};
  penstock_runtime* made = nullptr;
  succeed(penstock_runtime_create(&options, &made));
  const penstock_report_drive drive{
      .size = sizeof(drive), .directory = directory.c_str(), .limit = 4e9, .endurance = 2000};
  penstock_report_options as_json{
      .size = sizeof(as_json), .format = PENSTOCK_REPORT_JSON, .elapsed_seconds = 5};
  const auto contents = [&] {
    succeed(penstock_runtime_save_report(made, &as_json, file.c_str()));
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };

  const std::string of_path = contents();
  as_json.drives = &drive;
  as_json.drive_count = 1;
  const std::string of_call = contents();

  EXPECT_NE(of_path.find("\"endurance\": 1000"), std::string::npos) << of_path;
  EXPECT_NE(of_path.find("\"limit\": 3e+09"), std::string::npos) << of_path;
  EXPECT_NE(of_path.find("\"elapsed\": 5"), std::string::npos) << of_path;
  EXPECT_NE(of_call.find("\"endurance\": 2000"), std::string::npos) << of_call;
  EXPECT_NE(of_call.find("\"limit\": 4e+09"), std::string::npos) << of_call;
  expect(penstock_runtime_save_report(made, &as_json, (directory + "/none/report").c_str()),
         PENSTOCK_NOT_FOUND, "none/report");
  as_json.format = 3;
  expect(penstock_runtime_save_report(made, &as_json, file.c_str()), PENSTOCK_INVALID_ARGUMENT, "format");
  penstock_runtime_free(std::exchange(made, nullptr));
  for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    penstock_path bad = path;
    bad.limit = wrong;
    penstock_runtime_options refused = options;
    refused.paths = &bad;
    expect(penstock_runtime_create(&refused, &made), PENSTOCK_INVALID_ARGUMENT, "options.paths.limit");
  }
}

TEST(CStructs, InAnArrayHaveTheSizeOfTheirVersion) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string();
  struct Later {
    penstock_path known;
    std::uint64_t added[3];
  };
  std::array<Later, 2> paths{};
  for (Later& path : paths)
    path.known = {.size = sizeof(Later), .directory = directory.c_str(), .capacity = 1 << 20};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 1 << 20, .paths = &paths[0].known, .path_count = 2};
  penstock_runtime* runtime = nullptr;
  succeed(penstock_runtime_create(&options, &runtime));
  penstock_runtime_free(runtime);
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

TEST(CRuntime, TakesTheOptionsOfAnOlderProgram) {
  const penstock_runtime_options options{.size = offsetof(penstock_runtime_options, reuse_distance_max),
                                         .host_budget = 1 << 20,
                                         .reuse_distance_max = 7};  // beyond its size
  const auto runtime = made<Runtime>([&](auto to) { return penstock_runtime_create(&options, to); });
  EXPECT_NE(runtime, nullptr);
}

TEST(CRuntime, HasAReport) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  const std::string directory = scratch.path().string();
  const auto text = [&](penstock_report_format format, double seconds) {
    const penstock_report_drive drive{
        .size = sizeof(drive), .directory = directory.c_str(), .limit = 1e9, .endurance = 77};
    const penstock_report_options options{.size = sizeof(options),
                                          .format = format,
                                          .rank = 5,
                                          .elapsed_seconds = seconds,
                                          .drives = &drive,
                                          .drive_count = 1};
    penstock_lines* lines = nullptr;
    succeed(penstock_runtime_report_text(runtime.get(), &options, &lines));
    std::string all;
    for (std::size_t i = 0; i < penstock_lines_count(lines); ++i)
      all += std::string(penstock_lines_get(lines, i)) + '\n';
    penstock_lines_free(lines);
    return all;
  };
  EXPECT_TRUE(text(PENSTOCK_REPORT_TEXT, 2).starts_with("rank 5, 2.00 s, callers waited"));
  EXPECT_NE(text(PENSTOCK_REPORT_TEXT, 0).find(directory), std::string::npos);
  EXPECT_NE(text(PENSTOCK_REPORT_JSON, 2).find("\"elapsed\": 2"), std::string::npos);
  EXPECT_NE(text(PENSTOCK_REPORT_JSON, 2).find("\"endurance\": 77"), std::string::npos);
  EXPECT_NE(text(PENSTOCK_REPORT_PROMETHEUS, 2).find("penstock_elapsed_seconds{rank=\"5\"} 2\n"),
            std::string::npos);
}

TEST(CRuntime, RefusesAReportOfDrivesThatCannotBe) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  penstock_lines* lines = nullptr;
  const auto refused = [&](const penstock_report_drive& drive, const char* what) {
    const penstock_report_options options{.size = sizeof(options), .drives = &drive, .drive_count = 1};
    expect(penstock_runtime_report_text(runtime.get(), &options, &lines), PENSTOCK_INVALID_ARGUMENT, what);
  };
  refused({.size = sizeof(penstock_report_drive)}, "options.drives.directory");
  refused({.size = 1, .directory = "a"}, "options.drives.size");
  for (const double limit : {-1.0, std::nan(""), static_cast<double>(INFINITY)})
    refused({.size = sizeof(penstock_report_drive), .directory = "a", .limit = limit},
            "options.drives.limit");
  EXPECT_EQ(lines, nullptr);
}

TEST(CRuntime, LoadsWhatWasEvicted) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  std::vector<penstock_tensor> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(add(runtime, ("tensor " + std::to_string(i)).c_str()));
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      penstock_lease* lease = nullptr;
      void* data = nullptr;
      std::uint64_t bytes = 0;
      succeed(penstock_lease_begin(runtime.get(), tensors[i],
                                   round == 0 ? PENSTOCK_OVERWRITE : PENSTOCK_MODIFY, &lease, &data, &bytes));
      ASSERT_EQ(bytes, 64u << 10);
      auto* const values = static_cast<unsigned char*>(data);
      for (std::size_t at = 0; at < bytes; at += 1000) {
        if (round > 0) {
          ASSERT_EQ(values[at], static_cast<unsigned char>(i + at + round - 1));
        }
        values[at] = static_cast<unsigned char>(i + at + round);
      }
      penstock_lease_end(lease);
    }
    succeed(penstock_runtime_end_round(runtime.get()));
  }
  succeed(penstock_runtime_sync(runtime.get()));
  for (const penstock_tensor tensor : tensors) succeed(penstock_runtime_remove(runtime.get(), tensor));
  expect(penstock_runtime_remove(runtime.get(), tensors[0]), PENSTOCK_INVALID_ARGUMENT, "");
}

TEST(CRuntime, GrantsARequestLater) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  const penstock_tensor tensor = add(runtime, "tensor");
  penstock_lease *writer = nullptr, *reader = nullptr;
  succeed(penstock_lease_begin(runtime.get(), tensor, PENSTOCK_OVERWRITE, &writer, nullptr, nullptr));
  penstock_request* request = nullptr;
  succeed(penstock_request_begin(runtime.get(), tensor, PENSTOCK_READ, &request));
  succeed(penstock_request_poll(request, &reader, nullptr, nullptr));
  EXPECT_EQ(reader, nullptr) << "the writer has it";
  penstock_lease_end(writer);
  void* data = nullptr;
  while (reader == nullptr) {
    succeed(penstock_request_poll(request, &reader, &data, nullptr));
    std::this_thread::yield();
  }
  EXPECT_NE(data, nullptr);
  expect(penstock_request_poll(request, &reader, nullptr, nullptr), PENSTOCK_FAILED_STATE, "it has ended");
  penstock_lease_end(reader);
  penstock_request_end(request);
}

TEST(CRuntime, LivesAsLongAsItsLeases) {
  const ScratchDirectory scratch;
  Runtime runtime = make_runtime(scratch);
  const penstock_tensor tensor = add(runtime, "tensor");
  penstock_lease* lease = nullptr;
  penstock_request* request = nullptr;
  void* data = nullptr;
  succeed(penstock_lease_begin(runtime.get(), tensor, PENSTOCK_OVERWRITE, &lease, &data, nullptr));
  succeed(penstock_request_begin(runtime.get(), tensor, PENSTOCK_READ, &request));
  runtime.reset();
  std::memset(data, 7, 64 << 10);
  penstock_lease_end(lease);
  penstock_request_end(request);
}

TEST(CRuntime, SaysWhatDoesNotFit) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  penstock_tensor tensor = 0;
  const penstock_tensor_options large{.size = sizeof(large), .name = "large", .bytes = 16 << 20};
  expect(penstock_runtime_add(runtime.get(), &large, &tensor), PENSTOCK_BUDGET_TOO_SMALL, "large");
  const penstock_tensor_options empty{.size = sizeof(empty), .name = "empty"};
  expect(penstock_runtime_add(runtime.get(), &empty, &tensor), PENSTOCK_INVALID_ARGUMENT, "empty");
  std::vector<penstock_lease*> leases(4);
  for (std::size_t i = 0; i < leases.size(); ++i) {
    const std::string name = "held " + std::to_string(i);
    succeed(penstock_lease_begin(runtime.get(), add(runtime, name.c_str()), PENSTOCK_OVERWRITE, &leases[i],
                                 nullptr, nullptr));
  }
  penstock_lease* more = nullptr;
  expect(
      penstock_lease_begin(runtime.get(), add(runtime, "more"), PENSTOCK_OVERWRITE, &more, nullptr, nullptr),
      PENSTOCK_BUDGET_TOO_SMALL, "held 2");
  for (penstock_lease* const lease : leases) penstock_lease_end(lease);
}

TEST(CRuntime, LimitsItsMemoryWhileItIsUsed) {
  constexpr std::uint64_t page = 2 << 20;
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string();
  const penstock_path path{.size = sizeof(path), .directory = directory.c_str(), .capacity = 16 * page};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 8 * page, .paths = &path, .path_count = 1};
  const auto runtime = made<Runtime>([&](auto to) { return penstock_runtime_create(&options, to); });
  const auto tensors = stored_tensors(runtime, 8, page);
  ASSERT_EQ(resident(runtime), 8 * page);
  std::uint64_t used = 0, least = 0;

  succeed(penstock_runtime_limit_memory(runtime.get(), 3 * page, &used));

  EXPECT_EQ(used, 3 * page);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(read(runtime, tensors[static_cast<std::size_t>(i)]), i);
  EXPECT_EQ(resident(runtime), 3 * page);
  expect(penstock_runtime_park(runtime.get(), nullptr), PENSTOCK_FAILED_STATE, "limit");

  succeed(penstock_runtime_memory_least(runtime.get(), &least));
  EXPECT_EQ(least, page);
  used = 7;
  expect(penstock_runtime_limit_memory(runtime.get(), least - 4096, &used), PENSTOCK_BUDGET_TOO_SMALL,
         "tensor 0");
  EXPECT_EQ(used, 7u);
  EXPECT_EQ(resident(runtime), 3 * page);
  succeed(penstock_runtime_limit_memory(runtime.get(), least, nullptr));
  EXPECT_EQ(resident(runtime), page);
  succeed(penstock_runtime_limit_memory(runtime.get(), ~std::uint64_t{0}, &used));
  EXPECT_EQ(used, 8 * page);
  EXPECT_EQ(resident(runtime), 8 * page);
}

TEST(CRuntime, LoadsWhatASavedTraceUsesNext) {
  const ScratchDirectory scratch;
  const std::string file = (scratch.path() / "train.trace").string();
  {
    const Runtime recorded = make_runtime(scratch);
    const auto tensors = stored_tensors(recorded, 8, 64 << 10);
    succeed(penstock_runtime_begin_trace(recorded.get()));
    for (const penstock_tensor tensor : tensors) read(recorded, tensor);
    succeed(penstock_runtime_save_trace(recorded.get(), "train", file.c_str()));
  }
  const Runtime runtime = make_runtime(scratch);
  const auto tensors = stored_tensors(runtime, 8, 64 << 10);
  ASSERT_EQ(bytes_read(runtime), 0u) << "the last four are in memory";

  succeed(penstock_runtime_predict_trace(runtime.get(), file.c_str()));
  read(runtime, tensors[0]);

  // Three are read without a request.
  while (bytes_read(runtime) < 4 * (64 << 10)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(CRuntime, RefusesATraceOfAnotherModel) {
  const ScratchDirectory scratch;
  const std::string file = (scratch.path() / "a.trace").string(),
                    none = (scratch.path() / "none" / "a.trace").string();
  const Runtime runtime = make_runtime(scratch);
  const penstock_tensor tensor = add(runtime, "layer 7");
  const auto record = [&] {
    succeed(penstock_runtime_begin_trace(runtime.get()));
    penstock_lease* lease = nullptr;
    succeed(penstock_lease_begin(runtime.get(), tensor, PENSTOCK_OVERWRITE, &lease, nullptr, nullptr));
    penstock_lease_end(lease);
  };
  expect(penstock_runtime_save_trace(runtime.get(), "", file.c_str()), PENSTOCK_FAILED_STATE, "begin_trace");
  record();
  expect(penstock_runtime_save_trace(runtime.get(), "two\nlines", file.c_str()), PENSTOCK_INVALID_ARGUMENT,
         "label");
  succeed(penstock_runtime_save_trace(runtime.get(), nullptr, file.c_str()));  // it was still recorded
  record();
  expect(penstock_runtime_save_trace(runtime.get(), "", none.c_str()), PENSTOCK_NOT_FOUND, none);
  succeed(penstock_runtime_save_trace(runtime.get(), "", file.c_str()));  // what was recorded is still there
  expect(penstock_runtime_save_trace(runtime.get(), "", file.c_str()), PENSTOCK_FAILED_STATE, "begin_trace");

  const ScratchDirectory others;
  const Runtime same = make_runtime(others), without = make_runtime(others), smaller = make_runtime(others);
  add(same, "layer 7");
  add(smaller, "layer 7", 32 << 10);
  succeed(penstock_runtime_predict_trace(same.get(), file.c_str()));
  expect(penstock_runtime_predict_trace(same.get(), none.c_str()), PENSTOCK_NOT_FOUND, none);
  expect(penstock_runtime_predict_trace(without.get(), file.c_str()), PENSTOCK_INVALID_ARGUMENT, "layer 7");
  expect(penstock_runtime_predict_trace(smaller.get(), file.c_str()), PENSTOCK_INVALID_ARGUMENT, "32.0 KiB");
  std::ofstream(file) << "no trace";
  expect(penstock_runtime_predict_trace(same.get(), file.c_str()), PENSTOCK_INVALID_ARGUMENT, file);
}

TEST(CRuntime, KeepsATensorWhoseHomeIsMemory) {
  for (const bool home : {false, true}) {
    SCOPED_TRACE(home);
    const ScratchDirectory scratch;
    const Runtime runtime = make_runtime(scratch);
    const penstock_tensor tensor = add(runtime, {.size = sizeof(penstock_tensor_options),
                                                 .name = "home",
                                                 .bytes = 64 << 10,
                                                 .home_in_memory = home ? 1 : 0});
    penstock_lease* lease = nullptr;
    succeed(penstock_lease_begin(runtime.get(), tensor, PENSTOCK_OVERWRITE, &lease, nullptr, nullptr));
    penstock_lease_end(lease);
    stored_tensors(runtime, 8, 64 << 10);
    const std::uint64_t before = bytes_read(runtime);

    read(runtime, tensor);

    EXPECT_EQ(bytes_read(runtime) - before, home ? 0u : 64u << 10);
  }
}

TEST(CRuntime, RefusesAHomeWithoutAPlaceOnDisk) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  const penstock_tensor_options both{
      .size = sizeof(both), .name = "both", .bytes = 8, .in_memory = 1, .home_in_memory = 1};
  penstock_tensor tensor = 0;
  expect(penstock_runtime_add(runtime.get(), &both, &tensor), PENSTOCK_INVALID_ARGUMENT,
         "options.in_memory and options.home_in_memory");
  EXPECT_EQ(tensor, 0u);
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
