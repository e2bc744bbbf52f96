#include "tiers/store/tensor_store.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <atomic>

namespace penstock::tiers {

std::string_view to_string(CopyState state) {
  constexpr std::string_view names[] = {"absent", "loading", "clean", "dirty", "storing"};
  return names[static_cast<std::size_t>(state)];
}

std::uint16_t TensorStore::next_number() {
  static std::atomic<std::uint32_t> stores = 0;
  return static_cast<std::uint16_t>(1 + stores++ % 0xffff);
}

Result<TensorId> TensorStore::add(TensorDescription description) {
  if (description.size.is_zero() || description.block.is_zero()) {
    return Error::invalid_argument("TensorStore::add")
        .object(description.name)
        .reason(description.size.is_zero() ? "the tensor has no bytes" : "its blocks have no bytes");
  }
  if (const auto other = ids_.find(description.key); other != ids_.end()) {
    return Error(ErrorCode::already_exists, "TensorStore::add")
        .object(description.name)
        .reason("tensor " + this->description(other->second).name +
                " has the same key: " + to_string(description.key))
        .advice("give each engine on a runtime its own Engine::Options::engine_number, the owner in the key");
  }
  if (free_.empty()) {
    free_.push_back(first_in_slot(number_, tensors_.size()));
    tensors_.emplace_back();
  }
  const TensorId id = free_.back();
  free_.pop_back();
  ids_.emplace(description.key, id);
  BlockTable blocks(description.key.seed(), description.size, description.block);
  at(id) = {.description = std::move(description), .blocks = std::move(blocks), .copy = {}};
  return id;
}

bool TensorStore::contains(TensorId id) const {
  if (slot_of(id) >= tensors_.size()) return false;
  const auto found = ids_.find(at(id).description.key);
  return found != ids_.end() && found->second == id;
}

TensorDescription TensorStore::remove(TensorId id) {
  const HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(!copy.leased() && copy.state != CopyState::loading && copy.state != CopyState::storing);
  Tensor removed = std::exchange(at(id), {});
  ids_.erase(removed.description.key);
  if (const auto next = next_in_slot(id)) free_.push_back(*next);
  return std::move(removed.description);
}

TensorStore::Tensor& TensorStore::at(TensorId id) {
  return tensors_[slot_of(id)];
}
const TensorStore::Tensor& TensorStore::at(TensorId id) const {
  return tensors_[slot_of(id)];
}

std::uint64_t TensorStore::newest(const Tensor& tensor) {
  return std::max(tensor.copy.version, tensor.stored_version);
}

bool TensorStore::stored(TensorId id) const {
  const Tensor& tensor = at(id);
  return tensor.stored_version > 0 && tensor.stored_version == newest(tensor);
}

void TensorStore::pin_range(TensorId id, Reservation range) {
  PENSTOCK_CHECK(at(id).description.stays_in_memory() && copy(id).state == CopyState::absent);
  at(id).copy.reservation = std::move(range);
}

/// Removes the copy; a tensor that stays in memory keeps its range.
void TensorStore::clear(Tensor& tensor) {
  Reservation range = std::move(tensor.copy.reservation);
  tensor.copy = {};
  if (tensor.description.stays_in_memory()) tensor.copy.reservation = std::move(range);
}

void TensorStore::begin_load(TensorId id, Reservation reservation) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.state == CopyState::absent && !copy.leased());
  copy.state = CopyState::loading;
  copy.reservation = std::move(reservation);
}

void TensorStore::finish_load(TensorId id, bool succeeded) {
  Tensor& tensor = at(id);
  PENSTOCK_CHECK(tensor.copy.state == CopyState::loading && !tensor.copy.leased());
  if (!succeeded) return clear(tensor);
  tensor.copy.state = CopyState::clean;
  tensor.copy.version = newest(tensor);
}

Reservation TensorStore::take_load_range(TensorId id) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.state == CopyState::loading);
  return std::move(copy.reservation);
}

