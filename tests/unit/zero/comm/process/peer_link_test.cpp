// Two ends of a link, joined by pipes that take and give any number of bytes at a time.
#include "zero/comm/process/peer_link.hpp"

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::SeededRandom;

class LinkedPair {
 public:
  LinkedPair(std::uint64_t seed, std::size_t pipe_bytes) : random_(seed), pipe_bytes_(pipe_bytes) {}

  PeerLink& link(std::size_t end) { return links_[end]; }
  SeededRandom& random() { return random_; }

  /// Moves some bytes, somewhere. False if none can move.
  bool move() {
    const std::uint64_t first = random_.below(4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      const std::uint64_t which = (first + i) % 4, end = which / 2;
      if (which % 2 == 0 ? write(end) : read(end)) return true;
    }
    return false;
  }
  void settle() {
    while (move()) {
    }
  }
  /// Puts bytes on the way to `end`.
  void inject(std::size_t end, const std::vector<std::byte>& bytes) {
    pipes_[end].insert(pipes_[end].end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] const std::string& error(std::size_t end) const { return errors_[end]; }

 private:
  bool write(std::size_t end) {
    const ConstHostSpan bytes = links_[end].to_write();
    std::deque<std::byte>& pipe = pipes_[1 - end];
    const std::size_t room = pipe_bytes_ - std::min(pipe_bytes_, pipe.size());
    if (bytes.empty() || room == 0) return false;
    const std::size_t count = 1 + random_.below(std::min<std::uint64_t>(room, bytes.size().value()));
    pipe.insert(pipe.end(), bytes.data(), bytes.data() + count);
    links_[end].wrote(count);
    return true;
  }
  bool read(std::size_t end) {
    if (!errors_[end].empty()) return false;
    const HostSpan bytes = links_[end].to_read();
    std::deque<std::byte>& pipe = pipes_[end];
    if (bytes.empty() || pipe.empty()) return false;
    const std::size_t count = 1 + random_.below(std::min<std::uint64_t>(pipe.size(), bytes.size().value()));
    std::copy_n(pipe.begin(), count, bytes.data());
    pipe.erase(pipe.begin(), pipe.begin() + static_cast<std::ptrdiff_t>(count));
    if (auto read = links_[end].read(count); !read) errors_[end] = read.error().message();
    return true;
  }

  SeededRandom random_;
  const std::size_t pipe_bytes_;
  std::array<PeerLink, 2> links_{PeerLink(0, 1), PeerLink(1, 0)};
  std::array<std::deque<std::byte>, 2> pipes_;  // to each end
  std::array<std::string, 2> errors_;
};

/// The memory of both ends for one collective, in pieces of any size.
struct Memory {
  std::array<std::vector<std::byte>, 2> sent, received;
  std::vector<std::size_t> cuts;  // where each piece ends
  bool in_place = false;

  Memory(std::size_t size, bool same, std::uint64_t value, std::size_t pieces = 1) : in_place(same) {
    SeededRandom random(value + 17);
    for (std::size_t i = 1; i < pieces; ++i) cuts.push_back(random.below(size + 1));
    cuts.push_back(size);
    std::sort(cuts.begin(), cuts.end());
    for (std::size_t end = 0; end < 2; ++end) {
      sent[end].resize(size);
      SeededRandom bytes(value * 2 + end);
      for (std::byte& byte : sent[end]) byte = std::byte(bytes.next());
      received[end] = in_place ? sent[end] : std::vector<std::byte>(size);
    }
    first_ = sent;
  }
  LinkOperation operation(std::size_t end, std::uint32_t unit) {
    HostSpan receive{std::span(received[end])};
    const ConstHostSpan send =
        in_place ? ConstHostSpan(receive) : ConstHostSpan{std::span<const std::byte>(sent[end])};
    LinkOperation operation{.kind = in_place ? Transfer::Kind::all_to_all : Transfer::Kind::all_gather,
                            .signature = {.unit = unit, .step = 7},
                            .dtype = DType::bf16,
                            .pieces = {}};
    std::size_t begin = 0;
    for (const std::size_t cut : cuts) {
      const ByteCount at(begin), count(cut - begin);
      operation.pieces.push_back({.send = send.subspan(at, count), .receive = receive.subspan(at, count)});
      begin = cut;
    }
    return operation;
  }
  [[nodiscard]] bool arrived() const { return received[0] == first_[1] && received[1] == first_[0]; }

