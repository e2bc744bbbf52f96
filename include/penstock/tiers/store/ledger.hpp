#pragma once

#include <penstock/base/units.hpp>
#include <penstock/tiers/tier.hpp>

#include <memory>

namespace penstock::tiers {

/// Counts bytes by tier and purpose: held now, peak, predicted peak, and disk traffic with its prediction. Estimator,
/// planner and runtime share it, so that a report can print predicted and actual values side by side.
///
/// Safe from any thread. Does not block. Ignores bytes of a tier or purpose that does not exist.
///
///     Ledger ledger;
///     ledger.hold(Tier::host, Purpose::optimizer_tile, 64_MiB);
///     ledger.line(Tier::host, Purpose::optimizer_tile).peak;      // 64 MiB, also after give_back()
class Ledger {
 public:
  Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

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
  /// Bytes beyond those that are held are ignored.
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
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::tiers
