#pragma once

#include <penstock/base/stream.hpp>

#include <vector>

namespace penstock::test {

/// A HostQueue that runs its operations on request.
class DeferredQueue : public HostQueue {
 public:
  void enqueue(std::function<void()> operation, const OperationCost&) override {
    operations_.push_back(std::move(operation));
  }
  [[nodiscard]] std::size_t waiting() const { return operations_.size(); }
  void run() {
    for (const auto& operation : operations_) operation();
    operations_.clear();
  }

 private:
  std::vector<std::function<void()>> operations_;
};

}  // namespace penstock::test
