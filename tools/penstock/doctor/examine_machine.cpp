#include "findings.hpp"

#include <penstock/kernels/variants.hpp>
#include <penstock/tiers/memory/memory_limits.hpp>

#include "tiers/io/aio_engine.hpp"
#if PENSTOCK_HAS_CUDA
#include "tiers/device/cuda_device.hpp"
#endif
#include "tiers/io/uring_engine.hpp"
#include "tiers/memory/host_arena.hpp"
#include "tiers/memory/numa.hpp"
#include "zero/comm/mpi/mpi_library.hpp"

#include <sys/resource.h>
#include <cstdlib>

namespace penstock::tool {

namespace {

using State = Finding::State;

/// The ring, and whether buffers can be registered with it, which keeps their pages pinned.
std::vector<Finding> examine_io_uring() {
  Finding ring{.capability = "io_uring"}, buffers{.capability = "registered buffers"};
  const auto engine = tiers::create_uring_engine({.depth = 8});
  if (!engine) {
    ring.state = buffers.state = State::reduced;
    ring.found = one_line(engine.error());
    ring.why = "libaio, or threads with blocking reads and writes, is used instead, with more CPU time";
    ring.remedy = advice_of(engine.error(), "allow io_uring in the container's seccomp profile");
    buffers.found = "no io_uring to register them with";
    buffers.why = "the kernel pins pages for each request, with a little more CPU time";
    buffers.remedy = "see io_uring";
    return {ring, buffers};
  }
  ring.found = "works";
  const auto arena = tiers::HostArena::create({.size = 4_MiB});
  if (!arena) {
    buffers.state = State::unknown;
    buffers.found = one_line(arena.error());
    buffers.why = "no memory for the test could be allocated";
    return {ring, buffers};
  }
  (*engine)->attach(tiers::FileHandle::none, arena->bytes());
  buffers.found = (*engine)->notes();
  (void)(*engine)->close(forever);  // cannot fail: no request was submitted
  if (buffers.found.empty()) {
    buffers.found = "works";
    return {ring, buffers};
  }
  buffers.state = State::reduced;
  buffers.why = "the kernel pins pages for each request, with a little more CPU time";
  buffers.remedy = "raise RLIMIT_MEMLOCK (ulimit -l)";
  return {ring, buffers};
}

/// Used only if io_uring does not work.
Finding examine_libaio(const Finding& io_uring) {
  Finding finding{.capability = "libaio", .found = "works"};
  const bool needed = io_uring.state != State::used;
  const auto engine = tiers::create_aio_engine({.depth = 8});
  if (!engine) {
    finding.state = State::reduced;
    finding.found = one_line(engine.error());
    finding.why =
        needed ? "threads are used instead, with more CPU time" : "has no effect while io_uring works";
    finding.remedy = advice_of(engine.error(), "allow io_setup in the container's seccomp profile");
  } else if (!needed) {
    finding.state = State::unused;
    finding.why = "io_uring is used; penstock.io_engine \"libaio\" selects libaio";
  }
  return finding;
}

Finding examine_threads(const Finding& io_uring, const Finding& libaio) {
  Finding finding{.capability = "threads", .found = "always available"};
  if (io_uring.state != State::used && libaio.state != State::used) return finding;
  finding.state = State::unused;
  finding.why = "io_uring or libaio takes less CPU time; penstock.io_engine \"threads\" selects threads";
  return finding;
}

Finding examine_memlock() {
  Finding finding{.capability = "memlock limit"};
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    finding.found = "unlimited";
    return finding;
  }
  finding.found = to_string(ByteCount(limit.rlim_cur));
  // The limit does not apply to a privileged user, which only an attempt can show. Not attempted for large limits.
  if (limit.rlim_cur < (256_MiB).value()) {
    const ByteCount beyond = ByteCount(limit.rlim_cur) + 2_MiB;
    const auto arena = tiers::HostArena::create({.size = beyond, .pinning = tiers::Pinning::preferred});
    if (arena && arena->pinned()) {
      finding.found += ", which does not apply to this user";
      return finding;
    }
  }
  finding.state = State::reduced;
  finding.why = "host memory beyond it is not pinned, and the kernel may swap it";
  finding.remedy = "raise RLIMIT_MEMLOCK (ulimit -l) past penstock.host_budget";
  return finding;
}

Finding examine_huge_pages() {
  Finding finding{.capability = "huge pages"};
  const auto arena = tiers::HostArena::create({.size = 4_MiB});
  if (!arena) {
    finding.state = State::unusable;
    finding.found = one_line(arena.error());
    finding.why = "host memory cannot be allocated";
    finding.remedy = "stop other programs that use memory";
    return finding;
  }
  finding.found = arena->page_kind() == tiers::PageKind::base ? arena->notes()
                                                              : std::string(to_string(arena->page_kind()));
  if (arena->page_kind() != tiers::PageKind::base) return finding;
  finding.state = State::reduced;
  finding.why = "requests are split in four and cost several times the CPU time";
  finding.remedy = "write madvise to /sys/kernel/mm/transparent_hugepage/enabled";
  return finding;
}

Finding examine_simd() {
  const IsaChoice choice = best_isa();
  Finding finding{.capability = "SIMD", .found = std::string(to_string(choice.isa))};
  if (!choice.reason.empty()) finding.found += ", " + std::string(choice.reason);
  if (choice.isa == Isa::scalar) {
    finding.state = State::reduced;
    finding.why = "Adam on the host is several times slower; its results have the same bits";
  }
  return finding;
}

Finding examine_gpu() {
  constexpr const char* why = "host memory is used as the device";
#if PENSTOCK_HAS_CUDA
  const auto count = tiers::cuda_device_count();
  if (count && *count > 0) return {.capability = "GPU", .found = std::to_string(*count) + " with CUDA"};
  return {State::reduced, "GPU", count ? "none" : one_line(count.error()), why,
          "load the NVIDIA driver, and give the container its devices"};
#else
  return {State::reduced, "GPU", "no CUDA in this build", why, "build with PENSTOCK_CUDA=ON"};
#endif
}

Finding examine_nccl(const Finding& gpu) {
  if (!PENSTOCK_HAS_NCCL) {
    return {State::reduced, "NCCL", "not in this build", "no collectives between GPUs of several processes",
            "install libnccl-dev and build again"};
  }
  if (gpu.state == State::used) return {.capability = "NCCL", .found = "built"};
  return {State::unused, "NCCL", "built", "there is no GPU to reduce on", ""};
}

Finding examine_mpi() {
  if (const auto module = zero::load_mpi_module(); !module) {
    return {State::reduced, "MPI", one_line(module.error()), "no MPI between processes",
            "install openmpi-bin, and libopenmpi-dev for the build"};
  }
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr) {
    return {.capability = "MPI", .found = "works, and this process was started by mpirun"};
  }
  return {State::unused, "MPI", "works", "this process was not started by mpirun", "mpirun -n RANKS"};
}

