#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace penstock::zero {

/// The order in which a step's update takes flats: of those that were added and whose gradient is reduced, the one that
/// the next forward needs first, which is the one with the lowest number. A flat that was taken keeps its place,
/// because its tiles may be read ahead already; only prefer_sooner() puts another one before it.
///
/// begin() and restart() take a time that grows with the number of flats; other calls do not, but for a search among
/// the flats that wait for their reduction.
///
/// Used by one thread.
class UpdateOrder {
 public:
  /// Whether the last gradient of a flat that was added is reduced; once it is, it stays so until the next begin().
  using IsReduced = std::function<bool(std::size_t flat)>;

  explicit UpdateOrder(IsReduced is_reduced) : is_reduced_(std::move(is_reduced)) {}

  /// Begins a step's update, of no flat yet. `has_gradient` by flat: one without is updated without being reduced.
  void begin(std::vector<bool> has_gradient);
  /// Precondition: the flat was not added in this step.
  void add(std::size_t flat);
  /// Takes the flat, if it is known, that is updated after `distance` others of those that take_first() has not
  /// removed.
  [[nodiscard]] std::optional<std::size_t> ahead(std::size_t distance);
  /// As ahead(), and then those whose gradients come next in a backward, which has the flats in reverse order: a few,
  /// because it is a guess. They are not taken.
  [[nodiscard]] std::optional<std::size_t> to_read(std::size_t distance);
  /// Takes a flat that the forward needs sooner than the first one, and puts it before that one. Precondition:
  /// ahead(0) is known.
  void prefer_sooner();
  /// Removes the first flat. Precondition: ahead(0) is known.
  void take_first() { taken_.pop_front(); }
  /// The flat is updated. Precondition: it was added, and take_first() has removed it.
  void end(std::size_t flat);
  /// After an error: flats that were taken and are not updated wait again, but for those of `has_begun`, which are
  /// first.
  void restart(const std::function<bool(std::size_t flat)>& has_begun);
  /// Whether each flat that was added is updated.
  [[nodiscard]] bool complete() const { return not_updated_ == 0; }
  [[nodiscard]] bool has_gradient(std::size_t flat) const { return has_gradient_[flat]; }

 private:
  enum class State : unsigned char { to_come, waits, taken, updated };

  /// Of the flats that wait before number `end`, and can be updated, the first.
  [[nodiscard]] std::optional<std::size_t> find_waiting(std::size_t end) const;
  [[nodiscard]] bool can_be_updated(std::size_t flat) const {
    return !has_gradient_[flat] || is_reduced_(flat);
  }
  void take(std::size_t flat);

  IsReduced is_reduced_;
  std::vector<bool> has_gradient_;              // by flat
  std::vector<State> states_;                   // by flat
  std::set<std::size_t> waiting_;               // State::waits
  std::deque<std::size_t> taken_;               // State::taken, but for those that take_first() has removed
  std::vector<std::size_t> gradients_to_come_;  // ascending; may hold flats that were taken since
  std::size_t not_updated_ = 0;                 // flats that were added
};

}  // namespace penstock::zero
