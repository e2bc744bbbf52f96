#pragma once

#include "kit/seeded_random.hpp"
#include "zero/comm/process/peer_pipes.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace penstock::test {

/// The pipes between the ranks of a job without processes: each holds few bytes, and takes and gives as many as a seed
/// says. Used by one thread.
class MemoryPipes {
 public:
  MemoryPipes(std::uint32_t ranks, std::size_t pipe_bytes, std::uint64_t seed)
      : ranks_(ranks), pipe_bytes_(pipe_bytes), random_(seed), pipes_(std::size_t{ranks} * ranks) {}

  /// Those of one rank. Once they are destroyed, its peers can read what it has written, and then its streams end.
  std::unique_ptr<zero::PeerPipes> of(std::uint32_t rank) { return std::make_unique<End>(*this, rank); }

 private:
  struct Pipe {
    std::deque<std::byte> bytes;
    bool ended = false;
  };
  class End final : public zero::PeerPipes {
   public:
    End(MemoryPipes& all, std::uint32_t rank) : all_(all), rank_(rank) {}
    ~End() override {
      for (std::uint32_t peer = 0; peer < all_.ranks_; ++peer) {
        all_.pipe(rank_, peer).ended = true;
        all_.pipe(peer, rank_).ended = true;
      }
    }
    Result<std::size_t> write(std::uint32_t peer, ConstHostSpan bytes) override {
      Pipe& pipe = all_.pipe(rank_, peer);
      if (pipe.ended) return end(peer);
      const std::size_t count =
          all_.some(std::min<std::size_t>(bytes.size().value(), all_.pipe_bytes_ - pipe.bytes.size()));
      pipe.bytes.insert(pipe.bytes.end(), bytes.data(), bytes.data() + count);
      return count;
    }
    Result<std::size_t> read(std::uint32_t peer, HostSpan bytes) override {
      Pipe& pipe = all_.pipe(peer, rank_);
      if (pipe.ended && pipe.bytes.empty()) return end(peer);
      const std::size_t count = all_.some(std::min<std::size_t>(bytes.size().value(), pipe.bytes.size()));
      std::copy_n(pipe.bytes.begin(), count, bytes.data());
      pipe.bytes.erase(pipe.bytes.begin(), pipe.bytes.begin() + static_cast<std::ptrdiff_t>(count));
      return count;
    }
    void wait(std::span<const Interest> interests, TimePoint) noexcept override {
      waited_for.assign(interests.begin(), interests.end());
    }
    void wake() noexcept override {}

    std::vector<Interest> waited_for;

   private:
    static Error end(std::uint32_t peer) {
      return Error(ErrorCode::peer_failed, "MemoryPipes")
          .reason("the streams of rank " + std::to_string(peer) + " have ended");
    }
    MemoryPipes& all_;
    const std::uint32_t rank_;
  };

  Pipe& pipe(std::uint32_t from, std::uint32_t to) { return pipes_[std::size_t{from} * ranks_ + to]; }
  std::size_t some(std::size_t most) { return most == 0 ? 0 : 1 + random_.below(most); }

  const std::uint32_t ranks_;
  const std::size_t pipe_bytes_;
  SeededRandom random_;
  std::vector<Pipe> pipes_;
};

}  // namespace penstock::test
