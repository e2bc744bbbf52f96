#pragma once

#include "fake_cuda/fake_cuda.hpp"

#include <gtest/gtest.h>
#include <cstring>
#include <future>
#include <memory>
#include <vector>

namespace penstock::test::fake_cuda {

/// An operation that waits until it is opened.
class Gate {
 public:
  /// Enqueues it.
  explicit Gate(cudaStream_t stream) {
    EXPECT_EQ(enqueue(stream, [opened = opened_] { opened->get_future().wait(); }), cudaSuccess);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }
  void open() {
    if (opened_) opened_->set_value();
    opened_.reset();
  }

 private:
  std::shared_ptr<std::promise<void>> opened_ = std::make_shared<std::promise<void>>();
};

class FakeCuda : public testing::Test {
 protected:
  void SetUp() override { restart(); }
  void TearDown() override { restart(); }

  static cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    return stream;
  }
  /// Gives other streams the time in which they would run what should wait.
  static void let_streams_run() {
    const cudaStream_t stream = make_stream();
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(enqueue(stream, [] {}), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    }
  }
  static cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
  }
  static std::byte* allocate(std::size_t size) {
    void* address = nullptr;
    EXPECT_EQ(cudaMalloc(&address, size), cudaSuccess);
    return static_cast<std::byte*>(address);
  }
};

}  // namespace penstock::test::fake_cuda
