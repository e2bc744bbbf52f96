// The suite's transport of processes over MPI: mpirun starts this program, and each process is one rank.
#include "conformance/communicator_conformance.hpp"
#include "kit/free_port.hpp"

#include <penstock/zero/comm/process_group.hpp>

#include <unistd.h>
#include <cstring>

namespace penstock::zero::test {
namespace {

const Launch& launch() {
  static const Launch found = find_launch().value();
  return found;
}

/// All processes, for the whole run. Each test has a group of its own, because some end theirs.
ProcessGroup& parent() {
  static const auto group = ProcessGroup::join(ProcessGroupOptions::of(launch()).value()).value();
  return *group;
}

std::unique_ptr<Communicator> join(std::uint32_t rank, tiers::Device& device, Compute& compute) {
  ::alarm(60);  // a rank that hangs ends, and mpirun ends the others
  const std::uint16_t port = penstock::test::free_port();
  const auto ports = parent().gather("port", std::as_bytes(std::span(&port, 1))).value();
  ProcessGroupOptions options{.rank = rank,
                              .ranks = launch().ranks,
                              .rank_0 = {.host = "127.0.0.1", .port = 0},
                              .job = "test",
                              .carrier = Carrier::mpi};
  std::memcpy(&options.rank_0.port, ports[0].data(), sizeof port);
  return ProcessGroup::join(options).value()->connect(device, compute, {}).value();
}

constexpr Factory mpi = {
    .name = "Mpi",
    .make_group = [](std::uint32_t, std::uint64_t, const InProcessGroupOptions&) -> Join { return join; },
    .make_device = make_host_device,
    .enqueue = enqueue_on_host,
    .bytes = [](DeviceSpan memory) { return HostDevice::bytes(memory); },
    .own_rank = []() -> std::optional<std::uint32_t> { return launch().rank; },
    .meet = [] { (void)parent().gather("meet", {}).value(); }};

}  // namespace

std::vector<Setting> transport_settings() {
  return {{mpi, launch().ranks, HostDevice::Mode::eager}, {mpi, launch().ranks, HostDevice::Mode::deferred}};
}

}  // namespace penstock::zero::test
