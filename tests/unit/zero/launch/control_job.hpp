#pragma once

#include "kit/seeded_random.hpp"
#include "zero/launch/control_client.hpp"
#include "zero/launch/control_server.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::control::test {

using namespace std::chrono_literals;

/// A server and the ranks of a job, without a network: bytes arrive in pieces, in an order chosen by a seed.
class ControlJob {
 public:
  struct Rank {
    std::unique_ptr<ControlClient> client;
    ConnectionId connection{};
    bool is_stopped = false;  ///< neither sends nor receives, as a process after SIGSTOP
  };

  ControlJob(std::uint32_t count, std::uint64_t seed, TimePoint join = 60s, TimePoint silence = 10s)
      : patience{.join = join, .silence = silence, .clock = &clock},
        server("job", "build", count, patience),
        random_(seed),
        count_(count) {}

  [[nodiscard]] Hello hello(std::uint32_t rank) const {
    return {.job = "job",
            .build = "build",
            .machine = std::string("m").append(std::to_string(rank / 2)),
            .host = std::string("host").append(std::to_string(rank / 2)),
            .rank = rank,
            .ranks = count_,
            .process = 100 + rank};
  }
  /// Connects a process, which greets as `hello` says. Returns its number among `ranks`.
  std::size_t start(Hello hello) {
    ranks.push_back({std::make_unique<ControlClient>(std::move(hello), patience), next_connection_++});
    server.opened(ranks.back().connection, "address");
    ranks.back().client->opened();
    return ranks.size() - 1;
  }
  void start_all() {
    for (std::uint32_t rank = 0; rank < count_; ++rank) start(hello(rank));
  }
  void bring_together() {
    start_all();
    settle();
  }
  ConnectionId connect_stranger() {
    server.opened(next_connection_, "stranger");
    return next_connection_++;
  }
  /// The process ends.
  void kill(std::size_t number) {
    Rank& rank = ranks[number];
    rank.client.reset();
    up_.erase(rank.connection);
    down_.erase(rank.connection);
    server.closed(rank.connection);
  }

  /// Delivers some bytes. False if there are none.
  bool deliver() {
    collect();
    std::vector<std::pair<bool, ConnectionId>> ready;
    for (const bool up : {true, false}) {
      for (const auto& [id, bytes] : up ? up_ : down_) {
        const bool stopped = std::any_of(ranks.begin(), ranks.end(), [id = id](const Rank& one) {
          return one.connection == id && one.is_stopped;
        });
        if (!bytes.empty() && !stopped && !(up && server_is_stopped)) ready.emplace_back(up, id);
      }
    }
    if (ready.empty()) return false;
    const auto [up, id] = ready[random_.below(ready.size())];
    std::deque<std::byte>& bytes = (up ? up_ : down_)[id];
    const std::size_t size = 1 + random_.below(std::min<std::size_t>(bytes.size(), 400));
    const std::vector<std::byte> piece(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    if (up) {
      server.received(id, piece);
    } else {
      for (Rank& one : ranks) {
        if (one.connection == id && one.client) one.client->received(piece);
      }
      const auto last = closing_.find(id);
      if (bytes.empty() && last != closing_.end()) {
        for (Rank& one : ranks) {
          if (one.connection == id && one.client) one.client->closed("end of file");
        }
      }
    }
    return true;
  }
  void settle() {
    while (deliver()) {
    }
  }
  /// In steps in which every process that runs is called.
  void pass(TimePoint time) {
    for (TimePoint passed{}; passed < time; passed += 100ms) {
      clock.advance_to(clock.now() + 100ms);
      if (!server_is_stopped) server.pass_time();
      for (Rank& one : ranks) {
        if (one.client && !one.is_stopped) one.client->pass_time();
      }
      settle();
    }
  }
  void gather(std::uint32_t rank, const std::string& label, const std::string& text,
              Gatherer by = Gatherer::collectives) {
    std::vector<std::byte> bytes;
    for (const char c : text) bytes.push_back(std::byte(c));
    ranks[rank].client->gather(by, label, std::move(bytes));
  }
  /// The texts of all ranks that one of them has got, or "".
  [[nodiscard]] std::string gathered(std::uint32_t rank, Gatherer by = Gatherer::collectives) {
    const auto all = ranks[rank].client->take_gathered(by);
    std::string text;
    for (std::size_t i = 0; all && i < all->size(); ++i) {
      for (const std::byte byte : (*all)[i]) text += static_cast<char>(byte);
      text += ';';
    }
    return text;
  }
  [[nodiscard]] std::string failure(std::size_t number) const {
    const auto& client = ranks[number].client;
    return client && client->failure() ? client->failure()->text : "";
  }
  [[nodiscard]] std::string messages() {
    for (std::string& line : server.take_messages()) messages_ += line + "\n";
    return messages_;
  }

  tiers::SimClock clock;
  const Patience patience;
  ControlServer server;
  std::vector<Rank> ranks;
  bool server_is_stopped = false;

 private:
  void collect() {
    for (Rank& one : ranks) {
      if (!one.client || one.is_stopped) continue;
      const auto sent = one.client->take_outgoing();
      up_[one.connection].insert(up_[one.connection].end(), sent.begin(), sent.end());
    }
    if (server_is_stopped) return;
    for (const Outgoing& out : server.take_outgoing()) {
      down_[out.to].insert(down_[out.to].end(), out.frame.begin(), out.frame.end());
      if (out.last) closing_.insert({out.to, true});
    }
  }

  penstock::test::SeededRandom random_;
  const std::uint32_t count_;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, std::deque<std::byte>> up_, down_;
  std::map<ConnectionId, bool> closing_;
  std::string messages_;
};

}  // namespace penstock::zero::control::test
