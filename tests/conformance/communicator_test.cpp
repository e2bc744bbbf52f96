// One suite for every transport of collectives.
#include "conformance/communicator_conformance.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace penstock::zero::test {
namespace {

/// What one rank cannot do.
class CommunicatorPeers : public CommunicatorConformance {};
class CommunicatorRetirement : public CommunicatorConformance {};

TEST_P(CommunicatorConformance, GathersEverySlotInPlaceInAnyOrderOfRanksAndStreams) {
  for (std::uint64_t seed = 0; seed < seeds(100); ++seed) {
    open(seed);
    for (std::uint64_t generation = 0; generation < 4; ++generation) {
      // In stream order alone: nothing here waits for the collective before.
      fill_own_slots(generation);
      for (const std::uint32_t r : here()) {
        ASSERT_TRUE(rank(r).communicator->start_all_gather(*rank(r).stream, flat(r).bytes, {}));
      }
      finish();
      for (const std::uint32_t r : here()) {
        enqueue(r, [this, r, generation, seed] {
          for (std::uint32_t s = 0; s < size(); ++s) {
            EXPECT_FALSE((Pattern{.tensor = s, .generation = generation}.first_difference(bytes(slot(r, s)))))
                << "seed " << seed << ", generation " << generation << ", slot " << s << " of rank " << r;
          }
        });
      }
    }
    drain();
  }
}

TEST_P(CommunicatorConformance, AveragesInRankOrderWithOneRounding) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    open(3);
    std::vector<std::vector<float>> values(size(), std::vector<float>(slot_elements * size()));
    for (std::uint32_t r = 0; r < size(); ++r) {
      // Values that a sum in another order, or one rounded on the way, gets wrong.
      for (float& value : values[r]) value = random_.symmetric() * (random_.below(2) == 0 ? 1.0f : 200.0f);
      // What a rank holds after that rounding is what is averaged.
      const std::uint32_t computing = is_here(r) ? r : here().front();
      const DeviceTensor wide = wide_flat(computing);
      std::memcpy(bytes(wide).data(), values[r].data(), values[r].size() * 4);
      Rank& on = rank(computing);
      ASSERT_TRUE(on.compute->cast(on.stream->handle(), wide, flat(computing, dtype)));
      ASSERT_TRUE(on.compute->cast(on.stream->handle(), flat(computing, dtype), wide));
      ASSERT_TRUE(on.stream->synchronize());
      std::memcpy(values[r].data(), bytes(wide).data(), values[r].size() * 4);
    }
    for (const std::uint32_t r : here()) {
      std::memcpy(bytes(wide_flat(r)).data(), values[r].data(), values[r].size() * 4);
      ASSERT_TRUE(rank(r).compute->cast(rank(r).stream->handle(), wide_flat(r), flat(r, dtype)));
      ASSERT_TRUE(rank(r).communicator->start_reduce_scatter(*rank(r).stream, std::array{flat(r, dtype)},
                                                             Reduction::exact, {}));
    }
    finish();
    drain();

    for (const std::uint32_t r : here()) {
      std::vector<float> mean(slot_elements);
      for (std::uint64_t e = 0; e < slot_elements; ++e) {
        float sum = 0;
        for (std::uint32_t from = 0; from < size(); ++from) sum += values[from][slot_elements * r + e];
        mean[e] = sum * (1.0f / static_cast<float>(size()));
      }
      const DeviceTensor expected_wide{DeviceSpan(rank(r).memory.subspan(32_KiB, 4_B * slot_elements)),
                                       DType::fp32};
      const DeviceTensor expected{DeviceSpan(rank(r).memory.subspan(48_KiB, size_of(dtype) * slot_elements)),
                                  dtype};
      std::memcpy(bytes(expected_wide).data(), mean.data(), mean.size() * 4);
      ASSERT_TRUE(rank(r).compute->cast(rank(r).stream->handle(), expected_wide, expected));
      ASSERT_TRUE(rank(r).stream->synchronize());
      EXPECT_EQ(std::memcmp(bytes(slot(r, r, dtype)).data(), bytes(expected).data(),
                            bytes(expected).size().value()),
                0)
          << "rank " << r << ", " << to_string(dtype);
    }
  }
}

