#include "c_runtime.hpp"
#include "kit/guard_pages.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace penstock {
namespace {

using test::add;
using test::expect;
using test::made;
using test::make_runtime;
using test::Runtime;
using test::ScratchDirectory;
using test::succeed;

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

}  // namespace
}  // namespace penstock
