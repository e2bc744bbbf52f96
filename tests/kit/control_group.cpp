#include "kit/control_group.hpp"

#include <unistd.h>
#include <atomic>
#include <chrono>
#include <fstream>
#include <system_error>
#include <thread>

namespace penstock::test {

namespace {
namespace fs = std::filesystem;

bool write(const fs::path& file, const std::string& text) {
  std::ofstream stream(file);
  stream << text << std::flush;
  return stream.good();
}

/// This process's group in the hierarchy that /proc/self/cgroup names with `prefix`.
std::string own_group(const std::string& prefix) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t at = line.find(prefix);
    if (at != line.npos) return line.substr(at + prefix.size());
  }
  return {};
}
}  // namespace

ControlGroup::ControlGroup() {
  static std::atomic<unsigned> count{0};
  const std::string name = "penstock-test-" + std::to_string(::getpid()) + '-' + std::to_string(count++);
  const fs::path first = "/sys/fs/cgroup/memory" + own_group(":memory:"),
                 second = "/sys/fs/cgroup" + own_group("0::");
  const struct {
    fs::path own, parent;
    const char *limit, *usage;
  } places[] = {{first, first, "memory.limit_in_bytes", "memory.usage_in_bytes"},
                {second, second, "memory.max", "memory.current"},
                // In version 2 a group that has processes has no groups with limits.
                {second, second.parent_path(), "memory.max", "memory.current"}};
  for (const auto& [own, parent, limit, usage] : places) {
    own_ = own;
    directory_ = parent / name;
    limit_file_ = limit;
    usage_file_ = usage;
    std::error_code failed;
    fs::create_directory(directory_, failed);
    if (fs::exists(directory_ / limit_file_, failed)) return;
    fs::remove(directory_, failed);
  }
  skip_reason_ = "no control group with a limit of memory can be made here";
}

ControlGroup::~ControlGroup() {
  if (!skip_reason_.empty()) return;
  (void)write(own_ / "cgroup.procs", std::to_string(::getpid()));
  std::error_code failed;
  // The kernel lets a group go a little after its last process.
  for (int i = 0; i < 100 && !fs::remove(directory_, failed); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

bool ControlGroup::enter() const {
  return write(directory_ / "cgroup.procs", std::to_string(::getpid()));
}

bool ControlGroup::limit(ByteCount bytes) const {
  return write(directory_ / limit_file_, std::to_string(bytes.value()));
}

ByteCount ControlGroup::used() const {
  std::uint64_t bytes = 0;
  std::ifstream(directory_ / usage_file_) >> bytes;
  return ByteCount(bytes);
}

}  // namespace penstock::test
