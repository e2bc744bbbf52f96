#include "crash/durable_run.hpp"

#include "kit/child_process.hpp"
#include "kit/listed_engine.hpp"
#include "kit/trainer.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::zero::test {

using penstock::test::in_child;
using penstock::test::ScratchDirectory;

namespace {

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

}  // namespace

DurableRun::DurableRun(const Offload& offload, std::filesystem::path durable)
    : offload_(offload), durable_(durable.empty() ? directory_.path() / "durable" : std::move(durable)) {}

std::vector<std::filesystem::path> DurableRun::durable_directories() const {
  std::vector<std::filesystem::path> all;
  for (std::size_t i = 0; i < offload_.directories; ++i)
    all.push_back(durable_.string() + (i == 0 ? "" : std::to_string(i)));
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(processes_ % all.size()), all.end());
  return all;
}

int DurableRun::start(const std::optional<KillPoint>& kill) {
  ++processes_;
  const int status = in_child([&] { return train_here({.kill = kill}); });
  EXPECT_LE(status, 0) << error();
  return std::max(-status, 0);
}

std::string DurableRun::error() const {
  std::ifstream file(directory_.path() / "error");
  return {std::istreambuf_iterator<char>(file), {}};
}

Report DurableRun::report() const {
  Report report;
  std::ifstream file(directory_.path() / "report");
  file >> report.digest >> report.resumed_step >> report.calls;
  for (auto& requests : report.requests) {
    std::size_t engines = 0;
    file >> engines;
    requests.resize(engines);
    for (std::uint64_t& count : requests) file >> count;
  }
  EXPECT_TRUE(file) << "a process has written no report";
  return report;
}

std::uint64_t DurableRun::committed_step() const {
  std::ifstream file(directory_.path() / "committed");
  std::uint64_t last = 0;
  for (std::uint64_t step = 0; file >> step;) last = std::max(last, step);
  return last;
}

void DurableRun::expect_continued(const std::string& digest) {
  const std::uint64_t committed = committed_step();
  ASSERT_EQ(start({}), 0);
  const Report last = report();
  EXPECT_EQ(last.digest, digest);
  EXPECT_GE(last.resumed_step, committed) << "a commit is lost";
}

int DurableRun::train_here(const Harm& harm) const {
  const std::optional<KillPoint>& kill = harm.kill;
  std::filesystem::current_path(directory_.path());  // a process that is killed removes no scratch directory
  tiers::FileSystemFaultPlan of_files;
  if (kill && !kill->rank)
    of_files = {{.occurrence = kill->number, .effect = tiers::FileSystemFault::Effect::kill}};
  tiers::FaultFileSystem files(tiers::real_file_system(), of_files);
  std::mutex mutex;
  std::array<std::vector<std::uint64_t>, ranks> requests = {};
  std::atomic<std::uint64_t> resumed_step = 0;

  RunOptions options = run_of(offload_);
  make_durable(options, durable_directories(), offload_.commits);
  options.change_path = [&](std::uint32_t rank, swap::PathOptions& path) {
    path.file_system = &files;
    path.decorate = [&, rank](std::unique_ptr<tiers::IoEngine> engine) {
      const std::lock_guard lock(mutex);
      const std::size_t index = requests[rank].size();
      requests[rank].push_back(0);
      tiers::FaultPlan faults;
      if (kill && kill->rank == rank && kill->engine == index)
        faults = {{.occurrence = kill->number, .effect = tiers::Fault::Effect::kill}};
      auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), faults);
      auto count = [&, rank, index, &counted = *faulty] {
        const std::lock_guard counting(mutex);
        requests[rank][index] = counted.accepted();
      };
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
    // The commit that is behind this step is not complete.
    const std::uint64_t incomplete = offload_.commits == Commits::behind ? 1 : 0;
    append(directory_.path() / "committed",
           std::to_string(std::max(engine.completed_steps(), incomplete) - incomplete) + "\n");
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
  for (const auto& of_rank : requests) {
    report << " " << of_rank.size();
    for (const std::uint64_t count : of_rank) report << " " << count;
  }
  return report.flush() ? 0 : 1;
}

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

}  // namespace penstock::zero::test
