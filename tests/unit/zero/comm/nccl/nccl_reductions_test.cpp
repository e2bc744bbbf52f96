// The arithmetic of reductions over NCCL.
#include "kernels/host_compute.hpp"
#include "kit/seeded_random.hpp"
#include "unit/zero/comm/nccl/nccl_ranks.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/comm/in_process_group.hpp>

#include <array>
#include <cmath>
#include <cstring>

namespace penstock::zero::test {
namespace {

class NcclReductions : public NcclRanks {
 protected:
  static constexpr std::uint64_t elements = 64;

  /// What rank `r` holds before a reduction: values that a sum in another order, or one rounded on the way, gets wrong.
  std::vector<std::byte> values(std::uint32_t r, DType dtype, std::uint64_t seed) const {
    penstock::test::SeededRandom random(seed * 100 + r);
    std::vector<std::byte> out(size_of(dtype).value() * elements * size());
    for (std::size_t e = 0; e < elements * size(); ++e) {
      const float value = random.symmetric() * (random.below(2) == 0 ? 1.0f : 200.0f);
      store(out.data(), dtype, e, value);
    }
    return out;
  }
  static void store(std::byte* out, DType dtype, std::size_t e, float value) {
    if (dtype == DType::fp32) {
      std::memcpy(out + 4 * e, &value, 4);
    } else if (dtype == DType::bf16) {
      const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
      std::memcpy(out + 2 * e, &rounded, 2);
    } else {
      const __half rounded = __float2half_rn(value);
      std::memcpy(out + 2 * e, &rounded, 2);
    }
  }
  static double load(const std::byte* in, DType dtype, std::size_t e) {
    if (dtype == DType::fp32) {
      float value = 0;
      std::memcpy(&value, in + 4 * e, 4);
      return double{value};
    }
    if (dtype == DType::bf16) {
      __nv_bfloat16 value;
      std::memcpy(&value, in + 2 * e, 2);
      return double{__bfloat162float(value)};
    }
    __half value;
    std::memcpy(&value, in + 2 * e, 2);
    return double{__half2float(value)};
  }
  void fill(DType dtype, std::uint64_t seed) {
    for (std::uint32_t r = 0; r < size(); ++r) {
      const auto mine = values(r, dtype, seed);
      std::memcpy(bytes(r), mine.data(), mine.size());
    }
  }
  /// Every rank's slot.
  std::vector<std::vector<std::byte>> slots(DType dtype) {
    std::vector<std::vector<std::byte>> out;
    const std::size_t slot = size_of(dtype).value() * elements;
    for (std::uint32_t r = 0; r < size(); ++r)
      out.emplace_back(bytes(r) + r * slot, bytes(r) + (r + 1) * slot);
    return out;
  }
  std::vector<std::vector<std::byte>> reduce_all(DType dtype, Reduction reduction, std::uint64_t seed) {
    fill(dtype, seed);
    for (std::uint32_t r = 0; r < size(); ++r) EXPECT_TRUE(reduce(r, dtype, reduction));
    finish();
    synchronize();
    return slots(dtype);
  }
  /// The same over the transport of ranks in one process, on a host device.
  std::vector<std::vector<std::byte>> reduce_in_process(DType dtype, std::uint64_t seed) const {
    tiers::HostDevice device({.memory = 1_MiB});
    const auto compute = kernels::make_host_compute();
    const auto stream = device.create_stream().value();
    auto group = InProcessGroup::create(size()).value();
    const ByteCount slot = size_of(dtype) * elements;
    std::vector<std::unique_ptr<Communicator>> peers;
    std::vector<DeviceSpan> flats;
    for (std::uint32_t r = 0; r < size(); ++r) {
      flats.push_back(device.allocate(slot * size()).value());
      const auto mine = values(r, dtype, seed);
      std::memcpy(tiers::HostDevice::bytes(flats[r]).data(), mine.data(), mine.size());
      peers.push_back(group->join(r, device, *compute).value());
      EXPECT_TRUE(peers[r]->start_reduce_scatter(*stream, std::array{DeviceTensor{flats[r], dtype}},
                                                 Reduction::exact, {}));
    }
    for (std::size_t done = 0; done < peers.size();) {
      done = 0;
      for (const auto& peer : peers) done += peer->poll().value() ? 1u : 0u;
    }
    std::vector<std::vector<std::byte>> out;
    for (std::uint32_t r = 0; r < size(); ++r) {
      const std::byte* const mine = tiers::HostDevice::bytes(flats[r].subspan(slot * r, slot)).data();
      out.emplace_back(mine, mine + slot.value());
      device.release(flats[r]);
    }
    return out;
  }
};

TEST_F(NcclReductions, ExactHasTheBitsOfTheInProcessTransportInEveryOrderOfTheStreams) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    open(4, {.seed = seed});
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const auto here = reduce_all(dtype, Reduction::exact, seed);
      EXPECT_EQ(here, reduce_in_process(dtype, seed)) << to_string(dtype) << ", seed " << seed;
    }
  }
}

