#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/tier.hpp>

#include <array>
#include <mutex>

namespace penstock::tiers {

/// Every byte, by tier and purpose: how many are held now, how many were held at most, how many were
/// predicted, and how many crossed to and from the disk. Estimator, planner and runtime share it, so that a
/// report can show predicted beside actual.
///
/// Safe from any thread; nothing blocks.
class Ledger {
 public:
  struct Line {
    ByteCount predicted;  ///< what the planner said would be held at most
    ByteCount held;       ///< held now
    ByteCount peak;       ///< held at most
  };
  struct Traffic {
    ByteCount read, written;
    ByteCount predicted_read, predicted_written;
  };

  void predict(Tier tier, Purpose purpose, ByteCount bytes);
  void predict_traffic(Purpose purpose, ByteCount read, ByteCount written);
  void hold(Tier tier, Purpose purpose, ByteCount bytes);
  void give_back(Tier tier, Purpose purpose, ByteCount bytes);
  /// Bytes that a read from, or a write to, the disk has moved.
  void read(Purpose purpose, ByteCount bytes);
  void wrote(Purpose purpose, ByteCount bytes);

  [[nodiscard]] Line line(Tier tier, Purpose purpose) const;
  [[nodiscard]] Traffic traffic(Purpose purpose) const;
  /// The most that was held at one time in `tier`, over all purposes.
  [[nodiscard]] ByteCount peak(Tier tier) const;
  /// Totals over all purposes.
  [[nodiscard]] Traffic traffic() const;

 private:
  mutable std::mutex mutex_;
  std::array<std::array<Line, purpose_count>, tier_count> lines_{};
  std::array<Traffic, purpose_count> traffic_{};
  std::array<ByteCount, tier_count> held_{}, peak_{};
};

}  // namespace penstock::tiers
