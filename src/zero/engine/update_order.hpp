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
/// the next forward needs first, which is the one with the lowest number. In a backward each gradient is of a flat that
/// is needed sooner than all before it, so that what is next, and is read ahead, changes until keep_first().
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
  /// The flat, if it is known, that is updated after `distance` others of those that take_first() has not removed.
  [[nodiscard]] std::optional<std::size_t> ahead(std::size_t distance) const;
  /// As ahead(), of 64 flats at most; then those whose gradients come next in a backward, which has the flats in
  /// reverse order: a few, because it is a guess.
  [[nodiscard]] std::optional<std::size_t> to_read(std::size_t distance);
  /// The first flat keeps its place from now on. Precondition: ahead(0) is known.
  void keep_first();
  /// Removes the first flat. Precondition: keep_first().
  void take_first() { taken_.pop_front(); }
  /// The flat is updated. Precondition: it was added, and take_first() has removed it.
  void end(std::size_t flat);
  /// After an error: flats that had a place and are not updated wait again, but for those of `has_begun`, which are
  /// first.
  void restart(const std::function<bool(std::size_t flat)>& has_begun);
  /// Whether each flat that was added is updated.
  [[nodiscard]] bool complete() const { return not_updated_ == 0; }
  [[nodiscard]] bool has_gradient(std::size_t flat) const { return has_gradient_[flat]; }

 private:
  enum class State : unsigned char { to_come, waits, taken, updated };

  /// Of the flats that wait and can be updated, the one after `left` others; if there are fewer, `left` becomes smaller
  /// by these.
  [[nodiscard]] std::optional<std::size_t> find_waiting(std::size_t& left) const;
  [[nodiscard]] bool can_be_updated(std::size_t flat) const {
    return !has_gradient_[flat] || is_reduced_(flat);
  }
  /// Whether its gradient is here.
  [[nodiscard]] bool is_known(std::size_t flat) const {
    return states_[flat] > State::waits || (states_[flat] == State::waits && can_be_updated(flat));
  }

  IsReduced is_reduced_;
  std::vector<bool> has_gradient_;  // by flat
  std::vector<State> states_;       // by flat
  std::set<std::size_t> waiting_;   // State::waits
  std::deque<std::size_t> taken_;   // by keep_first(), but for those that take_first() has removed
  std::vector<std::size_t> gradients_to_come_;  // ascending; may hold flats that were taken since
  std::size_t not_updated_ = 0;                 // flats that were added
};

}  // namespace penstock::zero
