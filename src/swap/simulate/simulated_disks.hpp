#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace penstock::swap {

/// Bytes a second of a disk, each above 0.
struct DiskRates {
  double read, write;  ///< while it does nothing else
  double mixed;        ///< of both together, half of it each, while it does both
};

/// Those of a disk that is `factor` times as fast.
[[nodiscard]] inline DiskRates scaled(const DiskRates& rates, double factor) {
  return {.read = rates.read * factor, .write = rates.write * factor, .mixed = rates.mixed * factor};
}

/// The time that loads and stores take on disks, which work at the same time: on each, those of a kind one after the
/// other, the urgent ones first, both kinds at once. Without rates there is one disk, whose transfers take no time.
class SimulatedDisks {
 public:
  struct Transfer {
    tiers::TensorId tensor{};
    std::uint32_t disk = 0;
    bool is_load = false;
    bool urgent = false;  ///< goes before those that are not
  };
  /// What a disk has done since its creation.
  struct Use {
    ByteCount read, written;  ///< by transfers that have ended
    double busy = 0;          ///< seconds in which it did something
  };

  /// A disk for each of `rates`.
  explicit SimulatedDisks(std::span<const DiskRates> rates);

  /// Of a tensor that has none.
  void begin(const Transfer& transfer, ByteCount bytes);
  /// The tensor's transfer, if it has one, is urgent.
  void hasten(tiers::TensorId tensor);
  struct Passed {
    double seconds = 0;             ///< of which now() may be too large a sum to tell
    std::optional<Transfer> ended;  ///< none: it is the seconds that were given
  };
  /// Lets time pass until the next transfer ends, or for `seconds`, if none ends before.
  Passed run(double seconds);

  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] bool loads(tiers::TensorId tensor) const;
  [[nodiscard]] double now() const { return now_; }  ///< seconds since its creation
  [[nodiscard]] std::vector<Use> uses() const;       ///< by disk

 private:
  struct Queued {
    Transfer transfer;
    ByteCount bytes;
    double left = 0;           // of them
    std::uint64_t number = 0;  // in the order of begin()
  };
  /// The loads or the stores of a disk.
  struct Queue {
    std::optional<Queued> current;                 // what the disk is about
    std::map<std::uint64_t, Queued> urgent, rest;  // that follow, in the order of their coming here

    void push(const Queued& queued, std::uint64_t turn);
    void pop();
  };
  /// Where a tensor's transfer is.
  struct Place {
    std::uint32_t disk = 0;
    bool is_load = false;
    std::uint64_t turn = 0;  // in the maps of the queue
  };
  struct Disk {
    std::optional<DiskRates> rates;
    Queue loads, stores;
    Use use;

    [[nodiscard]] bool is_idle() const { return !loads.current && !stores.current; }
    [[nodiscard]] double load_rate() const;
    [[nodiscard]] double store_rate() const;
    void pass(double seconds);
  };
  /// The transfer that ends first, and the seconds until then.
  struct Next {
    double seconds;
    std::uint64_t number = 0;
    std::uint32_t disk = 0;
    bool is_load = false;
  };
  [[nodiscard]] std::optional<Next> next() const;
  [[nodiscard]] Queue& queue_of(const Place& place) {
    return place.is_load ? disks_[place.disk].loads : disks_[place.disk].stores;
  }

  std::vector<Disk> disks_;
  std::unordered_map<tiers::TensorId, Place> places_;
  std::uint64_t turns_ = 0;
  double now_ = 0;
};

}  // namespace penstock::swap