 private:
  std::array<std::vector<std::byte>, 2> first_;
};

TEST(PeerLink, ExchangesBytesOfAnySizeAlsoInPlace) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    LinkedPair pair(seed, 1 + seed * 997 % 100'000);
    for (std::uint32_t round = 0; round < 4; ++round) {
      const std::size_t sizes[] = {0,      1, 5000, PeerLink::chunk_bytes_max, PeerLink::chunk_bytes_max + 1,
                                   700'000};
      Memory memory(sizes[pair.random().below(seed < 4 ? 6 : 3)], pair.random().below(2) == 0,
                    seed * 10 + round, 1 + pair.random().below(4));
      const std::size_t first = pair.random().below(2);
      ASSERT_TRUE(pair.link(first).begin(memory.operation(first, round)));
      for (std::uint64_t moves = pair.random().below(30); moves > 0; --moves) (void)pair.move();
      ASSERT_TRUE(pair.link(1 - first).begin(memory.operation(1 - first, round)));
      pair.settle();
      ASSERT_TRUE(pair.link(0).is_done() && pair.link(1).is_done()) << "seed " << seed;
      ASSERT_TRUE(memory.arrived()) << "seed " << seed << " round " << round;
    }
  }
}

// One side ends a collective before the other, and begins the next one.
TEST(PeerLink, KeepsCollectivesApart) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    LinkedPair pair(seed, 3000);
    constexpr std::uint32_t count = 6;
    std::vector<Memory> memories;
    for (std::uint32_t i = 0; i < count; ++i)
      memories.emplace_back(pair.random().below(4000), i % 2 == 0, seed + i, 1 + i % 3);
    std::array<std::uint32_t, 2> begun{};
    while (begun[0] < count || begun[1] < count) {
      const std::size_t end = pair.random().below(2);
      if (pair.link(end).is_done() && begun[end] < count) {
        ASSERT_TRUE(pair.link(end).begin(memories[begun[end]].operation(end, begun[end])));
        ++begun[end];
      }
      (void)pair.move();
    }
    pair.settle();
    for (const Memory& memory : memories) ASSERT_TRUE(memory.arrived()) << "seed " << seed;
  }
}

