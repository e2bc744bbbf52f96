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

void SimulatedDisks::begin(const Transfer& transfer, ByteCount bytes) {
  Disk& disk = disks_[transfer.disk];
  insert(transfer.is_load ? disk.loads : disk.stores,
         {transfer, bytes, static_cast<double>(bytes.value()), begun_++});
}

/// Behind the transfer that the disk is about, and an urgent one only behind others of these.
void SimulatedDisks::insert(Queue& queue, const Queued& queued) {
  if (!queued.transfer.urgent || queue.empty()) return queue.push_back(queued);
  const auto place = std::find_if(queue.begin() + 1, queue.end(),
                                  [](const Queued& other) { return !other.transfer.urgent; });
  queue.insert(place, queued);
}

void SimulatedDisks::hasten(tiers::TensorId tensor) {
  for (Disk& disk : disks_) {
    for (Queue* const queue : {&disk.loads, &disk.stores}) {
      const auto found = std::find_if(queue->begin(), queue->end(), [tensor](const Queued& queued) {
        return queued.transfer.tensor == tensor;
      });
      if (found == queue->end() || std::exchange(found->transfer.urgent, true)) continue;
      if (found == queue->begin()) continue;  // the disk is about it
      const Queued queued = *found;
      queue->erase(found);
      insert(*queue, queued);
    }
  }
}

double SimulatedDisks::Disk::load_rate() const {
  return !rates ? never : stores.empty() ? rates->read : rates->mixed / 2;
}

double SimulatedDisks::Disk::store_rate() const {
  return !rates ? never : loads.empty() ? rates->write : rates->mixed / 2;
}

void SimulatedDisks::Disk::pass(double seconds) {
  if (is_idle()) return;
  use.busy += seconds;
  if (!rates) return;
  const double read = load_rate() * seconds, written = store_rate() * seconds;
  if (!loads.empty()) loads.front().left -= read;
  if (!stores.empty()) stores.front().left -= written;
}

std::optional<SimulatedDisks::Next> SimulatedDisks::next() const {
  std::optional<Next> first;
  const auto consider = [&](const Queue& queue, double rate, std::uint32_t disk, bool is_load) {
    if (queue.empty()) return;
    const Next one{queue.front().left / rate, queue.front().number, disk, is_load};
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
  const Transfer ended = queue.front().transfer;
  (first->is_load ? disk.use.read : disk.use.written) += queue.front().bytes;
  queue.pop_front();
  return {.seconds = passed, .ended = ended};
}

bool SimulatedDisks::is_idle() const {
  return std::all_of(disks_.begin(), disks_.end(), [](const Disk& disk) { return disk.is_idle(); });
}

bool SimulatedDisks::loads(tiers::TensorId tensor) const {
  return std::any_of(disks_.begin(), disks_.end(), [&](const Disk& disk) {
    return std::any_of(disk.loads.begin(), disk.loads.end(),
                       [&](const Queued& queued) { return queued.transfer.tensor == tensor; });
  });
}

std::vector<SimulatedDisks::Use> SimulatedDisks::uses() const {
  std::vector<Use> uses;
  for (const Disk& disk : disks_) uses.push_back(disk.use);
  return uses;
}

}  // namespace penstock::swap
