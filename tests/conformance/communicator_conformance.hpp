#pragma once

#include <penstock/zero/comm/in_process_group.hpp>

#include "kit/pattern.hpp"
#include "kit/process_ranks.hpp"
#include "kit/seeded_random.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include "kernels/host_compute.hpp"

#include <gtest/gtest.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// The ranks of the conformance suite of communicators. One thread runs all ranks, in an order chosen by a seed.
namespace penstock::zero::test {

using penstock::test::Pattern;
using penstock::test::SeededRandom;
using tiers::HostDevice;

/// Makes the communicator of one rank of a group.
using Join = std::function<std::unique_ptr<Communicator>(std::uint32_t rank, tiers::Device&, Compute&)>;

/// Add one of these to run the suite with another transport.
struct Factory {
  const char* name;
  Join (*make_group)(std::uint32_t ranks, const InProcessGroupOptions& options);
};

inline constexpr Factory in_process = {
    "InProcess", [](std::uint32_t ranks, const InProcessGroupOptions& options) -> Join {
      return [group = InProcessGroup::create(ranks, options).value()](
                 std::uint32_t rank, tiers::Device& device, Compute& compute) {
        return group->join(rank, device, compute).value();
      };
    }};
inline constexpr Factory processes = {
    "Processes", [](std::uint32_t ranks, const InProcessGroupOptions& options) -> Join {
      using penstock::test::ProcessRanks;
      return [job = std::make_shared<ProcessRanks>(ranks, /*seed=*/1, options.deadline, *options.clock)](
                 std::uint32_t rank, tiers::Device& device, Compute& compute) {
        return job->join(rank, device, compute);
      };
    }};

struct Setting {
  Factory transport;
  std::uint32_t ranks;
  HostDevice::Mode mode;
};
inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.transport.name << setting.ranks
       << (setting.mode == HostDevice::Mode::eager ? "RanksEager" : "RanksDeferred");
}

/// One rank with a flat of its own on its own device.
struct Rank {
  std::unique_ptr<HostDevice> device;
  std::unique_ptr<Compute> compute;
  std::unique_ptr<tiers::Stream> stream;
  std::unique_ptr<Communicator> communicator;
  DeviceSpan memory;

  ~Rank() {
    communicator.reset();
    stream.reset();
    if (device) device->release(memory);
  }
};

class CommunicatorConformance : public testing::TestWithParam<Setting> {
 protected:
  static constexpr std::uint64_t slot_elements = 96;

  void SetUp() override { open(/*seed=*/1); }

  void open(std::uint64_t seed) {
    ranks_.clear();
    random_ = SeededRandom(seed);
    join_ = GetParam().transport.make_group(GetParam().ranks, {});
    for (std::uint32_t r = 0; r < GetParam().ranks; ++r) {
      auto& rank = ranks_.emplace_back(std::make_unique<Rank>());
      rank->device = std::make_unique<HostDevice>(
          HostDevice::Options{.memory = 1_MiB, .mode = GetParam().mode, .seed = seed * 7 + r});
      rank->compute = kernels::make_host_compute();
      rank->stream = rank->device->create_stream().value();
      rank->memory = rank->device->allocate(64_KiB).value();
      rank->communicator = join_(r, *rank->device, *rank->compute);
    }
  }
  std::uint32_t size() const { return GetParam().ranks; }
  Rank& rank(std::uint32_t r) { return *ranks_[r]; }

  DeviceTensor flat(std::uint32_t r, DType dtype = DType::bf16) {
    return {rank(r).memory.subspan(0_B, size_of(dtype) * (slot_elements * size())), dtype};
  }
  DeviceTensor slot(std::uint32_t r, std::uint32_t index, DType dtype = DType::bf16) {
    return flat(r, dtype).slice(ElementCount(slot_elements * index), ElementCount(slot_elements));
  }
  static HostSpan bytes(const DeviceTensor& tensor) { return HostDevice::bytes(tensor.bytes); }

  /// Polls the ranks and runs their streams, one operation at a time, until every rank has completed its collective.
  void finish() {
    std::vector<bool> through(size(), false);
    for (std::uint32_t left = size(); left > 0;) {
      const auto r = static_cast<std::uint32_t>(random_.below(size()));
      if (random_.below(2) == 0) (void)rank(r).device->run_one();
      if (through[r]) continue;
      const auto enqueued = rank(r).communicator->poll();
      ASSERT_TRUE(enqueued) << enqueued.error().message();
      if (*enqueued) through[r] = true, --left;
    }
  }
  /// Runs every stream to its end.
  void drain() {
    for (bool ran = true; ran;) {
      ran = false;
      for (const auto& one : ranks_) ran |= one->device->run_one();
    }
  }
  void fill_own_slots(std::uint64_t generation) {
    for (std::uint32_t r = 0; r < size(); ++r) {
      const HostSpan own = bytes(slot(r, r));
      const Pattern pattern{.tensor = r, .generation = generation};
      rank(r).stream->handle().host_queue()->enqueue([own, pattern] { pattern.fill(own); });
    }
  }

  SeededRandom random_{1};
  Join join_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline const auto every_setting = testing::Values(
    Setting{in_process, 1, HostDevice::Mode::eager}, Setting{in_process, 2, HostDevice::Mode::eager},
    Setting{in_process, 1, HostDevice::Mode::deferred}, Setting{in_process, 2, HostDevice::Mode::deferred},
    Setting{in_process, 5, HostDevice::Mode::deferred}, Setting{processes, 1, HostDevice::Mode::eager},
    Setting{processes, 2, HostDevice::Mode::eager}, Setting{processes, 1, HostDevice::Mode::deferred},
    Setting{processes, 2, HostDevice::Mode::deferred}, Setting{processes, 5, HostDevice::Mode::deferred});

}  // namespace penstock::zero::test
