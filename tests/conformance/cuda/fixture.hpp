#pragma once

#include "kernels.hpp"
#include "runtime_under_test.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

// What CUDA does, as the library (src/tiers/device, src/base/cuda, kernels) and tests/fake_cuda assume it. Each test
// names one rule and asserts it with NVIDIA's runtime on a GPU, and with the fake runtime on any machine. A test that
// fails only on the GPU shows an error of the fake, which must never be kinder than CUDA.
//
// Documentation, of CUDA 13:
//   Runtime API: "API synchronization behavior", "Stream synchronization behavior", and the functions in "Device
//     Management", "Error Handling", "Stream Management", "Event Management", "Execution Control", "Memory Management"
//     and "Data types used by CUDA Runtime" (cudaError).
//   Driver API: cuMemcpyAsync (ranges partly registered), "Primary Context Management".
//   Programming Guide: "Error Checking", "Multi-Device System" ("Stream and Event Behavior"), "Lazy Loading".
//
// Not asserted, because CUDA leaves it undefined or to the device; the fake refuses all of it: calls with a handle that
// was destroyed, registrations that share a page, copies whose direction is not that of their addresses, kernels that
// access registered or pageable host memory, or that leave their allocation but not the pages that CUDA has mapped.
namespace penstock::test::cuda_semantics {

using std::chrono::milliseconds;

/// Holds a stream: what is enqueued after it waits until release(). After ten seconds it releases itself, and the test
/// fails. Only one at a time: CUDA may run host functions of different streams one after the other.
class Hold {
 public:
  explicit Hold(cudaStream_t stream) {
    EXPECT_EQ(enqueue(stream, [state = state_] { state->wait(); }), cudaSuccess);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() {
    release();
    if (later_.joinable()) later_.join();
    const std::lock_guard lock(state_->mutex);
    EXPECT_FALSE(state_->expired) << "a call or an operation waited for a stream that was held";
  }

  void release() { state_->release(); }
  /// For a call that may wait for the stream.
  void release_after(milliseconds delay) {
    later_ = std::thread([state = state_, delay] {
      std::this_thread::sleep_for(delay);
      state->release();
    });
  }
  [[nodiscard]] bool holds() const {
    const std::lock_guard lock(state_->mutex);
    return !state_->released && !state_->expired;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool released = false, expired = false;

    void wait() {
      std::unique_lock lock(mutex);
      expired = !changed.wait_for(lock, std::chrono::seconds(10), [this] { return released; });
    }
    void release() {
      const std::lock_guard lock(mutex);
      released = true;
      changed.notify_all();
    }
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread later_;
};

/// Pages of host memory, zeroed.
class Pages {
 public:
  explicit Pages(std::size_t count)
      : size_(count * page_size()),
        data_(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    for (void* const address : registered_) {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(cudaHostUnregister(address), cudaSuccess);
    }
    ::munmap(data_, size_);
  }

  [[nodiscard]] static std::size_t page_size() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
  [[nodiscard]] std::byte* page(std::size_t number) const {
    return static_cast<std::byte*>(data_) + number * page_size();
  }
  [[nodiscard]] unsigned* words() const { return static_cast<unsigned*>(data_); }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Until this object ends.
  void register_pages(std::size_t first, std::size_t count) {
    ASSERT_EQ(cudaHostRegister(page(first), count * page_size(), cudaHostRegisterPortable), cudaSuccess);
    registered_.push_back(page(first));
  }

 private:
  const std::size_t size_;
  void* const data_;
  std::vector<void*> registered_;
};

/// Skips where there is no device. Makes no other CUDA call, so that a test can be the first to make one.
class CudaProcess : public testing::Test {
 protected:
  void SetUp() override {
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
  }
  /// Runs `body` in a new process that has made no CUDA call but SetUp()'s, and expects that nothing fails there. CUDA
  /// does not survive a fork, and errors that stay end with their process.
  static void expect_in_new_process(const std::function<void()>& body) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // executes the program again, up to here
    EXPECT_EXIT(
        {
          ::alarm(60);
          body();
          std::_Exit(HasFailure() ? 1 : 0);
        },
        testing::ExitedWithCode(0), "");
  }
  [[nodiscard]] static cudaDeviceProp properties(int device) {
    cudaDeviceProp found{};
    EXPECT_EQ(cudaGetDeviceProperties(&found, device), cudaSuccess);
    return found;
  }

  int devices = 0;
};

/// Uses device 0.
class CudaSemantics : public CudaProcess {
 protected:
  void SetUp() override {
    CudaProcess::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    cudaFuncAttributes attributes{};
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, write_kernel()), cudaSuccess);
  }
  void TearDown() override {
    if (devices == 0) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const cudaEvent_t event : events_) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    for (const cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    for (void* const memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error that the test did not read";
  }

  /// On the current device; destroyed after the test.
  cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
    streams_.push_back(new_stream(flags));
    return streams_.back();
  }
  cudaEvent_t make_event() {
    events_.push_back(new_event());
    return events_.back();
  }
  unsigned* allocate(std::size_t bytes = sizeof(unsigned)) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    memory_.push_back(memory);
    return static_cast<unsigned*>(memory);
  }
  /// The test destroys them.
  static cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    return stream;
  }
  static cudaEvent_t new_event() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
  }

  /// Enqueues a kernel that writes to device memory.
  static void write(unsigned* to, unsigned value, cudaStream_t stream) {
    launch_write(to, value, stream);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  /// Enqueues the copy of a word to registered memory.
  static void copy_out(unsigned* host, const unsigned* device, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(host, device, sizeof *host, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  }
  /// A word of device memory, after all operations.
  static unsigned value(const unsigned* device) {
    unsigned word = 0;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(&word, device, sizeof word, cudaMemcpyDeviceToHost), cudaSuccess);
    return word;
  }
  static cudaEvent_t recorded(cudaEvent_t event, cudaStream_t stream) {
    EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    return event;
  }
  /// Whether the event is still pending after the time in which streams that do not wait run. Reads the last error.
  static bool stays_pending(cudaEvent_t event) {
    std::this_thread::sleep_for(milliseconds(20));
    const cudaError_t state = cudaEventQuery(event);
    (void)cudaGetLastError();
    return state == cudaErrorNotReady;
  }

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<void*> memory_;
};

/// For tests of several devices.
class CudaDevicesSemantics : public CudaSemantics {
 protected:
  void SetUp() override {
    CudaSemantics::SetUp();
    if (!IsSkipped() && devices < 2) GTEST_SKIP() << "it needs two CUDA devices, and there is one";
  }
  void TearDown() override {
    if (devices > 1) {
      EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    }
    CudaSemantics::TearDown();
  }
};

}  // namespace penstock::test::cuda_semantics
