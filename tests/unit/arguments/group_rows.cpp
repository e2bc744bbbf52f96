#include "unit/arguments/bad_arguments.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include "kernels/host_compute.hpp"

#include <array>
#include <memory>

namespace penstock::test {
namespace {

using namespace zero;
using tiers::HostDevice;

/// A group of two ranks of one thread.
struct Bench {
  Bench() {
    for (std::uint32_t r = 0; r < 2; ++r) {
      streams.push_back(device.create_stream().value());
      ranks.push_back(group->join(r, device, *compute).value());
      flats.push_back({device.allocate(4_KiB).value(), DType::fp32});
    }
  }
  Communicator& mine() { return *ranks[0]; }
  tiers::Stream& stream() { return *streams[0]; }

  /// That a collective still completes.
  [[nodiscard]] std::string works() {
    for (std::uint32_t r = 0; r < 2; ++r) {
      if (!ranks[r]->start_all_gather(*streams[r], flats[r].bytes, {}))
        return "no collective starts any more";
    }
    for (int i = 0; i < 4; ++i) {
      for (const auto& rank : ranks) {
        if (!rank->poll()) return "a collective fails";
      }
    }
    return expect(ranks[0]->poll().value() && ranks[1]->poll().value(), "a collective does not complete");
  }

  HostDevice device{{.memory = 1_MiB}};
  std::unique_ptr<Compute> compute = kernels::make_host_compute();
  std::shared_ptr<InProcessGroup> group = InProcessGroup::create(2).value();
  std::vector<std::unique_ptr<tiers::Stream>> streams;
  std::vector<std::unique_ptr<Communicator>> ranks;
  std::vector<DeviceTensor> flats;
};

void add_start_rows(BadArguments& bad) {
  const auto with = [&bad](const char* function, const char* argument, const char* value, auto call) {
    bad(function, argument, value, [call] {
      Bench b;
      return all({fails(call(b)), b.works()});
    });
  };
  const auto null = [](std::uint64_t bytes) { return DeviceSpan(DeviceAddress{}, ByteCount(bytes)); };
  with("Communicator::start_all_gather", "flat", "null",
       [=](Bench& b) { return b.mine().start_all_gather(b.stream(), null(4096), {}); });
  with("Communicator::start_all_gather", "flat", "not equal slots", [](Bench& b) {
    return b.mine().start_all_gather(b.stream(), b.flats[0].bytes.subspan(0_B, 6_B), {});
  });
  with("Communicator::start_reduce_scatter", "flat", "null", [=](Bench& b) {
    return b.mine().start_reduce_scatter(b.stream(), std::array{DeviceTensor{null(4096), DType::fp32}},
                                         Reduction::exact, {});
  });
  with("Communicator::start_reduce_scatter", "flat", "not equal slots", [](Bench& b) {
    return b.mine().start_reduce_scatter(
        b.stream(), std::array{DeviceTensor{b.flats[0].bytes.subspan(0_B, 12_B), DType::fp32}},
        Reduction::exact, {});
  });
  with("Communicator::start_reduce_scatter", "flat", "of an unknown dtype", [](Bench& b) {
    return b.mine().start_reduce_scatter(
        b.stream(), std::array{DeviceTensor{b.flats[0].bytes, unknown<DType>}}, Reduction::exact, {});
  });
  with("Communicator::start_reduce_scatter", "flats", "none",
       [](Bench& b) { return b.mine().start_reduce_scatter(b.stream(), {}, Reduction::exact, {}); });
  with("Communicator::start_reduce_scatter", "flats", "one of them twice", [](Bench& b) {
    return b.mine().start_reduce_scatter(b.stream(), std::array{b.flats[0], b.flats[0]}, Reduction::exact,
                                         {});
  });
  for (const Reduction reduction : {Reduction::native, unknown<Reduction>}) {
    with("Communicator::start_reduce_scatter", "reduction", "not supported", [=](Bench& b) {
      return b.mine().start_reduce_scatter(b.stream(), std::array{b.flats[0]}, reduction, {});
    });
  }
  static std::array<std::byte, 64> bytes{};
  const HostSpan all_bytes{std::span(bytes)};
  with("Communicator::start_exchange", "mine", "null",
       [=](Bench& b) { return b.mine().start_exchange(ConstHostSpan(nullptr, 32_B), all_bytes, {}); });
  with("Communicator::start_exchange", "all", "null", [=](Bench& b) {
    return b.mine().start_exchange(all_bytes.subspan(0_B, 32_B), HostSpan(nullptr, 64_B), {});
  });
  with("Communicator::start_exchange", "all", "shorter", [=](Bench& b) {
    return b.mine().start_exchange(all_bytes.subspan(0_B, 32_B), all_bytes.subspan(0_B, 63_B), {});
  });
  with("Communicator::start_exchange", "mine", "2^63 bytes, twice which is 0", [=](Bench& b) {
    return b.mine().start_exchange(ConstHostSpan(bytes.data(), ByteCount(std::uint64_t{1} << 63)), {}, {});
  });
  with("Communicator::start_recovery", "stream", "of a group that is not interrupted",
       [](Bench& b) { return b.mine().start_recovery(b.stream()); });
}

void add_order_rows(BadArguments& bad) {
  const auto twice = [&bad](const char* function, auto start) {
    bad(function, "the call", "before the previous collective has completed", [start] {
      Bench b;
      if (!start(b)) return std::string("the first was refused");
      const std::string complaint = refused(start(b), "previous", ErrorCode::failed_state);
      const bool joined = b.ranks[1]->start_exchange({}, {}, {}).has_value();
      return all({complaint, expect(joined, "the peer was refused")});
    });
  };
  twice("Communicator::start_all_gather",
        [](Bench& b) { return b.mine().start_all_gather(b.stream(), b.flats[0].bytes, {}); });
  twice("Communicator::start_reduce_scatter", [](Bench& b) {
    return b.mine().start_reduce_scatter(b.stream(), std::array{b.flats[0]}, Reduction::exact, {});
  });
  twice("Communicator::start_exchange", [](Bench& b) { return b.mine().start_exchange({}, {}, {}); });
  bad("Communicator::poll", "the call", "before any collective", [] {
    Bench b;
    return all({expect(b.mine().poll().has_value(), "an error"), b.works()});
  });
  bad("Communicator::start_recovery", "the call", "twice", [] {
    Bench b;
    b.mine().interrupt(Error::invalid_argument("test"));
    const bool first = b.mine().start_recovery(b.stream()).has_value();
    return all({expect(first, "the first was refused"),
                refused(b.mine().start_recovery(b.stream()), "", ErrorCode::failed_state)});
  });
  bad("Communicator::set_wake", "wake", "empty", [] {
    Bench b;
    b.mine().set_wake({});
    return b.works();
  });
  bad("Communicator::supports", "reduction", "unknown",
      [] { return expect(!Bench().mine().supports(unknown<Reduction>), "supported"); });
  bad("Communicator::abort", "error", "after another one", [] {
    Bench b;
    b.mine().abort(Error(ErrorCode::io, "first"));
    b.mine().abort(Error(unknown<ErrorCode>, nullptr));
    return refused(b.ranks[1]->start_exchange({}, {}, {}), "first", ErrorCode::peer_failed);
  });
  bad("Communicator::interrupt", "cause", "after an abort", [] {
    Bench b;
    b.mine().abort(Error(ErrorCode::io, "first"));
    b.mine().interrupt(Error(unknown<ErrorCode>, nullptr));
    return refused(b.ranks[1]->start_exchange({}, {}, {}), "first", ErrorCode::peer_failed);
  });
  bad("Communicator::retire", "the call", "twice", [] {
    Bench b;
    b.mine().retire(b.stream());
    b.mine().retire(b.stream());
    return fails(b.ranks[1]->start_exchange({}, {}, {}));
  });
}

void add_group_only_rows(BadArguments& bad) {
  for (const std::uint32_t ranks : {0u, 65u, ~0u}) {
    bad("InProcessGroup::create", "ranks", std::to_string(ranks),
        [=] { return refused(InProcessGroup::create(ranks), "ranks"); });
  }
  for (const TimePoint deadline : {TimePoint::min(), TimePoint(-1), TimePoint(0)}) {
    bad("InProcessGroup::create", "options.deadline", std::to_string(deadline.count()),
        [=] { return refused(InProcessGroup::create(2, {.deadline = deadline}), "deadline"); });
  }
  bad("InProcessGroup::create", "options.clock", "null",
      [] { return refused(InProcessGroup::create(2, {.clock = nullptr}), "clock"); });
  for (const std::uint32_t rank : {2u, ~0u}) {
    bad("InProcessGroup::join", "rank", std::to_string(rank), [=] {
      Bench b;
      return all({refused(b.group->join(rank, b.device, *b.compute), "rank"), b.works()});
    });
    bad("InProcessGroup::abort", "rank", std::to_string(rank), [=] {
      Bench b;
      b.group->abort(rank, Error(ErrorCode::io, "test"));
      return refused(b.mine().start_exchange({}, {}, {}), "", ErrorCode::peer_failed);
    });
  }
  bad("InProcessGroup::join", "rank", "one that has joined", [] {
    Bench b;
    return all(
        {refused(b.group->join(0, b.device, *b.compute), "rank 0", ErrorCode::already_exists), b.works()});
  });
  bad("in_process_membership", "group", "null", [] {
    Bench b;
    const GroupMembership membership = in_process_membership(nullptr, 0);
    return refused(membership.join(b.device, *b.compute, {}), "group");
  });
  bad("in_process_membership", "rank", "outside the group", [] {
    Bench b;
    return refused(in_process_membership(b.group, 7).join(b.device, *b.compute, {}), "rank");
  });
  bad("to_string", "reduction", "unknown",
      [] { return expect(!to_string(unknown<Reduction>).empty(), "no text"); });
  bad("to_string", "signature", "an unknown subject", [] {
    return expect(!to_string(CollectiveSignature{.subject = unknown<CollectiveSignature::Subject>}).empty(),
                  "no text");
  });
}

}  // namespace

void add_group_rows(BadArguments& bad) {
  add_start_rows(bad);
  add_order_rows(bad);
  add_group_only_rows(bad);
}

}  // namespace penstock::test