TEST(PeerLink, NamesCollectivesThatDiffer) {
  const auto differ = [](auto change, Transfer::Kind kind = Transfer::Kind::all_gather) {
    LinkedPair pair(1, 100'000);
    Memory memory(1000, false, 1);
    LinkOperation mine = memory.operation(0, 3), other = memory.operation(1, 3);
    mine.kind = other.kind = kind;
    change(other);
    EXPECT_TRUE(pair.link(0).begin(mine));
    pair.settle();  // the other end has read the header before it begins
    const auto begun = pair.link(1).begin(other);
    EXPECT_FALSE(begun);
    EXPECT_EQ(begun.error().code(), ErrorCode::invalid_argument);
    (void)pair.link(1).interrupt(0);
    return begun ? "" : begun.error().message();
  };
  const std::string differs = differ([](LinkOperation& other) { other.signature.unit = 4; });
  EXPECT_EQ(differs.substr(0, differs.find('\n')),
            "ranks 1 and 0 call different collectives, wanted all-gather of slots of 1000 B, parameters "
            "of unit 4, optimizer group 0, micro-batch 0 of step 7, got all-gather of slots of 1000 B, "
            "parameters of unit 3, optimizer group 0, micro-batch 0 of step 7 [Communicator]");
  EXPECT_NE(
      differ([](LinkOperation& other) { other.kind = Transfer::Kind::all_to_all; }).find("reduce-scatter"),
      std::string::npos);
  EXPECT_NE(differ([](LinkOperation& other) { other.dtype = DType::fp32; }, Transfer::Kind::all_to_all)
                .find("of fp32"),
            std::string::npos);
  EXPECT_NE(differ([](LinkOperation& other) { other.signature.step = 8; }).find("of step 8"),
            std::string::npos);
  EXPECT_NE(differ([](LinkOperation& other) { other.signature.micro_batch = 1; }).find("micro-batch 1"),
            std::string::npos);
  EXPECT_NE(differ([](LinkOperation& other) {
              other.pieces[0].send = other.pieces[0].send.subspan(0_B, 500_B);
              other.pieces[0].receive = other.pieces[0].receive.subspan(0_B, 500_B);
            }).find("of 500 B"),
            std::string::npos);
  EXPECT_NE(differ([](LinkOperation& other) { other.pieces.emplace_back(); }).find("2 flats"),
            std::string::npos);
  // The end that began first reads of the difference.
  LinkedPair pair(1, 100'000);
  Memory memory(1000, false, 1);
  EXPECT_TRUE(pair.link(0).begin(memory.operation(0, 3)));
  EXPECT_TRUE(pair.link(1).begin(memory.operation(1, 4)));
  pair.settle();
  EXPECT_NE(pair.error(0).find("different collectives"), std::string::npos) << pair.error(0);
  EXPECT_NE(pair.error(1).find("different collectives"), std::string::npos) << pair.error(1);
}

TEST(PeerLink, NoticesPiecesThatAreSwapped) {
  LinkedPair pair(1, 100'000);
  Memory memory(1000, false, 1, /*pieces=*/2);
  LinkOperation swapped = memory.operation(1, 3);
  std::swap(swapped.pieces[0], swapped.pieces[1]);
  ASSERT_NE(swapped.pieces[0].send.size(), swapped.pieces[1].send.size());

  EXPECT_TRUE(pair.link(0).begin(memory.operation(0, 3)));
  EXPECT_TRUE(pair.link(1).begin(swapped));
  pair.settle();

  for (const std::size_t end : {0u, 1u})
    EXPECT_NE(pair.error(end).find("different collectives, wanted all-gather of 2 flats"), std::string::npos)
        << pair.error(end);
}

// Each end hears of an interruption when it does, once or twice. Then memory of before is not touched, and collectives
// work again.
TEST(PeerLink, GoesOnAfterInterruptions) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    LinkedPair pair(seed, 1 + seed % 7 * 800);
    std::uint64_t epoch = 0;
    for (std::uint32_t round = 0; round < 4; ++round) {
      Memory given_up(pair.random().below(6000), pair.random().below(2) == 0, seed,
                      1 + pair.random().below(3));
      const auto somewhat = [&] {
        for (std::uint64_t moves = pair.random().below(20); moves > 0; --moves) (void)pair.move();
      };
      for (const std::size_t end : {0u, 1u}) {
        if (pair.random().below(3) > 0) {
          ASSERT_TRUE(pair.link(end).begin(given_up.operation(end, 1)));
        }
        somewhat();
      }
      const bool twice = pair.random().below(2) == 0;
      epoch += twice ? 2 : 1;
      for (const std::size_t end : {1u, 0u}) {
        EXPECT_FALSE(pair.link(end).is_interrupted()) << "it may begin another until it knows";
        if (twice && pair.random().below(2) == 0) pair.link(end).interrupt(epoch - 1);
        somewhat();
        pair.link(end).interrupt(epoch);
        EXPECT_TRUE(pair.link(end).is_done());
        somewhat();
      }
      while (pair.link(0).is_interrupted() || pair.link(1).is_interrupted())
        ASSERT_TRUE(pair.move()) << "seed " << seed << ": nothing moves any more";
      for (auto& bytes : given_up.received) std::fill(bytes.begin(), bytes.end(), std::byte{0xee});

      Memory memory(pair.random().below(6000), pair.random().below(2) == 0, seed + 1000);
      for (const std::size_t end : {0u, 1u}) {
        ASSERT_TRUE(pair.link(end).begin(memory.operation(end, 2)));
        somewhat();
      }
      pair.settle();
      ASSERT_TRUE(memory.arrived()) << "seed " << seed;
      for (const auto& bytes : given_up.received)
        EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0xee}),
                  static_cast<std::ptrdiff_t>(bytes.size()));
      EXPECT_EQ(pair.error(0) + pair.error(1), "");
    }
  }
}

TEST(PeerLink, RefusesWhatIsNoChunk) {
  for (std::size_t wrong = 0; wrong < PeerLink::header_bytes; ++wrong) {
    LinkedPair pair(1, 100'000);
    Memory memory(1000, false, 1);
    ASSERT_TRUE(pair.link(0).begin(memory.operation(0, 3)));
    ASSERT_TRUE(pair.link(1).begin(memory.operation(1, 3)));
    const ConstHostSpan header = pair.link(0).to_write();
    std::vector<std::byte> bytes(header.data(), header.data() + header.size().value());
    ASSERT_EQ(bytes.size(), PeerLink::header_bytes);
    bytes[wrong] = std::byte{0xff};
    pair.inject(1, bytes);
    while (pair.link(0).to_write().size() > 0_B) pair.link(0).wrote(pair.link(0).to_write().size().value());
    pair.settle();
    EXPECT_FALSE(pair.link(1).is_done()) << "byte " << wrong;
    const bool waits = wrong >= 32 && wrong < 40;  // an epoch to come
    EXPECT_EQ(pair.error(1).empty(), waits) << "byte " << wrong << ": " << pair.error(1);
  }
}

}  // namespace
}  // namespace penstock::zero