Finding examine_numa() {
  const auto topology = tiers::NumaTopology::read();
  if (topology.node_count() <= 1) return {.capability = "NUMA", .found = "one node: all memory is local"};
  Finding finding{.capability = "NUMA", .found = std::to_string(topology.node_count()).append(" nodes")};
  if (const auto node = topology.node_of_cpus(tiers::allowed_cpus())) {
    finding.found.append(", this process on node ").append(std::to_string(*node));
    return finding;
  }
  return {
      State::reduced, finding.capability, finding.found,
      "this process may run on all of them, so its ranks are distributed evenly over the paths of all nodes",
      "start each rank on a node: numactl --cpunodebind=N --membind=N"};
}

}  // namespace

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings = examine_io_uring();
  const Finding io_uring = findings.front(), libaio = examine_libaio(io_uring), gpu = examine_gpu();
  const tiers::MemoryLimit memory = tiers::memory_limit();
  findings.insert(findings.end(),
                  {libaio,
                   examine_threads(io_uring, libaio),
                   examine_memlock(),
                   examine_huge_pages(),
                   {.capability = "host memory",
                    .found = to_string(memory.available) + " available, limited by " + memory.file},
                   examine_simd(),
                   gpu,
                   examine_nccl(gpu),
                   examine_mpi(),
                   examine_numa()});
  return findings;
}

}  // namespace penstock::tool
