#include "zero/commit/committed_states.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using tiers::FileSystemFault;

/// One frozen parameter of `count` elements, of which 256 KiB are in `file`.
Manifest manifest_of(ElementCount count, const std::filesystem::path& file) {
  Manifest manifest{.generation = 1, .dtype = DType::bf16};
  manifest.model.groups = manifest.groups = {{.frozen = true}};
  manifest.model.units = {{.name = "unit", .parameters = {{"weight", count, 0}}}};
  manifest.files = {file.string()};
  manifest.tensors = {{.key = {.role = tiers::Purpose::parameter_shard, .count = count.value()},
                       .size = 256_KiB,
                       .block = 256_KiB,
                       .length = 256_KiB,
                       .checksums = {1}}};
  return manifest;
}

/// Why 16 elements from `first` on are not read.
Error error_of(tiers::FileSystem& files, const Manifest& manifest, std::uint64_t first,
               TimePoint deadline = std::chrono::seconds(60)) {
  const auto load = [&manifest](std::uint32_t) { return manifest; };
  auto states =
      CommittedStates::open(files, manifest, load, manifest.model, cpu_adam::Optimizer::adam, deadline);
  std::array<float, 16> values{};
  return states.value().read({0, 0}, cpu_adam::StateKind::master, first, values).error();
}

// Such a manifest verifies, and no run has written it.
TEST(CommittedStates, RefuseElementsOfWhichTheManifestHasNoBytes) {
  const Manifest manifest = manifest_of(ElementCount(5 << 20), "/nowhere/swap0");
  for (const std::uint64_t first : {std::uint64_t{131072}, std::uint64_t{4 << 20}}) {
    const Error error = error_of(tiers::real_file_system(), manifest, first);
    EXPECT_EQ(error.code(), ErrorCode::corrupted);
    EXPECT_NE(error.message().find("fewer bytes"), std::string::npos) << error.message();
  }
}

TEST(CommittedStates, WaitForADriveUntilTheDeadline) {
  const penstock::test::ScratchDirectory scratch;
  const std::filesystem::path file = scratch.path() / "swap0";
  std::ofstream(file) << std::string(256 << 10, 'x');
  const Manifest manifest = manifest_of(ElementCount(131072), file);
  for (const auto call : {FileSystemFault::Operation::open, FileSystemFault::Operation::read}) {
    // Calls that are abandoned return later.
    auto* const slow =
        new tiers::FaultFileSystem(tiers::real_file_system(), {{.operation = call,
                                                                .count = ~std::uint64_t{0},
                                                                .effect = FileSystemFault::Effect::delay,
                                                                .delay = std::chrono::seconds(2)}});
    const Error error = error_of(*slow, manifest, 0, std::chrono::milliseconds(50));
    EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded) << error.message();
    EXPECT_NE(error.message().find(file.string()), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace penstock::zero::test
