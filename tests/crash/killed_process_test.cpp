// A process that trains two ranks is killed at each call of a file system and each request to a drive. Another process
// goes on with the bits of a run that never stopped.
#include "kit/child_process.hpp"
#include "kit/cluster.hpp"
#include "kit/listed_engine.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/trainer.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace penstock::zero::test {
namespace {

using penstock::test::in_child;
using penstock::test::ScratchDirectory;
using penstock::test::SeededRandom;

constexpr std::uint32_t ranks = 2, steps = 3;

struct Offload {
  const char* name;
  std::uint32_t stage;
  OffloadDevice optimizer, parameters;
  cpu_adam::StateFormat format;
};

constexpr Offload offloads[] = {
    {"AllOnDisk", 3, OffloadDevice::nvme, OffloadDevice::nvme, cpu_adam::StateFormat::fp32},
    {"SplitStatesOnDisk", 3, OffloadDevice::nvme, OffloadDevice::cpu, cpu_adam::StateFormat::split},
    {"CompressedStatesOnDisk", 2, OffloadDevice::nvme, OffloadDevice::none, cpu_adam::StateFormat::split_q8},
    {"AllInMemory", 3, OffloadDevice::cpu, OffloadDevice::cpu, cpu_adam::StateFormat::split_bf16},
};

/// Where a process is killed: at a call of the file system that its ranks share, or at a request of a rank's drive.
struct KillPoint {
  std::optional<std::uint32_t> rank;  ///< of a request; none: a call
  std::uint64_t number = 0;
};

struct Harm {
  std::optional<KillPoint> kill = {};
  bool stops_after_commit = false;
};

/// What a process that has ended by itself says.
struct Report {
  std::string digest;
  std::uint64_t resumed_step = 0;  ///< 0: it began
  std::uint64_t calls = 0;
  std::array<std::uint64_t, ranks> requests = {};
};

/// A directory of a run, and the processes that train there one after the other.
class DurableRun {
 public:
  explicit DurableRun(const Offload& offload) : offload_(offload) {}

  /// A process that trains to the end unless it is killed. Returns the signal that ended it, or 0.
  int start(const std::optional<KillPoint>& kill) {
    const int status = in_child([&] { return train_here({.kill = kill}); });
    EXPECT_LE(status, 0) << error();
    return std::max(-status, 0);
  }
  /// What such a process does. Returns its exit status.
  int train_here(const Harm& harm) const;

  /// Of a process that has ended with status 1.
  [[nodiscard]] std::string error() const {
    std::ifstream file(directory_.path() / "error");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] Report report() const {
    Report report;
    std::ifstream file(directory_.path() / "report");
    file >> report.digest >> report.resumed_step >> report.calls;
    for (std::uint64_t& requests : report.requests) file >> requests;
    EXPECT_TRUE(file) << "a process has written no report";
    return report;
  }
  /// The last step whose commit() has returned on any rank.
  [[nodiscard]] std::uint64_t committed_step() const {
    std::ifstream file(directory_.path() / "committed");
    std::uint64_t last = 0;
    for (std::uint64_t step = 0; file >> step;) last = std::max(last, step);
    return last;
  }

 private:
  const Offload& offload_;
  ScratchDirectory directory_;
};

RunOptions run_of(const Offload& offload) {
  RunOptions options{.ranks = ranks, .micro_batches = 1, .steps = steps};
  options.config.stage = offload.stage;
  options.config.offload_optimizer.device = offload.optimizer;
  options.config.offload_param.device = offload.parameters;
  RunFormat{offload.format}.set(options.config);
  return options;
}

/// Survives a kill: what write() has taken is in the page cache.
void append(const std::filesystem::path& file, const std::string& text) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0600);
  const bool written = ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(descriptor);
  if (!written) std::abort();
}

int DurableRun::train_here(const Harm& harm) const {
  const std::optional<KillPoint>& kill = harm.kill;
  std::filesystem::current_path(directory_.path());  // a process that is killed removes no scratch directory
  tiers::FileSystemFaultPlan of_files;
  if (kill && !kill->rank)
    of_files = {{.occurrence = kill->number, .effect = tiers::FileSystemFault::Effect::kill}};
  tiers::FaultFileSystem files(tiers::real_file_system(), of_files);
  std::array<std::atomic<std::uint64_t>, ranks> requests = {};
  std::atomic<std::uint64_t> resumed_step = 0;

  RunOptions options = run_of(offload_);
  make_durable(options, directory_.path() / "durable");
  options.change_path = [&](std::uint32_t rank, swap::PathOptions& path) {
    path.file_system = &files;
    path.decorate = [&, rank](std::unique_ptr<tiers::IoEngine> engine) {
      tiers::FaultPlan faults;
      if (kill && kill->rank == rank)
        faults = {{.occurrence = kill->number, .effect = tiers::Fault::Effect::kill}};
      auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), faults);
      auto count = [&counted = *faulty, &total = requests[rank]] { total += counted.accepted(); };
      return std::make_unique<penstock::test::ListedEngine>(std::move(faulty), std::move(count));
    };
  };
  options.restore = [&, restore = options.restore](Engine& engine) -> Result<void> {
    PENSTOCK_TRY(restore(engine));
    resumed_step = engine.completed_steps();
    return ok();
  };
  options.without_leases = [&, commit = options.without_leases](Engine& engine,
                                                                const auto& point) -> Result<void> {
    PENSTOCK_TRY(commit(engine, point));
    append(directory_.path() / "committed", std::to_string(engine.completed_steps()) + "\n");
    if (harm.stops_after_commit) ::raise(SIGSTOP);
    return ok();
  };
  const RunResult result = train(options);
  if (result.error) {
    std::ofstream(directory_.path() / "error") << result.error->message();
    return 1;
  }
  std::ofstream report(directory_.path() / "report");
  report << result.digest << " " << resumed_step << " " << files.accepted();
  for (const auto& of_rank : requests) report << " " << of_rank;
  return report.flush() ? 0 : 1;
}

