#include "kit/allocation_count.hpp"
#include "kit/scratch_directory.hpp"
#include "tiers/io/choose_engine.hpp"

#include <penstock/swap/runtime.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <vector>

namespace penstock::swap {
namespace {

using tiers::EngineChoice;
using tiers::TensorId;

/// An optimizer's traffic, over one real path: tiles that stream, and shards that are kept as room allows.
class SteadyState : public testing::TestWithParam<EngineChoice> {
 protected:
  static constexpr ByteCount size = 64_KiB;

  void SetUp() override {
    if (GetParam() == EngineChoice::io_uring || GetParam() == EngineChoice::libaio) {
      auto file =
          tiers::real_file_system().create_scratch(directory_.path(), 4_KiB, tiers::DirectIo::preferred);
      ASSERT_TRUE(file);
      if (auto chosen = tiers::choose_engine(GetParam(), 8, file->properties()); !chosen)
        GTEST_SKIP() << chosen.error().message();
    }
    runtime_ = Runtime::create({.host_budget = size * 8,
                                .paths = {{.directory = directory_.path(),
                                           .capacity = size * 24,
                                           .request_max = 16_KiB,
                                           .engine = GetParam()}},
                                .lookahead = size * 2})
                   .value();
    for (int i = 0; i < 12; ++i) {
      tiles_.push_back(add({.name = "tile",
                            .key = {.unit = static_cast<std::uint32_t>(i), .group = 1},
                            .size = size,
                            .retain = false}));
      shards_.push_back(add({.name = "shard",
                             .key = {.unit = static_cast<std::uint32_t>(i)},
                             .size = size,
                             .write_behind = false}));
    }
  }

  TensorId add(tiers::TensorDescription description) {
    const TensorId tensor = runtime_->add(std::move(description), true).value();
    const Lease lease = runtime_->acquire(tensor, Access::overwrite, Use::unrecorded).value();
    std::fill_n(lease.bytes().data(), size.value(), std::byte{7});
    return tensor;
  }

  void round() {
    for (std::size_t i = 0; i < tiles_.size(); ++i) {
      (void)runtime_->prefetch(tiles_[i]);
      (void)runtime_->prefetch(tiles_[(i + 1) % tiles_.size()]);
      runtime_->wait_for_stores(2);
      const Lease shard = runtime_->acquire(shards_[i], i % 3 == 0 ? Access::modify : Access::read).value();
      Lease tile = runtime_->acquire(tiles_[i], Access::modify, Use::unrecorded).value();
      ASSERT_EQ(tile.bytes().data()[17], shard.bytes().data()[17]);
    }
    runtime_->end_round();
  }

  test::ScratchDirectory directory_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<TensorId> tiles_, shards_;
};

TEST_P(SteadyState, AllocatesNothing) {
  // Queues have had their greatest length at some time; when, is the scheduler's matter.
  constexpr int enough = 20, most = 200;
  int quiet = 0, rounds = 0;
  std::uint64_t last = 0;
  for (; quiet < enough && rounds < most; ++rounds) {
    const std::uint64_t before = test::allocation_count();
    round();
    last = test::allocation_count() - before;
    quiet = last == 0 ? quiet + 1 : 0;
  }

  EXPECT_EQ(quiet, enough) << last << " allocations in the last of " << rounds << " rounds";
  EXPECT_GT(runtime_->ledger().traffic().read, size * 12 * static_cast<std::uint64_t>(rounds));
}

INSTANTIATE_TEST_SUITE_P(EveryEngine, SteadyState,
                         testing::Values(EngineChoice::io_uring, EngineChoice::libaio, EngineChoice::threads),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

}  // namespace
}  // namespace penstock::swap
