#pragma once

#include "gpt/host_ops.hpp"
#include "gpt_backend.hpp"

#include <cstring>
#include <deque>
#include <functional>
#include <utility>

namespace gpt::test {

/// Runs nothing until a thread waits for it, so that an operation that relies on immediate execution fails.
class DeferredQueue final : public penstock::HostQueue {
 public:
  void enqueue(std::function<void()> operation, const penstock::OperationCost&) override {
    waiting_.push_back(std::move(operation));
  }
  void wait() {
    for (; !waiting_.empty(); waiting_.pop_front()) waiting_.front()();
  }

 private:
  std::deque<std::function<void()>> waiting_;
};

class EagerQueue final : public penstock::HostQueue {
 public:
  void enqueue(std::function<void()> operation, const penstock::OperationCost&) override { operation(); }
  void wait() {}
};

template <class Queue>
class HostBackend final : public Backend {
 public:
  Ops& ops() override { return *ops_; }
  StreamHandle stream() override { return StreamHandle::of(queue_); }
  DeviceAllocator& allocator() override { return allocator_; }
  void write(std::span<const std::byte> bytes, DeviceSpan to) override {
    queue_.wait();
    std::memcpy(address(to), bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(DeviceSpan from) override {
    queue_.wait();
    return {address(from), address(from) + from.size().value()};
  }

 private:
  static std::byte* address(DeviceSpan span) {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(span.address()));
  }

  HostAllocator allocator_;
  Queue queue_;
  std::unique_ptr<Ops> ops_ =
      make_host_ops(allocator_.allocate(penstock::ByteCount(scratch_elements * 4)).value()).value();
};

}  // namespace gpt::test
