// One rank of a training run as a process, which may come to harm at a point of its program.
#include "kit/cluster.hpp"
#include "kit/deaf_socket.hpp"
#include "kit/trainer.hpp"
#include "measure/command_line.hpp"

#include <penstock/zero/comm/process_group.hpp>

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

namespace penstock::zero::test {
namespace {

using Point = RunOptions::ProgramPoint;

struct Arguments {
  ProcessGroupOptions group;
  std::string host = "127.0.0.1", harm, durable;
  std::uint16_t port = 0;
  double silence = 2, deadline = 20;
  bool mpi = false;
  std::optional<std::uint32_t> point;
  std::uint32_t victim = 0;
};

TimePoint seconds(double value) {
  return std::chrono::duration_cast<TimePoint>(std::chrono::duration<double>(value));
}

std::uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return address.ss_family == AF_INET ? ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port)
                                      : std::uint16_t{0};
}

/// Whether it is a connection by which the bytes of collectives come. Those of the control channel have `control_port`
/// at one end.
bool is_of_a_peer(int descriptor, std::uint16_t control_port) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0)
    return false;
  return port_of(peer) != 0 && port_of(own) != control_port && port_of(peer) != control_port;
}

bool make_peers_unreachable(std::uint16_t control_port) {
  std::uint32_t count = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor)
    count += is_of_a_peer(descriptor, control_port) && penstock::test::make_deaf(descriptor);
  return count > 0;
}

/// kill and stop are signals; deaf: no byte of a collective comes any more; else a command of the shell.
void come_to_harm(const Arguments& arguments) {
  const std::string& harm = arguments.harm;
  if (harm == "kill") ::raise(SIGKILL);
  if (harm == "stop") {
    ::raise(SIGSTOP);
  } else if (harm == "deaf" ? !make_peers_unreachable(arguments.port) : std::system(harm.c_str()) != 0) {
    std::fprintf(stderr, "error: the harm fails: %s\n", harm.c_str());
    std::_Exit(3);
  }
}

int run(const Arguments& arguments) {
  auto joined = ProcessGroup::join(arguments.group);
  if (!joined) {
    std::fprintf(stderr, "error: %s\n", joined.error().message().c_str());
    return 1;
  }
  RunOptions options{.ranks = arguments.group.ranks,
                     .model = deep_model(),
                     .membership = [group = *joined](std::uint32_t) { return process_membership(group); },
                     .only_rank = arguments.group.rank};
  options.config.offload_optimizer.device = options.config.offload_param.device = OffloadDevice::nvme;
  if (!arguments.durable.empty()) make_durable(options, {arguments.durable});
  std::uint32_t points = 0;
  options.trainer_error = [&](const Point& point) -> std::optional<ErrorCode> {
    const bool is_chosen = point.step == 1 && points++ == arguments.point;
    if (is_chosen && arguments.group.rank == arguments.victim) come_to_harm(arguments);
    return std::nullopt;
  };
  const RunResult result = train(options);
  if (result.error) {
    std::fprintf(stderr, "error: %s\n", result.error->message().c_str());
    return 1;
  }
  std::printf("digest %s, points of a step %u\n", result.digest.c_str(), points);
  return 0;
}

}  // namespace
}  // namespace penstock::zero::test

int main(int argc, char** argv) {
  using namespace penstock::zero::test;
  Arguments arguments;
  penstock::measure::CommandLine app("A rank of a training run");
  app.add_option("--rank", arguments.group.rank).env_name("OMPI_COMM_WORLD_RANK").required();
  app.add_option("--ranks", arguments.group.ranks).required();
  app.add_option("--host", arguments.host, "of rank 0");
  app.add_option("--port", arguments.port, "of rank 0").required();
  app.add_flag("--mpi", arguments.mpi, "carry the bytes of collectives by MPI");
  app.add_option("--silence", arguments.silence, "seconds");
  app.add_option("--deadline", arguments.deadline, "of a collective, seconds");
  app.add_option("--point", arguments.point, "of the second step, at which the victim comes to harm");
  app.add_option("--victim", arguments.victim, "the rank that comes to harm");
  app.add_option("--durable", arguments.durable,
                 "directory in which the run commits, and of which it goes on");
  app.add_option("--harm", arguments.harm, "kill, stop, deaf, or a command of the shell");
  if (const auto status = app.parse(argc, argv)) return *status;
  arguments.group.rank_0 = {arguments.host, arguments.port};
  if (arguments.mpi) arguments.group.carrier = penstock::zero::Carrier::mpi;
  arguments.group.silence_max = seconds(arguments.silence);
  arguments.group.deadline = seconds(arguments.deadline);
  arguments.group.join_deadline = seconds(30);
  return run(arguments);
}
