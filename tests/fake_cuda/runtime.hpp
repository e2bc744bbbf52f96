#pragma once

#include "fake_cuda/device_memory.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "kit/seeded_random.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

namespace penstock::test::fake_cuda {

class Stream;

/// Reached when the stream has run that many operations.
struct Point {
  std::shared_ptr<const Stream> stream;
  std::uint64_t number = 0;

  [[nodiscard]] bool reached() const;
  void wait(std::unique_lock<std::mutex>& lock) const;
};

/// A queue of operations and the thread that runs them. Runtime::mutex guards it.
class Stream {
 public:
  /// Returns the error that destroys the context, if there is one.
  using Operation = std::function<cudaError_t()>;

  /// Of device `device`. A blocking stream takes part in the order of the default stream, which is one too.
  Stream(int device, bool blocking, const std::optional<std::uint64_t>& seed);

  void append(Operation run, std::vector<Point> after);
  /// Runs operations until the stream is closed and none is left. The body of its thread.
  void run();
  void close();
  /// Waits until it has run so many operations.
  void wait(std::unique_lock<std::mutex>& lock, std::uint64_t number) const;

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] bool blocking() const { return blocking_; }
  [[nodiscard]] std::uint64_t enqueued() const { return enqueued_; }
  [[nodiscard]] std::uint64_t done() const { return done_; }

 private:
  struct Entry {
    Operation run;
    std::vector<Point> after;
  };
  void pause();

  const int device_;
  const bool blocking_;
  std::optional<SeededRandom> random_;
  bool slow_ = false;
  bool closed_ = false;
  std::uint64_t enqueued_ = 0, done_ = 0;
  std::deque<Entry> queue_;
  // One condition each: a machine has many streams, and most changes concern one of them.
  std::condition_variable appended_;
  mutable std::condition_variable passed_;
};

struct Event {
  int device = 0;
  bool timed = false;
  Point last{};  ///< record
  /// When the stream passed it, on the steady clock.
  std::shared_ptr<std::atomic<std::chrono::steady_clock::time_point>> passed;
};

/// The state of the machine; one of a process. Members are guarded by `mutex`.
class Runtime {
 public:
  static Runtime& instance();

  struct Device {
    std::shared_ptr<Stream> default_stream;
    cudaError_t lost = cudaSuccess;  ///< the error that destroyed the context
    int running = 0;                 ///< operations
    bool has_context = false;
    std::set<int> peers;  ///< devices whose memory its kernels may access
  };

  void restart(const Machine& machine);

  /// Counts the call. The error that it returns without doing anything, if any.
  cudaError_t enter(const char* function, std::unique_lock<std::mutex>& lock);
  /// Makes the result of a call the thread's last error, unless it is cudaSuccess.
  cudaError_t leave(cudaError_t error);
  cudaError_t last_error(bool clear);
  [[nodiscard]] int current_device() const;
  void set_current_device(int device);

  std::shared_ptr<Stream> create_stream(int device, bool blocking);
  /// Of a handle; null if it is none. 0 and cudaStreamLegacy are the default stream of the current device.
  [[nodiscard]] std::shared_ptr<Stream> stream(cudaStream_t handle) const;
  cudaStream_t add_handle(std::shared_ptr<Stream> stream);
  /// The stream runs what it has and ends.
  bool drop_handle(cudaStream_t handle);
  /// Appends an operation, in the order of the default stream and after `after`.
  Point append(const std::shared_ptr<Stream>& stream, Stream::Operation run, std::vector<Point> after = {});
  /// Waits for a point. The error that destroyed the stream's context, if any.
  cudaError_t wait(std::unique_lock<std::mutex>& lock, const Point& point);
  /// Waits for all streams of a device.
  cudaError_t wait_for_device(std::unique_lock<std::mutex>& lock, int device);

  std::mutex mutex;
  std::condition_variable stopped;  ///< a lost device runs an operation less
  Machine machine;
  std::optional<SeededRandom> random;  ///< of the machine's seed
  std::vector<Device> devices;
  DeviceMemory memory;
  HostRegistrations registrations;
  std::map<cudaEvent_t, Event> events;
  std::map<cudaStream_t, std::shared_ptr<Stream>> handles;
  Counts counts;
  std::map<std::string, std::pair<std::uint64_t, cudaError_t>, std::less<>>
      failing_calls;                     ///< calls left before it
  std::uint64_t failing_kernel = 0;      ///< likewise; 0: none
  std::set<const void*> loaded_kernels;  ///< by their stubs
  std::uint64_t late_loads = 0;          ///< of kernels that a launch had to load
  std::uint64_t default_stream_operations = 0;
  std::uintptr_t next_handle = 0x1000;

 private:
  Runtime();
  void start(const Machine& machine);

  struct Running {
    std::shared_ptr<Stream> stream;
    std::thread thread;
  };
  std::vector<Running> running_;
};

/// Errors after which the context cannot be used any more.
[[nodiscard]] bool destroys_context(cudaError_t error);

/// The frame of each CUDA function: `body` is called with the runtime and its lock.
template <class Body>
cudaError_t call(const char* function, const Body& body) {
  Runtime& runtime = Runtime::instance();
  std::unique_lock lock(runtime.mutex);
  cudaError_t error = runtime.enter(function, lock);
  if (error == cudaSuccess) error = body(runtime, lock);
  return runtime.leave(error);
}

}  // namespace penstock::test::fake_cuda