TEST_P(CommunicatorConformance, AveragesFlatsOfDifferentSizesTogether) {
  static constexpr std::array<std::uint64_t, 5> slots = {32, 0, 96, 1, 40};  // elements
  for (std::uint64_t seed = 0; seed < seeds(30); ++seed) {
    open(seed);
    std::vector<std::vector<DeviceTensor>> flats(size());
    for (const std::uint32_t r : here()) {
      ByteCount begin;
      for (const std::uint64_t slot : slots) {
        const ByteCount bytes = 4_B * slot * size();
        flats[r].push_back({rank(r).memory.subspan(begin, bytes), DType::fp32});
        begin += bytes + 256_B;
      }
    }
    // Twice, in stream order alone.
    for (std::uint32_t generation = 0; generation < 2; ++generation) {
      const auto value = [&](std::uint32_t r, std::size_t f, std::size_t e) {
        return static_cast<float>(((r * 7 + f) * 131 + e) * 2 + generation);
      };
      for (const std::uint32_t r : here()) {
        enqueue(r, [&flats, value, r] {
          for (std::size_t f = 0; f < slots.size(); ++f) {
            if (slots[f] == 0) continue;
            const HostSpan all = bytes(flats[r][f]);
            for (std::size_t e = 0; e < all.size().value() / 4; ++e) {
              const float one = value(r, f, e);
              std::memcpy(all.data() + e * 4, &one, 4);
            }
          }
        });
        run_streams();
        ASSERT_TRUE(
            rank(r).communicator->start_reduce_scatter(*rank(r).stream, flats[r], Reduction::exact, {}));
      }
      finish();
      drain();
      for (const std::uint32_t r : here()) {
        for (std::size_t f = 0; f < slots.size(); ++f) {
          for (std::size_t e = slots[f] * r; e < slots[f] * (r + 1); ++e) {
            float sum = 0, got = 0;
            for (std::uint32_t from = 0; from < size(); ++from) sum += value(from, f, e);
            std::memcpy(&got, bytes(flats[r][f]).data() + e * 4, 4);
            ASSERT_EQ(got, sum * (1.0f / static_cast<float>(size())))
                << "seed " << seed << ", rank " << r << ", flat " << f << ", element " << e;
          }
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, RefusesFlatsThatOneCollectiveCannotReduce) {
  const std::uint32_t one = here().front();
  const auto refused = [this, one](std::initializer_list<DeviceTensor> flats) {
    const std::vector<DeviceTensor> list(flats);
    const auto started =
        rank(one).communicator->start_reduce_scatter(*rank(one).stream, list, Reduction::exact, {});
    EXPECT_FALSE(started);
    return started ? "" : started.error().message();
  };
  const DeviceTensor first = flat(one);
  const DeviceTensor next{rank(one).memory.subspan(first.bytes.size(), first.bytes.size()), DType::bf16};
  const DeviceTensor wider{next.bytes, DType::fp32};

  EXPECT_NE(refused({}).find("flats, wanted at least 1"), std::string::npos);
  EXPECT_NE(refused({first, wider}).find("wanted bf16, that of the first one, got fp32"), std::string::npos);
  EXPECT_NE(refused({next, first, first}).find("two of them overlap"), std::string::npos);
}

TEST_P(CommunicatorPeers, NoticesFlatsThatARankHasSwapped) {
  std::optional<Error> outcome;  // of the rank that notices it first
  const auto note = [&outcome](const auto& result) {
    if (!result && !outcome) outcome = result.error();
  };
  for (const std::uint32_t r : here()) {
    const ByteCount small = 4_B * size(), large = 8_B * size();
    std::array flats{DeviceTensor{rank(r).memory.subspan(0_B, small), DType::fp32},
                     DeviceTensor{rank(r).memory.subspan(4_KiB, large), DType::fp32}};
    if (r == 1) std::swap(flats[0], flats[1]);
    note(rank(r).communicator->start_reduce_scatter(*rank(r).stream, flats, Reduction::exact, {}));
  }
  for (int turn = 0; (turn < 1000 || is_process()) && !outcome; ++turn) {
    for (const std::uint32_t r : here()) {
      (void)rank(r).run_one();
      note(rank(r).communicator->poll());
    }
  }

  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->code(), ErrorCode::invalid_argument);
  EXPECT_NE(outcome->message().find("2 flats"), std::string::npos) << outcome->message();
}

TEST_P(CommunicatorConformance, ExchangesHostBytes) {
  std::vector<std::uint32_t> mine(size());
  std::vector<std::vector<std::uint32_t>> all(size(), std::vector<std::uint32_t>(size()));
  for (std::uint32_t r = 0; r < size(); ++r) {
    mine[r] = 100 + r;
    if (!is_here(r)) continue;
    ASSERT_TRUE(rank(r).communicator->start_exchange(
        ConstHostSpan(std::span<const std::uint32_t>(&mine[r], 1)), HostSpan(std::span(all[r])), {}));
  }

  finish();

  for (const std::uint32_t r : here()) EXPECT_EQ(all[r], mine);
}

TEST_P(CommunicatorConformance, RefusesWhatCannotBeCutIntoSlots) {
  std::uint32_t mine = 0;
  Rank& one = rank(here().front());
  EXPECT_EQ(one.communicator
                ->start_exchange(ConstHostSpan(std::span<const std::uint32_t>(&mine, 1)), HostSpan(), {})
                .error()
                .code(),
            ErrorCode::invalid_argument);
  if (size() == 1) return;
  const auto refused =
      one.communicator->start_all_gather(*one.stream, one.memory.subspan(0_B, 2_B * size() + 2_B), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message().find("wanted a multiple of "), std::string::npos)
      << refused.error().message();
}

TEST_P(CommunicatorPeers, ReportsARanksErrorToItsPeers) {
  const std::uint32_t failing = size() - 1;
  for (std::uint32_t r = 0; r < failing && !is_process(); ++r) {
    ASSERT_TRUE(rank(r).communicator->start_all_gather(*rank(r).stream, flat(r).bytes, {}));
    EXPECT_FALSE(rank(r).communicator->poll().value());
  }

  for (const std::uint32_t r : here()) {
    if (r != failing) continue;
    rank(r).communicator->abort(Error(ErrorCode::no_space, "Somewhere").reason("the disk is full"));
  }

  for (const std::uint32_t r : here()) {
    if (r == failing) continue;
    Communicator& communicator = *rank(r).communicator;
    const Error told =
        error_of(r, is_process() ? communicator.start_all_gather(*rank(r).stream, flat(r).bytes, {}) : ok());
    EXPECT_EQ(told.code(), ErrorCode::peer_failed) << told.message();
    EXPECT_NE(told.message().find("rank " + std::to_string(failing)), std::string::npos);
    EXPECT_NE(told.message().find("the disk is full"), std::string::npos);
  }
  drain();
}

TEST_P(CommunicatorPeers, NamesTheRanksWhoseCollectivesDiffer) {
  // The first error that a rank notices; its peers may learn it from that rank, a process even before it starts.
  std::vector<Result<void>> started(size());
  std::optional<Error> outcome;
  for (const std::uint32_t r : here()) {
    Communicator& communicator = *rank(r).communicator;
    started[r] =
        r == 0 ? communicator.start_reduce_scatter(*rank(r).stream, std::array{flat(r)}, Reduction::exact, {})
               : communicator.start_all_gather(*rank(r).stream, flat(r).bytes, {});
    ASSERT_TRUE(started[r] || is_process()) << started[r].error().message();
    if (!started[r]) outcome = started[r].error();
  }

  for (int turn = 0; (turn < 1000 || is_process()) && !outcome; ++turn) {
    for (const std::uint32_t r : here()) {
      (void)rank(r).run_one();
      const auto polled = rank(r).communicator->poll();
      if (!polled && !outcome) outcome = polled.error();
    }
  }

  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->code(), ErrorCode::invalid_argument);
  const std::string message = outcome->message(), ranks = message.substr(0, message.find(" call"));
  EXPECT_TRUE(ranks.starts_with("ranks 0 and ") || ranks.ends_with(" and 0")) << message;
  for (const char* kind : {"all-gather", "reduce-scatter"})
    EXPECT_NE(message.find(kind), std::string::npos) << message;
  for (const std::uint32_t r : here()) {
    EXPECT_EQ(error_of(r, started[r]).code(), ErrorCode::invalid_argument);
  }
}

TEST_P(CommunicatorPeers, FailsTheCollectivesOfPeersWhenARankHasLeft) {
  if (is_here(1)) rank(1).communicator->retire(*rank(1).stream);
  if (!is_here(0)) return;

  const Error error = error_of(0, rank(0).communicator->start_all_gather(*rank(0).stream, flat(0).bytes, {}));

  EXPECT_EQ(error.code(), ErrorCode::peer_failed);
  EXPECT_NE(error.message().find("rank 1"), std::string::npos) << error.message();
}

TEST_P(CommunicatorConformance, SaysWhichReductionsItHas) {
  const std::uint32_t one = here().front();
  Communicator& communicator = *rank(one).communicator;
  EXPECT_TRUE(communicator.supports(Reduction::exact));
  if (communicator.supports(Reduction::native)) return;

  const auto refused =
      communicator.start_reduce_scatter(*rank(one).stream, std::array{flat(one)}, Reduction::native, {});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported);
  // Nothing was started: the next collective is the first.
  for (const std::uint32_t r : here()) {
    ASSERT_TRUE(rank(r).communicator->start_all_gather(*rank(r).stream, flat(r).bytes, {}));
  }
  finish();
  drain();
}

TEST_P(CommunicatorPeers, WakesARankWhenTheResultOfPollMayHaveChanged) {
  if (is_process()) GTEST_SKIP() << "needs all ranks in one process";
  std::vector<int> woken(size(), 0);
  for (std::uint32_t r = 0; r < size(); ++r) {
    rank(r).communicator->set_wake([&woken, r] { ++woken[r]; });
  }
  fill_own_slots(1);
  run_streams();
  ASSERT_TRUE(rank(0).communicator->start_all_gather(*rank(0).stream, flat(0).bytes, {}));
  run_streams();  // a stream wakes no rank
  // Rank 0 sleeps whenever it has nothing to do, and looks again only when it is woken.
  bool through = rank(0).communicator->poll().value();
  const bool polls_seldom = rank(0).communicator->poll_interval() > std::chrono::milliseconds(1);
  EXPECT_EQ(polls_seldom, transport().wakes);
  int seen = woken[0];
  std::vector<bool> started(size(), false), ended(size(), false);
  for (int turn = 0; turn < 100 && !through; ++turn) {
    run_streams();
    for (std::uint32_t r = 1; r < size(); ++r) {
      if (!started[r]) {
        ASSERT_TRUE(rank(r).communicator->start_all_gather(*rank(r).stream, flat(r).bytes, {}));
        started[r] = true;
      } else if (!ended[r]) {
        ended[r] = rank(r).communicator->poll().value();
      }
    }
    if (woken[0] == seen && transport().wakes) continue;
    seen = woken[0];
    through = rank(0).communicator->poll().value();
  }
  EXPECT_TRUE(through);

  const int before = woken[0];
  rank(size() - 1).communicator->abort(Error(ErrorCode::io, "Somewhere"));
  EXPECT_GT(woken[0], before);
  rank(0).communicator->set_wake({});
  rank(1).communicator->abort(Error(ErrorCode::io, "Somewhere"));
  EXPECT_EQ(woken[0], before + 1);
  for (const auto& one : ranks_) {
    one->communicator->set_wake({});
    (void)one->communicator->poll();  // ends its part in a collective to which not all have come
  }
  drain();
}

/// A rank leaves, one reads, and one fails.
TEST_P(CommunicatorRetirement, LetsNoPeerReadARanksMemoryAfterItsStreamHasPassedIt) {
  if (is_process()) GTEST_SKIP() << "needs all ranks in one process";
  fill_own_slots(1);
  for (std::uint32_t r = 0; r < size(); ++r) {
    ASSERT_TRUE(rank(r).communicator->start_all_gather(*rank(r).stream, flat(r).bytes, {}));
  }
  EXPECT_FALSE(rank(1).communicator->poll().value());  // reads of rank 0's memory may be on its stream
  rank(2).communicator->abort(Error(ErrorCode::io, "Somewhere"));
  ASSERT_FALSE(rank(0).communicator->poll());

  rank(0).communicator->retire(*rank(0).stream);
  auto passed = rank(0).device->create_event().value();
  ASSERT_TRUE(rank(0).stream->record(*passed));
  while (!passed->query().value()) {
    bool ran = rank(0).run_one();
    for (std::uint32_t r = 1; !ran && r < size(); ++r) ran = rank(r).run_one();
    ASSERT_TRUE(ran);
  }
  const HostSpan own = bytes(slot(0, 0));
  std::memset(own.data(), 0xee, own.size().value());
  drain();

  EXPECT_NE(std::memcmp(bytes(slot(1, 0)).data(), own.data(), own.size().value()), 0);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorConformance, settings_of(1),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorPeers, settings_of(2), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorRetirement, settings_of(3, /*runs_streams=*/true),
                         testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorPeers);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorRetirement);

