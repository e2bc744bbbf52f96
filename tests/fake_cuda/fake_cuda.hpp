#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// A CUDA runtime for tests on machines without a GPU. A program that links `penstock_fake_cuda` gets these functions
/// in place of NVIDIA's, under the same names; the library's objects are the same.
///
/// Modelled, with the section of NVIDIA's documentation:
///
/// - Streams run in parallel, each one's operations in order. The default stream of a device waits for its blocking
///   streams, and they for it (Runtime API, "Stream synchronization behavior": legacy default stream).
/// - A wait takes the event's last record at the time of the call; later records do not change it, and an event that
///   was never recorded is no wait (Runtime API, cudaStreamWaitEvent, cudaEventRecord).
/// - A timed event takes the steady clock's time when its stream passes it. The time between two events is refused if
///   one is not timed or not recorded, and not ready until both have passed (Runtime API, cudaEventElapsedTime).
/// - Device addresses are memory that no host code can access. Kernels are interpreted from their PTX; an access
///   outside of the device's allocations is cudaErrorIllegalAddress.
/// - Copies of registered host memory run when the stream gets there. Those of pageable memory may do so too, or read
///   it before the call returns, or have completed then: a seed chooses. Without one they have read it, or completed
///   (Runtime API, "API synchronization behavior": asynchronous). A range that is partly registered is
///   cudaErrorInvalidValue (Driver API, cuMemcpyAsync); one across two registrations is too, which CUDA does not say.
/// - cudaFree waits for the device.
/// - A call's error is the thread's last error until cudaGetLastError. cudaErrorNotReady is too, although it "is not
///   actually an error", because it may be. After an error that destroys the context, all calls for the device return
///   it (Runtime API, cudaError_t).
/// - cudaSetDevice creates the context of its device (Runtime API, cudaSetDevice), other calls that of the current one.
/// - A kernel is loaded when it is first launched or asked about (Programming Guide, "Lazy Loading"). One without PTX
///   is cudaErrorNoKernelImageForDevice.
/// - A kernel may access another device's memory once its device was given access; copies always may (Runtime API,
///   "Peer Device Memory Access"; Programming Guide, "Peer-to-Peer Memory Access").
/// - Records and kernels refuse streams of another device; waits and copies do not (Programming Guide, "Stream and
///   event behavior" of multi-device systems).
///
/// `penstock_fake_cublas` adds the cuBLASLt functions that the GPT example calls: bf16 operands, fp32 sums, the
/// epilogues BIAS, GELU_AUX_BIAS, DGELU and BGRADB. A product runs when its stream gets there, and cublasLtDestroy
/// waits for the device. Refused are sizes, types, leading dimensions and missing pointers (cuBLAS, "cublasLtMatmul",
/// "cublasLtMatmulDescAttributes_t"), a workspace that is too small, pointers that are aligned less than the preference
/// says, and an algorithm that was chosen for another problem.
///
/// tests/conformance/cuda asserts these rules, with this runtime and, on a GPU, with NVIDIA's.
///
/// Not modelled: graphs, managed memory, stream-ordered allocation, dynamic shared
/// memory, how cuBLASLt orders a sum and which algorithms it has, and the functions that library and example do not
/// call, which do not link.
///
/// The CUDA functions, count() and enqueue() are safe from any thread.
namespace penstock::test::fake_cuda {

struct Machine {
  int devices = 1;
  std::size_t memory = std::size_t{1} << 30;  ///< bytes of each device
  /// What every call returns, such as cudaErrorInsufficientDriver. Without devices it is cudaErrorNoDevice.
  cudaError_t driver = cudaSuccess;
  bool peer_access = true;  ///< whether a device can access the memory of the others
  /// Chooses pauses between the operations of a stream, the streams that are slow, and when copies of pageable memory
  /// use it. Without one there are no pauses.
  std::optional<std::uint64_t> seed;
};

/// Waits for all streams, forgets everything, and starts with these devices. Handles and addresses of before are not
/// used again. A program that never calls it has one device. No other thread is in a CUDA call.
void restart(const Machine& machine = {});

/// Adds the kernels of a PTX file to those of the library, for the rest of the process. They may use fused and
/// approximate arithmetic (ptx::Arithmetic), which the library's may not.
void add_kernels(const std::filesystem::path& ptx);

/// The numbers of calls since restart(), of those too that failed.
struct Counts {
  std::map<std::string, std::uint64_t, std::less<>>
      calls;  ///< by function; kernel launches as "cudaLaunchKernel"

  [[nodiscard]] std::uint64_t of(std::string_view function) const;
  [[nodiscard]] std::uint64_t allocations() const;
  [[nodiscard]] std::uint64_t event_creations() const;
  [[nodiscard]] std::uint64_t stream_creations() const;
  /// Calls that wait for a whole device: cudaDeviceSynchronize and cudaFree.
  [[nodiscard]] std::uint64_t device_synchronizations() const;
};
[[nodiscard]] Counts count();
/// The calls between two counts.
[[nodiscard]] Counts operator-(const Counts& later, const Counts& earlier);

/// What was created and not destroyed.
struct Live {
  std::size_t allocations = 0, streams = 0, events = 0, registrations = 0;
  friend bool operator==(const Live&, const Live&) = default;
};
[[nodiscard]] Live live();
/// The devices on which this process has a context, ascending.
[[nodiscard]] std::vector<int> contexts();
/// Launches of kernels that were not loaded before.
[[nodiscard]] std::uint64_t late_loads();
/// Operations on the default streams of all devices.
[[nodiscard]] std::uint64_t default_stream_operations();

/// The `nth` call of `function` from now, counted from 1, does nothing and returns `error`. An error that destroys the
/// context is from then on the result of all calls for the current device.
void fail_call(std::string_view function, std::uint64_t nth, cudaError_t error);
/// The `nth` kernel launched from now faults when it runs: cudaErrorIllegalAddress.
void fail_kernel(std::uint64_t nth);

/// Runs `operation` on the stream's thread after what is enqueued already, as cudaLaunchHostFunc does. Unlike there, it
/// may access device memory, with bytes(), and so stands for a kernel of the test.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation);
/// The bytes at a device address, which `size` bytes of one allocation follow; null otherwise. For operations of
/// streams, and for tests while no operation uses them.
[[nodiscard]] std::byte* bytes(const void* device_address, std::size_t size);

}  // namespace penstock::test::fake_cuda
