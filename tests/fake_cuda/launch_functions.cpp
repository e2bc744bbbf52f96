// Registration and launch of kernels: what nvcc's stubs call.
#include "fake_cuda/runtime.hpp"
#include "kit/ptx.hpp"

#include <vector_types.h>
#include <algorithm>
#include <sstream>
#include <stdexcept>

using namespace penstock::test::fake_cuda;

namespace {

using penstock::test::PtxModule;
using penstock::test::ptx::Arithmetic;

/// The kernels of the program, by the address of their stubs. Not destroyed: constructors of any file register some.
std::map<const void*, std::string>& registered() {
  static auto* const names = new std::map<const void*, std::string>;
  return *names;
}

/// Code for kernels. Guarded by Runtime::mutex; files are read when a kernel is first looked for.
struct Code {
  std::vector<std::pair<std::filesystem::path, Arithmetic>> unread;
  std::vector<std::unique_ptr<PtxModule>> modules;
};
Code& code() {
  static auto* const all = [] {
    auto* const files = new Code;
    std::istringstream names(PENSTOCK_KERNELS_PTX);
    for (std::string name; std::getline(names, name, ':');)
      files->unread.emplace_back(name, Arithmetic::exact);
    return files;
  }();
  return *all;
}

/// Null if there is no code for it.
const PtxModule* module_with(const std::string& kernel) {
  Code& all = code();
  for (const auto& [file, arithmetic] : all.unread) {
    all.modules.push_back(std::make_unique<PtxModule>(file, arithmetic));
  }
  all.unread.clear();
  for (const auto& module : all.modules) {
    if (module->has(kernel)) return module.get();
  }
  return nullptr;
}

/// The memory that a device may access, for one kernel; its allocations are those at the time when it starts.
class KernelMemory final : public penstock::test::ptx::Memory {
 public:
  explicit KernelMemory(DeviceMemory::Blocks blocks) : blocks_(std::move(blocks)) {}

  std::byte* at(std::uint64_t address, std::size_t size) const override {
    const auto outside = [&](const DeviceMemory::Block& block) {
      return address < block.address || address - block.address + size > block.size;
    };
    if (last_ == nullptr || outside(*last_)) {
      const auto after =
          std::ranges::upper_bound(blocks_, address, {}, [](const auto& block) { return block->address; });
      last_ = after == blocks_.begin() ? nullptr : std::prev(after)->get();
      if (last_ == nullptr || outside(*last_)) throw penstock::test::ptx::IllegalAccess();
    }
    return last_->bytes.get() + (address - last_->address);
  }

 private:
  const DeviceMemory::Blocks blocks_;
  mutable const DeviceMemory::Block* last_ = nullptr;
};

cudaError_t run(const PtxModule::Launch& launch, int device) {
  Runtime& runtime = Runtime::instance();
  DeviceMemory::Blocks blocks;
  {
    const std::lock_guard lock(runtime.mutex);
    std::set<int> devices = runtime.devices[static_cast<std::size_t>(device)].peers;
    devices.insert(device);
    blocks = runtime.memory.of(devices);
  }
  try {
    launch(KernelMemory(std::move(blocks)));
  } catch (const penstock::test::ptx::IllegalAccess&) {
    return cudaErrorIllegalAddress;
  }
  return cudaSuccess;
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

void penstock::test::fake_cuda::add_kernels(const std::filesystem::path& ptx) {
  const std::lock_guard lock(Runtime::instance().mutex);
  code().unread.emplace_back(ptx, Arithmetic::approximate);
}

// Declared in headers that only nvcc includes.
extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  return static_cast<void**>(binary);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  registered()[stub] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

/// The kernel's handle is its stub.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  if (!registered().contains(stub)) return cudaErrorInvalidDeviceFunction;
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t handle) {
  return call("cudaLaunchKernel", [&](Runtime& runtime, auto&) {
    const auto found = registered().find(kernel);
    if (found == registered().end()) return cudaErrorInvalidDeviceFunction;
    if (!runtime.loaded_kernels.contains(kernel)) ++runtime.late_loads;
    const auto stream = runtime.stream(handle);
    if (stream == nullptr || stream->device() != runtime.current_device())
      return cudaErrorInvalidResourceHandle;
    if (grid.x == 0) return cudaErrorInvalidValue;
    if (block.x == 0 || block.x > 1024) return cudaErrorInvalidConfiguration;
    if (grid.y * grid.z * block.y * block.z != 1 || shared != 0) {
      throw std::runtime_error("fake CUDA: only one-dimensional grids without dynamic shared memory");
    }
    if (runtime.failing_kernel > 0 && --runtime.failing_kernel == 0) {
      runtime.append(stream, [] { return cudaErrorIllegalAddress; });
      return cudaSuccess;
    }
    const std::string name = PtxModule::name_in_cpp(found->second);
    const PtxModule* const module = module_with(name);
    if (module == nullptr) return cudaErrorNoKernelImageForDevice;
    auto launch = module->bind(name, {.blocks = grid.x, .threads = block.x}, arguments);
    runtime.append(stream,
                   [bound = std::move(launch), device = stream->device()] { return run(bound, device); });
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* stub) {
  return call("cudaFuncGetAttributes", [&](Runtime& runtime, auto&) {
    const auto found = registered().find(stub);
    if (found == registered().end()) return cudaErrorInvalidDeviceFunction;
    if (module_with(PtxModule::name_in_cpp(found->second)) == nullptr) return cudaErrorNoKernelImageForDevice;
    *attributes = {};
    runtime.loaded_kernels.insert(stub);
    return cudaSuccess;
  });
}

/// What stubs of nvcc before version 13 call.
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  return __cudaLaunchKernel(static_cast<cudaKernel_t>(const_cast<void*>(stub)), grid, block, arguments,
                            shared, stream);
}

}  // extern "C"
