#include "zero/layout/order_of_use.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace penstock::zero {

namespace {
constexpr std::uint64_t predicted_max = 1 << 20;  // uses
}  // namespace

OrderOfUse::OrderOfUse(const ShardLayout& shards, std::vector<std::uint32_t> units)
    : shards_(shards), uses_(shards.flats().size()), predicted_for_step_(units), expected_(units.size()) {
  predict(std::move(units));
}

void OrderOfUse::predict(std::vector<std::uint32_t> units) {
  predicted_ = std::move(units);
  for (auto& uses : uses_) uses.clear();
  for (std::size_t i = 0; i < predicted_.size(); ++i) {
    for (const std::uint32_t flat : shards_.needed_by(predicted_[i])) uses_[flat].push_back(i);
  }
}

OrderOfUse::Noted OrderOfUse::note(std::uint32_t unit) {
  Noted use{
      .acquiring_before = std::exchange(acquiring_, unit), .order_before = {}, .was_expected = is_expected_};
  use.repeated = use.acquiring_before == unit;
  if (use.repeated) return use;
  recorded_.push_back(unit);
  const bool ends = position_ >= predicted_.size();
  const bool is_another = !ends && predicted_[position_] != unit;
  if (is_another || (ends && predicted_.size() < predicted_max)) is_expected_ = false;
  if (is_another) {  // an order that differs from the prediction is followed from the next step on
    use.order_before = predicted_;
    predict({});
  }
  ++position_;
  return use;
}

void OrderOfUse::undo(Noted use) {
  if (use.repeated) return;
  acquiring_ = use.acquiring_before;
  recorded_.pop_back();
  --position_;
  is_expected_ = use.was_expected;
  if (use.order_before) predict(std::move(*use.order_before));
}

std::optional<std::uint32_t> OrderOfUse::next(std::size_t distance) const {
  if (position_ + distance >= predicted_.size()) return std::nullopt;
  return predicted_[position_ + distance];
}

std::uint64_t OrderOfUse::uses_until_needed(std::uint32_t flat) const {
  const auto& uses = uses_[flat];
  const auto next = std::lower_bound(uses.begin(), uses.end(), position_);
  return next == uses.end() ? std::numeric_limits<std::uint64_t>::max() : *next - position_;
}

std::vector<bool> OrderOfUse::needed_within(ElementCount distance, std::uint32_t first) const {
  std::vector<bool> needed(shards_.flats().size());
  ElementCount used;
  const auto use = [&](std::uint32_t unit) {
    for (const std::uint32_t flat : shards_.needed_by(unit)) {
      needed[flat] = true;
      used += shards_.flats()[flat].length;
    }
  };
  use(first);
  for (std::size_t i = position_; i < predicted_.size() && used < distance; ++i) use(predicted_[i]);
  return needed;
}

void OrderOfUse::forget_uses() {
  recorded_.clear();
  position_ = 0;
  predict(predicted_for_step_);
}

void OrderOfUse::expect(std::vector<std::uint32_t> units) {
  expected_ = units.size();
  const bool repeats = repeats_ && expected_ == expected_before_ && predicted_.size() <= predicted_max;
  is_expected_ = predicted_ == units;
  if (is_expected_ || repeats || predicted_.size() == expected_) return;
  is_expected_ = true;
  predict(std::move(units));
}

void OrderOfUse::end_step() {
  repeats_ = !recorded_.empty() && recorded_ == predicted_for_step_ && expected_ == expected_before_;
  expected_before_ = expected_;
  is_expected_ = is_expected_ && recorded_.size() >= expected_;
  predicted_for_step_ = recorded_;
  predict(std::exchange(recorded_, {}));
  position_ = 0;
}

void OrderOfUse::restart(std::vector<std::uint32_t> units) {
  recorded_.clear();
  position_ = 0;
  acquiring_.reset();
  expected_ = units.size();
  expected_before_ = 0;
  repeats_ = false;
  is_expected_ = true;
  predicted_for_step_ = units;
  predict(std::move(units));
}

std::uint32_t unit_at(std::uint64_t i, std::uint64_t units) {
  const std::uint64_t place = i % (2 * units);
  return static_cast<std::uint32_t>(place < units ? place : 2 * units - 1 - place);
}

std::vector<std::uint32_t> unit_order(std::size_t units, std::uint32_t micro_batches) {
  const std::uint64_t one = 2 * units, all = one * micro_batches;
  std::vector<std::uint32_t> order(std::min(all, std::max(one, predicted_max)));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = unit_at(i, units);
  return order;
}

std::vector<std::uint32_t> order_with_recomputation(std::uint32_t units, std::uint32_t together) {
  std::vector<std::uint32_t> order(units);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint32_t end = units; end > 0;) {
    const std::uint32_t begin = (end - 1) / together * together;
    for (std::uint32_t unit = begin; unit + 1 < end; ++unit) order.push_back(unit);
    while (end > begin) order.push_back(--end);
  }
  return order;
}

}  // namespace penstock::zero
