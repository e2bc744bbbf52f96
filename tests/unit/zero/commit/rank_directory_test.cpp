#include "zero/commit/rank_directory.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
using Generations = std::vector<std::uint64_t>;

Manifest manifest(std::uint64_t generation, std::uint32_t rank = 0, std::uint32_t ranks = 1) {
  Manifest made{.run = {1, 2}, .generation = generation, .rank = rank, .ranks = ranks};
  made.model.units = {{.name = "u", .parameters = {{"p", ElementCount(5), 0}}}};
  made.groups = {{}};
  return made;
}

TEST(RankDirectory, KeepsManifestsByGeneration) {
  const ScratchDirectory scratch;
  const RankDirectory::Options options{.directories = {scratch.path() / "run"}};
  {
    const auto directory = RankDirectory::open(options).value();
    EXPECT_EQ(directory->generations(0).value(), Generations());
    ASSERT_TRUE(directory->write(manifest(1)));
    ASSERT_TRUE(directory->write(manifest(12)));
    ASSERT_TRUE(directory->remove(0, 1));
    ASSERT_TRUE(directory->remove(0, 1));  // it is not there
  }
  const auto directory = RankDirectory::open(options).value();

  EXPECT_EQ(directory->generations(0).value(), Generations{12});
  EXPECT_EQ(directory->generations(1).value(), Generations());
  EXPECT_EQ(directory->read(0, 12).value(), manifest(12));
  EXPECT_EQ(directory->read(0, 1).error().code(), ErrorCode::not_found);
  const auto mode = std::filesystem::status(scratch.path() / "run" / "rank0000").permissions();
  EXPECT_EQ(mode, std::filesystem::perms::owner_all);
}

TEST(RankDirectory, LeavesFilesOfOthersAlone) {
  const ScratchDirectory scratch;
  const auto directory = RankDirectory::open({.directories = {scratch.path()}}).value();
  const auto own = directory->path(0);
  for (const char* name : {"engine0-1.manifest.new", "engine0-.manifest", "engine0-x1.manifest",
                           "engine00-1.manifest", "notes.txt"})
    std::ofstream(own / name) << "text";

  EXPECT_EQ(directory->generations(0).value(), Generations());
  EXPECT_EQ(RankDirectory::ranks(directory->options()).value(), std::vector<std::uint32_t>{0});
}

TEST(RankDirectory, IsOfOneProcessAtATime) {
  const ScratchDirectory scratch;
  const RankDirectory::Options options{.directories = {scratch.path()}};
  const auto first = RankDirectory::open(options).value();

  const auto second = RankDirectory::open(options);

  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::in_use);
  EXPECT_NE(second.error().message().find("rank0000"), std::string::npos) << second.error().message();
  EXPECT_TRUE(RankDirectory::open({.directories = {scratch.path()}, .rank = 1}));
}

TEST(RankDirectory, FindsItsFilesWhereTheDirectoriesAreNow) {
  const ScratchDirectory scratch;
  Manifest written = manifest(1);
  {
    const auto directory =
        RankDirectory::open({.directories = {scratch.path() / "a", scratch.path() / "b"}}).value();
    for (const std::size_t i : {0u, 1u}) {
      written.files.push_back((directory->path(i) / ("swap" + std::to_string(i))).string());
      std::ofstream(written.files.back()) << "bytes";
    }
    ASSERT_TRUE(directory->write(written));
  }
  std::filesystem::rename(scratch.path() / "a", scratch.path() / "c");

  // In another order.
  const auto read =
      RankDirectory::read_of({.directories = {scratch.path() / "c", scratch.path() / "b"}}, 0, 0, 1);

  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->files, (std::vector<std::string>{scratch.path() / "c/rank0000/swap0",
                                                   scratch.path() / "b/rank0000/swap1"}));
}

TEST(RankDirectory, NamesFilesByTheDirectoryWhateverItsPlace) {
  const ScratchDirectory scratch;
  const auto a = scratch.path() / "a", b = scratch.path() / "b", c = scratch.path() / "c";
  const auto names = [](std::vector<std::filesystem::path> directories) {
    const auto directory = RankDirectory::open({.directories = std::move(directories)}).value();
    std::string text;
    for (std::size_t i = 0; i < directory->options().directories.size(); ++i) {
      const auto name = i == 0 ? directory->copies_name(3, i) : directory->swap_name(i);
      std::ofstream(directory->path(i) / name) << "bytes";
      text += name + " ";
    }
    return text;
  };

  EXPECT_EQ(names({a, b}), "copies3-0 swap1 ");
  EXPECT_EQ(names({b, a}), "copies3-1 swap0 ");
  EXPECT_EQ(names({b}), "copies3-1 ");
  EXPECT_EQ(names({b, c}), "copies3-1 swap0 ");
  EXPECT_EQ(names({b, a, c}), "copies3-1 swap0 swap2 ") << "a number that two directories have";
}

TEST(RankDirectory, NamesNoFileOfOthers) {
  for (const char* name :
       {"swap", "swap-1", "swap0.old", "copies0", "copies0-x", "copies-1", "copies0-1x", ""})
    EXPECT_FALSE(number_of_file(name)) << name;
  EXPECT_EQ(number_of_file("swap12"), 12u);
  EXPECT_EQ(number_of_file("copies3-4"), 4u);
}

TEST(RankDirectory, RefusesAManifestUnderAnotherName) {
  const ScratchDirectory scratch;
  const auto directory = RankDirectory::open({.directories = {scratch.path()}}).value();
  ASSERT_TRUE(directory->write(manifest(1)));
  std::filesystem::copy(directory->path(0) / manifest_name(0, 1), directory->path(0) / manifest_name(0, 2));

  EXPECT_EQ(directory->read(0, 2).error().code(), ErrorCode::corrupted);
}

// At each of its calls.
TEST(RankDirectory, HasTheOldManifestsWhereWritingANewOneFails) {
  for (std::uint64_t call = 0;; ++call) {
    const ScratchDirectory scratch;
    const RankDirectory::Options on_disk{.directories = {scratch.path() / "run"}};
    { ASSERT_TRUE(RankDirectory::open(on_disk).value()->write(manifest(1))); }
    tiers::FaultFileSystem files(tiers::real_file_system(),
                                 {tiers::FileSystemFault::fail(std::nullopt, call, EIO)});
    RankDirectory::Options faulty = on_disk;
    faulty.files = &files;
    {
      const auto directory = RankDirectory::open(faulty);
      if (directory) (void)(*directory)->write(manifest(2));
    }

    const auto directory = RankDirectory::open(on_disk).value();
    ASSERT_EQ(directory->read(0, 1).value(), manifest(1)) << call;
    if (const auto second = directory->read(0, 2)) {
      EXPECT_EQ(*second, manifest(2));
    }
    EXPECT_TRUE(directory->write(manifest(2))) << call;
    if (files.injected() == 0) break;
  }
}

TEST(RankDirectory, NamesADirectoryThatCannotBeMade) {
  for (const char* directory : {"/no/such/place", "/proc/run", ""}) {
    const auto refused = RankDirectory::open({.directories = {directory}});
    ASSERT_FALSE(refused) << directory;
    EXPECT_NE(refused.error().message().find(directory), std::string::npos) << refused.error().message();
  }
}

}  // namespace
}  // namespace penstock::zero::test
