#include "c_runtime.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using test::add;
using test::expect;
using test::made;
using test::make_runtime;
using test::Runtime;
using test::ScratchDirectory;
using test::succeed;

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

}  // namespace
}  // namespace penstock
