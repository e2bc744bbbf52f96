#include <penstock/base/check.hpp>
#include <penstock/tiers/store/tensor_store.hpp>

#include <algorithm>

namespace penstock::tiers {

std::string_view to_string(CopyState state) {
  constexpr std::string_view names[] = {"absent", "loading", "clean", "dirty", "storing"};
  return names[static_cast<std::size_t>(state)];
}

TensorId TensorStore::add(TensorDescription description) {
  if (free_.empty()) {
    free_.push_back(TensorId(tensors_.size()));
    tensors_.emplace_back();
  }
  const TensorId id = free_.back();
  free_.pop_back();
  BlockTable blocks(static_cast<std::uint64_t>(id), description.size, description.block);
  at(id) = {.description = std::move(description), .blocks = std::move(blocks), .copies = {}};
  return id;
}

TensorDescription TensorStore::remove(TensorId id) {
  for (const Copy& copy : at(id).copies) {
    PENSTOCK_CHECK(!copy.leased() && copy.state != CopyState::loading && copy.state != CopyState::storing);
  }
  Tensor removed = std::exchange(at(id), {});
  free_.push_back(id);
  return std::move(removed.description);
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

void TensorStore::settle(TensorId id, Tier tier, Reservation range) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(at(id).description.stays_in_memory() && copy.state == CopyState::absent);
  copy.reservation = std::move(range);
}

/// The copy goes; what has settled keeps its range.
void TensorStore::clear(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  Reservation range = std::move(copy.reservation);
  copy = {};
  if (at(id).description.stays_in_memory()) copy.reservation = std::move(range);
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
    clear(id, tier);
  }
}

Reservation TensorStore::surrender(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.state == CopyState::loading);
  return std::move(copy.reservation);
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
  if (reservation.held()) copy.reservation = std::move(reservation);
  PENSTOCK_CHECK(copy.reservation.held());
  copy.exclusive = true;
}

void TensorStore::end_exclusive(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.exclusive);
  copy.exclusive = false;
  copy.state = CopyState::dirty;
  copy.version = newest(id) + 1;
  for (const Tier other : {Tier::device, Tier::host}) {
    const Copy& stale = mutable_copy(id, other);
    if (other != tier && stale.state == CopyState::clean && !stale.leased()) clear(id, other);
  }
}

void TensorStore::cancel_exclusive(TensorId id, Tier tier) {
  Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(copy.exclusive);
  copy.exclusive = false;
  if (copy.version == 0) clear(id, tier);
}

void TensorStore::begin_store(TensorId id, Tier from) {
  Copy& copy = mutable_copy(id, from);
  PENSTOCK_CHECK(copy.state == CopyState::dirty || copy.state == CopyState::clean);
  PENSTOCK_CHECK(!copy.exclusive && at(id).description.extent);
  copy.state = CopyState::storing;
}

void TensorStore::finish_store(TensorId id, Tier from, bool succeeded) {
  Copy& copy = mutable_copy(id, from);
  PENSTOCK_CHECK(copy.state == CopyState::storing && !copy.exclusive);
  Copy& stored = mutable_copy(id, Tier::nvme);
  if (!succeeded) {
    const bool as_on_disk = stored.state == CopyState::clean && stored.version == copy.version;
    copy.state = as_on_disk ? CopyState::clean : CopyState::dirty;
    return;
  }
  copy.state = CopyState::clean;
  stored.state = CopyState::clean;
  stored.version = copy.version;
}

std::vector<TensorId> TensorStore::in_extents_of(std::uint32_t path) const {
  std::vector<TensorId> found;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& extent = tensors_[i].description.extent;  // none where the tensor was removed
    if (extent && extent->path == path) found.push_back(TensorId(i));
  }
  return found;
}

Extent TensorStore::relocate(TensorId id, const Extent& extent) {
  TensorDescription& description = at(id).description;
  PENSTOCK_CHECK(description.extent && description.extent->length == extent.length);
  return std::exchange(*description.extent, extent);
}

void TensorStore::drop(TensorId id, Tier tier, bool discard) {
  const Copy& copy = mutable_copy(id, tier);
  PENSTOCK_CHECK(!copy.leased());
  PENSTOCK_CHECK(copy.state == CopyState::clean || (discard && copy.state == CopyState::dirty));
  clear(id, tier);
  // What is discarded must not come back from an older copy on disk.
  if (discard) clear(id, Tier::nvme);
}

}  // namespace penstock::tiers