TEST(InProcessGroup, RefusesANumberOfRanksThatItCannotAverage) {
  for (const std::uint32_t ranks : {0u, 65u, ~0u}) {
    const auto refused = InProcessGroup::create(ranks);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("from 1 to 64"), std::string::npos) << refused.error().message();
  }
  EXPECT_TRUE(InProcessGroup::create(64));
}

TEST(InProcessGroup, FailsPeersWhenARankWillNeverJoin) {
  HostDevice device({.memory = 1_MiB});
  auto compute = kernels::make_host_compute();
  auto stream = device.create_stream().value();
  const auto memory = device.allocate(4_KiB).value();
  auto group = InProcessGroup::create(2).value();
  auto communicator = group->join(0, device, *compute).value();
  ASSERT_TRUE(communicator->start_all_gather(*stream, memory, {}));
  EXPECT_FALSE(communicator->poll().value());

  group->abort(1, Error(ErrorCode::permission, "Somewhere"));

  EXPECT_EQ(communicator->poll().error().code(), ErrorCode::peer_failed);
  communicator.reset();
  stream.reset();
  device.release(memory);
}

/// Calls a function before each mean().
class ObservedCompute final : public Compute {
 public:
  std::function<void()> before_mean;

 private:
  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    return compute_->cast(stream, from, to);
  }
  Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) override {
    return compute_->scale(stream, x, factor);
  }
  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    return compute_->accumulate(stream, x, sum);
  }
  Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) override {
    before_mean();
    return compute_->mean(stream, x, out);
  }
  Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) override {
    return compute_->square_sums(stream, x, partials);
  }
  std::unique_ptr<Compute> compute_ = kernels::make_host_compute();
};