void TensorStore::add_reader(TensorId id) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.state != CopyState::absent && copy.state != CopyState::loading && !copy.exclusive);
  PENSTOCK_CHECK(copy.version == newest(at(id)));
  ++copy.readers;
}

void TensorStore::remove_reader(TensorId id) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.readers > 0);
  --copy.readers;
}

void TensorStore::begin_exclusive(TensorId id) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.state == CopyState::clean || copy.state == CopyState::dirty);
  PENSTOCK_CHECK(!copy.leased() && copy.version == newest(at(id)));
  copy.exclusive = true;
}

void TensorStore::begin_overwrite(TensorId id, Reservation reservation) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.state == CopyState::absent && !copy.leased());
  copy.state = CopyState::dirty;
  if (reservation.held()) copy.reservation = std::move(reservation);
  PENSTOCK_CHECK(copy.reservation.held());
  copy.exclusive = true;
}

void TensorStore::end_exclusive(TensorId id) {
  Tensor& tensor = at(id);
  PENSTOCK_CHECK(tensor.copy.exclusive);
  tensor.copy.exclusive = false;
  tensor.copy.state = CopyState::dirty;
  tensor.copy.version = newest(tensor) + 1;
}

void TensorStore::cancel_exclusive(TensorId id) {
  Tensor& tensor = at(id);
  PENSTOCK_CHECK(tensor.copy.exclusive);
  tensor.copy.exclusive = false;
  if (tensor.copy.version == 0) clear(tensor);
}

void TensorStore::set_outside(TensorId id, HostSpan bytes) {
  Tensor& tensor = at(id);
  PENSTOCK_CHECK(tensor.description.stored_from_outside && tensor.copy.state == CopyState::absent);
  tensor.copy.outside = bytes;
  tensor.copy.state = CopyState::dirty;
  tensor.copy.version = newest(tensor) + 1;
}

void TensorStore::begin_store(TensorId id) {
  HostCopy& copy = at(id).copy;
  PENSTOCK_CHECK(copy.state == CopyState::dirty || copy.state == CopyState::clean);
  PENSTOCK_CHECK(!copy.exclusive && description(id).extent);
  copy.state = CopyState::storing;
}

void TensorStore::finish_store(TensorId id, bool succeeded) {
  Tensor& tensor = at(id);
  PENSTOCK_CHECK(tensor.copy.state == CopyState::storing && !tensor.copy.exclusive);
  if (succeeded) tensor.stored_version = tensor.copy.version;
  tensor.copy.state = tensor.stored_version == tensor.copy.version ? CopyState::clean : CopyState::dirty;
}

std::vector<TensorId> TensorStore::in_extents_of(std::uint32_t path) const {
  std::vector<TensorId> found;
  for (const TensorId id : tensors()) {
    const auto& extent = description(id).extent;
    if (extent && extent->path == path) found.push_back(id);
  }
  return found;
}

std::vector<TensorId> TensorStore::tensors() const {
  std::vector<TensorId> all;
  for (const auto& [key, id] : ids_) all.push_back(id);
  std::sort(all.begin(), all.end());
  return all;
}

Extent TensorStore::relocate(TensorId id, const Extent& extent) {
  TensorDescription& description = at(id).description;
  PENSTOCK_CHECK(description.extent && description.extent->length == extent.length);
  return std::exchange(*description.extent, extent);
}

void TensorStore::drop(TensorId id) {
  PENSTOCK_CHECK(!copy(id).leased() && copy(id).state == CopyState::clean);
  clear(at(id));
}

Reservation TensorStore::vacate(TensorId id) {
  Reservation range = std::move(at(id).copy.reservation);
  drop(id);
  return range;
}

void TensorStore::discard(TensorId id) {
  PENSTOCK_CHECK(!copy(id).leased());
  const CopyState state = copy(id).state;
  PENSTOCK_CHECK(state != CopyState::loading && state != CopyState::storing);
  if (state != CopyState::absent) clear(at(id));
  at(id).stored_version = 0;  // otherwise an older version on disk would be loaded
}

}  // namespace penstock::tiers
