#pragma once

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include "tiers/io/aio_engine.hpp"
#include "tiers/io/thread_pool_engine.hpp"
#include "tiers/io/uring_engine.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {

inline constexpr std::uint32_t depth = 8;

/// One engine with a file system, and a way to advance its time.
struct Bench {
  test::ScratchDirectory directory;
  SimClock clock;
  std::unique_ptr<SimDisk> disk;
  std::unique_ptr<IoEngine> engine;
  SimEngine* simulated = nullptr;  // knows the times of the simulated disk's events
  std::string skip_reason;

  FileSystem& file_system() { return disk ? static_cast<FileSystem&>(*disk) : real_file_system(); }
  File scratch(ByteCount size) {
    return file_system().create_scratch(directory.path(), size, DirectIo::preferred).value();
  }

  std::size_t reap(std::span<IoCompletion> completions) {
    if (disk) clock.advance_to(simulated->next_due());
    return engine->reap(completions, forever);
  }
  std::vector<IoCompletion> reap_all(std::size_t count) {
    std::vector<IoCompletion> all;
    std::array<IoCompletion, 3> batch;
    while (all.size() < count) {
      const std::size_t got = reap(batch);
      all.insert(all.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(got));
    }
    return all;
  }
};

using Factory = std::unique_ptr<Bench> (*)();

inline std::unique_ptr<Bench> with(Result<std::unique_ptr<IoEngine>> engine) {
  auto bench = std::make_unique<Bench>();
  if (engine) {
    bench->engine = std::move(*engine);
  } else {
    bench->skip_reason = engine.error().message();
  }
  return bench;
}
inline std::unique_ptr<Bench> uring() {
  return with(create_uring_engine({.depth = depth}));
}
inline std::unique_ptr<Bench> aio() {
  return with(create_aio_engine({.depth = depth}));
}
inline std::unique_ptr<Bench> threads() {
  return with(create_thread_pool_engine({.threads = 2, .depth = depth}));
}
inline std::unique_ptr<Bench> simulated() {
  auto bench = std::make_unique<Bench>();
  bench->disk = std::make_unique<SimDisk>(SimDisk::Options{.capacity = 16_GiB});
  auto engine = std::make_unique<SimEngine>(*bench->disk, bench->clock, /*seed=*/1, depth);
  bench->simulated = engine.get();
  bench->engine = std::move(engine);
  return bench;
}
/// A fault decorator without faults must also fulfil the contract.
template <Factory make>
std::unique_ptr<Bench> without_faults() {
  auto bench = make();
  if (bench->engine) bench->engine = std::make_unique<FaultEngine>(std::move(bench->engine), FaultPlan{});
  return bench;
}

/// The fixture of suites that run on several engines.
class OverEngines : public testing::TestWithParam<std::pair<const char*, Factory>> {
 protected:
  void SetUp() override {
    bench_ = GetParam().second();
    if (!bench_->skip_reason.empty()) GTEST_SKIP() << bench_->skip_reason;
  }
  IoEngine& engine() { return *bench_->engine; }

  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  HostSpan buffer(ByteCount size) {
    const std::size_t room = std::max<std::size_t>(round_up(size.value(), 4096), 4096);
    owned_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, room)));
    return HostSpan(owned_.back().get(), size);
  }

  std::vector<std::unique_ptr<std::byte, Free>> owned_;  // outlives the engine
  std::unique_ptr<Bench> bench_;
};

inline auto real_engines() {
  return testing::Values(std::pair("Uring", &uring), std::pair("Aio", &aio), std::pair("Threads", &threads));
}
inline auto every_engine() {
  return testing::Values(std::pair("Uring", &uring), std::pair("Aio", &aio), std::pair("Threads", &threads),
                         std::pair("Simulated", &simulated), std::pair("FaultUring", &without_faults<uring>),
                         std::pair("FaultAio", &without_faults<aio>),
                         std::pair("FaultThreads", &without_faults<threads>),
                         std::pair("FaultSimulated", &without_faults<simulated>));
}
inline std::string engine_name(const testing::TestParamInfo<std::pair<const char*, Factory>>& engine) {
  return engine.param.first;
}

}  // namespace penstock::tiers
