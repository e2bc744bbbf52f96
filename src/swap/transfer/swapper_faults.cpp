#include <penstock/swap/swapper.hpp>

// Paths that fail: what is stored there goes elsewhere, and what was stored there is moved while it can be read.

namespace penstock::swap {

using tiers::CopyState;
using tiers::TensorId;
using tiers::Tier;

namespace {

std::string first_line(const Error& error) {
  const std::string text = error.message();
  return text.substr(0, text.find('\n'));
}

}  // namespace

/// A transfer of `tensor` has failed. A full disk is no fault of its path's.
void Swapper::note_fault(TensorId tensor, const Error& error) {
  const auto& description = store_.description(tensor);
  const std::uint32_t path = description.extent->path;
  if (!dealer_.in_use(path) || error.code() == ErrorCode::no_space) return;
  const bool hangs = error.code() == ErrorCode::deadline_exceeded || error.code() == ErrorCode::failed_state;
  const bool last = dealer_.note_fault(path);
  if (last || (hangs && dealer_.has_another(path))) {
    retire(path, transfers_.file_name(*description.extent), error);
  }
}

Error Swapper::note_corrupted(TensorId tensor, std::size_t block) {
  Error error = corrupted(store_.description(tensor), block);
  if (store_.description(tensor).extent) note_fault(tensor, error);
  return error;
}

void Swapper::retire(std::uint32_t path, const std::string& file, const Error& error) {
  dealer_.take_out_of_use(path);
  RetiredPath& retired = retired_[path];
  retired.file = file;
  ByteCount bytes;
  for (const TensorId tensor : store_.in_extents_of(path)) {
    bytes += store_.description(tensor).extent->length;
    retired.left.insert(tensor);
    to_move_.push_back(tensor);
  }
  messages_.push_back(file + " is out of use, at its fault number " + std::to_string(dealer_.fault_count(path)) + ": " +
                      first_line(error) + "; the " + std::to_string(retired.left.size()) +
                      " tensors that are there (" + to_string(bytes) + ") move to the other paths");
}

/// A store has failed. True when it is tried again on a path where it has not failed since it last succeeded.
bool Swapper::store_elsewhere(TensorId tensor, const Error& error) {
  note_fault(tensor, error);
  const tiers::Extent failed = *store_.description(tensor).extent;
  failed_on_[tensor].insert(failed.path);
  if (!move_extent(tensor)) {
    failed_on_.erase(tensor);
    return false;
  }
  const auto& description = store_.description(tensor);
  messages_.push_back(description.name + " goes to " + transfers_.file_name(*description.extent) + ": " +
                      first_line(error));
  to_store_.push_back(tensor);
  return true;
}

/// Gives the tensor an extent on another path, nothing in it yet. False where none has room.
bool Swapper::move_extent(TensorId tensor) {
  const auto failed = failed_on_.find(tensor);
  auto extent = dealer_.deal(store_.description(tensor).size, [&](std::uint32_t path) {
    return failed != failed_on_.end() && failed->second.contains(path);
  });
  if (!extent) return false;
  const tiers::Extent old = store_.relocate(tensor, *extent);
  // A write that hangs may still land there, and is out of harm's way: its path deals no more.
  dealer_.give_back(old);
  settle_retired(tensor, old.path, old.length);
  return true;
}

/// Where no other path has room it is stored where it was.
void Swapper::move_off_retired_path(TensorId tensor) {
  if (!dealer_.in_use(store_.description(tensor).extent->path)) (void)move_extent(tensor);
}

/// The same for what is in memory and at rest: that copy is the only one then, until it is stored.
void Swapper::move_resident(TensorId tensor) {
  if (dealer_.in_use(store_.description(tensor).extent->path)) return;
  if (!move_extent(tensor)) {
    end_draining(tensor);  // it stays where it is
    return;
  }
  if (!store_.copy(tensor, Tier::host).exclusive) to_store_.push_back(tensor);
}

/// Loads what is on a path out of use and nowhere else, one tensor at a time, for no longer than it takes to store
/// it. A clean copy may have to go for it, though none that is used sooner. What is being loaded or stored is
/// looked at when that ends.
void Swapper::drain_paths() {
  while (!to_move_.empty() && !draining_) {
    const TensorId tensor = to_move_.front();
    const CopyState state = store_.copy(tensor, Tier::host).state;
    if (state == CopyState::clean || state == CopyState::dirty) {
      move_resident(tensor);
    } else if (state == CopyState::absent && !store_.current(tensor, Tier::nvme)) {
      (void)move_extent(tensor);  // never written: nothing to lose
    } else if (state == CopyState::absent) {
      const std::uint64_t next_use = trace_.next_use(tensor);
      auto reservation = reserve(tensor, next_use == AccessTrace::never ? 1 : next_use + 1);
      if (!reservation) return;
      start_load(tensor, std::move(*reservation));
      draining_ = tensor;
    }
    to_move_.pop_front();
  }
}

/// True when `tensor` was the one being drained; the next one may be.
bool Swapper::end_draining(TensorId tensor) {
  if (draining_ != tensor) return false;
  draining_.reset();
  return true;
}

/// A load has failed that drain_paths() may have started.
void Swapper::note_unreadable(TensorId tensor) {
  if (!end_draining(tensor)) return;
  const auto& description = store_.description(tensor);
  retired_.at(description.extent->path).unreadable.push_back(description.name);
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
