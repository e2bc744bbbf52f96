#pragma once

#include <penstock/base/units.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace penstock::zero {

/// Flats whose full gradient is complete and holds memory, oldest first, in buckets that are reduced by one collective
/// each: buckets that are being reduced, then closed ones, then the open one, which takes more flats.
///
/// Owned by one thread.
class ReductionQueue {
 public:
  /// Elements with which a bucket is closed, whatever its limit is: a larger one gains no bandwidth, and delays the
  /// copies of its gradients to host memory.
  static constexpr ElementCount elements_enough{1 << 24};
  /// Each flat is sent to and received from every peer, in one group: of at most 2048 calls, as older versions of NCCL
  /// document it, with Compute::mean_inputs_max ranks.
  static constexpr std::size_t flats_max = 16;

  struct Size {
    ElementCount elements;
    ByteCount bytes;  ///< of memory

    Size& operator+=(const Size& other) {
      elements += other.elements;
      bytes += other.bytes;
      return *this;
    }
  };
  /// What a bucket of several flats has at most.
  explicit ReductionQueue(Size bucket_max) : max_(bucket_max) {}

  /// The flat's gradient is complete. Closes the open bucket first if it has no room for it.
  void add(std::uint32_t flat, Size size);
  /// Flats of `size` are added next: closes the open bucket if it has no room for all of them. Its reduction need not
  /// wait for them.
  void expect(Size size);
  void close_bucket();

  /// The oldest closed bucket; empty, if there is none.
  [[nodiscard]] std::span<const std::uint32_t> closed() const;
  /// The bucket closed() is being reduced.
  void start();

  [[nodiscard]] bool empty() const { return buckets_.empty(); }
  [[nodiscard]] bool is_reducing() const;
  [[nodiscard]] bool holds(std::uint32_t flat) const;
  /// The flat that has been reduced for longest. Precondition: is_reducing().
  [[nodiscard]] std::uint32_t oldest() const { return buckets_.front().flats.front(); }
  /// Whether its bucket is followed by another one, so that it has most likely been reduced.
  [[nodiscard]] bool has_younger() const { return is_reducing() && buckets_.size() > 1; }
  void remove_oldest();
  void clear() { buckets_.clear(); }

  /// Flats and the ends of buckets, for comparisons.
  void append_to(std::vector<std::uint64_t>& places) const;

 private:
  struct Bucket {
    enum class State : std::uint8_t { open, closed, reducing } state = State::open;
    std::vector<std::uint32_t> flats;
    Size size;
  };
  [[nodiscard]] bool has_open() const {
    return !buckets_.empty() && buckets_.back().state == Bucket::State::open;
  }
  [[nodiscard]] const Bucket* first_closed() const;

  const Size max_;
  std::deque<Bucket> buckets_;
};

}  // namespace penstock::zero