/// Of a run that is not durable, in a process of its own: this one starts no threads, so that it can fork.
std::string digest_without_commits(const Offload& offload) {
  const ScratchDirectory directory;
  const std::filesystem::path file = directory.path() / "digest";
  EXPECT_EQ(in_child([&] {
              std::filesystem::current_path(directory.path());
              const RunResult result = train(run_of(offload));
              std::ofstream(file) << result.digest;
              return result.error ? 1 : 0;
            }),
            0);
  std::string digest;
  std::ifstream(file) >> digest;
  return digest;
}

class KilledProcess : public testing::TestWithParam<Offload> {
 protected:
  /// Of a process that is not killed, and of one that is not durable.
  Report whole() {
    DurableRun run(GetParam());
    EXPECT_EQ(run.start({}), 0);
    Report report = run.report();
    EXPECT_EQ(report.digest, digest_without_commits(GetParam()));
    EXPECT_EQ(report.resumed_step, 0u);
    return report;
  }
  /// What a process leaves that was killed goes on.
  void expect_continued(DurableRun& run, const std::string& digest) {
    const std::uint64_t committed = run.committed_step();
    ASSERT_EQ(run.start({}), 0);
    const Report report = run.report();
    EXPECT_EQ(report.digest, digest);
    EXPECT_GE(report.resumed_step, committed) << "a commit is lost";
  }
};

TEST_P(KilledProcess, IsContinuedFromAnyCallAndRequest) {
  const Report expected = whole();
  std::vector<KillPoint> points;
  for (std::uint64_t call = 0; call < expected.calls; ++call) points.push_back({{}, call});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::uint64_t request = 0; request < expected.requests[rank]; ++request)
      points.push_back({rank, request});
  }
  std::size_t killed = 0;
  for (const KillPoint& point : points) {
    SCOPED_TRACE((point.rank ? "request " : "call ") + std::to_string(point.number));
    DurableRun run(GetParam());
    const int signal = run.start(point);
    // A rank may have two I/O engines, of which each counts its requests.
    if (signal == 0) continue;
    ASSERT_EQ(signal, SIGKILL);
    ++killed;
    expect_continued(run, expected.digest);
    if (HasFailure()) return;
  }
  EXPECT_GE(killed, points.size() * 3 / 4);
  std::cout << killed << " crash points, none lost\n";
}

TEST_P(KilledProcess, IsContinuedHoweverOftenItIsKilled) {
  const Report expected = whole();
  std::size_t killed = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SeededRandom random(seed);
    DurableRun run(GetParam());
    for (std::uint64_t attempt = 0; attempt < 30; ++attempt) {
      const std::uint64_t most = 5 + attempt * 8;  // so that it ends
      KillPoint point{.number = random.below(most)};
      if (random.below(2) == 0) point.rank = static_cast<std::uint32_t>(random.below(ranks));
      const std::uint64_t committed = run.committed_step();
      if (run.start(point) == 0) {
        EXPECT_GE(run.report().resumed_step, committed);
        break;
      }
      ++killed;
    }
    expect_continued(run, expected.digest);
    if (HasFailure()) return;
  }
  std::cout << killed << " crash points, none lost\n";
}

/// A process that another one has stopped still has its directory.
TEST_P(KilledProcess, KeepsOthersOutWhileItLives) {
  DurableRun run(GetParam());
  const pid_t first = ::fork();
  if (first == 0) {
    ::alarm(60);
    ::_exit(run.train_here({.stops_after_commit = true}));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(first, &status, WUNTRACED), first);
  ASSERT_TRUE(WIFSTOPPED(status));

  ASSERT_EQ(in_child([&] { return run.train_here({}); }), 1);

  const std::string refused = run.error();

  EXPECT_NE(refused.find("process " + std::to_string(first)), std::string::npos) << refused;
  EXPECT_NE(refused.find("wait until that run has ended"), std::string::npos) << refused;
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  expect_continued(run, digest_without_commits(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Offloads, KilledProcess, testing::ValuesIn(offloads),
                         [](const auto& offload) { return offload.param.name; });

}  // namespace
}  // namespace penstock::zero::test
