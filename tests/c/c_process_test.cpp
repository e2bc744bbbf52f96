// The C interface between processes: after a fork, and in groups.
#include "c_handles.hpp"
#include "kit/free_port.hpp"
#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using test::expect;
using test::made;
using test::Owned;
using test::OwnedError;
using test::ScratchDirectory;
using test::succeed;
using Files = Owned<penstock_files, penstock_files_free>;
using Group = Owned<penstock_process_group, penstock_process_group_free>;
using Lease = Owned<penstock_lease, penstock_lease_end>;
using Memory = Owned<penstock_memory, penstock_memory_free>;
using Runtime = Owned<penstock_runtime, penstock_runtime_free>;
using Workers = Owned<penstock_workers, penstock_workers_free>;

/// Runs `child` in a forked process, which must end within some seconds. Returns its exit status.
int in_fork(const std::function<int()>& child) {
  const ::pid_t process = ::fork();
  if (process == 0) {
    ::alarm(20);
    ::_exit(child());
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
bool is_refused(penstock_error* returned) {
  const OwnedError error(returned);
  return penstock_error_code(error.get()) == PENSTOCK_FAILED_STATE &&
         std::string(penstock_error_message(error.get())).find("forked") != std::string::npos;
}

TEST(CFork, RefusesHandlesOfTheOtherProcess) {
  if (test::any_sanitizer)
    GTEST_SKIP() << "a sanitizer's allocator may be locked by another thread at the fork";
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string(), file = directory + "/file";
  const penstock_files_options files_options{.size = sizeof(files_options), .threads = 2};
  Files files = made<Files>([&](auto to) { return penstock_files_create(&files_options, to); });
  const penstock_path path{.size = sizeof(path), .directory = directory.c_str(), .capacity = 1 << 20};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 1 << 20, .paths = &path, .path_count = 1};
  Runtime runtime = made<Runtime>([&](auto to) { return penstock_runtime_create(&options, to); });
  const penstock_tensor_options tensor_options{.size = sizeof(tensor_options), .name = "t", .bytes = 4096};
  penstock_tensor tensor = 0;
  succeed(penstock_runtime_add(runtime.get(), &tensor_options, &tensor));
  void* data = nullptr;
  Lease lease = made<Lease>([&](auto to) {
    return penstock_lease_begin(runtime.get(), tensor, PENSTOCK_OVERWRITE, to, &data, nullptr);
  });
  Workers workers = made<Workers>([](auto to) { return penstock_workers_create(2, to); });
  Memory memory =
      made<Memory>([&](auto to) { return penstock_memory_create(4096, PENSTOCK_PIN_NONE, to, &data); });
  std::vector<float> state(2000), values(1000);
  const penstock_tile tile{.size = sizeof(tile),
                           .state = state.data(),
                           .parameter = values.data(),
                           .elements = 1000,
                           .format = PENSTOCK_STATE_MOMENTS};

  const int status = in_fork([&] {
    penstock_tensor added = 0;
    penstock_lease* other = nullptr;
    int wrong = 0;
    wrong += !is_refused(penstock_files_begin_write(files.get(), file.c_str(), 0, "x", 1));
    wrong += !is_refused(penstock_files_wait(files.get(), nullptr));
    wrong += !is_refused(penstock_runtime_add(runtime.get(), &tensor_options, &added));
    wrong +=
        !is_refused(penstock_lease_begin(runtime.get(), tensor, PENSTOCK_READ, &other, nullptr, nullptr));
    wrong += !is_refused(penstock_tile_initialize(&tile, state.data(), PENSTOCK_FP32, workers.get()));
    for (const auto& free : std::vector<std::function<void()>>{
             [&] { files.reset(); }, [&] { lease.reset(); }, [&] { runtime.reset(); },
             [&] { workers.reset(); }, [&] { memory.reset(); }})
      free();
    // What it makes itself is its own.
    penstock_files* own = nullptr;
    const OwnedError made_own(penstock_files_create(&files_options, &own));
    wrong += made_own != nullptr;
    const OwnedError written(penstock_files_begin_write(own, file.c_str(), 0, "x", 1));
    const OwnedError waited(penstock_files_wait(own, nullptr));
    wrong += written != nullptr || waited != nullptr;
    penstock_files_free(own);
    return wrong;
  });

  EXPECT_EQ(status, 0);
  succeed(penstock_files_begin_write(files.get(), file.c_str(), 1, "y", 1));
  succeed(penstock_files_wait(files.get(), nullptr));
  lease.reset();
  succeed(penstock_runtime_sync(runtime.get()));
}

/// Calls `rank` for each rank of a group, each in a process of its own.
void run_ranks(std::uint32_t ranks, const std::function<int(std::uint32_t rank, const Group&)>& run) {
  const std::uint16_t port = test::free_port();
  std::vector<::pid_t> processes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    ::alarm(60);
    const penstock_process_group_options options{.size = sizeof(options),
                                                 .without_launcher = 1,
                                                 .rank = rank,
                                                 .ranks = ranks,
                                                 .host = "127.0.0.1",
                                                 .port = port,
                                                 .join_seconds = 30};
    penstock_process_group* joined = nullptr;
    const OwnedError error(penstock_process_group_join(&options, &joined));
    const Group group(joined);
    if (error) std::fprintf(stderr, "%s\n", penstock_error_message(error.get()));
    ::_exit(error ? 100 : run(rank, group));
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    int status = 0;
    ::waitpid(processes[rank], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": " << status;
  }
}

TEST(CProcessGroup, GathersAsMuchAsItsHeaderSays) {
  run_ranks(2, [](std::uint32_t rank, const Group& group) {
    const std::size_t most = (std::size_t{1} << 20) / 2;
    std::vector<char> mine(most, static_cast<char>('a' + rank)), all(2 * most);
    int wrong = 0;
    // Refused by each rank alone: the group goes on.
    const OwnedError refused(
        penstock_process_group_gather(group.get(), "bytes", mine.data(), most + 1, all.data()));
    wrong += penstock_error_code(refused.get()) != PENSTOCK_INVALID_ARGUMENT;
    const OwnedError huge(
        penstock_process_group_gather(group.get(), "bytes", mine.data(), ~std::uint64_t{0}, all.data()));
    wrong += penstock_error_code(huge.get()) != PENSTOCK_INVALID_ARGUMENT;
    for (int round = 0; round < 3; ++round) {
      const OwnedError error(
          penstock_process_group_gather(group.get(), "bytes", mine.data(), most, all.data()));
      if (error) std::fprintf(stderr, "%s\n", penstock_error_message(error.get()));
      wrong += error != nullptr || all.front() != 'a' || all.back() != 'b';
    }
    penstock_rank_identity identity{.size = sizeof(identity)};
    const OwnedError told(penstock_process_group_identity(group.get(), &identity));
    wrong += told != nullptr || identity.rank != rank || identity.ranks != 2 || identity.local_ranks != 2;
    return wrong;
  });
}

TEST(CProcessGroup, TellsWhoHasEnded) {
  run_ranks(3, [](std::uint32_t rank, const Group& group) {
    char mine = 'x';
    std::array<char, 3> all{};
    const OwnedError joined(penstock_process_group_gather(group.get(), "all are here", &mine, 1, all.data()));
    if (joined) return 2;
    if (rank == 1) ::_exit(0);
    const OwnedError error(penstock_process_group_gather(group.get(), "a letter", &mine, 1, all.data()));
    const std::string message = penstock_error_message(error.get());
    return penstock_error_code(error.get()) == PENSTOCK_PEER_FAILED &&
                   message.find("rank 1") != std::string::npos
               ? 0
               : 1;
  });
}

TEST(CProcessGroup, RefusesATimeThatIsNone) {
  for (const double seconds : {1e-9, -1.0, 1e12}) {
    const penstock_process_group_options options{.size = sizeof(options),
                                                 .without_launcher = 1,
                                                 .ranks = 2,
                                                 .host = "127.0.0.1",
                                                 .port = test::free_port(),
                                                 .join_seconds = seconds};
    penstock_process_group* group = nullptr;
    expect(penstock_process_group_join(&options, &group), PENSTOCK_INVALID_ARGUMENT, "join_seconds");
  }
}

}  // namespace
}  // namespace penstock
