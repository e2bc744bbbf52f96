#include "unit/arguments/bad_arguments.hpp"

#include "kernels/host_compute.hpp"
#include "kit/free_port.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/comm/process_group.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {
namespace {

using namespace std::chrono_literals;
using namespace zero;

/// Rank 1 of two, of which rank 0 does not run.
ProcessGroupOptions alone() {
  return {.rank = 1, .ranks = 2, .rank_0 = {"127.0.0.1", free_port()}, .join_deadline = 200ms};
}

/// Calls `call` with rank 1 of a group of two; rank 0 does nothing.
std::string with_group(const std::function<std::string(ProcessGroup&)>& call) {
  ProcessGroupOptions options = alone();
  options.join_deadline = 20s;
  auto first = std::async(std::launch::async, [options]() mutable {
    options.rank = 0;
    return ProcessGroup::join(options);
  });
  auto second = ProcessGroup::join(options);
  auto joined = first.get();
  if (!joined || !second) return "the group does not come together";
  std::string wrong = call(**second);
  second->reset();  // rank 0 waits for it
  return wrong;
}

void add_option_rows(BadArguments& bad) {
  const auto with = [&bad](const char* option, const char* value, auto change,
                           ErrorCode code = ErrorCode::invalid_argument) {
    bad("ProcessGroup::join", std::string("options.") + option, value, [=] {
      ProcessGroupOptions options = alone();
      change(options);
      return refused(ProcessGroup::join(options), option, code);
    });
  };
  using Options = ProcessGroupOptions;
  with("rank", "not below the ranks", [](Options& o) { o.rank = 2; });
  with("rank", "the largest", [](Options& o) { o.rank = ~0u; });
  with("rank", "of no ranks", [](Options& o) { o.ranks = 0; });
  with(
      "ranks", "65", [](Options& o) { o.ranks = 65; }, ErrorCode::unsupported);
  with(
      "ranks", "the largest", [](Options& o) { o.ranks = ~0u; }, ErrorCode::unsupported);
  with("rank_0", "empty", [](Options& o) { o.rank_0 = {}; });
  with("rank_0", "port 0", [](Options& o) { o.rank_0.port = 0; });
  with(
      "rank 0", "no host", [](Options& o) { o.rank_0.host = "no.such.host.invalid"; },
      ErrorCode::deadline_exceeded);
  with(
      "rank 0", "with a zero byte", [](Options& o) { o.rank_0.host = std::string("a\0b", 3); },
      ErrorCode::deadline_exceeded);
  with(
      "rank 0", "of 1 MiB", [](Options& o) { o.rank_0.host = std::string(1 << 20, 'x'); },
      ErrorCode::deadline_exceeded);
  with("job", "of 1 MiB", [](Options& o) { o.job = std::string(1 << 20, 'x'); });
  with("local_rank", "without local_ranks", [](Options& o) { o.local_rank = 0; });
  with("local_ranks", "without local_rank", [](Options& o) { o.local_ranks = 1; });
  with("local_rank", "not below local_ranks", [](Options& o) { o.local_rank = o.local_ranks = 1; });
  with("local_rank", "of no ranks", [](Options& o) { o.local_rank = o.local_ranks = 0; });
  for (const TimePoint time : {TimePoint(0), TimePoint(-1), TimePoint::min()}) {
    with("join_deadline", "not above 0", [time](Options& o) { o.join_deadline = time; });
    with("silence_max", "not above 0", [time](Options& o) { o.silence_max = time; });
    with("deadline", "not above 0", [time](Options& o) { o.deadline = time; });
  }
  with("clock", "null", [](Options& o) { o.clock = nullptr; });
}

}  // namespace

void add_process_group_rows(BadArguments& bad) {
  add_option_rows(bad);
  bad("ProcessGroupOptions::of", "launch", "without a master",
      [] { return refused(ProcessGroupOptions::of({.rank = 1, .ranks = 2}), "MASTER_ADDR"); });
  bad("ProcessGroupOptions::of", "launch", "the last port", [] {
    return refused(ProcessGroupOptions::of({.rank = 1, .ranks = 2, .master = Endpoint{"host", 65535}}),
                   "MASTER_PORT");
  });
  bad("ProcessGroup::agree", "description", "of 2 MiB on all ranks", [] {
    return with_group([](ProcessGroup& group) {
      // Only its hash and lines of it are sent.
      group.abort(Error::invalid_argument("test"));
      return fails(group.agree(std::string(2 << 20, 'x')));
    });
  });
  bad("ProcessGroup::gather", "bytes", "of 2 MiB", [] {
    return with_group([](ProcessGroup& group) {
      const std::vector<std::byte> bytes(2 << 20);
      return refused(group.gather("bytes", bytes), "1048576");
    });
  });
  bad("ProcessGroup::gather", "label", "of 2 MiB", [] {
    return with_group(
        [](ProcessGroup& group) { return refused(group.gather(std::string(2 << 20, 'x'), {}), "1048576"); });
  });
  bad("ProcessGroup::connect", "device", "whose memory is separate", [] {
    return with_group([](ProcessGroup& group) {
      tiers::HostDevice device({.memory = 1_MiB, .location = tiers::DeviceMemory::separate});
      const auto compute = kernels::make_host_compute();
      return refused(group.connect(device, *compute, {}), "device", ErrorCode::unsupported);
    });
  });
  bad("ProcessGroup::split", "color", "the largest, of a rank whose peer has failed", [] {
    return with_group([](ProcessGroup& group) {
      group.abort(Error::invalid_argument("test"));
      return refused(group.split(~0u), "rank 1 has failed", ErrorCode::peer_failed);
    });
  });
  bad("ProcessGroup::abort", "error", "with a long text", [] {
    return with_group([](ProcessGroup& group) {
      group.abort(Error::invalid_argument("test").reason(std::string(2 << 20, 'x')));
      return fails(group.agree(""));
    });
  });
  bad("process_membership", "group", "null", [] {
    tiers::HostDevice device({.memory = 1_MiB});
    const auto compute = kernels::make_host_compute();
    return refused(process_membership(nullptr).join(device, *compute, {}), "group");
  });
}

}  // namespace penstock::test
