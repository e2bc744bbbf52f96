#pragma once

#include "kit/cluster.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace penstock::zero::test {

/// The states of all ranks, as a trainer saves them: by parameter, without units' flats or padding. Its members may be
/// called by the threads of several ranks.
class SavedStates {
 public:
  using Key = std::pair<ParameterId, cpu_adam::StateKind>;

  explicit SavedStates(ModelLayout model) : model_(std::move(model)) {}

  Result<void> save(Engine& engine) {
    return engine.read_states([this](ParameterId id, cpu_adam::StateKind kind, std::uint64_t first,
                                     std::span<const float> values) -> Result<void> {
      const std::scoped_lock lock(mutex_);
      auto& state = states_[{id, kind}];
      state.resize(model_.parameter(id).count.value(), not_written);
      std::copy(values.begin(), values.end(), state.begin() + static_cast<std::ptrdiff_t>(first));
      written_ += values.size();
      return ok();
    });
  }
  Result<void> restore(Engine& engine, std::uint64_t step) const {
    return engine.restore(step,
                          [this](ParameterId id, cpu_adam::StateKind kind, std::uint64_t first,
                                 std::span<float> values) -> Result<void> {
                            const std::scoped_lock lock(mutex_);
                            const auto& state = states_.at({id, kind});
                            longest_restored_ = std::max(longest_restored_, values.size());
                            std::copy_n(state.begin() + static_cast<std::ptrdiff_t>(first), values.size(),
                                        values.begin());
                            return ok();
                          });
  }

  [[nodiscard]] const std::map<Key, std::vector<float>>& states() const { return states_; }
  [[nodiscard]] const std::vector<float>& of(ParameterId id, cpu_adam::StateKind kind) const {
    return states_.at({id, kind});
  }
  [[nodiscard]] std::uint64_t written() const { return written_; }
  [[nodiscard]] std::size_t longest_restored() const { return longest_restored_; }
  bool operator==(const SavedStates& other) const { return states_ == other.states_; }

 private:
  static constexpr float not_written = -7;

  const ModelLayout model_;
  mutable std::mutex mutex_;
  mutable std::size_t longest_restored_ = 0;
  std::map<Key, std::vector<float>> states_;
  std::uint64_t written_ = 0;
};

/// The run, stopped after half of its steps, and continued from the states that `saved` gets.
inline RunResult train_in_two_parts(const RunOptions& whole, SavedStates& saved) {
  RunOptions first = whole, second = whole;
  second.first_step = first.steps = whole.steps / 2;
  first.after_steps = [&](Engine& engine) { return saved.save(engine); };
  if (RunResult result = train(first); result.error) return result;
  second.restore = [&](Engine& engine) { return saved.restore(engine, second.first_step); };
  return train(second);
}

}  // namespace penstock::zero::test
