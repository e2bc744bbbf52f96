#include "doctor_findings.hpp"

#include <penstock/cpu_adam/isa.hpp>
#include <penstock/tiers/aio_engine.hpp>
#include <penstock/tiers/file_system.hpp>
#include <penstock/tiers/host_arena.hpp>
#include <penstock/tiers/uring_engine.hpp>

#include <sys/resource.h>
#include <algorithm>

namespace penstock::tool {

namespace {

using State = Finding::State;

/// Errors keep their details on further lines; a finding has one.
std::string first_line(const Error& error) {
  const std::string text = error.message();
  return text.substr(0, text.find('\n'));
}

Finding examine_io_uring() {
  Finding finding{.capability = "io_uring"};
  const auto engine = tiers::create_uring_engine({.depth = 8});
  if (!engine) {
    finding.state = State::reduced;
    finding.found = first_line(engine.error());
    finding.consequence = "libaio, or blocking reads and writes on threads instead, with more CPU time";
    finding.remedy =
        "set kernel.io_uring_disabled to 0, and allow io_uring in the container's seccomp profile";
    return finding;
  }
  if (const auto arena = tiers::HostArena::create({.size = 4_MiB})) {
    (*engine)->attach(tiers::FileHandle::none, arena->bytes());
    finding.found = (*engine)->notes();
    (void)(*engine)->close(forever);  // nothing was asked of it
  }
  if (finding.found.empty()) {
    finding.found = "works";
    return finding;
  }
  finding.state = State::reduced;
  finding.consequence = "the kernel pins pages at each request, with a little more CPU time";
  finding.remedy = "raise RLIMIT_MEMLOCK (ulimit -l)";
  return finding;
}

Finding examine_libaio() {
  Finding finding{.capability = "libaio", .found = "works"};
  const auto engine = tiers::create_aio_engine({.depth = 8});
  if (engine) return finding;
  finding.state = State::reduced;
  finding.found = first_line(engine.error());
  finding.consequence = "none while io_uring works; else threads";
  finding.remedy = "raise fs.aio-max-nr, or allow io_setup in the container's seccomp profile";
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
  // A privileged user is above the limit, which only trying tells. Large ones are taken at their word.
  if (limit.rlim_cur < (256_MiB).value()) {
    const ByteCount beyond = ByteCount(limit.rlim_cur) + 2_MiB;
    const auto arena = tiers::HostArena::create({.size = beyond, .pinning = tiers::Pinning::preferred});
    if (arena && arena->pinned()) {
      finding.found += ", which does not bind this user";
      return finding;
    }
  }
  finding.state = State::reduced;
  finding.consequence = "host memory beyond it is not pinned, and the kernel may swap it";
  finding.remedy = "raise RLIMIT_MEMLOCK (ulimit -l) past penstock.host_budget";
  return finding;
}

Finding examine_huge_pages() {
  Finding finding{.capability = "huge pages"};
  const auto arena = tiers::HostArena::create({.size = 4_MiB});
  if (!arena) {
    finding.state = State::unusable;
    finding.found = first_line(arena.error());
    finding.consequence = "no host memory can be had";
    finding.remedy = "stop what else holds memory";
    return finding;
  }
  finding.found = arena->page_kind() == tiers::PageKind::base ? arena->notes()
                                                              : std::string(to_string(arena->page_kind()));
  if (arena->page_kind() != tiers::PageKind::base) return finding;
  finding.state = State::reduced;
  finding.consequence = "requests are cut in four and cost several times the CPU time";
  finding.remedy = "write madvise to /sys/kernel/mm/transparent_hugepage/enabled";
  return finding;
}

Finding examine_simd() {
  const IsaChoice choice = best_isa();
  Finding finding{.capability = "SIMD", .found = std::string(to_string(choice.isa))};
  if (!choice.reason.empty()) finding.found += ", " + std::string(choice.reason);
  if (choice.isa == Isa::scalar) {
    finding.state = State::reduced;
    finding.consequence = "Adam on the host is several times slower; its bits are the same";
  }
  return finding;
}

Finding built_or_not(const char* capability, bool built, const char* consequence) {
  if (built) return {.capability = capability, .found = "built"};
  return {State::reduced, capability, "not in this build", consequence, ""};
}

Finding examine_cuda() {
  constexpr const char* consequence = "only the host serves as the device";
  if (!PENSTOCK_HAS_CUDA) {
    return {State::reduced, "CUDA", "not in this build", consequence, "build with PENSTOCK_CUDA=ON"};
  }
  std::error_code error;
  if (std::filesystem::exists("/proc/driver/nvidia/version", error)) {
    return {.capability = "CUDA", .found = "built, and a driver is loaded"};
  }
  return {State::reduced, "CUDA", "built, and no NVIDIA driver is loaded", consequence, "load the driver"};
}

}  // namespace

const char* to_string(Finding::State state) {
  switch (state) {
    case State::used: return "used";
    case State::reduced: return "reduced";
    case State::unusable: break;
  }
  return "unusable";
}

std::vector<Finding> examine_machine() {
  return {
      {.capability = "host memory", .found = to_string(tiers::available_host_memory()) + " available"},
      examine_io_uring(),
      examine_libaio(),
      examine_memlock(),
      examine_huge_pages(),
      examine_simd(),
      examine_cuda(),
      built_or_not("NCCL", PENSTOCK_HAS_NCCL, "no collectives between GPUs of several processes"),
      built_or_not("MPI", PENSTOCK_HAS_MPI, "no collectives between hosts"),
  };
}

std::vector<Finding> examine_path(const std::filesystem::path& directory) {
  tiers::FileSystem& file_system = tiers::real_file_system();
  const std::string on = " of " + directory.string();
  const auto file = file_system.create_scratch(directory, 4_MiB, tiers::DirectIo::preferred);
  if (!file) {
    return {{State::unusable, "swap files" + on, first_line(file.error()), "no swap file can stand here",
             "give a directory that exists, can be written and has free space"}};
  }

  std::vector<Finding> findings;
  findings.push_back({.capability = "swap files" + on, .found = "on " + file_system.type_name(directory)});
  const tiers::File::Properties& properties = file->properties();
  if (properties.direct) {
    findings.push_back({.capability = "direct I/O" + on,
                        .found = "alignment " + std::to_string(properties.alignment.bytes()) + " B"});
  } else {
    findings.push_back({State::reduced, "direct I/O" + on, properties.direct_note,
                        "every byte passes through the page cache, which competes for memory",
                        "use a directory on ext4 or xfs on the drive itself"});
  }
  if (!properties.reserve_note.empty()) {
    findings.push_back({State::reduced, "reserved space" + on, properties.reserve_note,
                        "a disk that others fill shows in the middle of a run",
                        "keep the swap files' size free, or use a directory on ext4 or xfs"});
  }
  if (const auto free = file_system.free_space(directory)) {
    findings.push_back({.capability = "free space" + on, .found = to_string(*free)});
  } else {
    findings.push_back(
        {State::unusable, "free space" + on, first_line(free.error()), "swap files cannot be sized", ""});
  }
  return findings;
}

}  // namespace penstock::tool
