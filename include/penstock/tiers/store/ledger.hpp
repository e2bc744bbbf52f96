#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/tier.hpp>

#include <array>
#include <mutex>

namespace penstock::tiers {

/// Counts bytes by tier and purpose: held now, peak, predicted peak, and disk traffic with its prediction. Estimator,
/// planner and runtime share it, so that a report can print predicted and actual values side by side.
///
/// Safe from any thread. Does not block.
class Ledger {
 public:
  struct Line {
    ByteCount predicted;  ///< the planner's prediction of `peak`
    ByteCount held;       ///< held now
    ByteCount peak;       ///< the most that was held at one time
  };
  struct Traffic {
    ByteCount read, written;
    ByteCount predicted_read, predicted_written;
  };

  void predict(Tier tier, Purpose purpose, ByteCount bytes);
  void predict_traffic(Purpose purpose, ByteCount read, ByteCount written);
  void hold(Tier tier, Purpose purpose, ByteCount bytes);
  void give_back(Tier tier, Purpose purpose, ByteCount bytes);
  /// Counts bytes that were read from or written to the disk.
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
