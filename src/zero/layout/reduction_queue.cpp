#include "zero/layout/reduction_queue.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>

namespace penstock::zero {

void ReductionQueue::add(std::uint32_t flat, Size size) {
  expect(size);
  if (!has_open()) buckets_.emplace_back();
  Bucket& bucket = buckets_.back();
  bucket.flats.push_back(flat);
  bucket.size += size;
  if (bucket.size.elements >= elements_enough || bucket.flats.size() == flats_max) close_bucket();
}

void ReductionQueue::expect(Size size) {
  if (!has_open()) return;
  Size all = buckets_.back().size;
  all += size;
  if (all.elements > max_.elements || all.bytes > max_.bytes) close_bucket();
}

void ReductionQueue::close_bucket() {
  if (has_open()) buckets_.back().state = Bucket::State::closed;
}

const ReductionQueue::Bucket* ReductionQueue::first_closed() const {
  const auto closed = std::find_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) {
    return bucket.state == Bucket::State::closed;
  });
  return closed == buckets_.end() ? nullptr : &*closed;
}

std::span<const std::uint32_t> ReductionQueue::closed() const {
  const Bucket* const bucket = first_closed();
  return bucket == nullptr ? std::span<const std::uint32_t>() : bucket->flats;
}

void ReductionQueue::start() {
  for (Bucket& bucket : buckets_) {
    if (bucket.state != Bucket::State::closed) continue;
    bucket.state = Bucket::State::reducing;
    return;
  }
}

bool ReductionQueue::is_reducing() const {
  return !buckets_.empty() && buckets_.front().state == Bucket::State::reducing;
}

bool ReductionQueue::holds(std::uint32_t flat) const {
  return std::any_of(buckets_.begin(), buckets_.end(), [flat](const Bucket& bucket) {
    return std::find(bucket.flats.begin(), bucket.flats.end(), flat) != bucket.flats.end();
  });
}

void ReductionQueue::remove_oldest() {
  PENSTOCK_CHECK(is_reducing());
  std::vector<std::uint32_t>& flats = buckets_.front().flats;
  flats.erase(flats.begin());
  if (flats.empty()) buckets_.pop_front();
}

void ReductionQueue::append_to(std::vector<std::uint64_t>& places) const {
  for (const Bucket& bucket : buckets_) {
    places.insert(places.end(), bucket.flats.begin(), bucket.flats.end());
    places.push_back(~std::uint64_t{});
  }
}

}  // namespace penstock::zero
