// Ranks of one process on CUDA devices, on a fake CUDA runtime.
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>
#include "fake_cuda/fixture.hpp"

#include <penstock/base/units.hpp>

#include <array>
#include <cstring>
#include <vector>

namespace penstock::zero {
namespace {

using namespace test::fake_cuda;

struct RankOnCuda {
  RankOnCuda(InProcessGroup& group, std::uint32_t number, int ordinal)
      : accelerator(make_cuda_accelerator(ordinal).value()),
        stream(accelerator.device->create_stream().value()),
        memory(accelerator.device->allocate(4_KiB).value()),
        communicator(group.join(number, *accelerator.device, *accelerator.compute).value()) {}
  ~RankOnCuda() {
    communicator.reset();
    stream.reset();
    accelerator.device->release(memory);
  }
  [[nodiscard]] std::byte* bytes() const {
    return test::fake_cuda::bytes(reinterpret_cast<const void*>(memory.address()), memory.size().value());
  }

  Accelerator accelerator;
  std::unique_ptr<tiers::Stream> stream;
  DeviceSpan memory;
  std::unique_ptr<Communicator> communicator;
};

class InProcessGroupOnCuda : public FakeCuda {
 protected:
  /// Two ranks, on these devices.
  void open(const Machine& machine, int first, int second) {
    ranks.clear();
    restart(machine);
    const auto group = InProcessGroup::create(2).value();
    ranks.push_back(std::make_unique<RankOnCuda>(*group, 0, first));
    ranks.push_back(std::make_unique<RankOnCuda>(*group, 1, second));
  }
  void TearDown() override {
    ranks.clear();
    FakeCuda::TearDown();
  }
  /// Each rank has 1024 floats equal to 1 or 3, and gets the means of its half.
  void expect_mean() {
    for (const auto& rank : ranks) {
      const std::vector<float> values(1024, rank == ranks[0] ? 1.0f : 3.0f);
      std::memcpy(rank->bytes(), values.data(), 4096);
      ASSERT_TRUE(rank->communicator->start_reduce_scatter(
          *rank->stream, std::array{DeviceTensor{rank->memory, DType::fp32}}, Reduction::exact, {}));
    }
    for (bool complete = false; !complete;) {
      complete = true;
      for (const auto& rank : ranks) {
        const auto enqueued = rank->communicator->poll();
        ASSERT_TRUE(enqueued) << enqueued.error().message();
        complete = complete && *enqueued;
      }
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(ranks[rank]->stream->synchronize());
      float values[512];
      std::memcpy(values, ranks[rank]->bytes() + 2048 * rank, sizeof values);
      for (const float value : values) ASSERT_EQ(value, 2.0f);
    }
  }

  std::vector<std::unique_ptr<RankOnCuda>> ranks;
};

TEST_F(InProcessGroupOnCuda, SumsInTheMemoryOfAnotherDevice) {
  open({.devices = 2}, 0, 1);

  expect_mean();

  EXPECT_EQ(count().of("cudaDeviceEnablePeerAccess"), 2u);
  expect_mean();
  EXPECT_EQ(count().of("cudaDeviceEnablePeerAccess"), 2u) << "once";
}

TEST_F(InProcessGroupOnCuda, NeedsNoPeerAccessOnOneDevice) {
  open({.devices = 2, .peer_access = false}, 1, 1);

  expect_mean();
}

TEST_F(InProcessGroupOnCuda, TellsEveryRankWhichDevicesHaveNoAccess) {
  for (const std::size_t first : {0u, 1u}) {
    open({.devices = 2, .peer_access = false}, 0, 1);
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->communicator->start_all_gather(*rank->stream, rank->memory, {}));
    }

    const Error noticed = ranks[first]->communicator->poll().error();
    const Error told = ranks[1 - first]->communicator->poll().error();

    EXPECT_EQ(noticed.code(), ErrorCode::unsupported) << noticed.message();
    EXPECT_EQ(told.code(), ErrorCode::peer_failed) << told.message();
    for (const Error& error : {noticed, told}) {
      for (const char* part : {"CUDA device 0", "CUDA device 1", "NVLink"}) {
        EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
      }
    }
  }
}

}  // namespace
}  // namespace penstock::zero
