#include "gpt/peak_memory.hpp"

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace gpt {

using penstock::ByteCount;

namespace {

ByteCount status_bytes(const char* wanted) {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    std::uint64_t kib = 0;
    if (key == wanted && status >> kib) return ByteCount(kib * 1024);
  }
  return ByteCount();
}

}  // namespace

void reset_peak_resident_memory() {
  std::ofstream("/proc/self/clear_refs") << "5";  // proc(5), since Linux 4.0
}

ByteCount peak_resident_memory() {
  return status_bytes("VmHWM:");
}

ByteCount virtual_memory() {
  return status_bytes("VmSize:");
}

ByteCount resident_memory() {
  return status_bytes("VmRSS:");
}

}  // namespace gpt
