// Random sequences of every call, with effects that end late, in any order, some with an error.
#include "unit/swap/residency/residency_fixture.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <utility>

namespace penstock::swap {
namespace {

using penstock::test::SeededRandom;
using test::ResidencyFixture;
using tiers::CopyState;
using tiers::TensorId;

class RandomRun {
 public:
  explicit RandomRun(std::uint64_t seed)
      : random_(seed),
        fixture_(
            {.eviction = seed % 2 == 0 ? Eviction::lru : Eviction::planned,
             .paths = {{.capacity = 1_MiB, .reserved = 1_MiB}, {.capacity = 1_MiB, .reserved = 512_KiB}}}) {
    for (int i = 0; i < 10; ++i) add_tensor();
  }

  void call() {
    const TensorId tensor = tensors_[random_.below(tensors_.size())].id;
    switch (random_.below(14)) {
      case 0:
      case 1: request(tensor); break;
      case 2:
      case 3: end_a_lease(); break;
      case 4: residency_.prefetch(tensor); break;
      case 5:
        if (random_.below(4) == 0) residency_.end_round();
        break;
      case 6: announce(tensor); break;
      case 7: retract(); break;
      case 8: pin(tensor); break;
      case 9: release_generation(random_.below(generation_ + 1)); break;
      case 10:
        if (random_.below(10) == 0) replace(tensor);
        break;
      case 11:
        if (random_.below(30) == 0) discard(tensor);
        break;
      default: end_an_effect();
    }
    residency_.advance();
    if (fixture_.effects.empty()) residency_.fail_starved_request();
    if (random_.below(10) == 0) (void)residency_.take_store_error();
    take_outcomes();
  }

  void check() {
    for (const Tensor& tensor : tensors_) {
      const tiers::HostCopy& copy = fixture_.tensors.copy(tensor.id);
      const bool only_in_memory = copy.state == CopyState::dirty || copy.state == CopyState::storing;
      ASSERT_TRUE(!tensor.written || only_in_memory || fixture_.tensors.stored(tensor.id));
      ASSERT_TRUE(copy.state != CopyState::dirty || copy.reservation.held());
    }
    for (const auto& [generation, extent] : pins_) {
      ASSERT_TRUE(fixture_.extents.pinned(extent));
      for (const auto& effect : fixture_.effects) {
        ASSERT_FALSE(effect.kind == ResidencyFixture::Effect::Kind::store && effect.place == extent)
            << "a store to a pinned extent";
      }
    }
    ASSERT_LE(fixture_.ledger.peak(tiers::Tier::host), fixture_.budget.size());
  }

  /// Ends everything; no bytes may be held on disk afterwards.
  void finish() {
    for (const Open& one : open_) {
      if (one.granted) {
        residency_.release(one.tensor, one.access);
      } else {
        residency_.cancel(one.id, one.tensor, one.access);
      }
    }
    for (const TensorId tensor : announced_) residency_.retract(tensor);
    residency_.stop();
    (void)residency_.take_store_error();
    fixture_.run();
    for (const Tensor& tensor : tensors_) {
      residency_.forget(tensor.id);
      ASSERT_TRUE(residency_.idle(tensor.id));
      (void)residency_.remove(tensor.id);
    }
    for (std::uint64_t generation = 0; generation <= generation_; ++generation)
      release_generation(generation);
    EXPECT_EQ(fixture_.ledger.line(tiers::Tier::nvme, tiers::Purpose::scratch).held, 0_B);
  }

 private:
  struct Tensor {
    TensorId id{};
    bool written = false;
  };
  struct Open {
    RequestId id;
    TensorId tensor{};
    Access access{};
    bool granted = false;
  };

  void add_tensor() {
    const tiers::TensorDescription description{.write_behind = random_.below(2) == 0,
                                               .retain = random_.below(3) != 0};
    tensors_.push_back({fixture_.add(ByteCount(1 + random_.below(20'000)), description).value()});
  }
  Tensor& find(TensorId id) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& one) { return one.id == id; });
  }
  bool in_use(TensorId tensor) const {
    return std::count(announced_.begin(), announced_.end(), tensor) > 0 ||
           std::any_of(open_.begin(), open_.end(), [&](const Open& one) { return one.tensor == tensor; });
  }

  void request(TensorId tensor) {
    if (in_use(tensor)) return;
    const Access access = !find(tensor).written || random_.below(4) == 0 ? Access::overwrite
                          : random_.below(2) == 0                        ? Access::modify
                                                                         : Access::read;
    open_.push_back({residency_.request(tensor, access, Use::recorded), tensor, access});
  }
  void end_a_lease() {
    if (open_.empty()) return;
    const std::size_t which = random_.below(open_.size());
    const Open one = open_[which];
    if (!one.granted && random_.below(6) != 0) return;
    if (one.granted) {
      if (one.access != Access::read) find(one.tensor).written = true;
      residency_.release(one.tensor, one.access);
    } else {
      residency_.cancel(one.id, one.tensor, one.access);
    }
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void announce(TensorId tensor) {
    if (in_use(tensor)) return;
    residency_.announce(tensor);
    announced_.push_back(tensor);
  }
  void retract() {
    if (announced_.empty()) return;
    residency_.retract(announced_.back());
    announced_.pop_back();
  }
  void pin(TensorId tensor) {
    if (residency_.pin_extent(tensor, generation_)) {
      pins_.emplace_back(generation_, *fixture_.tensors.description(tensor).extent);
    }
    if (random_.below(3) == 0) ++generation_;
  }
  void release_generation(std::uint64_t generation) {
    residency_.release_generation(generation);
    std::erase_if(pins_, [&](const auto& pin) { return pin.first == generation; });
  }
  void replace(TensorId tensor) {
    if (in_use(tensor) || !residency_.idle(tensor)) return;
    residency_.forget(tensor);
    (void)residency_.remove(tensor);
    std::erase_if(tensors_, [&](const Tensor& one) { return one.id == tensor; });
    add_tensor();
  }
  void discard(TensorId tensor) {
    if (in_use(tensor)) return;
    residency_.discard(tensor);
    find(tensor).written = false;
  }
  void end_an_effect() {
    if (fixture_.effects.empty()) return;
    std::swap(fixture_.effects.front(), fixture_.effects[random_.below(fixture_.effects.size())]);
    const auto effect = fixture_.take_effect();
    const bool fails = random_.below(15) == 0, hangs = random_.below(40) == 0;
    fixture_.finish(
        effect,
        fails ? Result<void>(Error(hangs ? ErrorCode::deadline_exceeded : ErrorCode::io, "test")) : ok());
  }
  void take_outcomes() {
    std::erase_if(open_, [&](Open& one) {
      if (one.granted) return false;
      const auto outcome = residency_.take(one.id);
      one.granted = outcome && *outcome;
      return outcome && !*outcome;
    });
  }

  SeededRandom random_;
  ResidencyFixture fixture_;
  HostResidency& residency_ = fixture_.residency;
  std::vector<Tensor> tensors_;
  std::vector<Open> open_;
  std::vector<TensorId> announced_;
  std::vector<std::pair<std::uint64_t, tiers::Extent>> pins_;
  std::uint64_t generation_ = 1;
};

TEST(HostResidencyRandom, KeepsItsInvariantsInAnyOrderOfCallsAndOutcomes) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomRun run(seed);
    for (int i = 0; i < 500; ++i) {
      run.call();
      ASSERT_NO_FATAL_FAILURE(run.check()) << "call " << i;
    }
    ASSERT_NO_FATAL_FAILURE(run.finish());
  }
}

}  // namespace
}  // namespace penstock::swap
