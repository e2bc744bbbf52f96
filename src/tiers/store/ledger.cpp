#include <penstock/tiers/store/ledger.hpp>

#include <algorithm>
#include <array>
#include <mutex>

namespace penstock::tiers {

namespace {
constexpr std::size_t at(Tier tier) {
  return static_cast<std::size_t>(tier);
}
constexpr std::size_t at(Purpose purpose) {
  return static_cast<std::size_t>(purpose);
}
constexpr bool exists(Purpose purpose) {
  return at(purpose) < purpose_count;
}
constexpr bool exists(Tier tier, Purpose purpose) {
  return at(tier) < tier_count && exists(purpose);
}
}  // namespace

struct Ledger::State {
  mutable std::mutex mutex{};
  std::array<std::array<Line, purpose_count>, tier_count> lines{};
  std::array<Traffic, purpose_count> traffic{};
  std::array<ByteCount, tier_count> held{}, peak{};
};

Ledger::Ledger() : state_(std::make_unique<State>()) {}
Ledger::~Ledger() = default;

void Ledger::predict(Tier tier, Purpose purpose, ByteCount bytes) {
  if (!exists(tier, purpose)) return;
  const std::lock_guard lock(state_->mutex);
  state_->lines[at(tier)][at(purpose)].predicted += bytes;
}

void Ledger::predict_traffic(Purpose purpose, ByteCount read, ByteCount written) {
  if (!exists(purpose)) return;
  const std::lock_guard lock(state_->mutex);
  state_->traffic[at(purpose)].predicted_read += read;
  state_->traffic[at(purpose)].predicted_written += written;
}

void Ledger::hold(Tier tier, Purpose purpose, ByteCount bytes) {
  if (!exists(tier, purpose)) return;
  const std::lock_guard lock(state_->mutex);
  Line& line = state_->lines[at(tier)][at(purpose)];
  line.held += bytes;
  line.peak = std::max(line.peak, line.held);
  state_->held[at(tier)] += bytes;
  state_->peak[at(tier)] = std::max(state_->peak[at(tier)], state_->held[at(tier)]);
}

void Ledger::give_back(Tier tier, Purpose purpose, ByteCount bytes) {
  if (!exists(tier, purpose)) return;
  const std::lock_guard lock(state_->mutex);
  Line& line = state_->lines[at(tier)][at(purpose)];
  const ByteCount given = std::min(bytes, line.held);
  line.held -= given;
  state_->held[at(tier)] -= given;
}

void Ledger::read(Purpose purpose, ByteCount bytes) {
  if (!exists(purpose)) return;
  const std::lock_guard lock(state_->mutex);
  state_->traffic[at(purpose)].read += bytes;
}

void Ledger::wrote(Purpose purpose, ByteCount bytes) {
  if (!exists(purpose)) return;
  const std::lock_guard lock(state_->mutex);
  state_->traffic[at(purpose)].written += bytes;
}

Ledger::Line Ledger::line(Tier tier, Purpose purpose) const {
  if (!exists(tier, purpose)) return {};
  const std::lock_guard lock(state_->mutex);
  return state_->lines[at(tier)][at(purpose)];
}

Ledger::Traffic Ledger::traffic(Purpose purpose) const {
  if (!exists(purpose)) return {};
  const std::lock_guard lock(state_->mutex);
  return state_->traffic[at(purpose)];
}

ByteCount Ledger::peak(Tier tier) const {
  if (at(tier) >= tier_count) return {};
  const std::lock_guard lock(state_->mutex);
  return state_->peak[at(tier)];
}

Ledger::Traffic Ledger::traffic() const {
  const std::lock_guard lock(state_->mutex);
  Traffic total;
  for (const Traffic& one : state_->traffic) {
    total.read += one.read;
    total.written += one.written;
    total.predicted_read += one.predicted_read;
    total.predicted_written += one.predicted_written;
  }
  return total;
}

}  // namespace penstock::tiers
