#include "tiers/io/sim_file.hpp"

#include "tiers/io/sim_random.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace penstock::tiers {

namespace {

void put(std::span<const std::byte> sectors, std::uint64_t begin, std::vector<std::byte>& bytes) {
  std::copy(sectors.begin(), sectors.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin));
}

}  // namespace

SimFile::SimFile(ByteCount size, bool named, ByteCount& used) : reserved_(size), used_(used), named_(named) {
  grow(size);
  used_ += size;
}

void SimFile::grow(ByteCount size) {
  bytes_.resize(size.value());
  if (named_) changes_.push_back({.size_after = bytes_.size()});
}

void SimFile::write(FileOffset offset, ConstHostSpan bytes) {
  const std::uint64_t end = offset.value() + bytes.size().value();
  if (end > bytes_.size()) bytes_.resize(end);
  const ByteCount more = missing(ByteCount(end));
  reserved_ += more;
  used_ += more;

  if (!named_) {
    std::memcpy(bytes_.data() + offset.value(), bytes.data(), bytes.size().value());
    return;
  }
  Change change{.begin = offset.value() / sector * sector, .size_after = bytes_.size()};
  std::memcpy(bytes_.data() + offset.value(), bytes.data(), bytes.size().value());
  change.sectors.assign(bytes_.begin() + static_cast<std::ptrdiff_t>(change.begin),
                        bytes_.begin() + static_cast<std::ptrdiff_t>(
                                             std::min<std::uint64_t>(round_up(end, sector), bytes_.size())));
  changes_.push_back(std::move(change));
}

SimFile::Changes SimFile::take_changes(std::uint64_t count) {
  Changes taken;
  for (; dropped_count_ < count; ++dropped_count_) {
    taken.push_back(std::move(changes_.front()));
    changes_.pop_front();
  }
  return taken;
}

void SimFile::make_durable(std::uint64_t count) {
  for (const Change& change : take_changes(count)) {
    durable_.resize(std::max(durable_.size(), change.size_after));
    put(change.sectors, change.begin, durable_);
  }
}

void SimFile::lose_some(std::uint64_t count, std::uint64_t& random) {
  Changes changes = take_changes(count);
  const Survival survival = choose_survival(random);
  if (survival == Survival::some) {
    for (std::size_t i = changes.size(); i > 1; --i) {
      std::swap(changes[i - 1], changes[splitmix64_next(random) % i]);
    }
  }
  std::size_t size = durable_.size();
  for (const Change& change : changes) {
    // Length and bytes reach the disk separately: the file may be extended but without its bytes.
    if (survives(survival, random)) size = std::max(size, change.size_after);
    durable_.resize(std::max(durable_.size(), change.size_after));
    const bool torn = survival == Survival::some && splitmix64_next(random) % 2 == 0;
    if (torn) {
      tear(change, random);
    } else if (survives(survival, random)) {
      put(change.sectors, change.begin, durable_);
    }
  }
  durable_.resize(size);
}

void SimFile::tear(const Change& change, std::uint64_t& random) {
  const std::span<const std::byte> sectors(change.sectors);
  for (std::size_t at = 0; at < sectors.size(); at += sector) {
    if (splitmix64_next(random) % 2 == 0) continue;
    put(sectors.subspan(at, std::min<std::size_t>(sector, sectors.size() - at)), change.begin + at, durable_);
  }
}

void SimFile::lose_power(std::uint64_t& random) {
  lose_some(change_count(), random);
  bytes_ = durable_;
}

}  // namespace penstock::tiers
