#pragma once

#include <sys/utsname.h>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace penstock::measure {

/// The machine of a measurement.
struct Machine {
  std::string cpu;
  unsigned cores;
  double load;  ///< one-minute load average before the run
  std::string huge_pages;
  std::string kernel;  ///< "Linux 6.1.0-13-amd64"
};

inline Machine describe_machine() {
  Machine machine{"unknown cpu", std::thread::hardware_concurrency(), 0.0, "unknown", {}};
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (!line.starts_with("model name")) continue;
    machine.cpu = line.substr(line.find(':') + 2);
    break;
  }
  ::getloadavg(&machine.load, 1);
  std::ifstream pages("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  if (std::getline(pages, text) && text.find('[') != std::string::npos) {
    const std::size_t first = text.find('[') + 1;
    machine.huge_pages = text.substr(first, text.find(']') - first);
  }
  struct utsname system {};
  if (::uname(&system) == 0) machine.kernel = std::string(system.sysname) + " " + system.release;
  return machine;
}

}  // namespace penstock::measure
