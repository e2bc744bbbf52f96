#include "zero/comm/process/peer_mesh.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace penstock::zero {

PeerMesh::PeerMesh(std::uint32_t rank, std::uint32_t ranks, std::unique_ptr<PeerPipes> pipes)
    : rank_(rank), interests_(ranks), pipes_(std::move(pipes)) {
  for (std::uint32_t r = 0; r < ranks; ++r) peers_.push_back({.link = PeerLink(rank, r), .end = {}});
}

template <class Condition>
std::vector<std::uint32_t> PeerMesh::ranks_where(const Condition& condition) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != rank_ && condition(peers_[r].link)) ranks.push_back(r);
  }
  return ranks;
}

// The link of this rank has nothing to do.
bool PeerMesh::is_done() const {
  return !refused_ &&
         std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.link.is_done(); });
}

bool PeerMesh::is_interrupted() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.link.is_interrupted(); });
}

std::vector<std::uint32_t> PeerMesh::missing() const {
  auto silent = ranks_where([](const PeerLink& link) {
    return link.is_interrupted() || (!link.is_done() && !link.peer_has_begun());
  });
  if (!silent.empty()) return silent;
  return ranks_where([](const PeerLink& link) { return !link.is_done(); });
}

Result<void> PeerMesh::begin(std::span<const LinkOperation> operations) {
  refused_ = error_.has_value();
  if (error_) return *error_;
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    if (r == rank_) continue;
    if (auto begun = peers_[r].link.begin(operations[r]); !begun) error_ = begun.error();
  }
  if (error_) return *error_;
  return ok();
}

void PeerMesh::interrupt(std::uint64_t epoch) {
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    if (r != rank_) peers_[r].link.interrupt(epoch);
  }
}

Result<bool> PeerMesh::advance() {
  if (error_) return *error_;
  auto moved = move();
  if (!moved) error_ = moved.error();
  return moved;
}

Result<bool> PeerMesh::move() {
  bool any = false;
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[r];
    for (const auto part : {&PeerMesh::write, &PeerMesh::read}) {
      PENSTOCK_TRY_ASSIGN(const std::size_t count, (this->*part)(r));
      any |= count > 0;
    }
    // Not before what it had sent was read. A peer that has done its part may leave.
    if (peer.end && peer.is_needed()) return *peer.end;
  }
  return any;
}

Result<std::size_t> PeerMesh::write(std::uint32_t r) {
  auto& [link, end] = peers_[r];
  const ConstHostSpan bytes = end ? ConstHostSpan() : link.to_write();
  if (bytes.empty()) return std::size_t{0};
  PENSTOCK_TRY_ASSIGN(const std::size_t count, pipes_->write(r, bytes));
  link.wrote(count);
  return count;
}

Result<std::size_t> PeerMesh::read(std::uint32_t r) {
  auto& [link, end] = peers_[r];
  const HostSpan bytes = end ? HostSpan() : link.to_read();
  if (bytes.empty()) return std::size_t{0};
  const auto count = pipes_->read(r, bytes);
  if (!count) {
    end = count.error();
    return std::size_t{0};
  }
  if (*count > 0) PENSTOCK_TRY(link.read(*count));
  return *count;
}

void PeerMesh::wait(TimePoint at_most) noexcept {
  for (std::uint32_t r = 0; r < peers_.size(); ++r) {
    auto& [link, end] = peers_[r];
    const bool open = r != rank_ && !end && !error_;
    interests_[r] = {.write = open && !link.to_write().empty(), .read = open && !link.to_read().empty()};
  }
  pipes_->wait(interests_, at_most);
}

}  // namespace penstock::zero
