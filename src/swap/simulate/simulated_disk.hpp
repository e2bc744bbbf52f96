#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <deque>
#include <optional>

namespace penstock::swap {

/// Bytes a second of a disk, each above 0.
struct DiskRates {
  double read, write;  ///< while it does nothing else
  double mixed;        ///< of both together, half of it each, while it does both
};

/// The time that loads and stores take on one disk: those of a kind one after the other, both kinds at once. Without
/// rates they take none, and end in their order.
class SimulatedDisk {
 public:
  struct Transfer {
    tiers::TensorId tensor{};
    bool is_load = false;
  };

  explicit SimulatedDisk(const std::optional<DiskRates>& rates) : rates_(rates) {}

  void begin(const Transfer& transfer, ByteCount bytes);
  struct Passed {
    double seconds = 0;             ///< of which now() may be too large a sum to tell
    std::optional<Transfer> ended;  ///< none: it is the seconds that were given
  };
  /// Lets time pass until the next transfer ends, or for `seconds`, if none ends before.
  Passed run(double seconds);

  [[nodiscard]] bool is_idle() const { return loads_.empty() && stores_.empty(); }
  [[nodiscard]] bool loads(tiers::TensorId tensor) const;
  [[nodiscard]] double now() const { return now_; }    ///< seconds since its creation
  [[nodiscard]] double busy() const { return busy_; }  ///< seconds in which it did something

 private:
  struct Queued {
    tiers::TensorId tensor{};
    double left = 0;  // bytes
    std::uint64_t number = 0;
  };

  std::optional<DiskRates> rates_;
  std::deque<Queued> loads_, stores_;
  std::uint64_t begun_ = 0;
  double now_ = 0, busy_ = 0;
};

}  // namespace penstock::swap
