// Random sequences of every call, with effects that end late, in any order, some with an error. Two threads and the
// mover request leases; a thread sometimes blocks in a request, as in Runtime::acquire(), and does nothing until it
// ends.
#include "unit/swap/residency/residency_fixture.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <thread>
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
    if (random_.below(10) == 0) (void)residency_.take_store_error();
    act_on_outcomes();
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
    const bool all_block = blocks(threads_[0]) && blocks(threads_[1]);
    ASSERT_FALSE(all_block && fixture_.effects.empty()) << "every thread blocks, and nothing is in flight";
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
    Requester requester;
    bool granted = false;
  };

  void add_tensor() {
    const tiers::TensorDescription description{.write_behind = random_.below(2) == 0,
                                               .retain = random_.below(3) != 0,
                                               .home_in_memory = random_.below(4) == 0};
    tensors_.push_back({fixture_.add(ByteCount(1 + random_.below(20'000)), description).value()});
  }
  Tensor& find(TensorId id) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& one) { return one.id == id; });
  }
  bool in_use(TensorId tensor) const {
    return std::count(announced_.begin(), announced_.end(), tensor) > 0 ||
           std::any_of(open_.begin(), open_.end(), [&](const Open& one) { return one.tensor == tensor; });
  }

  bool blocks(std::thread::id thread) const {
    return std::any_of(open_.begin(), open_.end(), [&](const Open& one) {
      return one.requester.blocks && !one.granted && one.requester.thread == thread;
    });
  }

  void request(TensorId tensor) {
    Requester requester;  // the mover
    if (random_.below(4) != 0) {
      requester = {.thread = threads_[random_.below(threads_.size())], .blocks = random_.below(4) == 0};
    }
    if (in_use(tensor) || blocks(requester.thread)) return;
    const Access access = !find(tensor).written || random_.below(4) == 0 ? Access::overwrite
                          : random_.below(2) == 0                        ? Access::modify
                                                                         : Access::read;
    const RequestId id = residency_.request(tensor, access, Use::recorded, requester);
    open_.push_back({id, tensor, access, requester});
  }
  void end_a_lease() {
    if (open_.empty()) return;
    const std::size_t which = random_.below(open_.size());
    const Open one = open_[which];
    if (blocks(one.requester.thread) || (!one.granted && random_.below(6) != 0)) return;
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
    residency_.announce(tensor, Access::read);
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
  /// Until nothing changes before a call or the end of an effect.
  void act_on_outcomes() {
    do {
      while (fixture_.effects.empty() && residency_.fail_starved_request()) residency_.advance();
    } while (take_outcomes() || take_store_error());
  }
  /// The mover takes all grants, a thread that blocks only the one that it waits for, and others some. True if any.
  bool take_outcomes() {
    bool any = false;
    for (std::size_t i = open_.size(); i-- > 0;) {
      Open& one = open_[i];
      const auto& [thread, waits] = one.requester;
      const bool takes = thread == std::thread::id() || (blocks(thread) ? waits : random_.below(2) == 0);
      const auto outcome = takes && !one.granted ? residency_.take(one.id) : std::nullopt;
      if (!outcome) continue;
      any = true;
      one.granted = outcome->has_value();
      if (!*outcome) open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return any;
  }
  /// A thread that blocks ends its request with the error.
  bool take_store_error() {
    const auto waiting = std::find_if(open_.begin(), open_.end(),
                                      [](const Open& one) { return one.requester.blocks && !one.granted; });
    if (waiting == open_.end() || !residency_.take_store_error()) return false;
    residency_.cancel(waiting->id, waiting->tensor, waiting->access);
    open_.erase(waiting);
    residency_.advance();
    return true;
  }

  const std::array<std::thread::id, 2> threads_ = test::two_thread_ids();
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
