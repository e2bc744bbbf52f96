// One rank of a job that tests pipes over MPI: mpi_ranks CASE. Each case is a function that all ranks call.
#include "zero/comm/mpi/mpi_library.hpp"

#include "kit/seeded_random.hpp"
#include "zero/comm/process/peer_link.hpp"

#include <penstock/base/check.hpp>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;
using penstock::test::SeededRandom;

constexpr std::uint64_t chunk = PeerLink::chunk_bytes_max;

/// Ends the job: the ranks that wait for this one are ended by mpirun.
void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::_Exit(1);
}

void report_success(const Launch& launch) {
  std::printf("rank %u has done its part\n", launch.rank);
  std::fflush(stdout);
}

std::vector<std::byte> bytes_of(std::uint32_t from, std::uint32_t to, std::uint64_t size,
                                std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  SeededRandom random(SeededRandom::mix(seed) + from * 1000 + to);
  for (std::byte& byte : bytes) byte = std::byte(random.next());
  return bytes;
}

/// The links of one rank to all others, and the pipes that carry them.
class Rank {
 public:
  Rank(const Launch& launch, TimePoint deadline) : me(launch.rank), count(launch.ranks) {
    for (std::uint32_t peer = 0; peer < count; ++peer) links.emplace_back(me, peer);
    auto opened = load_mpi_module().value()->open_pipes(
        {.rank = launch.rank, .ranks = launch.ranks, .deadline = deadline});
    expect(opened.has_value(), opened ? "" : opened.error().message());
    pipes = *std::move(opened);
  }

  /// Moves what can be moved until `done`, at most `moves` times.
  void drive(const std::function<bool()>& done, std::uint64_t moves = ~std::uint64_t{0}) {
    std::vector<PeerPipes::Interest> interests(count);
    while (!done() && moves > 0) {
      bool moved = false;
      for (std::uint32_t peer = 0; peer < count; ++peer) {
        if (peer == me) continue;
        moved = move(peer) || moved;
        interests[peer] = {!links[peer].to_write().empty(), !to_read(peer).empty()};
      }
      if (moved) {
        --moves;
      } else if (!done()) {
        pipes->wait(interests, forever);
      }
    }
    pipes->wait(std::vector<PeerPipes::Interest>(count), 0s);  // what was written last leaves
  }
  [[nodiscard]] bool is_done() const {
    return std::all_of(links.begin(), links.end(), [](const PeerLink& link) { return link.is_done(); });
  }

  const std::uint32_t me, count;
  std::vector<PeerLink> links;
  std::unique_ptr<PeerPipes> pipes;

 private:
  /// Nothing, if nothing is expected of the peer, which may have left after its last collective.
  HostSpan to_read(std::uint32_t peer) {
    PeerLink& link = links[peer];
    return link.is_done() && !link.is_interrupted() ? HostSpan() : link.to_read();
  }
  bool move(std::uint32_t peer) {
    PeerLink& link = links[peer];
    bool moved = false;
    if (const ConstHostSpan bytes = link.to_write(); !bytes.empty()) {
      const std::size_t written = pipes->write(peer, bytes).value();
      if (written > 0) link.wrote(written);
      moved = written > 0;
    }
    if (const HostSpan bytes = to_read(peer); !bytes.empty()) {
      const std::size_t read = pipes->read(peer, bytes).value();
      if (read > 0) link.read(read).value();
      moved = moved || read > 0;
    }
    return moved;
  }
};

/// A collective's memory: a slot for each rank.
class Collective {
 public:
  Collective(const Rank& rank, Transfer::Kind kind, std::uint64_t size, std::uint64_t seed)
      : kind_(kind), size_(size), seed_(seed), me_(rank.me) {
    const bool gathers = kind == Transfer::Kind::all_gather;
    for (std::uint32_t peer = 0; peer < rank.count; ++peer) {
      slots_.push_back(gathers && peer != me_ ? std::vector<std::byte>(size)
                                              : bytes_of(me_, gathers ? 0 : peer, size, seed));
    }
  }
  void begin(Rank& rank) {
    for (std::uint32_t peer = 0; peer < rank.count; ++peer) {
      if (peer == me_) continue;
      const HostSpan receive{std::span(slots_[peer])};
      const ConstHostSpan send = kind_ == Transfer::Kind::all_gather
                                     ? ConstHostSpan(std::span<const std::byte>(slots_[me_]))
                                     : receive;
      rank.links[peer]
          .begin({.kind = kind_,
                  .signature = {.unit = static_cast<std::uint32_t>(seed_), .step = 1},
                  .dtype = DType::bf16,
                  .pieces = {{.send = send, .receive = receive}}})
          .value();
    }
  }
  void verify() const {
    for (std::uint32_t peer = 0; peer < slots_.size(); ++peer) {
      if (peer == me_) continue;
      expect(slots_[peer] == bytes_of(peer, kind_ == Transfer::Kind::all_gather ? 0 : me_, size_, seed_),
             "rank " + std::to_string(me_) + " has wrong bytes of rank " + std::to_string(peer) + ": " +
                 std::string(to_string(kind_)) + " of " + std::to_string(size_));
    }
  }

 private:
  Transfer::Kind kind_;
  std::uint64_t size_, seed_;
  std::uint32_t me_;
  std::vector<std::vector<std::byte>> slots_;
};

void run(Rank& rank, Transfer::Kind kind, std::uint64_t size, std::uint64_t seed) {
  Collective collective(rank, kind, size, seed);
  collective.begin(rank);
  rank.drive([&] { return rank.is_done(); });
  collective.verify();
}

