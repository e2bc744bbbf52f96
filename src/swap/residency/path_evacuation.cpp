#include "swap/residency/path_evacuation.hpp"

#include "base/notes.hpp"

#include <algorithm>
#include <cerrno>

namespace penstock::swap {

using tiers::Extent;
using tiers::TensorId;

namespace {

/// Not for want of space on the disk, of memory or of threads, and not for a signal.
bool is_fault_of_path(const Error& error) {
  switch (error.os_error()) {
    case ENOMEM:
    case EAGAIN:
    case ECANCELED:
    case EINTR: return false;
    default: return error.code() != ErrorCode::no_space;
  }
}

}  // namespace

void PathEvacuation::note_fault(const Extent& extent, const Error& error) {
  if (!extents_.in_use(extent.path) || !is_fault_of_path(error)) return;
  const bool hangs = error.code() == ErrorCode::deadline_exceeded || error.code() == ErrorCode::failed_state;
  const bool last = extents_.note_fault(extent.path);
  if (last || (hangs && extents_.has_another(extent.path))) retire(extent.path, error);
}

void PathEvacuation::retire(std::uint32_t path, const Error& error) {
  extents_.retire(path);
  RetiredPath& retired = retired_[path];
  ByteCount bytes;
  for (const TensorId tensor : store_.in_extents_of(path)) {
    bytes += store_.description(tensor).extent->length;
    retired.remaining.insert(tensor);
    to_move_.push_back(tensor);
  }
  messages_.push_back(file_names_[path] + " is retired after fault number " +
                      std::to_string(extents_.fault_count(path)) + ": " + first_line(error) + "; its " +
                      std::to_string(retired.remaining.size()) + " tensors (" + to_string(bytes) +
                      ") are being moved to the other paths");
}

Result<Extent> PathEvacuation::place_for(TensorId tensor) {
  const auto& description = store_.description(tensor);
  const auto failed = [&, known = failed_on_.find(tensor)](std::uint32_t path) {
    return known != failed_on_.end() && known->second.contains(path);
  };
  const Extent& own = *description.extent;
  const bool free_to_write = !extents_.pinned(own) && !failed(own.path);
  if (free_to_write && extents_.in_use(own.path)) return own;
  auto elsewhere = extents_.allocate(description.size, failed);
  if (elsewhere) return elsewhere;
  const bool in_memory_only = store_.copy(tensor).state == tiers::CopyState::dirty;
  if (free_to_write && in_memory_only) return own;
  return elsewhere;
}

void PathEvacuation::store_failed(TensorId tensor, const Extent& place, const Error& error) {
  note_fault(place, error);
  failed_on_[tensor].insert(place.path);
}

void PathEvacuation::report_store_elsewhere(TensorId tensor, const Extent& place, const Error& error) {
  // A full or read-only disk, and a file that refuses writes after a hang, return the same error for every store:
  // report it once.
  const bool repeated = error.code() == ErrorCode::no_space || error.code() == ErrorCode::permission ||
                        error.code() == ErrorCode::failed_state;
  if (repeated && !reported_.insert({place.path, error.code()}).second) return;
  messages_.push_back(store_.description(tensor).name + " is stored elsewhere: " + first_line(error));
}

bool PathEvacuation::on_retired_path(TensorId tensor) const {
  const auto& extent = store_.description(tensor).extent;
  return extent && !extents_.in_use(extent->path);
}

std::optional<TensorId> PathEvacuation::next() const {
  if (moving_ || to_move_.empty()) return std::nullopt;
  return to_move_.front();
}

bool PathEvacuation::end(TensorId tensor) {
  if (!moving_ || moving_->tensor != tensor) return false;
  if (moving_->place) extents_.release(*moving_->place);
  moving_.reset();
  return true;
}

void PathEvacuation::note_unreadable(TensorId tensor) {
  end(tensor);
  const auto& description = store_.description(tensor);
  const auto found = retired_.find(description.extent->path);
  if (found == retired_.end() || !found->second.remaining.contains(tensor)) return;
  found->second.unreadable.push_back(description.name);
  note_departed(tensor, description.extent->path, ByteCount());
}

void PathEvacuation::note_departed(TensorId tensor, std::uint32_t path, ByteCount moved) {
  const auto found = retired_.find(path);
  if (found == retired_.end() || found->second.remaining.erase(tensor) == 0) return;
  RetiredPath& retired = found->second;
  retired.moved += moved;
  if (!retired.remaining.empty()) return;
  std::string message = file_names_[path] + " is evacuated: " + to_string(retired.moved) + " moved";
  for (std::size_t i = 0; i < retired.unreadable.size(); ++i) {
    message += (i == 0 ? "; cannot be read: " : ", ") + retired.unreadable[i];
  }
  messages_.push_back(std::move(message));
}

void PathEvacuation::forget(TensorId tensor) {
  std::erase(to_move_, tensor);
  failed_on_.erase(tensor);
  end(tensor);
}

}  // namespace penstock::swap
