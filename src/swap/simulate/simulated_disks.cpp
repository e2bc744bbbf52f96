#include "swap/simulate/simulated_disks.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace penstock::swap {

namespace {
constexpr double never = std::numeric_limits<double>::infinity();
}  // namespace

SimulatedDisks::SimulatedDisks(std::span<const DiskRates> rates) {
  for (const DiskRates& of_disk : rates)
    disks_.push_back({.rates = of_disk, .loads = {}, .stores = {}, .use = {}});
  if (disks_.empty()) disks_.emplace_back();
}

void SimulatedDisks::Queue::push(const Queued& queued, std::uint64_t turn) {
  if (!current) {
    current = queued;
  } else {
    (queued.transfer.urgent ? urgent : rest).emplace(turn, queued);
  }
}

void SimulatedDisks::Queue::pop() {
  auto& from = urgent.empty() ? rest : urgent;
  current.reset();
  if (from.empty()) return;
  current = from.begin()->second;
  from.erase(from.begin());
}

void SimulatedDisks::begin(const Transfer& transfer, ByteCount bytes) {
  const Place place = {transfer.disk, transfer.is_load, turns_++};
  places_[transfer.tensor] = place;
  queue_of(place).push({transfer, bytes, static_cast<double>(bytes.value()), place.turn}, place.turn);
}

void SimulatedDisks::hasten(tiers::TensorId tensor) {
  const auto found = places_.find(tensor);
  if (found == places_.end()) return;
  Place& place = found->second;
  Queue& queue = queue_of(place);
  auto waiting = queue.rest.extract(place.turn);
  if (waiting.empty()) return;  // it is urgent already, or the disk is about it
  waiting.mapped().transfer.urgent = true;
  waiting.key() = place.turn = turns_++;
  queue.urgent.insert(std::move(waiting));
}

double SimulatedDisks::Disk::load_rate() const {
  return !rates ? never : !stores.current ? rates->read : rates->mixed / 2;
}

double SimulatedDisks::Disk::store_rate() const {
  return !rates ? never : !loads.current ? rates->write : rates->mixed / 2;
}

void SimulatedDisks::Disk::pass(double seconds) {
  if (is_idle()) return;
  use.busy += seconds;
  if (!rates) return;
  const double read = load_rate() * seconds, written = store_rate() * seconds;
  if (loads.current) loads.current->left -= read;
  if (stores.current) stores.current->left -= written;
}

std::optional<SimulatedDisks::Next> SimulatedDisks::next() const {
  std::optional<Next> first;
  const auto consider = [&](const Queue& queue, double rate, std::uint32_t disk, bool is_load) {
    if (!queue.current) return;
    const Next one{queue.current->left / rate, queue.current->number, disk, is_load};
    if (!first || std::tie(one.seconds, one.number) < std::tie(first->seconds, first->number)) first = one;
  };
  for (std::uint32_t i = 0; i < disks_.size(); ++i) {
    consider(disks_[i].loads, disks_[i].load_rate(), i, /*is_load=*/true);
    consider(disks_[i].stores, disks_[i].store_rate(), i, /*is_load=*/false);
  }
  return first;
}

SimulatedDisks::Passed SimulatedDisks::run(double seconds) {
  const std::optional<Next> first = next();
  const double passed = first ? std::min(first->seconds, seconds) : seconds;
  now_ += passed;
  for (Disk& disk : disks_) disk.pass(passed);
  if (!first || first->seconds > seconds) return {.seconds = passed, .ended = {}};
  Disk& disk = disks_[first->disk];
  Queue& queue = first->is_load ? disk.loads : disk.stores;
  const Transfer ended = queue.current->transfer;
  (first->is_load ? disk.use.read : disk.use.written) += queue.current->bytes;
  places_.erase(ended.tensor);
  queue.pop();
  return {.seconds = passed, .ended = ended};
}

bool SimulatedDisks::is_idle() const {
  return std::all_of(disks_.begin(), disks_.end(), [](const Disk& disk) { return disk.is_idle(); });
}

bool SimulatedDisks::loads(tiers::TensorId tensor) const {
  const auto place = places_.find(tensor);
  return place != places_.end() && place->second.is_load;
}

std::vector<SimulatedDisks::Use> SimulatedDisks::uses() const {
  std::vector<Use> uses;
  for (const Disk& disk : disks_) uses.push_back(disk.use);
  return uses;
}

}  // namespace penstock::swap
