#include "unit/swap/residency/residency_fixture.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::swap::test {

using tiers::CopyState;
using tiers::TensorId;

ResidencyFixture::ResidencyFixture(const Options& options)
    : budget(tiers::Tier::host, options.host_budget, ledger),
      extents(options.paths, Alignment(4096)),
      residency(tensors, budget, extents, ledger, *this,
                {.eviction = options.eviction,
                 .lookahead = options.lookahead,
                 .file_names = std::vector<std::string>(options.paths.size(), "file")}) {}

void ResidencyFixture::load(TensorId tensor, bool verify) {
  ++loads_[tensor];
  effects.push_back({Effect::Kind::load, tensor, *tensors.description(tensor).extent, verify});
}

void ResidencyFixture::store(TensorId tensor, const tiers::Extent& place) {
  effects.push_back({Effect::Kind::store, tensor, place});
}

Result<TensorId> ResidencyFixture::add(ByteCount size, tiers::TensorDescription description, bool on_disk) {
  description.size = size;
  description.key.unit = next_unit_++;
  if (description.name.empty()) description.name = "tensor " + std::to_string(description.key.unit);
  if (on_disk) description.extent = extents.allocate(size).value();
  const TensorId tensor = tensors.add(std::move(description)).value();
  if (auto added = residency.add(tensor); !added) {
    (void)tensors.remove(tensor);
    return added.error();
  }
  return tensor;
}

TensorId ResidencyFixture::stored(ByteCount size, bool retain) {
  const TensorId tensor = add(size, {.write_behind = true, .retain = retain}).value();
  acquire(tensor, Access::overwrite);
  run();
  return tensor;
}

void ResidencyFixture::lease(TensorId tensor, Access access, Use use) {
  const RequestId id = residency.request(tensor, access, use);
  residency.advance();
  auto outcome = residency.take(id);
  while (!outcome && !effects.empty()) {
    finish(take_effect());
    outcome = residency.take(id);
  }
  ASSERT_TRUE(outcome) << "the request waits, and nothing is in flight";
  ASSERT_TRUE(*outcome) << outcome->error().message();
}

void ResidencyFixture::acquire(TensorId tensor, Access access, Use use) {
  lease(tensor, access, use);
  residency.release(tensor, access);
  residency.advance();
}

void ResidencyFixture::rehearse(const std::vector<TensorId>& order) {
  for (const TensorId tensor : order) use(tensor);
  residency.end_round();
  const TensorId all_room = add(budget.size(), {}, /*on_disk=*/false).value();
  residency.forget(all_room);
  (void)residency.remove(all_room);
}

ResidencyFixture::Effect ResidencyFixture::take_effect() {
  const Effect effect = effects.front();
  effects.pop_front();
  return effect;
}

void ResidencyFixture::finish(const Effect& effect, const Result<void>& result) {
  if (effect.kind == Effect::Kind::load) {
    residency.finish_load(effect.tensor, result);
  } else {
    residency.finish_store(effect.tensor, result);
  }
  residency.advance();
}

void ResidencyFixture::run() {
  residency.advance();
  while (!effects.empty()) finish(take_effect());
}

void ResidencyFixture::run_at_random(std::uint64_t seed, int calls) {
  penstock::test::SeededRandom random(seed);
  std::vector<TensorId> all;
  std::map<TensorId, std::uint64_t> written;
  struct Open {
    RequestId id;
    TensorId tensor{};
    Access access{};
    bool granted = false;
  };
  std::vector<Open> open;
  for (int i = 0; i < 10; ++i) {
    all.push_back(add(ByteCount(1 + random.below(20'000)),
                      {.write_behind = random.below(2) == 0, .retain = random.below(3) != 0})
                      .value());
  }
  for (int i = 0; i < calls; ++i) {
    const TensorId tensor = all[random.below(all.size())];
    switch (random.below(8)) {
      case 0:
      case 1: {
        const bool known = written[tensor] > 0;
        const Access access = !known || random.below(4) == 0 ? Access::overwrite
                              : random.below(2) == 0         ? Access::modify
                                                             : Access::read;
        const bool is_open =
            std::any_of(open.begin(), open.end(), [&](const Open& o) { return o.tensor == tensor; });
        if (!is_open) open.push_back({residency.request(tensor, access, Use::recorded), tensor, access});
        break;
      }
      case 2:
      case 3:
        if (!open.empty()) {
          const std::size_t which = random.below(open.size());
          Open& one = open[which];
          if (one.granted) {
            if (one.access != Access::read) ++written[one.tensor];
            residency.release(one.tensor, one.access);
            open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
          } else if (random.below(6) == 0) {
            residency.cancel(one.id, one.tensor, one.access);
            open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
          }
        }
        break;
      case 4: residency.prefetch(tensor); break;
      case 5:
        if (random.below(4) == 0) residency.end_round();
        break;
      default:
        if (!effects.empty()) {
          std::swap(effects.front(), effects[random.below(effects.size())]);
          const Effect effect = take_effect();
          const bool fails = effect.kind == Effect::Kind::store && random.below(12) == 0;
          finish(effect, fails ? Result<void>(Error(ErrorCode::io, "test")) : ok());
        }
    }
    residency.advance();
    if (effects.empty()) residency.fail_starved_request();
    if (random.below(10) == 0) (void)residency.take_store_error();
    std::erase_if(open, [&](Open& one) {
      if (one.granted) return false;
      const auto outcome = residency.take(one.id);
      one.granted = outcome && *outcome;
      return outcome && !*outcome;  // starved
    });
    for (const auto& [id, version] : written) {
      const tiers::HostCopy& copy = tensors.copy(id);
      ASSERT_TRUE(version == 0 || copy.version == version || tensors.stored(id))
          << "seed " << seed << " call " << i;
      ASSERT_TRUE(copy.state != CopyState::dirty || copy.reservation.held());
    }
    ASSERT_LE(ledger.peak(tiers::Tier::host), budget.size());
  }
}

bool ResidencyFixture::in_memory(TensorId tensor) const {
  return tensors.copy(tensor).state != CopyState::absent;
}

}  // namespace penstock::swap::test
