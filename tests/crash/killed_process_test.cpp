// A process that trains two ranks is killed at each call of a file system and each request to a drive. Another process
// goes on with the bits of a run that never stopped.
#include "crash/durable_run.hpp"
#include "kit/child_process.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::in_child;
using penstock::test::SeededRandom;

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
};

TEST_P(KilledProcess, IsContinuedFromAnyCallAndRequest) {
  const Report expected = whole();
  std::vector<KillPoint> points;
  for (std::uint64_t call = 0; call < expected.calls; ++call) points.push_back({.number = call});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t engine = 0; engine < expected.requests[rank].size(); ++engine) {
      for (std::uint64_t request = 0; request < expected.requests[rank][engine]; ++request)
        points.push_back({rank, engine, request});
    }
  }
  std::size_t killed = 0;
  for (const KillPoint& point : points) {
    SCOPED_TRACE((point.rank ? "request " : "call ") + std::to_string(point.number));
    DurableRun run(GetParam());
    const int signal = run.start(point);
    if (signal == 0) continue;  // it has made fewer calls: how many depends on the ranks' order
    ASSERT_EQ(signal, SIGKILL);
    ++killed;
    run.expect_continued(expected.digest);
    if (HasFailure()) return;
  }
  EXPECT_GE(killed, points.size() * 19 / 20);
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
      if (random.below(2) == 0) {
        point.rank = static_cast<std::uint32_t>(random.below(ranks));
        point.engine = random.below(expected.requests[*point.rank].size());
      }
      const std::uint64_t committed = run.committed_step();
      if (run.start(point) == 0) {
        EXPECT_GE(run.report().resumed_step, committed);
        break;
      }
      ++killed;
    }
    run.expect_continued(expected.digest);
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
  run.expect_continued(digest_without_commits(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Offloads, KilledProcess, testing::ValuesIn(offloads),
                         [](const auto& offload) { return offload.param.name; });

}  // namespace
}  // namespace penstock::zero::test
