#include "swap/transfer/host_moves.hpp"

#include <iterator>

namespace penstock::swap {

using tiers::Extent;
using tiers::IoOperation;
using tiers::TensorId;

HostSpan HostMoves::payload(TensorId tensor) const {
  if (const HostSpan outside = store_.copy(tensor).outside; !outside.empty()) return outside;
  return options_.arena.subspan(ByteCount(store_.copy(tensor).reservation.offset()),
                                store_.description(tensor).size);
}

void HostMoves::load(TensorId tensor, bool verify, bool urgent) {
  const auto& description = store_.description(tensor);
  const HostSpan bytes = payload(tensor);
  const Extent& extent = *description.extent;
  const Transfer& transfer = begin(tensor, extent, urgent);

  Move move;
  move.then(transfers_.disk_hop(IoOperation::read, extent, HostSpan(bytes.data(), extent.length),
                                &transfer.urgent));
  if (verify) {
    tiers::BlockTable& blocks = store_.blocks(tensor);
    move.then(make_work_hop(*options_.executor, options_.wake,
                            [this, &blocks, &description, bytes]() -> Result<void> {
                              const auto bad = blocks.first_mismatch(bytes);
                              if (bad) return corrupted(description, *bad);
                              return ok();
                            }));
  }
  // Captures no more than 16 bytes: std::function allocates memory for larger captures.
  move.on_event = [this, tensor](HopState, const Result<void>& result) {
    end(tensor, "reads of path ");
    residency_->finish_load(tensor, result);
  };
  start(std::move(move));
}

void HostMoves::store(TensorId tensor, const Extent& place) {
  const HostSpan bytes = payload(tensor);
  const Transfer& transfer = begin(tensor, place, /*urgent=*/false);

  Move move;
  if (!store_.description(tensor).sealed_in_pass) {
    tiers::BlockTable& blocks = store_.blocks(tensor);
    move.then(make_work_hop(*options_.executor, options_.wake, [&blocks, bytes]() -> Result<void> {
      blocks.seal_all(bytes, blocks.step());
      return ok();
    }));
  }
  move.then(
      transfers_.disk_hop(IoOperation::write, place, HostSpan(bytes.data(), place.length), &transfer.urgent));
  move.on_event = [this, tensor](HopState, const Result<void>& result) {
    end(tensor, "writes of path ");
    residency_->finish_store(tensor, result);
  };
  start(std::move(move));
}

const HostMoves::Transfer& HostMoves::begin(TensorId tensor, const Extent& extent, bool urgent) {
  const TimePoint now = options_.timeline != nullptr ? Clock::steady().now() : TimePoint{};
  return in_flight_.try_emplace(tensor, extent.path, urgent, now).first->second;
}

void HostMoves::hasten(TensorId tensor) {
  Transfer& transfer = in_flight_.at(tensor);
  transfer.urgent.store(true);
  transfers_.hasten(transfer.path, transfer.urgent);
}

void HostMoves::end(TensorId tensor, const char* what) {
  const auto node = in_flight_.extract(tensor);
  if (options_.timeline == nullptr) return;
  const Transfer& transfer = node.mapped();
  const auto& description = store_.description(tensor);
  options_.timeline->add_of_tensor(what + std::to_string(transfer.path), description.name, transfer.begun,
                                   description.size);
}

void HostMoves::start(Move move) {
  transfers_.announce();
  moves_.push_back(std::move(move));
}

void HostMoves::take_moves(std::vector<Move>& moves) {
  std::move(moves_.begin(), moves_.end(), std::back_inserter(moves));
  moves_.clear();
}

Error HostMoves::corrupted(const tiers::TensorDescription& description, std::size_t block) const {
  Error error = Error(ErrorCode::corrupted, "Runtime::acquire")
                    .reason("bytes read back differ from the bytes written")
                    .object(description.name + ", block " + std::to_string(block))
                    .advice("check the drive and its cabling; the run cannot continue with these bytes");
  if (!description.extent) return error;
  return std::move(error)
      .at(description.extent->offset + description.block * block)
      .note("file    " + transfers_.file_name(*description.extent));
}

}  // namespace penstock::swap
