#include <penstock/base/check.hpp>
#include <penstock/tiers/store/ledger.hpp>

#include <algorithm>

namespace penstock::tiers {

namespace {
constexpr std::size_t at(Tier tier) {
  return static_cast<std::size_t>(tier);
}
constexpr std::size_t at(Purpose purpose) {
  return static_cast<std::size_t>(purpose);
}
}  // namespace

void Ledger::predict(Tier tier, Purpose purpose, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  lines_[at(tier)][at(purpose)].predicted += bytes;
}

void Ledger::predict_traffic(Purpose purpose, ByteCount read, ByteCount written) {
  const std::lock_guard lock(mutex_);
  traffic_[at(purpose)].predicted_read += read;
  traffic_[at(purpose)].predicted_written += written;
}

void Ledger::hold(Tier tier, Purpose purpose, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  Line& line = lines_[at(tier)][at(purpose)];
  line.held += bytes;
  line.peak = std::max(line.peak, line.held);
  held_[at(tier)] += bytes;
  peak_[at(tier)] = std::max(peak_[at(tier)], held_[at(tier)]);
}

void Ledger::give_back(Tier tier, Purpose purpose, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  Line& line = lines_[at(tier)][at(purpose)];
  PENSTOCK_CHECK(bytes <= line.held);
  line.held -= bytes;
  held_[at(tier)] -= bytes;
}

void Ledger::read(Purpose purpose, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  traffic_[at(purpose)].read += bytes;
}

void Ledger::wrote(Purpose purpose, ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  traffic_[at(purpose)].written += bytes;
}

Ledger::Line Ledger::line(Tier tier, Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  return lines_[at(tier)][at(purpose)];
}

Ledger::Traffic Ledger::traffic(Purpose purpose) const {
  const std::lock_guard lock(mutex_);
  return traffic_[at(purpose)];
}

ByteCount Ledger::peak(Tier tier) const {
  const std::lock_guard lock(mutex_);
  return peak_[at(tier)];
}

Ledger::Traffic Ledger::traffic() const {
  const std::lock_guard lock(mutex_);
  Traffic total;
  for (const Traffic& one : traffic_) {
    total.read += one.read;
    total.written += one.written;
    total.predicted_read += one.predicted_read;
    total.predicted_written += one.predicted_written;
  }
  return total;
}

}  // namespace penstock::tiers
