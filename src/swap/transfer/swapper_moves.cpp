#include <penstock/swap/transfer/swapper.hpp>

#include <algorithm>
#include <iterator>

// Loads and stores: what they are made of, and what becomes of a tensor when they end.

namespace penstock::swap {

using tiers::CopyState;
using tiers::TensorId;
using tiers::Tier;

/// Whoever has it sealed in a pass verifies it there, unless this is to.
void Swapper::start_load(TensorId tensor, tiers::Reservation reservation, bool verify) {
  load_errors_.erase(tensor);
  store_.begin_load(tensor, Tier::host, std::move(reservation));
  resident_.insert(tensor);
  const auto& description = store_.description(tensor);
  const HostSpan payload = bytes(tensor);
  const HostSpan padded(payload.data(), description.extent->length);

  Move move;
  move.then(transfers_.disk_hop(tiers::IoOperation::read, *description.extent, padded));
  if (verify || !description.sealed_in_pass) {
    tiers::BlockTable& blocks = store_.blocks(tensor);
    move.then(make_work_hop(*options_.executor, options_.wake,
                            [this, &blocks, &description, payload]() -> Result<void> {
                              const auto bad = blocks.first_mismatch(payload);
                              if (bad) return corrupted(description, *bad);
                              return ok();
                            }));
  }
  move.on_event = [this, tensor](HopState, const Result<void>& result) {
    const auto& loaded = store_.description(tensor);
    ledger_.read(loaded.purpose, result ? loaded.extent->length : ByteCount());
    if (!result && result.error().code() == ErrorCode::deadline_exceeded) {
      quarantined_.push_back(store_.surrender(tensor, Tier::host));
    }
    store_.finish_load(tensor, Tier::host, result.has_value());
    store_.touch(tensor, Tier::host);
    if (result) {
      if (!discard_if_unwanted(tensor)) leave_retired_path(tensor);
      return;
    }
    note_fault(*loaded.extent, result.error());
    note_unreadable(tensor);
    unwanted_.erase(tensor);
    resident_.erase(tensor);
    Error error = result.error();
    if (error.code() != ErrorCode::corrupted) error = std::move(error).note("tensor  " + loaded.name);
    if (error.code() == ErrorCode::deadline_exceeded) {
      error = std::move(error).note("memory  " + to_string(quarantined_.back().size()) +
                                    " are kept from use: the kernel may still write there");
    }
    load_errors_.insert_or_assign(tensor, std::move(error));
  };
  transfers_.announce();
  moves_.push_back(std::move(move));
}

/// Safe from a worker, which holds no lock: a description stays where it is and as it is.
Error Swapper::corrupted(const tiers::TensorDescription& description, std::size_t block) const {
  Error error = Error(ErrorCode::corrupted, "Swapper::load")
                    .reason("bytes read back differ from the bytes written")
                    .object(description.name + ", block " + std::to_string(block))
                    .advice("check the drive and its cabling; the run cannot go on with these bytes");
  if (!description.extent) return error;
  return std::move(error)
      .at(description.extent->offset + description.block * block)
      .note("file    " + transfers_.file_name(*description.extent));
}

/// False when no path takes it; see place_for().
bool Swapper::start_store(TensorId tensor) {
  const auto place = place_for(tensor);
  if (!place) return false;
  store_.begin_store(tensor, Tier::host);
  storing_.emplace(tensor, *place);
  const HostSpan payload = bytes(tensor);
  const HostSpan padded(payload.data(), place->length);

  Move move;
  if (!store_.description(tensor).sealed_in_pass) {
    tiers::BlockTable& blocks = store_.blocks(tensor);
    move.then(make_work_hop(*options_.executor, options_.wake, [&blocks, payload]() -> Result<void> {
      blocks.seal_all(payload, blocks.step());
      return ok();
    }));
  }
  move.then(transfers_.disk_hop(tiers::IoOperation::write, *place, padded));
  move.on_event = [this, tensor](HopState, const Result<void>& result) { finish_store(tensor, result); };
  transfers_.announce();
  moves_.push_back(std::move(move));
  return true;
}

void Swapper::finish_store(TensorId tensor, const Result<void>& result) {
  const tiers::Extent place = storing_.extract(tensor).mapped();
  store_.finish_store(tensor, Tier::host, result.has_value());
  const auto& description = store_.description(tensor);
  const bool last_resort = failed_on_.contains(tensor);
  if (result) {
    settle_at(tensor, place);
    ledger_.wrote(description.purpose, place.length);
  } else if (unwanted_.contains(tensor)) {
    if (place != *description.extent) extents_.release(place);
    note_fault(place, result.error());
  } else if (store_elsewhere(tensor, place, result.error())) {
    return;
  }
  if (discard_if_unwanted(tensor)) return;
  const tiers::Copy& copy = store_.copy(tensor, Tier::host);
  const bool drained = end_draining(tensor);
  if (copy.state == CopyState::dirty) {
    failed_stores_.push_back(tensor);
    if (store_error_) return;  // the first is what the caller hears
    Error error = result.error();
    store_error_ = {
        tensor, std::move(error).note("tensor  " + description.name + " stays in memory, not yet stored")};
    return;
  }
  if (result && !last_resort) leave_retired_path(tensor);
  if ((drained || !description.retain) && !copy.leased() && copy.state == CopyState::clean) {
    store_.drop(tensor, Tier::host);
    resident_.erase(tensor);
  }
}

void Swapper::take_moves(std::vector<Move>& moves) {
  std::move(moves_.begin(), moves_.end(), std::back_inserter(moves));
  moves_.clear();
}

std::optional<Error> Swapper::take_store_error() {
  for (const TensorId tensor : std::exchange(failed_stores_, {})) to_store_.push_back(tensor);
  const auto told = std::exchange(store_error_, std::nullopt);
  return told ? std::optional(told->error) : std::nullopt;
}

}  // namespace penstock::swap
