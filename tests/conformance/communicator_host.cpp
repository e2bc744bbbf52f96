// The suite's transports of ranks in host memory, in this process.
#include "conformance/communicator_conformance.hpp"

namespace penstock::zero::test {

std::vector<Setting> transport_settings() {
  using enum HostDevice::Mode;
  return {{in_process, 1, eager},    {in_process, 2, eager},    {in_process, 1, deferred},
          {in_process, 2, deferred}, {in_process, 5, deferred}, {processes, 1, eager},
          {processes, 2, eager},     {processes, 1, deferred},  {processes, 2, deferred},
          {processes, 5, deferred}};
}

}  // namespace penstock::zero::test