// A value is multiplied with 1/ranks, which is rounded too, and then at most ranks - 1 sums are rounded that contain
// it: at most ranks + 1 roundings of relative error u, in any order of the sum. What is below the smallest normal
// number has an absolute error instead, of half its spacing.
TEST_F(NcclReductions, NativeIsWithinTheRoundingsOfItsType) {
  struct Type {
    DType dtype;
    double u, tiny;
  };
  for (const Type type : {Type{DType::fp32, 0x1p-24, 0x1p-150},
                          {DType::bf16, 0x1p-8, 0x1p-134},
                          {DType::fp16, 0x1p-11, 0x1p-25}}) {
    bool differs = false;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      open(4, {.seed = seed});
      const auto got = reduce_all(type.dtype, Reduction::native, seed);
      const auto exact = reduce_all(type.dtype, Reduction::exact, seed);
      differs |= got != exact;
      for (std::uint32_t r = 0; r < size(); ++r) {
        for (std::size_t e = 0; e < elements; ++e) {
          double mean = 0, magnitude = 0;
          for (std::uint32_t from = 0; from < size(); ++from) {
            const auto all = values(from, type.dtype, seed);
            const double value = load(all.data(), type.dtype, r * elements + e) / size();
            mean += value;
            magnitude += std::abs(value);
          }
          const double bound = (std::pow(1 + type.u, size() + 1) - 1) * magnitude + 2 * size() * type.tiny;
          ASSERT_LE(std::abs(load(got[r].data(), type.dtype, e) - mean), bound)
              << to_string(type.dtype) << " " << e;
        }
      }
    }
    EXPECT_TRUE(differs) << to_string(type.dtype) << ": the fake's order is no test of a tolerance";
  }
}

TEST_F(NcclReductions, OfOneRankChangeNothing) {
  open(1);
  for (const Reduction reduction : {Reduction::exact, Reduction::native}) {
    const auto before = values(0, DType::bf16, 1);
    EXPECT_EQ(reduce_all(DType::bf16, reduction, 1)[0], before);
  }
}

TEST_F(NcclReductions, ExactOnesOnSeveralStreamsDoNotOverwriteWhatTheOthersRead) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    open(2, {.seed = seed});
    std::vector<std::unique_ptr<tiers::Stream>> others;
    const std::size_t slot = size_of(DType::fp32).value() * elements;
    std::vector<DeviceSpan> flats;
    for (std::uint32_t r = 0; r < size(); ++r) {
      others.push_back(rank(r).cuda->create_stream().value());
      flats.push_back(rank(r).memory.subspan(0_B, ByteCount(2 * slot)));
      flats.push_back(rank(r).memory.subspan(4_KiB, ByteCount(2 * slot)));
      for (std::size_t e = 0; e < 2 * elements; ++e) {
        store(bytes(r), DType::fp32, e, 2);
        store(bytes(r) + 4096, DType::fp32, e, 6);
      }
    }
    for (std::size_t which = 0; which < 2; ++which) {
      for (std::uint32_t r = 0; r < size(); ++r) {
        auto& stream = which == 0 ? *rank(r).stream : *others[r];
        ASSERT_TRUE(communicator(r).start_reduce_scatter(
            stream, std::array{DeviceTensor{flats[2 * r + which], DType::fp32}}, Reduction::exact, {}));
      }
      finish();
    }
    synchronize();
    for (std::uint32_t r = 0; r < size(); ++r) {
      ASSERT_TRUE(others[r]->synchronize());
      for (std::size_t e = 0; e < elements; ++e) {
        ASSERT_EQ(load(bytes(r) + r * slot, DType::fp32, e), 2) << "seed " << seed;
        ASSERT_EQ(load(bytes(r) + 4096 + r * slot, DType::fp32, e), 6) << "seed " << seed;
      }
    }
    others.clear();
  }
}

TEST_F(NcclReductions, ExactOnesNeedScratchForASlot) {
  open(2);
  const DeviceTensor large{rank(0).memory.subspan(0_B, 4_KiB), DType::bf16};

  const auto refused =
      communicator(0).start_reduce_scatter(*rank(0).stream, std::array{large}, Reduction::exact, {});

  ASSERT_FALSE(refused);
  expect_words(refused.error(), ErrorCode::invalid_argument,
               {"wanted 1.0 KiB (1024 B), got 2.0 KiB", "raise CollectiveNeeds::exact_slots_max"});
}

}  // namespace
}  // namespace penstock::zero::test