void exchange(const Launch& launch) {
  Rank rank(launch, 60s);
  std::uint64_t seed = 0;
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, chunk - 1, chunk, chunk + 1, 9 * chunk + 7}) {
    run(rank, Transfer::Kind::all_gather, size, ++seed);
    run(rank, Transfer::Kind::all_to_all, size, ++seed);
  }
  for (int i = 0; i < 200; ++i) run(rank, Transfer::Kind::all_to_all, 100, ++seed);
}

/// Each rank gives up a collective at another place, one of them before it has begun.
void interrupt(const Launch& launch) {
  Rank rank(launch, 60s);
  for (std::uint64_t epoch = 1; epoch <= 6; ++epoch) {
    SeededRandom random(epoch * 100 + rank.me);
    Collective given_up(rank, Transfer::Kind::all_to_all, 6 * chunk, epoch);
    if (epoch % rank.count != rank.me) given_up.begin(rank);
    rank.drive([] { return false; }, random.below(epoch % rank.count == rank.me ? 1 : 6));
    for (std::uint32_t peer = 0; peer < rank.count; ++peer) {
      if (peer != rank.me) rank.links[peer].interrupt(epoch);
    }
    rank.drive([&] {
      return std::none_of(rank.links.begin(), rank.links.end(),
                          [](const PeerLink& link) { return link.is_interrupted(); });
    });
    run(rank, Transfer::Kind::all_gather, 2 * chunk + 5, epoch + 100);
  }
}

/// Rank 0 leaves while others have not read what it has written.
void leave(const Launch& launch) {
  Rank rank(launch, 60s);
  const std::vector<std::byte> last = bytes_of(0, 0, 3 * chunk, 7);
  if (rank.me == 0) {
    for (std::uint32_t peer = 1; peer < rank.count; ++peer) {
      const std::size_t written = rank.pipes->write(peer, ConstHostSpan(std::span(last))).value();
      expect(written == last.size(), "the pipe takes all at once");
    }
    return;
  }
  std::vector<std::byte> received(last.size() + 1);
  std::vector<PeerPipes::Interest> interests(rank.count);
  interests[0].read = true;
  for (std::size_t read = 0;;) {
    const auto more = rank.pipes->read(0, HostSpan(std::span(received).subspan(read)));
    if (!more) {
      received.resize(read);
      expect(received == last, "everything is read before the end");
      expect(more.error().code() == ErrorCode::peer_failed, more.error().message());
      return;
    }
    read += *more;
    if (*more == 0) rank.pipes->wait(interests, forever);
  }
}

/// Rank 0 waits for nothing, and has not read all that has arrived. Rank 1 reads everything that rank 0 has written.
void carry_on(const Launch& launch) {
  Rank rank(launch, 60s);
  std::vector<std::byte> bytes(3 * chunk + 5);
  std::vector<PeerPipes::Interest> interests(rank.count);
  const auto write = [&](std::uint32_t peer) {
    expect(rank.pipes->write(peer, ConstHostSpan(std::span(bytes))).value() == bytes.size(), "all is taken");
  };
  const auto read = [&](std::uint32_t peer, std::size_t left) {
    interests[peer].read = true;
    while (left > 0) {
      rank.pipes->wait(interests, forever);
      left -= rank.pipes->read(peer, HostSpan(std::span(bytes).first(left))).value();
    }
    interests[peer].read = false;
  };
  if (rank.me == 0) {
    read(1, 1);
    write(1);
    rank.pipes->wait(interests, forever);
  }
  write(0);
  read(0, bytes.size());
  report_success(launch);
  std::_Exit(1);  // mpirun ends rank 0
}

/// The last rank neither receives nor ends. The others end nevertheless, and mpirun ends it.
void lose(const Launch& launch) {
  Rank rank(launch, 5s);
  const std::uint32_t lost = rank.count - 1;
  if (rank.me == lost) {
    while (true) ::pause();
  }
  const std::vector<std::byte> bytes(chunk);
  while (rank.pipes->write(lost, ConstHostSpan(std::span(bytes))).value() > 0) {
  }
}

/// The last rank does not start MPI, and does not end.
void wait_in_vain(const Launch& launch) {
  if (launch.rank + 1 == launch.ranks) {
    while (true) ::pause();
  }
  const auto pipes =
      load_mpi_module().value()->open_pipes({.rank = launch.rank, .ranks = launch.ranks, .deadline = 500ms});
  expect(!pipes && pipes.error().code() == ErrorCode::deadline_exceeded, "the deadline has passed");
}

/// The same, and the others know that it has failed.
void wait_no_longer(const Launch& launch) {
  if (launch.rank + 1 == launch.ranks) {
    while (true) ::pause();
  }
  const auto pipes = load_mpi_module().value()->open_pipes(
      {.rank = launch.rank, .ranks = launch.ranks, .deadline = 40s, .has_failed = [] { return true; }});
  expect(!pipes && pipes.error().code() == ErrorCode::peer_failed, "another rank has failed");
}

}  // namespace
}  // namespace penstock::zero

int main(int count, char** arguments) {
  using namespace penstock::zero;
  const std::map<std::string, void (*)(const Launch&)> cases = {{"exchange", exchange},
                                                                {"interrupt", interrupt},
                                                                {"leave", leave},
                                                                {"carry_on", carry_on},
                                                                {"lose", lose},
                                                                {"wait_in_vain", wait_in_vain},
                                                                {"wait_no_longer", wait_no_longer}};
  PENSTOCK_CHECK(count == 2 && cases.contains(arguments[1]));
  ::alarm(60);  // a rank that hangs ends, and mpirun ends the others
  const Launch launch = find_launch().value();
  cases.at(arguments[1])(launch);
  report_success(launch);
}
