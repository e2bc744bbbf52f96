#include <penstock/swap/transfer/swapper.hpp>

// Paths that fail: what is stored there goes elsewhere, and what was stored there is moved while it can be read.
// What is on disk stays valid, and where it is, until it stands in its new place.

namespace penstock::swap {

using tiers::CopyState;
using tiers::Extent;
using tiers::TensorId;
using tiers::Tier;

namespace {

std::string first_line(const Error& error) {
  const std::string text = error.message();
  return text.substr(0, text.find('\n'));
}

}  // namespace

/// A transfer has failed there. A full disk is no fault of its path's.
void Swapper::note_fault(const Extent& extent, const Error& error) {
  if (!extents_.in_use(extent.path) || error.code() == ErrorCode::no_space) return;
  const bool hangs = error.code() == ErrorCode::deadline_exceeded || error.code() == ErrorCode::failed_state;
  const bool last = extents_.note_fault(extent.path);
  if (last || (hangs && extents_.has_another(extent.path)))
    retire(extent.path, transfers_.file_name(extent), error);
}

Error Swapper::note_corrupted(TensorId tensor, std::size_t block) {
  const auto& description = store_.description(tensor);
  Error error = corrupted(description, block);
  if (description.extent) note_fault(*description.extent, error);
  return error;
}

void Swapper::retire(std::uint32_t path, const std::string& file, const Error& error) {
  extents_.take_out_of_use(path);
  RetiredPath& retired = retired_[path];
  retired.file = file;
  ByteCount bytes;
  for (const TensorId tensor : store_.in_extents_of(path)) {
    bytes += store_.description(tensor).extent->length;
    retired.left.insert(tensor);
    to_move_.push_back(tensor);
  }
  messages_.push_back(file + " is out of use, at its fault number " +
                      std::to_string(extents_.fault_count(path)) + ": " + first_line(error) + "; the " +
                      std::to_string(retired.left.size()) + " tensors that are there (" + to_string(bytes) +
                      ") move to the other paths");
}

/// Where the next store of `tensor` goes: where it is, or to another path once that one has failed; a path out of use
/// is the last resort of what is in memory only. Nothing when each has failed since a store of it last succeeded.
std::optional<Extent> Swapper::place_for(TensorId tensor) {
  const auto& description = store_.description(tensor);
  const auto failed = [&, known = failed_on_.find(tensor)](std::uint32_t path) {
    return known != failed_on_.end() && known->second.contains(path);
  };
  const Extent& own = *description.extent;
  if (extents_.in_use(own.path) && !failed(own.path)) return own;
  if (auto elsewhere = extents_.allocate(description.size, failed)) return *elsewhere;
  const bool in_memory_only = store_.copy(tensor, Tier::host).state == CopyState::dirty;
  if (in_memory_only && !failed(own.path)) return own;
  return std::nullopt;
}

/// The tensor stands at `place`.
void Swapper::settle_at(TensorId tensor, const Extent& place) {
  failed_on_.erase(tensor);
  if (place == *store_.description(tensor).extent) return;
  const Extent old = store_.relocate(tensor, place);
  extents_.release(old);  // a write that hangs may land there still: its path deals no more
  settle_retired(tensor, old.path, old.length);
}

/// The store to `place` has failed. True when it is on its way to another one.
bool Swapper::store_elsewhere(TensorId tensor, const Extent& place, const Error& error) {
  if (place != *store_.description(tensor).extent) extents_.release(place);
  note_fault(place, error);
  failed_on_[tensor].insert(place.path);
  if (!start_store(tensor)) {
    failed_on_.erase(tensor);
    return false;
  }
  // What a full or a refusing disk says is said for every store.
  const bool repeated = error.code() == ErrorCode::no_space || error.code() == ErrorCode::failed_state;
  if (!repeated || told_.insert({place.path, error.code()}).second) {
    messages_.push_back(store_.description(tensor).name + " is stored elsewhere: " + first_line(error));
  }
  return true;
}

/// Moves what is on paths out of use, one tensor at a time, as room allows: a clean copy may have to go for it, though
/// none that is used sooner, and it stays in memory for no longer than it takes. What is dirty moves with its next
/// store; what is being loaded or stored, or leased for writing, comes back here when that ends.
void Swapper::drain_paths() {
  while (!to_move_.empty() && !draining_) {
    const TensorId tensor = to_move_.front();
    const tiers::Copy& copy = store_.copy(tensor, Tier::host);
    const bool there = !extents_.in_use(store_.description(tensor).extent->path);
    if (there && copy.state == CopyState::clean && !copy.exclusive) {
      if (start_store(tensor)) draining_ = {tensor, std::nullopt};
    } else if (there && copy.state == CopyState::absent) {
      if (!start_draining(tensor)) return;
    }
    to_move_.pop_front();
  }
}

/// Of what is on disk only, or nowhere yet. False when memory has no room for it now.
bool Swapper::start_draining(TensorId tensor) {
  auto place = extents_.allocate(store_.description(tensor).size);
  if (!place) return true;  // it stays where it is
  if (!store_.current(tensor, Tier::nvme)) {
    settle_at(tensor, *place);  // never written: nothing to lose
    return true;
  }
  const std::uint64_t use = next_use(tensor);
  auto reservation = reserve(tensor, use == AccessTrace::never ? use : use + 1);
  if (!reservation) {
    extents_.release(*place);
    return false;
  }
  draining_ = {tensor, *place};
  start_load(tensor, std::move(*reservation), /*verify=*/true);
  return true;
}

/// At rest, in memory and current on disk: if it is on a path out of use, it moves, or waits for its turn to.
void Swapper::leave_retired_path(TensorId tensor) {
  const auto& extent = store_.description(tensor).extent;
  if (!extent || extents_.in_use(extent->path)) return;
  if (!end_draining(tensor)) return to_move_.push_back(tensor);
  if (start_store(tensor)) draining_ = {tensor, std::nullopt};
}

/// True when `tensor` was the one being drained; the next one may be.
bool Swapper::end_draining(TensorId tensor) {
  if (!draining_ || draining_->tensor != tensor) return false;
  if (draining_->place) extents_.release(*draining_->place);
  draining_.reset();
  return true;
}

/// A load has failed. What is on a path out of use is not tried again.
void Swapper::note_unreadable(TensorId tensor) {
  end_draining(tensor);
  const auto& description = store_.description(tensor);
  const auto found = retired_.find(description.extent->path);
  if (found == retired_.end() || !found->second.left.contains(tensor)) return;
  found->second.unreadable.push_back(description.name);
  settle_retired(tensor, description.extent->path, ByteCount());
}

/// The tensor needs that path no more, or can never be had from it; `moved` bytes of it are elsewhere.
void Swapper::settle_retired(TensorId tensor, std::uint32_t path, ByteCount moved) {
  const auto found = retired_.find(path);
  if (found == retired_.end() || found->second.left.erase(tensor) == 0) return;
  RetiredPath& retired = found->second;
  retired.moved += moved;
  if (!retired.left.empty()) return;
  std::string message = retired.file + " is drained: " + to_string(retired.moved) + " moved";
  for (std::size_t i = 0; i < retired.unreadable.size(); ++i) {
    message += (i == 0 ? "; cannot be read: " : ", ") + retired.unreadable[i];
  }
  messages_.push_back(std::move(message));
}

std::vector<std::string> Swapper::take_messages() {
  return std::exchange(messages_, {});
}

}  // namespace penstock::swap
