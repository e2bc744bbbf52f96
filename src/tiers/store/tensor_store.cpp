#include <penstock/base/check.hpp>
#include <penstock/tiers/tensor_store.hpp>

#include <algorithm>

namespace penstock::tiers {

std::string_view to_string(CopyState state) {
  constexpr std::string_view names[] = {"absent", "loading", "clean", "dirty", "storing"};
  return names[static_cast<std::size_t>(state)];
}

TensorId TensorStore::add(TensorDescription description) {
  const auto id = TensorId(tensors_.size());
  BlockTable blocks(static_cast<std::uint64_t>(id), description.size, description.block);
  tensors_.push_back({.description = std::move(description), .blocks = std::move(blocks), .copies = {}});
  return id;
}

const Copy& TensorStore::copy(TensorId id, Tier tier) const {
  return at(id).copies[index(tier)];
}

std::uint64_t TensorStore::newest(TensorId id) const {
  std::uint64_t newest = 0;
  for (const Copy& copy : at(id).copies) newest = std::max(newest, copy.version);
  return newest;
}

bool TensorStore::current(TensorId id, Tier tier) const {
  const Copy& one = copy(id, tier);
  const bool at_rest =
      one.state == CopyState::clean || one.state == CopyState::dirty || one.state == CopyState::storing;
  return at_rest && one.version == newest(id);
}

void TensorStore::begin_load(TensorId id, Tier tier, Reservation reservation) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.state == CopyState::absent && !copy.leased());
  copy.state = CopyState::loading;
  copy.reservation = std::move(reservation);
}

void TensorStore::finish_load(TensorId id, Tier tier, bool succeeded) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.state == CopyState::loading && !copy.leased());
  if (succeeded) {
    copy.state = CopyState::clean;
    copy.version = newest(id);
  } else {
    copy = {};
  }
}

void TensorStore::add_reader(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(current(id, tier) && !copy.exclusive);
  ++copy.readers;
}

void TensorStore::remove_reader(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.readers > 0);
  --copy.readers;
}

void TensorStore::begin_exclusive(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.state == CopyState::clean || copy.state == CopyState::dirty);
  PENSTOCK_CHECK(!copy.leased() && current(id, tier));
  copy.exclusive = true;
}

void TensorStore::begin_overwrite(TensorId id, Tier tier, Reservation reservation) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.state == CopyState::absent && !copy.leased());
  copy.state = CopyState::dirty;
  copy.reservation = std::move(reservation);
  copy.exclusive = true;
}

void TensorStore::end_exclusive(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.exclusive);
  copy.exclusive = false;
  copy.state = CopyState::dirty;
  copy.version = newest(id) + 1;
  for (const Tier other : {Tier::device, Tier::host}) {
    Copy& stale = mutable_copy(id, other);
    if (other != tier && stale.state == CopyState::clean && !stale.leased()) stale = {};
  }
}

void TensorStore::begin_store(TensorId id, Tier from) {
  Copy& copy = mutable_copy(id, from);
  PENSTOCK_CHECK(copy.state == CopyState::dirty && !copy.exclusive && at(id).description.extent);
  copy.state = CopyState::storing;
}

void TensorStore::finish_store(TensorId id, Tier from, bool succeeded) {
  Copy& copy = mutable_copy(id, from);
  PENSTOCK_CHECK(copy.state == CopyState::storing && !copy.exclusive);
  if (!succeeded) {
    copy.state = CopyState::dirty;
    return;
  }
  copy.state = CopyState::clean;
  Copy& stored = mutable_copy(id, Tier::nvme);
  stored.state = CopyState::clean;
  stored.version = copy.version;
}

void TensorStore::drop(TensorId id, Tier tier, bool discard) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(!copy.leased());
  PENSTOCK_CHECK(copy.state == CopyState::clean || (discard && copy.state == CopyState::dirty));
  copy = {};
  // What is discarded must not come back from an older copy on disk.
  if (discard) mutable_copy(id, Tier::nvme) = {};
}

}  // namespace penstock::tiers
