#include "tiers/io/sim_file.hpp"

#include "tiers/io/sim_random.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::tiers {

SimFile::SimFile(ByteCount size, bool named, ByteCount& used) : reserved_(size), used_(used), named_(named) {
  used_ += size;
  grow(size);
}

void SimFile::grow(ByteCount size) {
  bytes_.resize(size.value());
  if (named_) changes_.push_back({.size_after = bytes_.size()});
}

void SimFile::write(FileOffset offset, ConstHostSpan bytes) {
  const std::uint64_t end = offset.value() + bytes.size().value();
  const ByteCount more = missing(ByteCount(end));
  reserved_ += more;
  used_ += more;
  if (end > bytes_.size()) bytes_.resize(end);

  if (!named_) {
    std::memcpy(bytes_.data() + offset.value(), bytes.data(), bytes.size().value());
    return;
  }
  Change change{.begin = offset.value() / sector * sector, .size_after = bytes_.size()};
  const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(change.begin);
  const auto last = bytes_.begin() + static_cast<std::ptrdiff_t>(
                                         std::min<std::uint64_t>(round_up(end, sector), bytes_.size()));
  change.before.assign(first, last);
  std::memcpy(bytes_.data() + offset.value(), bytes.data(), bytes.size().value());
  change.after.assign(first, last);
  changes_.push_back(std::move(change));
}

void SimFile::make_durable(std::uint64_t count) {
  while (durable_count_ < count) {
    durable_size_ = changes_.front().size_after;
    changes_.pop_front();
    ++durable_count_;
  }
}

void SimFile::put(std::uint64_t begin, const std::vector<std::byte>& sectors) {
  std::copy(sectors.begin(), sectors.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin));
}

void SimFile::lose_power(std::uint64_t& random) {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change)
    put(change->begin, change->before);
  const Survival survival = choose_survival(random);
  if (survival == Survival::some) {
    for (std::size_t i = changes_.size(); i > 1; --i) {
      std::swap(changes_[i - 1], changes_[splitmix64_next(random) % i]);
    }
  }
  std::size_t size = durable_size_;
  for (const Change& change : changes_) {
    // Length and bytes reach the disk separately: the file may be extended but without its bytes.
    if (survives(survival, random)) size = std::max(size, change.size_after);
    const bool torn = survival == Survival::some && splitmix64_next(random) % 2 == 0;
    if (!torn) {
      if (survives(survival, random)) put(change.begin, change.after);
      continue;
    }
    for (std::size_t at = 0; at < change.after.size(); at += sector) {
      if (splitmix64_next(random) % 2 == 0) continue;
      const auto from = change.after.begin() + static_cast<std::ptrdiff_t>(at);
      const auto count = static_cast<std::ptrdiff_t>(std::min<std::size_t>(sector, change.after.size() - at));
      std::copy(from, from + count, bytes_.begin() + static_cast<std::ptrdiff_t>(change.begin + at));
    }
  }
  bytes_.resize(size);
  durable_size_ = size;
  durable_count_ += changes_.size();
  changes_.clear();
}

}  // namespace penstock::tiers