TEST(InProcessGroup, RetiresARankOnlyOnceNoPeerReadsItsMemory) {
  auto group = InProcessGroup::create(2).value();
  HostDevice device({.memory = 1_MiB});
  ObservedCompute compute;
  std::vector<std::unique_ptr<tiers::Stream>> streams;
  std::vector<DeviceSpan> flats;
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    streams.push_back(device.create_stream().value());
    flats.push_back(device.allocate(4_KiB).value());
    ranks.push_back(group->join(rank, device, compute).value());
    ASSERT_TRUE(ranks[rank]->start_reduce_scatter(
        *streams[rank], std::array{DeviceTensor{flats[rank], DType::bf16}}, Reduction::exact, {}));
  }
  std::atomic<bool> retired = false;
  bool retired_during_the_sum = true;
  std::thread leaver;
  compute.before_mean = [&] {
    leaver = std::thread([&] {
      ranks[1]->abort(Error(ErrorCode::io, "Somewhere"));
      ranks[1]->retire(*streams[1]);
      retired = true;
    });
    // Long enough for the thread to return from retire() if nothing makes it wait.
    for (int i = 0; i < 50 && !retired; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    retired_during_the_sum = retired;
  };

  (void)ranks[0]->poll();
  leaver.join();

  EXPECT_FALSE(retired_during_the_sum);
  EXPECT_TRUE(retired);
  ranks.clear();
  streams.clear();
  for (const DeviceSpan flat : flats) device.release(flat);
}

TEST(InProcessGroup, LetsEachRankJoinOnce) {
  HostDevice device({.memory = 1_MiB});
  auto compute = kernels::make_host_compute();
  auto group = InProcessGroup::create(2).value();
  auto communicator = group->join(0, device, *compute).value();

  EXPECT_EQ(group->join(0, device, *compute).error().code(), ErrorCode::already_exists);
  const auto beyond = group->join(2, device, *compute);
  EXPECT_EQ(beyond.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(beyond.error().message().find("rank, wanted below 2, got 2"), std::string::npos);
}

}  // namespace
}  // namespace penstock::zero::test
