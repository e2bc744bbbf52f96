// Config::check_paths(): the directories of nvme_path.
#include "config_text.hpp"

#include "kit/child_process.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace penstock::zero {
namespace {

TEST(ConfigCheckPaths, ChecksItsDirectoriesOnlyWhenAsked) {
  test::ScratchDirectory directory;
  auto config = read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/nonexistent/penstock"}}})");
  ASSERT_TRUE(config) << config.error().message();

  const auto missing = config->check_paths();
  std::ofstream(directory.path() / "file") << "x";
  config->offload_optimizer.nvme_paths = {directory.path() / "file"};
  const auto file = config->check_paths();
  config->offload_optimizer.nvme_paths = {directory.path()};
  const auto usable = config->check_paths();
  config->offload_optimizer.nvme_paths = {"/proc"};
  const auto pseudo = config->check_paths();

  EXPECT_TRUE(contains(missing.error().message(), "/nonexistent/penstock does not exist"));
  EXPECT_TRUE(contains(file.error().message(), "is not a directory"));
  EXPECT_TRUE(usable);
  EXPECT_EQ(directory.entry_count(), 1u);
  EXPECT_TRUE(contains(pseudo.error().message(), "/proc is on a file system that creates no files"));
}

TEST(ConfigCheckPaths, RefusesADurableDirectoryInMemory) {
  if (tiers::real_file_system().type_name("/dev/shm") != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";
  const auto config = read(R"({"train_batch_size": 8, "penstock": {"durable_directory": "/dev/shm"}})");
  ASSERT_TRUE(config) << config.error().message();

  const auto checked = config->check_paths();

  ASSERT_FALSE(checked);
  EXPECT_TRUE(contains(checked.error().message(), "/dev/shm is on a tmpfs")) << checked.error().message();
}

TEST(ConfigCheckPaths, RefusesADirectoryWhoseNameHasANul) {
  const auto config = read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/swap\u0000x"}}})");

  ASSERT_FALSE(config);
  EXPECT_TRUE(contains(config.error().message(), "offload_optimizer.nvme_path")) << config.error().message();
  EXPECT_TRUE(contains(config.error().message(), "NUL character")) << config.error().message();
}

/// The message of check_paths() in a child, after `prepare`, for this directory of the optimizer's states and, if
/// `for_both`, of the parameters.
std::string path_refusal(const std::filesystem::path& directory, const std::function<bool()>& prepare,
                         bool for_both = false) {
  auto config = read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/"}}})");
  config->offload_optimizer.nvme_paths = {directory};
  if (for_both) config->offload_param = config->offload_optimizer;
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) return "no pipe";
  test::in_child([&] {
    if (!prepare()) return 77;
    const auto checked = config->check_paths();
    const std::string message = checked ? "" : checked.error().message();
    (void)!::write(pipe[1], message.data(), message.size());
    return 0;
  });
  ::close(pipe[1]);
  std::string message(4096, '\0');
  message.resize(
      static_cast<std::size_t>(std::max<ssize_t>(::read(pipe[0], message.data(), message.size()), 0)));
  ::close(pipe[0]);
  return message;
}

TEST(ConfigCheckPaths, DistinguishesADirectoryThatCannotBeExaminedFromOneThatDoesNotExist) {
  const test::ScratchDirectory directory;
  const auto inner = directory.path() / "closed" / "swap";
  std::filesystem::create_directories(inner);
  std::filesystem::permissions(directory.path() / "closed", std::filesystem::perms::none);

  const std::string closed = path_refusal(inner, [] { return ::getuid() != 0 || ::setuid(65534) == 0; });
  const std::string failed =
      path_refusal(directory.path(), [] { return test::refuse_system_call(SYS_newfstatat, EIO); });
  const std::string missing = path_refusal(directory.path() / "missing", [] { return true; });
  std::filesystem::permissions(directory.path() / "closed", std::filesystem::perms::owner_all);

  EXPECT_TRUE(contains(closed, "cannot be examined: Permission denied")) << closed;
  EXPECT_TRUE(contains(closed, "try     give this user the permissions for it")) << closed;
  EXPECT_TRUE(contains(failed, "cannot be examined: Input/output error")) << failed;
  EXPECT_TRUE(contains(failed, "try     check the kernel log (dmesg)")) << failed;
  EXPECT_TRUE(contains(missing, "does not exist")) << missing;
  EXPECT_TRUE(contains(missing, "try     create the directory")) << missing;
}

TEST(ConfigCheckPaths, AdvisesOnWhatPreventsAFileInADirectory) {
  if (test::address_sanitizer) GTEST_SKIP() << "the sanitizer needs descriptors to examine an object";
  const test::ScratchDirectory directory;

  const std::string limit = path_refusal(directory.path(), [] {
    const rlimit none{3, 3};
    return ::setrlimit(RLIMIT_NOFILE, &none) == 0;
  });
  const std::string read_only =
      path_refusal(directory.path(), [] { return test::refuse_system_call(SYS_openat, EROFS); });

  EXPECT_TRUE(contains(limit, "try     raise the limit on open files of this process")) << limit;
  EXPECT_TRUE(contains(read_only, "try     name a directory on a file system that is not mounted"))
      << read_only;
}

TEST(ConfigCheckPaths, TakesADurableDirectoryThatTheRunCanMake) {
  const test::ScratchDirectory directory;
  Config config;
  config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/no/such/directory"}};
  const auto refusal = [&](const std::filesystem::path& durable) {
    config.penstock.durable_directories = {durable};
    const auto checked = config.check_paths();
    return checked ? "" : checked.error().message();
  };

  EXPECT_EQ(refusal(directory.path()), "");
  EXPECT_EQ(refusal(directory.path() / "run"), "") << "nvme_path is not used";
  EXPECT_EQ(refusal((directory.path() / "run").string() + "/"), "");
  const std::string missing = refusal(directory.path() / "none/run");
  EXPECT_TRUE(contains(missing, "penstock.durable_directory: " + (directory.path() / "none/run").string() +
                                    " cannot be made: " + (directory.path() / "none").string() +
                                    " does not exist"))
      << missing;
}

TEST(ConfigCheckPaths, ExaminesADirectoryOnceThatTwoKeysName) {
  const test::ScratchDirectory directory;

  const std::string refused = path_refusal(
      directory.path(), [] { return test::refuse_system_call_times(SYS_newfstatat, EIO, 1); },
      /*for_both=*/true);

  for (const char* key : {"offload_param", "offload_optimizer"}) {
    EXPECT_TRUE(contains(refused, "zero_optimization." + std::string(key) +
                                      ".nvme_path: " + directory.path().string() + " cannot be examined"))
        << refused;
  }
}

}  // namespace
}  // namespace penstock::zero
