#include "unit/swap/residency/residency_fixture.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::swap::test {

using tiers::CopyState;
using tiers::TensorId;

std::array<std::thread::id, 2> two_thread_ids() {
  std::thread one([] {}), two([] {});
  const std::array ids{one.get_id(), two.get_id()};
  one.join();
  two.join();
  return ids;
}

ResidencyFixture::ResidencyFixture(const Options& options)
    : budget(tiers::Tier::host, options.host_budget, ledger),
      extents(options.paths, Alignment(4096)),
      residency(tensors, budget, extents, ledger, *this,
                {.eviction = options.eviction,
                 .lookahead = options.lookahead,
                 .file_names = std::vector<std::string>(options.paths.size(), "file")}) {}

void ResidencyFixture::load(TensorId tensor, bool verify, bool urgent) {
  ++loads_[tensor];
  effects.push_back({Effect::Kind::load, tensor, *tensors.description(tensor).extent, verify, urgent});
}

void ResidencyFixture::store(TensorId tensor, const tiers::Extent& place) {
  effects.push_back({Effect::Kind::store, tensor, place});
}

void ResidencyFixture::hasten(TensorId tensor) {
  ++hastened;
  const auto found = std::find_if(effects.begin(), effects.end(),
                                  [tensor](const Effect& effect) { return effect.tensor == tensor; });
  ASSERT_NE(found, effects.end()) << "nothing of it is in flight";
  found->urgent = true;
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

TensorId ResidencyFixture::dirty(ByteCount size) {
  const TensorId tensor = add(size).value();
  acquire(tensor, Access::overwrite);
  return tensor;
}

RequestId ResidencyFixture::request(TensorId tensor, Access access) {
  const RequestId id = residency.request(tensor, access, Use::unrecorded);
  residency.advance();
  return id;
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

bool ResidencyFixture::in_memory(TensorId tensor) const {
  return tensors.copy(tensor).state != CopyState::absent;
}

}  // namespace penstock::swap::test
